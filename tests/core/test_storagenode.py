"""The storage node: the chain of versions, what it asks for when it breaks, reports, and reads."""

from __future__ import annotations

import pytest

from tests.core.replica import LSID, ME, OTHER, PATH, TOPIC, Replica, batch_of, cut
from varlog import errors, limits
from varlog.core.branches import Branch
from varlog.core.executor import LogStreamExecutor
from varlog.core.messages import (
    Append,
    AppendReply,
    Commit,
    Cuts,
    FetchCuts,
    GetInfo,
    GetMetadata,
    Info,
    Message,
    ReplicaReply,
    Replicate,
    ReplicateAck,
    Report,
    Scan,
    ScanReply,
    Seal,
    Snapshot,
    StoredLine,
    StreamEnd,
)
from varlog.core.storagenode import FETCH_AGAIN, KEEP_ALIVE, SCAN_WAIT, StorageNode
from varlog.types import GLSN, LLSN, Epoch, LogStreamID, Sequence, StreamStatus, Term, Version

NOBODYS = LogStreamID(9)


class Node:
    """A storage node with one replica that runs alone in epoch 2, at version 10, and a list of what it sends."""

    def __init__(self) -> None:
        self.replica = Replica().run()
        self.now = 0.0
        self.node = StorageNode(ME, 5, self.replica.send, self.replica.branches.append)
        self.node.add(self.replica.executor)
        self.snapshot(10, end=1, hwm=0)
        self.node.tick(self.now)
        self.sent.clear()
        self.replica.branches.clear()

    @property
    def sent(self) -> list[tuple[str, Message]]:
        return self.replica.sent

    @property
    def executor(self) -> LogStreamExecutor:
        return self.replica.executor

    def receive(self, message: Message, source: str = "mr") -> None:
        self.node.on_message(source, message, self.now)

    def tick(self, seconds: float) -> None:
        self.now += seconds
        self.node.tick(self.now)

    def store(self, *sequences: int) -> None:
        """Append one-entry batches and sync them."""
        for sequence in sequences:
            self.replica.append(sequence)
        self.replica.sync()

    def commit(self, prev: int, version: int, begin: int = 0, end: int = 0, *, hwm: int, trim: int = 0) -> None:
        """A Commit; with LLSNs, it has a range of this log stream, at the end of the GLSNs up to `hwm`."""
        glsn = hwm + 1 - (end - begin)
        ranges = ((int(LSID), 2, begin, glsn, end - begin),) if end else ()
        hwms = ((int(TOPIC), self.executor.global_hwm, hwm),) if hwm else ()
        trims = ((int(TOPIC), trim),) if trim else ()
        self.receive(Commit(Term(1), Version(prev), Version(version), 0, hwms, ranges, (), trims))

    def snapshot(self, version: int, *, end: int, hwm: int, reported: int = 0, epoch: int = 2) -> None:
        status = StreamStatus.RUNNING if epoch % 2 == 0 else StreamStatus.SEALED
        stream = StreamEnd(LSID, TOPIC, Epoch(epoch), status, LLSN(end), GLSN(hwm), Version(version))
        topics = ((int(TOPIC), hwm, 0),)
        self.receive(Snapshot(Term(1), Version(version), Version(reported), topics, (stream,)))

    def scan(self, begin: int, *, wait: bool = False, lsid: LogStreamID = LSID) -> None:
        self.receive(Scan(1, lsid, GLSN(begin), 1 << 20, wait), "reader")

    def answer_reads(self, most: int = 100) -> None:
        """Do the reads that are planned, telling `most` batches each."""
        reads, self.node.reads = self.node.reads, []
        for plan in reads:
            stored = self.replica.storage.read(plan.scan.glsn_begin, plan.glsn_end, plan.scan.max_bytes)
            lines: list[StoredLine] = [
                (b.glsn, b.llsn, b.count, b.epoch, b.version, b.time, bytes(b.batch)) for b in stored
            ]
            self.node.finish_scan(plan, lines[:most])

    def told(self) -> list[tuple[list[int], int]]:
        """What readers were told: the GLSNs of the batches, and how far that is complete."""
        replies = self.replica.messages(ScanReply)
        assert all(reply.code == 0 for reply in replies)
        return [([line[0] for line in reply.batches], reply.complete_to) for reply in replies]

    def names(self) -> list[str]:
        return [type(message).__name__ for _, message in self.sent]


