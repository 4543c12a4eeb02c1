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
replicas, one after another and with the old epoch, what became of its batches; one that is complete tells (rule 19).
From the first sign that something is wrong, a refusal, a lost connection, or silence, it wants fresh metadata until
there is an answer, and the log stream is avoided by everyone who need not be there (M6, M11).

An append whose batch can be sent at once, and its answer, are what a client does most. They take a short way through
here: no object is made for them but the operation, the message and the outcome.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgspec

from varlog import batch, errors, limits
from varlog.core.address import Address, node_address
from varlog.core.content import Content, packed
from varlog.core.messages import Append, AppendReplies, AppendReply, Message, StreamInfo
from varlog.core.routing import Routing, takes_appends
from varlog.tuples import new_tuple
from varlog.types import GLSN, LLSN, Epoch, LogStreamID, Sequence, StorageNodeID, TopicID, WriterID

FRESH_SECONDS: Final = 1.0
"""What is known of a log stream goes into the horizon of a new batch only if it is not older."""

MOST_PATIENCE: Final = 8
"""So many attempt timeouts at most pass between two attempts on a log stream that takes appends."""

OVERDUE: Final = 0.3
"""After so long without any answer the writer looks whether its log stream still runs."""

ASK_FATES: Final = 0.05
"""Between two replicas of a sealed log stream that are asked, until each of them was asked twice."""

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

_NOT_OPEN: Final = 3
"""More trouble than any log stream that runs."""

_NO_REASON_TO_LEAVE: Final = frozenset((errors.Busy.code, errors.SequenceGap.code))
"""Of refusals: the log stream goes on as it should."""


class Committed(NamedTuple):
    """The batch is in the log: `count` entries, from `glsn` on."""

    glsn: GLSN
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody misses here
    llsn: LLSN
    log_stream: LogStreamID
    epoch: Epoch
    replicas: int
    """How many replicas have it."""
    synced: bool
    """Whether they have it on disk; False if a node runs without syncing."""

    @property
    def end(self) -> GLSN:
        """The first position after it."""
        return GLSN(self.glsn + self.count)


class Rejected(NamedTuple):
    """The batch is not in the log and never will be."""

    code: int


class Undecided(NamedTuple):
    """It could not be known in time whether the batch is in the log."""


Outcome = Committed | Rejected | Undecided
SendAppend = Callable[[Address, Message], bool | None]
"""As `Send`; False says that the message has certainly not been sent."""
Settle = Callable[[Any, Outcome], None]


class WriterOptions(NamedTuple):
    retry: bool = True
    """Send again until the deadline; otherwise one attempt decides."""
    window: int = 256
    attempt_timeout: float = 0.5
    codec: batch.Codec = batch.Codec.NONE
    home: LogStreamID | None = None
    """The log stream to prefer, and to go back to; None: any one, and stay there."""


DEFAULT_OPTIONS: Final = WriterOptions()


class _Operation(msgspec.Struct, gc=False, eq=False):
    id: Any
    entries: Content
    deadline: float
    sequence: Sequence
    batch: bytes
    horizon: LLSN = LLSN(0)
    requests: tuple[int, ...] = ()
    told: bool = False
    """Whoever asked for it has been told its outcome."""
    finished: bool = False
    """Nothing that is said of it matters any more: it is decided, or its writer id was given up."""
    unresolved: tuple[Epoch, ...] = ()
    """Epochs of attempts whose fate on the present log stream is not known."""


_Attempt = tuple[_Operation, Epoch, bool]
"""The operation, the epoch it was sent in, and whether the writer's batch before it was known to be committed then."""


