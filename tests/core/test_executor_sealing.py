"""Seal and unseal of one replica: states, epochs, promises, and what survives a restart."""

from __future__ import annotations

import pytest

from tests.core.replica import ME, OTHER, PATH, THIRD, Replica
from varlog import errors
from varlog.core.branches import Branch
from varlog.core.messages import ReplicaReply
from varlog.errors import ConsistencyViolation
from varlog.storage.format import FRAME_HEADER_BYTES


def running(*, committed: int = 0, stored: int = 0) -> Replica:
    """A replica that is alone in its set and runs in epoch 2, with so many one-entry batches."""
    replica = Replica().run()
    for sequence in range(1, stored + 1):
        replica.append(sequence)
    replica.sync()
    if committed:
        replica.commit(1, committed + 1)
        replica.sync()
    return replica


# Seal


def test_B7_a_new_replica_is_sealing() -> None:
    replica = Replica()
    assert replica.state == "SEALING 0"
    assert Branch.B7_STARTED_SEALING in replica.branches


def test_B7_a_restarted_replica_is_sealing_and_takes_nothing() -> None:
    replica = running(committed=1, stored=2).restarted()
    assert replica.state == "SEALING 2"
    assert replica.ends == (2, 3, 3), "what is uncommitted is kept"
    assert replica.answer(replica.append(3)) == "Sealed"
    replica.replicate(3, 3)
    assert replica.ends == (2, 3, 3)


def test_M5_equal_is_sealed() -> None:
    replica = running(committed=2, stored=2)
    replica.seal(3, 3)
    assert replica.state == "SEALED 3"
    assert Branch.M5_SEALED_AT_ONCE in replica.branches


def test_M5_less_is_sealing() -> None:
    replica = running(committed=1, stored=2)
    replica.seal(3, 3)
    assert replica.state == "SEALING 3"
    assert replica.ends == (2, 3, 3)
    assert Branch.M5_SEALING in replica.branches


def test_M5_greater_is_a_violation() -> None:
    replica = running(committed=2, stored=2)
    with pytest.raises(ConsistencyViolation, match="NEVER_LOST"):
        replica.seal(3, 2)


def test_M5_what_waits_above_the_seal_is_told_that_it_did_not_happen() -> None:
    replica = Replica().run()
    first, second = replica.append(1), replica.append(2)
    replica.sync()
    replica.commit(1, 2)
    replica.seal(3, 2)
    assert (replica.answer(first), replica.answer(second)) == ("GLSN 1", "DidNotHappen")
    assert replica.ends == (2, 2, 2)
    assert replica.answer(replica.append(2, epoch=3)) == "Sealed"


def test_M5_the_answer_tells_state_and_committed_end_once_the_promise_is_durable() -> None:
    replica = running(committed=1, stored=3)
    request = replica.seal(3, 3)
    assert replica.reply(request) == ""
    replica.sync()
    assert replica.reply(request) == "SEALING 3"
    assert replica.messages(ReplicaReply)[0].committed_end == 2


def test_a_seal_that_falls_into_a_batch_is_a_violation() -> None:
    replica = Replica().run()
    replica.append(1, b"a", b"b")
    with pytest.raises(ConsistencyViolation, match="BATCH_BOUNDARY"):
        replica.seal(3, 2)


def test_rule7_a_batch_of_an_epoch_that_was_missed_may_lie_across_a_seal_point() -> None:
    """Seed 28: a replica was away for a whole epoch, in which other batches took the place of its own."""
    replica = running(committed=1, stored=1)
    replica.append(2, b"a", b"b", b"c")
    replica.sync()
    assert replica.ends == (2, 5, 5)
    replica.seal(5, 3)
    assert replica.state == "SEALING 5"
    replica.sync()
    assert replica.ends == (2, 2, 2), "none of it can have been committed"
    again = replica.restarted()
    assert again.ends == (2, 2, 2)


def test_rule2_a_seal_of_a_passed_epoch_is_refused() -> None:
    replica = running(committed=1, stored=1).run()
    replica.append(2, epoch=4)
    replica.sync()
    assert replica.reply(replica.seal(3, 2)) == "StaleEpoch"
    assert replica.state == "RUNNING 4"
    assert replica.ends == (2, 3, 3), "obeyed, it would have dropped this"


def test_rule2_a_seal_of_the_running_epoch_is_refused() -> None:
    replica = running()
    assert replica.reply(replica.seal(2, 1)) == "StaleEpoch"
    assert replica.state == "RUNNING 2"


def test_rule2_a_repeated_seal_is_answered_again() -> None:
    replica = running(committed=1, stored=1)
    replica.seal(3, 2)
    waiting = replica.seal(3, 2)
    replica.sync()
    assert replica.reply(waiting) == "SEALED 3"
    assert replica.reply(replica.seal(3, 2)) == "SEALED 3"
    assert Branch.RULE2_SEAL_REPEATED in replica.branches


