"""Sets that change, as a manager changes them: spares, drains, moves, what operators hold or declare lost. On paper:
see `tests.core.paper`."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.core.paper import ONE, Paper, Replica
from tests.core.steprules import SEALED, SEALING
from tests.core.test_manager_failures import running
from varlog import errors, limits
from varlog.core.diagnosing import diagnose
from varlog.core.messages import (
    HoldStream,
    LoseStream,
    PlanStream,
    RemoveLogStream,
    SealStream,
    SetDraining,
    UnregisterNode,
    UnsealStream,
)
from varlog.core.resuming import SEAL_PATIENCE
from varlog.core.steps import COPIES_AT_ONCE
from varlog.core.world import STARTED_LATELY, World
from varlog.types import GLSN, LLSN, Epoch, LogStreamID, StorageNodeID, StreamStatus

NOBODY = StorageNodeID(0)


def node(snid: int) -> StorageNodeID:
    return StorageNodeID(snid)


def move(paper: Paper, joining: int = 0, leaving: int = 0) -> None:
    assert paper.ask(PlanStream(0, ONE, node(joining), node(leaving))), paper.refused


# Spares


def test_a_spare_takes_the_place_of_a_node_that_stays_away() -> None:
    paper = running(4)
    paper.nodes[node(2)].is_up = False
    paper.pass_time(29)
    assert paper.running == [1, 3]
    assert "has 2 of 3 replicas; node 2 may come back; otherwise a spare is taken in" in paper.says
    paper.pass_time(4)
    assert paper.running == [1, 3, 4]
    paper.nodes[node(2)].restart()
    paper.pass_time(10)
    assert paper.running == [1, 3, 4], "who comes back too late is a spare from then on"


def test_only_who_is_away_may_come_back_and_who_is_left_out_for_a_while_be_taken_in_again() -> None:
    paper = running(5)
    paper.pass_time(STARTED_LATELY)
    primary = paper.replica(paper.stream().primary)
    suspect = next(snid for snid in (1, 2, 3) if snid != paper.stream().primary)
    primary.state, primary.suspect = SEALING, node(suspect)
    paper.nodes[node(5)].is_up = False
    paper.pass_time(3)
    assert f"; node 5 may come back, node {suspect} may be taken in again; otherwise a spare is taken in" in paper.says


@pytest.mark.parametrize("away", [1, 2], ids=["a backup", "the primary"])
def test_a_spare_takes_the_place_also_where_nobody_appends_and_too_few_are_left(away: int) -> None:
    """The primary misses nobody then, and does not seal itself."""
    paper = running(3, factor=2)
    assert paper.stream().primary == 2
    paper.nodes[node(away)].is_up = False
    paper.pass_time(28)
    assert paper.running == ([1, 2] if away == 1 else [])
    assert paper.pass_time(10, lambda: len(paper.running) == 2 and away not in paper.running) < 8
    assert paper.append()


def test_a_log_stream_runs_on_as_it_is_where_nobody_could_take_a_replica() -> None:
    paper = running(2, factor=2)
    paper.nodes[node(1)].is_up = False
    paper.pass_time(100)
    assert paper.running == [1, 2], "it can be read, and goes on as soon as the other one is there"


def test_who_has_an_old_replica_goes_before_a_spare() -> None:
    paper = running(4, entries=5000)
    paper.nodes[node(2)].is_up = False
    paper.pass_time(20)
    paper.nodes[node(2)].restart()
    paper.pass_time(10)
    assert paper.running == [1, 2, 3]
    assert not paper.nodes[node(4)].replicas


def test_a_spare_is_taken_at_once_if_nobody_could_come_back() -> None:
    """Nobody is away: the replica was lost with its disk, and who lost it is not there again yet."""
    paper = running(4)
    paper.nodes[node(2)].lose_disk()
    paper.pass_time(3)
    assert paper.running == [1, 3, 4]


def test_a_node_that_makes_no_replica_is_asked_rarely_and_a_spare_takes_its_place() -> None:
    paper = running(4)
    paper.nodes[node(2)].refusal = "NotWritable: it cannot be made"
    del paper.nodes[node(2)].replicas[ONE]
    paper.pass_time(20)
    assert paper.running == [1, 3]
    assert 1 <= paper.asked[node(2)] <= 3
    assert "node 2 made no replica of it (NotWritable: it cannot be made)" in " / ".join(told(paper))
    paper.pass_time(20)
    assert paper.running == [1, 3, 4]
    assert paper.asked[node(2)] <= 4


def test_a_node_that_made_no_replica_is_tried_again_where_there_is_no_other() -> None:
    paper = running(3)
    paper.nodes[node(2)].refusal = "DiskFull: it cannot be made"
    del paper.nodes[node(2)].replicas[ONE]
    paper.pass_time(35)
    assert paper.running == [1, 3]
    assert "node 2 made no replica of it (DiskFull: it cannot be made), and is tried again in" in paper.says
    paper.nodes[node(2)].refusal = ""
    paper.pass_time(60)
    assert paper.running == [1, 2, 3]


def test_a_set_that_is_too_small_takes_a_spare_at_once_for_a_node_that_makes_no_replica() -> None:
    """Nothing is appended until then."""
    paper = running(3, factor=2)
    paper.nodes[node(2)].refusal = "Poisoned: it cannot be made"
    del paper.nodes[node(2)].replicas[ONE]
    assert paper.pass_time(60, lambda: paper.running == [1, 3]) < 5


def told(paper: Paper) -> list[str]:
    """What people are told of log stream 1."""
    paper.manager.look()
    paper.manager.steps()
    return [found.what for found in diagnose(paper.manager.world, paper.manager.memory) if found.subject[-1] == "1"]


def test_without_any_other_node_it_goes_on_with_fewer_and_says_so() -> None:
    paper = running(3)
    paper.nodes[node(2)].is_up = False
    paper.pass_time(60)
    assert paper.running == [1, 3]
    assert paper.says == "log stream 1: has 2 of 3 replicas; there is no other node that could take one"


def test_the_least_loaded_spare_is_taken_but_none_that_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    paper = running(6, streams=2)
    monkeypatch.setattr(limits, "MAX_LOG_STREAMS_PER_NODE", 2)
    for lsid in (8, 9):
        paper.nodes[node(4)].replicas[LogStreamID(lsid)] = Replica(LogStreamID(lsid))
    assert paper.ask(SetDraining(0, node(5), True))
    assert paper.ask(SetDraining(0, node(1), True))
    paper.pass_time(5)
    assert {stream.replicas for stream in paper.state.streams.values()} == {(2, 3, 6)}


def test_only_a_few_copies_are_made_at_a_time() -> None:
    paper = running(6, streams=8, entries=1000)
    for other in paper.nodes.values():
        other.rate = 500
    assert paper.ask(SetDraining(0, node(1), True))
    for _ in range(150):
        paper.pass_time(0.1)
        copies = [(n, r.source) for n, host in paper.nodes.items() for r in host.replicas.values() if r.source]
        for copying in (Counter(target for target, _ in copies), Counter(source for _, source in copies)):
            assert all(count <= COPIES_AT_ONCE for count in copying.values())
    assert not any(1 in stream.replicas for stream in paper.state.streams.values())
    assert any("will copy it when other copies are done" in told or "when other copies" in told for told in paper.told)


def test_another_source_is_tried_if_one_gives_nothing() -> None:
    paper = running(4, entries=3000)
    target = paper.nodes[node(4)]
    target.rate = 0
    move(paper, joining=4, leaving=3)
    sources = set()
    for _ in range(200):
        paper.pass_time(0.1)
        replica = paper.replica(4)
        sources.add(int(replica.source))
        replica.source = NOBODY  # as after two seconds without an answer
    assert sources == {1, 2, 3}
    target.rate = 10_000
    paper.pass_time(60)
    assert paper.running == [1, 2, 4]


def test_a_copy_that_does_not_get_on_is_left_alone_for_a_while() -> None:
    paper = running(4, entries=3000)
    paper.nodes[node(3)].is_up = False
    paper.nodes[node(4)].rate = 0
    paper.pass_time(62)
    suspicion = paper.manager.memory.suspicion(ONE, node(4))
    assert suspicion is not None
    assert suspicion.why == "copied nothing for 30 s"
    assert "may come back" in paper.says or "node 4 copied nothing for 30 s, and is tried again in" in paper.says
    paper.nodes[node(4)].rate = 1000
    paper.pass_time(30)
    assert paper.running == [1, 2, 4]


# Drain


def test_a_drained_node_is_replaced_by_a_spare_without_ever_having_fewer_replicas() -> None:
    paper = running(4, entries=3000)
    assert paper.ask(SetDraining(0, node(2), True))
    paper.pass_time(10)
    assert paper.sets == [[1, 2, 3], [1, 3, 4]]
    assert paper.stream().epoch == 4, "one seal"
    assert "sealing at GLSN 3000 so that node 4 can join; it lacks" in " / ".join(paper.told)
    assert any("because node 2 is to leave; going on with nodes 1, 3, 4; node 4 joined" in told for told in paper.told)
    assert paper.ask(UnregisterNode(0, node(2)))
    assert ONE in paper.nodes[node(2)].replicas, "its data stays where it is"


def test_a_drained_node_leaves_without_a_spare_if_enough_are_left() -> None:
    paper = running(3)
    assert paper.ask(SetDraining(0, node(2), True))
    paper.pass_time(2)
    assert paper.running == [1, 3]
    assert any("so that node 2 can leave; there is no other node that could take one" in told for told in paper.told)
    paper.pass_time(60)
    assert paper.running == [1, 3], "and it is not asked back"
    assert paper.ask(SetDraining(0, node(2), False))
    paper.pass_time(3)
    assert paper.running == [1, 2, 3]


def test_a_drained_node_waits_for_a_spare_that_may_come_back() -> None:
    paper = running(4)
    paper.nodes[node(4)].is_up = False
    paper.pass_time(2)
    assert paper.ask(SetDraining(0, node(2), True))
    paper.pass_time(20)
    assert paper.running == [1, 2, 3]
    assert "node 2 cannot leave yet; node 4 may come back; otherwise a spare is taken in 10 s" in paper.says
    paper.nodes[node(4)].restart()
    paper.pass_time(5)
    assert paper.sets == [[1, 2, 3], [1, 3, 4]], "it never had fewer replicas"


def test_a_drained_node_does_not_wait_for_ever_for_one_that_stays_away() -> None:
    paper = running(4)
    paper.nodes[node(4)].is_up = False
    paper.pass_time(2)
    assert paper.ask(SetDraining(0, node(2), True))
    assert 29 < paper.pass_time(60, lambda: paper.running == [1, 3]) < 32


def test_a_node_does_not_leave_below_min_replicas_and_that_is_said() -> None:
    paper = running(3)
    paper.nodes[node(3)].is_up = False
    paper.pass_time(2)
    assert paper.ask(SetDraining(0, node(2), True))
    paper.pass_time(40)
    assert paper.running == [1, 2]
    assert paper.says == (
        "log stream 1: node 2 cannot leave: it needs 2 replicas, and there is no other node that could take one"
    )
    paper.nodes[node(3)].restart()
    paper.pass_time(3)
    assert paper.running == [1, 3], "when there is somebody else it goes"


def test_a_drained_node_that_dies_is_simply_left_out() -> None:
    paper = running(4, entries=100_000)
    assert paper.ask(SetDraining(0, node(2), True))
    paper.pass_time(1)
    paper.nodes[node(2)].is_up = False
    assert paper.pass_time(5, paper.append) <= 0.7
    assert paper.running == [1, 3]
    paper.pass_time(120)
    assert paper.running == [1, 3, 4]


# Moves


def test_a_replica_moves_with_one_seal() -> None:
    paper = running(4, entries=3000)
    move(paper, joining=4, leaving=1)
    paper.pass_time(10)
    assert paper.sets == [[1, 2, 3], [2, 3, 4]]
    assert (paper.stream().joining, paper.stream().leaving) == (NOBODY, NOBODY)
    assert paper.stream().epoch == 4


def test_a_set_grows_by_the_node_an_operator_names() -> None:
    paper = running(5, factor=4, least=2)
    paper.nodes[node(4)].is_up = False
    paper.pass_time(2)
    move(paper, joining=5)
    paper.pass_time(5)
    assert paper.running == [1, 2, 3, 5]


def test_a_node_that_is_to_leave_goes_when_another_has_come_and_is_not_asked_back() -> None:
    paper = running(4, entries=2000)
    move(paper, leaving=2)
    paper.pass_time(10)
    assert paper.running == [1, 3, 4]
    paper = running(3)
    move(paper, leaving=2)
    paper.pass_time(60)
    assert paper.running == [1, 3]


def test_a_move_to_a_node_that_is_away_waits_and_says_so() -> None:
    paper = running(4)
    paper.nodes[node(4)].is_up = False
    move(paper, joining=4, leaving=1)
    paper.pass_time(40)
    assert paper.running == [1, 2, 3]
    assert "node 1 cannot leave yet; node 4, which is to join, has not answered for 40" in paper.says
    paper.nodes[node(4)].restart()
    paper.pass_time(5)
    assert paper.running == [2, 3, 4]


def test_a_move_goes_on_when_another_node_dies_in_the_middle() -> None:
    paper = running(5, entries=6000)
    move(paper, joining=4, leaving=1)
    paper.pass_time(2)
    paper.nodes[node(2)].is_up = False
    assert paper.pass_time(5, paper.append) <= 0.7
    assert paper.running == [1, 3], "who is to leave stays until the other one is there"
    paper.pass_time(40)
    assert paper.running == [3, 4, 5]
    assert all(len(replicas) == 3 for replicas in paper.sets[2:]), "nor does it leave a gap then"


# Outside of the set


def test_a_corrupt_replica_outside_of_the_set_is_made_anew_when_it_is_wanted() -> None:
    paper = running(4, entries=500)
    move(paper, joining=4, leaving=1)
    paper.pass_time(10)
    old = paper.replica(1)
    old.fault = errors.Corrupt.code
    paper.pass_time(10)
    assert paper.replica(1) is old, "nobody needs it"
    move(paper, joining=1, leaving=2)
    paper.pass_time(10)
    assert paper.running == [1, 3, 4]
    assert paper.replica(1) is not old


def test_a_complete_replica_outside_of_the_set_takes_the_place_of_a_dead_one_at_once() -> None:
    paper = running(4, entries=500)
    move(paper, joining=4, leaving=1)
    paper.pass_time(10)
    paper.nodes[node(3)].is_up = False
    paper.pass_time(2)
    assert paper.running == [1, 2, 4]


def test_a_replica_that_is_made_anew_for_a_moment_is_not_given_up_for_a_spare() -> None:
    """A copy that has to start at another base is away while it does (rule 14)."""
    paper = running(5, entries=5000)
    paper.nodes[node(3)].is_up = False
    paper.pass_time(31)
    (learner,) = [n for n in (4, 5) if paper.nodes[node(n)].replicas]
    paper.pass_time(1)
    gone = paper.nodes[node(learner)].replicas.pop(ONE)
    paper.pass_time(0.1)
    paper.nodes[node(learner)].replicas[ONE] = gone
    paper.pass_time(20)
    assert paper.running == [1, 2, learner]
    assert not paper.nodes[node(9 - learner)].replicas


# Left over


def test_what_was_moved_away_from_is_removed_when_the_set_has_long_been_whole() -> None:
    paper = running(4, entries=500)
    move(paper, joining=4, leaving=1)
    paper.pass_time(25)
    assert ONE in paper.nodes[node(1)].replicas, "it would be the first to be asked back"
    paper.pass_time(10)
    assert ONE not in paper.nodes[node(1)].replicas
    assert "log stream 1: node 1 is to remove its replica, as nodes 2, 3, 4 have everything" in paper.told
    move(paper, joining=1, leaving=2)
    paper.pass_time(10)
    assert paper.running == [1, 3, 4]


def test_who_comes_back_too_late_has_its_replica_removed() -> None:
    paper = running(4)
    paper.nodes[node(2)].is_up = False
    paper.pass_time(100)
    assert paper.running == [1, 3, 4]
    paper.nodes[node(2)].restart()
    paper.pass_time(1)
    assert ONE not in paper.nodes[node(2)].replicas


def test_what_is_left_over_stays_while_the_set_is_not_whole() -> None:
    paper = running(4, entries=500)
    move(paper, joining=4, leaving=1)
    paper.pass_time(5)
    assert paper.ask(SetDraining(0, node(1), True))
    paper.nodes[node(3)].is_up = False
    paper.pass_time(200)
    assert paper.running == [2, 4]
    assert ONE in paper.nodes[node(1)].replicas


def test_what_this_manager_has_not_seen_leave_is_left() -> None:
    """It may be of a cluster whose metadata was lost, and all that is left of it."""
    paper = running(4)
    stranger = paper.nodes[node(4)].replicas[ONE] = Replica(ONE)
    stranger.epoch = Epoch(2)
    paper.pass_time(100)
    assert paper.replica(4) is stranger


def test_a_late_request_does_not_remove_a_replica_that_is_back_in_the_set() -> None:
    paper = running(4, entries=500)
    move(paper, joining=4, leaving=1)
    paper.pass_time(10)
    paper.now += 30  # the manager was stopped before it could send what it decides now
    for anyone in paper.nodes.values():
        anyone.heard = paper.now
    paper.manager.look()
    (late,) = [step for step in paper.manager.steps() if isinstance(step.message, RemoveLogStream)]
    paper.nodes[node(3)].is_up = False
    assert paper.pass_time(10, lambda: paper.running == [1, 2, 4]) < 3
    paper.deliver(late)
    assert paper.append()


# What operators hold, and what is lost


def test_a_log_stream_that_is_held_stays_sealed_until_it_is_not() -> None:
    paper = running()
    assert paper.ask(HoldStream(0, ONE, True))
    paper.pass_time(10)
    assert paper.running == []
    assert [paper.replica(snid).state for snid in (1, 2, 3)] == [SEALED] * 3
    paper.nodes[node(2)].restart()
    paper.pass_time(2)
    assert paper.replica(2).state is SEALED
    assert paper.ask(HoldStream(0, ONE, False))
    paper.pass_time(1)
    assert paper.running == [1, 2, 3]
    assert not paper.refused


def test_a_log_stream_that_was_declared_lost_stays_sealed_and_asks_for_nobody() -> None:
    paper = running(4)
    for snid in (1, 2):
        paper.nodes[node(snid)].is_up = False
    paper.replica(3).stored_end = paper.replica(3).committed_end = LLSN(51)
    assert paper.ask(SealStream(0, ONE, paper.stream().epoch))
    paper.pass_time(1)
    assert paper.ask(LoseStream(0, ONE, paper.stream().epoch, GLSN(51), (node(3),))), paper.refused
    paper.pass_time(60)
    assert paper.stream().status is StreamStatus.SEALED
    assert paper.replica(3).state is SEALING
    assert not paper.nodes[node(4)].replicas


def test_a_joiner_whose_answer_comes_last_is_waited_for() -> None:
    """The members of the set have answered a moment before it; a set without it would have to be changed at once."""
    paper = running(4)
    joiner = paper.nodes[node(4)].replicas[ONE] = Replica(ONE)
    joiner.committed_end = joiner.stored_end = paper.stream().llsn_end
    move(paper, joining=4, leaving=1)
    assert paper.ask(SealStream(0, ONE, paper.stream().epoch))
    paper.manager.act()
    assert {paper.replica(snid).state for snid in (1, 2, 3, 4)} == {SEALED}
    whole = paper.world()
    views = [view._replace(is_current=view.snid != 4) for view in whole.views.values()]
    paper.manager.world = World(whole.now, whole.metadata, views)
    assert not [step for step in paper.manager.steps() if isinstance(step.message, UnsealStream)]
    paper.manager.world = World(whole.now + SEAL_PATIENCE, whole.metadata, views)
    (unseal,) = [step.message for step in paper.manager.steps() if isinstance(step.message, UnsealStream)]
    assert isinstance(unseal, UnsealStream)
    assert unseal.replicas == (1, 2, 3), "but not for long"
    paper.pass_time(1)
    assert paper.running == [2, 3, 4]