class Writer:
    """See the module's text. `settle(id, outcome)` is called once for every append, with whatever its caller gave it
    as id; `new_request()` gives numbers that no request from this address had before; `timestamp()` is the wall clock
    in microseconds, which a batch carries as data."""

    def __init__(
        self,
        tpid: TopicID,
        routing: Routing,
        new_writer_id: Callable[[], WriterID],
        new_request: Callable[[], int],
        timestamp: Callable[[], int],
        send: SendAppend,
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
        self._window = options.window
        self._attempts: dict[int, _Attempt] = {}
        self._queue: deque[_Operation] = deque()
        self._sent: deque[_Operation] = deque()
        self._lsid: LogStreamID | None = None
        self._open: StreamInfo | None = None
        """The log stream if it takes appends, to the writer's knowledge."""
        self._resend_at = 0.0
        self._patience = 1
        """How many attempt timeouts to wait before everything is sent again."""
        self._heard_at = 0.0
        self._refused = False
        """It was told since the last answer that its log stream takes nothing."""
        self._blamed = False
        """It has counted failures of its log stream since the last answer."""
        self._asked_in = Epoch(0)
        """The sealed epoch in which it asks replicas what became of its batches, and how often it has asked."""
        self._asked = 0
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

    @property
    def log_stream(self) -> LogStreamID | None:
        """Where the writer is, or was last."""
        return self._lsid

    @property
    def has_nowhere(self) -> bool:
        """It has something to append and knows no log stream that takes it."""
        return self._open is None and self.outstanding > 0

    def silence(self, now: float) -> float:
        """For how long it has been waiting for an answer and heard none."""
        return now - self._heard_at if self._sent else 0.0

    def is_stuck(self, now: float) -> bool:
        """What it has under way does not come forward, nor would anything behind it."""
        return bool(self._sent) and (self._open is None or self._refused or now - self._heard_at >= OVERDUE)

    def append(self, id_: Any, entries: Content, deadline: float, now: float) -> None:
        """Append a batch; its outcome is told to `settle`. Entries that no log would take raise a typed error."""
        if len(self._queue) >= limits.MAX_QUEUED_APPENDS:
            raise errors.Busy(f"{limits.MAX_QUEUED_APPENDS} appends wait already; slow down")
        sequence = Sequence(self._sequence + 1)
        op = _Operation(id_, entries, deadline, sequence, self._encode(entries, sequence))
        self._sequence = sequence
        stream = self._open
        if stream is not None and self._sent and not self._queue and len(self._sent) < self._window:
            self._send_first(op, stream)
        else:
            self._queue.append(op)
            self._pump(now)

    def abandon(self) -> list[tuple[Any, bool]]:
        """Give up everything under way, undecided; returns the ids of those whose outcome was not told, and whether
        each may have happened."""
        given_up = [*self._sent, *self._queue]
        untold = [(op.id, bool(op.unresolved)) for op in given_up if not op.told]
        for op in given_up:
            op.told = op.finished = True
        self._sent.clear()
        self._queue.clear()
        return untold

    def on_metadata(self, now: float) -> None:
        """The routing has been renewed."""
        self.wants_metadata = False
        self._known_at = now
        self._pump(now)
        stream = self._stream()
        if not self._sent or stream is None:
            return
        if takes_appends(stream):
            newest = max(max(op.unresolved, default=Epoch(0)) for op in self._sent)
            if stream.epoch > newest:
                self._patience, self._heard_at = 1, now
                self._refused = self._blamed = False
                self._resend(now)
        elif stream.epoch != self._asked_in:
            self._asked_in, self._asked = stream.epoch, 0
            self._resend(now)

    def on_connected(self, snid: StorageNodeID, now: float) -> None:
        """There is a new connection to a node: what was sent to it before may be lost."""
        stream = self._stream()
        if self._sent and stream is not None:
            askable = (stream.primary,) if takes_appends(stream) else stream.replicas
            if snid in askable:
                self._resend(now)

    def on_disconnected(self, snid: StorageNodeID, now: float) -> None:
        """A node cannot be reached: it may not be the one to ask any more."""
        stream = self._stream()
        if self._sent and stream is not None and snid in stream.replicas:
            self.wants_metadata = True
            self._pump(now)

    def tick(self, now: float) -> None:
        """Called a few times a second."""
        self._expire(now)
        if self._sent:
            self._look_after(now)
        self._pump(now)

    def _look_after(self, now: float) -> None:
        """Something is under way: is it late?"""
        stream, is_late = self._open, now >= self._resend_at
        if is_late or self._refused or now - self._heard_at >= OVERDUE:
            self.wants_metadata = True
            if stream is not None and (is_late or not self._blamed):
                self._blamed = True
                self._routing.streams_avoided.failed(stream.lsid, now)
        if is_late:
            if stream is not None:  # a log stream that is merely slow is not made faster by more
                self._patience = min(2 * self._patience, MOST_PATIENCE)
            self._resend(now)

    # Sending

    def _stream(self) -> StreamInfo | None:
        return self._routing.stream(self._lsid) if self._lsid is not None else None

    def _pump(self, now: float) -> None:
        self._choose(now)
        stream = self._open
        if stream is None:
            self.wants_metadata = self.wants_metadata or self.outstanding > 0
            return
        if not self._sent and self._queue:
            if now - self._known_at > FRESH_SECONDS:
                self.wants_metadata = True
                return
            self._patience = 1
            self._resend_at = now + self._options.attempt_timeout
            self._heard_at = now
        while self._queue and len(self._sent) < self._window:
            self._send_first(self._queue.popleft(), stream)

    def _send_first(self, op: _Operation, stream: StreamInfo) -> None:
        """Send a batch that was not sent before, after all that were."""
        lsid, epoch, sent = stream.lsid, stream.epoch, self._sent
        prev = settled = self._last_on.get(lsid, Sequence(0))
        if sent and sent[-1].sequence > prev:
            prev = sent[-1].sequence
        horizon = self._known_end.get(lsid, LLSN(0))
        if stream.llsn_end > horizon:
            horizon = stream.llsn_end
        op.horizon = horizon
        sent.append(op)
        request = self._new_request()
        if self._send(node_address(stream.primary), Append(request, lsid, epoch, prev, horizon, op.batch)) is not False:
            op.requests += (request,)
            op.unresolved = (epoch,)
            self._attempts[request] = (op, epoch, prev == settled)

    def _encode(self, content: Content, sequence: Sequence) -> bytes:
        return packed(content, self.writer_id, sequence, self._timestamp(), self._options.codec)

    def _choose(self, now: float) -> None:
        """Stay on the log stream while none is better, and while anything sent there is undecided."""
        stream, routing, home = self._stream(), self._routing, self._options.home
        self._open = stream if stream is not None and takes_appends(stream) else None
        trouble = _NOT_OPEN if self._open is None else routing.trouble(self._open, now)
        is_away = home is not None and home != self._lsid and not self._sent
        if (not trouble and not is_away) or any(op.unresolved for op in self._sent):
            return
        chosen = routing.stream(home) if is_away and home is not None else None
        if chosen is not None and takes_appends(chosen) and routing.trouble(chosen, now) <= trouble:
            self._move(chosen)
        elif trouble:
            chosen = routing.choose(self._tpid, self.writer_id, now)
            if chosen is not None and chosen is not stream and routing.trouble(chosen, now) < trouble:
                self._move(chosen)

    def _move(self, stream: StreamInfo) -> None:
        """Go on with another log stream: what is not told yet goes there, in the same order."""
        self._lsid = stream.lsid
        self._open = stream
        self._refused = self._blamed = False
        self._asked_in = Epoch(0)
        self._attempts.clear()  # all decided: what is still said of them says nothing of the next log stream
        self._queue.extendleft(reversed([op for op in self._sent if not op.told]))
        for op in self._sent:
            op.finished = op.told
        self._sent.clear()

    def _resend(self, now: float) -> None:
        """Send everything again, in order: the log keeps what it has already. Or ask what became of it."""
        stream = self._stream()
        self._resend_at = now + self._patience * self._options.attempt_timeout
        if stream is None or not self._options.retry:
            return
        if takes_appends(stream):
            prev = self._last_on.get(stream.lsid, Sequence(0))
            for op in self._sent:
                self._attempt(op, stream, stream.epoch, prev, stream.primary)
                prev = max(prev, op.sequence)
        else:
            self._ask_fates(stream, now)

    def _ask_fates(self, stream: StreamInfo, now: float) -> None:
        """Ask the next replica of a sealed log stream that can be reached; the one that took the appends comes last."""
        replicas = stream.replicas
        if self._asked < 2 * len(replicas):
            self._resend_at = now + ASK_FATES
        first = replicas.index(stream.primary) + 1 if stream.primary in replicas else 0
        for snid in self._routing.in_turn(replicas, first + self._asked, now):
            prev, reached = self._last_on.get(stream.lsid, Sequence(0)), True
            for op in self._sent:
                if reached and op.unresolved:
                    reached = self._attempt(op, stream, max(op.unresolved), prev, snid)
                prev = max(prev, op.sequence)
            if reached:
                break
        self._asked += 1

    def _attempt(self, op: _Operation, stream: StreamInfo, epoch: Epoch, prev: Sequence, node: StorageNodeID) -> bool:
        """Send a batch again; False if it could not be sent."""
        request = self._new_request()
        append = Append(request, stream.lsid, epoch, prev, op.horizon, op.batch)
        if self._send(node_address(node), append) is False:
            return False
        op.requests += (request,)
        self._attempts[request] = (op, epoch, prev == self._last_on.get(stream.lsid, Sequence(0)))
        if epoch not in op.unresolved:
            op.unresolved += (epoch,)
        return True

    # Answers

    def on_replies(self, replies: AppendReplies, now: float) -> None:
        """What one cut has committed, which is most of what is heard."""
        lsid, epoch, replicas, synced, shift = (
            replies.lsid,
            replies.epoch,
            replies.replicas,
            replies.synced,
            replies.shift,
        )
        attempts, sent, settle = self._attempts, self._sent, self._settle
        sequence, end, heard = self._last_on.get(lsid, Sequence(0)), self._known_end.get(lsid, LLSN(0)), False
        for request, llsn, count in zip(replies.requests, replies.llsns, replies.counts, strict=True):
            attempt = attempts.pop(request, None)
            if attempt is None or attempt[0].finished:
                continue
            op = attempt[0]
            op.finished = heard = True
            if op.sequence > sequence:
                sequence = op.sequence
            if llsn + count > end:
                end = LLSN(llsn + count)
            if sent[0] is op:
                sent.popleft()
            else:
                sent.remove(op)
            if len(op.requests) > 1:
                for other in op.requests:
                    attempts.pop(other, None)
            if not op.told:
                op.told = True
                settle(op.id, new_tuple(Committed, (llsn + shift, count, llsn, lsid, epoch, replicas, synced)))
        if heard:
            self._last_on[lsid], self._known_end[lsid] = sequence, end
            self._on_progress(now)

    def on_reply(self, reply: AppendReply, now: float) -> None:
        """What a storage node says of an attempt."""
        attempt = self._attempts.pop(reply.request, None)
        if attempt is None:
            return
        op, epoch, follows_settled = attempt
        if op.finished:
            return
        if reply.code == 0:
            self._on_committed(op, reply, now)
        elif reply.code == errors.DidNotHappen.code:
            op.unresolved = tuple(e for e in op.unresolved if e > epoch)
            self._on_negative(op, reply.code, now)
        elif reply.code in _REFUSED_FOR_GOOD and len(op.requests) == 1:
            op.unresolved = ()
            self._finish(op, Rejected(reply.code))
            self._pump(now)
        elif reply.code == errors.FateExpired.code or not self._options.retry:
            self._retire(now)
        elif reply.code == errors.SequenceGap.code and follows_settled and len(op.unresolved) == 1:
            # What it follows was committed before it was sent, so the log has forgotten this writer since, and can
            # take none of its batches again, this one in no copy: it goes on under a new id.
            op.unresolved = ()
            self._retire(now)
        else:
            self._on_refused(reply.code, epoch, now)

    def _on_refused(self, code: int, epoch: Epoch, now: float) -> None:
        """Not now, or not there any more. That is no proof: a copy of the message may still be on its way."""
        self.wants_metadata = True
        stream = self._open
        if stream is not None and stream.epoch == epoch and code not in _NO_REASON_TO_LEAVE:
            self._refused = self._blamed = True
            self._routing.streams_avoided.unusable(stream.lsid, now)

    def _on_committed(self, op: _Operation, reply: AppendReply, now: float) -> None:
        lsid, end = reply.lsid, LLSN(reply.llsn + reply.count)
        self._last_on[lsid] = max(op.sequence, self._last_on.get(lsid, Sequence(0)))
        self._known_end[lsid] = max(end, self._known_end.get(lsid, LLSN(0)))
        committed = Committed(reply.glsn, reply.count, reply.llsn, lsid, reply.epoch, reply.replicas, reply.synced)
        self._finish(op, committed)
        self._on_progress(now)

    def _on_progress(self, now: float) -> None:
        self._known_at = self._heard_at = now
        if self._blamed and self._lsid is not None:
            self._refused = self._blamed = False
            self._routing.streams_avoided.worked(self._lsid)
        self._patience = 1
        self._resend_at = now + self._options.attempt_timeout
        if self._queue or self._open is None:
            self._pump(now)

    def _on_negative(self, op: _Operation, code: int, now: float) -> None:
        if op.unresolved:
            return
        if op.told or not self._options.retry:
            self._finish(op, Rejected(code))
        self.wants_metadata = True
        self._pump(now)

    def _finish(self, op: _Operation, outcome: Outcome) -> None:
        op.finished = True
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
        self._lsid = self._open = None
        again = [op for op in sent if not op.unresolved and not op.told]
        for op in sent:
            op.finished = op.told or bool(op.unresolved)
        self._queue.extendleft(reversed(again))
        for op in self._queue:
            self._sequence = op.sequence = Sequence(self._sequence + 1)
            op.batch = self._encode(op.entries, op.sequence)
        for op in sent:
            if op.unresolved:
                self._tell(op, Undecided())
        self._expire(now)
        self._pump(now)
