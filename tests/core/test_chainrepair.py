"""Chains, as the manager keeps them: members that fail are left out, others join at the tail. On paper: see
`tests.core.chainpaper`."""

from __future__ import annotations

import pytest

from tests.core.chainpaper import ONE, ChainPaper
from varlog import errors, limits
from varlog.core.chainrepair import AHEAD_PATIENCE, PROJECT_AFTER
from varlog.core.messages import PlanStream, SetDraining
from varlog.core.reconfiguring import Change
from varlog.core.steps import COLLECT_AFTER, REPLACE_AFTER
from varlog.types import Epoch, LogStreamID, StorageNodeID


def plan(paper: ChainPaper, joining: int = 0, leaving: int = 0) -> None:
    assert paper.ask(PlanStream(0, ONE, StorageNodeID(joining), StorageNodeID(leaving))).code == 0


def drain(paper: ChainPaper, snid: int) -> None:
    assert paper.ask(SetDraining(0, StorageNodeID(snid), True)).code == 0


# Members that fail


@pytest.mark.parametrize("gone", [1, 2, 3], ids=["head", "middle", "tail"])
def test_S6_a_chain_goes_on_without_a_member_that_is_gone_and_takes_it_back_at_its_tail(gone: int) -> None:
    paper = ChainPaper()
    paper.pass_time(1)
    assert paper.append(5000)
    paper.node(gone).is_up = False
    paper.pass_time(0.9)
    assert paper.projection.epoch == 1, "it may be about to start again"
    paper.pass_time(0.4)
    others = [snid for snid in (1, 2, 3) if snid != gone]
    assert paper.chain() == others
    assert any(
        told.startswith(f"log stream 1: node {gone} has not answered for 1.")
        and told.endswith(f"s; going on with nodes {others[0]}, {others[1]} in epoch 2")
        for told in paper.told
    )
    assert paper.append(500)
    assert f"has 2 of 3 replicas; node {gone} may come back; otherwise a spare is taken in" in paper.says
    paper.node(gone).restart()
    assert paper.pass_time(20, lambda: len(paper.chain()) == 3) < 3
    assert paper.chain() == [*others, gone]
    assert f"node {gone} follows node {others[1]}, the tail" in " / ".join(paper.told)
    assert (
        f"log stream 1: node {gone} has caught up; it joins nodes {others[0]}, {others[1]} at the tail in epoch 3"
        in paper.told
    )
    assert paper.append()


def test_S7_what_a_client_has_done_already_is_not_done_again() -> None:
    paper = ChainPaper()
    paper.node(2).is_up = False
    paper.reconfigure(Change(Epoch(1), suspects=frozenset({StorageNodeID(2)})))
    paper.pass_time(5)
    assert (paper.projection.epoch, paper.chain()) == (2, [1, 3])


def test_one_reconfiguration_is_for_all_log_streams_of_a_topic() -> None:
    paper = ChainPaper(streams=5)
    paper.node(3).is_up = False
    paper.pass_time(2)
    assert paper.projection.epoch == 2
    assert all(len(paper.chain(lsid)) == 2 for lsid in range(1, 6))
    assert len([told for told in paper.told if "going on with nodes 1, 2 in epoch 2" in told]) == 5
    paper.node(3).restart()
    paper.pass_time(5)
    assert all(paper.chain(lsid) == [1, 2, 3] for lsid in range(1, 6))
    assert paper.projection.epoch == 3, "all of them join at once"


def test_a_chain_goes_on_with_the_last_of_three_and_says_that_nothing_protects_it() -> None:
    paper = ChainPaper()
    paper.append(100)
    for snid in (1, 3):
        paper.node(snid).is_up = False
    paper.pass_time(2)
    assert paper.chain() == [2]
    assert any(told.endswith("going on with node 2 in epoch 2, the only replica then") for told in paper.told)
    assert "log stream 1: one replica is left (node 2); nothing protects it until another is added" in paper.says
    assert paper.append(50)
    paper.node(1).restart()
    paper.pass_time(3)
    paper.node(3).restart()
    paper.pass_time(3)
    assert paper.chain() == [2, 1, 3]


def test_nothing_is_sealed_where_a_chain_has_nobody_to_go_on_with() -> None:
    """What there is of the topic can still be read then."""
    paper = ChainPaper(2, factor=1, streams=1)
    paper.add_stream((StorageNodeID(2),))
    paper.pass_time(PROJECT_AFTER + 1)
    assert [paper.chain(lsid) for lsid in (1, 2)] == [[1], [2]]
    paper.sealed.clear()
    paper.node(1).is_up = False
    paper.pass_time(60)
    assert not paper.sealed
    assert "log stream 1: has no replica that could go on: node 1 has not answered for" in paper.says
    assert "start one of its nodes, with its data" in paper.says
    paper.node(1).restart()
    paper.pass_time(1)
    assert paper.append()


