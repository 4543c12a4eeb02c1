"""LogStreamContext: what one replica of a log stream knows of itself (B8), how it recovers it (B3, B10), and what it
tells others of it.

The state is changed by the classes built on this one: `sealing` has seals, unseals and what they promise, `executor`
has the batches and the cuts. `states` has the table of its states.
"""

from __future__ import annotations

from varlog import errors
from varlog.core import invariants, states
from varlog.core.address import Address, Send
from varlog.core.branches import Branch, Observe
from varlog.core.dedup import DedupTable
from varlog.core.invariants import Invariant
from varlog.core.messages import ReplicaInfo, ReplicaReply, ReplicaStats, ReportLine
from varlog.core.pending import Pending, PendingBatches, Question
from varlog.core.replicalog import Context, ReplicaLog
from varlog.core.replication import Backups
from varlog.core.staging import Staging
from varlog.core.states import SEALING
from varlog.types import FIRST_LLSN, GLSN, LLSN, Epoch, LogStreamID, Sequence, StorageNodeID, TopicID, Version, WriterID


class LogStreamContext:
    """See the module's text."""

    is_alone = False
    """What it stored last came when nothing else was uncommitted here."""

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
        self._log = log
        self._send = send
        self._observe = observe

        self.state = SEALING
        self.epoch = Epoch(0)
        self.replicas: tuple[StorageNodeID, ...] = ()
        self.primary = StorageNodeID(0)
        self.healthy = True
        """False once its disk failed or its files are corrupt: it needs repair."""
        self.fault = 0
        """The code of the error that made it so."""
        self.needs_sync = False
        """It lacks what no cut can bring it: only a copy can (rule 7)."""
        self.suspect = StorageNodeID(0)
        """The backup that was silent, of a primary that sealed itself because of that (M7)."""

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

        self.is_copying = False
        """What is stored now comes from another replica, in the epochs it was written in (M9)."""
        self.source = StorageNodeID(0)
        self.source_end = LLSN(0)
        """The node it copies from, and how far that was a moment before it last answered."""

        # Since the node started (M12).
        self.batches = self.entries = self.bytes = self.commits = self.refused = self.scans = self.syncs = 0

        self.dedup = dedup or DedupTable()
        self._staging = Staging(log, self.dedup)
        self._pending = PendingBatches()
        self._promise: Epoch | None = None
        """An epoch whose seal or unseal record is not durable yet."""
        self._promised_end = LLSN(1)
        """What was stored before that record ends here."""
        self._promise_waiters: list[tuple[Address, int]] = []
        self._undecided: dict[tuple[Address, WriterID, Sequence], Question] = {}
        """Appends of a passed epoch whose fate this replica will know once it reaches its seal point; of each the
        question that came last."""
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
        found = context.uncommitted
        run = [Pending(b.llsn, b.count, b.epoch, b.writer_id, b.sequence, b.prev_sequence, b.size) for b in found]
        self._pending.add_run(run)
        self.dedup.recover(context.dedup_snapshot, context.dedup_tail)
        self._observe(Branch.B7_STARTED_SEALING)

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
    def is_behind(self) -> bool:
        """Something is committed that is missing here: the node should fetch the cuts (rule 8)."""
        return self.healthy and self.committed_end < self.known_end

    @property
    def known_end(self) -> LLSN:
        """The end of what is committed, as far as this replica was told."""
        return max(self.listed_end, self.seal_point or FIRST_LLSN)

    @property
    def is_promising(self) -> bool:
        """A seal or unseal record is not durable yet."""
        return self._promise is not None

    def report_line(self) -> ReportLine:
        return (self.lsid, self.epoch, self.durable_version, self.committed_end, self.durable_end, self.healthy)

    def info(self) -> ReplicaInfo:
        # A seal is told of when it is durable: what is decided on it must not wait for a disk.
        state = states.SEALING if self.state is states.SEALED and self._promise is not None else self.state
        stats = ReplicaStats(self.batches, self.entries, self.bytes, self.commits, self.refused, self.scans, self.syncs)
        return ReplicaInfo(
            self.lsid, self.epoch, state, self.committed_end, self.durable_end, self.healthy, self.tpid,
            self.fault, self.global_hwm, self.local_hwm, self.trim_glsn, stats=stats, needs_sync=self.needs_sync,
            source=self.source, source_end=self.source_end, suspect=self.suspect,
        )  # fmt: skip

    def _reply(self, source: Address, request: int, code: int) -> None:
        reply = ReplicaReply(request, self.lsid, code, self.snid, self.epoch, self.state, self.committed_end)
        self._send(source, reply)
