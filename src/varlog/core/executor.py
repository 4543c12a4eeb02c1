"""LogStreamExecutor: one replica of one log stream, without I/O.

It owns the LogStreamContext (B8) and every decision about it: which appends and replicated batches it takes, how far it
reports, which cuts it applies, when it is SEALING, SEALED or RUNNING (`states` has the table). Its log only *stages*
records in order; whoever runs the executor writes and syncs what is staged, one group after another, and tells
`on_durable`. Messages go out through `send(address, message)`.

How a batch travels: `append` gives it the next LLSN, stages it and sends it to the backups; each replica raises its
`durable_end` when the batch is synced, which the node reports; the metadata repository's cut comes back and
`apply_commit` turns the LLSN range into GLSNs, stages the commit context, answers the client.

What must always hold:

- committed_end <= durable_end <= end, and `_pending` holds exactly the batches in [committed_end, end), in order;
- within one epoch an LLSN is given once: the epoch a replica runs in is durable before it takes a batch in it;
- nothing at or above a seal point is committed, nothing below `committed_end` is ever dropped.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

from varlog import errors, limits
from varlog.batch import BatchHeader
from varlog.core import invariants, states
from varlog.core.acknowledging import acknowledgements
from varlog.core.address import Address, Send, node_address
from varlog.core.branches import Branch, Observe
from varlog.core.dedup import DedupTable, Fate, Record
from varlog.core.invariants import Invariant
from varlog.core.messages import (
    Append,
    AppendReply,
    ReplicaInfo,
    ReplicaReply,
    ReplicaStats,
    Replicate,
    ReplicateAck,
    ReportLine,
    Seal,
    Unseal,
)
from varlog.core.pending import Pending, PendingBatches, Question
from varlog.core.replicalog import Context, ReplicaLog
from varlog.core.replication import Backups
from varlog.core.states import RUNNING, SEALED, SEALING
from varlog.types import (
    GLSN,
    LLSN,
    CommitContext,
    Epoch,
    LogStreamID,
    Sequence,
    StorageNodeID,
    TopicID,
    Version,
)


class LogStreamExecutor:
    """See the module's text."""

    def __init__(
        self,
        snid: StorageNodeID,
        tpid: TopicID,
        lsid: LogStreamID,
        log: ReplicaLog,
        send: Send,
        observe: Observe,
        dedup: DedupTable | None = None,
    ) -> None:
        self.snid = snid
        self.tpid = tpid
        self.lsid = lsid
        self.log = log
        self._send = send
        self._observe = observe

        self.state = SEALING
        self.epoch = Epoch(0)
        self.replicas: tuple[StorageNodeID, ...] = ()
        self.primary = StorageNodeID(0)
        self.healthy = True
        """False once its disk failed, its files are corrupt, or it holds what the log does not: it needs repair."""
        self.fault = 0
        """The code of the error that made it so."""

        self.committed_end = LLSN(1)
        self.durable_end = LLSN(1)
        self.end = LLSN(1)
        self.global_hwm = GLSN(0)
        self.local_hwm = GLSN(0)
        self.trim_glsn = GLSN(0)
        self.version = Version(0)
        self.durable_version = Version(0)

        self.seal_point: LLSN | None = None
        self.listed_epoch = Epoch(0)
        self.listed_end = LLSN(0)
        self.changed = True
        """The next report must carry this replica."""

        # Since the node started (M12).
        self.batches = self.entries = self.bytes = self.commits = self.refused = self.scans = self.syncs = 0

        self.dedup = dedup or DedupTable()
        self._pending = PendingBatches()
        self._promise: Epoch | None = None
        """An epoch whose seal or unseal record is not durable yet."""
        self._promise_waiters: list[tuple[Address, int]] = []
        self._undecided: list[Question] = []
        """Appends of a passed epoch whose fate this replica will know once it reaches its seal point."""
        self._backups: Backups | None = None
        self._version_at_tick = Version(0)
        self._owes_ack = False
        """The primary is to be told how far this backup is, if no cut tells it soon: the next tick will see."""

    # Recovery: B3, B7, B10

    def recover(self, context: Context, damage: errors.VarlogError | None) -> None:
        """Take over what storage found: the state of the last whole commit, what is stored beyond it, and what is
        wrong with it."""
        self.committed_end = context.committed_llsn_end
        self.end = self.durable_end = context.uncommitted_llsn_end
        self.global_hwm = context.global_hwm
        self.local_hwm = context.local_hwm
        self.trim_glsn = context.trim_glsn
        self.version = self.durable_version = context.version
        self.epoch = context.epoch
        self.replicas = context.running_set
        self.primary = context.primary
        self.healthy, self.fault = damage is None, damage.code if damage is not None else 0
        for b in context.uncommitted:
            stored = Pending(b.llsn, b.count, b.epoch, b.writer_id, b.sequence, b.prev_sequence, b.size)
            self._pending.add(stored)
        self.dedup.recover(context.dedup_snapshot, context.dedup_tail)
        self._observe(Branch.B7_STARTED_SEALING)

    # Appends

    @property
    def accepts_appends(self) -> bool:
        return self.state is RUNNING and self._promise is None and self.healthy

    def append(self, source: Address, message: Append, header: BatchHeader, now: float) -> None:
        """A client's batch, already verified."""
        if message.epoch != self.epoch or self.state is not RUNNING or self._promise is not None or not self.healthy:
            self._append_out_of_epoch(source, message, header)
            return
        if self.primary != self.snid:
            self._refuse(source, message, errors.NotPrimary.code)
            return
        prev_sequence = message.prev_sequence
        fate, record = self.dedup.judge(header.writer_id, header.sequence, prev_sequence, message.horizon)
        if fate is not Fate.NEW:
            self._append_known(source, message, fate, record)
            return
        batch = message.batch
        if self._pending.is_full(len(batch)):
            self._refuse(source, message, errors.Busy.code)
            return
        stored = self._store(prev_sequence, header, batch)
        stored.waiters.append((source, message.request))
        if self._backups is not None:
            stored.batch = batch
            self._backups.replicate(stored, now)

    def _store(self, prev_sequence: Sequence, header: BatchHeader, batch: bytes | memoryview) -> Pending:
        size, _, _, _, count, _, writer_id, sequence, _, _ = header
        llsn, epoch = self.end, self.epoch
        stored = Pending(llsn, count, epoch, writer_id, sequence, prev_sequence, size)
        self._pending.add(stored)
        self.batches += 1
        self.entries += count
        self.bytes += size
        self.dedup.add(writer_id, sequence, llsn, count)
        self.log.stage_batch(llsn, epoch, prev_sequence, batch, header)
        self.end = stored.end
        return stored

    def _append_known(self, source: Address, message: Append, fate: Fate, record: Record | None) -> None:
        if fate is Fate.COMMITTED:
            assert record is not None
            self._observe(Branch.RULE18_DUPLICATE_COMMITTED)
            self._acknowledge(source, message.request, record.glsn, record.llsn, record.count, record.epoch)
        elif fate is Fate.PENDING:
            assert record is not None
            self._observe(Branch.RULE18_DUPLICATE_PENDING)
            self._wait_for(record.llsn, source, message.request)
        elif fate is Fate.GAP:
            self._observe(Branch.RULE18_GAP)
            self._refuse(source, message, errors.SequenceGap.code)
        else:
            self._observe(Branch.RULE19_EXPIRED)
            self._refuse(source, message, errors.FateExpired.code)

    def _append_out_of_epoch(self, source: Address, message: Append, header: BatchHeader) -> None:
        """An append this replica cannot take now: tell its fate if it can be known here (rules 17, 19)."""
        if message.epoch >= self.epoch:
            self._refuse(source, message, errors.Sealed.code if self.healthy else self.fault)
            return
        self._observe(Branch.RULE17_STALE_APPEND)
        question = Question(source, message.request, header.writer_id, header.sequence, message.horizon)
        if self.state is not SEALING and self.healthy:
            self._tell_fate(question)
            return
        self._observe(Branch.RULE19_WITHHELD)
        if self.healthy and len(self._undecided) < limits.MAX_UNCOMMITTED_BATCHES:
            self._undecided.append(question)
        else:
            self._refuse(source, message, errors.Sealed.code if self.healthy else self.fault)

    def _tell_fate(self, question: Question) -> None:
        source, request, writer_id, sequence, horizon = question
        fate, record = self.dedup.fate(writer_id, sequence, horizon)
        if fate is Fate.COMMITTED:
            assert record is not None
            self._observe(Branch.RULE19_COMMITTED)
            self._acknowledge(source, request, record.glsn, record.llsn, record.count, record.epoch)
        elif fate is Fate.PENDING:
            assert record is not None
            self._wait_for(record.llsn, source, request)
        elif fate is Fate.EXPIRED:
            self._observe(Branch.RULE19_EXPIRED)
            self._send(source, AppendReply(request, self.lsid, errors.FateExpired.code, self.epoch))
        else:
            self._observe(Branch.RULE19_DID_NOT_HAPPEN)
            self._send(source, AppendReply(request, self.lsid, errors.DidNotHappen.code, self.epoch))

    def _wait_for(self, llsn: LLSN, source: Address, request: int) -> None:
        """Answer when the batch is committed; of one source only the latest request waits."""
        pending = self._pending.at(llsn)
        assert pending is not None, "what the deduplication table calls pending is pending"
        pending.waiters = [w for w in pending.waiters if w[0] != source]
        pending.waiters.append((source, request))

    def _refuse(self, source: Address, message: Append, code: int) -> None:
        self.refused += 1
        self._send(source, AppendReply(message.request, self.lsid, code, self.epoch))

    def _acknowledge(self, source: Address, request: int, glsn: GLSN, llsn: LLSN, count: int, epoch: Epoch) -> None:
        self._send(
            source, AppendReply(request, self.lsid, 0, epoch, glsn, llsn, count, len(self.replicas), self.log.synced)
        )

    # Replication

    def on_replicate(self, source: Address, message: Replicate, headers: Seq[BatchHeader]) -> None:
        """Batches from the primary: taken only in the same epoch and exactly at the end (O1). They are acknowledged
        when they are durable, by a cut or by the tick."""
        if message.epoch != self.epoch or self.state is not RUNNING or self.primary == self.snid or not self.healthy:
            self.refuse_replicate(source, message)
            return
        if self._promise is not None:
            return  # the primary sends it again, or gives up
        llsn: int = message.llsn
        misplaced = False
        for header, prev_sequence, batch in zip(headers, message.prev_sequences, message.batches, strict=True):
            if llsn != self.end:
                misplaced = True
                self._check_repeated(LLSN(llsn), header)
            elif self._pending.is_full(header.length):
                break
            else:
                self._store(prev_sequence, header, batch)
            llsn += header.count
        if misplaced:
            self._send_ack(source)

    def _check_repeated(self, llsn: LLSN, header: BatchHeader) -> None:
        stored = self._pending.at(llsn)
        if stored is not None:
            invariants.require(
                Invariant.ONE_CONTENT,
                (stored.writer_id, stored.sequence) == (header.writer_id, header.sequence),
                f"log stream {self.lsid}: two batches at LLSN {stored.llsn} in epoch {self.epoch}",
            )

    def refuse_replicate(self, source: Address, message: Replicate) -> None:
        """Tell the primary of that epoch that this replica does not follow it."""
        self._send(source, ReplicateAck(self.lsid, self.snid, message.epoch, False, self.end, self.durable_end))

    def _send_ack(self, address: Address) -> None:
        self._send(address, ReplicateAck(self.lsid, self.snid, self.epoch, True, self.end, self.durable_end))

    def on_replicate_ack(self, message: ReplicateAck, now: float) -> None:
        """A backup says how far it is, or that it does not follow (M7)."""
        backups = self._backups
        if backups is None or self.state is not RUNNING or message.epoch != self.epoch:
            return
        if message.accepted:
            backups.acknowledged(message, now)
        else:
            self._observe(Branch.M7_BACKUP_REFUSED)
            self.seal_self()

    def flush(self) -> None:
        """Send the backups what was appended."""
        if self._backups is not None:
            self._backups.flush()

    def on_peer_connected(self, snid: StorageNodeID, now: float) -> None:
        """There is a new connection to another node."""
        if self._backups is not None and self.state is RUNNING:
            self._backups.connected(snid, self._pending, now)

    def tick(self, now: float) -> None:
        """Flush commit contexts that nothing followed; as a backup, say how far it is while no cut does; as a primary,
        send again what backups have not acknowledged, and give up on one that stays silent (M7)."""
        if self.durable_version < self.version == self._version_at_tick and self.healthy:
            self.log.flush_commits()
        self._version_at_tick = self.version
        if self._owes_ack and self._pending and self.state is RUNNING:
            self._send_ack(node_address(self.primary))
        self._owes_ack = False
        if self._backups is None or self.state is not RUNNING:
            return
        if self._backups.tick(self._pending, now):
            self._observe(Branch.M7_BACKUP_SILENT)
            self.seal_self()

    # Durability

    def on_durable(self, batches: tuple[Epoch, LLSN] | None, promises: Seq[Epoch], version: Version) -> None:
        """A group of staged records is synced: its last batch as (epoch, end), the epochs of its seal and unseal
        records, and the last commit context among everything synced."""
        self.syncs += 1
        if version > self.durable_version:
            self.durable_version = version
            self.changed = True
        if batches is not None:
            self._on_batches_durable(*batches)
        if self._promise is not None and self._promise in promises:
            self._on_promise_durable()

    def _on_batches_durable(self, epoch: Epoch, end: LLSN) -> None:
        if epoch != self.epoch:  # rule 9: what was written before a seal does not count after it
            self._observe(Branch.RULE9_COMPLETION_DROPPED)
            return
        if end > self.durable_end:
            self.durable_end = end
            self.changed = True
        self._owes_ack = self.state is RUNNING and self.primary != self.snid

    def _on_promise_durable(self) -> None:
        # File order makes the record a barrier: every batch staged before it is durable too.
        self._promise = None
        self.durable_end = self.end
        self.changed = True
        waiters, self._promise_waiters = self._promise_waiters, []
        for source, request in waiters:
            self._reply(source, request, 0)

    def on_failed(self, fault: int) -> None:
        """A write or fsync failed, with that error's code: nothing this replica writes counts from now on (M8)."""
        self._observe(Branch.M8_POISONED)
        self._fail(fault)

    def on_corrupt(self) -> None:
        """Stored bytes turned out to be damaged: the replica must be repaired from another one (rule 15)."""
        self._observe(Branch.RULE15_CORRUPTION)
        self._fail(errors.Corrupt.code)

    def _fail(self, fault: int) -> None:
        """From now on the replica promises nothing, takes nothing and is never SEALED; what it can read it serves."""
        self.healthy = False
        self.fault = self.fault or fault
        self.changed = True
        self.seal_self()
        waiters, self._promise_waiters = self._promise_waiters, []
        for source, request in waiters:
            self._reply(source, request, self.fault)

    # Commits

    def apply_commit(self, cc: CommitContext) -> bool:
        """Apply one cut, all or nothing. False if cuts before it are missing here, or it cannot be applied."""
        if not self.healthy:
            return False
        if cc.llsn_end <= self.committed_end:
            return True  # committing again what is committed is harmless (B10)
        if cc.llsn_begin > self.committed_end or cc.epoch > self.epoch:
            return False  # what is missing, or was written without this replica, must be copied
        invariants.require(
            Invariant.EQUAL_PREFIXES,
            cc.llsn_begin == self.committed_end,
            f"log stream {self.lsid}: cut {cc} does not begin at the committed end {self.committed_end}",
        )
        if self.seal_point is not None:
            invariants.require(
                Invariant.NOTHING_AFTER_SEAL,
                cc.llsn_end <= self.seal_point,
                f"log stream {self.lsid}: cut {cc} goes beyond the seal point {self.seal_point}",
            )
        if not self._pending.holds(cc):
            self._drop_foreign()
            return False
        if cc.epoch < self.epoch:
            self._observe(Branch.RULE8_COMMITTED_AFTER_SEAL)
        self._commit(cc)
        if self._reach_seal_point():
            self._observe(Branch.RULE8_SEALED_BY_CUTS)
        return True

    def _drop_foreign(self) -> None:
        self._observe(Branch.RULE7_FOREIGN_FRAMES_DROPPED)
        self._void_from(self.committed_end)
        self.log.stage_seal(self.epoch, self.committed_end)
        self._fail(errors.ConsistencyViolation.code)

    def _commit(self, cc: CommitContext) -> None:
        invariants.require(
            Invariant.HWM_MONOTONE,
            cc.hwm >= self.global_hwm,
            f"log stream {self.lsid}: {cc} is below {self.global_hwm}",
        )
        committed = self._pending.commit(cc.llsn_end)
        for source, answer in acknowledgements(self.lsid, committed, cc, len(self.replicas), self.log.synced):
            self._send(source, answer)
        if self.dedup.commit(cc):
            self._observe(Branch.RULE18_EXPIRED)
        self.commits += 1
        self.committed_end = cc.llsn_end
        self.local_hwm = GLSN(cc.glsn_end - 1)
        self.global_hwm = cc.hwm
        self.version = cc.version
        if self._backups is not None:
            self._backups.committed(cc.llsn_end)
        self.log.stage_commit(cc)

    def raise_hwm(self, hwm: GLSN) -> bool:
        """The topic's high watermark moved; it says something of this replica only by rule 10."""
        in_step = self.epoch == self.listed_epoch and self.committed_end == self.listed_end
        if self.state is not RUNNING or not in_step:
            self._observe(Branch.RULE10_HWM_WITHHELD)
            return False
        if hwm <= self.global_hwm:
            return False
        self._observe(Branch.RULE10_HWM_RAISED)
        self.global_hwm = hwm
        return True

    def trim(self, glsn: GLSN) -> None:
        """Everything at or below `glsn` is gone: enforced at once, files follow (rule 14)."""
        if glsn <= self.trim_glsn:
            return
        self.trim_glsn = glsn
        if self.healthy:
            self.log.stage_trim(self.log.llsn_after(glsn), glsn, self.version, self.epoch)

    # Seal and unseal

    def seal(self, source: Address, message: Seal) -> None:
        """M5: stop at the last committed LSN the metadata repository has fixed."""
        if not self.healthy:  # it can promise nothing, and it takes nothing either
            self._reply(source, message.request, self.fault)
            return
        running = self.state is RUNNING
        if message.epoch < self.epoch or (message.epoch == self.epoch and running):
            self._observe(Branch.RULE2_STALE_SEAL_REFUSED)
            self._reply(source, message.request, errors.StaleEpoch.code)
            return
        invariants.require(
            Invariant.NEVER_LOST,
            self.committed_end <= message.llsn_end,
            f"log stream {self.lsid}: sealed at {message.llsn_end}, but {self.committed_end} is committed here",
        )
        self.trim(message.trim)
        if message.epoch > self.epoch:
            self._promise_seal(message.epoch, message.llsn_end)
        else:
            self._observe(Branch.RULE2_SEAL_REPEATED)
            self.seal_point = message.llsn_end
            self._reach_seal_point()
        self._reply_when_promised(source, message.request)

    def _promise_seal(self, epoch: Epoch, llsn_end: LLSN) -> None:
        self._void_from(llsn_end)
        self.epoch = epoch
        self.seal_point = llsn_end
        self._backups = None
        self._promise = epoch
        self.changed = True
        self.log.stage_seal(epoch, llsn_end)
        complete = self.committed_end == llsn_end and self.healthy
        self._observe(Branch.M5_SEALED_AT_ONCE if complete else Branch.M5_SEALING)
        self._enter(states.Event.SEAL_COMPLETE if complete else states.Event.SEAL_BEHIND)
        if complete:
            self._decide_undecided()

    def _void_from(self, llsn_end: LLSN) -> None:
        """Forget every uncommitted batch at or above a point; who waits for one is told once that can be known."""
        voided = self._pending.void(llsn_end)
        for batch in voided:
            for source, request in batch.waiters:
                self._undecided.append(Question(source, request, batch.writer_id, batch.sequence, batch.llsn))
        rest = self._pending.end
        invariants.require(
            Invariant.BATCH_BOUNDARY,
            rest is None or rest <= llsn_end,
            f"log stream {self.lsid}: {llsn_end} falls into a batch that ends at {rest}",
        )
        self.end = min(self.end, llsn_end)
        self.durable_end = min(self.durable_end, self.end)
        if voided:
            self._observe(Branch.RULE6_SEAL_VOIDS_FRAMES)
        if self.dedup.truncate(llsn_end):
            self._observe(Branch.RULE18_ROLLED_BACK)

    def _reach_seal_point(self) -> bool:
        reached = self.state is SEALING and self.seal_point == self.committed_end and self.healthy
        if reached:
            self._enter(states.Event.REACHED_SEAL_POINT)
            self._decide_undecided()
        return reached

    def _decide_undecided(self) -> None:
        questions, self._undecided = self._undecided, []
        for question in questions:
            self._tell_fate(question)

    def seal_self(self) -> None:
        """Take no more appends; the stored ones await the Seal (M7, M8)."""
        if self.state is not SEALING:
            self._enter(states.Event.SEAL_SELF)

    def unseal(self, source: Address, message: Unseal, now: float) -> None:
        """M10: run in the next epoch, with the set and primary the metadata repository decided."""
        members = (message.replicas, message.primary)
        if message.epoch == self.epoch and members == (self.replicas, self.primary) and self.state is RUNNING:
            self._reply_when_promised(source, message.request)
            return
        if self.snid not in message.replicas:
            self._observe(Branch.RULE3_NON_MEMBER_REFUSED)
            self._reply(source, message.request, errors.Conflict.code)
            return
        ready = self.state is SEALED and self._promise is None and self.healthy
        if not ready or message.epoch != self.epoch + 1:
            self._observe(Branch.RULE2_UNSEAL_REFUSED)
            self._reply(source, message.request, errors.StaleEpoch.code)
            return
        self.trim(message.trim)
        self.epoch = message.epoch
        self.replicas, self.primary = members
        self.seal_point = None
        self._promise = self.epoch
        self._enter(states.Event.UNSEAL)
        self.log.stage_unseal(self.epoch, self.replicas, self.primary)
        if self.primary == self.snid and len(self.replicas) > 1:
            others = tuple(snid for snid in self.replicas if snid != self.snid)
            self._backups = Backups(self.lsid, self.epoch, others, self.end, self._send, now)
        self._reply_when_promised(source, message.request)

    def _reply_when_promised(self, source: Address, request: int) -> None:
        if self._promise is None:
            self._reply(source, request, 0)
        else:
            self._promise_waiters = [w for w in self._promise_waiters if w[0] != source]
            self._promise_waiters.append((source, request))

    def _reply(self, source: Address, request: int, code: int) -> None:
        reply = ReplicaReply(request, self.lsid, code, self.snid, self.epoch, self.state, self.committed_end)
        self._send(source, reply)

    def _enter(self, event: states.Event) -> None:
        after = states.TRANSITIONS.get((self.state, event))
        invariants.require(
            Invariant.STATE_TABLE, after is not None, f"log stream {self.lsid}: {event.value} in {self.state.name}"
        )
        if after is not None and after is not self.state:
            if (transition := states.transition_of(self.state, after)) is not None:
                self._observe(transition)
            self.state = after
            self.changed = True

    # What others want to know

    @property
    def behind_seal_point(self) -> bool:
        """Cuts are missing here: the node should fetch them (rule 8)."""
        return self.healthy and self.seal_point is not None and self.committed_end < self.seal_point

    def report_line(self) -> ReportLine:
        return (self.lsid, self.epoch, self.durable_version, self.committed_end, self.durable_end, self.healthy)

    def info(self) -> ReplicaInfo:
        stats = ReplicaStats(self.batches, self.entries, self.bytes, self.commits, self.refused, self.scans, self.syncs)
        return ReplicaInfo(
            self.lsid, self.epoch, self.state, self.committed_end, self.durable_end, self.healthy, self.tpid,
            self.fault, self.global_hwm, self.local_hwm, self.trim_glsn, stats=stats,
        )  # fmt: skip
