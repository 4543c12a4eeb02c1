"""The log stream executor: what a replica takes, reports, commits, and tells whom."""

from __future__ import annotations

import pytest

from tests.core.replica import LSID, ME, OTHER, THIRD, Replica, cut
from varlog import errors, limits
from varlog.core.branches import Branch
from varlog.core.dedup import DedupTable
from varlog.core.messages import Replicate, ReplicateAck
from varlog.core.replication import GIVE_UP_AFTER, RESEND_AFTER
from varlog.errors import ConsistencyViolation
from varlog.types import GLSN, LLSN, Epoch

BACKUP = ((OTHER, ME), OTHER)
"""A set of which this replica is the backup."""


# Appending


def test_O1_an_append_is_stored_and_answered_when_it_is_committed() -> None:
    replica = Replica().run()
    first, second = replica.append(1, b"a", b"b"), replica.append(2)
    assert replica.ends == (1, 1, 4)
    replica.sync()
    assert replica.ends == (1, 4, 4)
    assert replica.sent == []
    assert replica.commit(1, 3, glsn=10, hwm=15)
    assert (replica.answer(first), replica.answer(second)) == ("GLSN 10", "")
    assert replica.commit(3, 4, glsn=17, hwm=17)
    assert replica.answer(second) == "GLSN 17"
    assert replica.ends == (4, 4, 4)
    (one, _) = replica.append_replies()
    assert (one.llsn, one.count, one.epoch, one.replicas, one.lsid) == (1, 2, 2, 1, LSID)


def test_O1_only_what_is_synced_is_reported() -> None:
    replica = Replica().run()
    replica.append(1)
    group = replica.write()
    replica.append(2)
    assert replica.executor.report_line() == (LSID, 2, 0, 1, 1, True)
    replica.synced(group)
    assert replica.executor.report_line() == (LSID, 2, 0, 1, 2, True)


def test_O1_the_primary_sends_every_batch_to_every_backup() -> None:
    replica = Replica().run((ME, OTHER, THIRD))
    replica.append(1, b"a", b"b")
    replica.append(2)
    assert [(address, m.llsn) for address, m in replica.sent if isinstance(m, Replicate)] == [
        ("sn/2", 1),
        ("sn/3", 1),
        ("sn/2", 3),
        ("sn/3", 3),
    ]


def test_a_backup_takes_no_appends() -> None:
    replica = Replica().run(*BACKUP)
    assert replica.answer(replica.append(1)) == "NotPrimary"


def test_too_much_that_is_uncommitted_is_refused_for_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_UNCOMMITTED_BATCHES", 2)
    replica = Replica().run()
    requests = [replica.append(sequence) for sequence in (1, 2, 3)]
    assert [replica.answer(request) for request in requests] == ["", "", "Busy"]
    replica.sync()
    replica.commit(1, 3)
    assert replica.answer(replica.append(3)) == ""


# Replication


def test_O1_a_backup_takes_a_batch_exactly_at_its_end_and_acknowledges_it_when_durable() -> None:
    replica = Replica().run(*BACKUP)
    replica.replicate(1, 1, b"a", b"b")
    replica.executor.tick(0.1)
    assert replica.sent == []
    replica.sync()
    replica.executor.tick(0.2)
    assert replica.sent == [("sn/2", ReplicateAck(LSID, ME, Epoch(2), True, LLSN(3), LLSN(3)))]
    replica.sent.clear()
    replica.replicate(3, 4)
    replica.replicate(1, 1, b"a", b"b")
    assert replica.ends == (1, 3, 3)
    assert [m.received_end for m in replica.messages(ReplicateAck)] == [3, 3], "it says what it has"


def test_O1_a_cut_says_what_an_acknowledgement_would() -> None:
    replica = Replica().run(*BACKUP)
    replica.replicate(1, 1, b"a", b"b")
    replica.sync()
    replica.commit(1, 3)
    replica.executor.tick(0.1)
    assert replica.messages(ReplicateAck) == []


@pytest.mark.parametrize("epoch", [1, 4])
def test_rule2_a_batch_of_another_epoch_is_refused(epoch: int) -> None:
    replica = Replica().run(*BACKUP)
    replica.replicate(1, 1, epoch=epoch)
    assert replica.ends == (1, 1, 1)
    (ack,) = replica.messages(ReplicateAck)
    assert (ack.accepted, ack.epoch) == (False, epoch)


