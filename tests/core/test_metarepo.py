"""The metadata repository: one sequence of decisions over a store that may answer late, wrongly never."""

from __future__ import annotations

import pytest

from tests.core.repository import ONE, TOPIC, TWO, A, B, Repository, line
from tests.metarepo.rigs import JournalRig, SimRig, commit
from varlog import errors, limits
from varlog.core.branches import Branch
from varlog.core.messages import (
    Commit,
    CreateStream,
    CreateTopic,
    Cuts,
    Decided,
    FetchCuts,
    GetInfo,
    GetMetadata,
    GetTail,
    Message,
    Metadata,
    Report,
    SealStream,
    Snapshot,
    Tail,
    TrimTopic,
)
from varlog.core.metarepo import SNAPSHOT_EVERY, MetadataRepository, Role
from varlog.core.store import Put, Txn
from varlog.types import GLSN, Epoch, StorageNodeID, StreamStatus, Term, TopicID, Version


@pytest.fixture
def rig() -> SimRig:
    return SimRig()


@pytest.fixture
def repository(rig: SimRig) -> Repository:
    return Repository(rig).set_up()


def refusals(repository: Repository) -> list[str]:
    return [errors.VarlogError.registry[d.code].__name__ for d in repository.messages(Decided) if d.code]


# Leading


def test_it_leads_after_reading_everything(repository: Repository, rig: SimRig) -> None:
    repository.cut(3)
    again = Repository(rig)
    assert again.core.role is Role.LEADING
    assert again.core.term == repository.core.term + 1
    assert again.core.state == repository.core.state
    assert (again.tail, again.version) == (2, repository.version)


def test_rule16_leadership_is_raised_at_every_start_of_a_journal() -> None:
    rig = JournalRig()
    first = Repository(rig).set_up()
    rig.restart()
    second = Repository(rig)
    assert second.core.term > first.core.term
    assert second.core.state == first.core.state


@pytest.mark.parametrize("key", ["leader", "snapshot", "entry/0000000000000001", "entry/first"])
def test_it_does_not_lead_on_metadata_it_cannot_read(key: str, rig: SimRig) -> None:
    commit(rig, Txn(puts=(Put(key, b"\xff"),)))
    with pytest.raises(errors.MalformedMetadata):
        Repository(rig)


def test_who_does_not_lead_says_nothing(rig: SimRig) -> None:
    core = MetadataRepository(rig.store, lambda *_: pytest.fail("it spoke"), lambda _: None)
    core.on_message("asker", GetMetadata(1), 0.0)
    core.on_message("sn/1", Report(A, 1, 1, Version(0), (), True, True), 0.0)
    core.tick(1.0)
    assert core.role is Role.FOLLOWING


def test_one_of_two_that_campaign_at_once_leads(rig: SimRig) -> None:
    cores = [MetadataRepository(store, lambda *_: None, lambda _: None) for store in (rig.store, rig.second)]
    for core in cores:
        core.campaign(0.0)
    rig.settle()
    assert sorted(core.role.name for core in cores) == ["FOLLOWING", "LEADING"]


# One sequence of decisions


def test_O1_the_reports_of_all_replicas_become_a_cut_that_all_hosts_are_told(repository: Repository) -> None:
    before = Version(repository.version)
    repository.report(A, line(ONE, 3))
    repository.rig.settle()
    assert repository.sent == []
    repository.report(B, line(ONE, 4))
    repository.rig.settle()
    assert repository.tail == 2
    for address in ("sn/1", "sn/2"):
        (commit,) = repository.to(address, Commit)
        assert (commit.prev_version, commit.version) == (before, before + 1)
        assert commit.hwms == ((TOPIC, 0, 2),)
        assert commit.ranges == ((ONE, 2, 1, 1, 2),)


def test_a_node_is_told_only_of_topics_it_hosts(repository: Repository) -> None:
    repository.report(B, line(TWO, 3))
    repository.rig.settle()
    assert repository.to("sn/1", Commit) == []
    assert repository.to("sn/2", Commit)[0].ranges == ((TWO, 2, 1, 1, 2),)


