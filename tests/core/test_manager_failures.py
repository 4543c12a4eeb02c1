"""Failures, as a manager goes through them: who dies, hangs, fails, is slow, is cut off or loses its disks, and how the
log goes on. On paper: see `tests.core.paper`."""

from __future__ import annotations

import pytest

from tests.core.paper import ONE, Manager, Paper, Replica
from tests.core.steprules import RUNNING, SEALED, SEALING
from varlog import errors
from varlog.core.messages import CreateStream, RegisterStream, SealStream
from varlog.types import LLSN, Epoch, LogStreamID, StorageNodeID, StreamStatus


def running(nodes: int = 3, *, factor: int = 3, least: int = 2, streams: int = 1, entries: int = 100) -> Paper:
    """A cluster that runs and has some entries; nothing of how it came to that is remembered."""
    paper = Paper(nodes, factor=factor, least=least, streams=streams)
    paper.pass_time(1)
    for lsid in paper.state.streams:
        assert paper.append(entries, lsid)
    paper.pass_time(15)
    paper.told.clear()
    paper.sets.clear()
    return paper


def test_M6_a_dead_primary_is_left_out_and_the_log_goes_on_within_a_second() -> None:
    paper = running()
    primary = paper.stream().primary
    paper.nodes[primary].is_up = False
    assert not paper.append()
    assert paper.pass_time(5, paper.append) <= 0.7
    assert paper.running == [1, 3]
    assert primary == 2
    assert paper.told[0].startswith("log stream 1: sealing at GLSN 100 because node 2 has not answered for 0.")
    assert "log stream 1: sealed at GLSN 100 because node 2 has not answered for 0." in paper.told[3]
    assert paper.told[3].endswith("; going on with nodes 1, 3")


def test_M7_a_dead_backup_is_left_out_and_the_log_goes_on_within_a_second() -> None:
    paper = running()
    paper.nodes[StorageNodeID(3)].is_up = False
    assert paper.pass_time(5, paper.append) <= 0.7
    assert paper.running == [1, 2]


@pytest.mark.parametrize("snid", [2, 3], ids=["the primary", "a backup"])
def test_M6_a_node_that_hangs_is_left_out_a_second_later(snid: int) -> None:
    """Its connection is open. When it goes on it finds itself outside, and stays there for a while."""
    paper = running()
    node = paper.nodes[StorageNodeID(snid)]
    node.hangs = True
    assert 0.9 <= paper.pass_time(5, paper.append) <= 1.2
    assert snid not in paper.running
    paper.pass_time(1)
    node.hangs = False
    paper.pass_time(6)
    assert snid not in paper.running
    assert paper.replica(snid).state is RUNNING, "as it believes, in an epoch that has passed"
    assert any(f"node {snid} may come back" in sentence for sentence in paper.told)
    assert paper.pass_time(5, lambda: snid in paper.running) < 4


def test_M8_a_replica_that_fails_to_write_is_left_out_and_opened_anew() -> None:
    """The log goes on at once without it. What it holds is as good as it was, and perhaps better than what the others
    turn out to hold, so it is kept."""
    paper = running(entries=3000)
    paper.replica(3).fault = errors.Poisoned.code
    paper.replica(3).state = SEALING
    assert paper.pass_time(5, paper.append) <= 0.2
    assert paper.pass_time(20, lambda: len(paper.running) == 3) < 5
    assert paper.sets == [[1, 2], [1, 2, 3]]
    told = " / ".join(paper.told)
    assert "because the replica on node 3 has failed (Poisoned); going on with nodes 1, 2" in told
    assert "the replica on node 3 has failed (Poisoned); it is opened anew" in told
    assert "node 3 is to have a replica" not in told


def test_M8_replicas_that_all_failed_to_write_are_opened_anew() -> None:
    paper = running()
    for snid in (1, 2, 3):
        paper.replica(snid).fault = errors.Poisoned.code
        paper.replica(snid).state = SEALING
    assert paper.pass_time(20, paper.append) < 5
    assert paper.running == [1, 2, 3]


