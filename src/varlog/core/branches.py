"""The branches of the protocol rules, so that a run can show which of them it took.

A rule that no simulated run ever reaches is not tested, however green the run. The core tells an observer each time it
takes one of these branches; the simulator counts them and fails on a zero. All of them are off the hot path.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum


class Branch(Enum):
    """One way a protocol rule can go; the value says it in words."""

    RULE1_DECISION_WAITS_FOR_WRITE = "rule 1: a decision waited for the write before it"
    RULE1_UNKNOWN_HAPPENED = "rule 1: an unknown write was re-read and had happened"
    RULE1_UNKNOWN_DID_NOT_HAPPEN = "rule 1: an unknown write was re-read and had not happened"
    RULE1_FENCED = "rule 1: a deposed leader's write was refused"
    RULE2_STALE_SEAL_REFUSED = "rule 2: a seal of a passed epoch was refused"
    RULE2_SEAL_REPEATED = "rule 2: a repeated seal was answered again"
    RULE2_UNSEAL_REFUSED = "rule 2: an unseal not from SEALED at epoch + 1 was refused"
    RULE3_NON_MEMBER_REFUSED = "rule 3: a node outside the set refused its unseal"
    RULE4_COMPLETE_BY_SNAPSHOT = "rule 4: a replica at the snapshot's end needed no history"
    RULE4_HISTORY_DROPPED = "rule 4: cuts durable on enough replicas left the history"
    RULE5_NEW_BOOT_VOIDS = "rule 5: a new boot id voided earlier reports"
    RULE5_SNAPSHOT_AFTER_GAP = "rule 5: a node that missed versions was given the current state"
    RULE5_METADATA_WENT_BACK = "rule 5: a node stopped because metadata went back"
    RULE6_SEAL_VOIDS_FRAMES = "rule 6: a seal voided stored frames above its point"
    RULE7_FOREIGN_FRAMES_DROPPED = "rule 7: frames that a cut does not name were dropped"
    RULE7_NEEDS_SYNC = "rule 7: a replica found that no cut can complete it"
    RULE7_ASKED_TOO_LITTLE = "rule 7: a metadata repository that leads no more knew less than a replica lacked"
    RULE8_SEALED_BY_CUTS = "rule 8: a SEALING replica became SEALED by fetched cuts"
    RULE8_COMMITTED_AFTER_SEAL = "rule 8: a cut was applied after the seal that ended its epoch"
    RULE9_COMPLETION_DROPPED = "rule 9: a write completed after its epoch had ended"
    RULE10_HWM_RAISED = "rule 10: a quiet replica's completeness was raised"
    RULE10_HWM_WITHHELD = "rule 10: a high watermark did not apply to a replica"
    RULE10_NOT_YET = "rule 10: a read beyond completeness was answered not yet"
    RULE11_MERGE_WAITED = "rule 11: the merge waited for a log stream"
    RULE11_GAP_REFRESHED = "rule 11: a gap made the merge refresh metadata"
    RULE12_LEARNING = "rule 12: a replica outside the set began to copy"
    RULE12_LEARNER_SEALED = "rule 12: a learner reached the seal that lets it join"
    RULE14_SYNC_STARTS_ANEW = "rule 14: a copy began anew where its source's log begins"
    RULE14_TRIM_ENFORCED = "rule 14: a read below the trim point was refused"
    RULE15_TORN_TAIL = "rule 15: a torn tail was cut at recovery"
    RULE15_CORRUPTION = "rule 15: damage below a proof of sync was reported"
    RULE16_TORN_TAIL = "rule 16: the metadata journal ended in a torn write"
    RULE16_STOPPED = "rule 16: the metadata journal stopped after a failed write"
    RULE17_STALE_APPEND = "rule 17: an append of a passed epoch was refused"
    RULE18_DUPLICATE_COMMITTED = "rule 18: a duplicate got its original answer"
    RULE18_DUPLICATE_PENDING = "rule 18: a duplicate waited for the original's commit"
    RULE18_GAP = "rule 18: a gap in a writer's sequence was refused"
    RULE18_ROLLED_BACK = "rule 18: a seal rolled the deduplication table back"
    RULE18_EXPIRED = "rule 18: a writer's records expired by log position"
    RULE19_COMMITTED = "rule 19: an append's fate was told: it had happened"
    RULE19_DID_NOT_HAPPEN = "rule 19: an append's fate was told: it never happened"
    RULE19_WITHHELD = "rule 19: an incomplete replica did not tell a fate"
    RULE19_EXPIRED = "rule 19: an expired fate was told as unknown"
    M5_SEALED_AT_ONCE = "M5: a replica was complete at its seal"
    M5_SEALING = "M5: a replica was behind at its seal"
    M7_BACKUP_REFUSED = "M7: a primary sealed itself because a backup refused"
    M7_BACKUP_SILENT = "M7: a primary sealed itself because a backup was silent"
    M8_POISONED = "M8: a replica sealed itself after an I/O fault"
    M8_REOPENED = "M8: a replica that had failed to write was opened anew"
    M9_SYNC_BEGAN = "M9: a replica of the set began to copy"
    M9_SYNC_COMPLETE = "M9: a replica of the set was completed by a copy"
    M9_SYNC_ABANDONED = "M9: a copy was given up"
    M9_ALREADY_SYNC = "M9: a second source was refused"
    M9_NO_SOURCE = "M9: a replica that is not complete refused to be copied from"
    M4_CAMPAIGNED = "M4: a standby campaigned in place of a silent leader"
    M4_HELD_BACK = "M4: a standby let another one that hears more nodes go first"
    M4_YIELDED = "M4: a leader resigned for another one that hears more nodes"
    M4_RESIGNED = "M4: a metadata repository resigned before it was stopped"
    M4_LEASE_LOST = "M4: a leader found its lease gone and resigned"
    M4_LEASE_UNCERTAIN = "M4: a metadata repository that the store did not answer gave its lease up"
    M4_WON_UNKNOWING = "M4: a campaign whose outcome was unknown had been won"
    M4_SAW_ANOTHER_LEAD = "M4: a deposed leader saw another one lead before it wrote anything"
    M4_MANAGER_STOOD_BY = "M4: a manager was refused while another one was heard"
    M4_MANAGER_FENCED = "M4: what a manager asked for that does not lead was refused"
    B7_STARTED_SEALING = "B7: a restarted replica began in SEALING"
    B10_PARTIAL_COMMIT = "B10: a partial commit was dropped at recovery"


class ChainBranch(Enum):
    """The same of what a replica of a chain does, in topics that a sequencer orders."""

    S2_OTHER_EPOCH_REFUSED = "S2: a request of another epoch was refused"
    S3_WRITTEN_REFUSED = "S3: a write met another batch and was told that"
    S3_SAME_AGAIN = "S3: a write met itself"
    S6_SEALED = "S6: a member took on a greater epoch"
    S6_SEAL_REFUSED = "S6: a seal of no greater epoch was refused"
    S6_CANCELLED = "S6: a seal cancelled writes in progress"
    S10_LEASE_EXPIRED = "S10: a node whose lease had run out served nobody"
    RULE15_CHAIN_CORRUPT = "rule 15: a chain's replica was found damaged"
    RULE22_STRANGER_REFUSED = "rule 22: a replica that never promised the projection's epoch was not kept"
    RULE22_JOINER_SEALED = "rule 22: a replica was sealed as one that joins"
    RULE22_OUTSIDER_REFUSED = "rule 22: a replica outside of the chain served nobody"
    RULE22_FOLLOWING = "rule 22: a replica began to follow a chain's tail"
    RULE22_WIPED = "rule 22: a replica voided what the chain's tail does not have"
    RULE22_HOLE_COPIED = "rule 22: a copy lacked something below its end"
    RULE22_COPIED = "rule 22: a replica became a copy of the chain's tail"
    RULE22_COPY_ABANDONED = "rule 22: a copy was given up"
    RULE22_LATE_COPY_REFUSED = "rule 22: a copy was asked of a member, and refused"
    M8_CHAIN_POISONED = "M8: a chain's replica failed to write"


Observe = Callable[[Enum], None]
"""Told a `Branch`, a `ChainBranch`, or a `states.Transition`."""


def ignore(branch: Enum) -> None:
    """The observer of production: nobody is looking."""