def test_O1_a_backup_takes_batches_of_its_primary_only() -> None:
    replica = Replica().run(*BACKUP)
    replica.replicate_run(1, (1, b"a"), source=77)
    assert replica.ends == (1, 1, 1)
    ((to, ack),) = replica.sent
    assert isinstance(ack, ReplicateAck)
    assert (to, ack.accepted) == ("sn/77", False)


def test_a_primary_takes_no_batches_from_others() -> None:
    replica = Replica().run((ME, OTHER))
    replica.replicate(1, 1)
    assert replica.ends == (1, 1, 1)
    assert not replica.messages(ReplicateAck)[0].accepted


def test_M7_a_backup_that_does_not_follow_seals_the_primary() -> None:
    replica = Replica().run((ME, OTHER))
    waiting = replica.append(1)
    replica.acknowledged(1, accepted=False)
    assert replica.state == "SEALING 2"
    assert Branch.M7_BACKUP_REFUSED in replica.branches
    assert replica.answer(replica.append(2)) == "Sealed"
    assert replica.answer(waiting) == "", "what is stored awaits the Seal"


def test_M7_a_backup_that_stays_silent_seals_the_primary() -> None:
    replica = Replica().run((ME, OTHER))
    replica.tick(GIVE_UP_AFTER * 2)
    replica.append(1)
    replica.tick(RESEND_AFTER + 0.01)
    assert len(replica.messages(Replicate)) == 2, "first it is sent again"
    replica.tick(GIVE_UP_AFTER)
    assert replica.state == "SEALING 2"
    assert Branch.M7_BACKUP_SILENT in replica.branches


def test_M7_a_backup_that_follows_is_not_given_up() -> None:
    replica = Replica().run((ME, OTHER))
    replica.append(1)
    replica.acknowledged(2)
    for _ in range(5):
        replica.tick(GIVE_UP_AFTER)
    assert replica.state == "RUNNING 2"


def test_M7_a_lost_answer_seals_nothing_once_the_batch_is_committed() -> None:
    """The cut is proof that the backup has it; the primary has let go of it and could not send it again."""
    replica = Replica().run((ME, OTHER))
    request = replica.append(1)
    replica.sync()
    assert replica.commit(1, 2)
    for _ in range(5):
        replica.tick(GIVE_UP_AFTER)
    assert (replica.state, replica.answer(request)) == ("RUNNING 2", "GLSN 1")
    assert len(replica.messages(Replicate)) == 1


@pytest.mark.parametrize("epoch", [1, 4])
def test_an_answer_for_another_epoch_says_nothing(epoch: int) -> None:
    replica = Replica().run((ME, OTHER))
    replica.append(1)
    replica.acknowledged(1, epoch=epoch, accepted=False)
    assert replica.state == "RUNNING 2"


# Commits


def test_B10_committing_again_is_harmless() -> None:
    replica = Replica().run()
    replica.append(1)
    replica.append(2)
    replica.sync()
    for _ in range(2):
        assert replica.commit(1, 3)
    assert replica.commit(1, 2)
    assert replica.ends == (3, 3, 3)
    assert len(replica.append_replies()) == 2


def test_O2_a_cut_after_a_missing_one_is_not_applied() -> None:
    replica = Replica().run()
    for sequence in (1, 2):
        replica.append(sequence)
    replica.sync()
    assert not replica.commit(2, 3)
    assert replica.ends == (1, 3, 3)
    assert replica.commit(1, 2)
    assert replica.commit(2, 3)


def test_a_cut_that_overlaps_what_is_committed_is_a_violation() -> None:
    replica = Replica().run()
    for sequence in (1, 2, 3):
        replica.append(sequence)
    replica.sync()
    replica.commit(1, 3)
    with pytest.raises(ConsistencyViolation, match="EQUAL_PREFIXES"):
        replica.commit(2, 4)


def test_rule7_a_cut_of_frames_written_in_another_epoch_drops_them() -> None:
    """The replica was out of the set in epoch 4, and holds 2(2) where the cut means 2(4)."""
    replica = Replica().run()
    for sequence in (1, 2):
        replica.append(sequence)
    replica.sync()
    replica.commit(1, 2)
    replica.seal(5, 3)
    replica.sync()
    assert replica.state == "SEALING 5"
    assert not replica.commit(2, 3, epoch=4)
    assert replica.ends == (2, 2, 2)
    assert replica.executor.healthy
    assert replica.executor.info().needs_sync
    assert Branch.RULE7_FOREIGN_FRAMES_DROPPED in replica.branches
    replica.sync()
    assert replica.restarted().ends == (2, 2, 2), "also for good"


