"""Sealing: how a replica stops and starts (M5, M10), what it promises by that, and who is told what became of appends.

A seal or unseal is a promise of an epoch, and it is kept in a record: nobody is answered before the record is durable.
A replica that has failed promises nothing any more. A seal fixes where the log ends. What is stored above that is void;
who waits for such a batch is told its fate once the replica has everything below, because only then it can be known
(rule 19).

What must always hold: nothing below `committed_end` is ever dropped; the promised epoch only grows.
"""

from __future__ import annotations

from varlog import errors
from varlog.core import invariants, states
from varlog.core.address import Address
from varlog.core.branches import Branch
from varlog.core.context import LogStreamContext
from varlog.core.dedup import Fate
from varlog.core.gaps import EPOCHS_SKIPPED
from varlog.core.invariants import Invariant
from varlog.core.messages import AppendReply, Seal, Unseal
from varlog.core.pending import Question
from varlog.core.replication import Backups
from varlog.core.states import RUNNING, SEALED, SEALING
from varlog.types import GLSN, LLSN, Epoch, StorageNodeID


class Sealing(LogStreamContext):
    """See the module's text."""

    def seal(self, source: Address, message: Seal) -> None:
        """M5: stop at the last committed LSN the metadata repository has fixed."""
        if not self.healthy:  # it can promise nothing, and it takes nothing either
            self._reply(source, message.request, self.fault)
            return
        if self.skips(message.epoch):
            self._reply(source, message.request, errors.Busy.code)
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
        if self.fault:
            self._reply(source, message.request, self.fault)
            return
        if message.epoch > self.epoch:
            self._promise_seal(message.epoch, message.llsn_end)
        else:
            self._observe(Branch.RULE2_SEAL_REPEATED)
            self.seal_point = message.llsn_end
            self._reach_seal_point()
        self._reply_when_promised(source, message.request)

    def skips(self, epoch: Epoch) -> bool:
        """Whether an epoch is so far above those that this replica knows of that a backup was restored. Then the
        metadata repository has to list it first: it would not if it lacked what this replica has seen (rule 5)."""
        return self.epoch > 0 and epoch - max(self.epoch, self.listed_epoch) >= EPOCHS_SKIPPED // 2

    def _promise_seal(self, epoch: Epoch, llsn_end: LLSN) -> None:
        # A batch across the seal point can only be one of an epoch after which the log went on without this replica: it
        # was never committed, and what is below the point in its place is to be copied (rule 7).
        across = self._pending.across(llsn_end)
        kept_end = across.llsn if across is not None and across.epoch < epoch - 1 else llsn_end
        self._void_from(kept_end)
        self.epoch = epoch
        self.seal_point = llsn_end
        self._backups = None
        self._promise_epoch(epoch)
        self._staging.seal(epoch, kept_end)
        complete = self.committed_end == llsn_end and self.healthy
        self._observe(Branch.M5_SEALED_AT_ONCE if complete else Branch.M5_SEALING)
        self._enter(states.Event.SEAL_COMPLETE if complete else states.Event.SEAL_BEHIND)
        if complete:
            self._is_complete()

    def _promise_epoch(self, epoch: Epoch) -> None:
        """A record of it is about to be staged; until that is durable nobody is told."""
        self._promise = epoch
        self._promised_end = self.end
        self.changed = True

    def _on_promise_durable(self) -> None:
        # File order makes the record a barrier: every batch staged before it is durable too.
        self._promise = None
        self.durable_end = max(self.durable_end, min(self._promised_end, self.end))
        self.changed = True
        waiters, self._promise_waiters = self._promise_waiters, []
        for source, request in waiters:
            self._reply(source, request, 0)

    def _void_from(self, llsn_end: LLSN) -> None:
        """Forget every uncommitted batch at or above a point; who waits for one is told once that can be known."""
        voided = self._pending.void(llsn_end)
        for batch in voided:
            for source, request in batch.waiters:
                question = Question(source, request, batch.writer_id, batch.sequence, batch.llsn)
                self._undecided[question.subject] = question
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
            self._is_complete()
        return reached

    def _is_complete(self) -> None:
        """Nothing below its seal point is missing: what became of any append can be told."""
        self.needs_sync = False
        questions, self._undecided = self._undecided, {}
        for question in questions.values():
            self._tell_fate(question)

    def seal_self(self) -> None:
        """Take no more appends; the stored ones await the Seal (M7, M8)."""
        if self.state is not SEALING:
            self._enter(states.Event.SEAL_SELF)

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
        if self.fault:
            self._reply(source, message.request, self.fault)
            return
        self.epoch = message.epoch
        self.replicas, self.primary = members
        self.seal_point = None
        self.suspect = StorageNodeID(0)
        self._promise_epoch(self.epoch)
        self._enter(states.Event.UNSEAL)
        self._staging.unseal(self.epoch, self.replicas, self.primary)
        if self.primary == self.snid and len(self.replicas) > 1:
            others = tuple(snid for snid in self.replicas if snid != self.snid)
            self._backups = Backups(self.lsid, self.epoch, others, self.end, self._send, now)
        self._reply_when_promised(source, message.request)

    def begin_copy(self, epoch: Epoch) -> None:
        """Be ready to copy from another replica: forget all that is not committed, durably, before the first batch of
        the copy is stored. A replica outside the set that learns of a later epoch has missed what came between."""
        self.seal_self()
        if epoch > self.epoch:
            self.epoch = epoch
            self.seal_point = None
            self._backups = None
        if self._pending:
            self._observe(Branch.RULE7_FOREIGN_FRAMES_DROPPED)
        self._void_from(self.committed_end)
        self._promise_epoch(self.epoch)
        self._staging.seal(self.epoch, self.committed_end)

    def trim(self, glsn: GLSN) -> None:
        """Everything at or below `glsn` is gone: enforced at once, files follow (rule 14)."""
        if glsn <= self.trim_glsn:
            return
        self.trim_glsn = glsn
        if self.healthy:
            try:
                self._staging.trim(glsn, self.version, self.epoch)
            except errors.Corrupt:  # the index says no more where to trim
                self.on_corrupt()

    def _reply_when_promised(self, source: Address, request: int) -> None:
        if self._promise is None:
            self._reply(source, request, 0)
        else:
            self._promise_waiters = [w for w in self._promise_waiters if w[0] != source]
            self._promise_waiters.append((source, request))

    # The fate of an append (rule 19)

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
        pending.waiters = (*(w for w in pending.waiters if w[0] != source), (source, request))

    def _acknowledge(self, source: Address, request: int, glsn: GLSN, llsn: LLSN, count: int, epoch: Epoch) -> None:
        self._send(
            source, AppendReply(request, self.lsid, 0, epoch, glsn, llsn, count, len(self.replicas), self._log.synced)
        )
