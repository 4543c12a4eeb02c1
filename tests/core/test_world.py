"""What the manager knows: who is dead, whose answer counts, and since when things are as they are."""

from __future__ import annotations

import pytest

from tests.core.sketch import metadata, stream
from varlog.core.messages import Info, Metadata, NodeInfo, ReplicaInfo
from varlog.core.world import Memory, NodeView, Sight, World, sights
from varlog.types import LLSN, Epoch, LogStreamID, ReplicaState, StorageNodeID, StreamStatus

ONE, TWO, THREE = map(StorageNodeID, (1, 2, 3))
LSID = LogStreamID(1)


def info(snid: StorageNodeID, *replicas: ReplicaInfo, boot: int = 1, unanswered: float = 0.0) -> Info:
    return Info(1, snid, boot, replicas, unanswered=unanswered)


def replica(end: int = 10, *, epoch: int = 2, source: int = 0, suspect: int = 0) -> ReplicaInfo:
    return ReplicaInfo(
        LSID, Epoch(epoch), ReplicaState.RUNNING, LLSN(end), LLSN(end), True, source=StorageNodeID(source),
        suspect=StorageNodeID(suspect),
    )  # fmt: skip


def cluster(status: StreamStatus = StreamStatus.RUNNING, *, epoch: int = 2, llsn_end: int = 10) -> Metadata:
    return metadata(1, stream(1, status, epoch=epoch, replicas=(1, 2), llsn_end=llsn_end))


@pytest.mark.parametrize(
    ("silent", "is_connected", "is_dead"),
    [(0.4, False, False), (0.5, False, True), (0.9, True, False), (1.0, True, True)],
)
def test_a_node_is_dead_when_it_is_silent_and_sooner_if_its_connection_is_closed(
    silent: float, is_connected: bool, is_dead: bool
) -> None:
    view = NodeView(ONE, info(ONE), True, silent, is_connected)
    assert view.is_dead is is_dead
    assert (view.answer is None) is is_dead


def test_an_answer_from_before_the_metadata_is_not_held_against_it() -> None:
    world = World(
        0.0, cluster(), [NodeView(ONE, info(ONE, replica()), False), NodeView(TWO, info(TWO, replica()), True)]
    )
    assert not world.answers(ONE)
    assert world.replica(ONE, LSID) is None
    assert world.replicas(LSID).keys() == {TWO}
    assert not world.is_dead(ONE)


def test_B11_only_a_node_that_was_given_a_secret_has_to_have_it() -> None:
    unproven = Info(1, ONE, 1, (), is_identified=False)
    for generation, is_identified in ((0, True), (1, False)):
        nodes = Metadata(1, cluster().version, (NodeInfo(ONE, generation=generation),), (), ())
        assert World(0.0, nodes, [NodeView(ONE, unproven, True)]).is_identified(ONE) is is_identified


def test_what_lasts_is_dated_once_and_what_ends_is_forgotten() -> None:
    memory = Memory()
    for now, silent in ((10.0, 0.0), (11.0, 1.0), (14.0, 4.0)):
        memory.observe(World(now, cluster(), [NodeView(ONE, info(ONE), True, silent)]))
    assert memory.seconds(14.0, Sight.SILENT, ONE) == 3.0
    assert memory.has_lasted(3.0, 14.0, Sight.SILENT, ONE)
    assert not memory.has_lasted(3.1, 14.0, Sight.SILENT, ONE)
    memory.observe(World(15.0, cluster(), [NodeView(ONE, info(ONE), True)]))
    assert memory.seconds(15.0, Sight.SILENT, ONE) is None


def test_every_epoch_is_dated_anew() -> None:
    memory = Memory()
    memory.observe(World(1.0, cluster(StreamStatus.SEALED, epoch=3), []))
    memory.observe(World(9.0, cluster(StreamStatus.SEALED, epoch=5), []))
    assert memory.seconds(9.0, Sight.SEALED, LSID, 5) == 0.0
    assert memory.seconds(9.0, Sight.SEALED, LSID, 3) is None


def test_a_log_stream_stalls_when_what_all_have_stored_is_not_committed() -> None:
    views = [NodeView(snid, info(snid, replica(12)), True) for snid in (ONE, TWO)]
    found = set(sights(World(0.0, cluster(), views)))
    assert (Sight.STALLED, LSID, 10) in found
    views[1] = NodeView(TWO, info(TWO, replica(10)), True)
    found = set(sights(World(0.0, cluster(), views)))
    assert (Sight.STALLED, LSID, 10) not in found
    assert (Sight.STORES_NOTHING, LSID, TWO, 10) in found


