"""LogStreamExecutor: one replica of one log stream, without I/O.

It owns the LogStreamContext (B8) and every decision about it: which appends and replicated batches it takes, how far it
reports, which cuts it applies, when it is SEALING, SEALED or RUNNING (`states` has the table, `sealing` the decisions).
Its log only *stages* records in order; whoever runs the executor writes and syncs what is staged, one group after
another, and tells `on_durable`. Messages go out through `send(address, message)`.

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
from varlog.core import invariants
from varlog.core.acknowledging import acknowledgements
from varlog.core.address import Address, node_address
from varlog.core.branches import Branch
from varlog.core.dedup import Fate, Record
from varlog.core.invariants import Invariant
from varlog.core.messages import Append, AppendReply, Replicate, ReplicateAck
from varlog.core.pending import Pending, Question, appended, appended_alone, replicated, replicated_alone
from varlog.core.sealing import Sealing
from varlog.core.states import RUNNING, SEALING
from varlog.types import GLSN, LLSN, CommitContext, Epoch, Sequence, StorageNodeID, Version


class LogStreamExecutor(Sealing):
    """See the module's text."""

    # Appends

    @property
    def accepts_appends(self) -> bool:
        return self.state is RUNNING and self._promise is None and self.healthy

    @property
    def uncommitted(self) -> int:
        """How many batches are stored and not committed."""
        return len(self._pending)

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
        if self._pending.is_full(header.length):
            self._refuse(source, message, errors.Busy.code)
            return
        batch, backups = message.batch, self._backups
        stored = appended_alone(self.end, source, message, header, keeps=backups is not None)
        self._store(stored, batch, header)
        if backups is not None:
            backups.replicate((stored,), now)

    def append_all(self, source: Address, messages: Seq[Append], headers: Seq[BatchHeader], now: float) -> None:
        """As `append` of one after another. Those that follow the one before are new if that is, and taken together."""
        at = 0
        while at < len(messages):
            before = self.end
            self.append(source, messages[at], headers[at], now)
            run = slice(at + 1, self.dedup.end_of_chain(messages, headers, at))
            at = run.stop
            if self.end > before and run.start < at and self._pending.takes([header[0] for header in headers[run]]):
                self._append_run(source, messages[run], headers[run], now)
            else:
                for message, header in zip(messages[run], headers[run], strict=True):
                    self.append(source, message, header, now)

    def _append_run(self, source: Address, messages: Seq[Append], headers: Seq[BatchHeader], now: float) -> None:
        run = appended(self.end, source, messages, headers, keeps=self._backups is not None)
        self._store_run(run, [message.batch for message in messages], headers)
        if self._backups is not None:
            self._backups.replicate(run, now)

    def _store(self, batch: Pending, content: bytes | memoryview, header: BatchHeader) -> None:
        """A single batch."""
        llsn, count = batch.llsn, batch.count
        self.is_alone = not self._pending
        self._staging.batch(llsn, self.epoch, batch.prev_sequence, content, header)
        self.bytes += self._pending.add(batch)
        self.batches += 1
        self.end = LLSN(llsn + count)
        self.entries += count

    def _store_run(self, run: Seq[Pending], batches: Seq[bytes | memoryview], headers: Seq[BatchHeader]) -> None:
        begin, last = self.end, run[-1]
        self.is_alone = False
        self._staging.run(begin, self.epoch, [batch.prev_sequence for batch in run], batches, headers)
        self.bytes += self._pending.add_run(run)
        self.batches += len(run)
        self.end = end = LLSN(last.llsn + last.count)
        self.entries += end - begin

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
        known = question.subject in self._undecided
        if self.healthy and (known or len(self._undecided) < limits.MAX_UNCOMMITTED_BATCHES):
            self._undecided[question.subject] = question
        else:
            self._refuse(source, message, errors.Sealed.code if self.healthy else self.fault)

    def _refuse(self, source: Address, message: Append, code: int) -> None:
        self.refused += 1
        self._send(source, AppendReply(message.request, self.lsid, code, self.epoch))

    # Replication

    def on_replicate(self, source: Address, message: Replicate, headers: Seq[BatchHeader]) -> None:
        """Batches from the primary: taken only in the same epoch and exactly at the end (O1). They are acknowledged
        when they are durable, by a cut or by the tick."""
        if message.epoch != self.epoch or self.state is not RUNNING or self.primary == self.snid or not self.healthy:
            self.refuse_replicate(source, message)
            return
        if source != node_address(self.primary):  # nobody else has batches of this epoch to give
            self.refuse_replicate(source, message)
            return
        if self._promise is not None:
            return  # the primary sends it again, or gives up
        if message.llsn != self.end:
            self._store_some(source, message, headers)
        elif len(headers) == 1 and not self._pending.is_full(headers[0][0]):
            header = headers[0]
            stored = replicated_alone(self.end, message.epoch, message.prev_sequences[0], header)
            self._store(stored, message.batches[0], header)
        elif self._pending.takes([header[0] for header in headers]):
            run = replicated(self.end, message.epoch, message.prev_sequences, headers)
            self._store_run(run, message.batches, headers)
        else:
            self._store_some(source, message, headers)

    def _store_some(self, source: Address, message: Replicate, headers: Seq[BatchHeader]) -> None:
        """Of batches that begin somewhere else, or are too many, those that can be stored."""
        llsn: int = message.llsn
        misplaced = 0
        for header in headers:
            if llsn == self.end:
                break
            misplaced += 1
            self._pending.check_repeated(LLSN(llsn), header, f"log stream {self.lsid}")
            llsn += header.count
        taken = slice(misplaced, misplaced + self._pending.fitting([header[0] for header in headers[misplaced:]]))
        if run := replicated(self.end, message.epoch, message.prev_sequences[taken], headers[taken]):
            self._store_run(run, message.batches[taken], headers[taken])
        if misplaced:
            self._send_ack(source)

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

    def stage(self) -> None:
        """Stage what was appended; until then it may be held back, so that the backups have it first."""
        self._staging.flush()

    def on_peer_connected(self, snid: StorageNodeID, now: float) -> None:
        """There is a new connection to another node."""
        if self._backups is not None and self.state is RUNNING:
            self._backups.connected(snid, self._pending, now)

    def tick(self, now: float) -> None:
        """Flush commit contexts that nothing followed; as a backup, say how far it is while no cut does; as a primary,
        send again what backups have not acknowledged, and give up on one that stays silent (M7)."""
        if self.durable_version < self.version == self._version_at_tick and self.healthy:
            self._staging.flush_commits()
        self._version_at_tick = self.version
        if self._owes_ack and self._pending and self.state is RUNNING:
            self._send_ack(node_address(self.primary))
        self._owes_ack = False
        if self._backups is None or self.state is not RUNNING:
            return
        silent = self._backups.tick(self._pending, now)
        if silent is not None:
            self._observe(Branch.M7_BACKUP_SILENT)
            self.suspect = silent
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
        if epoch != self.epoch and not self.is_copying:  # rule 9: what was written before a seal does not count after
            self._observe(Branch.RULE9_COMPLETION_DROPPED)
            return
        if end > self.durable_end:
            self.durable_end = end
            self.changed = True
        self._owes_ack = self.state is RUNNING and self.primary != self.snid

    # Commits

    def apply_commit(self, cc: CommitContext) -> bool:
        """Apply one cut, all or nothing. False if cuts before it are missing here, or it cannot be applied."""
        if not self.healthy or self.is_copying:
            return False
        llsn_end = cc.llsn_end
        if llsn_end <= self.committed_end:
            return True  # committing again what is committed is harmless (B10)
        if cc.llsn_begin > self.committed_end or cc.epoch > self.epoch:
            return False  # what is missing, or was written without this replica, must be copied
        if cc.llsn_begin != self.committed_end:
            detail = f"log stream {self.lsid}: cut {cc} does not begin at the committed end {self.committed_end}"
            invariants.require(Invariant.EQUAL_PREFIXES, False, detail)
        if self.seal_point is not None and llsn_end > self.seal_point:
            detail = f"log stream {self.lsid}: cut {cc} goes beyond the seal point {self.seal_point}"
            invariants.require(Invariant.NOTHING_AFTER_SEAL, False, detail)
        if not self._pending.holds(cc):
            self._drop_foreign()
            return False
        if self.state is not RUNNING and cc.llsn_end > self.durable_end:
            return False  # copied and not synced yet: the cut knows nothing of this replica
        if cc.epoch < self.epoch:
            self._observe(Branch.RULE8_COMMITTED_AFTER_SEAL)
        self._commit(cc)
        if self.seal_point is not None and self._reach_seal_point():
            self._observe(Branch.RULE8_SEALED_BY_CUTS)
        return True

    def _drop_foreign(self) -> None:
        """What is committed in the place of what is stored here, or of nothing, has to be copied (rule 7)."""
        if self._pending:
            self._observe(Branch.RULE7_FOREIGN_FRAMES_DROPPED)
            self._void_from(self.committed_end)
            self._staging.seal(self.epoch, self.committed_end)
        self.needs_sync = True
        self.changed = True
        self.seal_self()

    def _commit(self, cc: CommitContext) -> None:
        if cc.hwm < self.global_hwm:
            detail = f"log stream {self.lsid}: {cc} is below {self.global_hwm}"
            invariants.require(Invariant.HWM_MONOTONE, False, detail)
        llsn_end = cc.llsn_end
        committed = self._pending.commit(llsn_end)
        for source, answer in acknowledgements(self.lsid, committed, cc, len(self.replicas), self._log.synced):
            self._send(source, answer)
        if self.dedup.commit(cc):
            self._observe(Branch.RULE18_EXPIRED)
        self.commits += 1
        self.committed_end = llsn_end
        self.local_hwm = GLSN(cc.glsn_end - 1)
        self.global_hwm = cc.hwm
        self.version = cc.version
        if self._backups is not None:
            self._backups.committed(llsn_end)
        self._staging.commit(cc)

    # What is copied from another replica (M9)

    def store_copied(
        self, epoch: Epoch, prev_sequence: Sequence, header: BatchHeader, batch: bytes | memoryview
    ) -> None:
        """A committed batch of another replica that follows what is stored here. It stays of the epoch that it was
        written in; a later one than is promised here is promised by it, also after a restart: a seal before that epoch
        ended below this batch."""
        size, _, _, _, count, _, writer_id, sequence, _, _ = header
        llsn = self.end
        self._staging.batch(llsn, epoch, prev_sequence, batch, header)
        self._pending.add_run((Pending(llsn, count, epoch, writer_id, sequence, prev_sequence, size),))
        self.end = LLSN(llsn + count)
        self.epoch = max(self.epoch, epoch)

    def commit_copied(self, cc: CommitContext) -> bool:
        """A commit context of another replica. It counts once its batches are durable here, as any cut does; until
        then, and if it is not about what is stored here, False."""
        if cc.llsn_begin != self.committed_end or cc.llsn_end > self.durable_end or not self._pending.holds(cc):
            return False
        self._commit(cc)
        self._reach_seal_point()
        return True

    # How far it is complete

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