def test_a_chain_does_not_go_on_with_fewer_members_than_its_topic_wants() -> None:
    paper = ChainPaper(least=2)
    for snid in (1, 2):
        paper.node(snid).is_up = False
    paper.pass_time(5)
    assert paper.chain() == [1, 2, 3]
    assert "log stream 1: cannot go on with node 3, as it needs 2 replicas: node 1 has not answered" in paper.says


def test_a_node_that_the_metadata_repository_does_not_answer_is_left_out() -> None:
    paper = ChainPaper()
    paper.node(1).unanswered = 4.0
    paper.pass_time(2)
    assert paper.chain() == [2, 3], "its lease runs out"
    paper.node(1).unanswered = 0.0
    paper.pass_time(3)
    assert paper.chain() == [2, 3, 1]


def test_a_replica_that_is_corrupt_is_left_out_and_made_anew() -> None:
    paper = ChainPaper()
    paper.append(1000)
    paper.replica(2).fault = errors.Corrupt.code
    paper.pass_time(5)
    assert paper.chain() == [1, 3, 2]
    told = " / ".join(paper.told)
    assert "log stream 1: the replica on node 2 is corrupt; going on with nodes 1, 3 in epoch 2" in told
    assert "the replica on node 2 is corrupt; it is removed, to be copied anew" in told
    assert "log stream 1: node 2 is to have a replica, and copies it" in told


def test_a_replica_that_failed_to_write_is_left_out_and_opened_anew() -> None:
    paper = ChainPaper()
    paper.replica(3).fault = errors.Poisoned.code
    paper.pass_time(5)
    assert paper.chain() == [1, 2, 3]
    assert paper.projection.epoch == 3
    assert "the replica on node 3 has failed (Poisoned); it is opened anew" in " / ".join(paper.told)


def test_the_last_replica_of_a_chain_is_opened_anew_where_it_is() -> None:
    paper = ChainPaper(1, factor=1)
    paper.append(10)
    paper.replica(1).fault = errors.Poisoned.code
    paper.pass_time(2)
    assert paper.replica(1).healthy
    assert paper.append()


def test_a_replica_that_never_was_a_member_is_left_out() -> None:
    """An old state of its disk, under the same name."""
    paper = ChainPaper()
    paper.append(10)
    paper.reconfigure(Change())
    paper.append(10)
    paper.replica(1).epoch = Epoch(1)
    paper.pass_time(5)
    assert paper.chain() == [2, 3, 1]
    assert "the replica on node 1 is in epoch 1, and never was a member in epoch 2" in " / ".join(paper.told)


def test_B11_a_node_that_lost_its_disks_leaves_its_chains_before_it_begins_anew() -> None:
    paper = ChainPaper(streams=2)
    paper.append(100)
    paper.node(1).lose_disk()
    paper.pass_time(6)
    told = " / ".join(paper.told)
    assert "log stream 1: node 1 has lost its disks; going on with nodes 2, 3 in epoch 2" in told
    assert "node 1: has lost its disks, and begins anew with another secret" in told
    assert paper.chain(1) == paper.chain(2) == [2, 3, 1]


# Learners


def test_a_spare_takes_the_place_of_a_node_that_stays_away_whose_replica_is_removed_later() -> None:
    paper = ChainPaper(4)
    paper.append(1000)
    paper.node(1).is_up = False
    paper.pass_time(REPLACE_AFTER - 1)
    assert paper.chain() == [2, 3]
    assert paper.pass_time(10, lambda: len(paper.chain()) == 3) < 5
    assert paper.chain() == [2, 3, 4]
    paper.node(1).restart()
    paper.pass_time(COLLECT_AFTER - 5)
    assert paper.chain() == [2, 3, 4]
    assert ONE in paper.node(1).replicas
    paper.pass_time(10)
    assert ONE not in paper.node(1).replicas


def test_a_learner_joins_only_when_it_lacks_little() -> None:
    paper = ChainPaper()
    paper.append(50_000)
    paper.node(3).is_up = False
    paper.pass_time(2)
    paper.append(30_000)
    paper.node(3).restart()
    paper.node(3).rate = 10_000
    paper.pass_time(1.5)
    assert paper.chain() == [1, 2]
    assert "log stream 1: node 3 follows node 2, the tail, so far to " in paper.says
    assert paper.append(1000)
    paper.pass_time(5)
    assert paper.chain() == [1, 2, 3]