def test_rule15_a_replica_that_is_corrupt_is_left_out_and_made_anew() -> None:
    """The log goes on at once without it; outside of the set it is removed, made again, and copied."""
    paper = running(entries=3000)
    paper.replica(3).fault = errors.Corrupt.code
    paper.replica(3).state = SEALING
    assert paper.pass_time(5, paper.append) <= 0.2
    assert paper.sets == [[1, 2]]
    assert paper.pass_time(20, lambda: len(paper.running) == 3) < 5
    assert paper.replica(3).healthy
    told = " / ".join(paper.told)
    assert "because the replica on node 3 is corrupt; going on with nodes 1, 2" in told
    assert "the replica on node 3 is corrupt; it is removed, to be copied anew" in told
    assert "node 3 is to have a replica" in told
    assert "node 3 copies from node 1" in told, "from a backup, not from the primary"


def test_M8_only_the_log_stream_whose_replica_failed_is_sealed() -> None:
    paper = running(streams=3)
    epochs = [stream.epoch for stream in paper.state.streams.values()]
    paper.replica(1, LogStreamID(2)).fault = errors.Poisoned.code
    paper.pass_time(0.3)
    now = [stream.epoch for stream in paper.state.streams.values()]
    assert [after > before for before, after in zip(epochs, now, strict=True)] == [False, True, False]


def test_M7_a_backup_that_was_too_slow_is_left_out_and_comes_back_later_each_time() -> None:
    paper = running()
    away = []
    for _ in range(3):
        primary = paper.replica(paper.stream().primary)
        slow = StorageNodeID(1)
        primary.state, primary.suspect = SEALING, slow
        paper.pass_time(0.3)
        assert paper.running == [2, 3]
        away.append(paper.pass_time(100, lambda: len(paper.running) == 3))
    assert [round(seconds) for seconds in away] == [10, 20, 40]
    assert any("node 2 seals itself, as it missed node 1" in sentence for sentence in paper.told)
    assert any("because node 1 was too slow for its primary; going on with" in sentence for sentence in paper.told)
    paper.pass_time(700)
    assert paper.manager.memory.suspicion(ONE, StorageNodeID(1)) is None, "it has been in step for long"


def test_M7_a_slow_backup_is_kept_if_there_are_too_few_without_it() -> None:
    paper = running(nodes=2, factor=2)
    primary = paper.stream().primary
    paper.replica(primary).state, paper.replica(primary).suspect = SEALING, StorageNodeID(3 - primary)
    paper.pass_time(0.3)
    assert paper.running == [1, 2]
    assert paper.stream().primary == primary, "who is suspected is not made the primary"


def test_M7_a_backup_that_has_just_started_was_not_slow_but_away() -> None:
    paper = running()
    paper.nodes[StorageNodeID(1)].restart()
    primary = paper.replica(paper.stream().primary)
    primary.state, primary.suspect = SEALING, StorageNodeID(1)
    paper.pass_time(0.3)
    assert paper.running == [1, 2, 3]


def test_a_replica_that_stores_nothing_while_others_do_is_left_out() -> None:
    """Its disk hangs, and as the primary it does not even notice."""
    paper = running()
    for snid in (1, 3):
        paper.replica(snid).stored_end = LLSN(111)
    assert 1.9 < paper.pass_time(5, lambda: len(paper.running) == 2) < 2.5
    assert paper.running == [1, 3]
    assert "node 2 has stored nothing for 2" in paper.told[0]


def test_a_node_that_is_cut_off_from_the_metadata_repository_is_left_out() -> None:
    paper = running()
    paper.nodes[StorageNodeID(3)].unanswered = 2.5
    assert 0.9 < paper.pass_time(5, lambda: len(paper.running) == 2) < 1.3
    assert "node 3 has had no answer from the metadata repository for 2.5 s" in paper.told[0]
    paper.pass_time(40)
    assert paper.running == [1, 2]
    paper.nodes[StorageNodeID(3)].unanswered = 0.0
    paper.pass_time(2)
    assert paper.running == [1, 2, 3]