def test_rule7_a_cut_is_applied_all_or_nothing() -> None:
    replica = Replica().run()
    replica.append(1)
    replica.sync()
    assert not replica.commit(1, 3)
    assert replica.ends == (1, 1, 1)
    assert replica.executor.needs_sync
    assert replica.state == "SEALING 2"


def test_rule8_a_sealing_replica_reaches_its_seal_point_by_cuts_alone() -> None:
    replica = Replica().run()
    requests = [replica.append(sequence) for sequence in (1, 2, 3)]
    replica.sync()
    replica.seal(3, 3)
    assert replica.state == "SEALING 3"
    assert replica.executor.is_behind
    assert replica.commit(1, 2)
    assert replica.state == "SEALING 3"
    assert replica.commit(2, 3)
    assert replica.state == "SEALED 3"
    assert {Branch.RULE8_COMMITTED_AFTER_SEAL, Branch.RULE8_SEALED_BY_CUTS} <= set(replica.branches)
    assert [replica.answer(request) for request in requests] == ["GLSN 1", "GLSN 2", "DidNotHappen"]


def test_M5_no_cut_goes_beyond_the_seal_point() -> None:
    replica = Replica().run()
    for sequence in (1, 2):
        replica.append(sequence)
    replica.sync()
    replica.seal(3, 2)
    with pytest.raises(ConsistencyViolation, match="NOTHING_AFTER_SEAL"):
        replica.commit(1, 3)


def test_rule10_a_high_watermark_raises_a_replica_in_step() -> None:
    replica = Replica().run()
    replica.executor.listed_epoch, replica.executor.listed_end = Epoch(2), LLSN(1)
    assert replica.executor.raise_hwm(GLSN(9))
    assert replica.executor.global_hwm == 9
    assert not replica.executor.raise_hwm(GLSN(8)), "it never goes back"
    assert replica.executor.global_hwm == 9


@pytest.mark.parametrize(
    ("listed_epoch", "listed_end"), [(2, 2), (3, 1), (4, 1)], ids=["behind", "sealed there", "of an older epoch"]
)
def test_rule10_hwm_is_withheld_from_a_replica_behind(listed_epoch: int, listed_end: int) -> None:
    replica = Replica().run()
    replica.executor.listed_epoch, replica.executor.listed_end = Epoch(listed_epoch), LLSN(listed_end)
    assert not replica.executor.raise_hwm(GLSN(9))
    assert replica.executor.global_hwm == 0
    assert Branch.RULE10_HWM_WITHHELD in replica.branches


def test_rule10_hwm_is_withheld_from_a_replica_that_does_not_run() -> None:
    replica = Replica().run().restarted()
    replica.executor.listed_epoch, replica.executor.listed_end = Epoch(2), LLSN(1)
    assert not replica.executor.raise_hwm(GLSN(9))


def test_O2_commits_nothing_follows_are_flushed_by_and_by() -> None:
    replica = Replica().run()
    replica.append(1)
    replica.sync()
    replica.commit(1, 2, version=5)
    replica.synced(replica.write())
    assert replica.executor.durable_version == 0
    replica.tick(0.5)
    replica.tick(0.5)
    replica.sync()
    assert replica.executor.durable_version == 5
    assert replica.executor.report_line()[2] == 5


# Duplicates


def test_rule18_a_duplicate_of_a_committed_batch_gets_the_original_answer() -> None:
    replica = Replica().run()
    replica.append(1)
    replica.sync()
    replica.commit(1, 2, glsn=7)
    assert replica.answer(replica.append(1)) == "GLSN 7"
    assert replica.ends == (2, 2, 2)


def test_rule18_a_duplicate_of_an_uncommitted_batch_waits_for_its_commit() -> None:
    replica = Replica().run()
    replica.append(1)
    again = replica.append(1)
    assert replica.answer(again) == ""
    replica.sync()
    replica.commit(1, 2, glsn=7)
    assert replica.answer(again) == "GLSN 7"
    assert replica.ends == (2, 2, 2)