def test_nobody_is_cut_off_from_a_metadata_repository_that_the_manager_does_not_hear_either() -> None:
    views = [NodeView(ONE, info(ONE, unanswered=9.0), True)]
    assert (Sight.CUT_OFF, ONE) in set(sights(World(0.0, cluster(), views, metadata_silent=0.5)))
    assert (Sight.CUT_OFF, ONE) not in set(sights(World(0.0, cluster(), views, metadata_silent=1.5)))


def test_a_replica_is_only_blamed_for_not_getting_on_once_it_copies() -> None:
    memory = Memory()

    def look(now: float, source: int) -> None:
        views = [NodeView(snid, info(snid, replica()), True) for snid in (ONE, TWO)]
        outsider = NodeView(THREE, info(THREE, replica(4, source=source)), True)
        nodes = metadata(1, stream(1, replicas=(1, 2), llsn_end=10), stream(2, replicas=(3,)))
        memory.observe(World(now, nodes, [*views, outsider]))

    look(0.0, source=0)
    assert memory.seconds(0.0, Sight.BEHIND, LSID, THREE, 4) is None
    look(1.0, source=1)
    look(7.0, source=0)
    assert memory.seconds(7.0, Sight.BEHIND, LSID, THREE, 4) == 6.0


def test_a_backup_is_suspected_once_for_each_time_its_primary_missed_it() -> None:
    memory = Memory()
    views = {snid: NodeView(snid, info(snid, replica()), True) for snid in (ONE, TWO)}
    memory.observe(World(0.0, cluster(), views.values()))
    views[ONE] = NodeView(ONE, info(ONE, replica(suspect=2)), True)
    for now in (20.0, 21.0, 29.0, 31.0):
        memory.observe(World(now, cluster(), views.values()))
    suspicion = memory.suspicion(LSID, TWO)
    assert suspicion is not None
    assert (suspicion.times, suspicion.until) == (1, 30.0)
    assert memory.is_suspect(29.0, LSID, TWO)
    assert not memory.is_suspect(30.0, LSID, TWO)
    views[ONE] = NodeView(ONE, info(ONE, replica(epoch=6, suspect=2)), True)
    memory.observe(World(40.0, cluster(epoch=6), views.values()))
    suspicion = memory.suspicion(LSID, TWO)
    assert suspicion is not None
    assert (suspicion.times, suspicion.until) == (2, 60.0)


def test_what_came_up_while_the_metadata_repository_was_away_is_held_against_nobody() -> None:
    memory = Memory()
    hangs = info(TWO, replica())
    told = metadata(1, stream(1, replicas=(1, 2), llsn_end=10), stream(2, StreamStatus.UNSEALING, replicas=(1, 2)))

    def look(now: float, metadata_silent: float, silent: float) -> None:
        views = [NodeView(ONE, info(ONE, unanswered=silent), True), NodeView(TWO, hangs, True, silent)]
        memory.observe(World(now, told, views, metadata_silent=metadata_silent))

    for now in (0.0, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0):
        look(now, metadata_silent=now, silent=now)
    look(5.5, metadata_silent=0.0, silent=5.5)
    assert all(memory.suspicion(LogStreamID(lsid), snid) is None for lsid in (1, 2) for snid in (ONE, TWO))
    assert memory.seconds(5.5, Sight.CUT_OFF, ONE) is None, "it may not have found it yet"
    assert memory.seconds(5.5, Sight.UNSEALING, 2, 2) == 0.5, "nobody was told to run"
    look(6.0, metadata_silent=0.0, silent=6.0)
    suspicion = memory.suspicion(LSID, TWO)
    assert suspicion is not None, "it is silent still"
    assert suspicion.why == "stopped answering"
    look(7.0, metadata_silent=0.0, silent=7.0)
    assert memory.seconds(7.0, Sight.CUT_OFF, ONE) == 0.0


def test_what_is_gone_takes_no_memory() -> None:
    memory = Memory()
    views = {snid: NodeView(snid, info(snid, replica()), True) for snid in (ONE, TWO)}
    memory.observe(World(0.0, cluster(), views.values()))
    views[ONE] = NodeView(ONE, info(ONE, replica(suspect=2)), True)
    memory.observe(World(20.0, cluster(), views.values()))
    memory.observe(World(30.0, Metadata(1, cluster().version, (), (), ()), []))
    assert vars(memory) == vars(Memory())
