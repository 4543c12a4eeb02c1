"""Writer: the client's half of an append, without I/O.

A writer sends its batches down one log stream, pipelined and in order, and finds out what became of each. Every batch
has a sequence number that never changes, so it may be sent as often as necessary: the log keeps it once (rule 18). A
batch ends in one of three ways:

- *committed*: the log answered with its position;
- *rejected*: every attempt is known not to have happened, and none will;
- *unknown*: the deadline passed first. The batch may still appear, once. As long as later ones follow it the writer
  goes on sending it, for their sake; when nobody waits any more it takes a new id, because what it knows of the old
  one's sequence on the log is no longer sure.

A batch carries a *horizon*, how far the writer knew the log stream to be committed when it first sent it, by which the
log tells a new batch from one it has forgotten. So a writer that has been silent refreshes what it knows first.

The writer changes the log stream only when nothing it sent there is undecided. While a log stream is sealed it asks the
replicas, with the old epoch, what became of its batches; one that is complete tells (rule 19).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Seq
from typing import Final, NamedTuple

from varlog import batch, errors, limits
from varlog.core.address import Send, node_address
from varlog.core.messages import Append, AppendReply, StreamInfo
from varlog.core.routing import Routing, takes_appends
from varlog.types import GLSN, LLSN, Epoch, LogStreamID, Sequence, StorageNodeID, TopicID, WriterID

FRESH_SECONDS: Final = 1.0
"""What is known of a log stream goes into the horizon of a new batch only if it is not older."""

_REFUSED_FOR_GOOD: Final = frozenset(
    error.code
    for error in (
        errors.InvalidArgument,
        errors.EmptyBatch,
        errors.EntryTooLarge,
        errors.BatchTooLarge,
        errors.MalformedBatch,
        errors.UnknownCodec,
        errors.UnsupportedFormat,
        errors.ChecksumMismatch,
    )
)


class Committed(NamedTuple):
    """The batch is in the log, from `glsn` on."""

    glsn: GLSN
    llsn: LLSN
    count: int  # type: ignore[assignment]
    lsid: LogStreamID
    epoch: Epoch
    replicas: int
    synced: bool


class Rejected(NamedTuple):
    """The batch is not in the log and never will be."""

    code: int


class Undecided(NamedTuple):
    """It could not be known in time whether the batch is in the log."""


Outcome = Committed | Rejected | Undecided
Settle = Callable[[int, Outcome], None]


class WriterOptions(NamedTuple):
    retry: bool = True
    """Send again until the deadline; otherwise one attempt decides."""
    window: int = 256
    attempt_timeout: float = 0.5
    codec: batch.Codec = batch.Codec.NONE


DEFAULT_OPTIONS: Final = WriterOptions()


class _Operation:
    __slots__ = (
        "attempts",
        "batch",
        "deadline",
        "entries",
        "horizon",
        "id",
        "requests",
        "sequence",
        "told",
        "unresolved",
    )

    def __init__(self, id_: int, entries: Seq[bytes], deadline: float) -> None:
        self.id = id_
        self.entries = entries
        self.deadline = deadline
        self.sequence = Sequence(0)
        self.batch = b""
        self.horizon = LLSN(0)
        self.requests: list[int] = []
        self.told = False
        """Whoever asked for it has been told its outcome."""
        self.unresolved: set[Epoch] = set()
        """Epochs of attempts whose fate on the present log stream is not known."""


class _Attempt(NamedTuple):
    op: _Operation
    epoch: Epoch
    follows_settled: bool
    """The writer's batch before it was known to be committed when this was sent."""


