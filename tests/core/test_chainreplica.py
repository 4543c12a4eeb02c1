"""A replica of a chain: written once at each position, read, sealed (S2 to S6; rules 20 to 22)."""

from __future__ import annotations

import pytest

from tests.core.chains import CLIENT, LSID, OTHER_CLIENT, Member, batch_of, junk, name_of
from varlog import errors, limits
from varlog.batch import verify
from varlog.core.branches import ChainBranch
from varlog.core.chainreplica import READ_WAIT
from varlog.core.messages import ChainPart, ChainSeal, ChainSealed, ChainWrite, ChainWritten, Digest
from varlog.core.projection import NEVER
from varlog.types import GLSN, Epoch, ReplicaState


@pytest.fixture
def member() -> Member:
    """A replica in epoch 1."""
    member = Member()
    member.seal(1)
    member.sync()
    member.sent.clear()
    member.branches.clear()
    return member


def stored(member: Member, *numbers: int) -> None:
    """Batches of one entry each, durable at the positions of the same numbers."""
    member.write_all([(number, batch_of(number)) for number in numbers], time=5)
    member.sync()
    member.sent.clear()


# Writes


def test_S3_a_write_is_answered_when_it_is_durable(member: Member) -> None:
    request = member.write_all([(1, batch_of(1)), (2, batch_of(2, 3))], time=9)
    assert member.result(request) == ""
    member.sync()
    written = member.answer(ChainWritten, request)
    assert (written.code, written.epoch, written.synced, written.refused) == (0, 1, True, ())
    assert member.content == {1: batch_of(1), 2: batch_of(2, 3)}
    assert (member.replica.end, member.replica.durable_end, member.log.time) == (5, 5, 9)


def test_S3_a_replica_that_does_not_sync_says_so() -> None:
    member = Member(synced=False)
    member.seal(1)
    request = member.write(1, batch_of(1))
    member.sync()
    assert not member.answer(ChainWritten, request).synced


def test_S3_positions_may_arrive_in_any_order(member: Member) -> None:
    requests = [member.write(glsn, batch_of(glsn), source=f"client {glsn}") for glsn in (9, 4, 7, 1)]
    requests.append(member.write_all([(8, batch_of(8)), (2, batch_of(2))]))
    member.sync()
    assert [member.result(request) for request in requests] == ["ok"] * 5
    assert list(member.content) == [1, 2, 4, 7, 8, 9]


def test_S3_a_position_that_is_written_is_refused_with_what_is_there(member: Member) -> None:
    stored(member, 1, 2, 3)
    request = member.write_all([(2, batch_of(20)), (4, batch_of(4))], source=OTHER_CLIENT)
    member.sync()
    assert member.result(request) == "", "what is there has to be read"
    member.read_plans()
    assert member.result(request) == "0 Written"
    (_, _, glsn, time, content) = member.answer(ChainWritten, request).refused[0]
    assert (glsn, time, bytes(content)) == (2, 5, batch_of(2))
    assert member.content[4] == batch_of(4), "the other one was taken"
    assert ChainBranch.S3_WRITTEN_REFUSED in member.branches


def test_S3_what_is_there_is_told_when_it_is_durable(member: Member) -> None:
    """Else a crash could take away what has won, and what was pushed down the chain because it had."""
    first = member.write(1, batch_of(1))
    second = member.write(1, batch_of(2), source=OTHER_CLIENT)
    member.read_plans()
    assert (member.result(first), member.result(second)) == ("", "")
    member.sync()
    member.read_plans()
    assert (member.result(first), member.result(second)) == ("ok", "0 Written")


def test_S3_a_batch_that_overlaps_is_refused_with_the_first_it_overlaps(member: Member) -> None:
    member.write_all([(3, batch_of(3, 2)), (6, batch_of(6))])
    member.sync()
    request = member.write(1, junk(10))
    member.read_plans()
    assert member.answer(ChainWritten, request).refused == ((0, errors.Written.code, 3, 0, batch_of(3, 2)),)
    inside = member.write(4, junk())
    member.read_plans()
    assert member.answer(ChainWritten, inside).refused[0][2:] == (3, 0, batch_of(3, 2))
    assert list(member.content) == [3, 6]