def test_who_repeats_a_seal_before_it_is_durable_is_answered_once() -> None:
    """However often it asks while the disk hangs, the replica remembers one question of each."""
    replica = running(committed=1, stored=1)
    *passed, last = [replica.seal(3, 2) for _ in range(5)]
    other = replica.seal(3, 2, source="another manager")
    replica.sync()
    assert [replica.reply(request) for request in passed] == [""] * 4
    assert (replica.reply(last), replica.reply(other)) == ("SEALED 3", "SEALED 3")


def test_rule2_the_promised_epoch_survives_a_restart() -> None:
    replica = running(committed=1, stored=1)
    replica.seal(3, 2)
    replica.sync()
    replica = replica.restarted()
    assert replica.state == "SEALING 3"
    assert replica.reply(replica.seal(2, 2)) == "StaleEpoch"
    assert replica.reply(replica.seal(3, 2)) == "SEALED 3", "the same seal completes it"


def test_rule6_a_seal_voids_what_is_above_it_also_after_a_restart() -> None:
    replica = running(committed=1, stored=3)
    replica.seal(3, 2)
    assert Branch.RULE6_SEAL_VOIDS_FRAMES in replica.branches
    replica.sync()
    assert replica.restarted().ends == (2, 2, 2)


def test_rule6_a_commit_written_behind_the_voided_frames_is_kept() -> None:
    """[1, 2] stored, 1 committed: the commit context lies behind 2 in the file. A cut of the file would take it."""
    replica = running(committed=1, stored=2)
    replica.seal(3, 2)
    replica.sync()
    replica = replica.restarted()
    assert replica.ends == (2, 2, 2)
    assert replica.executor.global_hwm == 1


def test_rule9_a_write_queued_before_a_seal_does_not_count_after_it() -> None:
    replica = running(committed=1, stored=1)
    replica.append(2)
    group = replica.write()
    replica.seal(3, 2)
    replica.synced(group)
    assert Branch.RULE9_COMPLETION_DROPPED in replica.branches
    assert replica.ends == (2, 2, 2)
    replica.sync()
    replica.unseal(4)
    replica.sync()
    assert replica.executor.report_line()[4] == 2


def test_rule9_what_is_below_the_seal_is_durable_with_the_seal_record() -> None:
    replica = running()
    replica.append(1)
    replica.seal(3, 2)
    assert replica.ends == (1, 1, 2)
    replica.sync()
    assert replica.ends == (1, 2, 2)


def test_rule14_a_seal_brings_the_trim_point() -> None:
    replica = running(committed=3, stored=3)
    replica.seal(3, 4, trim=2)
    assert replica.executor.trim_glsn == 2
    replica.sync()
    assert replica.restarted().executor.trim_glsn == 2


# Unseal


def test_M10_an_unseal_runs_the_next_epoch_once_it_is_durable() -> None:
    replica = Replica()
    replica.seal(1, 1)
    replica.sync()
    request = replica.unseal(2)
    assert replica.state == "RUNNING 2"
    assert replica.reply(request) == ""
    assert replica.answer(replica.append(1)) == "Sealed", "the epoch must be durable before anything is taken in it"
    replica.sync()
    assert replica.reply(request) == "RUNNING 2"
    assert replica.answer(replica.append(1)) == ""
    assert replica.ends == (1, 1, 2)


def test_a_backup_takes_nothing_before_its_unseal_is_durable() -> None:
    replica = Replica()
    replica.seal(1, 1)
    replica.sync()
    replica.unseal(2, (OTHER, ME), OTHER)
    replica.sent.clear()
    replica.replicate(1, 1)
    assert replica.ends == (1, 1, 1)
    assert replica.sent == [], "nor does it refuse: the primary sends it again"


@pytest.mark.parametrize("epoch", [1, 3, 6])
def test_rule2_an_unseal_is_taken_only_to_the_very_next_epoch(epoch: int) -> None:
    replica = Replica().run()
    replica.seal(3, 1)
    replica.sync()
    assert replica.reply(replica.unseal(epoch)) == "StaleEpoch"
    assert replica.state == "SEALED 3"


def test_rule2_an_unseal_is_taken_only_when_sealed() -> None:
    replica = running(committed=0, stored=1)
    replica.seal(3, 2)
    replica.sync()
    assert replica.state == "SEALING 3"
    assert replica.reply(replica.unseal(4)) == "StaleEpoch", "M10: a replica below the last committed LSN"
    replica.commit(1, 2)
    replica.unseal(4)
    assert replica.state == "RUNNING 4"


def test_rule2_an_unseal_waits_for_the_seal_to_be_durable() -> None:
    replica = Replica()
    replica.seal(1, 1)
    assert replica.reply(replica.unseal(2)) == "StaleEpoch"


def test_rule2_a_repeated_unseal_is_answered_again() -> None:
    replica = Replica().run()
    assert replica.reply(replica.unseal(2)) == "RUNNING 2"
    assert replica.reply(replica.unseal(2, (ME, OTHER))) == "StaleEpoch", "the set is the epoch's"


