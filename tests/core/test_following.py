"""Which metadata repository is spoken to."""

from __future__ import annotations

from varlog.core.following import Following
from varlog.core.messages import Leading, NotLeading
from varlog.types import Term


def leading(term: int) -> Leading:
    return Leading(Term(term))


def not_leading(term: int, address: str = "") -> NotLeading:
    return NotLeading(Term(term), address)


def leader_of(following: Following[str]) -> tuple[str | None, int]:
    return following.leader, following.term


def test_nobody_is_followed_before_it_says_that_it_leads() -> None:
    following: Following[str] = Following()
    assert leader_of(following) == (None, 0)
    assert not following.on_said("a", not_leading(0))
    assert leader_of(following) == (None, 0)
    assert following.on_said("b", leading(1))
    assert leader_of(following) == ("b", 1)


def test_saying_it_twice_changes_nothing() -> None:
    following: Following[str] = Following()
    assert following.on_said("a", leading(3))
    assert not following.on_said("a", leading(3))
    assert not following.on_said("b", not_leading(3, "a:1"))
    assert leader_of(following)[0] == "a"


def test_rule5_a_new_leader_and_a_new_term_of_the_same_one_are_news() -> None:
    following: Following[str] = Following()
    following.on_said("a", leading(1))
    assert following.on_said("b", leading(2)), "the first one may be paused and believe that it leads"
    assert leader_of(following)[0] == "b"
    assert following.on_said("b", leading(4)), "it was deposed and leads again: nothing is known there"
    assert leader_of(following) == ("b", 4)
    assert not following.on_said("a", not_leading(4, "b:1"))


def test_one_that_has_been_deposed_is_left_before_the_new_one_is_found() -> None:
    following: Following[str] = Following()
    following.on_said("a", leading(5))
    assert following.on_said("c", not_leading(6, "b:1"))
    assert leader_of(following) == (None, 0)
    assert following.known_elsewhere() == "b:1"
    assert following.on_said("b", leading(6))
    assert leader_of(following)[0] == "b"
    assert following.known_elsewhere() == ""


def test_a_leader_that_steps_down_or_goes_away_is_followed_no_more() -> None:
    following: Following[str] = Following()
    following.on_said("a", leading(1))
    assert following.on_said("a", not_leading(1))
    assert leader_of(following) == (None, 0)
    following.on_said("b", leading(2))
    assert following.on_closed("b")
    assert leader_of(following) == (None, 0)
    assert not following.on_closed("b")
    assert not following.on_closed("c"), "one that never said anything"


def test_the_one_that_is_left_is_followed_if_it_says_that_it_leads() -> None:
    following: Following[str] = Following()
    following.on_said("a", leading(5))
    following.on_said("b", leading(6))
    assert following.on_closed("b")
    assert leader_of(following) == ("a", 5), "for all anybody knows who is connected"


def test_rule5_metadata_that_begins_anew_is_followed_to_find_out() -> None:
    following: Following[str] = Following()
    following.on_said("a", leading(9))
    following.on_closed("a")
    assert following.on_said("a", leading(1))
    assert leader_of(following)[0] == "a"