def test_B7_a_node_that_was_away_for_a_moment_is_back_after_one_short_seal() -> None:
    paper = running()
    paper.nodes[StorageNodeID(2)].restart()
    assert paper.pass_time(5, paper.append) <= 0.2
    assert (paper.running, paper.stream().epoch) == ([1, 2, 3], 4)


def test_rule12_a_node_that_was_away_for_longer_copies_while_appends_go_on_and_joins_with_one_short_seal() -> None:
    paper = running(entries=20_000)
    node = paper.nodes[StorageNodeID(2)]
    node.is_up = False
    paper.pass_time(5, paper.append)
    paper.append(5000)
    epoch, stalled = paper.stream().epoch, 0
    node.restart()
    while 2 not in paper.running:
        stalled += not paper.append(10)
        paper.pass_time(0.1)
    assert stalled <= 1, "turns in which nothing could be appended"
    assert paper.stream().epoch == epoch + 2
    assert paper.replica(2).committed_end == paper.stream().llsn_end


def test_a_replica_that_copies_too_slowly_does_not_hold_up_the_log_and_waits_before_the_next_try() -> None:
    paper = running(entries=20_000)
    node = paper.nodes[StorageNodeID(3)]
    node.is_up = False
    paper.pass_time(1)
    paper.append(10)
    node.rate = 0
    node.restart()
    paper.pass_time(2)
    assert paper.running == [1, 2]
    assert paper.stream().epoch == 6, "it was sealed for half a second, to no avail"
    suspicion = paper.manager.memory.suspicion(ONE, StorageNodeID(3))
    assert suspicion is not None
    assert suspicion.why == "was not ready when it was to join"
    node.rate = 1000
    paper.pass_time(15)
    assert paper.running == [1, 2, 3]


def test_B7_a_cluster_that_lost_power_whole_comes_back_by_itself() -> None:
    paper = running(streams=3)
    for node in paper.nodes.values():
        node.restart()
    paper.pass_time(0.3)
    assert [stream.status for stream in paper.state.streams.values()] == [StreamStatus.RUNNING] * 3
    assert {stream.replicas for stream in paper.state.streams.values()} == {(1, 2, 3)}


def test_B7_a_cluster_comes_back_with_who_is_there_first_and_takes_in_the_others() -> None:
    paper = running()
    for node in paper.nodes.values():
        node.is_up = False
    paper.pass_time(10)
    assert paper.running == []
    paper.nodes[StorageNodeID(2)].restart()
    paper.pass_time(2)
    assert paper.running == []
    assert "it needs 2 replicas and has node 2; node 1 has not answered for 12" in paper.says
    paper.nodes[StorageNodeID(1)].restart()
    assert paper.pass_time(3, paper.append) <= 0.3
    assert paper.running == [1, 2]
    paper.nodes[StorageNodeID(3)].restart()
    paper.pass_time(2)
    assert paper.running == [1, 2, 3]


def test_below_min_replicas_a_spare_copies_what_the_sealed_replica_has() -> None:
    """Two replicas, both needed, and one is gone for good: the third node takes its place, though nothing runs."""
    paper = running(3, factor=2, least=2, entries=5000)
    paper.nodes[StorageNodeID(2)].is_up = False
    paper.pass_time(20)
    assert paper.running == []
    paper.pass_time(20)
    assert paper.running == [1, 3]
    assert any("node 3 copies from node 1" in sentence for sentence in paper.told)


def test_a_restarted_replica_that_lacks_what_cuts_cannot_bring_copies_it_if_it_is_needed() -> None:
    paper = running(nodes=2, factor=2, entries=2000)
    paper.replica(1).stored_end = paper.replica(1).committed_end = LLSN(501)
    for node in paper.nodes.values():
        node.restart()
    paper.pass_time(1)
    assert paper.replica(1).state is SEALING
    assert paper.replica(2).state is SEALED
    paper.pass_time(2)
    assert paper.running == [1, 2]


