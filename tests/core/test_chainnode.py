"""The chains of one storage node: its lease, what is not for it, what it is told of trims (S10, rule 23)."""

from __future__ import annotations

import pytest

from tests.core.chains import CLIENT, LSID, MANAGER, OTHER_CLIENT, TPID, Member, batch_of, name_of
from tests.core.replica import Replica
from varlog import errors, limits
from varlog.core.address import METADATA_REPOSITORY
from varlog.core.branches import ChainBranch
from varlog.core.messages import (
    Append,
    AppendReply,
    ChainCopied,
    ChainCopy,
    ChainPart,
    ChainRead,
    ChainSeal,
    ChainSealed,
    ChainWrite,
    ChainWritten,
    Commit,
    Digest,
    FetchLog,
    GetDigest,
    GetInfo,
    Info,
    LogPart,
    Message,
    ReplicaReply,
    Report,
    Scan,
    ScanReply,
    Seal,
    Snapshot,
    Sync,
    SyncReply,
    Unseal,
)
from varlog.core.storagenode import KEEP_ALIVE, StorageNode
from varlog.types import GLSN, LLSN, Epoch, LogStreamID, Sequence, StorageNodeID, Term, Version

LEASE = limits.NODE_LEASE_SECONDS
OTHER_LSID = LogStreamID(9)
EPOCH = Epoch(1)


def member_in_epoch_1() -> Member:
    member = Member()
    member.seal(1)
    member.sync()
    member.sent.clear()
    return member


@pytest.fixture
def member() -> Member:
    return member_in_epoch_1()


def requests_of_chains(lsid: LogStreamID) -> tuple[Message, ...]:
    return (
        ChainWrite(1, lsid, EPOCH, (1,), (0,), (batch_of(1),)),
        ChainRead(2, lsid, EPOCH, GLSN(1), 1),
        ChainSeal(3, lsid, Epoch(9)),
        ChainCopy(4, lsid, EPOCH, StorageNodeID(2)),
        GetDigest(5, lsid, EPOCH, GLSN(1)),
    )


ANSWERS = (ChainWritten, ChainPart, ChainSealed, ChainCopied, Digest)

# Lease


def test_S10_a_node_serves_within_its_lease_and_not_after_it(member: Member) -> None:
    write = member.write(1, batch_of(1))
    member.sync()
    assert member.result(write) == "ok"
    member.pass_time(LEASE, leased=False)
    assert member.result(member.write(2, batch_of(2))) == ""
    member.pass_time(0.01, leased=False)
    assert member.result(member.write(3, batch_of(3))) == "LeaseExpired"
    assert name_of(member.answer(ChainPart, member.read(1)).code) == "LeaseExpired"
    assert name_of(member.answer(Digest, member.digest(1)).code) == "LeaseExpired"
    assert ChainBranch.S10_LEASE_EXPIRED in member.branches
    member.chains.renew(member.now)
    member.sync()
    assert member.result(member.write(3, batch_of(3))) == ""


def test_rule23_a_seal_needs_no_lease(member: Member) -> None:
    member.pass_time(LEASE + 1, leased=False)
    request = member.seal(2)
    member.sync()
    assert member.answer(ChainSealed, request).code == 0


def test_S10_who_waits_is_told_that_the_lease_has_run_out(member: Member) -> None:
    member.pass_time(LEASE - 1, leased=False)
    request = member.read(1, wait=True)
    member.pass_time(1.5, leased=False)
    assert name_of(member.answer(ChainPart, request).code) == "LeaseExpired"


def test_S10_a_node_that_was_never_answered_has_no_lease() -> None:
    member = Member()
    member.node = StorageNode(member.snid, 1, member._send, member.branches.append)
    assert not member.node.chains.is_leased(0.0)


@pytest.mark.parametrize("answer", ["commit", "snapshot"])
def test_rule23_a_lease_counts_from_the_sending_of_the_report_that_is_answered(member: Member, answer: str) -> None:
    member.restart()
    begin = member.now + 100
    member.now = begin
    member.node.tick(begin)
    reports = [m for address, m in member.sent if isinstance(m, Report) and address == METADATA_REPOSITORY]
    assert [report.full for report in reports] == [True]
    member.now = begin + 3
    message: Message = Snapshot(Term(1), Version(0), Version(0), (), ())
    if answer == "commit":
        message = Commit(Term(1), Version(0), Version(0), 0, (), ())
    member.receive(METADATA_REPOSITORY, message)
    assert member.chains.is_leased(begin + LEASE)
    assert not member.chains.is_leased(begin + LEASE + 0.01)


def test_rule23_an_answer_counts_for_the_first_report_that_was_not_answered(member: Member) -> None:
    member.restart()
    for second in range(3):
        member.node.tick(100.0 + second * KEEP_ALIVE)
    member.receive(METADATA_REPOSITORY, Commit(Term(1), Version(0), Version(0), 0, (), ()))
    assert not member.chains.is_leased(100.01 + LEASE)


def test_a_commit_that_answers_no_report_gives_no_lease(member: Member) -> None:
    member.restart()
    member.now = 50.0
    member.receive(METADATA_REPOSITORY, Commit(Term(1), Version(0), Version(0), 0, (), ()))
    assert not member.chains.is_leased(50.0)


