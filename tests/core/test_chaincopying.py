"""Copies of a chain's tail: who makes one, what is wiped, what is copied, and what a copy survives (rule 22)."""

from __future__ import annotations

import random

import pytest

from tests.core.chains import LSID, MANAGER, Member, Members, batch_of, junk, name_of
from varlog import errors, limits
from varlog.core.branches import ChainBranch
from varlog.core.chaincopying import ASK_AGAIN, RENEW_WITHIN, SOURCE_SILENT
from varlog.core.messages import ChainCopied, ChainCopy, ChainPart, GetDigest
from varlog.types import GLSN, Epoch, StorageNodeID


@pytest.fixture
def members() -> Members:
    """The tail of a chain in epoch 1, with the positions 1 to 9, and a node with an empty replica."""
    members = Members(3)
    members[1].seal(1)
    members.settle()
    store(members[1], range(1, 10))
    return members


def store(member: Member, positions: object, *, epoch: int = 1, tag: int = 0) -> None:
    numbers = list(positions)  # type: ignore[call-overload]
    member.write_all([(glsn, batch_of(glsn + tag)) for glsn in numbers], epoch=epoch, time=3)
    member.sync()
    member.sent.clear()


def sealed(members: Members, epoch: int, *snids: int) -> int:
    """Seal the source and those who join; returns where the source ends."""
    members[1].seal(epoch)
    for snid in snids:
        members[snid].seal(epoch, base=epoch - 1, joins=True)
    members.settle()
    return members[1].replica.end


def joined(members: Members, epoch: int, snid: int = 2) -> ChainCopied:
    """Let a replica join in a new epoch, and tell how that ended."""
    end = sealed(members, epoch, snid)
    members[snid].copy(1, epoch, end)
    members.settle()
    return members[snid].answer(ChainCopied, members[snid].copy(1, epoch, end))


# Final copies


def test_rule22_an_empty_replica_becomes_a_copy(members: Members) -> None:
    end = sealed(members, 2, 2)
    first = members[2].copy(1, 2, end)
    assert not members[2].answer(ChainCopied, first).is_complete
    members.settle()
    copied = members[2].answer(ChainCopied, members[2].copy(1, 2, end))
    assert (copied.code, copied.is_complete, copied.copied, copied.source_end) == (0, True, 10, 10)
    assert members[2].content == members[1].content
    assert members[2].log.time == 3
    assert not members[2].replica.outside
    assert members[2].result(members[2].write(10, batch_of(10), epoch=2)) == ""
    assert ChainBranch.RULE22_COPIED in members[2].branches


def test_rule22_a_copy_is_complete_when_it_is_durable(members: Members) -> None:
    end = sealed(members, 2, 2)
    target = members[2]
    target.copy(1, 2, end)
    while members._deliver() or members[1].read_plans():
        pass
    assert target.replica.end == end
    assert not target.answer(ChainCopied, target.copy(1, 2, end)).is_complete
    assert target.result(target.write(10, batch_of(10), epoch=2)) == "NoSource"
    target.sync()
    assert target.answer(ChainCopied, target.copy(1, 2, end)).is_complete


def test_rule22_a_returner_is_wiped_above_its_verified_prefix(members: Members) -> None:
    """What it was written while the chain went on without it is not what the chain has there."""
    target = members[2]
    target.seal(1)
    store(target, range(1, 5))
    store(target, [6], tag=100)
    store(target, [8, 12])
    copied = joined(members, 2)
    assert copied.is_complete
    assert target.content == members[1].content
    assert ChainBranch.RULE22_WIPED in target.branches
    target.restart()
    assert target.content == members[1].content, "also after a restart"
    assert target.replica.end == 10


def test_rule22_what_only_the_returner_has_is_wiped(members: Members) -> None:
    target = members[2]
    target.seal(1)
    store(target, range(1, 15))
    assert joined(members, 2).is_complete
    assert target.content == members[1].content
    assert target.replica.end == 10