def test_rule15_a_failed_replica_that_the_set_cannot_do_without_is_made_anew_while_the_other_one_is_sealed() -> None:
    paper = running(nodes=2, factor=2, entries=2000)
    paper.replica(2).fault, paper.replica(2).state = errors.Corrupt.code, SEALING
    paper.pass_time(10)
    assert paper.running == [1, 2]
    assert paper.replica(2).healthy


# Disks


def test_B11_a_node_that_lost_its_disks_is_left_out_given_a_new_secret_and_learns_everything_anew() -> None:
    paper = running(entries=3000)
    paper.nodes[StorageNodeID(3)].lose_disk()
    assert paper.pass_time(5, paper.append) <= 0.2
    assert paper.running == [1, 2]
    assert "node 3 has lost its disks" in paper.told[0]
    paper.pass_time(20)
    assert paper.state.nodes[StorageNodeID(3)].generation == 2
    assert "node 3: has lost its disks, and begins anew with another secret" in paper.told
    assert paper.running == [1, 2, 3]


def test_B11_it_gets_no_new_secret_while_something_runs_that_counts_on_it() -> None:
    """Its absence would not be noticed."""
    paper = running(nodes=4, factor=2, streams=2)
    paper.nodes[StorageNodeID(2)].lose_disk()
    paper.managers.clear()
    assert "sealing at GLSN 100 because node 2 has lost its disks" in paper.says
    paper.pass_time(2)
    assert "node 2: has lost its disks; it begins anew when log streams 1, 2 go on without it" in paper.says


def test_B11_a_member_that_lost_its_disk_learns_everything_anew_if_there_are_too_few_without_it() -> None:
    paper = running(nodes=2, factor=2, entries=2000)
    paper.nodes[StorageNodeID(2)].lose_disk()
    paper.pass_time(1)
    assert paper.running == []
    paper.pass_time(10)
    assert paper.running == [1, 2]
    assert paper.replica(2).committed_end == 2001
    assert not paper.refused


# Zombies


def test_M3_a_log_stream_whose_making_was_not_finished_is_cleared_away() -> None:
    paper = running()
    paper.ask(CreateStream(0, paper.stream().tpid))
    for snid in (1, 2):
        paper.nodes[StorageNodeID(snid)].replicas[LogStreamID(2)] = Replica(LogStreamID(2))
    paper.pass_time(29)
    assert paper.stream(LogStreamID(2)).status is StreamStatus.CREATING
    paper.nodes[StorageNodeID(1)].is_up = False
    paper.pass_time(3)
    assert paper.stream(LogStreamID(2)).status is StreamStatus.ABORTED, "not more: node 1 may have something of it"
    assert any("node 1 may have something of it and do not answer" in sentence for sentence in paper.told)
    paper.nodes[StorageNodeID(1)].restart()
    paper.pass_time(2)
    assert LogStreamID(2) not in paper.state.streams
    assert not any(LogStreamID(2) in node.replicas for node in paper.nodes.values())
    assert paper.running == [1, 2, 3]


def test_M3_a_log_stream_that_is_being_made_is_not_collected() -> None:
    paper = running()
    paper.ask(CreateStream(0, paper.stream().tpid))
    paper.nodes[StorageNodeID(1)].replicas[LogStreamID(2)] = Replica(LogStreamID(2))
    paper.pass_time(20)
    for snid in (2, 3):
        paper.nodes[StorageNodeID(snid)].replicas[LogStreamID(2)] = Replica(LogStreamID(2))
    assert paper.ask(RegisterStream(0, LogStreamID(2), tuple(map(StorageNodeID, (1, 2, 3)))))
    paper.pass_time(20)
    assert paper.stream(LogStreamID(2)).status is StreamStatus.RUNNING


