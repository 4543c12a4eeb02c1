"""A writer on a bench: what it sends and says is written down, time passes when it is told to."""

from __future__ import annotations

from functools import partial
from itertools import count

from tests.core.sketch import TOPIC, metadata
from varlog import batch, errors
from varlog.core.appending import Outcome, Writer, WriterOptions
from varlog.core.messages import Append, AppendReplies, AppendReply, Message, StreamInfo
from varlog.core.routing import Routing
from varlog.types import GLSN, LLSN, Epoch, LogStreamID, StreamStatus, WriterID

SEALED, UNSEALING = StreamStatus.SEALED, StreamStatus.UNSEALING
TIMEOUT = WriterOptions().attempt_timeout


class Bench:
    """A writer, the log streams it knows of, and lists of what it sent and said. Time stands still unless told."""

    def __init__(self, *streams: StreamInfo, retry: bool = True, window: int = 16, home: int | None = None) -> None:
        self.now = 0.0
        self.routing = Routing()
        self.sent: list[tuple[str, Append]] = []
        self.reachable = True
        self.cut_off: set[str] = set()
        self.outcomes: dict[int, Outcome] = {}
        ids = (WriterID(100 + number) for number in count())
        options = WriterOptions(retry=retry, window=window, home=None if home is None else LogStreamID(home))
        self.writer = Writer(
            TOPIC,
            self.routing,
            partial(next, ids),
            partial(next, count(1)),
            lambda: 0,
            self._send,
            self._settle,
            options,
        )
        self._version = 0
        if streams:
            self.learn(*streams)

    def _send(self, address: str, message: Message) -> bool:
        assert isinstance(message, Append)
        reachable = self.reachable and address not in self.cut_off
        if reachable:
            self.sent.append((address, message))
        return reachable

    def _settle(self, id_: int, outcome: Outcome) -> None:
        assert id_ not in self.outcomes, "an append is settled once"
        self.outcomes[id_] = outcome

    def learn(self, *streams: StreamInfo) -> None:
        self._version += 1
        assert self.routing.update(metadata(self._version, *streams))
        self.writer.on_metadata(self.now)

    def append(self, *ids: int, deadline: float = 100.0) -> list[Append]:
        """Append one-entry batches; what was sent because of it."""
        before = len(self.sent)
        for id_ in ids:
            self.writer.append(id_, [b"%d" % id_], deadline, self.now)
        return self.messages[before:]

    def pass_time(self, seconds: float = TIMEOUT) -> list[Append]:
        """Let time pass, with one tick at the end of it; what was sent then."""
        before = len(self.sent)
        self.now += seconds
        self.writer.tick(self.now)
        return self.messages[before:]

    def committed(self, append: Append, glsn: int, *, epoch: int | None = None) -> None:
        of = append.epoch if epoch is None else Epoch(epoch)
        reply = AppendReply(append.request, append.lsid, 0, of, GLSN(glsn), LLSN(glsn), 1, 3)
        self.writer.on_reply(reply, self.now)

    def refused(self, append: Append, error: type[errors.VarlogError], epoch: int = 2) -> None:
        self.writer.on_reply(AppendReply(append.request, append.lsid, error.code, Epoch(epoch)), self.now)

    def wants_metadata(self) -> bool:
        return self.writer.wants_metadata

    def avoided(self) -> set[int]:
        """The log streams that are avoided."""
        return {lsid for lsid in range(1, 9) if self.routing.streams_avoided.avoids(LogStreamID(lsid), self.now)}

    @property
    def messages(self) -> list[Append]:
        return [message for _, message in self.sent]

    @property
    def last(self) -> tuple[str, Append]:
        return self.sent[-1]


def sequences(appends: list[Append]) -> list[tuple[int, int]]:
    """(previous sequence, sequence) of each."""
    return [(append.prev_sequence, batch.peek_header(append.batch).sequence) for append in appends]


def writers(appends: list[Append]) -> list[int]:
    return [batch.peek_header(append.batch).writer_id for append in appends]


def payloads(append: Append) -> list[bytes]:
    return batch.decode(append.batch).to_list()


def replies(appends: list[Append], first: int, *, shift: int = 0) -> AppendReplies:
    """One cut has committed these, in this order, from an LLSN on."""
    llsns = tuple(range(first, first + len(appends)))
    requests = tuple(append.request for append in appends)
    lsid, epoch = appends[0].lsid, appends[0].epoch
    return AppendReplies(lsid, epoch, 3, True, shift, requests, llsns, (1,) * len(appends))