def test_rule1_nobody_is_told_before_the_store_has_it(repository: Repository) -> None:
    for snid in (A, B):
        repository.report(snid, line(ONE, 3))
    repository.receive(SealStream(77, ONE, Epoch(2)))
    assert (repository.sent, repository.tail) == ([], 0)
    repository.rig.settle()
    assert repository.tail == 2


def test_rule1_one_entry_is_written_at_a_time_and_what_comes_meanwhile_waits(repository: Repository) -> None:
    """The seal comes while a cut is being written, and counts it: it is the next entry of the same sequence."""
    for snid in (A, B):
        repository.report(snid, line(ONE, 3))
    repository.receive(SealStream(77, ONE, Epoch(2)))
    for snid in (A, B):
        repository.report(snid, line(ONE, 5))
    assert Branch.RULE1_DECISION_WAITS_FOR_WRITE in repository.branches
    repository.rig.settle()
    (decided,) = repository.messages(Decided)
    assert (decided.code, decided.value, decided.llsn_end) == (0, 3, 3)
    assert repository.core.state.streams[ONE].status is StreamStatus.SEALED
    assert repository.tail == 2, "what was reported after the seal is in no cut"


def test_rule1_while_one_cut_is_written_the_next_accumulates(repository: Repository) -> None:
    before = repository.version
    for end in (2, 3, 4, 5):
        for snid in (A, B):
            repository.report(snid, line(ONE, end))
    repository.rig.settle()
    assert (repository.tail, repository.version - before) == (4, 2)


@pytest.mark.parametrize(
    ("fault", "branch"),
    [
        ("unanswered", Branch.RULE1_UNKNOWN_HAPPENED),
        ("lost", Branch.RULE1_UNKNOWN_DID_NOT_HAPPEN),
        ("late", Branch.RULE1_UNKNOWN_DID_NOT_HAPPEN),
    ],
)
def test_rule1_an_unknown_outcome_is_settled_by_reading(
    repository: Repository, rig: SimRig, fault: str, branch: Branch
) -> None:
    """Whatever became of the write, its entry is in the sequence once, and the requester gets the one answer."""
    before = repository.version
    setattr(rig.sim.odds, fault, 1.0)
    repository.receive(SealStream(77, ONE, Epoch(2)))
    setattr(rig.sim.odds, fault, 0.0)
    rig.advance(1.05)
    for _ in range(4):
        repository.core.tick(repository.now)
        rig.advance(1.0)
    assert branch in repository.branches
    assert repository.version == before + 1
    assert [d.value for d in repository.messages(Decided)] == [3]
    assert Repository(rig, rig.second).core.state == repository.core.state


def test_a_write_the_store_did_not_take_is_tried_again(repository: Repository, rig: SimRig) -> None:
    rig.sim.odds.refused = 1.0
    repository.receive(SealStream(77, ONE, Epoch(2)))
    rig.settle()
    assert repository.sent == []
    rig.sim.odds.refused = 0.0
    repository.core.tick(repository.now)
    rig.settle()
    assert [d.value for d in repository.messages(Decided)] == [3]


def test_rule1_a_deposed_leader_changes_nothing(repository: Repository, rig: SimRig) -> None:
    successor = Repository(rig, rig.second)
    assert successor.core.role is Role.LEADING
    version = successor.version
    for snid in (A, B):
        repository.report(snid, line(ONE, 3))
    repository.receive(SealStream(77, ONE, Epoch(2)))
    rig.settle()
    assert repository.core.role is Role.FOLLOWING
    assert Branch.RULE1_FENCED in repository.branches
    assert refusals(repository) == ["NotLeader"]
    assert repository.messages(Commit) == []
    assert Repository(rig).version == version


def test_a_repeated_request_is_answered_without_another_entry(repository: Repository) -> None:
    first = repository.ask(SealStream(repository.request(), ONE, Epoch(2)))
    again = repository.ask(SealStream(repository.request(), ONE, Epoch(2)))
    assert (again.version, again.value, again.llsn_end) == (first.version, 3, 1)