def test_rule3_who_is_not_in_the_set_refuses() -> None:
    replica = Replica()
    replica.seal(1, 1)
    replica.sync()
    assert replica.reply(replica.unseal(2, (OTHER, THIRD), OTHER)) == "Conflict"
    assert replica.state == "SEALED 1"
    assert Branch.RULE3_NON_MEMBER_REFUSED in replica.branches


def test_rule2_the_epoch_it_ran_in_survives_a_restart() -> None:
    replica = Replica().run((ME, OTHER)).restarted()
    assert replica.state == "SEALING 2"
    assert (replica.executor.replicas, replica.executor.primary) == ((ME, OTHER), ME)


def test_llsns_above_a_seal_are_used_again_in_the_next_epoch() -> None:
    replica = running(committed=1, stored=2).run()
    request = replica.append(2, b"other content", epoch=4, prev=1)
    replica.sync()
    assert replica.commit(2, 3, epoch=4)
    assert replica.answer(request) == "GLSN 2"
    replica.sync()
    assert replica.restarted().ends == (3, 3, 3)


def test_a_replica_that_missed_a_whole_epoch_is_behind_at_the_next_seal() -> None:
    replica = Replica()
    replica.seal(1, 1)
    replica.sync()
    replica.seal(3, 5)
    assert replica.state == "SEALING 3"


# Faults


def test_M8_a_failed_write_seals_the_replica_for_good() -> None:
    replica = running(committed=1, stored=2)
    replica.executor.on_failed(errors.Poisoned.code)
    assert replica.state == "SEALING 2"
    assert replica.executor.report_line()[5] is False
    assert replica.answer(replica.append(3)) == "Poisoned"
    assert replica.reply(replica.seal(3, 3)) == "Poisoned"
    assert not replica.commit(2, 3)
    assert replica.ends == (2, 3, 3)


def test_M8_who_waits_for_a_promise_is_told_that_it_failed() -> None:
    replica = running(committed=1, stored=1)
    requests = [replica.seal(3, 2), replica.seal(3, 2, source="another manager")]
    assert replica.state == "SEALED 3"
    group = replica.write()
    replica.executor.on_failed(errors.Poisoned.code)
    assert [replica.reply(request) for request in requests] == ["Poisoned", "Poisoned"]
    assert replica.state == "SEALING 3"
    replica.synced(group)
    assert len(replica.messages(ReplicaReply)) == 2, "nobody is told twice"


def test_rule15_a_corrupt_replica_is_never_sealed() -> None:
    replica = running(committed=2, stored=2)
    replica.storage.close()
    segment = next(name for name in replica.disk.listdir("/volume/replica") if name.endswith(".seg"))
    replica.disk.flip_bit(f"/volume/replica/{segment}", 400)
    replica = replica.restarted()
    assert replica.storage.corruption is not None
    assert not replica.executor.healthy
    assert replica.reply(replica.seal(3, 3)) == "Corrupt"
    assert replica.state.startswith("SEALING")


def test_rule15_a_trim_that_meets_a_damaged_index_shows_the_damage() -> None:
    replica = Replica(segment_bytes=1024).run()
    for sequence in range(1, 41):
        replica.append(sequence, bytes(100))
        replica.sync()
        replica.commit(sequence, sequence + 1)
        replica.sync()
    replica.storage.close()
    replica = replica.restarted()
    damaged = replica.storage._segments[1]
    replica.disk.flip_bit(f"{PATH}/{damaged.name}", damaged.index_offset + FRAME_HEADER_BYTES)
    trim = damaged.glsn_end - 2  # the entry behind it was committed within this segment
    assert replica.reply(replica.seal(3, 41, trim=trim)) == "Corrupt"
    assert not replica.executor.healthy
    assert replica.executor.trim_glsn == trim, "nobody reads what is trimmed"
    assert Branch.RULE15_CORRUPTION in replica.branches


def test_M7_a_primary_says_which_backup_was_silent_until_it_runs_again() -> None:
    replica = Replica().run((ME, OTHER, THIRD))
    replica.append(1)
    replica.sync()
    replica.acknowledged(2, snid=THIRD)
    for _ in range(12):
        replica.tick(0.1)
    assert replica.state == "SEALING 2"
    assert replica.executor.info().suspect == OTHER
    replica.seal(3, 1)
    replica.sync()
    assert replica.executor.info().suspect == OTHER
    replica.unseal(4, (ME, THIRD))
    assert replica.executor.info().suspect == 0


def test_M7_a_backup_that_refuses_is_not_suspected() -> None:
    """It says itself what is wrong with it; most often it was only sealed first."""
    replica = Replica().run((ME, OTHER))
    replica.append(1)
    replica.acknowledged(1, accepted=False)
    assert replica.state == "SEALING 2"
    assert replica.executor.info().suspect == 0
