"""The metadata repository while replica sets change: whose reports count, who is told what, which cuts stay known."""

from __future__ import annotations

import pytest

from tests.core.repository import ONE, TOPIC, TWO, A, B, Repository, line
from tests.metarepo.rigs import SimRig
from varlog import errors
from varlog.core.messages import (
    Commit,
    CreateStream,
    Cuts,
    FetchCuts,
    GetMetadata,
    HoldStream,
    LoseStream,
    Metadata,
    PlanStream,
    RegisterNode,
    RegisterStream,
    RunStream,
    SealStream,
    SetDraining,
    Snapshot,
    TrimTopic,
    UnsealStream,
)
from varlog.core.metarepo import SNAPSHOT_EVERY
from varlog.types import GLSN, Epoch, LogStreamID, StorageNodeID, StreamStatus, TopicID, Version

C = StorageNodeID(3)
ANYONE = StorageNodeID(0)


class Cluster(Repository):
    """A third node beside the two that have log stream 1, which hosts nothing."""

    def set_up(self) -> Cluster:
        super().set_up()
        self.ask(RegisterNode(self.request(), C))
        self.report(C, full=True, ask=True)
        self.rig.settle()
        self.sent.clear()
        return self

    @property
    def epoch(self) -> Epoch:
        return self.core.state.streams[ONE].epoch

    def seal(self, lsid: LogStreamID = ONE) -> None:
        assert self.ask(SealStream(self.request(), lsid, self.core.state.streams[lsid].epoch)).code == 0

    def unseal(self, *replicas: StorageNodeID, lsid: LogStreamID = ONE, volumes: tuple[str, ...] = ()) -> None:
        epoch = self.core.state.streams[lsid].epoch
        unsealing = self.ask(UnsealStream(self.request(), lsid, epoch, replicas, replicas[0], volumes))
        assert (unsealing.code, unsealing.value) == (0, epoch + 1)

    def run(self, lsid: LogStreamID = ONE) -> None:
        assert self.ask(RunStream(self.request(), lsid, self.core.state.streams[lsid].epoch)).code == 0

    def move(self, *replicas: StorageNodeID) -> None:
        """From one running set to another."""
        self.seal()
        self.unseal(*replicas)
        self.run()

    def all_report(self, end: int, *snids: StorageNodeID, durable: int = 0) -> None:
        for snid in snids:
            self.report(snid, line(ONE, end, epoch=self.epoch, durable=durable))
        self.rig.settle()

    def known_cuts(self, after: int = 0) -> list[int]:
        self.receive(FetchCuts(C, ONE, Version(after)), "sn/3")
        return [cc.version for cc in self.to("sn/3", Cuts)[-1].cuts]


@pytest.fixture
def cluster(rig: SimRig) -> Cluster:
    return Cluster(rig).set_up()


@pytest.fixture
def rig() -> SimRig:
    return SimRig()


# Whose reports count


def test_a_cut_needs_the_new_set_and_no_more(cluster: Cluster) -> None:
    cluster.all_report(3, A, B)
    cluster.move(A)
    cluster.all_report(5, A)
    assert cluster.tail == 4, "it goes on with those who are left"


def test_a_removed_replica_s_report_does_not_count(cluster: Cluster) -> None:
    cluster.move(A, C)
    cluster.all_report(3, A, B)
    assert cluster.tail == 0
    cluster.all_report(2, C)
    assert cluster.tail == 1


def test_what_was_reported_before_a_node_joined_does_not_count(cluster: Cluster) -> None:
    """It held nothing of this epoch then, whatever it said."""
    cluster.report(C, line(ONE, 9, epoch=4))
    cluster.move(A, C)
    cluster.all_report(3, A)
    assert cluster.tail == 0
    cluster.all_report(3, C)
    assert cluster.tail == 2


def test_a_replica_that_returns_begins_with_nothing_reported(cluster: Cluster) -> None:
    cluster.all_report(3, A, B)
    cluster.move(A)
    cluster.all_report(4, A)
    cluster.move(A, B)
    cluster.all_report(6, A)
    assert cluster.tail == 3
    cluster.all_report(6, B)
    assert cluster.tail == 5


def test_an_unseal_that_is_given_up_counts_its_own_set(cluster: Cluster) -> None:
    cluster.seal()
    cluster.unseal(A, C)
    cluster.seal()
    assert cluster.core.state.streams[ONE].replicas == (A, C)
    cluster.unseal(A)
    cluster.run()
    cluster.all_report(2, A)
    assert cluster.tail == 1


# Who is told what