def test_a_learner_that_misses_its_join_is_tried_again_at_growing_intervals() -> None:
    """Appends wait each time."""
    paper = ChainPaper()
    paper.node(3).is_up = False
    paper.pass_time(2)
    paper.node(3).restart()
    paper.joining_fails = True
    before = paper.projection.epoch
    paper.pass_time(30)
    assert 3 <= paper.projection.epoch - before <= 6
    paper.joining_fails = False
    paper.pass_time(20)
    assert paper.chain() == [1, 2, 3]


# Operators


def test_a_replica_is_moved() -> None:
    paper = ChainPaper(4)
    paper.append(1000)
    plan(paper, 4, 1)
    chains = []
    for _ in range(40):
        paper.pass_time(0.1)
        chains.append(tuple(paper.chain()))
    assert list(dict.fromkeys(chains)) == [(1, 2, 3), (1, 2, 3, 4), (2, 3, 4)]
    assert "log stream 1: node 1 can leave; going on with nodes 2, 3, 4 in epoch 3" in paper.told


def test_a_replica_is_moved_in_a_chain_that_has_no_room_for_one_more() -> None:
    paper = ChainPaper(limits.MAX_REPLICAS + 1, factor=limits.MAX_REPLICAS)
    plan(paper, limits.MAX_REPLICAS + 1, 1)
    paper.pass_time(4)
    assert paper.chain() == list(range(2, limits.MAX_REPLICAS + 2))


def test_a_node_is_drained() -> None:
    paper = ChainPaper(4, streams=2)
    drain(paper, 2)
    paper.pass_time(5)
    assert sorted(paper.chain(1)) == sorted(paper.chain(2)) == [1, 3, 4]
    assert paper.projection.epoch <= 4


def test_a_node_that_is_wanted_again_after_another_has_joined_in_its_place_stays() -> None:
    paper = ChainPaper(4)
    drain(paper, 1)
    paper.pass_time(10, lambda: len(paper.chain()) == 4)
    assert paper.ask(SetDraining(0, StorageNodeID(1), False)).code == 0
    paper.pass_time(2)
    assert paper.chain() == [1, 2, 3]


def test_a_node_is_drained_where_no_other_can_take_its_place() -> None:
    paper = ChainPaper()
    drain(paper, 1)
    paper.pass_time(5)
    assert paper.chain() == [2, 3]


# Projections


def test_S8_a_topic_without_a_projection_gets_one_as_soon_as_there_is_a_sequencer() -> None:
    paper = ChainPaper(is_projected=False)
    paper.has_sequencer = False
    paper.pass_time(5)
    assert "log stream 1: has no positions yet" in " / ".join(paper.told)
    assert "no sequencer answers (vsq:1); start one with `vsq start`" in " / ".join(paper.told)
    assert not paper.sealed
    paper.has_sequencer = True
    paper.pass_time(16)
    assert paper.chain() == [1, 2, 3]


def test_a_log_stream_that_was_added_gets_positions() -> None:
    paper = ChainPaper()
    paper.add_stream((StorageNodeID(1), StorageNodeID(2), StorageNodeID(3)))
    paper.pass_time(PROJECT_AFTER - 0.5)
    assert [*paper.projection.stripes[-1].lsids] == [1], "whoever adds it sees to that"
    paper.pass_time(1)
    assert [*paper.projection.stripes[-1].lsids] == [1, 2]


def test_rule22_a_reconfiguration_whose_proposer_died_is_overtaken() -> None:
    paper = ChainPaper()
    for snid in (1, 2, 3):
        paper.replica(snid).epoch = Epoch(4)
    paper.pass_time(AHEAD_PATIENCE - 0.3)
    assert paper.projection.epoch == 1, "it may still be at it"
    paper.pass_time(1)
    assert paper.projection.epoch == 5
    assert "log stream 1: was sealed in epoch 4, and nobody went on from there; going on in epoch 5" in paper.told
    assert paper.append()


def test_nothing_is_done_for_chains_that_are_as_they_should_be() -> None:
    paper = ChainPaper(5, streams=2)
    paper.pass_time(60)
    assert not paper.told
    assert paper.projection.epoch == 1
    assert paper.projection.stripes[-1].lsids == (LogStreamID(1), LogStreamID(2))