@pytest.fixture
def node() -> Node:
    return Node()


# The chain of versions


def test_rule10_commits_are_applied_as_an_unbroken_chain(node: Node) -> None:
    node.store(1, 2)
    node.commit(10, 12, 1, 2, hwm=1)
    node.commit(12, 13, 2, 3, hwm=2)
    assert node.replica.ends == (3, 3, 3)
    assert node.node.version == 13


def test_rule5_a_commit_that_does_not_follow_is_not_applied_and_the_node_asks(node: Node) -> None:
    node.store(1, 2)
    node.commit(12, 13, 2, 3, hwm=2)
    assert (node.node.version, node.replica.ends) == (10, (1, 3, 3))
    assert node.sent == []
    node.tick(0.1)
    (report,) = node.replica.messages(Report)
    assert (report.version, report.full, report.ask) == (10, True, True)


def test_rule5_an_old_or_repeated_commit_is_ignored(node: Node) -> None:
    node.store(1)
    for _ in range(2):
        node.commit(10, 12, 1, 2, hwm=1)
    node.commit(9, 11, hwm=1)
    node.commit(11, 13, hwm=2)
    assert node.node.version == 12
    node.tick(0.1)
    assert node.sent == [("client", node.replica.messages(AppendReply)[0])], (
        "a later version may begin earlier: nothing"
    )


def test_rule5_a_keep_alive_shows_what_was_missed(node: Node) -> None:
    node.commit(10, 10, hwm=0)
    node.tick(0.1)
    assert node.sent == []
    node.commit(12, 12, hwm=0)
    node.tick(0.1)
    assert node.replica.messages(Report)[-1].ask


def test_rule5_a_snapshot_sends_a_replica_that_is_behind_for_its_cuts(node: Node) -> None:
    node.store(1, 2)
    node.snapshot(20, end=3, hwm=9)
    assert node.node.version == 20
    assert node.sent == [("mr", FetchCuts(ME, LSID, Version(0)))]
    assert node.executor.global_hwm == 0
    node.receive(Cuts(LSID, (cut(1, 2, version=15), cut(2, 3, version=17))))
    assert node.replica.ends == (3, 3, 3)
    assert node.executor.version == 17


def test_rule4_a_replica_at_the_snapshots_end_is_complete(node: Node) -> None:
    node.snapshot(20, end=1, hwm=9)
    assert node.sent == []
    assert node.executor.global_hwm == 9
    assert Branch.RULE4_COMPLETE_BY_SNAPSHOT in node.replica.branches


def test_rule10_a_snapshot_says_nothing_of_what_it_does_not_list(node: Node) -> None:
    topics = ((int(TOPIC), 9, 0),)
    node.receive(Snapshot(Term(1), Version(20), Version(10), topics, ()))
    assert node.executor.global_hwm == 0
    node.commit(20, 21, hwm=10)
    assert node.executor.global_hwm == 0


def test_rule5_an_old_snapshot_is_ignored(node: Node) -> None:
    node.commit(10, 15, hwm=3)
    node.snapshot(12, end=1, hwm=2)
    assert node.node.version == 15
    assert node.executor.global_hwm == 3


def test_rule5_a_node_stops_when_metadata_has_gone_back(node: Node) -> None:
    with pytest.raises(errors.ConsistencyViolation, match="restored from an older state"):
        node.snapshot(9, end=1, hwm=0, reported=10)
    assert Branch.RULE5_METADATA_WENT_BACK in node.replica.branches


def test_rule5_a_node_stops_when_an_epoch_it_has_promised_is_not_known(node: Node) -> None:
    """Metadata that has gone back may have made as many versions since, and given out none of the epochs."""
    told = Snapshot(Term(1), Version(20), Version(10), (), (), ((int(LSID), 4, 2),))
    seen = f"has seen epoch 4 of log stream {LSID}, but the metadata repository is at epoch 2 there"
    with pytest.raises(errors.ConsistencyViolation, match=seen):
        node.receive(told)
    assert Branch.RULE5_METADATA_WENT_BACK in node.replica.branches


def test_rule5_a_node_stops_when_a_version_it_has_seen_is_not_known(node: Node) -> None:
    told = Snapshot(Term(1), Version(2000), Version(10), (), (), (), Version(9))
    with pytest.raises(errors.ConsistencyViolation, match=r"seen version 10, but the metadata .* is at version 9"):
        node.receive(told)