def test_rule13_what_has_a_past_is_left_though_its_log_stream_was_given_up() -> None:
    """A cluster whose metadata was lost may hold it by the same number."""
    paper = running()
    paper.ask(CreateStream(0, paper.stream().tpid))
    old = paper.nodes[StorageNodeID(1)].replicas[LogStreamID(2)] = Replica(LogStreamID(2))
    old.epoch = Epoch(4)
    paper.pass_time(60)
    assert LogStreamID(2) in paper.nodes[StorageNodeID(1)].replicas
    assert paper.stream(LogStreamID(2)).status is StreamStatus.ABORTED


def test_M3_what_was_made_too_late_of_one_that_is_no_more_is_removed() -> None:
    """A request to make it was on its way for longer than the log stream lasted."""
    paper = running()
    paper.ask(CreateStream(0, paper.stream().tpid))
    paper.pass_time(31)
    assert LogStreamID(2) not in paper.state.streams
    hosted = paper.nodes[StorageNodeID(1)].replicas
    hosted[LogStreamID(2)] = Replica(LogStreamID(2))
    paper.pass_time(0.2)
    assert LogStreamID(2) not in hosted
    assert "node 1: is to remove what was made of log stream 2, which is no more" in paper.told


def test_rule13_what_is_not_listed_may_be_about_to_be_and_what_has_a_past_stays() -> None:
    """The metadata may be from before a log stream was given its id."""
    paper = running()
    paper.ask(CreateStream(0, paper.stream().tpid))
    paper.pass_time(31)
    hosted = paper.nodes[StorageNodeID(1)].replicas
    hosted[LogStreamID(3)] = Replica(LogStreamID(3))
    hosted[LogStreamID(2)] = Replica(LogStreamID(2))
    hosted[LogStreamID(2)].epoch = Epoch(2)
    paper.pass_time(60)
    assert sorted(hosted) == [1, 2, 3]
    hosted[LogStreamID(2)].epoch = Epoch(0)
    hosted[LogStreamID(2)].fault = errors.Corrupt.code
    paper.pass_time(60)
    assert sorted(hosted) == [1, 2, 3], "it may not know of its past"


# Managers


def test_M3_two_managers_at_once_do_no_harm() -> None:
    paper = running(nodes=4)
    paper.managers.append(Manager(paper))
    paper.nodes[StorageNodeID(1)].is_up = False
    assert paper.pass_time(5, paper.append) <= 0.7
    paper.append(400)
    paper.nodes[StorageNodeID(1)].restart()
    paper.pass_time(3)
    assert paper.running == [1, 2, 3]


def test_M3_a_manager_that_acts_on_what_it_saw_long_ago_does_no_harm() -> None:
    """It stopped for a while in the middle of everything; what it decided then arrives much later."""
    paper = running(entries=1000)
    stopped = Manager(paper)
    late = []
    for snid in (1, 2, 3):
        paper.nodes[StorageNodeID(snid)].is_up = False
        for _ in range(12):
            paper.pass_time(0.1)
            stopped.look()
            late += stopped.steps()
        paper.nodes[StorageNodeID(snid)].restart()
        paper.pass_time(3)
        paper.append(100)
    for step in late:
        paper.deliver(step)
        paper.append()
    paper.pass_time(20)
    assert paper.running == [1, 2, 3]
    assert paper.append()


def test_M3_another_manager_goes_on_where_the_first_one_ended() -> None:
    paper = running(nodes=4, entries=4000)
    paper.nodes[StorageNodeID(1)].is_up = False
    for _ in range(60):
        paper.managers = [Manager(paper)]
        paper.managers[0].replace_after = 0.0
        paper.pass_time(0.3)
    assert paper.running == [2, 3, 4]


def test_what_somebody_else_seals_is_unsealed() -> None:
    paper = running()
    paper.ask(SealStream(0, ONE, paper.stream().epoch))
    paper.pass_time(0.2)
    assert paper.running == [1, 2, 3]
