"""StorageNode: the executors of one node and their line to the metadata repository, without I/O.

It hands each message to the executor it is for, gathers what changed into one report for all log streams, and follows
the metadata repository's versions. Commits form a chain: one is applied only if it begins at the version the node has
reached. Anything else is a gap, and a node with a gap asks for the current state (`Snapshot`) and then, for each
replica that turns out to be behind, for the cuts it missed (`FetchCuts`). So nothing is assumed to be known after a
reconnect, and nothing depends on a message having arrived (rule 5). A replica that the cuts do not complete needs a
copy of another one (`syncing`).

The caller's duties, in order: `on_message`, `on_durable` or `tick`; then run the `reads` that were asked for and hand
their results to `finish_scan`; then `flush`; then `stage`; then write what the executors have staged. For copies there
are three more, whenever it suits after any of these calls, and `chainnode` has those for replicas of chains (`chains`):

- *Sources.* Take `syncing.fetches`; for each plan call `storage.copy_from(fetch.llsn_begin, fetch.after,
  fetch.max_bytes, plan.executor.dedup.fold)` of its replica, in any thread, and hand what it returns, or the
  VarlogError it raises, to `finish_fetch`; on Corrupt, `storage.condemn` it first, as for a read.
- *Restarts.* Take `syncing.restarts`; for each plan make its base with `storage.copying.base_of(plan.base, plan.epoch)`
  (which refuses what is none), `remove` the replica, delete its directory once no group and no read of it is under way,
  make it anew with `LogStreamStorage.create(..., base=base)` on the same volume, `add` an executor that has recovered
  from that, and call `syncing.resume` with it. A crash in the middle leaves the old replica, or none: the manager adds
  it again.
- *Time.* When `syncing.due` has come, `flush` and `stage`, though nothing else may have happened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from typing import Any, Final, NamedTuple, NoReturn

from varlog import batch, errors, limits
from varlog.core.address import METADATA_REPOSITORY, Address, Send
from varlog.core.branches import Branch, Observe
from varlog.core.chainnode import ChainNode
from varlog.core.executor import LogStreamExecutor
from varlog.core.messages import (
    Append,
    AppendReply,
    Commit,
    Cuts,
    FetchCuts,
    FetchLog,
    GetInfo,
    Info,
    LogPart,
    Message,
    ReplicaReply,
    Replicate,
    ReplicateAck,
    Report,
    Scan,
    ScanReply,
    Seal,
    Snapshot,
    StoredLine,
    Sync,
    SyncReply,
    Unseal,
)
from varlog.core.replicalog import CopiedPart
from varlog.core.sifting import sifted
from varlog.core.syncing import FetchPlan, Syncing
from varlog.tuples import new_tuple
from varlog.types import GLSN, LLSN, CommitContext, Epoch, LogStreamID, ReplicaState, StorageNodeID, TopicID, Version

KEEP_ALIVE: Final = 1.0
FETCH_AGAIN: Final = 0.5
FETCH_RARELY: Final = 5.0
"""By a replica that was told no cuts that it could use."""
SCAN_WAIT: Final = 5.0


class ReadPlan(NamedTuple):
    """A read that the executor allows; the caller does it."""

    source: Address
    scan: Scan
    executor: LogStreamExecutor
    glsn_end: GLSN
    last_glsn: GLSN
    """The last GLSN of the log stream below `glsn_end`: a result that stops before it was cut short."""


class _WaitingScan(NamedTuple):
    source: Address
    scan: Scan
    deadline: float


class StorageNode:
    """See the module's text."""

    def __init__(self, snid: StorageNodeID, boot: int, send: Send, observe: Observe) -> None:
        self.snid = snid
        self.boot = boot
        """Greater at every start of this node."""
        self.version = Version(0)
        self.reads: list[ReadPlan] = []
        self.syncing = Syncing(send, observe)
        self.chains = ChainNode(snid, send, observe)
        """The replicas of log streams that a sequencer orders."""
        self._send = send
        self._observe = observe
        self._executors: dict[LogStreamID, LogStreamExecutor] = {}
        self._of_topic: dict[TopicID, list[LogStreamExecutor]] = {}
        self._waiting: dict[LogStreamID, list[_WaitingScan]] = {}
        self._hwms: dict[TopicID, GLSN] = {}
        """As of `version`."""
        self._fetched: dict[LogStreamID, float] = {}
        self._unsent: dict[LogStreamExecutor, None] = {}
        """Primaries of what their backups have not been sent yet."""
        self._unstaged: dict[LogStreamExecutor, None] = {}
        """Those that may hold something back."""
        self._stored: LogStreamExecutor | None = None
        """The last one that was given something to store."""
        self._seq = 0
        self._asks = True
        self._reported = -KEEP_ALIVE
        self._owed_since: float | None = None
        """When the first full report was sent that the metadata repository has not answered."""
        self._stream_handlers: dict[type[Message], Callable[[LogStreamExecutor, Address, Any, float], None]] = {
            Append: self._on_append,
            Replicate: self._on_replicate,
            ReplicateAck: self._on_replicate_ack,
            Scan: self._on_scan,
            Seal: self._on_seal,
            Unseal: self._on_unseal,
            Cuts: self._on_cuts,
            Sync: self.syncing.on_sync,
            FetchLog: self._on_fetch,
            LogPart: self._on_part,
        }

    def add(self, executor: LogStreamExecutor) -> None:
        """Serve one more replica."""
        self._executors[executor.lsid] = executor
        self._of_topic.setdefault(executor.tpid, []).append(executor)
        self._asks = True

    def remove(self, lsid: LogStreamID) -> None:
        """Serve a replica no more; whoever waits for something of it is told that it is unknown here."""
        if lsid in self.chains:
            self.chains.remove(lsid)
            return
        executor = self._executors.pop(lsid)
        others = self._of_topic[executor.tpid]
        others.remove(executor)
        if not others:
            del self._of_topic[executor.tpid]
            self._hwms.pop(executor.tpid, None)
        self._fetched.pop(lsid, None)
        self._unsent.pop(executor, None)
        self._unstaged.pop(executor, None)
        self.syncing.drop(lsid)
        self._stored = None
        for waiting in self._waiting.pop(lsid, ()):
            self._answer_unknown(waiting.source, waiting.scan)

    def on_reconnected(self) -> None:
        """The way to the metadata repository is a new one: nothing is assumed known at its other end (rule 5)."""
        self._asks = True

    def on_peer_connected(self, snid: StorageNodeID, now: float) -> None:
        """There is a new connection to another node; what its replicas lack, or are asked for, is sent there again."""
        self.syncing.on_peer_connected(snid)
        self.chains.on_peer_connected(snid)
        for executor in self._executors.values():
            executor.on_peer_connected(snid, now)

    @property
    def executors(self) -> Seq[LogStreamExecutor]:
        return list(self._executors.values())

    @property
    def is_quiet(self) -> bool:
        """Whether no more than one batch is under way where something was last stored: nothing is on its way then
        that it would pay to wait for."""
        stored = self._stored
        return (stored is None or stored.uncommitted <= 1) and self.chains.is_quiet

    @property
    def is_alone(self) -> bool:
        """Whether what was last stored came when nothing else was under way on its log stream."""
        return self._stored is not None and self._stored.is_alone

    @property
    def is_under_way(self) -> bool:
        """Whether something is stored and not committed where something was last stored."""
        return self._stored is not None and self._stored.uncommitted > 0

    def on_message(self, source: Address, message: Message, now: float) -> None:
        """Anything that arrives for this node."""
        handle = self._stream_handlers.get(type(message))
        if handle is not None:
            executor = self._executors.get(message.lsid)  # type: ignore[attr-defined]
            if executor is None:
                self._answer_unknown(source, message)
            else:
                handle(executor, source, message, now)
            return
        if type(message) in self.chains.handlers:
            self._on_chain_message(source, message, now)
            return
        match message:
            case Commit():
                self._on_commit(message, now)
            case Snapshot():
                self._on_snapshot(message, now)
            case GetInfo(request):
                infos = [executor.info() for executor in self._executors.values()]
                replicas = (*infos, *[replica.info() for replica in self.chains.replicas])
                self._send(source, Info(request, self.snid, self.boot, replicas, unanswered=self.unanswered(now)))
            case _:
                raise errors.InvalidArgument(f"a storage node does not take {type(message).__name__}")

    def _on_chain_message(self, source: Address, message: Message, now: float) -> None:
        lsid: LogStreamID = message.lsid  # type: ignore[attr-defined]
        if lsid in self._executors:
            error = errors.WrongOrdering(f"log stream {lsid} is ordered by commit; append to its primary instead")
            self.chains.refuse(source, message, error)
        else:
            self.chains.on_message(source, message, now)

    def _on_replicate_ack(
        self, executor: LogStreamExecutor, _source: Address, message: ReplicateAck, now: float
    ) -> None:
        executor.on_replicate_ack(message, now)

    def _on_seal(self, executor: LogStreamExecutor, source: Address, message: Seal, now: float) -> None:
        if executor.skips(message.epoch):
            self._asks = True
        executor.seal(source, message)
        self.syncing.on_sealed(executor)
        self._fetch_if_behind(executor, now)

    def _on_unseal(self, executor: LogStreamExecutor, source: Address, message: Unseal, now: float) -> None:
        executor.unseal(source, message, now)

    def _on_fetch(self, executor: LogStreamExecutor, source: Address, message: FetchLog, _now: float) -> None:
        self.syncing.on_fetch(executor, source, message)

    def _on_part(self, executor: LogStreamExecutor, _source: Address, message: LogPart, now: float) -> None:
        self.syncing.on_part(executor, message, now)

    def on_appends(self, source: Address, messages: Iterable[Append], now: float) -> None:
        """As `on_message` of one after another, all from one source, in a fraction of the time."""
        of_stream: dict[LogStreamID, list[Append]] = {}
        for message in messages:
            of_stream.setdefault(message.lsid, []).append(message)
        for lsid, appends in of_stream.items():
            executor, headers = self._executors.get(lsid), _verified(appends)
            if executor is None or headers is None:
                for append in appends:
                    self.on_message(source, append, now)
            else:
                executor.append_all(source, appends, headers, now)
                self._unsent[executor] = None
                self._unstaged[executor] = None
                self._stored = executor

    def _on_append(self, executor: LogStreamExecutor, source: Address, message: Append, now: float) -> None:
        try:
            header = batch.verify(message.batch)
            if header.writer_id == 0:
                raise errors.InvalidArgument("an appended batch names its writer")
        except errors.VarlogError as error:
            self._send(source, AppendReply(message.request, message.lsid, error.code, executor.epoch))
            return
        executor.append(source, message, header, now)  # what comes alone is staged at once
        self._unsent[executor] = None
        self._stored = executor

    def _on_replicate(self, executor: LogStreamExecutor, source: Address, message: Replicate, _now: float) -> None:
        batches = message.batches
        is_alone = len(batches) == 1
        try:
            headers = batch.verify_all(batches)
        except errors.VarlogError:
            executor.refuse_replicate(source, message)
            return
        executor.on_replicate(source, message, headers)
        self._stored = executor
        if not is_alone:
            self._unstaged[executor] = None

    def _answer_unknown(self, source: Address, message: Message) -> None:
        is_chained = message.lsid in self.chains  # type: ignore[attr-defined]
        code = errors.WrongOrdering.code if is_chained else errors.UnknownLogStream.code
        match message:
            case Append(request, lsid):
                self._send(source, AppendReply(request, lsid, code, Epoch(0)))
            case Scan(request, lsid):
                self._send(source, ScanReply(request, lsid, code))
            case Seal(request, lsid) | Unseal(request, lsid):
                state = ReplicaState.SEALING
                self._send(source, ReplicaReply(request, lsid, code, self.snid, Epoch(0), state, LLSN(0)))
            case Sync(request, lsid):
                self._send(source, SyncReply(request, lsid, code, self.snid, False))
            case FetchLog(request, lsid):
                self._send(source, LogPart(request, lsid, code, LLSN(0)))
            case _:
                pass  # not a request: there is nobody to tell

    # The metadata repository's versions

    def _on_commit(self, message: Commit, now: float) -> None:
        if message.version <= self.version:
            if message.prev_version == message.version:  # all that a full report is answered with when nothing happened
                self._on_answered()
            return
        if message.prev_version != self.version:
            if message.prev_version > self.version:
                self._asks = True
            return
        hwms = {tpid: (prev_hwm, hwm) for tpid, prev_hwm, hwm in message.hwms}
        listed: list[LogStreamExecutor] = []
        for lsid, epoch, llsn_end in message.epochs:
            if (executor := self._executors.get(LogStreamID(lsid))) is not None:
                executor.listed_epoch = Epoch(epoch)
                executor.listed_end = LLSN(llsn_end)
                listed.append(executor)
        for lsid, epoch, llsn_begin, glsn_begin, count in message.ranges:
            if (executor := self._executors.get(LogStreamID(lsid))) is None:
                continue
            prev_hwm, hwm = hwms[executor.tpid]
            fields = (message.version, epoch, hwm, prev_hwm, llsn_begin, glsn_begin, count, message.time)
            executor.listed_end = LLSN(llsn_begin + count)
            if not executor.apply_commit(new_tuple(CommitContext, fields)):
                self._fetch_if_behind(executor, now)
        self.version = message.version
        if message.trims:
            self._trim(message.trims)
        self._raise_hwms([(tpid, hwm) for tpid, (_, hwm) in hwms.items()])
        for executor in listed:
            # One that runs again is as complete as the topic is, though no cut may follow that says so.
            if executor.epoch == executor.listed_epoch:
                executor.raise_hwm(self._hwms.get(executor.tpid, GLSN(0)))
                if executor.lsid in self._waiting:
                    self._wake(executor)

    def _on_snapshot(self, message: Snapshot, now: float) -> None:
        known_version = message.known_version or message.version
        if known_version < message.reported_version:
            self._stop_on_old_metadata(f"version {message.reported_version}", f"version {known_version}")
        for lsid, epoch, last in message.unknown_epochs:
            self._stop_on_old_metadata(f"epoch {epoch} of log stream {lsid}", f"epoch {last} there")
        if message.version < self.version:
            return
        self.version = message.version
        self._asks = False
        self._on_answered()
        for hosted in self._executors.values():
            hosted.listed_epoch = Epoch(0)  # what the snapshot does not list, its watermark says nothing of
        for end in message.streams:
            if (executor := self._executors.get(end.lsid)) is None:
                continue
            if executor.version <= message.version and executor.committed_end > end.llsn_end:
                known = f"log stream {end.lsid} committed to {executor.committed_end}"
                self._stop_on_old_metadata(known, f"{end.llsn_end} there")
            executor.listed_epoch = end.epoch
            executor.listed_end = end.llsn_end
            if executor.committed_end == end.llsn_end:
                self._observe(Branch.RULE4_COMPLETE_BY_SNAPSHOT)
            self._fetch_if_behind(executor, now)
        self._trim((tpid, trim) for tpid, _, trim in message.topics)
        self._raise_hwms((tpid, hwm) for tpid, hwm, _ in message.topics)

    def _on_answered(self) -> None:
        """A full report was answered: the first of those that were not yet, as far as can be known."""
        if self._owed_since is not None:
            self.chains.renew(self._owed_since)
            self._owed_since = None

    def _stop_on_old_metadata(self, seen: str, now: str) -> NoReturn:
        self._observe(Branch.RULE5_METADATA_WENT_BACK)
        raise errors.ConsistencyViolation(
            f"node {self.snid} has seen {seen}, but the metadata repository is at {now}: its metadata was restored "
            "from an older state; nothing is lost: rebuild it, see varlog metadata rebuild --help"
        )

    def _raise_hwms(self, hwms: Iterable[tuple[int, int]]) -> None:
        for tpid, hwm in hwms:
            self._hwms[TopicID(tpid)] = GLSN(hwm)
            for executor in self._of_topic.get(TopicID(tpid), ()):
                executor.raise_hwm(GLSN(hwm))
                if executor.lsid in self._waiting:
                    self._wake(executor)

    def _trim(self, trims: Iterable[tuple[int, int]]) -> None:
        for tpid, glsn in trims:
            self.chains.trim(TopicID(tpid), GLSN(glsn))
            for executor in self._of_topic.get(TopicID(tpid), ()):
                executor.trim(GLSN(glsn))
                if not executor.healthy:
                    self._send_away(executor)
                elif executor.lsid in self._waiting:
                    self._wake(executor)

    def _fetch_if_behind(self, executor: LogStreamExecutor, now: float) -> None:
        if not executor.is_behind:
            self._fetched.pop(executor.lsid, None)
            executor.needs_sync = False
            return
        again = FETCH_RARELY if executor.needs_sync else FETCH_AGAIN
        if now - self._fetched.get(executor.lsid, -again) >= again and not executor.is_copying:
            self._fetched[executor.lsid] = now
            self._send(METADATA_REPOSITORY, FetchCuts(self.snid, executor.lsid, executor.version))

    def _on_cuts(self, executor: LogStreamExecutor, _source: Address, message: Cuts, now: float) -> None:
        if executor.is_copying:
            return
        before = executor.committed_end
        is_usable = bool(message.cuts)
        for cc in message.cuts:
            is_usable = executor.apply_commit(cc)
            if not is_usable:
                break
        if executor.committed_end == before:
            if message.llsn_end < executor.known_end:  # from one that leads no more, and has not heard of the rest
                self._observe(Branch.RULE7_ASKED_TOO_LITTLE)
            elif not is_usable and executor.is_behind and not executor.needs_sync:
                self._observe(Branch.RULE7_NEEDS_SYNC)
                executor.needs_sync = True
            return
        executor.needs_sync = False
        self._raise_hwms([(executor.tpid, self._hwms.get(executor.tpid, GLSN(0)))])
        if executor.lsid in self._waiting:
            self._wake(executor)
        self._fetched.pop(executor.lsid, None)  # there may be more than one reply holds
        self._fetch_if_behind(executor, now)

    # Reads

    def _on_scan(self, executor: LogStreamExecutor, source: Address, scan: Scan, now: float) -> None:
        if not self._try_scan(executor, source, scan):
            waiting = self._waiting.setdefault(executor.lsid, [])
            if scan.wait and executor.healthy and len(waiting) < limits.MAX_WAITING_READS:
                waiting.append(_WaitingScan(source, scan, now + SCAN_WAIT))
            else:
                self._answer_not_yet(executor, source, scan)

    def _try_scan(self, executor: LogStreamExecutor, source: Address, scan: Scan) -> bool:
        if scan.glsn_begin <= executor.trim_glsn:
            self._observe(Branch.RULE14_TRIM_ENFORCED)
            first = GLSN(executor.trim_glsn + 1)
            self._send(source, ScanReply(scan.request, scan.lsid, errors.Trimmed.code, first=first))
            return True
        if scan.glsn_begin > executor.global_hwm:
            return False
        hwm = executor.global_hwm
        self.reads.append(ReadPlan(source, scan, executor, GLSN(hwm + 1), min(executor.local_hwm, hwm)))
        return True

    def _answer_not_yet(self, executor: LogStreamExecutor, source: Address, scan: Scan) -> None:
        self._observe(Branch.RULE10_NOT_YET)
        reply = ScanReply(scan.request, scan.lsid, errors.NotYet.code, complete_to=executor.global_hwm)
        self._send(source, reply)

    def _wake(self, executor: LogStreamExecutor) -> None:
        still = [w for w in self._waiting[executor.lsid] if not self._try_scan(executor, w.source, w.scan)]
        if still:
            self._waiting[executor.lsid] = still
        else:
            del self._waiting[executor.lsid]

    def _send_away(self, executor: LogStreamExecutor) -> None:
        """Who waits for a replica that takes nothing any more waits in vain; others may have what it lacks."""
        for waiting in self._waiting.pop(executor.lsid, ()):
            self._answer_not_yet(executor, waiting.source, waiting.scan)

    def finish_scan(self, plan: ReadPlan, result: Seq[StoredLine] | errors.VarlogError) -> None:
        """Answer a read that the caller has done."""
        scan = plan.scan
        if isinstance(result, errors.Corrupt):
            self.on_corrupt(plan.executor.lsid)
        if isinstance(result, errors.VarlogError):
            first = GLSN(result.first) if isinstance(result, errors.Trimmed) else GLSN(0)
            reply = ScanReply(scan.request, scan.lsid, result.code, first=first, detail=str(result))
            self._send(plan.source, reply)
            return
        plan.executor.scans += 1
        complete_to = GLSN(plan.glsn_end - 1)
        if result:
            glsn, _, count, *_ = result[-1]
            last = glsn + count - 1
            if last < plan.last_glsn:
                complete_to = GLSN(last)
        lines = tuple(sifted(result) if scan.verdicts else result)
        self._send(plan.source, ScanReply(scan.request, scan.lsid, 0, lines, complete_to))

    def finish_fetch(self, plan: FetchPlan, result: CopiedPart | errors.VarlogError) -> None:
        """Give what the caller has read to a replica that copies."""
        if isinstance(result, errors.Corrupt):
            self.on_corrupt(plan.executor.lsid)
        self.syncing.finish_fetch(plan, result)

    # Durability, reports, time

    def on_durable(
        self, lsid: LogStreamID, batches: tuple[Epoch, LLSN] | None, promises: Seq[Epoch], version: Version
    ) -> None:
        """What an executor staged is written and synced; see `LogStreamExecutor.on_durable`."""
        self._executors[lsid].on_durable(batches, promises, version)

    def on_failed(self, lsid: LogStreamID, error: errors.VarlogError) -> None:
        """Writing what a replica staged has failed."""
        if lsid in self.chains:
            self.chains.on_failed(lsid, error)
            return
        self._executors[lsid].on_failed(error.code)
        self._send_away(self._executors[lsid])

    def on_corrupt(self, lsid: LogStreamID) -> None:
        """Stored bytes of a replica turned out to be damaged."""
        if lsid in self.chains:
            self.chains.on_corrupt(lsid)
            return
        executor = self._executors.get(lsid)
        if executor is not None:
            executor.on_corrupt()
            self._send_away(executor)

    def tick(self, now: float) -> None:
        """Called a few times a second."""
        for executor in self._executors.values():
            executor.tick(now)
            self._fetch_if_behind(executor, now)
        self.syncing.tick(now)
        self.chains.tick(now)
        for lsid in list(self._waiting):
            self._expire_waiting(self._executors[lsid], now)
        if now - self._reported >= KEEP_ALIVE or self._asks:
            self._report(self._executors.values(), now, full=True)

    def _expire_waiting(self, executor: LogStreamExecutor, now: float) -> None:
        waiting = self._waiting[executor.lsid]
        for w in waiting:
            if w.deadline <= now:
                self._answer_not_yet(executor, w.source, w.scan)
        self._waiting[executor.lsid] = [w for w in waiting if w.deadline > now]

    def is_news(self, message: Message) -> bool:
        """Whether it is more than a metadata repository's word that it has heard a report: all that arrives in an idle
        cluster."""
        return not isinstance(message, Commit) or not message.prev_version == message.version <= self.version

    @property
    def has_news(self) -> bool:
        """Whether `flush` has something to send."""
        if self._unsent or self.syncing or self.chains.copying:
            return True
        for executor in self._executors.values():  # noqa: SIM110  # for every message: no generator
            if executor.changed:
                return True
        return False

    def flush(self, now: float) -> None:
        """Send the backups what was appended, let copies go on, then report what changed, all log streams in one
        message."""
        if self._unsent:
            for executor in self._unsent:
                executor.flush()
            self._unsent.clear()
        if self.syncing:
            self._advance_copies(now)
        self.chains.flush(now)
        changed = [executor for executor in self._executors.values() if executor.changed]
        if changed:
            self._report(changed, now, full=False)

    def stage(self) -> None:
        """Stage what was appended or replicated; what goes to the backups should be on its way by now."""
        if self._unstaged:
            for executor in self._unstaged:
                executor.stage()
            self._unstaged.clear()

    def _advance_copies(self, now: float) -> None:
        copying = list(self.syncing)
        self.syncing.advance(now)
        for executor in copying:
            if executor.lsid in self._waiting:
                self._wake(executor)

    def _report(self, executors: Iterable[LogStreamExecutor], now: float, *, full: bool) -> None:
        lines = []
        for executor in executors:
            executor.changed = False
            lines.append(executor.report_line())
        self._seq += 1
        if full:
            self._reported = now
            if self._owed_since is None:
                self._owed_since = now
        ask = full and self._asks
        report = Report(self.snid, self.boot, self._seq, self.seen_version, tuple(lines), full, ask)
        self._send(METADATA_REPOSITORY, report)

    def unanswered(self, now: float) -> float:
        """For how many seconds the metadata repository has owed the answer to a full report; 0 if it owes none."""
        return 0.0 if self._owed_since is None else max(0.0, now - self._owed_since)

    @property
    def seen_version(self) -> Version:
        """The highest version this node knows of, also from what its replicas have stored."""
        return max([self.version, *[executor.version for executor in self._executors.values()]])


def _verified(appends: Iterable[Append]) -> list[batch.BatchHeader] | None:
    """The headers of batches that are sound and name their writers; None if one is not."""
    try:
        headers = batch.verify_all([append.batch for append in appends])
    except errors.VarlogError:
        return None
    return None if 0 in [header[6] for header in headers] else headers
