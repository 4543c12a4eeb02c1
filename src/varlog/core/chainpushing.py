"""Chains: the one machine that pushes batches down the chains of a topic that a sequencer orders (S3, S5, S9).

Appends, fills and repairs all do the same. Batches of one log stream travel together, as a *run*: they are written at
the head, then at the next replica, and so on to the tail. What the head refuses because something is written there
already is decided: the value there wins. It is pushed on down the chain in place of ours, from the next replica on, and
what is left of our range is filled. Further down only the same value can be there; another one is a violation, and
nothing is pushed any more (rule 22).

A run belongs to one epoch. When there is a later projection, what is not decided yet goes on as a fill (rules 20, 21):

- what reaches beyond the new sequencer's start was on no replica that was kept: it never happened;
- everything else is filled in the new epoch, and whoever waits for it learns who won: its own value, which was on a
  replica that was kept and is now completed, or junk.

A fill for somebody else is justified by a peek in one epoch. In a later one only what lies below the start may be
filled: no sequencer will give that out any more.

What must always hold: a value is pushed only in the epoch that its position was given out in, or if the head has it;
one's own value counts as lost only if it is on no replica that will be kept, and never will be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from enum import IntEnum
from typing import Any, Final

from varlog import batch, errors, limits
from varlog.batch import BatchHeader
from varlog.core.address import Address, node_address
from varlog.core.filling import NOBODY, Asker, Filled, Filling, junk
from varlog.core.messages import ChainWrite, ChainWritten, Message, Refusal
from varlog.core.projection import Projection
from varlog.core.routing import Routing
from varlog.core.trouble import AHEAD_SECONDS, GONE_SECONDS, SILENT_SECONDS, Complain, Trouble
from varlog.types import GLSN, Epoch, LogStreamID, StorageNodeID, TopicID

SendChain = Callable[[Address, Message], bool | None]
"""As `Send`; False says that the message has certainly not been sent."""

COURTESY_SECONDS: Final = 10.0
"""How long what nobody waits for is tried: what was left out of a grant, what is left of a range that was lost."""
_SAME: Final = slice(4, 12)
"""Of a batch: its checksum and length."""


class _Kind(IntEnum):
    VALUE = 0
    """What was asked for,"""
    JUNK = 1
    """junk in its place,"""
    FOUND = 2
    """what the head had."""


_Item = tuple[Any, int, int, int, bytes | memoryview]
"""id, position, count, time, batch"""


class _Run:
    """Batches of one log stream that go down its chain together."""

    __slots__ = (
        "again", "asker", "batches", "counts", "deadline", "glsns", "halted", "ids", "is_sent", "kind", "lsid", "nodes",
        "request", "since", "stage", "synced", "times",
    )  # fmt: skip

    def __init__(
        self, kind: _Kind, asker: Asker, lsid: LogStreamID, nodes: tuple[StorageNodeID, ...], deadline: float
    ) -> None:
        self.kind = kind
        self.asker = asker
        self.lsid = lsid
        self.nodes = nodes
        self.deadline = deadline
        self.ids: Seq[Any] = ()
        self.glsns: tuple[int, ...] = ()
        self.counts: tuple[int, ...] = ()
        self.times: tuple[int, ...] = ()
        self.batches: tuple[bytes | memoryview, ...] = ()
        self.stage = 0
        """Which replica of the chain has it now."""
        self.request = 0
        self.since = 0.0
        """When that replica was first to be asked, on this connection."""
        self.is_sent = False
        """It may be on a replica."""
        self.again = False
        """It was refused for the moment."""
        self.halted = False
        """It was refused for the epoch."""
        self.synced = True

    def load(self, items: Seq[_Item]) -> None:
        self.ids, self.glsns, self.counts, self.times, self.batches = zip(*items, strict=True)

    def items(self) -> Iterable[_Item]:
        return zip(self.ids, self.glsns, self.counts, self.times, self.batches, strict=True)

    @property
    def node(self) -> StorageNodeID:
        return self.nodes[self.stage]


class Chains:
    """See the module's text. `complain` is told of what does not work; it may lead to a later projection."""

    def __init__(
        self, tpid: TopicID, routing: Routing, new_request: Callable[[], int], send: SendChain, complain: Complain
    ) -> None:
        self._tpid = tpid
        self._routing = routing
        self._new_request = new_request
        self._send = send
        self._complain = complain
        self.projection: Projection | None = None
        self.violation: errors.ConsistencyViolation | None = None
        self.is_troubled = False
        """Something does not work in this epoch: what has no position yet had better wait for the next."""
        self.wants_metadata = True
        self._runs: dict[int, _Run] = {}
        self._gone: dict[StorageNodeID, float] = {}
        """Nodes that cannot be reached, and since when."""
        self._heard: dict[tuple[StorageNodeID, LogStreamID], float] = {}
        """When replicas last answered."""
        self._ticked = 0.0
        self._seen = Epoch(0)
        """The greatest epoch that a replica has told,"""
        self._seen_at = 0.0
        """and when it first did."""

    @property
    def outstanding(self) -> int:
        return len(self._runs)

    # What is asked of it

    def push(self, asker: Asker, lsid: LogStreamID, items: Seq[_Item], deadline: float, now: float) -> None:
        """Write batches of one log stream, each at its position, which was given out in the present epoch."""
        assert self.projection is not None, "a position was given out in an epoch that is known"
        self._start(_Kind.VALUE, asker, lsid, self.projection.chain(lsid).nodes, items, deadline, now)

    def fill(
        self,
        glsn: GLSN,
        count: int,
        epoch: Epoch,
        deadline: float,
        done: Callable[[Filled | errors.VarlogError], None],
        now: float,
    ) -> None:
        """Have positions written or junk on every replica. `epoch` is that of a confirmed peek that they are not
        beyond. Also a position that is written on some replicas is repaired so (S9)."""
        if self.projection is None:
            done(errors.Unwritten("the topic has no projection yet; nothing can be written in it"))
            return
        filling, end = Filling(done), glsn + count
        stop = end if self.projection.epoch == epoch else min(end, self.projection.start)
        if stop < end:
            filling.on_lost(None, GLSN(max(glsn, stop)))
        if glsn < stop:
            self._fill(filling, [(None, glsn, stop)], deadline, now)

    def fill_quietly(self, glsn: int, count: int, now: float) -> None:
        """Fill what only this client can know to be a hole: it was given it in the present epoch, and has nothing for
        it (rule 24)."""
        self._fill(NOBODY, [(None, glsn, glsn + count)], now + COURTESY_SECONDS, now)

    def unsent(self, asker: Asker) -> set[Any]:
        """The ids of batches that have not left this client: where nobody can have them."""
        runs = (run for run in self._runs.values() if run.kind is _Kind.VALUE and not run.is_sent)
        return {id_ for run in runs if run.asker is asker for id_ in run.ids}

    def is_deciding(self, asker: Asker) -> bool:
        """Whether it is being found out which values of an earlier epoch are there."""
        return any(run.kind is _Kind.JUNK and run.asker is asker for run in self._runs.values())

    def abandon(self, error: errors.VarlogError) -> None:
        """Nobody is to wait any more."""
        runs, self._runs = self._runs, {}
        for run in runs.values():
            for id_ in run.ids:
                run.asker.on_unknown(id_, error)

    # Runs

    def _start(
        self,
        kind: _Kind,
        asker: Asker,
        lsid: LogStreamID,
        nodes: tuple[StorageNodeID, ...],
        items: Seq[_Item],
        deadline: float,
        now: float,
    ) -> None:
        """Batches that go down a chain, no more of them together than a message may hold."""
        begin = size = 0
        for number, item in enumerate(items):
            length = len(item[4])
            if number > begin and (
                size + length > limits.CHAIN_WRITE_BYTES or number - begin >= limits.CHAIN_WRITE_BATCHES
            ):
                self._start_one(kind, asker, lsid, nodes, items[begin:number], deadline, now)
                begin, size = number, 0
            size += length
        if begin < len(items):
            self._start_one(kind, asker, lsid, nodes, items[begin:] if begin else items, deadline, now)

    def _start_one(
        self,
        kind: _Kind,
        asker: Asker,
        lsid: LogStreamID,
        nodes: tuple[StorageNodeID, ...],
        items: Seq[_Item],
        deadline: float,
        now: float,
    ) -> None:
        run = _Run(kind, asker, lsid, nodes, deadline)
        run.load(items)
        if kind is _Kind.FOUND:
            self._advance(run, now)
        else:
            self._ask(run, now)

    def _ask(self, run: _Run, now: float) -> None:
        """Have the next replica write it."""
        run.request = self._new_request()
        run.since = now
        self._runs[run.request] = run
        self._transmit(run)

    def _transmit(self, run: _Run) -> None:
        if self.violation is not None or self.projection is None:
            return
        write = ChainWrite(run.request, run.lsid, self.projection.epoch, run.glsns, run.times, run.batches)
        run.again = False
        if self._send(node_address(run.node), write) is not False:
            run.is_sent = True

    def _send_again(self, run: _Run, now: float) -> None:
        """There is a new connection, or the replica had too much to do."""
        if run.halted:
            return
        if run.kind is _Kind.VALUE and not run.is_sent:
            left = [item for item in run.items() if not run.asker.is_over(item[0])]
            if len(left) < len(run.ids):
                del self._runs[run.request]
                for id_, glsn, count, _, _ in run.items():
                    if run.asker.is_over(id_):
                        run.asker.on_lost(id_, GLSN(glsn))
                        self.fill_quietly(glsn, count, now)
                if left:
                    self._start_one(run.kind, run.asker, run.lsid, run.nodes, left, run.deadline, now)
                return
        self._transmit(run)

    def _fill(self, asker: Asker, ranges: Iterable[tuple[Any, int, int]], deadline: float, now: float) -> None:
        """Junk for (id, begin, end), as far as that is not trimmed, log stream by log stream."""
        projection = self.projection
        assert projection is not None, "what is filled was given out once"
        first = max(self._routing.trim(self._tpid) + 1, projection.stripes[0].begin)
        items: dict[LogStreamID, list[_Item]] = {}
        for id_, begin, end in ranges:
            at, parts = max(begin, first), 0
            while at < end:
                stop = min(end, projection.block_end(GLSN(at)))
                lsid = projection.stream_of(GLSN(at))
                items.setdefault(lsid, []).append((id_, at, stop - at, 0, junk(stop - at)))
                at, parts = stop, parts + 1
            if parts:
                asker.on_parts(id_, parts)
            else:
                asker.on_unknown(id_, errors.Trimmed(first))
        for lsid, some in items.items():
            self._start(_Kind.JUNK, asker, lsid, projection.chain(lsid).nodes, some, deadline, now)

    # Answers

    def on_reply(self, reply: ChainWritten, now: float) -> None:
        """What a replica says."""
        run = self._runs.get(reply.request)
        if run is None or run.halted:
            return
        self._heard[run.node, run.lsid] = now
        if reply.code:
            self._on_refused(run, reply, now)
            return
        del self._runs[reply.request]
        run.synced &= reply.synced
        if reply.refused and not self._sort_out(run, reply.refused, now):
            return
        self._advance(run, now)

    def _advance(self, run: _Run, now: float) -> None:
        """The replica has it: on to the next."""
        if run.stage == 0 and run.kind is _Kind.JUNK and not run.asker.takes_junk:
            for id_, glsn in zip(run.ids, run.glsns, strict=True):
                run.asker.on_lost(id_, GLSN(glsn))
            run.asker, run.deadline = NOBODY, now + COURTESY_SECONDS
        run.stage += 1
        if run.stage < len(run.nodes):
            self._ask(run, now)
        elif self.projection is not None:
            epoch, replicas = self.projection.epoch, len(run.nodes)
            run.asker.on_written(run.ids, run.glsns, run.counts, run.lsid, epoch, replicas, run.synced)

    def _on_refused(self, run: _Run, reply: ChainWritten, now: float) -> None:
        """The replica did nothing of it."""
        assert self.projection is not None, "it was sent in an epoch"
        epoch = self.projection.epoch
        if reply.code == errors.StaleEpoch.code and reply.epoch > epoch:
            run.halted = True
            self.is_troubled = self.wants_metadata = True
            if reply.epoch > self._seen:
                self._seen, self._seen_at = reply.epoch, now
        elif reply.code in _OF_THE_REQUEST:
            del self._runs[run.request]
            for id_ in run.ids:
                run.asker.on_refused(id_, reply.code)
        else:
            run.again = True
            is_lapsed = reply.code == errors.LeaseExpired.code  # which may be about to be renewed
            if reply.code != errors.Busy.code and not (is_lapsed and now - run.since < GONE_SECONDS):
                self._suspect([run.node])

    def _sort_out(self, run: _Run, refused: Seq[Refusal], now: float) -> bool:
        """Some of it was refused. False if nothing is left that this replica has."""
        items = list(run.items())
        left = dict(enumerate(items))
        found: dict[Asker, list[_Item]] = {}
        again: list[_Item] = []
        rest: dict[Asker, list[tuple[Any, int, int]]] = {}
        for number, code, glsn, time, there in refused:
            item = left.pop(number, None)
            if item is None:
                continue
            if code != errors.Written.code:
                if code == errors.Busy.code:
                    again.append(item)
                else:
                    self._on_batch_refused(run, item, code)
                continue
            header = _opened(item, glsn, there)
            if header is None:
                self._suspect([run.node])
                again.append(item)
            elif glsn == item[1] and bytes(there[_SAME]) == bytes(item[4][_SAME]):
                left[number] = item
            elif run.stage:
                self._on_violation(run, item, glsn)
            else:
                asker = self._on_found(run, item, GLSN(glsn), header)
                found.setdefault(asker, []).append((item[0], glsn, header.count, time, bytes(there)))
                ends = (item[1], glsn), (glsn + header.count, item[1] + item[2])
                rest.setdefault(asker, []).extend((item[0], begin, end) for begin, end in ends if begin < end)
        for asker, values in found.items():
            until = run.deadline if asker is run.asker else now + COURTESY_SECONDS
            self._fill(asker, rest[asker], until, now)
            self._start(_Kind.FOUND, asker, run.lsid, run.nodes, values, until, now)
        if again:
            self._postpone(run, again)
        if left and len(left) < len(items):
            run.load([left[number] for number in sorted(left)])
        return bool(left)

    def _on_found(self, run: _Run, item: _Item, glsn: GLSN, header: BatchHeader) -> Asker:
        """The head has something in the range of a batch. Returns who waits for it to be completed."""
        if run.asker.claims(item[0], glsn, header):
            return run.asker
        run.asker.on_lost(item[0], GLSN(item[1]))
        return NOBODY

    def _on_batch_refused(self, run: _Run, item: _Item, code: int) -> None:
        if code == errors.Trimmed.code:
            run.asker.on_unknown(item[0], errors.Trimmed(max(self._routing.trim(self._tpid), item[1]) + 1))
        else:
            run.asker.on_refused(item[0], code)

    def _on_violation(self, run: _Run, item: _Item, glsn: int) -> None:
        self.violation = errors.ConsistencyViolation(
            f"node {run.node} has at {glsn} of log stream {run.lsid} something else than the head of its chain; "
            "nothing more is written by this client: verify the log stream with `varlog verify`"
        )
        run.asker.on_unknown(item[0], self.violation)

    def _postpone(self, run: _Run, items: Seq[_Item]) -> None:
        """The replica could not tell of all of them at once: ask it for these again."""
        other = _Run(run.kind, run.asker, run.lsid, run.nodes, run.deadline)
        other.load(items)
        other.stage, other.synced, other.since = run.stage, run.synced, run.since
        other.is_sent = other.again = True
        other.request = self._new_request()
        self._runs[other.request] = other

    # Time, connections, projections

    def tick(self, now: float) -> None:
        """Called a few times a second."""
        suspects: set[StorageNodeID] = set()
        # Answers may be there already that came while this process could not look.
        heard_from = now - SILENT_SECONDS / 2 if now - self._ticked > SILENT_SECONDS / 2 else 0.0
        self._ticked = now
        for run in list(self._runs.values()):
            if run.deadline <= now:
                self._drop(run)
            elif run.again:
                self._send_again(run, now)
            elif not run.halted:
                run.since = max(run.since, heard_from)
                silent = now - max(run.since, self._heard.get((run.node, run.lsid), 0.0))
                if silent >= SILENT_SECONDS or now - self._gone.get(run.node, now) >= GONE_SECONDS:
                    suspects.add(run.node)
        if self.projection is None:
            self.wants_metadata = self.wants_metadata or bool(self._runs)
            return
        is_ahead = self._seen > self.projection.epoch
        self.is_troubled = bool(suspects) or is_ahead
        if suspects:
            self._suspect(suspects)
        if is_ahead:
            self.wants_metadata = True
            if now - self._seen_at >= AHEAD_SECONDS:
                self._complain(Trouble(self.projection.epoch, seen=self._seen))

    def _suspect(self, nodes: Iterable[StorageNodeID]) -> None:
        if self.projection is not None:
            self.is_troubled = True
            self._complain(Trouble(self.projection.epoch, frozenset(nodes)))

    def _drop(self, run: _Run) -> None:
        """Its time is up."""
        del self._runs[run.request]
        for id_, glsn in zip(run.ids, run.glsns, strict=True):
            if run.kind is _Kind.VALUE and not run.is_sent:
                run.asker.on_refused(id_, errors.DeadlineExceeded.code)
            else:
                run.asker.on_unknown(id_, errors.DeadlineExceeded(f"position {glsn} was not written in time"))

    def on_connected(self, snid: StorageNodeID, now: float) -> None:
        """There is a new connection to a node: what was sent to it before may be lost."""
        self._gone.pop(snid, None)
        for run in list(self._runs.values()):
            if run.node == snid:
                run.since = now
                self._send_again(run, now)

    def on_disconnected(self, snid: StorageNodeID, now: float) -> None:
        """A node cannot be reached."""
        self._gone.setdefault(snid, now)

    def on_metadata(self, now: float) -> None:
        """The routing has been renewed."""
        self.wants_metadata = False
        projection = self._routing.projection(self._tpid)
        if projection is not None and (self.projection is None or projection.epoch > self.projection.epoch):
            self.projection = projection
            self._renew(projection, now)

    def _renew(self, projection: Projection, now: float) -> None:
        """Take what is not decided to a new epoch."""
        runs, self._runs = self._runs, {}
        self._heard.clear()
        self.is_troubled = self._seen > projection.epoch
        fills: dict[Asker, list[tuple[Any, int, int]]] = {}
        deadlines: dict[Asker, float] = {NOBODY: now + COURTESY_SECONDS}
        start = projection.start
        for run in runs.values():
            asker = run.asker
            deadlines[asker] = max(deadlines.get(asker, 0.0), run.deadline)
            for id_, begin, count, _, _ in run.items():
                end, stop = begin + count, min(begin + count, start)
                if asker.takes_junk:
                    asker.on_parts(id_, -1)
                    to = asker
                elif stop < end or (run.kind is _Kind.VALUE and not run.is_sent):
                    to = NOBODY
                else:
                    to = asker
                if stop < end or to is not asker:
                    asker.on_lost(id_, GLSN(begin if to is not asker else max(begin, stop)))
                if begin < stop:
                    fills.setdefault(to, []).append((id_, begin, stop))
        for asker, ranges in fills.items():
            self._fill(asker, ranges, deadlines[asker], now)


_OF_THE_REQUEST: Final = frozenset(
    error.code for error in (errors.InvalidArgument, errors.WrongOrdering, errors.ProtocolError)
)
"""What any replica would say of it."""


def _opened(item: _Item, glsn: int, there: bytes | memoryview) -> BatchHeader | None:
    """The header of what a replica says is there; None if that cannot be."""
    try:
        header = batch.verify(there)
    except errors.VarlogError:
        return None
    return header if glsn < item[1] + item[2] and item[1] < glsn + header.count else None