def test_rule22_a_batch_that_overlaps_is_another_batch(members: Members) -> None:
    target = members[2]
    target.seal(1)
    target.write_all([(1, batch_of(1)), (2, batch_of(2, 2)), (5, batch_of(5))], time=3)
    target.sync()
    assert joined(members, 2).is_complete
    assert target.content == members[1].content


def test_rule22_the_same_batch_of_another_time_is_another_batch(members: Members) -> None:
    target = members[2]
    target.seal(1)
    target.write(4, batch_of(4), time=9)
    target.sync()
    assert joined(members, 2).is_complete
    assert [line[2] for line in target.log.digest(GLSN(1), 100)] == [3] * 9


def test_rule22_what_is_missing_below_is_copied_and_nothing_wiped(members: Members) -> None:
    target = members[2]
    target.seal(1)
    store(target, [1, 2, 5, 6, 7, 9])
    copied = joined(members, 2)
    assert copied.is_complete
    assert target.content == members[1].content
    assert ChainBranch.RULE22_HOLE_COPIED in target.branches
    assert ChainBranch.RULE22_WIPED not in target.branches


def test_a_copy_of_nothing_is_complete(members: Members) -> None:
    empty = Members(2)
    assert joined(empty, 1).is_complete
    target = members[2]
    target.seal(1)
    store(target, range(1, 10))
    copied = joined(members, 2)
    assert (copied.is_complete, copied.verified) == (True, 10)


def test_junk_is_copied_as_anything_else(members: Members) -> None:
    members[1].write(12, junk(5))
    members[1].sync()
    assert joined(members, 2).is_complete
    assert members[2].content[12] == junk(5)