def test_a_refused_request_is_answered_with_its_error(repository: Repository) -> None:
    before = repository.version
    decided = repository.ask(TrimTopic(repository.request(), TOPIC, GLSN(5)))
    assert decided.code == errors.InvalidArgument.code
    assert repository.version == before


def test_rule14_a_trim_is_told_to_the_hosts(repository: Repository) -> None:
    repository.cut(4)
    repository.sent.clear()
    assert repository.ask(TrimTopic(repository.request(), TOPIC, GLSN(2))).value == 2
    assert [commit.trims for commit in repository.messages(Commit)] == [((TOPIC, 2),)] * 2


def test_rule2_epochs_are_told_to_the_hosts(repository: Repository) -> None:
    """With the end there: a replica that was not listed before can tell by it that it is complete (rule 10)."""
    repository.cut(3)
    repository.sent.clear()
    repository.ask(SealStream(repository.request(), ONE, Epoch(2)))
    assert [commit.epochs for commit in repository.messages(Commit)] == [((ONE, 3, 3),)] * 2


def test_ids_are_told_to_whoever_asked_for_them(repository: Repository) -> None:
    assert repository.ask(CreateTopic(repository.request(), "third", 1, 1)).value == 3
    assert repository.ask(CreateStream(repository.request(), TOPIC)).value == 3


