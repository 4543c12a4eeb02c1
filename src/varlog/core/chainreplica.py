"""ChainReplica: one replica of a log stream that a sequencer orders, without I/O (S3 to S6).

Clients write batches at positions that they were given, in any order, and each position once. The replica knows one
epoch, the greatest it has promised, and serves requests of exactly that one. Its log only *stages* records in order;
whoever runs the replica writes and syncs what is staged, and tells `on_durable`. Until then a writer waits, and so does
whoever is to be told what is there: the value at a position wins once it is told, so it has to outlive a crash.

A *seal* takes on a greater epoch. It is a barrier in the log: when its record is durable, so is all that was staged
before it, which is counted in the `end` it tells; and who waited for that is told StaleEpoch, because in the epoch to
come it is others who find out what became of it (rule 21). Nothing of a smaller epoch is staged behind it.

A replica that is *outside* is no member of the chain of its epoch, as far as it knows: it was sealed as one that joins,
or follows the tail. It serves nobody until it is a copy of the tail (rule 22; `chaincopying` makes it one).

What must always hold:

- what is answered as written is durable, and what is read was durable before;
- an answer is of the epoch that the question named, and was still the replica's when it was given;
- nothing is ever written over: what overlaps something that is there is refused with that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence as Seq
from functools import partial
from operator import itemgetter
from typing import Final, NamedTuple

from varlog import batch, errors, limits
from varlog.batch import BatchHeader
from varlog.core.address import Address, Send
from varlog.core.branches import ChainBranch, Observe
from varlog.core.chaincontext import ChainContext, ChainReadPlan, Placed, Result, check_of
from varlog.core.messages import (
    ChainPart,
    ChainRead,
    ChainSeal,
    ChainSealed,
    ChainWrite,
    ChainWritten,
    Digest,
    GetDigest,
    Refusal,
    StoredLine,
)
from varlog.core.projection import NEVER
from varlog.core.sifting import sifted
from varlog.core.writeoncelog import Held, WriteOnceLog
from varlog.types import GLSN, Epoch, LogStreamID, StorageNodeID, TopicID

READ_WAIT: Final = 5.0
"""A read that waits for something to be written is answered after so long."""


class _Waiting(NamedTuple):
    """A write that is answered when it is durable, and so is what it was refused for."""

    mark: int
    source: Address
    request: int
    epoch: Epoch
    refused: list[Refusal]
    there: list[tuple[int, Held]]
    """Which of the batches met which that is there."""


class _WaitingRead(NamedTuple):
    source: Address
    read: ChainRead
    deadline: float


class _Seal(NamedTuple):
    """The last one that was taken, and what is answered."""

    source: Address
    message: ChainSeal
    mark: int
    end: GLSN
    time: int


class ChainReplica(ChainContext):
    """See the module's text."""

    def __init__(
        self,
        snid: StorageNodeID,
        tpid: TopicID,
        lsid: LogStreamID,
        log: WriteOnceLog,
        send: Send,
        observe: Observe,
        damage: errors.VarlogError | None = None,
    ) -> None:
        super().__init__(snid, tpid, lsid, log, send, observe, damage)
        self._seal: _Seal | None = None
        self._owed: _Seal | None = None
        """The same, until it is answered."""
        self._writes: deque[_Waiting] = deque()
        self._reads: list[_WaitingRead] = []
        self._digests: deque[tuple[int, Address, GetDigest]] = deque()

    @property
    def waits(self) -> bool:
        """Whether there are reads that wait."""
        return bool(self._reads)

    # Writes

    def write(self, source: Address, message: ChainWrite) -> None:
        """Stage what can be, in one go; it is answered when that is durable."""
        why_not = self._why_not(message.epoch) or self._why_no_write(message)
        if why_not is not None:
            self.refuse_write(source, message.request, why_not)
            return
        try:
            refused, there = self._store(message)
        except errors.Corrupt as damage:  # an index that had to be read
            self.on_corrupt()
            self.refuse_write(source, message.request, damage)
            return
        self.written = message.epoch
        self.refused += len(refused) + len(there)
        mark = self.log.staged
        self._writes.append(_Waiting(mark, source, message.request, message.epoch, refused, there))
        if self.log.durable >= mark:
            self._answer_writes()

    def _why_no_write(self, message: ChainWrite) -> errors.VarlogError | None:
        if not self.healthy:
            return self._failure()
        if not 0 < len(message.glsns) == len(message.times) == len(message.batches) <= limits.CHAIN_WRITE_BATCHES:
            return errors.InvalidArgument(f"a write has 1 to {limits.CHAIN_WRITE_BATCHES} batches, each with a place")
        if self._unsynced_bytes > limits.MAX_UNCOMMITTED_BYTES or len(self._writes) >= limits.MAX_UNCOMMITTED_BATCHES:
            return errors.Busy(f"{self._unsynced_bytes} bytes wait for the disk of log stream {self.lsid}")
        return None

    def refuse_write(self, source: Address, request: int, error: errors.VarlogError) -> None:
        """Nothing of it is done."""
        self.refused += 1
        detail = str(error)[: limits.MAX_DETAIL]
        self._send(source, ChainWritten(request, self.lsid, error.code, self.epoch, self.log.synced, detail=detail))

    def _store(self, message: ChainWrite) -> tuple[list[Refusal], list[tuple[int, Held]]]:
        """Stage what goes where nothing is. Returns what is refused for itself, and what for what is there."""
        glsns, times, batches = message.glsns, message.times, message.batches
        try:
            headers = batch.verify_all(batches)
        except errors.VarlogError:
            return self._store_each(message, list(map(_verified, batches)))
        reach = 0
        for glsn, header in zip(glsns, headers, strict=True):
            if glsn < reach:
                return self._store_each(message, headers)
            reach = glsn + header[4]
        is_placed = glsns[0] > self.log.trim and reach <= NEVER and 0 <= min(times) <= max(times) < NEVER
        if not is_placed or self.log.held(GLSN(glsns[0]), GLSN(reach)) is not None:
            return self._store_each(message, headers)
        self._stage(message.epoch, glsns, times, batches, headers)
        return [], []

    def _store_each(
        self, message: ChainWrite, headers: Seq[BatchHeader | errors.VarlogError]
    ) -> tuple[list[Refusal], list[tuple[int, Held]]]:
        """The same for any order, and for batches of which some cannot be taken."""
        refused: list[Refusal] = []
        there: list[tuple[int, Held]] = []
        run: list[Placed] = []
        reach = 0
        columns = zip(message.glsns, message.times, message.batches, headers, strict=True)
        for number, (glsn, time, content, header) in enumerate(columns):
            if isinstance(header, errors.VarlogError):
                refused.append((number, header.code, 0, 0, b""))
                continue
            if (wrong := self._misplaced(glsn, time, header.count)) is not None:
                refused.append((number, wrong.code, 0, 0, b""))
                continue
            if glsn < reach:  # it may overlap what comes with it
                self._stage_run(message.epoch, run)
            held = self.log.held(GLSN(glsn), GLSN(glsn + header.count))
            if held is None:
                run.append((glsn, time, content, header))
                reach = max(reach, glsn + header.count)
            elif held != (glsn, header.count, time, check_of(content)):
                self._observe(ChainBranch.S3_WRITTEN_REFUSED)
                there.append((number, held))
            else:
                self._observe(ChainBranch.S3_SAME_AGAIN)
        self._stage_run(message.epoch, run)
        return refused, there

    def _misplaced(self, glsn: int, time: int, count: int) -> errors.VarlogError | None:
        if not (1 <= glsn <= NEVER - count and 0 <= time < NEVER):
            return errors.InvalidArgument(f"there is no position {glsn}, or no time {time}")
        if glsn + count - 1 <= self.log.trim:  # of one that is cut into, the rest has to be here
            return errors.Trimmed(self.log.trim + 1, glsn)
        return None

    def _answer_writes(self) -> None:
        """Those who waited for what is durable now."""
        durable, writes, synced = self.log.durable, self._writes, self.log.synced
        while writes and writes[0].mark <= durable:
            waiting = writes.popleft()
            if waiting.there:
                self._read_value(waiting, 0)
            else:
                answer = ChainWritten(waiting.request, self.lsid, 0, self.epoch, synced, tuple(waiting.refused))
                self._send(waiting.source, answer)

    def _read_value(self, waiting: _Waiting, told: int) -> None:
        """Read the next batch that a write was refused for; so many bytes of those before it are told already."""
        if told < limits.SCAN_REPLY_BYTES and waiting.there:
            at = GLSN(max(waiting.there[0][1].glsn, self.log.trim + 1))
            then = partial(self._finish_value, waiting, told)
            self.plan(ChainReadPlan(self, at, 1, waiting.source, self.durable_end, then))
            return
        waiting.refused.extend((number, errors.Busy.code, 0, 0, b"") for number, _ in waiting.there)
        waiting.refused.sort(key=itemgetter(0))
        answer = ChainWritten(
            waiting.request, self.lsid, 0, self.epoch, self.log.synced, tuple(waiting.refused)
        )  # fmt: skip
        self._send(waiting.source, answer)

    def _finish_value(self, waiting: _Waiting, told: int, result: Result) -> None:
        why_not = self._why_not(waiting.epoch)
        if why_not is None and isinstance(result, errors.VarlogError) and not isinstance(result, errors.Trimmed):
            why_not = result
        if why_not is not None:
            self.refuse_write(waiting.source, waiting.request, why_not)
            return
        number, held = waiting.there.pop(0)
        if isinstance(result, errors.VarlogError):
            waiting.refused.append((number, result.code, 0, 0, b""))
        elif result and result[0][0] == held.glsn:
            glsn, _, _, _, _, time, content = result[0]
            waiting.refused.append((number, errors.Written.code, glsn, time, content))
            told += len(content)
        else:  # what the index has and the files have not is damage
            self.on_corrupt()
            self.refuse_write(waiting.source, waiting.request, self._failure())
            return
        self._read_value(waiting, told)

    # Reads

    def read(self, source: Address, message: ChainRead, now: float) -> None:
        """Allow a read, let it wait, or say why not."""
        why_not = self._why_not(message.epoch)
        if why_not is None and message.glsn < 1:
            why_not = errors.InvalidArgument("positions begin with 1")
        if why_not is not None:
            self.refuse_read(source, message, why_not)
        elif not self._is_answerable(message) and len(self._reads) < limits.MAX_WAITING_READS:
            self._reads.append(_WaitingRead(source, message, now + READ_WAIT))
        else:
            self._allow(source, message)

    def is_readable(self, message: ChainRead) -> bool:
        """Whether nothing stands against a read, and something may be there: then the caller may do it by itself."""
        return (
            not message.verdicts
            and message.epoch == self.log.epoch
            and self.log.trim < message.glsn < self.durable_end
            and self.healthy
            and not self.joins
            and not self.follows
        )

    def tell_one(self, source: Address, message: ChainRead, line: StoredLine) -> None:
        """What the caller has read at a position that `is_readable`."""
        self.scans += 1
        part = ChainPart(message.request, self.lsid, 0, message.epoch, (line,), self.durable_end, self.seen)
        self._send(source, part)

    def _is_answerable(self, message: ChainRead) -> bool:
        if not message.wait or message.seen != self.seen or message.glsn <= self.log.trim or not self.healthy:
            return True
        if message.glsn >= self.durable_end:
            return False
        try:
            return self.log.held(message.glsn, GLSN(message.glsn + 1)) is not None
        except errors.Corrupt:
            return True  # the read will meet it

    def refuse_read(self, source: Address, message: ChainRead, error: errors.VarlogError) -> None:
        first = GLSN(error.first) if isinstance(error, errors.Trimmed) else GLSN(0)
        detail = str(error)[: limits.MAX_DETAIL]
        self._send(
            source,
            ChainPart(
                message.request, self.lsid, error.code, self.epoch, (), self.durable_end, self.seen, first, detail
            ),
        )

    def _allow(self, source: Address, message: ChainRead) -> None:
        if message.glsn <= self.log.trim:
            self.refuse_read(source, message, errors.Trimmed(self.log.trim + 1, message.glsn))
        elif message.glsn >= self.durable_end:
            self._tell(source, message, (), self.durable_end, self.seen)
        else:
            end, seen = self.durable_end, self.seen
            then = partial(self._finish_read, source, message, end, seen)
            self.plan(ChainReadPlan(self, message.glsn, message.max_bytes, source, end, then, message.verdicts))

    def _finish_read(self, source: Address, message: ChainRead, end: GLSN, seen: int, result: Result) -> None:
        # What was written since the epoch changed may not have reached the end of the new chain.
        result = self._why_not(message.epoch) or result
        if isinstance(result, errors.VarlogError):
            self.refuse_read(source, message, result)
        else:
            self._tell(source, message, result, end, seen)

    def _tell(self, source: Address, message: ChainRead, lines: Seq[StoredLine], end: GLSN, seen: int) -> None:
        if not self.healthy and (not lines or lines[0][0] > message.glsn):
            self.refuse_read(source, message, self._failure())  # what it lacks may be what it has lost
            return
        if lines:
            self.scans += 1
            end = GLSN(max(end, lines[-1][0] + lines[-1][2]))
        told = tuple(sifted(lines) if message.verdicts else lines)
        self._send(source, ChainPart(message.request, self.lsid, 0, self.epoch, told, end, seen))

    def _wake(self) -> None:
        """Answer the reads that need not wait any longer."""
        waiting, self._reads = self._reads, []
        for one in waiting:
            if self._is_answerable(one.read):
                self._allow(one.source, one.read)
            else:
                self._reads.append(one)

    def tick(self, now: float) -> None:
        if self._reads and self._reads[0].deadline <= now:
            tired = [one for one in self._reads if one.deadline <= now]
            self._reads = [one for one in self._reads if one.deadline > now]
            for one in tired:
                self._allow(one.source, one.read)

    def send_readers_away(self, error: errors.VarlogError) -> None:
        """Who waits here waits in vain."""
        waiting, self._reads = self._reads, []
        for one in waiting:
            self.refuse_read(one.source, one.read, error)

    # Digests

    def digest(self, source: Address, message: GetDigest) -> None:
        """Tell what is there, when all that is there by now is durable."""
        why_not = self._why_not(message.epoch) or (None if self.healthy else self._failure())
        if why_not is None and len(self._digests) >= limits.MAX_WAITING_READS:
            why_not = errors.Busy(f"{len(self._digests)} digests are waiting already")
        if why_not is not None:
            self.refuse_digest(source, message, why_not)
            return
        self._digests.append((self.log.staged, source, message))
        self._answer_digests()

    def refuse_digest(self, source: Address, message: GetDigest, error: errors.VarlogError) -> None:
        detail = str(error)[: limits.MAX_DETAIL]
        self._send(source, Digest(message.request, self.lsid, error.code, self.epoch, detail=detail))

    def _answer_digests(self) -> None:
        while self._digests and self._digests[0][0] <= self.log.durable:
            _, source, message = self._digests.popleft()
            try:
                lines, end = self._lines(message)
            except errors.Corrupt as damage:
                self.refuse_digest(source, message, damage)
                self.on_corrupt()
                return
            # What was staged meanwhile is not durable, and is told of another time.
            if (unsynced := self._unsynced_from) < end:
                end = unsynced
                lines = tuple((at, min(count, end - at), time, check) for at, count, time, check in lines if at < end)
            last, trim = self.durable_end, self.log.trim
            self._send(source, Digest(message.request, self.lsid, 0, self.epoch, lines, end, last, trim))

    def _lines(self, message: GetDigest) -> tuple[tuple[tuple[int, int, int, int], ...], GLSN]:
        log, most = self.log, limits.CHAIN_DIGEST_BATCHES
        glsn = GLSN(max(message.glsn, log.trim + 1))
        if message.runs:
            runs, end = log.runs(glsn, limits.CHAIN_DIGEST_LINES)
            return tuple((begin, run_end - begin, 0, 0) for begin, run_end in runs), end
        found = tuple(log.digest(glsn, most))
        return found, log.end if len(found) < most else GLSN(found[-1].glsn + found[-1].count)

    # Seals

    def seal(self, source: Address, message: ChainSeal) -> None:
        """Take on a greater epoch; answered when that is durable (S6)."""
        before = self._seal
        if before is not None and (before.source, before.message) == (source, message):
            if self._owed is None:
                self._answer_seal(before)  # the same once more
            return
        where = self.where
        if not self.healthy:
            self.refuse_seal(source, message, self._failure())
        elif message.epoch > min(limits.MAX_EPOCH, max(self.epoch, message.base) + limits.MAX_EPOCH_LEAP):
            self.refuse_seal(source, message, errors.InvalidArgument(f"there is no epoch {message.epoch}"))
        elif message.epoch <= self.epoch:
            self._observe(ChainBranch.S6_SEAL_REFUSED)
            self.refuse_seal(source, message, errors.StaleEpoch(f"{where} is in epoch {self.epoch} already"))
        elif not message.joins and (self.epoch < message.base or self.joins):
            self._observe(ChainBranch.RULE22_STRANGER_REFUSED)
            lacks = errors.NoSource(f"{where} never was in epoch {message.base}: it is no member of that chain")
            self.refuse_seal(source, message, lacks)
        elif message.joins and self.epoch > message.base and not self.outside:
            # A later projection than the one that is to be replaced may have it as a member, which nobody may wipe.
            self._observe(ChainBranch.RULE22_LATE_COPY_REFUSED)
            detail = f"{where} may be a member since epoch {message.base}: it is in epoch {self.epoch}; look again"
            self.refuse_seal(source, message, errors.Conflict(detail))
        else:
            self._observe(ChainBranch.RULE22_JOINER_SEALED if message.joins else ChainBranch.S6_SEALED)
            end, time = self.log.end, self.log.time
            self.promise(message.epoch)
            self.joins, self.follows = message.joins, False
            self.is_chains = self.is_chains and message.joins
            self._seal = self._owed = _Seal(source, message, self.log.staged, end, time)

    def promise(self, epoch: Epoch, wipe: GLSN | None = None) -> None:
        """Take on an epoch, or void what is at or beyond `wipe`, or both; what was in progress is cancelled."""
        has_changed = epoch > self.epoch
        self.log.stage_epoch(epoch, wipe)
        if wipe is not None:
            self._count_wiped(wipe)
        if not has_changed:
            return
        stale = errors.StaleEpoch(f"{self.where} is in epoch {epoch} now")
        self._seal = None
        self._send_away(stale)

    def _send_away(self, error: errors.VarlogError) -> None:
        """Everybody who waits for something."""
        owed, self._owed = self._owed, None
        if owed is not None:
            self.refuse_seal(owed.source, owed.message, error)
        writes, self._writes = self._writes, deque()
        if writes:
            self._observe(ChainBranch.S6_CANCELLED)
        for write in writes:
            self.refuse_write(write.source, write.request, error)
        digests, self._digests = self._digests, deque()
        for _, source, digest in digests:
            self.refuse_digest(source, digest, error)
        self.send_readers_away(error)

    def _answer_seal(self, seal: _Seal) -> None:
        self._send(
            seal.source,
            ChainSealed(seal.message.request, self.lsid, 0, self.snid, seal.message.epoch, seal.end, seal.time),
        )

    def refuse_seal(self, source: Address, message: ChainSeal, error: errors.VarlogError) -> None:
        detail = str(error)[: limits.MAX_DETAIL]
        self._send(
            source,
            ChainSealed(message.request, self.lsid, error.code, self.snid, self.epoch, self.log.end, detail=detail),
        )

    # Durability, trim

    def on_durable(self) -> None:
        """A group of what was staged is written and synced."""
        self.syncs += 1
        has_more = self._count_durable()
        self._answer_writes()
        owed = self._owed
        if owed is not None and owed.mark <= self.log.durable:
            self._owed = None
            self._answer_seal(owed)
        if self._digests:
            self._answer_digests()
        if self._reads and has_more:
            self._wake()

    def trim(self, glsn: GLSN) -> None:
        """Everything up to a position may go; nobody reads it from now on."""
        if glsn > self.log.trim:
            self.log.stage_trim(glsn)
            if self._reads:
                self._wake()

    def on_failed(self, fault: int) -> None:
        """A write or sync failed, with that error's code: nothing this replica writes counts from now on (M8)."""
        self._observe(ChainBranch.M8_CHAIN_POISONED)
        self._fail(fault)

    def on_corrupt(self) -> None:
        """Stored bytes turned out to be damaged: the replica must be repaired from another one (rule 15)."""
        self._observe(ChainBranch.RULE15_CHAIN_CORRUPT)
        self._fail(errors.Corrupt.code)

    def _fail(self, fault: int) -> None:
        """From now on it promises nothing and takes nothing; what it can read it serves."""
        self.healthy = False
        self.fault = self.fault or fault
        self._seal = None
        self._send_away(self._failure())

    def leave(self) -> None:
        """It is served no more."""
        self._send_away(errors.UnknownLogStream(f"log stream {self.lsid} is no more on node {self.snid}"))


def _verified(content: bytes | memoryview) -> BatchHeader | errors.VarlogError:
    try:
        return batch.verify(content)
    except errors.VarlogError as error:
        return error
