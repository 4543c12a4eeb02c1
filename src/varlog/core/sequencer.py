"""Sequencer: gives out the positions of the topics whose projection names it (S1), without I/O.

For each such topic it has a counter, in memory and nowhere else. It begins at the projection's start when the sequencer
is first asked in that epoch, and ends with the epoch: positions are valid only in the epoch that gave them out (rule
20), and what was not written by its end never happened or is filled. So nothing is lost with a sequencer but the
time until a projection names another one, or another start of it: a sequencer that was started again has forgotten its
counters, is told from the one before by its `boot`, and serves no epoch that it served before. One that was replaced
and does not know it can harm nothing either: no replica takes what is written in its epoch any more, and its peek is
not believed without a look at the projection.

A grant never crosses the end of a stripe's block, so that a batch lies in one log stream (rule 24): what is left of a
block is skipped, and told to whoever the next one is granted to. Times never decrease along the positions of a topic,
over all epochs, whatever the clock does.

An epoch that it does not know the sequencer looks up in the metadata, and whoever asked for it waits meanwhile. Asked
in one that has passed it answers StaleEpoch, in one that names another sequencer, or another start, NotSequencer.

The caller's duties: `on_leader` when a metadata repository begins to lead, `on_message` for what arrives, `tick` a few
times a second while it `awaits` something. `grant` is the short way of a `Next` that can be answered at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from varlog import errors, limits
from varlog.core.address import METADATA_REPOSITORY, Address, Send
from varlog.core.messages import (
    Decided,
    GetMetadata,
    Granted,
    Message,
    Metadata,
    Next,
    Peek,
    Peeked,
    RegisterSequencer,
)
from varlog.core.projection import Projection
from varlog.types import GLSN, Epoch, Ordering, TopicID, Version

ASK_AGAIN: Final = 0.25
"""Seconds after which a question to the metadata repository is taken for lost."""
WAIT_SECONDS: Final = 0.8
"""So long a request waits for the metadata: it is told so before its sender takes the sequencer for dead."""
REGISTER_AGAIN: Final = 1.0


class _Counter:
    """The positions of one topic in one epoch."""

    __slots__ = ("block", "block_end", "next", "projection", "time")

    def __init__(self, projection: Projection) -> None:
        self.projection: Final = projection
        self.block: Final = projection.stripes[-1].block
        self.next: int = projection.start
        self.block_end: int = projection.block_end(projection.start)
        self.time = projection.time

    def grant(self, asked: Next, now: int) -> tuple[Granted, int]:
        """The answer, and how many positions it grants; or raises why there are none."""
        counts = asked.counts
        if (
            len(counts) == 1 and 0 < counts[0] <= self.block_end - self.next
        ):  # of a single append, nothing more is needed
            glsn = self.next
            self.next = glsn + counts[0]
            if now > self.time:
                self.time = now
            return Granted(asked.request, 0, asked.epoch, (glsn,), self.time), counts[0]
        if not counts or min(counts) < 1:
            raise errors.InvalidArgument("positions are asked for one or more batches, each of one entry or more")
        if max(counts) > self.block:
            raise errors.BatchTooLarge(
                f"a batch of {max(counts)} entries does not fit into a block of {self.block} positions; split it, or "
                "make a topic with larger blocks"
            )
        glsn, end = self.next, self.block_end
        glsns: list[int] = []
        skipped: list[tuple[int, int]] = []
        for count in counts:
            if glsn + count > end:
                if glsn < end:
                    skipped.append((glsn, end - glsn))
                    glsn = end
                end = self.projection.block_end(GLSN(glsn))
            glsns.append(glsn)
            glsn += count
        self.next, self.block_end = glsn, end
        self.time = max(self.time, now)
        granted = Granted(asked.request, 0, asked.epoch, tuple(glsns), self.time, tuple(skipped))
        return granted, sum(counts)


class _Waiting(NamedTuple):
    """A request in an epoch that is not known yet."""

    source: Address
    asked: Next | Peek
    after: int
    """The question to the metadata repository that was under way: its answer may be from before the epoch began."""
    until: float


class Sequencer:
    """See the module's text."""

    def __init__(
        self, location: str, boot: int, clock: Callable[[], int], new_request: Callable[[], int], send: Send
    ) -> None:
        """`location` is where others reach it, `boot` which start of it this is: no two of them are the same. `clock`
        tells microseconds since 1970; numbers of requests grow."""
        self.location: Final = location
        self.boot: Final = boot
        self.is_registered = False
        self.complaint = ""
        """Why it could not be registered, if it could not."""
        self.requests = 0
        """Of positions, answered with some;"""
        self.positions = 0
        """how many those were,"""
        self.skipped = 0
        """and how many were left out for them."""
        self.refused = 0
        self._clock = clock
        self._new_request = new_request
        self._send = send
        self._epochs: dict[TopicID, Epoch] = {}
        """Of all topics that a sequencer orders: the greatest that was heard of."""
        self._counters: dict[TopicID, _Counter] = {}
        """Of those whose projection in that epoch names this start of this sequencer."""
        self._waiting: list[_Waiting] = []
        self._room = limits.MAX_WAITING_GRANTS
        self._asked = 0
        """The question to the metadata repository that is under way; 0 if none is."""
        self._asked_at = 0.0
        self._version = Version(0)
        """The greatest of metadata that were told."""
        self._registration = 0
        self._registered_at = 0.0

    @property
    def topics(self) -> int:
        """How many it gives out positions of."""
        return len(self._counters)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def awaits(self) -> bool:
        """Whether an answer is due, to this sequencer or from it: only then `tick` has something to look after."""
        return not self.is_registered or self._asked > 0 or bool(self._waiting)

    def on_leader(self, now: float) -> None:
        """A metadata repository leads, and may never have heard of this sequencer."""
        self._register(now)
        if self._waiting:
            self._ask(now)

    def tick(self, now: float) -> None:
        """Ask again what was not answered, and give up what has waited too long."""
        if not self.is_registered and now - self._registered_at >= REGISTER_AGAIN:
            self._register(now)
        if self._asked and now - self._asked_at >= ASK_AGAIN:
            self._ask(now)
        late = [each for each in self._waiting if each.until <= now]
        if late:
            self._waiting = [each for each in self._waiting if each.until > now]
            for each in late:
                asked = each.asked
                self._leave(asked)
                why = f"the metadata repository did not say in time who sequences epoch {asked.epoch}; ask again"
                self._refuse(each.source, asked, errors.Unreachable(why))

    def grant(self, asked: Next) -> Granted | None:
        """The answer to a request in an epoch that this sequencer serves; else None, and `on_message` takes it."""
        counter = self._counters.get(asked.tpid)
        if counter is None or counter.projection.epoch != asked.epoch:
            return None
        try:
            granted, positions = counter.grant(asked, self._clock())
        except errors.VarlogError as error:
            self.refused += 1
            return Granted(asked.request, error.code, asked.epoch, detail=str(error))
        self.requests += 1
        self.positions += positions
        if granted.skipped:
            self.skipped += sum(count for _, count in granted.skipped)
        return granted

    def on_message(self, source: Address, message: Message, now: float) -> None:
        """Anything that arrives for the sequencer."""
        match message:
            case Next() | Peek():
                self._on_asked(source, message, now)
            case Metadata(request):
                if request == self._asked:
                    self._on_metadata(message, now)
            case Decided(request, code):
                if request == self._registration:
                    self.is_registered = code == 0
                    self.complaint = message.detail if code else ""
            case _:
                raise errors.InvalidArgument(f"a sequencer does not take {type(message).__name__}")

    def _on_asked(self, source: Address, asked: Next | Peek, now: float) -> None:
        known = self._epochs.get(asked.tpid, Epoch(0))
        if asked.epoch <= known or (isinstance(asked, Peek) and not asked.epoch):
            self._answer(source, asked)
            return
        room = len(asked.counts) if isinstance(asked, Next) else 1
        if room > self._room:
            self._refuse(source, asked, errors.Busy("too many wait for the projection of a new epoch; ask again"))
            return
        self._room -= room
        self._waiting.append(_Waiting(source, asked, self._asked, now + WAIT_SECONDS))
        if not self._asked:
            self._ask(now)

    def _answer(self, source: Address, asked: Next | Peek) -> None:
        """In an epoch of which it is known who sequences it."""
        if isinstance(asked, Peek):
            self._peek(source, asked)
            return
        granted = self.grant(asked)
        if granted is not None:
            self._send(source, granted)
        else:
            self._refuse(source, asked, self._why_not(asked))

    def _peek(self, source: Address, asked: Peek) -> None:
        counter = self._counters.get(asked.tpid)
        if not asked.epoch:
            self._send(source, Peeked(asked.request, 0, Epoch(0), boot=self.boot))
        elif counter is not None and counter.projection.epoch == asked.epoch:
            self._send(source, Peeked(asked.request, 0, asked.epoch, GLSN(counter.next - 1), self.boot))
        else:
            self._refuse(source, asked, self._why_not(asked))

    def _why_not(self, asked: Next | Peek) -> errors.VarlogError:
        known = self._epochs.get(asked.tpid, Epoch(0))
        if known != asked.epoch:
            return errors.StaleEpoch(f"topic {asked.tpid} is in epoch {known}, not {asked.epoch}; renew the projection")
        return errors.NotSequencer(
            f"in epoch {known} the sequencer of topic {asked.tpid} is not this start of {self.location}; renew the "
            "projection"
        )

    def _refuse(self, source: Address, asked: Next | Peek, why: errors.VarlogError) -> None:
        known = self._epochs.get(asked.tpid, Epoch(0))
        self.refused += 1
        if isinstance(asked, Next):
            self._send(source, Granted(asked.request, why.code, known, detail=str(why)))
        else:
            self._send(source, Peeked(asked.request, why.code, known, boot=self.boot, detail=str(why)))

    def _leave(self, asked: Next | Peek) -> None:
        """It waits no more."""
        self._room += len(asked.counts) if isinstance(asked, Next) else 1

    # What the metadata say

    def _register(self, now: float) -> None:
        self.is_registered = False
        self._registration = self._new_request()
        self._registered_at = now
        self._send(METADATA_REPOSITORY, RegisterSequencer(self._registration, self.location, self.boot))

    def _ask(self, now: float) -> None:
        self._asked = self._new_request()
        self._asked_at = now
        self._send(METADATA_REPOSITORY, GetMetadata(self._asked))

    def _on_metadata(self, metadata: Metadata, now: float) -> None:
        """Learn of new epochs, and answer those who waited for it when it was asked for."""
        self._asked = 0
        topics = {topic.tpid: topic for topic in metadata.topics}
        if metadata.version >= self._version:  # else they are from before a topic that is missing was made
            self._version = metadata.version
            for tpid in [known for known in self._epochs if known not in topics]:
                del self._epochs[tpid]
                self._counters.pop(tpid, None)
        for topic in metadata.topics:
            if topic.projection is not None:
                self._learn(topic.tpid, topic.projection)
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if each.after >= metadata.request:
                self._waiting.append(each)
                continue
            self._leave(each.asked)
            found = topics.get(each.asked.tpid)
            if found is None:
                why: errors.VarlogError = errors.UnknownTopic(f"there is no topic {each.asked.tpid}")
                self._refuse(each.source, each.asked, why)
            elif found.ordering is not Ordering.SEQUENCER:
                why = errors.WrongOrdering(f"topic {found.name!r} is ordered by commits: it has no sequencer")
                self._refuse(each.source, each.asked, why)
            else:
                self._answer(each.source, each.asked)
        if self._waiting:
            self._ask(now)

    def _learn(self, tpid: TopicID, projection: Projection) -> None:
        """Of an epoch that was heard of before nothing new can be said: what was given out in it stays so."""
        if projection.epoch <= self._epochs.get(tpid, Epoch(0)):
            return
        self._epochs[tpid] = projection.epoch
        self._counters.pop(tpid, None)
        if (projection.sequencer, projection.boot) == (self.location, self.boot):
            self._counters[tpid] = _Counter(projection)