def test_S3_batches_of_one_message_that_overlap_each_other(member: Member) -> None:
    request = member.write_all([(5, batch_of(5, 2)), (4, batch_of(4, 2)), (3, batch_of(3)), (6, batch_of(6))])
    member.sync()
    member.read_plans()
    assert member.result(request) == "1 Written, 3 Written"
    assert member.content == {3: batch_of(3), 5: batch_of(5, 2)}


def test_S3_the_same_once_more_is_success(member: Member) -> None:
    stored(member, 1)
    request = member.write_all([(1, batch_of(1)), (2, batch_of(2))], time=5)
    assert member.result(request) == ""
    member.sync()
    assert member.result(request) == "ok"
    alone = member.write(1, batch_of(1), time=5)
    assert member.result(alone) == "ok"
    assert ChainBranch.S3_SAME_AGAIN in member.branches
    other_time = member.write(1, batch_of(1), time=6)
    member.read_plans()
    assert member.result(other_time) == "0 Written"


def test_S5_junk_is_written_and_refused_as_anything_else(member: Member) -> None:
    filled = member.write(2, junk(3))
    member.sync()
    assert member.result(filled) == "ok"
    late = member.write(3, batch_of(3))
    member.read_plans()
    (_, _, glsn, _, content) = member.answer(ChainWritten, late).refused[0]
    assert (glsn, verify(content).count) == (2, 3)


def test_L5_a_batch_that_a_trim_cuts_into_is_taken_for_the_rest_of_it(member: Member) -> None:
    """The replica before has it: whoever pushes it down must not find that this one cannot have it."""
    member.replica.trim(GLSN(4))
    request = member.write(3, batch_of(3, 4))
    trimmed = member.write(1, batch_of(1, 4))
    member.sync()
    assert (member.result(request), member.result(trimmed)) == ("ok", "0 Trimmed")
    assert member.content == {3: batch_of(3, 4)}


def test_L5_what_is_there_is_told_also_where_a_trim_cuts_into_it(member: Member) -> None:
    member.write(3, batch_of(3, 4), time=5)
    member.sync()
    member.replica.trim(GLSN(4))
    request = member.write(5, junk(2), source=OTHER_CLIENT)
    member.sync()
    member.read_plans()
    assert member.answer(ChainWritten, request).refused == ((0, errors.Written.code, 3, 5, batch_of(3, 4)),)


@pytest.mark.parametrize(
    ("glsn", "content", "error"),
    [
        (0, batch_of(1), "InvalidArgument"),
        (-4, batch_of(1), "InvalidArgument"),
        ((1 << 63) - 1, batch_of(1), "InvalidArgument"),
        (2, batch_of(1), "Trimmed"),
        (3, batch_of(1)[:-8], "MalformedBatch"),
        (3, batch_of(1)[:-1] + b"\x01", "ChecksumMismatch"),
    ],
)
def test_bad_input_is_refused_and_the_rest_is_taken(member: Member, glsn: int, content: bytes, error: str) -> None:
    member.replica.trim(GLSN(2))
    request = member.write_all([(4, batch_of(4)), (glsn, content), (5, batch_of(5))])
    member.sync()
    assert member.result(request) == f"1 {error}"
    assert list(member.content) == [4, 5]


def test_a_write_whose_columns_do_not_fit_is_refused_whole(member: Member) -> None:
    for glsns, times in (((), ()), ((1, 2), (0,)), ((1,), (0, 0))):
        member.receive(CLIENT, ChainWrite(99, LSID, Epoch(1), glsns, times, (batch_of(1),)))
    many = limits.CHAIN_WRITE_BATCHES + 1
    member.receive(CLIENT, ChainWrite(99, LSID, Epoch(1), tuple(range(1, many + 1)), (0,) * many, (junk(),) * many))
    codes = [m.code for _, m in member.sent if isinstance(m, ChainWritten)]
    assert codes == [errors.InvalidArgument.code] * 4
    assert member.content == {}


@pytest.mark.parametrize("time", [-1, NEVER, NEVER + 1])
def test_a_write_of_a_time_that_no_projection_may_have_is_refused(member: Member, time: int) -> None:
    request = member.write(1, batch_of(1), time=time)
    assert member.result(request) == "0 InvalidArgument"