def test_rule5_a_node_that_has_to_do_with_a_topic_only_now_is_given_its_state(cluster: Cluster) -> None:
    """High watermark and trim point changed before it cared; the commits to come tell only what they change."""
    cluster.all_report(6, A, B)
    cluster.ask(TrimTopic(1, TOPIC, GLSN(2)))
    cluster.seal()
    assert cluster.to("sn/3", Commit) == []
    cluster.unseal(A, C)
    (state,) = cluster.to("sn/3", Snapshot)
    assert (state.version, state.topics) == (cluster.version, ((TOPIC, 5, 2),))
    assert [(s.lsid, s.epoch, s.status, s.llsn_end) for s in state.streams] == [(ONE, 4, StreamStatus.UNSEALING, 6)]
    cluster.run()
    (commit,) = cluster.to("sn/3", Commit)
    assert (commit.prev_version, commit.version) == (state.version, cluster.version), "the chain goes on from there"


def test_rule5_one_that_has_said_nothing_yet_is_told_when_it_does(rig: SimRig) -> None:
    Cluster(rig).set_up()
    successor = Cluster(rig, rig.second)
    successor.move(A, C)
    assert successor.to("sn/3", Snapshot) == []
    successor.report(C, full=True, ask=True)
    assert len(successor.to("sn/3", Snapshot)) == 1


def test_rule10_a_node_that_leaves_is_told_that_the_others_go_on(cluster: Cluster) -> None:
    """Else it would take itself for complete when it hears of the topic the next time."""
    cluster.seal()
    cluster.sent.clear()
    cluster.unseal(B)
    assert cluster.to("sn/1", Commit)[-1].epochs == ((ONE, 4, 1),)
    cluster.run()
    cluster.sent.clear()
    cluster.all_report(3, B)
    assert cluster.tail == 2
    assert cluster.to("sn/1", Commit) == [], "it hosts nothing of this topic any more"
    assert cluster.to("sn/2", Commit)[-1].hwms == ((TOPIC, 0, 2),)


def test_a_node_that_hosts_another_log_stream_of_the_topic_hears_on(cluster: Cluster) -> None:
    """Of the one it has left too: what it still holds of it is in another epoch than the one listed (rule 10)."""
    lsid = LogStreamID(cluster.ask(CreateStream(1, TOPIC)).value)
    cluster.ask(RegisterStream(2, lsid, (B, C)))
    cluster.move(A)
    cluster.sent.clear()
    cluster.all_report(3, A)
    assert cluster.to("sn/2", Commit)[-1].hwms == ((TOPIC, 0, 2),)
    assert cluster.to("sn/2", Commit)[-1].ranges == ()
    cluster.seal()
    assert cluster.to("sn/2", Commit)[-1].epochs == ((ONE, 5, 3),)


def test_rule5_a_new_log_stream_brings_a_node_the_state_of_its_topic(cluster: Cluster) -> None:
    cluster.all_report(4, A, B)
    lsid = LogStreamID(cluster.ask(CreateStream(1, TOPIC)).value)
    cluster.ask(RegisterStream(2, lsid, (B, C)))
    (state,) = cluster.to("sn/3", Snapshot)
    assert (state.topics, [s.lsid for s in state.streams]) == (((TOPIC, 3, 0),), [lsid])
    assert cluster.to("sn/2", Snapshot) == []


def test_rule5_after_a_restart_the_set_that_was_decided_last_is_told(cluster: Cluster, rig: SimRig) -> None:
    cluster.move(A, C)
    again = Cluster(rig, rig.second)
    for snid in (A, B, C):
        again.report(snid, full=True, ask=True)
    again.sent.clear()
    again.all_report(2, A, C)
    assert again.tail == 1
    assert [bool(again.to(f"sn/{snid}", Commit)) for snid in (A, B, C)] == [True, False, True]


# Which cuts stay known


def fold(cluster: Cluster) -> None:
    """Until the next checkpoint has been written."""
    for _ in range(SNAPSHOT_EVERY):
        cluster.ask(HoldStream(cluster.request(), TWO, True))
        cluster.ask(HoldStream(cluster.request(), TWO, False))


def test_rule4_a_cut_stays_known_while_a_replica_of_the_set_may_need_it(cluster: Cluster) -> None:
    cluster.all_report(2, A, B)
    first = cluster.version
    cluster.all_report(3, A, B)
    second = cluster.version
    cluster.all_report(3, A, durable=second)
    cluster.all_report(3, B, durable=first)
    fold(cluster)
    assert cluster.known_cuts() == [second]


def test_rule4_sealed_it_stays_known_to_those_who_were_in_the_set(cluster: Cluster, rig: SimRig) -> None:
    """Which of them the next unseal names is not decided; each may still become complete by cuts alone (rule 8)."""
    cluster.all_report(2, A, B)
    cut = cluster.version
    cluster.seal()
    cluster.all_report(2, A, durable=cut)
    fold(cluster)
    assert cluster.known_cuts() == [cut]
    assert Cluster(rig, rig.second).known_cuts() == [cut]


