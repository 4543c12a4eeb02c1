"""The doctor's findings: each thing that can be wrong is told, with what is done about it and what a person can do."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import pytest

from varlog import errors, limits
from varlog.core.diagnosing import diagnose
from varlog.core.findings import Severity
from varlog.core.messages import (
    Finding,
    Info,
    Metadata,
    NodeInfo,
    ReplicaInfo,
    StreamInfo,
    TopicInfo,
    VolumeInfo,
)
from varlog.core.world import Memory, NodeView, World
from varlog.types import (
    GLSN,
    LLSN,
    Epoch,
    LogStreamID,
    ReplicaState,
    StorageNodeID,
    StreamStatus,
    TopicID,
    Version,
)

GB = 1_000_000_000
WELL = VolumeInfo("/data", 100 * GB, 50 * GB)


def stream_on(snid: StorageNodeID, lsid: LogStreamID) -> StreamInfo:
    return StreamInfo(lsid, TopicID(1), Epoch(2), StreamStatus.RUNNING, (snid,), snid, LLSN(1), GLSN(0))


@dataclass
class Scene:
    """A cluster of three nodes and a spare, with one topic of one log stream; some of it not as it should be."""

    status: StreamStatus = StreamStatus.RUNNING
    epoch: int = 4
    stream: dict[str, Any] = field(default_factory=dict)
    members: tuple[int, ...] = (1, 2, 3)
    nodes: tuple[int, ...] = (1, 2, 3, 4)
    draining: frozenset[int] = frozenset()
    silent: dict[int, float] = field(default_factory=dict)
    hanging: frozenset[int] = frozenset()
    unidentified: frozenset[int] = frozenset()
    unanswered: dict[int, float] = field(default_factory=dict)
    replicas: dict[int, dict[str, Any] | None] = field(default_factory=dict)
    """What is special of replicas, by node; None if there is none."""
    strangers: tuple[int, ...] = ()
    """Log streams nobody knows, on node 1."""
    volume: VolumeInfo = WELL
    metadata_silent: float = 0.0
    topics: int = 1
    streams: int = 1
    """The others are in the set of node 4."""

    def world(self, now: float) -> World:
        topics = [
            TopicInfo(TopicID(n), f"topic-{n}", GLSN(50), GLSN(0), 3, 2)
            for n in range(1, self.topics + 1)
        ]  # fmt: skip
        stream = StreamInfo(
            LogStreamID(7), TopicID(1), Epoch(self.epoch), self.status, tuple(map(StorageNodeID, self.members)),
            StorageNodeID(1), LLSN(51), GLSN(50),
        )  # fmt: skip
        nodes = [
            NodeInfo(StorageNodeID(n), f"10.0.0.{n}:9091", ("/data",), n in self.draining, 1)
            for n in self.nodes
        ]  # fmt: skip
        streams = [msgspec.structs.replace(stream, **self.stream)]
        streams += [stream_on(StorageNodeID(4), LogStreamID(7 + n)) for n in range(1, self.streams)]
        metadata = Metadata(1, Version(9), tuple(nodes), tuple(topics), tuple(streams))
        return World(now, metadata, [self._view(n) for n in self.nodes], metadata_silent=self.metadata_silent)

    def _view(self, number: int) -> NodeView:
        snid = StorageNodeID(number)
        if number in self.silent:
            return NodeView(snid, None, False, self.silent[number], number in self.hanging)
        special = self.replicas.get(number, {} if number in self.members else None)
        state = ReplicaState.RUNNING if self.status is StreamStatus.RUNNING else ReplicaState.SEALED
        replica = ReplicaInfo(LogStreamID(7), Epoch(self.epoch), state, LLSN(51), LLSN(51), True, volume="/data")
        replicas = [msgspec.structs.replace(replica, **special)] if special is not None else []
        if number == 1:
            replicas += [msgspec.structs.replace(replica, lsid=LogStreamID(lsid)) for lsid in self.strangers]
        info = Info(
            1, snid, 1, tuple(replicas), volumes=(self.volume,), is_identified=number not in self.unidentified,
            unanswered=self.unanswered.get(number, 0.0),
        )  # fmt: skip
        return NodeView(snid, info, True)

    def findings(self, after: float = 5.0) -> tuple[Finding, ...]:
        """When it has been so for that long."""
        memory = Memory()
        memory.observe(self.world(100.0))
        memory.observe(world := self.world(100.0 + after))
        return diagnose(world, memory)

    def finding(self, kind: str, after: float = 5.0) -> Finding:
        found = {finding.kind: finding for finding in self.findings(after)}
        assert kind in found, found
        return found[kind]


def test_a_cluster_that_is_well_has_no_findings() -> None:
    assert Scene().findings() == ()
    assert Scene(nodes=(1, 2, 3)).findings() == ()


def test_M4_a_silent_node() -> None:
    found = Scene(silent={3: 4.25}, members=(1, 2)).finding("node-silent")
    assert (found.severity, found.subject, found.seconds) == (Severity.DEGRADED, "node 3", 4.2)
    assert found.what.startswith("has not answered for 4.2 s: it cannot be reached at 10.0.0.3:9091")
    assert "varlog node replace 3" in found.person
    hanging = Scene(silent={3: 4.25}, hanging=frozenset({3}), members=(1, 2)).finding("node-silent")
    assert "it keeps its connection and says nothing" in hanging.what


def test_for_how_long_a_node_is_silent_is_said_only_if_somebody_has_seen_it() -> None:
    world = Scene(silent={3: 4.25}, members=(1, 2)).world(100.0)
    infos = {snid: view.info for snid, view in world.views.items() if view.info is not None}
    memory = Memory()
    memory.observe(unwatched := World.of(world.metadata, infos, 100.0))
    (found,) = [found for found in diagnose(unwatched, memory) if found.kind == "node-silent"]
    assert found.seconds == 0.0
    assert found.what.startswith("does not answer: it cannot be reached at 10.0.0.3:9091")


def test_what_the_manager_does_about_a_node_is_told_in_its_words() -> None:
    """M6: the sentence is the one by which the manager seals."""
    found = Scene(silent={3: 1.5}).finding("node-silent")
    assert "log stream 7: sealing at GLSN 50 because node 3 has not answered for 1.5 s" in found.doing
    assert "it is in the set of log stream 7" in found.what


def test_B11_a_node_that_lost_its_disks() -> None:
    found = Scene(unidentified=frozenset({4})).finding("node-unidentified", after=7.0)
    assert found.subject == "node 4"
    assert "has lost its disks, and begins anew with another secret" in found.doing
    assert "--volumes" in found.person


def test_a_node_that_does_not_reach_the_metadata_repository() -> None:
    found = Scene(unanswered={2: 3.0}).finding("node-cut-off")
    assert found.subject == "node 2"
    assert "network" in found.person


@pytest.mark.parametrize(
    ("volume", "kind", "severity"),
    [
        (VolumeInfo("/data", 0, 0), "disk-gone", Severity.URGENT),
        (VolumeInfo("/data", 100 * GB, 20_000_000), "disk-full", Severity.URGENT),
        (VolumeInfo("/data", 100 * GB, 3 * GB), "disk-filling", Severity.DEGRADED),
    ],
)
def test_disks_that_fill_up(volume: VolumeInfo, kind: str, severity: Severity) -> None:
    found = Scene(volume=volume).finding(kind)
    assert found.severity == severity
    assert found.what.startswith("its volume /data ")
    assert found.person


def test_a_small_volume_is_not_full_because_it_is_small() -> None:
    assert Scene(volume=VolumeInfo("/data", 100_000_000, 60_000_000)).findings() == ()


def test_a_draining_node_is_noted_until_it_can_go() -> None:
    scene = Scene(draining=frozenset({3}))
    found = scene.finding("node-draining")
    assert (found.severity, found.subject) == (Severity.NOTE, "node 3")
    assert "node 4" in found.doing
    empty = replace(scene, members=(1, 2, 4)).finding("node-draining")
    assert empty.doing == ""
    assert "varlog node remove 3" in empty.person


def test_B6_forgotten_data_is_noted_and_data_that_is_just_being_made_is_not() -> None:
    found = [one for one in Scene(strangers=(5, 9)).findings() if one.kind == "replica-forgotten"]
    assert [one.what for one in found] == ["has data of log stream 5, which is not part of the cluster any more"]


def test_a_metadata_repository_that_does_not_answer() -> None:
    found = Scene(metadata_silent=3.0).findings()
    assert (found[0].kind, found[0].severity) == ("metadata-silent", Severity.URGENT)


def test_a_topic_without_a_log_stream() -> None:
    found = Scene(topics=2).finding("topic-empty")
    assert (found.subject, found.person) == ("topic 'topic-2'", "varlog stream add --topic topic-2")


# The high watermark

STORED = {"durable_end": LLSN(60)}


@pytest.mark.parametrize(
    ("scene", "why"),
    [
        (
            Scene(replicas={1: STORED, 2: STORED}, silent={3: 1.5}),
            "reports are missing from node 3, which does not answer",
        ),
        (
            Scene(replicas={1: STORED, 2: STORED, 3: STORED}, unanswered={2: 4.0}),
            "reports are missing from node 2, which does not reach the metadata repository",
        ),
        (Scene(replicas={1: STORED, 2: STORED}), "node 3 has not stored 9 of them"),
        (
            Scene(replicas={1: STORED, 2: STORED, 3: STORED}),
            "all its replicas have stored them, and the metadata repository does not decide",
        ),
        (
            Scene(replicas={1: STORED, 2: {"healthy": False, "fault": errors.Corrupt.code}, 3: STORED}),
            "the replica on node 2 is corrupt",
        ),
        (
            Scene(replicas={1: STORED, 2: {"state": ReplicaState.SEALING, "epoch": Epoch(3)}, 3: STORED}),
            "the replica on node 2 is SEALING in epoch 3",
        ),
        (Scene(replicas={1: STORED, 2: STORED, 3: None}), "node 3 has no replica"),
    ],
)
def test_why_the_high_watermark_does_not_move(scene: Scene, why: str) -> None:
    found = scene.finding("stream-stalled")
    assert found.severity == Severity.URGENT
    assert found.what == (
        f"the high watermark of topic 'topic-1' does not move for 9 entries that are stored here: {why}"
    )
    assert found.seconds == 5.0
    assert found.person


def test_a_log_stream_that_nobody_appends_to_is_not_stalled() -> None:
    assert Scene().findings(after=3600.0) == ()
    assert Scene(replicas={1: STORED}).findings(after=0.2) == ()


# Log streams


def test_rule5_metadata_that_is_older_than_a_replica_is_told() -> None:
    scene = Scene(replicas={2: {"state": ReplicaState.SEALING, "epoch": Epoch(6)}})
    assert not [found for found in scene.findings(after=0.5) if found.kind == "metadata-old"]
    found = scene.finding("metadata-old")
    assert (found.severity, found.subject, found.seconds) == (Severity.URGENT, "log stream 7", 5.0)
    assert found.what == (
        "node 2 has seen epoch 6 of it, and the metadata is at epoch 4: it was restored from an older state"
    )
    assert found.doing == f"{found.what}; nothing is done until it is rebuilt"
    assert "varlog metadata rebuild" in found.person


def test_a_sealed_log_stream_is_urgent_when_it_has_been_so_for_too_long() -> None:
    scene = Scene(StreamStatus.SEALED, 5, members=(1, 2, 3), silent={2: 9.0, 3: 9.0})
    assert scene.finding("stream-sealed", after=1.0).severity == Severity.DEGRADED
    found = scene.finding("stream-sealed", after=9.0)
    assert found.severity == Severity.URGENT
    assert found.what == (
        "is SEALED at GLSN 50 and takes no appends; it needs 2 replicas, and of its set node 1 can be used; nothing is "
        "lost, node 1 has everything"
    )
    assert found.doing
    assert found.person == "start nodes 2, 3 again", "or node 4 is taken"


def test_a_sealed_log_stream_that_lacks_replicas_goes_on_with_another_node() -> None:
    scene = Scene(StreamStatus.SEALED, 5, nodes=(1, 2, 3), silent={2: 9.0, 3: 9.0})
    found = scene.finding("stream-sealed")
    assert found.person == "start nodes 2, 3 again, or start another node and add it: varlog node add HOST:PORT"


@pytest.mark.parametrize("left", [{"committed_end": LLSN(30)}, {"healthy": False, "fault": errors.Corrupt.code}])
def test_only_what_no_replica_has_can_be_declared_lost(left: dict[str, Any]) -> None:
    found = Scene(StreamStatus.SEALED, 5, silent={2: 9.0, 3: 9.0}, replicas={1: left}).finding("stream-sealed")
    assert "nothing is lost" not in found.what
    assert found.person.startswith("start nodes 2, 3 again; ")
    assert "varlog stream declare-lost 7" in found.person


def test_a_sealed_log_stream_that_goes_on_needs_nobody() -> None:
    found = Scene(StreamStatus.SEALED, 5, members=(1, 2, 3)).finding("stream-sealed", after=0.1)
    assert found.person == ""
    assert found.doing == "sealed at GLSN 50; going on with nodes 1, 2, 3"


def test_a_held_log_stream_is_noted_and_urgent_if_its_topic_takes_no_appends() -> None:
    scene = Scene(StreamStatus.SEALED, 5, stream={"is_held": True}, streams=2)
    found = scene.finding("stream-held")
    assert (found.severity, found.person) == (Severity.NOTE, "to let it run again: varlog stream unseal 7")
    found = replace(scene, streams=1).finding("stream-held")
    assert found.severity == Severity.URGENT
    assert found.what == (
        "takes no appends, because an operator has sealed it; topic 'topic-1' has no other one that does"
    )


def test_a_lost_range_is_noted_and_urgent_if_its_topic_takes_no_appends() -> None:
    lost = {"lost_begin": GLSN(20), "lost_end": GLSN(51), "is_held": True}
    scene = Scene(StreamStatus.SEALED, 5, stream=lost, members=(), streams=2)
    found = scene.finding("stream-lost")
    assert found.severity == Severity.NOTE
    assert "from GLSN 20 to 50" in found.what
    (found,) = replace(scene, streams=1).findings()
    assert (found.kind, found.severity) == ("stream-lost", Severity.URGENT)
    assert found.person.startswith("to append again: varlog stream add --topic topic-1; ")


def test_a_log_stream_with_too_few_replicas() -> None:
    found = Scene(members=(1, 2), silent={3: 9.0}).finding("stream-short")
    assert (found.severity, found.person) == (Severity.DEGRADED, "")
    assert found.what == "has 2 of 3 replicas, on nodes 1, 2"
    assert "node 3 may come back" in found.doing


def test_a_log_stream_with_nobody_to_take_the_place() -> None:
    found = Scene(members=(1, 2), nodes=(1, 2, 3), silent={3: 9.0}).finding("stream-short")
    assert found.what.endswith("; only nodes 1, 2 could have one")
    assert "varlog node add" in found.person


def test_a_single_copy_is_urgent() -> None:
    found = Scene(members=(1,)).finding("stream-short")
    assert found.severity == Severity.URGENT
    assert "no other copy" in found.what


@pytest.mark.parametrize(("after", "told"), [(5.0, False), (12.0, True)])
def test_M3_a_log_stream_in_the_making_for_long(after: float, told: bool) -> None:
    scene = Scene(StreamStatus.CREATING, 0, members=())
    assert [one.kind for one in scene.findings(after)] == ["stream-creating"] * told


def test_M3_what_is_left_of_one_that_was_given_up() -> None:
    found = Scene(StreamStatus.ABORTED, 0, members=(), replicas={2: {"epoch": Epoch(0)}}, topics=0).findings()
    assert [one.kind for one in found] == ["stream-given-up"]
    assert "node 2 is to remove what was made of it" in found[0].doing


# Replicas


def test_rule15_a_corrupt_replica_is_repaired_by_the_manager() -> None:
    corrupt = {"healthy": False, "fault": errors.Corrupt.code}
    found = Scene(members=(1, 2), replicas={3: corrupt}).finding("replica-corrupt")
    assert (found.severity, found.person) == (Severity.DEGRADED, "")
    assert found.what == "the replica on node 3 is corrupt"
    assert "it is removed, to be copied anew" in found.doing


def test_rule15_the_last_replica_is_not_to_be_deleted_though_it_is_corrupt() -> None:
    corrupt = {"healthy": False, "fault": errors.Corrupt.code}
    found = Scene(replicas={1: corrupt}, silent={2: 3.0, 3: 3.0}).finding("replica-corrupt")
    assert found.severity == Severity.URGENT
    assert found.person.startswith("do not delete it")


@pytest.mark.parametrize(
    ("fault", "person"), [(errors.DiskFull, "free space in /data"), (errors.Poisoned, "look at the disk")]
)
def test_M8_a_failed_replica(fault: type[errors.VarlogError], person: str) -> None:
    found = Scene(members=(1, 2), replicas={3: {"healthy": False, "fault": fault.code}}).finding("replica-failed")
    assert fault.__name__ in found.what
    assert found.person.startswith(person)


def test_M9_a_copy_tells_how_far_it_is_and_when_it_does_not_get_on() -> None:
    copying = {
        "state": ReplicaState.SEALING, "committed_end": LLSN(21), "source": StorageNodeID(1), "source_end": LLSN(51)
    }  # fmt: skip
    scene = Scene(members=(1, 2), replicas={3: copying})
    found = scene.finding("replica-copying")
    assert found.severity == Severity.NOTE
    assert found.what == "node 3 copies the log from node 1: 20 of 50 entries (40 %)"
    stuck = scene.finding("replica-stuck", after=40.0)
    assert (stuck.severity, stuck.seconds) == (Severity.DEGRADED, 40.0)


def test_rule7_a_replica_that_needs_a_copy() -> None:
    lacking = {"state": ReplicaState.SEALING, "committed_end": LLSN(21), "needs_sync": True}
    found = Scene(StreamStatus.SEALED, 5, replicas={3: lacking}).finding("replica-behind")
    assert "node 3 lacks" in found.what


def test_a_member_without_a_replica() -> None:
    assert Scene(replicas={3: None}).finding("replica-missing").what == "node 3 of its set has no replica of it"


def test_M7_a_backup_that_was_too_slow() -> None:
    scene = Scene(StreamStatus.SEALED, 5, replicas={1: {"suspect": StorageNodeID(2)}})
    memory = Memory()
    memory.observe(Scene().world(100.0))
    memory.observe(world := scene.world(200.0))
    found = {one.kind: one for one in diagnose(world, memory)}["replica-suspect"]
    assert found.what.startswith("node 2 ")
    assert "is left out for 10 s" in found.what


def test_findings_come_worst_first_and_no_more_than_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(members=(1,), draining=frozenset({4}), silent={3: 4.0}, topics=2, volume=VolumeInfo("/data", 0, 0))
    found = scene.findings()
    order = [Severity(one.severity) for one in found]
    assert order == sorted(order, key=list(Severity).index)
    assert set(order) == set(Severity)
    monkeypatch.setattr(limits, "MAX_FINDINGS", 3)
    few = scene.findings()
    assert few[:3] == found[:3]
    assert few[3].what == f"{len(found) - 3} more findings are left out"