def test_too_much_that_waits_for_the_disk_is_refused(member: Member, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_UNCOMMITTED_BYTES", 100)
    requests = [member.write(glsn, batch_of(glsn)) for glsn in (1, 2, 3)]
    member.sync()
    requests.append(member.write(4, batch_of(4)))
    member.sync()
    assert [member.result(request) for request in requests] == ["ok", "ok", "Busy", "ok"]


def test_too_many_writes_that_wait_are_refused(member: Member, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_UNCOMMITTED_BATCHES", 2)
    requests = [member.write(1, batch_of(1)) for _ in range(3)]
    member.sync()
    assert [member.result(request) for request in requests] == ["ok", "ok", "Busy"]


def test_rule15_what_is_not_found_again_is_damage(member: Member) -> None:
    stored(member, 1, 2)
    request = member.write(1, junk())
    member.chains.finish_read(member.chains.reads.pop(), [])
    assert member.result(request) == "Corrupt"
    assert not member.replica.healthy


def test_values_that_do_not_fit_into_one_answer_are_asked_for_again(
    member: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SCAN_REPLY_BYTES", 100)
    stored(member, 1, 2, 3, 4)
    request = member.write_all([(9, batch_of(9)), *[(glsn, junk()) for glsn in (1, 2, 3, 4)], (0, junk())])
    member.sync()
    member.read_plans()
    assert member.result(request) == "1 Written, 2 Written, 3 Busy, 4 Busy, 5 InvalidArgument"


# Epochs


def test_S2_a_request_of_another_epoch_is_refused_and_told_the_own(member: Member) -> None:
    stored(member, 1)
    for epoch in (0, 2):
        write, read, digest = (
            member.write(5, junk(), epoch=epoch),
            member.read(1, epoch=epoch),
            member.digest(1, epoch=epoch),
        )
        for request in (write, read, digest):
            (answer,) = member.answers(request)
            assert isinstance(answer, ChainWritten | ChainPart | Digest)
            assert (answer.code, answer.epoch) == (errors.StaleEpoch.code, 1)
    assert list(member.content) == [1]


def test_S2_a_replica_without_epoch_serves_nobody() -> None:
    member = Member()
    assert member.result(member.write(1, batch_of(1), epoch=0)) == "StaleEpoch"


def test_S6_a_seal_is_answered_when_it_is_durable(member: Member) -> None:
    stored(member, 1, 2, 7)
    request = member.seal(5)
    assert not member.answers(request)
    member.sync()
    sealed = member.answer(ChainSealed, request)
    assert (sealed.code, sealed.snid, sealed.epoch, sealed.end, sealed.time) == (0, 1, 5, 8, 5)


def test_S6_a_seal_counts_what_was_staged_and_cancels_who_waits_for_it(member: Member) -> None:
    """What was in progress is in `end`, so the next sequencer starts above it; its writer asks what became of it."""
    write = member.write(9, batch_of(9))
    seal = member.seal(2)
    assert member.result(write) == "StaleEpoch"
    member.sync()
    assert member.answer(ChainSealed, seal).end == 10
    assert len(member.answers(write)) == 1
    late = member.write(10, batch_of(10))
    assert member.result(late) == "StaleEpoch"
    assert ChainBranch.S6_CANCELLED in member.branches
    assert list(member.content) == [9]


def test_S6_a_seal_is_not_answered_before_what_stands_before_it_is_durable(member: Member) -> None:
    member.write(9, batch_of(9))
    seal = member.seal(2)
    member.sync(member.log.staged - 1)
    assert not member.answers(seal)
    member.restart()
    assert (member.replica.epoch, member.replica.end) == (1, 10)


def test_S6_a_seal_of_no_greater_epoch_is_refused_and_told_the_own(member: Member) -> None:
    for epoch in (0, 1):
        sealed = member.answer(ChainSealed, member.seal(epoch, source=OTHER_CLIENT))
        assert (sealed.code, sealed.epoch) == (errors.StaleEpoch.code, 1)


def test_S6_an_epoch_that_nobody_could_go_beyond_is_refused(member: Member) -> None:
    for epoch in (1 << 63, 1 << 62, 2 + (1 << 32)):
        assert name_of(member.answer(ChainSealed, member.seal(epoch)).code) == "InvalidArgument"
    assert member.replica.epoch == 1


def test_S6_of_two_proposers_the_greater_one_is_served(member: Member) -> None:
    first, second = member.seal(2), member.seal(3, source=OTHER_CLIENT)
    assert name_of(member.answer(ChainSealed, first).code) == "StaleEpoch"
    member.sync()
    assert member.answer(ChainSealed, second).epoch == 3


def test_S6_a_seal_that_arrives_twice_is_one(member: Member) -> None:
    seal = ChainSeal(77, LSID, Epoch(2), Epoch(1))
    member.receive(CLIENT, seal)
    member.receive(CLIENT, seal)
    assert not member.answers(77), "it is not durable"
    member.sync()
    member.receive(CLIENT, seal)
    first, again = member.answers(77)
    assert isinstance(first, ChainSealed)
    assert (first.code, first) == (0, again)


def test_S6_the_promised_epoch_outlives_a_restart(member: Member) -> None:
    member.seal(4)
    member.sync()
    member.restart()
    assert member.replica.epoch == 4
    assert member.result(member.write(1, batch_of(1), epoch=1)) == "StaleEpoch"


def test_rule22_a_replica_that_never_promised_the_projection_is_no_member(member: Member) -> None:
    """One that was wiped and has an old name has nothing to keep."""
    stranger = Member()
    sealed = stranger.answer(ChainSealed, stranger.seal(5, base=4))
    assert (name_of(sealed.code), sealed.epoch) == ("NoSource", 0)
    request = member.seal(5, base=1)
    member.sync()
    assert member.answer(ChainSealed, request).code == 0
    assert ChainBranch.RULE22_STRANGER_REFUSED in stranger.branches


def test_rule22_one_that_joins_serves_nobody(member: Member) -> None:
    stored(member, 1)
    request = member.seal(5, base=1, joins=True)
    member.sync()
    assert member.answer(ChainSealed, request).code == 0
    assert member.result(member.write(7, batch_of(7), epoch=5)) == "NoSource"
    assert name_of(member.answer(ChainPart, member.read(1, epoch=5)).code) == "NoSource"
    assert member.replica.info().state is ReplicaState.SEALING
    assert name_of(member.answer(ChainSealed, member.seal(6, base=5)).code) == "NoSource", "it is not whole"


def test_rule22_a_member_since_is_not_sealed_as_one_that_joins(member: Member) -> None:
    """A proposer that knows an old projection only, and a great epoch, would have it wiped."""
    member.seal(3, base=1)
    member.sync()
    for _ in range(2):
        sealed = member.answer(ChainSealed, member.seal(21, base=2, joins=True))
        assert (name_of(sealed.code), sealed.epoch) == ("Conflict", 3)
        assert not member.replica.outside
        member.restart()
    request = member.seal(21, base=3, joins=True)
    member.sync()
    assert member.answer(ChainSealed, request).code == 0
    request = member.seal(22, base=2, joins=True)
    member.sync()
    assert member.answer(ChainSealed, request).code == 0, "who joins is no member"


# Reads


def test_S4_a_read_brings_what_covers_the_position_and_what_follows(member: Member) -> None:
    member.write_all([(2, batch_of(2, 3)), (7, batch_of(7))], time=4)
    member.sync()
    request = member.read(3)
    member.read_plans()
    part = member.answer(ChainPart, request)
    assert [(line[0], line[1], line[2], line[3], line[5], bytes(line[6])) for line in part.batches] == [
        (2, 2, 3, 1, 4, batch_of(2, 3)),
        (7, 7, 1, 1, 4, batch_of(7)),
    ]
    assert (part.code, part.epoch, part.end, part.seen) == (0, 1, 8, 2)


def test_S4_what_is_not_written_is_left_out(member: Member) -> None:
    stored(member, 1, 5)
    hole, beyond = member.read(3), member.read(6)
    member.read_plans()
    assert (member.positions(hole), member.positions(beyond)) == ([5], [])
    assert member.answer(ChainPart, beyond).end == 6


def test_S4_what_is_not_durable_is_not_read(member: Member) -> None:
    stored(member, 1)
    member.write(2, batch_of(2))
    requests = [member.read(1), member.read(2)]
    member.read_plans()
    assert [member.positions(request) for request in requests] == [[1], []]
    assert member.answer(ChainPart, requests[0]).end == 2


def test_a_read_brings_at_least_one_batch(member: Member) -> None:
    stored(member, 1, 2)
    request = member.read(1, max_bytes=1)
    member.read_plans()
    assert member.positions(request) == [1]
    assert member.answer(ChainPart, request).end == 3, "there is more"


def test_L5_a_trimmed_position_is_not_read(member: Member) -> None:
    stored(member, 1, 2, 3)
    under_way = member.read(1)
    member.replica.trim(GLSN(2))
    for request in (under_way, member.read(2)):
        member.read_plans()
        part = member.answer(ChainPart, request)
        assert (name_of(part.code), part.first) == ("Trimmed", 3)


def test_position_0_is_not_read(member: Member) -> None:
    assert name_of(member.answer(ChainPart, member.read(0)).code) == "InvalidArgument"


def test_a_read_that_a_seal_overtakes_is_of_a_passed_epoch(member: Member) -> None:
    """What is written in the new epoch may not have reached the end of its chain."""
    stored(member, 1)
    request = member.read(1)
    member.seal(2)
    member.read_plans()
    assert name_of(member.answer(ChainPart, request).code) == "StaleEpoch"


def test_a_write_that_a_seal_overtakes_while_its_answer_is_read(member: Member) -> None:
    stored(member, 1)
    request = member.write(1, junk())
    member.seal(2)
    member.read_plans()
    assert member.result(request) == "StaleEpoch"


# Reads that wait


def test_a_read_waits_until_something_is_written(member: Member) -> None:
    stored(member, 1)
    request = member.read(2, wait=True, seen=1)
    member.write(2, batch_of(2))
    member.read_plans()
    assert not member.answers(request), "it is not durable"
    member.sync()
    member.read_plans()
    assert member.positions(request) == [2]
    assert member.answer(ChainPart, request).seen == 2


def test_a_read_that_has_not_seen_the_last_write_does_not_wait(member: Member) -> None:
    stored(member, 1)
    request = member.read(2, wait=True, seen=0)
    assert member.positions(request) == []
    assert member.answer(ChainPart, request).seen == 1


def test_a_read_of_a_hole_waits_for_any_write(member: Member) -> None:
    stored(member, 1, 5)
    request = member.read(3, wait=True, seen=2)
    assert not member.chains.reads
    member.write(9, batch_of(9))
    member.sync()
    member.read_plans()
    assert member.positions(request) == [5, 9]


def test_a_read_of_what_is_there_does_not_wait(member: Member) -> None:
    stored(member, 1)
    request = member.read(1, wait=True, seen=1)
    member.read_plans()
    assert member.positions(request) == [1]


def test_a_read_that_waits_is_answered_in_the_end(member: Member) -> None:
    stored(member, 1)
    request = member.read(2, wait=True, seen=1)
    member.pass_time(READ_WAIT / 2)
    assert not member.answers(request)
    member.pass_time(READ_WAIT / 2)
    assert member.positions(request) == []


def test_a_read_that_waits_is_told_of_a_seal_of_a_trim_and_of_a_fault(member: Member) -> None:
    stored(member, 1)
    trimmed = member.read(2, wait=True, seen=1)
    member.replica.trim(GLSN(2))
    assert name_of(member.answer(ChainPart, trimmed).code) == "Trimmed"
    sealed = member.read(3, wait=True, seen=1)
    member.seal(2)
    assert name_of(member.answer(ChainPart, sealed).code) == "StaleEpoch"
    failed = member.read(3, epoch=2, wait=True, seen=1)
    member.chains.on_failed(LSID, errors.Poisoned("the disk is gone"))
    assert name_of(member.answer(ChainPart, failed).code) == "Poisoned"


def test_only_so_many_reads_wait(member: Member, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_WAITING_READS", 1)
    first, second = (member.read(1, wait=True) for _ in range(2))
    assert (len(member.answers(first)), len(member.answers(second))) == (0, 1)


# Digests


def test_a_digest_tells_what_is_there(member: Member) -> None:
    member.write_all([(2, batch_of(2, 3)), (7, batch_of(7))], time=4)
    member.sync()
    digest = member.answer(Digest, member.digest(3))
    lines = tuple((glsn, entries, 4, int.from_bytes(content[4:8], "little")) for glsn, entries, content in (
        (2, 3, batch_of(2, 3)), (7, 1, batch_of(7)),
    ))  # fmt: skip
    assert (digest.code, digest.lines, digest.end, digest.last, digest.trim) == (0, lines, 8, 8, 0)


def test_a_digest_of_runs_tells_positions(member: Member) -> None:
    member.write_all([(2, batch_of(2, 3)), (5, batch_of(5)), (7, batch_of(7))])
    member.sync()
    digest = member.answer(Digest, member.digest(1, runs=True))
    assert (digest.lines, digest.end) == (((2, 4, 0, 0), (7, 1, 0, 0)), 8)


def test_a_long_digest_says_how_far_it_goes(member: Member, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CHAIN_DIGEST_BATCHES", 2)
    stored(member, 1, 2, 5, 6)
    first = member.answer(Digest, member.digest(1))
    assert ([line[0] for line in first.lines], first.end, first.last) == ([1, 2], 3, 7)
    rest = member.answer(Digest, member.digest(first.end))
    assert ([line[0] for line in rest.lines], rest.last) == ([5, 6], 7)


@pytest.mark.parametrize("runs", [False, True])
def test_a_digest_waits_for_what_is_staged_and_tells_nothing_that_is_not_durable(member: Member, runs: bool) -> None:
    stored(member, 1, 2)
    member.write(4, batch_of(4))
    request = member.digest(1, runs=runs)
    assert not member.answers(request)
    member.write_all([(3, batch_of(3)), (9, batch_of(9))])
    member.sync(member.log.staged - 2)
    digest = member.answer(Digest, request)
    told = [glsn + more for glsn, entries, *_ in digest.lines for more in range(entries)]
    assert (told, digest.end, digest.last) == ([1, 2], 3, 5)
    member.sync()
    later = member.answer(Digest, member.digest(1, runs=runs))
    assert later.end == 10


def test_a_digest_that_a_seal_overtakes_is_refused(member: Member) -> None:
    member.write(1, batch_of(1))
    request = member.digest(1)
    member.seal(2)
    assert name_of(member.answer(Digest, request).code) == "StaleEpoch"


# Faults


def test_M8_a_replica_that_cannot_write_takes_nothing_and_promises_nothing(member: Member) -> None:
    stored(member, 1)
    write, seal = member.write(2, batch_of(2)), member.seal(2)
    assert member.result(write) == "StaleEpoch"
    member.chains.on_failed(LSID, errors.DiskFull("no room"))
    assert name_of(member.answer(ChainSealed, seal).code) == "DiskFull"
    assert member.result(member.write(3, batch_of(3), epoch=2)) == "DiskFull"
    assert name_of(member.answer(ChainSealed, member.seal(3)).code) == "DiskFull"
    info = member.replica.info()
    assert (info.healthy, info.fault) == (False, errors.DiskFull.code)


def test_M8_who_waits_is_told(member: Member) -> None:
    write = member.write(2, batch_of(2))
    member.chains.on_failed(LSID, errors.Poisoned("the disk is gone"))
    assert member.result(write) == "Poisoned"


def test_rule15_a_damaged_replica_is_read_as_far_as_it_is_sound(member: Member) -> None:
    stored(member, 1, 5)
    bad = member.read(5)
    plan = member.chains.reads.pop()
    member.chains.finish_read(plan, errors.Corrupt("a batch is damaged", segment="1", offset=8))
    assert name_of(member.answer(ChainPart, bad).code) == "Corrupt"
    sound, absent = member.read(1), member.read(3)
    member.read_plans()
    assert member.positions(sound) == [1, 5]
    assert name_of(member.answer(ChainPart, absent).code) == "Corrupt", "what it lacks may be what it has lost"
    assert name_of(member.answer(Digest, member.digest(1)).code) == "Corrupt"


def test_M12_a_replica_tells_how_it_is(member: Member) -> None:
    stored(member, 1, 2)
    member.replica.trim(GLSN(1))
    member.write(3, batch_of(3))
    member.read_plans()
    info = member.replica.info()
    assert (info.epoch, info.state, info.committed_end, info.durable_end, info.healthy) == (1, 2, 3, 3, True)
    assert (info.tpid, info.trim, info.global_hwm, info.stats.batches, info.stats.entries) == (1, 1, 2, 3, 3)