def test_rule4_it_is_not_kept_for_one_that_is_out_of_the_set(cluster: Cluster) -> None:
    cluster.all_report(2, A, B)
    cut = cluster.version
    cluster.all_report(2, A, durable=cut)
    cluster.move(A)
    cluster.all_report(2, A, durable=cut)
    fold(cluster)
    assert cluster.known_cuts() == []


def test_rule4_it_is_kept_until_one_that_has_joined_says_that_it_has_it(cluster: Cluster) -> None:
    cluster.all_report(2, A, B)
    cut = cluster.version
    cluster.all_report(2, A, B, durable=cut)
    cluster.move(A, C)
    fold(cluster)
    assert cluster.known_cuts() == [cut]
    cluster.all_report(2, C, durable=cut)
    cluster.core.tick(cluster.now)
    assert cluster.known_cuts() == []


# What operators want


def metadata(cluster: Cluster) -> Metadata:
    cluster.receive(GetMetadata(1))
    return cluster.messages(Metadata)[-1]


def test_wishes_are_told_and_done_by_the_next_unseal(cluster: Cluster) -> None:
    assert cluster.ask(PlanStream(1, ONE, C, B)).code == 0
    assert cluster.ask(SetDraining(2, B, False)).code == 0
    stream = metadata(cluster).streams[0]
    assert (stream.joining, stream.leaving) == (C, B)
    cluster.seal()
    cluster.unseal(C, A, volumes=("/c", ""))
    stream = metadata(cluster).streams[0]
    assert (stream.replicas, stream.primary, stream.volumes) == ((C, A), C, ("/c", ""))
    assert (stream.joining, stream.leaving) == (0, 0)


def test_where_no_replica_is_wanted_there_is_none_until_the_set_is_whole(cluster: Cluster) -> None:
    assert cluster.ask(PlanStream(1, ONE, ANYONE, B)).code == 0
    cluster.move(A)
    assert metadata(cluster).streams[0].leaving == B, "it must not be the first to be asked back"
    cluster.move(A, C)
    assert metadata(cluster).streams[0].leaving == 0


def test_a_plan_can_be_ended(cluster: Cluster) -> None:
    cluster.ask(PlanStream(1, ONE, C, B))
    assert cluster.ask(PlanStream(2, ONE, ANYONE, ANYONE)).code == 0
    assert (metadata(cluster).streams[0].joining, metadata(cluster).streams[0].leaving) == (0, 0)


def test_a_log_stream_that_an_operator_holds_stays_sealed(cluster: Cluster) -> None:
    cluster.ask(HoldStream(1, ONE, True))
    assert metadata(cluster).streams[0].is_held
    cluster.seal()
    refused = cluster.ask(UnsealStream(2, ONE, cluster.epoch, (A, B), A))
    assert refused.code == errors.Conflict.code
    assert "operator" in refused.detail
    cluster.ask(HoldStream(3, ONE, False))
    cluster.unseal(A, B)


def test_what_is_declared_lost_is_told_and_never_runs_again(cluster: Cluster, rig: SimRig) -> None:
    cluster.all_report(6, A, B)
    cluster.seal()
    cluster.sent.clear()
    assert cluster.ask(LoseStream(1, ONE, cluster.epoch, GLSN(4), (C,))).code == 0
    assert cluster.ask(LoseStream(1, ONE, cluster.epoch, GLSN(4), (C,))).code == 0
    for repository in (cluster, Cluster(rig, rig.second)):
        stream = metadata(repository).streams[0]
        assert (stream.lost_begin, stream.lost_end, stream.is_held, stream.replicas) == (4, 6, True, (C,))
        for request in (UnsealStream(2, ONE, stream.epoch, (A, B), A), HoldStream(2, ONE, False)):
            assert repository.ask(request).code == errors.Conflict.code
    assert not cluster.core.state.topics[TOPIC].trim


def test_a_log_stream_of_which_nothing_is_left_is_in_nobody_s_way(cluster: Cluster) -> None:
    cluster.all_report(6, A, B)
    cluster.seal()
    assert cluster.ask(LoseStream(1, ONE, cluster.epoch, GLSN(1))).code == 0
    fold(cluster)
    assert cluster.known_cuts() == []
    cluster.report(B, line(TWO, 4))
    cluster.rig.settle()
    assert cluster.core.state.topics[TopicID(2)].hwm == 3
    assert cluster.ask(TrimTopic(2, TOPIC, GLSN(5))).code == 0