def test_rule5_a_seal_that_leaps_is_taken_only_when_the_metadata_repository_has_listed_its_epoch(node: Node) -> None:
    """A backup was restored. What this node has seen is to be known there, before it promises anything."""
    leap = Seal(1, LSID, Epoch(1027), LLSN(1), GLSN(0))
    node.receive(leap, "manager")
    assert [reply.code for reply in node.replica.messages(ReplicaReply)] == [errors.Busy.code]
    assert node.executor.epoch == 2
    node.tick(0.1)
    assert node.replica.messages(Report)[-1].ask
    listed = StreamEnd(LSID, TOPIC, Epoch(1027), StreamStatus.SEALED, LLSN(1), GLSN(0), Version(2000))
    node.receive(Snapshot(Term(1), Version(2000), Version(10), ((int(TOPIC), 0, 0),), (listed,)))
    node.receive(leap, "manager")
    assert node.executor.epoch == 1027


def test_rule5_an_older_snapshot_that_lists_an_older_epoch_is_no_reason_to_stop(node: Node) -> None:
    """It was sent before the seal that the replica has heard of from the manager."""
    node.receive(Seal(1, LSID, Epoch(3), LLSN(1), GLSN(0)))
    node.snapshot(20, end=1, hwm=0)
    assert (node.node.version, node.executor.epoch) == (20, 3)


def test_rule5_a_node_stops_when_less_is_committed_there_than_here(node: Node) -> None:
    """The restored metadata has made new versions since, so that its number alone does not tell."""
    node.store(1, 2)
    node.commit(10, 12, 1, 3, hwm=2)
    with pytest.raises(errors.ConsistencyViolation, match="restored from an older state"):
        node.snapshot(20, end=2, hwm=1)
    assert Branch.RULE5_METADATA_WENT_BACK in node.replica.branches


def test_rule5_a_snapshot_older_than_a_fetched_cut_is_no_reason_to_stop(node: Node) -> None:
    node.store(1, 2)
    node.snapshot(20, end=3, hwm=2)
    node.receive(Cuts(LSID, (cut(1, 2, version=15), cut(2, 3, version=25))))
    node.snapshot(22, end=2, hwm=1)
    assert node.replica.ends == (3, 3, 3)


def test_rule10_a_commit_that_lists_an_epoch_lists_the_end() -> None:
    """A replica that was registered after the node's snapshot is in none: the commits alone put it in step."""
    replica = Replica().run()
    fresh = StorageNode(ME, 1, replica.send, replica.branches.append)
    fresh.on_message("mr", Snapshot(Term(1), Version(20), Version(0), ((int(TOPIC), 4, 0),), ()), 0.0)
    fresh.add(replica.executor)
    epochs = ((int(LSID), 2, 1),)
    fresh.on_message("mr", Commit(Term(1), Version(20), Version(21), 0, (), (), epochs), 0.0)
    fresh.on_message("mr", Commit(Term(1), Version(21), Version(22), 0, ((int(TOPIC), 4, 9),), ()), 0.0)
    assert replica.executor.global_hwm == 9


def test_rule10_a_replica_that_runs_again_is_as_complete_as_its_topic(node: Node) -> None:
    """Also if nothing is committed any more: the other log streams went on while it was sealed."""
    node.receive(Commit(Term(1), Version(10), Version(11), 0, (), (), ((int(LSID), 3, 1),)))
    node.commit(11, 12, hwm=9)
    node.receive(Commit(Term(1), Version(12), Version(13), 0, (), (), ((int(LSID), 4, 1),)))
    node.replica.run()
    assert node.replica.state == "RUNNING 4"
    assert node.executor.global_hwm == 0
    node.receive(Commit(Term(1), Version(13), Version(14), 0, (), (), ((int(LSID), 4, 1),)))
    assert node.executor.global_hwm == 9


def test_rule10_the_end_that_is_listed_with_an_epoch_sends_a_replica_behind_for_its_cuts(node: Node) -> None:
    node.store(1)
    epochs = ((int(LSID), 2, 2),)
    node.receive(Commit(Term(1), Version(10), Version(12), 0, ((int(TOPIC), 0, 1),), (), epochs))
    assert node.executor.global_hwm == 0
    node.tick(0.1)
    assert ("mr", FetchCuts(ME, LSID, Version(0))) in node.sent


