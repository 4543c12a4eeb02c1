"""Simulated readers that show only what is committed, and some that show everything.

`CommittedReading` carries what `varlog.core.committed` wants: the log from a position on, verdicts from elsewhere while
something is held, a tail, and a verdict on what nobody decides. The jobs read ranges, and subscribe. What they show and
what they pass over goes into the history.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final

from varlog import batch, errors
from varlog.batch.transactions import mark_of
from varlog.core.committed import Committed, Held, Judgement
from varlog.core.delivering import Delivery
from varlog.core.fates import Key
from varlog.core.merging import Chunk
from varlog.sim.evidence import payloads_of
from varlog.sim.history import Kind, Operation
from varlog.sim.ledger import Spoken, spoken_in
from varlog.sim.transactions.jobs import Board
from varlog.sim.transactions.ways import TOPIC, Inquiries, Procedures, Transacted, Ways
from varlog.types import GLSN

RANGE_SECONDS: Final = 8.0
"""How long a reader of a range waits for it. The longest expiry is much shorter."""
PRONOUNCE_SECONDS: Final = 1.5
TAIL_SECONDS: Final = 1.0

OnEnd = Callable[[errors.VarlogError | None], None]
Saw = Callable[[Iterable[Spoken]], None]
"""Told of every verdict that is passed over."""


class CommittedReading:
    """One reader, from `operation.position` on, up to `end` if there is one."""

    def __init__(
        self,
        ways: Ways,
        procedures: Procedures,
        operation: Operation,
        end: int | None,
        most: int,
        on_end: OnEnd,
        saw: Saw,
    ) -> None:
        self._ways = ways
        self._procedures = procedures
        self._operation = operation
        self._on_end = on_end
        self._saw = saw
        self._committed = Committed(operation.position, most)
        self._queue: deque[Chunk] = deque()
        self._outcome: list[errors.VarlogError | None] = []
        """How the reading ended, once it has: what is queued comes first."""
        self._feed: Delivery | None = None
        self._looks = 0
        """Counts feeds: of one that was left something may still come."""
        self._expired: set[Key] = set()
        """What it has pronounced an EXPIRE on."""
        self._is_asking = False
        self._is_over = False
        self._reading = ways.subscribe(operation.position, end, self._deliver, self._on_read)

    @property
    def held(self) -> Held | None:
        """What it waits for."""
        return self._committed.held

    def close(self) -> None:
        """Read no further."""
        self._is_over = True
        self._ways.leave(self._reading)
        self._look_no_further()

    # The log

    def _deliver(self, chunk: Chunk) -> None:
        self._queue.append(chunk)
        if len(self._queue) == 1:  # else the first of them is held
            self._pump()

    def _on_read(self, error: errors.VarlogError | None) -> None:
        if isinstance(error, errors.Trimmed):
            self._queue.clear()  # what is held is trimmed as well
        self._outcome.append(error)
        self._pump()

    def _pump(self) -> None:
        while self._queue and not self._is_over:
            if not self._judge(self._queue[0]):
                self._reading.pause()
                self._seek()
                return
            self._queue.popleft()
        if self._is_over:
            return
        self._look_no_further()
        if self._outcome:
            self._end(self._outcome[0])
        else:
            self._reading.resume(self._ways.now)

    def _judge(self, chunk: Chunk) -> bool:
        """Show or pass over; False: it is held."""
        ways, history = self._ways, self._ways.history
        opened = batch.decode(chunk.stored[6])
        end = chunk.glsn + chunk.count
        judgement = Judgement.SHOW
        if opened.flags:
            judgement = self._verdict_on(chunk, opened)
        if judgement is Judgement.HOLD:
            return False
        ways.learn(end - 1)
        if judgement is Judgement.PASS:
            self._saw(spoken_in(opened, chunk.glsn))
            if opened.flags & batch.BatchFlag.TRANSACTION:
                ways.count(Transacted.PASSED_OVER)
            history.pass_over(self._operation, chunk.glsn, end)
        else:
            if opened.flags:
                self._note_shown(opened)
            payloads = payloads_of(opened, chunk.stored[0], chunk.skip, chunk.count)
            history.deliver(self._operation, chunk.glsn, payloads)
        return True

    def _verdict_on(self, chunk: Chunk, opened: batch.RecordBatch) -> Judgement:
        if self._operation.uncommitted:
            is_data = opened.flags == batch.BatchFlag.TRANSACTION
            return Judgement.SHOW if is_data else Judgement.PASS
        before = self._committed.held
        judgement = self._committed.judge(chunk, opened, self._ways.now)
        if judgement is Judgement.HOLD and (before is None or before.key != self._held.key):
            self._ways.count(Transacted.HELD)
        return judgement

    def _note_shown(self, opened: batch.RecordBatch) -> None:
        self._ways.count(Transacted.SHOWN)
        mark = mark_of(opened.extensions)
        if (mark.txid, mark.after) in self._expired:
            self._ways.count(Transacted.EXPIRE_OUTRUN)

    @property
    def _held(self) -> Held:
        assert self._committed.held is not None, "asked for only while something is held"
        return self._committed.held

    def _end(self, error: errors.VarlogError | None) -> None:
        self.close()
        self._on_end(error)

    # Verdicts

    def _seek(self) -> None:
        """See to it that what is wanted is read."""
        wanted = self._committed.look
        if wanted is None or self._feed is not None:
            return
        if wanted.end is not None:
            self._ways.count(Transacted.LOOKED_BACK)
        self._looks += 1
        deliver, on_end = partial(self._on_verdicts, self._looks), partial(self._on_looked, self._looks)
        self._feed = self._ways.subscribe(wanted.begin, wanted.end, deliver, on_end, verdicts=True)

    def _look_no_further(self) -> None:
        if self._feed is not None:
            self._ways.leave(self._feed)
            self._feed = None
            self._looks += 1

    def _on_verdicts(self, look: int, chunk: Chunk) -> None:
        if look != self._looks:
            return  # of a feed that was left
        self._committed.on_chunk(chunk)
        if self._committed.is_decided:
            self._look_no_further()
            self._pump()

    def _on_looked(self, look: int, error: errors.VarlogError | None) -> None:
        if look != self._looks:
            return
        self._feed = None
        if isinstance(error, errors.Trimmed):
            self._committed.on_trimmed(error.first)
            if self._committed.trimmed is not None:
                self._ways.count(Transacted.HELD_TRIMMED)
                self._end(errors.Trimmed(self._committed.trimmed))
                return
        self._pump()

    def tick(self) -> None:
        """Called a few times a second: what is held may be due to expire."""
        committed, now = self._committed, self._ways.now
        if self._is_over or committed.held is None:
            return
        if committed.wants_tail(now) and not self._is_asking:
            self._is_asking = True
            self._ways.tail(now + TAIL_SECONDS, partial(self._on_tail, committed.held))
        if committed.is_decided:
            self._look_no_further()
            self._pump()
            return
        verdict = committed.wants_verdict(now)
        if verdict is not None:
            committed.on_pronounced(now)
            self._expired.add(committed.held.key)
            self._procedures.pronounce(verdict, now + PRONOUNCE_SECONDS, self._on_pronounced)

    def _on_tail(self, held: Held, came: Any) -> None:
        self._is_asking = False
        if not isinstance(came, errors.VarlogError):
            self._committed.on_tail(held.key, came)

    def _on_pronounced(self, came: Any) -> None:
        if not isinstance(came, errors.VarlogError):
            self._ways.count(Transacted.READER_EXPIRED)


class _Reader:
    def __init__(self, ways: Ways, inquiries: Inquiries, board: Board) -> None:
        self._ways = ways
        self._board = board
        self._procedures = Procedures(ways, inquiries)
        self._reading: CommittedReading | None = None
        self._operation: Operation | None = None

    def _read(self, operation: Operation, end: int | None) -> None:
        most = self._ways.rng.choice((1, 3, 1000))
        self._operation = operation
        self._reading = CommittedReading(
            self._ways,
            self._procedures,
            operation,
            end,
            most,
            partial(self._on_end, operation),
            self._board.verdicts.update,
        )

    def _on_end(self, operation: Operation, error: errors.VarlogError | None) -> None:
        self._reading = self._operation = None
        if error is None:
            self._ways.history.ok(operation)
            return
        first = error.first if isinstance(error, errors.Trimmed) else 0
        self._ways.history.failed(operation, type(error).__name__, first=first)

    def tick(self) -> None:
        if self._reading is not None:
            self._reading.tick()

    def killed(self) -> None:
        self._reading = None


class RangeReader(_Reader):
    """Reads ranges that are known to exist."""

    def __init__(self, ways: Ways, inquiries: Inquiries, board: Board, *, pace: float) -> None:
        super().__init__(ways, inquiries, board)
        self._pace = pace
        self._deadline = 0.0

    def start(self) -> None:
        self._next()

    def _next(self) -> None:
        ways, rng = self._ways, self._ways.rng
        if self._operation is None and ways.known_tail and not ways.stopping:
            first = min(self._board.first, ways.known_tail)
            begin = first if rng.random() < 0.3 else rng.randint(max(1, first - 3), ways.known_tail)
            end = min(begin + rng.choice((1, 10, 40)), ways.known_tail + 1)
            operation = ways.history.invoke(
                ways.process.name, Kind.SCAN, TOPIC, position=begin, end=end, uncommitted=rng.random() < 0.1
            )
            self._deadline = ways.now + RANGE_SECONDS
            self._read(operation, end)
        ways.process.at(rng.expovariate(1.0) * self._pace, self._next)

    def tick(self) -> None:
        super().tick()
        operation, reading = self._operation, self._reading
        if operation is not None and reading is not None and self._ways.now >= self._deadline:
            reading.close()
            self._on_end(operation, errors.DeadlineExceeded(""))


class Subscriber(_Reader):
    """Subscribes from some position; where the log was trimmed meanwhile, begins anew where it now begins."""

    def __init__(
        self, ways: Ways, inquiries: Inquiries, board: Board, *, begin: int, uncommitted: bool = False
    ) -> None:
        super().__init__(ways, inquiries, board)
        self._begin = begin
        self._uncommitted = uncommitted

    def start(self) -> None:
        self._subscribe(self._begin)

    def _subscribe(self, begin: int) -> None:
        name = self._ways.process.name
        operation = self._ways.history.invoke(
            name, Kind.SUBSCRIBE, TOPIC, position=begin, uncommitted=self._uncommitted
        )
        self._read(operation, None)

    def _on_end(self, operation: Operation, error: errors.VarlogError | None) -> None:
        assert isinstance(error, errors.Trimmed), "a subscription without an end ends only where the log was trimmed"
        super()._on_end(operation, error)
        self._ways.process.at(0.0, self._subscribe, GLSN(error.first))

    def killed(self) -> None:
        if self._operation is not None:
            self._ways.history.failed(self._operation, "Killed")
            self._operation = None
        super().killed()