# What is not for a chain, or not for this node


def test_what_is_asked_of_an_unknown_log_stream_is_refused(member: Member) -> None:
    for message in requests_of_chains(OTHER_LSID):
        member.receive(CLIENT, message)
    answers = [m for _, m in member.sent]
    assert tuple(map(type, answers)) == ANSWERS
    assert {name_of(m.code) for m in answers} == {"UnknownLogStream"}  # type: ignore[attr-defined]


def test_answers_for_an_unknown_log_stream_are_dropped(member: Member) -> None:
    member.receive(CLIENT, ChainPart(1, OTHER_LSID, 0, EPOCH))
    member.receive(CLIENT, Digest(1, OTHER_LSID, 0, EPOCH))
    member.receive(CLIENT, ChainPart(1, LSID, 0, EPOCH))
    member.receive(CLIENT, Digest(1, LSID, 0, EPOCH))
    assert not member.sent


def test_calls_of_the_commit_ordering_are_refused_on_a_chain(member: Member) -> None:
    node = StorageNodeID(2)
    for message in (
        Append(1, LSID, EPOCH, Sequence(0), LLSN(1), batch_of(1)),
        Scan(2, LSID, GLSN(1), 1, True),
        Seal(3, LSID, EPOCH, LLSN(1), GLSN(0)),
        Unseal(4, LSID, EPOCH, (node,), node, GLSN(0)),
        Sync(5, LSID, EPOCH, node, True),
        FetchLog(6, LSID, node, EPOCH, LLSN(1), Version(0), 1, False),
    ):
        member.receive(MANAGER, message)
    answers = [m for _, m in member.sent]
    kinds = (AppendReply, ScanReply, ReplicaReply, ReplicaReply, SyncReply, LogPart)
    assert tuple(map(type, answers)) == kinds
    assert {name_of(m.code) for m in answers} == {"WrongOrdering"}  # type: ignore[attr-defined]
    assert (member.replica.epoch, member.content) == (1, {})


def test_calls_of_chains_are_refused_where_commits_order() -> None:
    replica = Replica().run()
    node = StorageNode(replica.snid, 1, replica.send, replica.branches.append)
    node.add(replica.executor)
    for message in requests_of_chains(LSID):
        node.on_message(CLIENT, message, 0.0)
    answers = [m for _, m in replica.sent]
    assert tuple(map(type, answers)) == ANSWERS
    assert {name_of(m.code) for m in answers} == {"WrongOrdering"}  # type: ignore[attr-defined]
    assert replica.state == "RUNNING 2"


# What becomes of a replica


def test_who_waits_for_a_replica_that_is_removed_is_told(member: Member) -> None:
    write, seal = member.write(1, batch_of(1)), member.seal(2)
    read = member.read(1, epoch=2, wait=True)
    member.node.remove(LSID)
    assert LSID not in member.chains
    assert member.result(write) == "StaleEpoch"
    for request, kind in ((seal, ChainSealed), (read, ChainPart)):
        assert name_of(member.answer(kind, request).code) == "UnknownLogStream"  # type: ignore[attr-defined]


def test_a_replica_that_is_removed_while_it_is_read(member: Member) -> None:
    member.write(1, batch_of(1))
    member.sync()
    read = member.read(1)
    plan = member.chains.reads.pop()
    member.node.remove(LSID)
    member.chains.finish_read(plan, errors.Corrupt("its files are gone", segment="1", offset=0))
    assert name_of(member.answer(ChainPart, read).code) == "Corrupt"


def test_faults_are_told_to_the_replica(member: Member) -> None:
    member.node.on_failed(LSID, errors.DiskFull("no room"))
    member.node.on_corrupt(LSID)
    info = member.replica.info()
    assert (info.healthy, info.fault) == (False, errors.DiskFull.code)


def test_L5_a_trim_reaches_the_replicas_of_its_topic(member: Member) -> None:
    trims = ((int(TPID), 4),)
    member.receive(METADATA_REPOSITORY, Commit(Term(1), Version(0), Version(1), 0, (), (), (), trims))
    assert member.log.trim == 4
    topics = ((int(TPID), 0, 6), (int(TPID) + 1, 0, 9))
    member.receive(METADATA_REPOSITORY, Snapshot(Term(1), Version(3), Version(0), topics, ()))
    assert member.log.trim == 6


def test_M12_a_node_tells_of_its_chains(member: Member) -> None:
    member.receive(MANAGER, GetInfo(7))
    (info,) = [m for _, m in member.sent if isinstance(m, Info)]
    assert [(replica.lsid, replica.epoch) for replica in info.replicas] == [(LSID, 1)]


def test_a_report_says_nothing_of_chains(member: Member) -> None:
    member.restart()
    member.pass_time(KEEP_ALIVE)
    assert [m.lines for _, m in member.sent if isinstance(m, Report)] == [()]


def test_a_node_that_several_clients_write_to_is_not_quiet(member: Member) -> None:
    assert member.node.is_quiet
    for glsn, source, is_quiet in ((1, CLIENT, True), (2, CLIENT, True), (3, OTHER_CLIENT, False), (4, CLIENT, False)):
        member.write(glsn, batch_of(glsn), source=source)
        assert member.node.is_quiet is is_quiet