def test_rule8_a_seal_sends_a_replica_that_is_behind_for_its_cuts(node: Node) -> None:
    node.store(1, 2)
    node.receive(Seal(1, LSID, Epoch(3), LLSN(3), GLSN(0)), "manager")
    assert ("mr", FetchCuts(ME, LSID, Version(0))) in node.sent
    node.receive(Cuts(LSID, (cut(1, 3, version=12),)))
    assert node.replica.state == "SEALED 3"


def test_missed_cuts_are_asked_for_again_now_and_then(node: Node) -> None:
    node.store(1)
    node.snapshot(20, end=2, hwm=1)
    node.tick(FETCH_AGAIN / 2)
    assert node.names() == ["FetchCuts"]
    node.tick(FETCH_AGAIN / 2)
    assert node.names() == ["FetchCuts", "FetchCuts"]


def test_cuts_that_help_are_followed_by_the_next_question_at_once_and_others_are_not(node: Node) -> None:
    node.store(1, 2)
    node.snapshot(20, end=3, hwm=2)
    node.receive(Cuts(LSID, (cut(1, 2, version=12),)))
    assert node.sent[1:] == [
        ("client", node.replica.messages(AppendReply)[0]),
        ("mr", FetchCuts(ME, LSID, Version(12))),
    ]
    node.receive(Cuts(LSID, (cut(1, 2, version=12),)))
    node.receive(Cuts(LSID, ()))
    assert len(node.replica.messages(FetchCuts)) == 2


def test_rule14_a_commit_brings_the_trim_point(node: Node) -> None:
    node.store(1, 2)
    node.commit(10, 11, 1, 3, hwm=2)
    node.commit(11, 12, hwm=0, trim=1)
    assert node.executor.trim_glsn == 1


# Reports


def test_a_report_carries_what_has_changed(node: Node) -> None:
    node.node.flush(node.now)
    assert node.sent == []
    node.store(1)
    node.node.flush(node.now)
    (report,) = node.replica.messages(Report)
    assert (report.snid, report.boot, report.version, report.full, report.ask) == (ME, 5, 10, False, False)
    assert report.lines == ((LSID, 2, 0, 1, 2, True),)
    node.node.flush(node.now)
    assert len(node.sent) == 1


def test_rule5_a_full_report_is_the_keep_alive(node: Node) -> None:
    node.tick(KEEP_ALIVE / 2)
    assert node.sent == []
    node.tick(KEEP_ALIVE / 2)
    (report,) = node.replica.messages(Report)
    assert (report.full, report.ask, len(report.lines)) == (True, False, 1)


def test_reports_are_numbered(node: Node) -> None:
    for _ in range(3):
        node.tick(KEEP_ALIVE)
    seqs = [report.seq for report in node.replica.messages(Report)]
    assert seqs == sorted(set(seqs))


def test_rule5_a_node_that_starts_reports_all_and_asks() -> None:
    replica = Replica().run()
    node = StorageNode(ME, 1, replica.send, replica.branches.append)
    node.add(replica.executor)
    node.tick(0.0)
    (report,) = replica.messages(Report)
    assert (report.full, report.ask, report.version) == (True, True, 0)


def test_rule5_the_version_a_node_has_seen_counts_what_its_replicas_have_stored(node: Node) -> None:
    node.store(1)
    node.commit(10, 12, 1, 2, hwm=1)
    node.replica.sync()
    again = node.replica.restarted()
    restarted = StorageNode(ME, 6, again.send, again.branches.append)
    restarted.add(again.executor)
    assert (restarted.version, restarted.seen_version) == (0, 12)


# Reads


def damage(replica: Replica) -> None:
    """Flip a bit of the last byte of the first stored batch."""
    (stored,) = replica.storage.read(GLSN(1), GLSN(2), 1)
    (name,) = [name for name in replica.disk.listdir(PATH) if name.endswith(".seg")]
    file = replica.disk.open(f"{PATH}/{name}")
    content = file.pread(file.size(), 0)
    replica.disk.flip_bit(f"{PATH}/{name}", content.index(bytes(stored.batch)) + len(stored.batch) - 1)


def test_rule10_a_read_beyond_what_is_complete_is_answered_not_yet(node: Node) -> None:
    node.scan(1)
    (reply,) = node.replica.messages(ScanReply)
    assert (reply.code, reply.batches, reply.complete_to) == (errors.NotYet.code, (), 0)