@pytest.mark.parametrize("lines", [1, 2, 3, 7])
def test_a_long_log_is_compared_in_pages(members: Members, lines: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CHAIN_DIGEST_BATCHES", lines)
    store(members[1], range(20, 40))
    target = members[2]
    target.seal(1)
    store(target, [*range(1, 5), *range(6, 10), *range(20, 31)])
    store(target, [35], tag=50)
    assert joined(members, 2).is_complete
    assert target.content == members[1].content


@pytest.mark.parametrize("lines", [1, 3, 9, 4096])
def test_rule22_what_lies_beyond_the_end_goes_though_a_page_ends_there(
    members: Members, lines: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "CHAIN_DIGEST_BATCHES", lines)
    target = members[2]
    target.seal(1)
    store(target, range(1, 10))
    store(target, range(10, 13), tag=50)
    assert joined(members, 2).is_complete
    assert target.content == members[1].content
    assert target.replica.end == 10


def test_rule22_what_lies_beyond_the_end_of_a_log_that_is_trimmed_whole_goes(members: Members) -> None:
    target = members[2]
    target.seal(1)
    store(target, range(10, 13), tag=50)
    for snid in (1, 2):
        members[snid].replica.trim(GLSN(9))
        members[snid].sync()
    assert joined(members, 2).is_complete
    assert target.content == members[1].content == {}


def test_a_long_copy_is_made_of_parts(members: Members, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "COPY_PART_BYTES", 200)
    monkeypatch.setattr(limits, "COPY_AHEAD_BYTES", 300)
    store(members[1], range(20, 60))
    assert joined(members, 2).is_complete
    assert members[2].content == members[1].content


def test_L5_a_copy_begins_behind_the_trim_point(members: Members) -> None:
    members[1].write(12, batch_of(12, 6))
    members[1].sync()
    members[1].replica.trim(GLSN(13))
    assert joined(members, 2).is_complete
    target = members[2]
    assert (target.log.trim, list(target.content)) == (13, [12]), "a batch is whole also where it is cut into"


def test_L5_a_copy_goes_on_where_its_source_was_trimmed_to(members: Members, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "COPY_PART_BYTES", 1)
    end = sealed(members, 2, 2)
    target = members[2]
    target.copy(1, 2, end)
    members._deliver()
    members[1].read_plans()
    members._deliver()
    members[1].replica.trim(GLSN(5))
    members.settle()
    assert target.answer(ChainCopied, target.copy(1, 2, end)).is_complete
    assert list(target.content) == [6, 7, 8, 9]


def test_L5_what_is_missing_and_trimmed_meanwhile_is_not_missed(members: Members) -> None:
    target = members[2]
    target.seal(1)
    store(target, [1, 3, 4, 5, 9])
    end = sealed(members, 2, 2)
    target.copy(1, 2, end)
    members._deliver()
    members._deliver()
    members[1].replica.trim(GLSN(6))
    members.settle()
    assert target.answer(ChainCopied, target.copy(1, 2, end)).is_complete
    assert target.content == members[1].content


def test_a_log_that_is_trimmed_whole_is_copied(members: Members) -> None:
    members[1].replica.trim(GLSN(9))
    assert joined(members, 2).is_complete
    assert (members[2].log.trim, members[2].content) == (9, {})


# Requests that come late


def test_rule22_a_late_request_does_not_wipe_a_member(members: Members) -> None:
    assert joined(members, 2).is_complete
    target = members[2]
    store(target, [12], epoch=2)
    again = target.answer(ChainCopied, target.copy(1, 2, 10))
    assert (again.code, again.is_complete) == (0, True)
    for epoch, end in ((2, 11), (2, 0)):
        assert name_of(target.answer(ChainCopied, target.copy(1, epoch, end)).code) == "Conflict"
    members.settle()
    assert 12 in target.content
    assert ChainBranch.RULE22_LATE_COPY_REFUSED in target.branches


def test_rule22_a_late_request_does_not_wipe_a_member_that_was_restarted(members: Members) -> None:
    assert joined(members, 2).is_complete
    target = members[2]
    store(target, [12], epoch=2)
    target.restart()
    assert name_of(target.answer(ChainCopied, target.copy(1, 2, 10)).code) == "Conflict"
    for end in (0, 10):
        assert name_of(target.answer(ChainCopied, target.copy(1, 1, end)).code) == "StaleEpoch"
    assert 12 in target.content


def test_rule22_only_one_that_joins_makes_a_final_copy(members: Members) -> None:
    target = members[2]
    target.seal(1)
    store(target, [1, 2, 30])
    members[1].seal(2)
    target.seal(2, base=1)
    members.settle()
    assert name_of(target.answer(ChainCopied, target.copy(1, 2, 10)).code) == "Conflict"
    assert 30 in target.content


def test_a_replica_is_not_copied_from_itself_nor_in_no_epoch(members: Members) -> None:
    for source, epoch, end in ((2, 1, 0), (1, 0, 0), (1, 1, -1), (1, 1 << 63, 0)):
        assert name_of(members[2].answer(ChainCopied, members[2].copy(source, epoch, end)).code) == "InvalidArgument"


def test_a_failed_replica_does_not_copy(members: Members) -> None:
    members[2].chains.on_corrupt(LSID)
    copied = members[2].answer(ChainCopied, members[2].copy(1, 1))
    assert (name_of(copied.code), copied.is_complete) == ("Corrupt", False)


def test_a_damaged_or_joining_source_gives_nothing(members: Members) -> None:
    members[3].seal(2, joins=True)
    end = sealed(members, 2, 2)
    target = members[2]
    for source in (3, 1):
        members[1].chains.on_corrupt(LSID)
        target.copy(source, 2, end)
        for _ in range(50):
            target.copy(source, 2, end)
            members.pass_time(0.05)
        copied = target.answer(ChainCopied, target.copy(source, 2, end))
        assert (copied.is_complete, bool(copied.detail)) == (False, True)
    assert target.content == {}
    assert target.replica.outside


# Followers


def test_rule22_a_replica_follows_a_source_that_is_written(members: Members) -> None:
    target = members[2]
    target.copy(1, 1)
    members.settle()
    members.pass_time(0.1)
    assert target.content == members[1].content
    store(members[1], range(10, 14))
    for _ in range(2):
        members.pass_time(0.1)
        target.copy(1, 1)
    copied = target.answer(ChainCopied, target.copy(1, 1))
    assert (copied.code, copied.copied, copied.source_end, copied.is_complete) == (0, 14, 14, True)
    assert target.content == members[1].content
    info = target.replica.info()
    assert (info.source, info.source_end) == (1, 14)
    assert target.result(target.write(20, batch_of(20))) == "NoSource", "it is no member"
    assert ChainBranch.RULE22_FOLLOWING in target.branches


def test_rule22_a_follower_joins_without_copying_all_again(members: Members) -> None:
    target = members[2]
    target.copy(1, 1)
    members.settle()
    store(members[1], [20, 30])
    members.pass_time(0.1)
    store(members[1], [12, 31])
    before = target.replica.batches
    copied = joined(members, 2)
    assert copied.is_complete
    assert target.content == members[1].content
    assert target.replica.batches - before == 2, "what came late and what came last"


def test_rule22_a_follower_that_joins_compares_positions_only(members: Members) -> None:
    """While the chain is sealed, appends wait."""
    target = members[2]
    end = sealed(members, 2, 2)
    target.copy(1, 2, end)
    assert [m.runs for _, m in target.sent if isinstance(m, GetDigest)] == [False], "one that never followed"
    members.settle()
    third = members[3]
    third.copy(1, 2)
    members.settle()
    end = sealed(members, 3, 3)
    third.copy(1, 3, end)
    assert [m.runs for _, m in third.sent if isinstance(m, GetDigest)] == [True]
    members.settle()
    assert third.answer(ChainCopied, third.copy(1, 3, end)).is_complete
    assert not third.replica.is_chains, "from now on it is written by clients"


def test_rule22_a_follower_that_has_what_the_tail_has_not_compares_all(members: Members) -> None:
    target = members[2]
    target.seal(1)
    store(target, [1, 2, 4])
    store(target, [30], tag=5)
    target.replica.is_chains = True
    assert joined(members, 2).is_complete
    assert target.content == members[1].content
    assert ChainBranch.RULE22_WIPED in target.branches


def test_rule22_a_follower_that_was_sealed_as_a_member_is_compared_whole_again(members: Members) -> None:
    target = members[2]
    target.copy(1, 1)
    members.settle()
    assert target.replica.is_chains
    target.seal(2, base=1)
    assert not target.replica.is_chains


def test_rule22_what_an_abandoned_final_copy_has_brought_is_compared(
    members: Members, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be the suffix of a head that died with it: other entries were acknowledged at the same positions since."""
    monkeypatch.setattr(limits, "CHAIN_DIGEST_BATCHES", 4)
    monkeypatch.setattr(limits, "COPY_PART_BYTES", 1)
    head, tail, target = members[1], members[2], members[3]
    tail.seal(1)
    store(tail, range(1, 10))
    store(head, [10, 11])
    target.copy(2, 1)
    members.settle()
    head.seal(2, base=1)
    target.seal(2, base=1, joins=True)
    members.settle()
    target.copy(1, 2, head.replica.end)
    while target.replica.end <= 10:  # until a part of what only the head has is here
        members.step()
    members.cut_off.add("sn/1")
    members.pass_time(SOURCE_SILENT + RENEW_WITHIN)
    tail.seal(3, base=1)
    members.settle()
    store(tail, [10, 11], epoch=3, tag=100)
    target.copy(2, 3)
    while target.chains.copying._copies[LSID].at <= 4:  # the first of three pages
        members.step()
    tail.seal(4, base=3)
    target.seal(4, base=3, joins=True)
    members.settle()
    target.copy(2, 4, tail.replica.end)
    members.settle()
    assert target.answer(ChainCopied, target.copy(2, 4, tail.replica.end)).is_complete
    assert target.content == tail.content


@pytest.mark.parametrize("lines", [1, 2, 5])
def test_positions_are_compared_in_pages(members: Members, lines: int, monkeypatch: pytest.MonkeyPatch) -> None:
    target = members[2]
    target.copy(1, 1)
    members.settle()
    monkeypatch.setattr(limits, "CHAIN_DIGEST_LINES", lines)
    store(members[1], [*range(20, 40, 3), *range(50, 60), 70])
    members.pass_time(0.1)
    store(members[1], [*range(21, 40, 3), 45, 80])
    assert joined(members, 2).is_complete
    assert target.content == members[1].content


def test_rule22_a_follower_takes_on_the_epoch(members: Members) -> None:
    target = members[2]
    members[1].seal(4)
    members.settle()
    store(members[1], [10], epoch=4)
    target.copy(1, 4)
    members.settle()
    assert target.replica.epoch == 4
    target.restart()
    assert target.replica.epoch == 4
    target.copy(1, 4)
    members.settle()
    assert target.content == members[1].content


def test_rule22_a_returner_that_was_sealed_by_who_gave_up_follows(members: Members) -> None:
    """A proposer may have sealed it as a member, not heard of it, and gone on without it."""
    target = members[2]
    target.seal(1)
    store(target, range(1, 8))
    for snid in (1, 2):
        members[snid].seal(2, base=1)
    members.settle()
    target.copy(1, 2)
    members.settle()
    assert target.content == members[1].content


def test_a_follower_of_a_source_that_was_sealed_meanwhile_begins_anew(members: Members) -> None:
    target = members[2]
    target.copy(1, 1)
    members.settle()
    members[1].seal(3)
    members.settle()
    members.pass_time(0.1)
    assert not target.chains.copying
    assert ChainBranch.RULE22_COPY_ABANDONED in target.branches
    target.copy(1, 3)
    members.settle()
    copied = target.answer(ChainCopied, target.copy(1, 3))
    assert copied.is_complete
    assert "StaleEpoch" in copied.detail or "epoch" in copied.detail


def test_a_follower_that_is_sealed_as_a_member_is_one(members: Members) -> None:
    target = members[2]
    target.copy(1, 1)
    members.settle()
    target.seal(2, base=1)
    members.settle()
    members.pass_time(0.1)
    assert not target.chains.copying
    assert not target.replica.outside


# What a copy survives


def test_a_question_that_is_lost_is_asked_again(members: Members) -> None:
    target = members[2]
    members.cut_off.add("sn/1")
    target.copy(1, 1)
    members.settle()
    members.cut_off.clear()
    members.pass_time(ASK_AGAIN + 0.1)
    assert target.content == members[1].content


def test_a_question_is_asked_again_when_there_is_a_new_connection(members: Members) -> None:
    target = members[2]
    members.cut_off.add("sn/1")
    target.copy(1, 1)
    members.settle()
    members.cut_off.clear()
    target.node.on_peer_connected(StorageNodeID(1), target.now)
    target.node.flush(target.now)
    members.settle()
    assert target.content == members[1].content


def test_a_silent_source_is_given_up(members: Members) -> None:
    target = members[2]
    members.cut_off.add("sn/1")
    target.copy(1, 1)
    members.pass_time(SOURCE_SILENT + 0.2)
    assert not target.chains.copying
    assert "not answered" in target.answer(ChainCopied, target.copy(1, 1)).detail


def test_a_copy_that_nobody_asks_about_is_given_up(members: Members) -> None:
    target = members[2]
    target.copy(1, 1)
    members.pass_time(RENEW_WITHIN + 0.2)
    assert not target.chains.copying


def test_a_copy_of_a_replica_that_is_removed_ends(members: Members) -> None:
    members[2].copy(1, 1)
    members[2].node.remove(LSID)
    assert not members[2].chains.copying
    members.settle()


def test_a_copy_that_fails_to_write_ends(members: Members) -> None:
    target = members[2]
    target.copy(1, 1)
    target.chains.on_failed(LSID, errors.DiskFull("no room"))
    members.pass_time(0.1)
    assert not target.chains.copying


@pytest.mark.parametrize(
    "line",
    [
        (12, 12, 2, 1, 0, 0, batch_of(1)),
        (0, 0, 1, 1, 0, 0, batch_of(1)),
        (12, 12, 1, 9, 0, 0, batch_of(1)),
        (12, 12, 1, 1, 0, -1, batch_of(1)),
        (12, 12, 1, 1, 0, 0, batch_of(1)[:-1] + b"\x01"),
        (3, 3, 1, 1, 0, 0, batch_of(77)),
    ],
)
def test_what_a_source_must_not_give_is_not_taken(members: Members, line: tuple[int, ...]) -> None:
    target = members[2]
    target.copy(1, 1)
    members.settle()
    before = target.content
    members.pass_time(0.05)
    target.node.flush(target.now)
    members.cut_off.add("sn/1")
    members.pass_time(ASK_AGAIN + 0.1)
    copy = target.chains.copying._copies[LSID]
    target.receive("sn/1", ChainPart(copy._request, LSID, 0, Epoch(1), (line,), GLSN(13)))  # type: ignore[arg-type]
    members.pass_time(0.05)
    assert not target.chains.copying
    assert target.content == before


def test_a_copy_asked_for_by_another_goes_on_with_the_last(members: Members) -> None:
    members[3].seal(1)
    store(members[3], range(1, 4))
    target = members[2]
    target.copy(1, 1)
    members.settle()
    target.receive(MANAGER, ChainCopy(900, LSID, Epoch(1), StorageNodeID(3), GLSN(0)))
    members.settle()
    assert target.content == members[3].content


@pytest.mark.parametrize("seed", range(40))
def test_rule22_whatever_was_there_a_joiner_equals_its_source(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against the plain truth: what the source has."""
    rng = random.Random(seed)
    monkeypatch.setattr(limits, "CHAIN_DIGEST_LINES", rng.choice([1, 3, 8, 1000]))
    monkeypatch.setattr(limits, "CHAIN_DIGEST_BATCHES", rng.choice([1, 3, 8, 1000]))
    monkeypatch.setattr(limits, "COPY_PART_BYTES", rng.choice([1, 300, 1 << 20]))
    members = Members(2)
    for snid in (1, 2):
        members[snid].seal(1)
    members.settle()
    for _ in range(60):
        glsn, entries, number = rng.randrange(1, 60), rng.choice([1, 1, 2, 5]), rng.randrange(1000)
        for snid in rng.choice([(1,), (1, 2), (1, 2), (1, 2), (2,)]):
            members[snid].write(glsn, batch_of(number, entries), time=rng.choice([0, 0, number]))
    members.settle()
    for snid in (1, 2):
        members[snid].replica.trim(GLSN(rng.choice([0, 0, 5, 30])))
    members.settle()
    target = members[2]
    epoch = 1
    for _ in range(rng.randrange(3)):  # it follows for a while, is killed, and the source is written
        epoch += 1
        members[1].seal(epoch)
        members.settle()
        target.copy(1, epoch)
        if rng.random() < 0.5:
            members.settle()
        for _ in range(10):
            members[1].write(rng.randrange(1, 90), batch_of(rng.randrange(1000), rng.choice([1, 3])), epoch=epoch)
        members._deliver()
        if rng.random() < 0.5:
            target.restart()
        members.settle()
    epoch += 1
    assert joined(members, epoch).is_complete
    trim = max(members[1].log.trim, target.log.trim)
    source, copied = members[1].content, target.content
    if trim > members[1].log.trim:
        source = {glsn: content for glsn, content in source.items() if glsn in copied or glsn > trim}
    assert copied == source