def test_rule18_a_gap_is_refused() -> None:
    replica = Replica().run()
    assert replica.answer(replica.append(2)) == "SequenceGap"
    assert replica.answer(replica.append(2, prev=0)) == ""


def test_rule18_the_table_survives_a_restart_and_knows_what_was_uncommitted() -> None:
    replica = Replica().run()
    for sequence in (1, 2, 3):
        replica.append(sequence)
    replica.sync()
    replica.commit(1, 3)
    replica.sync()
    replica = replica.restarted()
    assert replica.commit(3, 4)
    replica.run()
    assert [replica.answer(replica.append(s, epoch=4)) for s in (1, 2, 3)] == ["GLSN 1", "GLSN 2", "GLSN 3"]
    assert replica.answer(replica.append(4, epoch=4)) == ""


def test_rule18_a_backup_knows_the_duplicates_when_it_becomes_primary() -> None:
    replica = Replica().run(*BACKUP)
    replica.replicate(1, 1)
    replica.sync()
    replica.commit(1, 2, glsn=7)
    replica.run((ME, OTHER), ME)
    assert replica.answer(replica.append(1, epoch=4)) == "GLSN 7"


def test_rule19_an_expired_fate_is_unknown() -> None:
    replica = Replica(dedup=DedupTable(per_writer=1, total=8)).run()
    for sequence in (1, 2):
        replica.append(sequence)
    replica.sync()
    replica.commit(1, 3)
    assert replica.answer(replica.append(1, horizon=1)) == "FateExpired"
    replica.seal(3, 3)
    assert replica.answer(replica.append(1, horizon=1)) == "FateExpired"


# The fate of an append


def test_rule17_an_append_of_a_passed_epoch_cannot_land() -> None:
    replica = Replica().run().run()
    request = replica.append(1, epoch=2)
    assert replica.answer(request) == "DidNotHappen"
    assert replica.ends == (1, 1, 1)
    assert Branch.RULE17_STALE_APPEND in replica.branches


def test_rule19_a_complete_replica_tells_what_became_of_an_append() -> None:
    replica = Replica().run()
    for sequence in (1, 2):
        replica.append(sequence)
    replica.sync()
    replica.commit(1, 2, glsn=7)
    replica.seal(3, 2)
    assert replica.answer(replica.append(1, epoch=2)) == "GLSN 7"
    assert replica.answer(replica.append(2, epoch=2)) == "DidNotHappen"


def test_rule19_an_incomplete_replica_withholds_it_until_it_is_complete() -> None:
    replica = Replica().run()
    for sequence in (1, 2):
        replica.append(sequence)
    replica.sync()
    replica = replica.restarted()
    replica.seal(3, 2)
    asked = [replica.append(sequence, epoch=2) for sequence in (1, 2)]
    assert [replica.answer(request) for request in asked] == ["", ""]
    assert Branch.RULE19_WITHHELD in replica.branches
    replica.commit(1, 2, glsn=7)
    assert [replica.answer(request) for request in asked] == ["GLSN 7", "DidNotHappen"]


def test_rule19_who_asks_again_and_again_is_answered_once() -> None:
    replica = Replica().run().run().restarted()
    asked = [replica.append(1, epoch=2) for _ in range(2 * limits.MAX_UNCOMMITTED_BATCHES)]
    other = replica.append(2, epoch=2)
    replica.seal(5, 1)
    assert {replica.answer(request) for request in asked[:-1]} == {""}
    assert [replica.answer(asked[-1]), replica.answer(other)] == ["DidNotHappen", "DidNotHappen"]


def test_rule19_a_restarted_replica_that_was_not_sealed_tells_nothing() -> None:
    replica = Replica().run().run()
    replica = replica.restarted()
    assert replica.state == "SEALING 4"
    assert replica.answer(replica.append(1, epoch=2)) == ""
    assert replica.answer(replica.append(1, epoch=4)) == "Sealed"


def test_M8_a_failed_replica_tells_no_fate() -> None:
    replica = Replica().run()
    replica.append(1)
    replica.executor.on_failed(errors.Poisoned.code)
    assert replica.answer(replica.append(1, epoch=1)) == "Poisoned"


def test_a_cut_of_an_epoch_to_come_is_left_for_later() -> None:
    replica = Replica().run()
    replica.append(1)
    replica.sync()
    assert not replica.executor.apply_commit(cut(1, 2, epoch=4))
    assert replica.executor.healthy
    assert replica.ends == (1, 2, 2)