def test_too_many_requests_at_once_are_refused(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_PENDING_DECISIONS", 2)
    for _ in range(4):
        repository.core.on_message("asker", CreateStream(repository.request(), TOPIC), repository.now)
    assert refusals(repository) == ["Busy"], "one is being written, two wait"


def test_the_time_of_cuts_never_goes_back(repository: Repository) -> None:
    repository.now = 1000.0
    repository.cut(2)
    repository.now = 500.0
    repository.cut(3)
    assert [commit.time for commit in repository.to("sn/1", Commit)] == [1_000_000_000, 1_000_000_000]


# Nodes


def test_a_node_that_is_not_registered_does_not_count(repository: Repository) -> None:
    repository.report(StorageNodeID(9), full=True, ask=True)
    assert repository.sent == []


def test_rule5_a_new_leader_tells_the_state_to_whoever_reports(repository: Repository, rig: SimRig) -> None:
    """Also if the report is not of all that the node has: the answer is."""
    repository.cut(3)
    successor = Repository(rig, rig.second)
    successor.report(B, line(TWO, 1))
    (snapshot,) = successor.messages(Snapshot)
    assert (snapshot.version, snapshot.reported_version) == (successor.version, successor.version)
    assert {(s.lsid, s.epoch, s.llsn_end, s.last_glsn) for s in snapshot.streams} == {(ONE, 2, 3, 2), (TWO, 2, 1, 0)}
    assert snapshot.topics == ((TOPIC, 2, 0), (2, 0, 0))


def test_rule5_a_keep_alive_is_answered_with_the_version_the_node_was_told(repository: Repository) -> None:
    repository.report(A, line(ONE, 1), full=True)
    (answer,) = repository.to("sn/1", Commit)
    assert (answer.prev_version, answer.version, answer.ranges) == (repository.version, repository.version, ())
    repository.report(A, line(ONE, 1))
    assert len(repository.sent) == 1, "a report of changes needs no answer"


def test_rule5_a_node_that_asks_is_given_the_state(repository: Repository) -> None:
    repository.report(A, line(ONE, 1), full=True, ask=True)
    assert len(repository.to("sn/1", Snapshot)) == 1
    assert Branch.RULE5_SNAPSHOT_AFTER_GAP in repository.branches


def test_rule5_a_new_boot_voids_what_was_reported_before(repository: Repository) -> None:
    repository.report(A, line(ONE, 3))
    repository.report(A, line(ONE, 2), boot=2)
    assert Branch.RULE5_NEW_BOOT_VOIDS in repository.branches
    assert len(repository.to("sn/1", Snapshot)) == 1
    repository.report(B, line(ONE, 3))
    repository.rig.settle()
    assert repository.tail == 1
    repository.report(A, line(ONE, 3), boot=1)
    repository.rig.settle()
    assert repository.tail == 1, "what the old boot says late does not count"


def test_reports_that_come_out_of_order_do_not_count(repository: Repository) -> None:
    late = Report(A, 1, 0, Version(repository.version), (line(ONE, 9),), False, False)
    repository.report(B, line(ONE, 9))
    repository.receive(late)
    repository.rig.settle()
    assert repository.tail == 0


def test_rule5_a_node_that_is_ahead_of_the_metadata_is_told_so(repository: Repository) -> None:
    repository.report(A, line(ONE, 3), version=repository.version + 1)
    repository.rig.settle()
    (snapshot,) = repository.messages(Snapshot)
    assert snapshot.version == repository.version < snapshot.reported_version


def test_rule5_a_node_that_has_promised_an_epoch_that_was_never_given_out_is_told_so(repository: Repository) -> None:
    """A seal leaves no version on a node's disk, but the epoch."""
    repository.report(A, line(ONE, 3, epoch=4), line(TWO, 1), version=1, full=True, ask=True)
    repository.rig.settle()
    (snapshot,) = repository.to("sn/1", Snapshot)
    assert snapshot.unknown_epochs == ((ONE, 4, 2),)
    assert repository.tail == 0, "what it reports does not count"


def test_rule5_that_an_epoch_was_never_given_out_is_told_also_while_decisions_are_written(
    repository: Repository,
) -> None:
    repository.report(A, line(ONE, 3, epoch=4))
    repository.receive(SealStream(1, TWO, Epoch(2)))
    assert repository.core.awaits_store
    repository.rig.settle()
    assert [snapshot.unknown_epochs for snapshot in repository.to("sn/1", Snapshot)] == [((ONE, 4, 2),)]


def test_rule5_a_node_that_lags_behind_an_epoch_is_told_nothing_of_it(repository: Repository) -> None:
    repository.ask(SealStream(repository.request(), ONE, Epoch(2)))
    repository.report(A, line(ONE, 1, epoch=2), full=True, ask=True)
    repository.report(B, line(ONE, 1, epoch=3), full=True, ask=True)
    repository.rig.settle()
    assert [snapshot.unknown_epochs for snapshot in repository.messages(Snapshot)] == [(), ()]


def test_rule5_a_deposed_leader_accuses_nobody_of_an_epoch(repository: Repository, rig: SimRig) -> None:
    successor = Repository(rig, rig.second)
    successor.ask(SealStream(1, ONE, Epoch(2)))
    repository.report(A, line(ONE, 1, epoch=3), version=1)
    rig.settle()
    assert repository.messages(Snapshot) == []
    assert repository.core.role is Role.FOLLOWING


def test_rule5_a_deposed_leader_accuses_nobody(repository: Repository, rig: SimRig) -> None:
    successor = Repository(rig, rig.second)
    successor.ask(SealStream(1, ONE, Epoch(2)))
    repository.report(A, line(ONE, 1, epoch=3), version=successor.version)
    rig.settle()
    assert repository.messages(Snapshot) == []
    assert repository.core.role is Role.FOLLOWING


# Missed cuts


def test_O2_a_replica_gets_the_cuts_it_missed(repository: Repository, rig: SimRig) -> None:
    repository.cut(3)
    repository.cut(4)
    for asked in (repository, Repository(rig, rig.second)):
        asked.receive(FetchCuts(B, ONE, Version(0)), "sn/2")
        (cuts,) = asked.to("sn/2", Cuts)
        assert cuts.llsn_end == asked.core.state.streams[ONE].llsn_end > 1
        assert [(cc.llsn_begin, cc.count, cc.glsn_begin, cc.epoch) for cc in cuts.cuts] == [(1, 2, 1, 2), (3, 1, 3, 2)]


def test_rule4_cuts_that_every_replica_has_on_disk_leave_the_history(repository: Repository, rig: SimRig) -> None:
    """And those that one does not have stay, however many versions pass, also for a later leader."""
    repository.cut(2)
    first = repository.version
    repository.cut(3, durable=first)
    for _ in range(SNAPSHOT_EVERY + 2):
        repository.ask(CreateStream(repository.request(), TOPIC))
    assert Branch.RULE4_HISTORY_DROPPED in repository.branches
    for asked in (repository, Repository(rig, rig.second)):
        asked.receive(FetchCuts(A, ONE, Version(0)), "sn/1")
        assert [cc.version for cc in asked.to("sn/1", Cuts)[-1].cuts] == [first + 1]
    entries = rig.sim.keyspace.select_prefix("entry/").kvs
    assert len(entries) < SNAPSHOT_EVERY, "what the snapshot holds is deleted"


def test_the_state_survives_snapshots(repository: Repository, rig: SimRig) -> None:
    for end in range(2, SNAPSHOT_EVERY * 2):
        repository.cut(end)
    successor = Repository(rig, rig.second)
    assert successor.core.state == repository.core.state
    assert successor.tail == SNAPSHOT_EVERY * 2 - 2


# Asking


def test_the_tail_is_told_with_the_trim_point(repository: Repository) -> None:
    repository.cut(4)
    repository.ask(TrimTopic(repository.request(), TOPIC, GLSN(1)))
    repository.receive(GetTail(5, TOPIC))
    assert repository.messages(Tail) == []
    repository.rig.settle()
    assert repository.messages(Tail) == [Tail(5, 0, GLSN(3), GLSN(1))]


def test_the_tail_of_an_unknown_topic_is_an_error(repository: Repository) -> None:
    repository.receive(GetTail(5, TopicID(77)))
    repository.rig.settle()
    assert repository.messages(Tail) == [Tail(5, errors.UnknownTopic.code)]


def test_L1_a_deposed_leader_does_not_tell_an_old_tail(repository: Repository, rig: SimRig) -> None:
    Repository(rig, rig.second)
    repository.receive(GetTail(5, TOPIC))
    rig.settle()
    assert repository.messages(Tail) == [Tail(5, errors.NotLeader.code)]


def test_L1_the_tail_waits_for_a_cut_the_store_has_and_the_leader_has_not_heard_of(
    repository: Repository, rig: SimRig
) -> None:
    rig.sim.odds.unanswered = 1.0
    for snid in (A, B):
        repository.report(snid, line(ONE, 3))
    rig.sim.odds.unanswered = 0.0
    rig.settle()
    repository.receive(GetTail(5, TOPIC))
    rig.settle()
    assert repository.messages(Tail) == [], "somebody may have been told of the cut by now"
    rig.advance(2.0)
    assert repository.messages(Tail) == [Tail(5, 0, GLSN(2), GLSN(0))]


def test_a_tail_asked_for_while_another_is_read_is_read_for_itself(repository: Repository) -> None:
    repository.cut(3)
    for request in (5, 6, 7):
        repository.receive(GetTail(request, TOPIC))
    repository.rig.settle()
    assert [(t.request, t.hwm) for t in repository.messages(Tail)] == [(5, 2), (6, 2), (7, 2)]


def test_metadata_is_of_one_version(repository: Repository) -> None:
    repository.cut(3)
    repository.receive(GetMetadata(9))
    (metadata,) = repository.messages(Metadata)
    assert (metadata.request, metadata.version, [n.snid for n in metadata.nodes]) == (9, repository.version, [A, B])
    assert [(t.tpid, t.hwm) for t in metadata.topics] == [(1, 2), (2, 0)]
    assert [(s.lsid, s.status, s.epoch, s.replicas, s.primary, s.llsn_end) for s in metadata.streams] == [
        (ONE, StreamStatus.RUNNING, 2, (A, B), A, 3),
        (TWO, StreamStatus.RUNNING, 2, (B,), B, 1),
    ]


def test_rule4_a_log_stream_whose_history_was_full_goes_on_when_its_cuts_are_durable(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_CUTS_HELD", 4)
    for end in range(2, SNAPSHOT_EVERY + 10):
        repository.cut(end)
    held_up_at = repository.tail
    repository.cut(SNAPSHOT_EVERY + 20)
    assert repository.tail == held_up_at, "more cuts are held than may be"
    repository.cut(SNAPSHOT_EVERY + 20, durable=repository.version)
    repository.core.tick(repository.now)
    repository.rig.settle()
    assert repository.tail == SNAPSHOT_EVERY + 19


# Bounds


def test_rule4_cuts_held_over_all_log_streams_are_bounded(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then a log stream of which any are held gets no more, and the others go on."""
    monkeypatch.setattr(limits, "MAX_CUTS_HELD_IN_ALL", SNAPSHOT_EVERY // 2)
    for end in range(2, SNAPSHOT_EVERY + 10):
        repository.cut(end)
    held_up_at = repository.tail
    repository.cut(SNAPSHOT_EVERY + 20)
    assert repository.tail == held_up_at
    repository.report(B, line(TWO, 5))
    repository.rig.settle()
    assert repository.core.state.streams[TWO].llsn_end == 5
    repository.cut(SNAPSHOT_EVERY + 20, durable=repository.version)
    repository.core.tick(repository.now)
    repository.rig.settle()
    assert repository.tail == SNAPSHOT_EVERY + 19


def checkpoints(rig: SimRig) -> list[str]:
    return list(rig.sim.keyspace.select_prefix("snapshot").kvs)


def test_rule4_a_checkpoint_that_is_too_large_is_left_out_and_decisions_go_on(
    repository: Repository, rig: SimRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    fits = limits.METADATA_VALUE_BYTES
    monkeypatch.setattr(limits, "METADATA_VALUE_BYTES", 128)
    for end in range(2, SNAPSHOT_EVERY * 2 + 2):
        repository.cut(end)
    assert repository.tail == SNAPSHOT_EVERY * 2
    assert checkpoints(rig) == []
    successor = Repository(rig, rig.second)
    assert successor.core.state == repository.core.state
    successor.receive(FetchCuts(A, ONE, Version(0)), "sn/1")
    assert len(successor.to("sn/1", Cuts)[-1].cuts) == SNAPSHOT_EVERY * 2, "every cut is still known"
    monkeypatch.setattr(limits, "METADATA_VALUE_BYTES", fits)
    for _ in range(SNAPSHOT_EVERY):
        successor.ask(CreateStream(successor.request(), TOPIC))
    assert checkpoints(rig) == ["snapshot"]
    again = Repository(rig)
    assert again.core.state == successor.core.state
    assert again.tail == SNAPSHOT_EVERY * 2


def test_too_many_questions_for_the_tail_at_once_are_refused(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_PENDING_DECISIONS", 2)
    for request in (5, 6, 7, 8):
        repository.receive(GetTail(request, TOPIC))
    assert repository.messages(Tail) == [Tail(8, errors.Busy.code)], "one is being read, two wait"
    repository.rig.settle()
    assert [(tail.request, tail.code) for tail in repository.messages(Tail)[1:]] == [(5, 0), (6, 0), (7, 0)]


def test_tails_that_wait_for_a_cut_count_as_waiting(
    repository: Repository, rig: SimRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_PENDING_DECISIONS", 2)
    rig.sim.odds.unanswered = 1.0
    for snid in (A, B):
        repository.report(snid, line(ONE, 3))
    rig.sim.odds.unanswered = 0.0
    rig.settle()
    for request in (5, 6, 7):
        repository.receive(GetTail(request, TOPIC))
        rig.settle()
    assert repository.messages(Tail) == [Tail(7, errors.Busy.code)]


@pytest.mark.parametrize("stray", [Cuts(ONE, ()), Commit(Term(1), Version(0), Version(1), 0, (), ())])
def test_what_a_repository_does_not_take_is_an_error(repository: Repository, stray: Message) -> None:
    with pytest.raises(errors.InvalidArgument, match=type(stray).__name__):
        repository.receive(stray)
    assert repository.core.role is Role.LEADING
    assert repository.ask(CreateTopic(repository.request(), "third", 1, 1)).code == 0


def test_a_request_that_is_for_somebody_else_is_refused(repository: Repository) -> None:
    assert repository.ask(GetInfo(repository.request())).code == errors.InvalidArgument.code