def test_a_read_tells_the_batches_and_how_far_they_are_complete(node: Node) -> None:
    node.store(1, 2)
    node.commit(10, 11, 1, 3, hwm=5)
    node.scan(4)
    node.answer_reads()
    assert node.told() == [([4, 5], 5)]


def test_a_read_that_was_cut_short_is_complete_only_to_its_last_batch(node: Node) -> None:
    node.store(1, 2)
    node.commit(10, 11, 1, 3, hwm=5)
    node.scan(1)
    node.answer_reads(most=1)
    node.scan(5)
    node.answer_reads()
    assert node.told() == [([4], 4), ([5], 5)]


def test_a_read_of_a_quiet_log_stream_tells_that_there_is_nothing(node: Node) -> None:
    node.commit(10, 11, hwm=9)
    node.scan(3)
    node.answer_reads()
    assert node.told() == [([], 9)]


def test_a_read_may_wait_for_what_is_about_to_come(node: Node) -> None:
    node.store(1)
    node.scan(1, wait=True)
    assert node.sent == []
    node.commit(10, 11, 1, 2, hwm=1)
    node.answer_reads()
    assert node.told() == [([1], 1)]


def test_a_read_that_waits_is_woken_by_fetched_cuts(node: Node) -> None:
    node.store(1)
    node.scan(1, wait=True)
    node.snapshot(20, end=2, hwm=1)
    node.receive(Cuts(LSID, (cut(1, 2, version=12),)))
    node.answer_reads()
    assert node.told() == [([1], 1)]


def test_a_read_does_not_wait_for_ever(node: Node) -> None:
    node.scan(1, wait=True)
    node.tick(SCAN_WAIT - 0.1)
    assert "ScanReply" not in node.names()
    node.tick(0.1)
    assert node.replica.messages(ScanReply)[0].code == errors.NotYet.code


def test_nobody_waits_for_a_replica_that_takes_nothing_any_more(node: Node) -> None:
    node.scan(1, wait=True)
    node.node.on_failed(LSID, errors.DiskFull("full"))
    node.scan(1, wait=True)
    assert [reply.code for reply in node.replica.messages(ScanReply)] == [errors.NotYet.code] * 2


