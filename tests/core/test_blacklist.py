"""M11: who failed often enough is avoided, for a term that ends; who works again is not."""

from __future__ import annotations

from varlog.core.blacklist import FIRST_TERM, LONGEST_TERM, REMEMBERED, THRESHOLD, Blacklist


def terms(blacklist: Blacklist[int], who: int, now: float, count: int) -> list[float]:
    """For how long it is avoided each time, if it fails whenever it may be used again."""
    found = []
    for _ in range(count):
        begun = now
        blacklist.failed(who, now)
        while blacklist.avoids(who, now):
            now += 0.5
        found.append(now - begun)
    return found


def test_M11_only_several_failures_make_one_avoided() -> None:
    blacklist: Blacklist[int] = Blacklist()
    assert not blacklist
    assert not blacklist.avoids(7, 0.0)
    for number in range(THRESHOLD - 1):
        blacklist.failed(7, float(number))
        assert not blacklist.avoids(7, float(number))
    blacklist.failed(7, 2.0)
    assert blacklist.avoids(7, 2.0)
    assert not blacklist.avoids(8, 2.0)


def test_M11_what_is_avoided_is_tried_again_after_a_while() -> None:
    blacklist: Blacklist[int] = Blacklist()
    for _ in range(THRESHOLD):
        blacklist.failed(7, 1.0)
    assert blacklist.avoids(7, 1.0 + FIRST_TERM - 0.1)
    assert not blacklist.avoids(7, 1.0 + FIRST_TERM)


def test_M11_whoever_fails_again_at_once_is_avoided_for_longer_and_longer() -> None:
    blacklist: Blacklist[int] = Blacklist()
    for _ in range(THRESHOLD - 1):
        blacklist.failed(7, 0.0)
    found = terms(blacklist, 7, 0.0, 7)
    assert found == [FIRST_TERM * 2**number for number in range(5)] + [LONGEST_TERM] * 2


def test_failures_while_it_is_avoided_do_not_prolong_that() -> None:
    blacklist: Blacklist[int] = Blacklist()
    for number in range(20):
        blacklist.failed(7, number * FIRST_TERM / 20)
    assert not blacklist.avoids(7, 2 * FIRST_TERM)


def test_one_success_and_all_is_forgotten() -> None:
    blacklist: Blacklist[int] = Blacklist()
    for _ in range(THRESHOLD):
        blacklist.failed(7, 0.0)
    blacklist.worked(7)
    blacklist.worked(8)
    assert not blacklist.avoids(7, 0.0)
    assert not blacklist
    blacklist.failed(7, 0.0)
    assert not blacklist.avoids(7, 0.0)


def test_failures_long_ago_do_not_count() -> None:
    blacklist: Blacklist[int] = Blacklist()
    blacklist.failed(7, 0.0)
    blacklist.failed(7, REMEMBERED + 0.1)
    assert not blacklist.avoids(7, REMEMBERED + 0.1)


def test_M6_who_certainly_cannot_be_used_is_avoided_at_once() -> None:
    blacklist: Blacklist[int] = Blacklist()
    blacklist.unusable(7, 3.0)
    assert blacklist.avoids(7, 3.0 + FIRST_TERM - 0.1)
    blacklist.unusable(7, 4.0)
    assert blacklist.avoids(7, 4.0 + FIRST_TERM - 0.1)
    assert not blacklist.avoids(7, 4.0 + FIRST_TERM)


def test_of_what_is_no_more_nothing_is_remembered() -> None:
    blacklist: Blacklist[int] = Blacklist()
    blacklist.unusable(7, 0.0)
    blacklist.unusable(8, 0.0)
    blacklist.keep({8, 9})
    assert not blacklist.avoids(7, 0.0)
    assert blacklist.avoids(8, 0.0)
