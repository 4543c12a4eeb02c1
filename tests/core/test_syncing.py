"""Sync: who may copy from whom, what is copied, and what a copy survives (M9, rules 7, 12, 14)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.core.copies import Sites, lacking_target, sealed_source
from tests.core.replica import LSID, PATH, batch_of, cut
from varlog import errors, limits
from varlog.core.branches import Branch
from varlog.core.messages import Cuts, FetchLog, LogPart
from varlog.core.syncing import ASK_AGAIN, RENEW_WITHIN, SOURCE_SILENT
from varlog.types import LLSN, Epoch, Sequence, Version


@pytest.fixture
def sites() -> Sites:
    return Sites()


def test_M9_a_copy_completes_a_replica(sites: Sites) -> None:
    end = sealed_source(sites)
    target = lacking_target(sites, end)
    target.sync_from(1, 3)
    reply = sites.reply()
    assert (reply.code, reply.is_complete, reply.source) == (0, False, 1)
    assert target.state == "SEALED 3"
    assert target.ends == (end, end, end)
    assert target.log() == sites.source.log()
    info = target.replica.executor.info()
    assert (info.needs_sync, info.source, info.source_end) == (False, 0, 0)
    target.sync_from(1, 3)
    assert sites.reply().is_complete
    assert {Branch.M9_SYNC_BEGAN, Branch.M9_SYNC_COMPLETE} <= set(target.branches)


# Who may be a target


def test_M9_a_running_replica_is_no_target(sites: Sites) -> None:
    sealed_source(sites)
    sites.target.run(2)
    for learner in (False, True):
        sites.target.sync_from(1, 2, learner=learner)
        assert sites.reply().code == errors.Conflict.code
    assert sites.target.state == "RUNNING 2"


def test_M9_a_replica_that_is_not_sealed_in_that_epoch_is_no_target(sites: Sites) -> None:
    sealed_source(sites)
    sites.target.sync_from(1, 3)
    assert sites.reply().code == errors.Conflict.code
    lacking_target(sites, 13).restart()
    sites.target.sync_from(1, 3)
    assert sites.reply().code == errors.Conflict.code, "where it must end is not known after a restart"


def test_M9_a_sealed_replica_is_complete(sites: Sites) -> None:
    sites.target.seal(3, 1)
    sites.settle()
    sites.target.sync_from(1, 3)
    reply = sites.reply()
    assert (reply.code, reply.is_complete, reply.source) == (0, True, 0)


def test_M9_a_replica_is_not_its_own_source(sites: Sites) -> None:
    lacking_target(sites, 13).sync_from(2, 3)
    assert sites.reply().code == errors.InvalidArgument.code


def test_M9_a_second_source_is_refused_while_there_is_one() -> None:
    sites = Sites(3)
    target = lacking_target(sites, sealed_source(sites))
    sites.cut_off.add("sn/1")
    target.sync_from(1, 3)
    sites.settle()
    target.sync_from(3, 3)
    reply = sites.reply()
    assert (reply.code, reply.source) == (errors.AlreadySync.code, 1)
    assert Branch.M9_ALREADY_SYNC in target.branches


def test_rule2_a_sync_of_a_passed_epoch_is_refused(sites: Sites) -> None:
    target = lacking_target(sites, sealed_source(sites))
    for learner in (False, True):
        target.sync_from(1, 2, learner=learner)
        assert sites.reply().code == errors.StaleEpoch.code


def test_M9_a_failed_replica_is_not_repaired_in_place(sites: Sites) -> None:
    target = lacking_target(sites, sealed_source(sites))
    target.node.on_corrupt(LSID)
    target.sync_from(1, 3, learner=True)
    reply = sites.reply()
    assert (reply.code, reply.is_complete) == (errors.Corrupt.code, False)
    assert "removed and added again" in reply.detail
    assert target.ends == (1, 1, 1)


def test_rule8_what_cuts_may_complete_is_not_dropped(sites: Sites) -> None:
    """A replica of the set may hold the last copy of what is committed and not applied here."""
    sealed_source(sites)
    target = sites.target
    target.run(2)
    target.store(1, 2)
    target.seal(3, 5)
    sites.settle()
    target.sync_from(1, 3)
    reply = sites.reply()
    assert (reply.code, reply.is_complete, reply.source) == (0, False, 0)
    assert target.ends == (1, 5, 5)


def test_an_unknown_log_stream_is_neither_target_nor_source(sites: Sites) -> None:
    end = sealed_source(sites)
    target = lacking_target(sites, end)
    sites.source.node.remove(LSID)
    target.sync_from(1, 3)
    sites.settle()
    assert target.ends == (1, 1, 1)
    assert target.replica.executor.info().source == 0
    sites.source.sync_from(2, 3)
    assert sites.reply().code == errors.UnknownLogStream.code


# Who may be a source


def asked(sites: Sites, *, learner: bool = False, epoch: int = 3) -> str:
    """How node 1 answers to one who wants to copy."""
    sites.settle()
    fetch = FetchLog(1, LSID, sites.target.snid, Epoch(epoch), LLSN(1), Version(0), 1 << 20, learner)
    sites.source.receive("sn/9", fetch)
    sites.source.read()
    ((_, part),) = [(to, m) for to, m in sites.source.sent if isinstance(m, LogPart)]
    sites.source.sent.clear()
    return errors.VarlogError.registry[part.code].__name__ if part.code else f"{len(part.batches)} batches"


def test_M9_a_sealed_replica_is_a_source(sites: Sites) -> None:
    sealed_source(sites)
    assert asked(sites) == asked(sites, learner=True) == "6 batches"


def test_M9_a_replica_that_is_behind_is_no_source(sites: Sites) -> None:
    sealed_source(sites)
    sites.source.seal(5, 15)
    assert sites.source.state == "SEALING 5"
    assert asked(sites) == asked(sites, learner=True) == "NoSource"
    assert Branch.M9_NO_SOURCE in sites.source.branches


def test_rule12_a_running_replica_is_a_source_for_learners_alone(sites: Sites) -> None:
    sealed_source(sites)
    sites.source.unseal(4)
    assert asked(sites) == "NoSource"
    assert asked(sites, learner=True) == "6 batches"


def test_M9_a_replica_that_was_sealed_earlier_may_lack_something(sites: Sites) -> None:
    sealed_source(sites)
    assert asked(sites, epoch=5) == "NoSource"


def test_rule15_a_damaged_replica_is_no_source(sites: Sites) -> None:
    sealed_source(sites)
    sites.source.node.on_corrupt(LSID)
    assert asked(sites, learner=True) == "NoSource"


def test_rule15_damage_that_a_copy_meets_is_reported_and_ends_it(sites: Sites) -> None:
    end = sealed_source(sites)
    disk = sites.source.replica.disk
    name = next(name for name in disk.listdir(PATH) if name.endswith(".seg"))
    file = disk.open(f"{PATH}/{name}")
    at = file.pread(1 << 16, 0).index(b"xxxx")
    file.pwritev([b"y"], at)
    target = lacking_target(sites, end)
    target.sync_from(1, 3)
    sites.settle()
    assert not sites.source.replica.executor.healthy
    assert target.ends == (1, 1, 1)
    assert target.replica.executor.info().source == 0, "it will not become better"
    target.sync_from(1, 3)
    assert "node 1: " in sites.reply().detail


# What is copied


def test_rule6_nothing_is_asked_for_before_the_barrier_is_durable(sites: Sites) -> None:
    end = sealed_source(sites)
    target = lacking_target(sites, end)
    target.sync_from(1, 3)
    target.node.flush(0.0)
    target.node.tick(0.1)
    assert not [m for _, m in target.sent if isinstance(m, FetchLog)]
    target.replica.sync()
    target.node.flush(0.1)
    assert [m.llsn_begin for _, m in target.sent if isinstance(m, FetchLog)] == [1]


def test_rule7_a_stale_frame_is_replaced_by_what_was_committed_in_its_place(sites: Sites) -> None:
    """The target holds 6(2) of its own; 6(4) was committed without it."""
    source, target = sites.source, sites.target
    for site in (source, target):
        site.run(2)
        site.store(1, 2)
        site.commit(5)
    target.store(3, writer=99)
    source.seal(3, 5)
    source.write()
    source.unseal(4)
    source.write()
    source.store(3, epoch=4)
    source.commit(7, epoch=4)
    source.seal(5, 7)
    sites.settle()
    target.seal(5, 7)
    sites.settle()
    assert target.ends == (5, 7, 7)
    target.receive("mr", Cuts(LSID, (cut(5, 7, epoch=4, version=2),)))
    assert target.replica.executor.needs_sync
    assert target.ends == (5, 5, 5)
    target.sync_from(1, 5)
    sites.settle()
    assert target.state == "SEALED 5"
    assert target.log() == source.log()


def test_rule7_a_copy_begins_at_the_committed_end(sites: Sites) -> None:
    end = sealed_source(sites)
    target = sites.target
    target.run(2)
    target.store(1, 2)
    target.commit(3)
    target.seal(3, end)
    target.replica.executor.needs_sync = True
    target.sync_from(1, 3)
    target.write()
    target.write()
    (fetch,) = [m for _, m in target.sent if isinstance(m, FetchLog)]
    assert (fetch.llsn_begin, fetch.after) == (3, 1)
    sites.settle()
    assert target.log() == sites.source.log()


def test_M9_a_copied_commit_counts_once_its_batches_are_durable(sites: Sites) -> None:
    end = sealed_source(sites)
    target = lacking_target(sites, end)
    target.sync_from(1, 3)
    target.write()
    sites.pump()
    sites.source.read()
    sites.pump()
    target.node.flush(0.0)
    assert target.ends == (1, 1, end)
    target.replica.sync()
    assert target.ends == (1, end, end)
    target.node.flush(0.0)
    assert target.state == "SEALED 3"


def test_rule9_what_was_being_written_when_the_copy_began_does_not_count(sites: Sites) -> None:
    end = sealed_source(sites)
    target = sites.target
    target.run(2)
    target.replica.append(1)
    target.replica.append(2)
    before = target.replica.write()
    target.seal(3, end)
    target.replica.executor.needs_sync = True
    target.sync_from(1, 3)
    target.replica.synced(before)
    assert target.ends[1] <= target.ends[2]
    sites.settle()
    assert target.log() == sites.source.log()


def test_M9_parts_are_bounded_and_so_is_what_is_not_durable_yet(sites: Sites, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "COPY_PART_BYTES", 600)
    monkeypatch.setattr(limits, "COPY_AHEAD_BYTES", 1000)
    end = sealed_source(sites, 30)
    target = lacking_target(sites, end)
    target.sync_from(1, 3)
    target.write()
    for _ in range(20):
        sites.pump()
        sites.source.read()
        sites.pump()
        target.node.flush(0.0)
    stored = target.ends[2]
    assert 1 < stored < end, "it waits for its disk"
    sites.settle()
    assert target.log() == sites.source.log()
    assert sites.parts > 3


def test_M9_a_commit_larger_than_a_part_is_copied(sites: Sites, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "COPY_PART_BATCHES", 2)
    sites.source.run(2)
    sites.source.store(*range(1, 8))
    sites.source.commit(15)
    sites.source.seal(3, 15)
    target = lacking_target(sites, 15)
    target.sync_from(1, 3)
    sites.settle()
    assert target.log() == sites.source.log()
    assert sites.parts == 4


def test_rule18_the_deduplication_table_is_that_of_the_source(sites: Sites) -> None:
    """Also when writers were forgotten on the way."""
    source = sites.source
    source.run(2)
    end = 1
    for n in range(1, 30):
        source.store(n, writer=n % 5 + 1)
        end += 2
        if n % 3 == 0:
            source.commit(end)
    source.commit(end)
    source.seal(3, end)
    target = lacking_target(sites, end)
    target.sync_from(1, 3)
    sites.settle()
    assert target.log() == source.log()
    assert source.replica.executor.dedup.floor > 0
    target.restart()
    assert target.log() == source.log()


# What a copy survives


@pytest.mark.parametrize("steps", range(1, 16))
def test_M9_a_copy_goes_on_after_a_crash_of_the_target_at_any_point(
    steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "COPY_PART_BATCHES", 2)
    sites = Sites()
    end = sealed_source(sites, 9)
    target = lacking_target(sites, end)
    target.sync_from(1, 3)
    for _ in range(steps):
        sites.step()
    reached = target.ends[0]
    target.restart()
    assert target.ends[1] >= reached, "what was committed is durable"
    lacking_target(sites, end)
    if target.state != "SEALED 3":
        target.sync_from(1, 3)
        sites.settle()
    assert target.state == "SEALED 3"
    assert target.log() == sites.source.log()


def test_M9_a_copy_from_a_dead_source_is_given_up_and_goes_on_from_another() -> None:
    sites = Sites(3)
    end = sealed_source(sites)
    other = lacking_target(sites, end)
    other.sync_from(1, 3)
    sites.settle()
    assert other.state == "SEALED 3"
    target = sites[3]
    target.seal(3, end)
    sites.settle()
    target.replica.executor.needs_sync = True
    sites.cut_off.add("sn/1")
    target.sync_from(1, 3)
    sites.pass_time(SOURCE_SILENT - 0.2)
    assert target.replica.executor.info().source == 1
    sites.pass_time(0.4)
    assert target.replica.executor.info().source == 0
    assert Branch.M9_SYNC_ABANDONED in target.branches
    target.sync_from(2, 3)
    reply = sites.reply()
    assert reply.code == 0
    assert "node 1 has not answered" in reply.detail
    assert target.log() == other.log()


def test_M9_a_copy_that_nobody_asks_about_is_given_up(sites: Sites) -> None:
    sealed_source(sites)
    sites.source.unseal(4)
    sites.settle()
    target = sites.target
    target.sync_from(1, 4, learner=True)
    sites.pass_time(RENEW_WITHIN - 0.2)
    target.sync_from(1, 4, learner=True)
    sites.pass_time(RENEW_WITHIN - 0.2)
    assert target.replica.executor.info().source == 1
    sites.pass_time(0.5)
    assert target.replica.executor.info().source == 0


def test_rule5_what_was_lost_is_asked_for_again(sites: Sites) -> None:
    end = sealed_source(sites)
    target = lacking_target(sites, end)
    sites.cut_off.add("sn/1")
    target.sync_from(1, 3)
    sites.settle()
    sites.cut_off.clear()
    assert target.state == "SEALING 3"
    sites.pass_time(ASK_AGAIN + 0.1)
    assert target.state == "SEALED 3"


def test_rule5_a_new_connection_to_the_source_is_used_at_once(sites: Sites) -> None:
    end = sealed_source(sites)
    target = lacking_target(sites, end)
    sites.cut_off.add("sn/1")
    target.sync_from(1, 3)
    sites.settle()
    sites.cut_off.clear()
    target.node.on_peer_connected(sites.source.snid, 0.0)
    sites.settle()
    assert target.state == "SEALED 3"


def test_M8_a_disk_that_fails_ends_the_copy(sites: Sites) -> None:
    end = sealed_source(sites)
    target = lacking_target(sites, end)
    target.sync_from(1, 3)
    target.node.on_failed(LSID, errors.Poisoned("the disk is gone"))
    target.node.flush(0.0)
    assert target.replica.executor.info().source == 0
    assert target.ends == (1, 1, 1)


def answer(sites: Sites, **changes: Any) -> None:
    """Let the target be given something else than the source has sent."""
    target = sites.target
    target.sync_from(1, 3)
    target.write()
    sites.pump()
    sites.source.read()
    ((to, part),) = [(to, m) for to, m in sites.source.sent if isinstance(m, LogPart)]
    sites.source.sent.clear()
    assert to == "sn/2"
    target.receive("sn/1", msgspec.structs.replace(part, **changes))
    sites.settle()


FIRST = batch_of(1, b"1", b"x" * 8)


@pytest.mark.parametrize(
    "changes",
    [
        {"batches": (FIRST[:-1],), "epochs": (Epoch(2),), "prev_sequences": (Sequence(0),)},
        {"epochs": (Epoch(2),)},
        {"epochs": (Epoch(3),) * 6},
        {"epochs": (Epoch(1),) * 6},
        {"commits": (cut(3, 5),)},
        {"commits": (cut(1, 1),)},
        {"commits": (cut(1, 4),)},
    ],
)
def test_M9_what_is_no_part_of_the_log_is_not_taken(sites: Sites, changes: dict[str, Any]) -> None:
    target = lacking_target(sites, sealed_source(sites))
    answer(sites, **changes)
    assert target.ends[0] == 1
    assert target.replica.executor.healthy
    assert target.replica.executor.info().source == 0
    target.sync_from(1, 3)
    assert "node 1 gave" in sites.reply().detail
    assert target.log() == sites.source.log(), "the next attempt begins at the committed end again"


def test_rule5_an_answer_to_another_question_is_ignored(sites: Sites) -> None:
    target = lacking_target(sites, sealed_source(sites))
    answer(sites, llsn=LLSN(3))
    assert target.ends == (1, 1, 1)
    sites.pass_time(ASK_AGAIN + 0.1)
    assert target.state == "SEALED 3"


def test_M5_nothing_is_copied_beyond_the_seal_point(sites: Sites) -> None:
    """The source was sealed again since, further on."""
    sealed_source(sites, 6)
    target = lacking_target(sites, 9)
    target.sync_from(1, 3)
    sites.settle()
    assert (target.state, target.ends) == ("SEALED 3", (9, 9, 9))


def test_M9_a_source_that_is_being_sealed_is_asked_again(sites: Sites) -> None:
    end = sealed_source(sites)
    target = lacking_target(sites, end)
    sites.source.restart()
    target.sync_from(1, 3)
    sites.pass_time(SOURCE_SILENT / 2)
    target.sync_from(1, 3)
    assert "SEALING in epoch 3" in sites.reply().detail
    sites.source.seal(3, end)
    sites.pass_time(0.1)
    assert target.state == "SEALED 3"