def test_the_number_of_waiting_reads_is_bounded(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_WAITING_READS", 2)
    for _ in range(3):
        node.scan(1, wait=True)
    assert len(node.replica.messages(ScanReply)) == 1


def test_L5_a_read_of_a_trimmed_position_says_where_the_log_begins(node: Node) -> None:
    node.store(1, 2)
    node.commit(10, 11, 1, 3, hwm=2)
    node.commit(11, 12, hwm=0, trim=1)
    node.scan(1)
    (reply,) = node.replica.messages(ScanReply)
    assert (reply.code, reply.first) == (errors.Trimmed.code, 2)
    assert Branch.RULE14_TRIM_ENFORCED in node.replica.branches


def test_rule14_a_trim_is_enforced_for_a_read_that_waits(node: Node) -> None:
    node.scan(1, wait=True)
    node.commit(10, 12, hwm=0, trim=3)
    assert node.replica.messages(ScanReply)[0].first == 4


@pytest.mark.parametrize(
    ("error", "first"), [(errors.Trimmed(5), 5), (errors.Corrupt("bad", segment="s", offset=0), 0)]
)
def test_a_read_that_fails_on_disk_is_answered_with_its_error(
    node: Node, error: errors.VarlogError, first: int
) -> None:
    node.commit(10, 11, hwm=9)
    node.scan(1)
    (plan,) = node.node.reads
    node.node.finish_scan(plan, error)
    (reply,) = node.replica.messages(ScanReply)
    assert (reply.code, reply.first, reply.batches) == (error.code, first, ())


@pytest.mark.parametrize("sealed", [False, True], ids=["running", "sealed"])
def test_rule15_a_replica_that_reads_damage_is_in_need_of_repair_and_never_sealed(node: Node, sealed: bool) -> None:
    node.store(1, 2)
    node.commit(10, 11, 1, 3, hwm=2)
    if sealed:
        node.receive(Seal(1, LSID, Epoch(3), LLSN(3), GLSN(0)), "manager")
    node.replica.sync()
    assert node.replica.state == ("SEALED 3" if sealed else "RUNNING 2")
    node.node.flush(node.now)
    node.sent.clear()
    damage(node.replica)
    node.scan(1)
    (plan,) = node.node.reads
    with pytest.raises(errors.Corrupt) as found:
        node.replica.storage.read(plan.scan.glsn_begin, plan.glsn_end, plan.scan.max_bytes)
    node.node.finish_scan(plan, found.value)
    assert node.replica.messages(ScanReply)[0].code == errors.Corrupt.code
    assert node.replica.state.startswith("SEALING")
    assert Branch.RULE15_CORRUPTION in node.replica.branches
    node.node.flush(node.now)
    assert node.replica.messages(Report)[-1].lines[0][5] is False
    node.receive(Seal(2, LSID, Epoch(5), LLSN(3), GLSN(0)), "manager")
    assert node.replica.messages(ReplicaReply)[-1].code == errors.Corrupt.code
    assert node.replica.state.startswith("SEALING")


def test_rule15_a_replica_that_reads_damage_while_it_is_behind_is_not_sealed_by_cuts(node: Node) -> None:
    node.store(1, 2)
    node.commit(10, 11, 1, 2, hwm=1)
    node.receive(Seal(1, LSID, Epoch(3), LLSN(3), GLSN(0)), "manager")
    node.replica.sync()
    node.scan(1)
    (plan,) = node.node.reads
    node.node.finish_scan(plan, errors.Corrupt("bad", segment="s", offset=0))
    node.receive(Cuts(LSID, (cut(2, 3, version=12),)))
    assert (node.replica.state, node.executor.committed_end) == ("SEALING 3", 2)


# What is not for it, or not whole


def append(data: bytes, lsid: LogStreamID = LSID) -> Append:
    return Append(3, lsid, Epoch(2), Sequence(0), LLSN(1), data)


def test_a_damaged_append_is_refused_with_its_error(node: Node) -> None:
    data = bytearray(batch_of(1))
    data[-1] ^= 1
    node.receive(append(bytes(data)), "client")
    node.receive(append(b"short"), "client")
    codes = [reply.code for reply in node.replica.messages(AppendReply)]
    assert codes == [errors.ChecksumMismatch.code, errors.MalformedBatch.code]
    assert node.replica.ends == (1, 1, 1)


def test_rule18_an_append_names_its_writer(node: Node) -> None:
    node.receive(append(batch_of(1, writer=0)), "client")
    assert node.replica.messages(AppendReply)[0].code == errors.InvalidArgument.code


def test_a_damaged_batch_from_the_primary_is_not_taken() -> None:
    replica = Replica().run((OTHER, ME), OTHER)
    node = StorageNode(ME, 1, replica.send, replica.branches.append)
    node.add(replica.executor)
    run = (batch_of(1), b"not a batch", batch_of(3))
    node.on_message("sn/2", Replicate(LSID, Epoch(2), LLSN(1), tuple(map(Sequence, range(3))), run), 0.0)
    assert replica.ends == (1, 1, 1), "nor those it came with"
    assert not replica.messages(ReplicateAck)[0].accepted


def test_a_request_for_an_unknown_log_stream_is_answered(node: Node) -> None:
    node.receive(append(batch_of(1), NOBODYS), "client")
    node.scan(1, lsid=NOBODYS)
    node.receive(Seal(4, NOBODYS, Epoch(1), LLSN(1), GLSN(0)), "manager")
    node.receive(Cuts(NOBODYS, ()))
    replies = [message for _, message in node.sent]
    assert [type(reply) for reply in replies] == [AppendReply, ScanReply, ReplicaReply]
    assert {reply.code for reply in replies if isinstance(reply, AppendReply | ScanReply | ReplicaReply)} == {
        errors.UnknownLogStream.code
    }


def test_what_a_node_does_not_take_is_an_error(node: Node) -> None:
    with pytest.raises(errors.InvalidArgument, match="GetMetadata"):
        node.receive(GetMetadata(1))


def test_info_tells_of_every_replica(node: Node) -> None:
    node.store(1)
    node.receive(GetInfo(8), "manager")
    (info,) = node.replica.messages(Info)
    assert (info.request, info.snid, info.boot) == (8, ME, 5)
    assert info.replicas == (node.executor.info(),)
    assert (info.replicas[0].committed_end, info.replicas[0].durable_end) == (1, 2)
