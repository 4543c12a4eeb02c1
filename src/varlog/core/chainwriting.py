"""ChainWriter: the client's half of an append to a topic that a sequencer orders, without I/O (S3).

An append gets its position first and is written then. The positions of all that wait are asked for together: one
question is under way at a time, and the next one takes all that gathered meanwhile, none of it before it was called
for, so that an append that begins after another one was acknowledged has the greater position (L1). What is granted
goes down its log stream's chain (`chainpushing`), and is acknowledged when the tail has it.

A batch has a writer's id and a sequence number that never change, by which it is known again (rule 21). It ends in one
of three ways:

- *committed*: it is on every replica of its chain;
- *rejected*: it is at none of the positions that it was given, and never will be;
- *unknown*: the deadline passed first, or its position was trimmed before anybody could tell.

What lost its position, because another value won there or the position is of an epoch that has passed, gets another
one, with the same bytes, and what is new waits until it is known what has. Positions are given out in the order of the
appends. So that this is also the order of those that have to be given another one, batches of one *lane* are under way
on one log stream at a time: there a replica has them in order, and a failure takes the last of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from typing import Any, NamedTuple

import msgspec

from varlog import batch, errors, limits
from varlog.batch import BatchHeader
from varlog.core.address import sequencer_address
from varlog.core.appending import Committed, Rejected, Settle, Undecided
from varlog.core.chainpushing import Chains, SendChain
from varlog.core.content import Content, Fill, packed
from varlog.core.messages import Granted, Next
from varlog.core.projection import Projection
from varlog.core.trouble import GONE_SECONDS, SILENT_SECONDS, Complain, Trouble
from varlog.tuples import new_tuple
from varlog.types import GLSN, Epoch, LogStreamID, Sequence, StorageNodeID, TopicID, WriterID


class _Operation(msgspec.Struct, gc=False, eq=False):
    id: Any
    """Whatever its caller gave."""
    sequence: Sequence
    count: int
    batch: bytes
    deadline: float
    told: bool = False
    """Whoever asked for it has been told its outcome."""
    is_placed: bool = False
    """It has a position, and what became of it there is not known yet."""
    lane: int = 0
    """Those of one lane are kept in order; 0: there is no order to keep."""


class _Held(NamedTuple):
    """A batch with a position, behind others of its lane."""

    op: _Operation
    glsn: int
    time: int
    lsid: LogStreamID


class _Lane:
    """Where the batches of a lane are."""

    __slots__ = ("held", "lsid", "under_way")

    def __init__(self) -> None:
        self.lsid = LogStreamID(0)
        self.under_way = 0
        """So many are pushed to that log stream,"""
        self.held: deque[_Held] = deque()
        """and these are for others, or come behind some that are."""


class ChainWriter:
    """See the module's text. `settle(id, outcome)` is called once for every append, with whatever its caller gave it
    as id. `soon()` asks for one call of `flush` when everybody who has something to append now has done so."""

    takes_junk = False

    def __init__(
        self,
        tpid: TopicID,
        chains: Chains,
        writer_id: WriterID,
        new_request: Callable[[], int],
        timestamp: Callable[[], int],
        send: SendChain,
        settle: Settle,
        complain: Complain,
        soon: Callable[[], None],
    ) -> None:
        self.writer_id = writer_id
        self._tpid = tpid
        self._chains = chains
        self._new_request = new_request
        self._timestamp = timestamp
        self._send = send
        self._settle = settle
        self._complain = complain
        self._soon = soon
        self._sequence = Sequence(0)
        self._operations: dict[Sequence, _Operation] = {}
        """All that are under way."""
        self._queue: deque[_Operation] = deque()
        """Those that have no position,"""
        self._returned: list[_Operation] = []
        """those that have lost theirs since it was last asked for some,"""
        self._asked: list[_Operation] = []
        """and those for which the sequencer is asked for one,"""
        self._request = 0
        """by this question, 0 if it could not be sent,"""
        self._asked_at = 0.0
        self._epoch = Epoch(0)
        """in this epoch."""
        self._given_up: dict[int, tuple[int, ...]] = {}
        """Questions of an epoch that has passed, which may be answered yet, and the counts that they were about."""
        self._lanes: dict[int, _Lane] = {}
        """Of those that have something under way,"""
        self._ready: list[int] = []
        """and those of them that may go on."""
        self._overtaken: dict[int, Sequence] = {}
        """The lanes of which a batch has lost its position since the sequencer was asked, and the first of those."""
        self._holes: list[tuple[int, int]] = []
        """(position, count) of what was given out in this epoch and is not going to be written."""
        self._is_deciding = False
        """There is a new epoch, and it may not be known yet what of the one before is there."""
        self._gone: dict[str, float] = {}
        """Sequencers that cannot be reached, and since when."""
        self._ticked = 0.0
        self._is_stirred = False
        self.wants_metadata = False

    @property
    def outstanding(self) -> int:
        return len(self._operations)

    # Appending

    def append(
        self,
        id_: Any,
        entries: Content,
        deadline: float,
        _now: float,
        codec: batch.Codec = batch.Codec.NONE,
        lane: int = 0,
    ) -> None:
        """Append a batch; its outcome is told to `settle`. Entries that no log would take raise a typed error."""
        if len(self._queue) >= limits.MAX_QUEUED_APPENDS:
            raise errors.Busy(f"{limits.MAX_QUEUED_APPENDS} appends wait already; slow down")
        if self._chains.violation is not None:
            raise errors.ConsistencyViolation(str(self._chains.violation))
        sequence = Sequence(self._sequence + 1)
        count = entries.count if isinstance(entries, Fill) else len(entries)
        projection = self._chains.projection
        if count > 1 and projection is not None and count > projection.stripes[-1].block:
            raise errors.BatchTooLarge(_too_large(count, projection))
        encoded = packed(entries, self.writer_id, sequence, self._timestamp(), codec)
        self._sequence = sequence
        self._operations[sequence] = op = _Operation(id_, sequence, count, encoded, deadline, lane=lane)
        self._queue.append(op)
        self._stir()

    def abandon(self) -> list[tuple[Any, bool]]:
        """Give up everything under way, undecided; returns the ids of those whose outcome was not told, and whether
        each may have happened."""
        unsent = self._chains.unsent(self)
        untold = [(op.id, op.is_placed and op not in unsent) for op in self._operations.values() if not op.told]
        for op in self._operations.values():
            op.told = True
        self._operations.clear()
        self._queue.clear()
        self._returned.clear()
        self._asked.clear()
        self._lanes.clear()
        return untold

    def _stir(self) -> None:
        if not self._is_stirred and not self._asked:
            self._is_stirred = True
            self._soon()

    # Positions

    def flush(self, now: float) -> None:
        """Ask for the positions of all that wait, if that can be done now."""
        self._is_stirred = False
        ready, self._ready = self._ready, []
        for number in ready:
            self._push_held(number, now)
        holes, self._holes = self._holes, []
        for glsn, count in holes:
            self._chains.fill_quietly(glsn, count, now)
        if self._returned:
            self._requeue(self._returned)
            self._returned = []
        if self._is_deciding:
            self._is_deciding = self._chains.is_deciding(self)
        projection = self._chains.projection
        is_held_up = self._asked or self._is_deciding or self._chains.is_troubled
        if is_held_up or not self._queue or projection is None:
            self.wants_metadata = self.wants_metadata or (projection is None and bool(self._queue))
            return
        queue, most = self._queue, limits.MAX_GRANTS
        if len(queue) <= most:
            self._asked, self._queue = list(queue), deque()
        else:
            self._asked = [queue.popleft() for _ in range(most)]
        self._asked_at = now
        self._ask(projection)

    def _requeue(self, operations: Iterable[_Operation]) -> None:
        """They have no position any more: each goes back to where it was among those that wait."""
        for op in operations:
            if op.told:
                self._operations.pop(op.sequence, None)
            else:
                self._queue.append(op)
        self._queue = deque(sorted(self._queue, key=lambda op: op.sequence))

    def _ask(self, projection: Projection) -> None:
        """Put the question, for the first time or once more: what was granted to one that got lost, nobody has."""
        self._request, self._epoch = self._new_request(), projection.epoch
        counts = tuple([op.count for op in self._asked])
        where = sequencer_address(projection.sequencer)
        if self._send(where, Next(self._request, self._tpid, projection.epoch, counts)) is False:
            self._request = 0

    def on_reply(self, reply: Granted, now: float) -> None:
        """What the sequencer says."""
        projection = self._chains.projection
        if reply.request in self._given_up and projection is not None:
            counts = self._given_up.pop(reply.request)
            self._leave_out([*zip(reply.glsns, counts, strict=False), *reply.skipped], projection)
            self.flush(now)
        if not self._request or reply.request != self._request:
            return
        self._request = 0
        if reply.code == 0 and len(reply.glsns) == len(self._asked) and reply.epoch == self._epoch:
            asked, self._asked = self._asked, []
            if projection is not None and projection.epoch == reply.epoch:
                self._on_granted(asked, reply, projection, now)
            else:
                self._requeue(asked)
        elif reply.code == errors.NotSequencer.code and projection is not None:
            self.wants_metadata = True
            self._complain(Trouble(projection.epoch, sequencers=frozenset({projection.sequencer})))
        elif reply.code == errors.BatchTooLarge.code and projection is not None:
            self._refuse_large(projection)
        else:  # it is behind, or busy, and asked again by the next tick; or it is ahead
            self.wants_metadata = self.wants_metadata or reply.epoch > self._epoch
        self.flush(now)

    def _on_granted(self, asked: Seq[_Operation], reply: Granted, projection: Projection, now: float) -> None:
        chains, time, end, lsid = self._chains, reply.time, 0, LogStreamID(0)
        items: list[tuple[Any, int, int, int, bytes | memoryview]] = []
        deadline = 0.0
        for op, glsn in zip(asked, reply.glsns, strict=True):
            count = op.count
            if glsn + count > end:
                if items:
                    chains.push(self, lsid, items, deadline, now)
                    items, deadline = [], 0.0
                if glsn < max(projection.start, end) or glsn + count > projection.block_end(GLSN(glsn)):
                    self._queue.append(op)  # no sequencer of ours grants that: ask another time
                    self.wants_metadata = True
                    continue
                lsid, end = projection.stream_of(GLSN(glsn)), projection.block_end(GLSN(glsn))
            if op.told:
                del self._operations[op.sequence]
                chains.fill_quietly(glsn, count, now)
                continue
            if op.lane and self._holds_back(_Held(op, glsn, time, lsid)):
                continue
            op.is_placed = True
            if op.deadline > deadline:
                deadline = op.deadline
            items.append((op, glsn, count, time, op.batch))
        self._overtaken.clear()
        if items:
            chains.push(self, lsid, items, deadline, now)
        for glsn, count in reply.skipped:
            if glsn >= projection.start and count > 0:
                chains.fill_quietly(glsn, count, now)

    def _refuse_large(self, projection: Projection) -> None:
        """A batch has more entries than a block: it was taken when another projection was known."""
        asked, self._asked = self._asked, []
        for op in reversed(asked):
            if op.count <= projection.stripes[-1].block:
                self._queue.appendleft(op)
            else:
                self._tell(op, Rejected(errors.BatchTooLarge.code))

    # Lanes

    def _holds_back(self, batch_: _Held) -> bool:
        """Whether a batch has to wait for others of its lane, or to come behind them; otherwise it counts as pushed."""
        op = batch_.op
        if op.sequence > self._overtaken.get(op.lane, op.sequence):
            self._returned.append(op)
            self._holes.append((batch_.glsn, op.count))
            return True
        lane = self._lanes.setdefault(op.lane, _Lane())
        if lane.held or (lane.under_way and lane.lsid != batch_.lsid):
            lane.held.append(batch_)
            return True
        lane.lsid = batch_.lsid
        lane.under_way += 1
        return False

    def _leave(self, op: _Operation) -> None:
        """It is not under way at its position any more; others of its lane may follow."""
        if not op.is_placed:
            return
        op.is_placed = False
        lane = self._lanes.get(op.lane)
        if lane is None:
            return
        lane.under_way -= 1
        if not lane.under_way:
            if lane.held:
                self._ready.append(op.lane)
                self._stir()
            else:
                del self._lanes[op.lane]

    def _push_held(self, number: int, now: float) -> None:
        """Push what waited for others of its lane, as far as it is of one log stream."""
        lane = self._lanes.get(number)
        if lane is None or lane.under_way:
            return
        items: list[tuple[Any, int, int, int, bytes | memoryview]] = []
        deadline = 0.0
        while lane.held and (not items or lane.held[0].lsid == lane.lsid):
            op, glsn, time, lane.lsid = lane.held.popleft()
            if op.told:
                del self._operations[op.sequence]
                self._chains.fill_quietly(glsn, op.count, now)
                continue
            op.is_placed = True
            deadline = max(deadline, op.deadline)
            items.append((op, glsn, op.count, time, op.batch))
        lane.under_way = len(items)
        if items:
            self._chains.push(self, lane.lsid, items, deadline, now)
        elif not lane.held:
            del self._lanes[number]

    def _take_back(self, lane: _Lane) -> None:
        """What waited for others of its lane was never sent. It is to come behind one that gets another position, or
        its positions are of an epoch that has passed."""
        for op, glsn, _, _ in lane.held:
            self._returned.append(op)
            self._holes.append((glsn, op.count))
        lane.held.clear()

    # Outcomes

    def claims(self, op: _Operation, _glsn: GLSN, header: BatchHeader) -> bool:
        is_own = header.writer_id == self.writer_id and header.sequence == op.sequence
        if is_own and self._is_deciding:
            self._stir()
        return is_own

    def is_over(self, op: _Operation) -> bool:
        return op.told

    def on_written(
        self,
        ids: Seq[_Operation],
        glsns: Seq[int],
        counts: Seq[int],
        lsid: LogStreamID,
        epoch: Epoch,
        replicas: int,
        synced: bool,
    ) -> None:
        operations, settle = self._operations, self._settle
        for op, glsn, count in zip(ids, glsns, counts, strict=True):
            operations.pop(op.sequence, None)
            if op.lane:
                self._leave(op)
            if not op.told:
                op.told = True
                settle(op.id, new_tuple(Committed, (glsn, count, glsn, lsid, epoch, replicas, synced)))

    def on_lost(self, op: _Operation, _glsn: GLSN) -> None:
        if op.lane in self._lanes:
            self._take_back(self._lanes[op.lane])
        self._leave(op)
        if op.told:
            self._operations.pop(op.sequence, None)
        else:
            if op.lane and self._asked:
                self._overtaken[op.lane] = min(op.sequence, self._overtaken.get(op.lane, op.sequence))
            self._returned.append(op)
            self._stir()

    def on_refused(self, op: _Operation, code: int) -> None:
        self._tell(op, Rejected(code))

    def on_unknown(self, op: _Operation, _error: errors.VarlogError) -> None:
        self._tell(op, Undecided())

    def on_parts(self, op: _Operation, more: int) -> None:
        """A batch is one part."""

    def _tell(self, op: _Operation, outcome: Rejected | Undecided) -> None:
        """That is all there will be said of it."""
        self._operations.pop(op.sequence, None)
        self._leave(op)
        if not op.told:
            op.told = True
            self._settle(op.id, outcome)

    # Time, connections, projections

    def tick(self, now: float) -> None:
        """Called a few times a second."""
        self._expire(now)
        projection = self._chains.projection
        if projection is not None and self._asked:
            if not self._request:
                self._ask(projection)
            if now - self._ticked > SILENT_SECONDS / 2:  # an answer may be there that came while nobody could look
                self._asked_at = max(self._asked_at, now - SILENT_SECONDS / 2)
            is_gone = now - self._gone.get(projection.sequencer, now) >= GONE_SECONDS
            if is_gone or now - self._asked_at >= SILENT_SECONDS:
                self._complain(Trouble(projection.epoch, sequencers=frozenset({projection.sequencer})))
        self._ticked = now
        self.flush(now)

    def _expire(self, now: float) -> None:
        late = [op for op in self._operations.values() if op.deadline <= now and not op.told]
        if not late:
            return
        unsent = self._chains.unsent(self)
        for op in late:
            op.told = True
            is_certain = not op.is_placed or op in unsent
            self._settle(op.id, Rejected(errors.DeadlineExceeded.code) if is_certain else Undecided())
        for op in self._queue:
            if op.told:
                del self._operations[op.sequence]
        self._queue = deque(op for op in self._queue if not op.told)

    def on_metadata(self, now: float) -> None:
        """The routing has been renewed, and the chains have taken it over."""
        self.wants_metadata = False
        projection = self._chains.projection
        if projection is not None and projection.epoch != self._epoch:
            self._epoch = projection.epoch
            self._is_deciding = True
            for lane in self._lanes.values():
                self._take_back(lane)
            holes, self._holes = self._holes, []
            self._leave_out(holes, projection)
            self._given_up = {self._request: tuple(op.count for op in self._asked)} if self._request else {}
            asked, self._asked, self._request = self._asked, [], 0
            self._overtaken.clear()
            self._requeue(asked)
        self.flush(now)

    def _leave_out(self, holes: Iterable[tuple[int, int]], projection: Projection) -> None:
        """What was given out in an epoch that has passed is filled as far as the log has gone on beyond it."""
        start = projection.start
        self._holes += [(glsn, min(count, start - glsn)) for glsn, count in holes if glsn < start]

    def on_sequencer(self, location: str, is_connected: bool, now: float) -> None:
        """There is a new connection to a sequencer, and what it was asked before is lost; or there is none."""
        projection = self._chains.projection
        if not is_connected:
            self._gone.setdefault(location, now)
            if projection is not None and projection.sequencer == location:
                self._request = 0
            return
        self._gone.pop(location, None)
        if self._asked and projection is not None and projection.sequencer == location:
            self._asked_at = now
            self._ask(projection)

    def on_connected(self, snid: StorageNodeID, now: float) -> None:
        """The chains see to that."""

    def on_disconnected(self, snid: StorageNodeID, now: float) -> None:
        """The chains see to that."""


def _too_large(count: int, projection: Projection) -> str:
    block = projection.stripes[-1].block
    return f"a batch of {count} entries; in this topic one has at most {block}, so that it lies on one log stream"