class Writer:
    """See the module's text. `settle(id, outcome)` is called once for every append; `new_request()`
    gives numbers that no request from this address had before; `timestamp()` is the wall clock in microseconds, which a
    batch carries as data."""

    def __init__(
        self,
        tpid: TopicID,
        routing: Routing,
        new_writer_id: Callable[[], WriterID],
        new_request: Callable[[], int],
        timestamp: Callable[[], int],
        send: Send,
        settle: Settle,
        options: WriterOptions = DEFAULT_OPTIONS,
    ) -> None:
        if not 1 <= options.window <= limits.DEDUP_SEQUENCES_PER_WRITER:
            raise errors.InvalidArgument(f"a window holds 1 to {limits.DEDUP_SEQUENCES_PER_WRITER} batches")
        self._tpid = tpid
        self._routing = routing
        self._new_writer_id = new_writer_id
        self._new_request = new_request
        self._timestamp = timestamp
        self._send = send
        self._settle = settle
        self._options = options
        self._attempts: dict[int, _Attempt] = {}
        self._queue: deque[_Operation] = deque()
        self._sent: deque[_Operation] = deque()
        self._lsid: LogStreamID | None = None
        self._resend_at = 0.0
        self.wants_metadata = True
        """Set when what the writer knows of the cluster is not enough; cleared by `on_metadata`."""
        self._begin_life()

    def _begin_life(self) -> None:
        self.writer_id = self._new_writer_id()
        self._sequence = Sequence(0)
        self._last_on: dict[LogStreamID, Sequence] = {}
        self._known_end: dict[LogStreamID, LLSN] = {}
        self._known_at = -math.inf
        self._attempts.clear()

    @property
    def outstanding(self) -> int:
        return len(self._queue) + len(self._sent)

    def append(self, id_: int, entries: Seq[bytes], deadline: float, now: float) -> None:
        """Append a batch; its outcome is told to `settle`. Entries that no log would take raise a typed error."""
        if len(self._queue) >= limits.MAX_QUEUED_APPENDS:
            raise errors.Busy(f"{limits.MAX_QUEUED_APPENDS} appends wait already; slow down")
        op = _Operation(id_, entries, deadline)
        self._number(op)
        self._queue.append(op)
        self._pump(now)

    def on_metadata(self, now: float) -> None:
        """The routing has been renewed."""
        self.wants_metadata = False
        self._known_at = now
        self._pump(now)
        stream = self._stream()
        if self._sent and stream is not None:
            newest = max((max(op.unresolved, default=Epoch(0)) for op in self._sent), default=Epoch(0))
            if stream.epoch > newest:
                self._resend(now)

    def tick(self, now: float) -> None:
        """Called a few times a second."""
        self._expire(now)
        if self._sent and now >= self._resend_at:
            self.wants_metadata = True
            self._resend(now)
        self._pump(now)

    # Sending

    def _stream(self) -> StreamInfo | None:
        return self._routing.stream(self._lsid) if self._lsid is not None else None

    def _pump(self, now: float) -> None:
        self._choose()
        stream = self._stream()
        if stream is None or not takes_appends(stream):
            self.wants_metadata = self.wants_metadata or self.outstanding > 0
            return
        if not self._sent and self._queue and now - self._known_at > FRESH_SECONDS:
            self.wants_metadata = True
            return
        while self._queue and len(self._sent) < self._options.window:
            op = self._queue.popleft()
            if not self._sent:
                self._resend_at = now + self._options.attempt_timeout
            op.horizon = max(stream.llsn_end, self._known_end.get(stream.lsid, LLSN(0)))
            self._sent.append(op)
            prev = self._last_on.get(stream.lsid, Sequence(0))
            if len(self._sent) > 1:
                prev = max(prev, self._sent[-2].sequence)
            self._attempt(op, stream, stream.epoch, prev, stream.primary)

    def _number(self, op: _Operation) -> None:
        sequence = Sequence(self._sequence + 1)
        op.batch = batch.encode(
            op.entries,
            writer_id=self.writer_id,
            sequence=sequence,
            timestamp=self._timestamp(),
            codec=self._options.codec,
        )
        self._sequence = op.sequence = sequence

    def _choose(self) -> None:
        """Stay on the log stream while it can be used, and while anything sent there is undecided."""
        stream = self._stream()
        if stream is not None and takes_appends(stream):
            return
        if any(op.unresolved for op in self._sent):
            return
        chosen = self._routing.choose(self._tpid, self.writer_id)
        if chosen is not None:
            self._lsid = chosen.lsid
            self._attempts.clear()  # all decided: what is still said of them says nothing of the next log stream
            self._queue.extendleft(reversed([op for op in self._sent if not op.told]))
            self._sent.clear()

    def _resend(self, now: float) -> None:
        """Send everything again, in order: the log keeps what it has already."""
        stream = self._stream()
        self._resend_at = now + self._options.attempt_timeout
        if stream is None or not self._options.retry:
            return
        prev = self._last_on.get(stream.lsid, Sequence(0))
        for op in self._sent:
            if takes_appends(stream):
                self._attempt(op, stream, stream.epoch, prev, stream.primary)
            elif op.unresolved:
                node = stream.replicas[len(op.requests) % len(stream.replicas)]
                self._attempt(op, stream, max(op.unresolved), prev, node)
            prev = max(prev, op.sequence)

    def _attempt(self, op: _Operation, stream: StreamInfo, epoch: Epoch, prev: Sequence, node: StorageNodeID) -> None:
        request = self._new_request()
        op.requests.append(request)
        follows_settled = prev == self._last_on.get(stream.lsid, Sequence(0))
        self._attempts[request] = _Attempt(op, epoch, follows_settled)
        op.unresolved.add(epoch)
        append = Append(request, stream.lsid, epoch, prev, op.horizon, op.batch)
        self._send(node_address(node), append)

    # Answers

    def on_reply(self, reply: AppendReply, now: float) -> None:
        """What a storage node says of an attempt."""
        attempt = self._attempts.pop(reply.request, None)
        if attempt is None or attempt.op not in self._sent:
            return
        op, epoch, follows_settled = attempt
        if reply.code == 0:
            self._on_committed(op, reply, now)
        elif reply.code == errors.DidNotHappen.code:
            op.unresolved = {e for e in op.unresolved if e > epoch}
            self._on_negative(op, reply.code, now)
        elif reply.code in _REFUSED_FOR_GOOD and len(op.requests) == 1:
            op.unresolved.clear()
            self._finish(op, Rejected(reply.code))
            self._pump(now)
        elif reply.code == errors.FateExpired.code or not self._options.retry:
            self._retire(now)
        elif reply.code == errors.SequenceGap.code and follows_settled and len(op.unresolved) == 1:
            # What it follows was committed before it was sent, so the log has forgotten this writer since, and can
            # take none of its batches again, this one in no copy: it goes on under a new id.
            op.unresolved.clear()
            self._retire(now)
        else:
            self.wants_metadata = True

    def _on_committed(self, op: _Operation, reply: AppendReply, now: float) -> None:
        self._last_on[reply.lsid] = max(self._last_on.get(reply.lsid, Sequence(0)), op.sequence)
        self._known_end[reply.lsid] = max(self._known_end.get(reply.lsid, LLSN(0)), LLSN(reply.llsn + reply.count))
        self._known_at = now
        committed = Committed(
            reply.glsn, reply.llsn, reply.count, reply.lsid, reply.epoch, reply.replicas, reply.synced
        )
        self._finish(op, committed)
        self._resend_at = now + self._options.attempt_timeout
        self._pump(now)

    def _on_negative(self, op: _Operation, code: int, now: float) -> None:
        if op.unresolved:
            return
        if op.told or not self._options.retry:
            self._finish(op, Rejected(code))
        self.wants_metadata = True
        self._pump(now)

    def _finish(self, op: _Operation, outcome: Outcome) -> None:
        self._sent.remove(op)
        for request in op.requests:
            self._attempts.pop(request, None)
        self._tell(op, outcome)

    def _tell(self, op: _Operation, outcome: Outcome) -> None:
        if not op.told:
            op.told = True
            self._settle(op.id, outcome)

    def _expire(self, now: float) -> None:
        late = [op for op in self._queue if op.deadline <= now]
        if late:
            self._queue = deque(op for op in self._queue if op.deadline > now)
            for op in late:
                self._tell(op, Rejected(errors.DeadlineExceeded.code))
        for op in self._sent:
            if op.deadline <= now and op.unresolved:
                self._tell(op, Undecided())
        if self._sent and all(op.told or op.deadline <= now for op in self._sent):
            self._retire(now)

    def _retire(self, now: float) -> None:
        """Give up this writer id. What may have happened is unknown; what is known not to have happened goes on under
        a new id, or is rejected if its time is up."""
        sent, self._sent = list(self._sent), deque()
        self._begin_life()
        self._lsid = None
        self._queue.extendleft(reversed([op for op in sent if not op.unresolved and not op.told]))
        for op in self._queue:
            self._number(op)
        for op in sent:
            if op.unresolved:
                self._tell(op, Undecided())
        self._expire(now)
        self._pump(now)
