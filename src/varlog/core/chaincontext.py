"""ChainContext: what one replica of a chain knows of itself, what it tells others of it, and what it has staged.

It is changed by the class built on this one: `chainreplica` has the writes, the reads and the seals.

What must always hold: `_unsynced` has exactly what was staged and is not durable, in order; `durable_end` and `seen`
count what is durable, and nothing else.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Seq
from itertools import groupby
from struct import Struct
from typing import Final, NamedTuple

from varlog import errors
from varlog.batch import BatchHeader
from varlog.core.address import Address, Send
from varlog.core.branches import ChainBranch, Observe
from varlog.core.messages import ReplicaInfo, ReplicaStats, StoredLine
from varlog.core.projection import NEVER
from varlog.core.writeoncelog import WriteOnceLog
from varlog.types import GLSN, LLSN, Epoch, LogStreamID, ReplicaState, StorageNodeID, TopicID

_CHECK: Final = Struct("<4xI")

Result = Seq[StoredLine] | errors.VarlogError
Placed = tuple[int, int, bytes | memoryview, BatchHeader]
"""(position, time, batch, its header)."""


class ChainReadPlan(NamedTuple):
    """A read that the replica allows; the caller does it and hands what comes of it to `ChainNode.finish_read`."""

    replica: ChainContext
    glsn: GLSN
    max_bytes: int
    source: Address
    """Who has asked."""
    end: GLSN
    """Of the log, when it was asked."""
    then: Callable[[Result], None]
    verdicts: bool = False
    """Of other batches than verdicts the bytes are not wanted."""


class _Unsynced(NamedTuple):
    """What was staged together and is not durable yet."""

    mark: int
    """How many records were staged with it."""
    batches: int
    bytes: int
    lowest: int
    end: int


class ChainContext:
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
        self.snid = snid
        self.tpid = tpid
        self.lsid = lsid
        self.log = log
        self.plan: Callable[[ChainReadPlan], None] = _nobody_reads
        """Told of the reads that it allows."""
        self.where = f"log stream {lsid} on node {snid}"
        self._send = send
        self._observe = observe
        self.healthy = damage is None
        """False once its disk failed or its files are corrupt: it needs repair."""
        self.fault = damage.code if damage is not None else 0
        self.joins = False
        """It was sealed in this epoch as one that joins the chain."""
        self.follows = False
        """It was last told to follow the chain's tail."""
        self.is_chains = False
        """All that it has is the chain's, if not all of it: it was compared as a whole, and stayed outside since."""
        self.completed: tuple[Epoch, GLSN] | None = None
        """The epoch in which it became a copy of the tail, and where that ended."""
        self.written = Epoch(0)
        """The last epoch in which it has taken a write since it was started."""
        self.durable_end = log.end
        self.seen = 0
        """How many batches have become durable since it was started."""
        self.source = StorageNodeID(0)
        self.source_end = GLSN(0)
        """The node it copies from, and how far that was when it was last asked."""
        self._unsynced: deque[_Unsynced] = deque()
        self._unsynced_bytes = 0

        # Since the node started (M12).
        self.batches = self.entries = self.bytes = self.commits = self.refused = self.scans = self.syncs = 0

    # What others want to know

    @property
    def epoch(self) -> Epoch:
        return self.log.epoch

    @property
    def end(self) -> GLSN:
        return self.log.end

    @property
    def outside(self) -> bool:
        return self.joins or self.follows

    @property
    def state(self) -> ReplicaState:
        return ReplicaState.SEALING if self.outside else ReplicaState.RUNNING

    @property
    def committed_end(self) -> LLSN:
        return LLSN(self.durable_end)

    @property
    def global_hwm(self) -> GLSN:
        return GLSN(self.durable_end - 1)

    @property
    def trim_glsn(self) -> GLSN:
        return self.log.trim

    @property
    def unsynced_bytes(self) -> int:
        return self._unsynced_bytes

    def info(self) -> ReplicaInfo:
        stats = ReplicaStats(self.batches, self.entries, self.bytes, 0, self.refused, self.scans, self.syncs)
        end, hwm = LLSN(self.durable_end), self.global_hwm
        return ReplicaInfo(
            self.lsid, self.epoch, self.state, end, end, self.healthy, self.tpid, self.fault, hwm, hwm, self.log.trim,
            stats=stats, source=self.source, source_end=LLSN(self.source_end),
        )  # fmt: skip

    def _why_not(self, epoch: Epoch) -> errors.VarlogError | None:
        """Why a request of that epoch is not served."""
        if epoch != self.epoch or not epoch:
            self._observe(ChainBranch.S2_OTHER_EPOCH_REFUSED)
            return errors.StaleEpoch(f"{self.where} is in epoch {self.epoch}, not {epoch}; renew the projection")
        if self.outside:
            self._observe(ChainBranch.RULE22_OUTSIDER_REFUSED)
            return errors.NoSource(f"{self.where} is no copy of the chain yet")
        return None

    def _failure(self) -> errors.VarlogError:
        return errors.VarlogError.of(self.fault, f"{self.where} has failed; the chain goes on without it")

    # What is staged

    def _stage_run(self, epoch: Epoch, run: list[Placed]) -> None:
        if run:
            glsns, times, batches, headers = zip(*run, strict=True)
            self._stage(epoch, glsns, times, batches, headers)
            run.clear()

    def _stage(
        self,
        epoch: Epoch,
        glsns: Seq[int],
        times: Seq[int],
        batches: Seq[bytes | memoryview],
        headers: Seq[BatchHeader],
    ) -> None:
        self.log.stage_writes(epoch, glsns, times, batches, headers)
        size, count = sum(map(len, batches)), len(glsns)
        ends = [glsn + header[4] for glsn, header in zip(glsns, headers, strict=True)]
        self._unsynced.append(_Unsynced(self.log.staged, count, size, min(glsns), max(ends)))
        self._unsynced_bytes += size
        self.batches += count
        self.bytes += size
        self.entries += sum(ends) - sum(glsns)

    def store_copied(self, lines: Seq[StoredLine], headers: Seq[BatchHeader]) -> None:
        """Batches of the tail, verified, where nothing is here. They stay of the epochs they were written in."""
        for epoch, group in groupby(zip(lines, headers, strict=True), key=_epoch_of):
            run = [(line[0], line[5], line[6], header) for line, header in group]
            self._stage_run(Epoch(epoch), run)

    def _count_durable(self) -> bool:
        """Whether any batch has become durable."""
        durable, unsynced, before = self.log.durable, self._unsynced, self.seen
        while unsynced and unsynced[0].mark <= durable:
            one = unsynced.popleft()
            self.seen += one.batches
            self._unsynced_bytes -= one.bytes
            self.durable_end = GLSN(max(self.durable_end, one.end))
        return self.seen != before

    def _count_wiped(self, wipe: GLSN) -> None:
        """What is at or beyond a position is void."""
        self.durable_end = min(self.durable_end, wipe)
        self._unsynced = deque(one._replace(end=min(one.end, wipe)) for one in self._unsynced)

    @property
    def _unsynced_from(self) -> GLSN:
        """The first position that is staged and not durable."""
        return GLSN(min([one.lowest for one in self._unsynced], default=NEVER))


def _nobody_reads(_plan: ChainReadPlan) -> None:
    raise errors.InvalidArgument("a replica is served by a node")


def check_of(content: bytes | memoryview) -> int:
    """A batch's own checksum."""
    check: int = _CHECK.unpack_from(content)[0]
    return check


def _epoch_of(copied: tuple[StoredLine, BatchHeader]) -> int:
    return copied[0][3]
