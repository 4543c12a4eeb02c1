"""Committed: what a reader shows that shows only what is committed, without I/O.

Its caller reads the log and hands over every batch that is not plain, in order. Batches of transactions are shown if
the transaction's fate says so (`fates`), passed over if it says otherwise, and *held* while it has none: nothing behind
it is shown before it is decided. Verdicts are passed over. So a range is decided before it is delivered, every position
is shown or passed over by a rule, and who reads it again sees the same.

While a batch is held verdicts are looked for: first from where the transaction begins up to where the reader began, if
that is earlier; then on from where the reader is. `look` says which stretch of the log is wanted next. Whoever has it
hands over its chunks, be they of a subscription to verdicts or read ahead of the reader anyway.

What nobody decides expires. Once it has held the reader for its expiry, or something in the log is so much later than
it, or where it began is trimmed, the tail is asked for (`wants_tail`). If there is no verdict up to there, one is to be
appended (`wants_verdict`), and what the log then says counts: no clock decides anything.

What must always hold: what was shown of a transaction, or passed over, agrees with its fate; a transaction without a
verdict is neither.
"""

from __future__ import annotations

from collections import OrderedDict
from enum import Enum
from typing import Final, NamedTuple

from varlog import errors, limits
from varlog.batch import BatchFlag, RecordBatch
from varlog.batch.transactions import Mark, Verdict, VerdictKind, mark_of
from varlog.core.fates import Fate, Fates, Key, shows, weight
from varlog.core.merging import Chunk
from varlog.types import GLSN

_PASSED: Final = int(BatchFlag.JUNK | BatchFlag.CONTROL)
_TRANSACTION: Final = int(BatchFlag.TRANSACTION)

PRONOUNCE_AGAIN: Final = 1.0
"""An EXPIRE whose append failed is appended again so many seconds later."""


class Judgement(Enum):
    """What is done with a batch."""

    SHOW = 1
    PASS = 2
    HOLD = 3


class Held(NamedTuple):
    """A batch that waits for its transaction to be decided."""

    glsn: GLSN
    mark: Mark
    since: float
    """When the reader was first held by the transaction,"""
    time: int
    """and what time the batch has in the log."""

    @property
    def key(self) -> Key:
        return self.mark.txid, self.mark.after

    @property
    def expiry(self) -> float:
        """In seconds; no more than a transaction may have, whatever its writer says."""
        return min(self.mark.expiry / 1e3, limits.MAX_TRANSACTION_SECONDS)


class Look(NamedTuple):
    """A stretch of the log whose verdicts are wanted; without an end, as far as it goes."""

    begin: GLSN
    end: GLSN | None


class Committed:
    """See the module's text. `begin` is the first position that is read."""

    def __init__(self, begin: int, most: int = limits.REMEMBERED_FATES) -> None:
        self.fates = Fates(begin, most)
        self.held: Held | None = None
        self.trimmed: GLSN | None = None
        """The log begins there, and what is held lies before it: it has to be read elsewhere."""
        self._most = most
        self._known: OrderedDict[Key, Fate] = OrderedDict()
        """Of transactions that were asked for; the last one that was is at the end."""
        self._weight = 0
        self._earlier: Fates | None = None
        """What is looked through of the log before where the reader began."""
        self._floor = GLSN(0)
        """What lies below cannot be looked through any more."""
        self._tail: GLSN | None = None
        """Asked for after what is held was due to expire."""
        self._pronounced = float("-inf")

    # Batches

    def judge(self, chunk: Chunk, opened: RecordBatch, now: float) -> Judgement:
        """What to do with a batch that has any flag. One that is held is asked for again when it `is_decided`."""
        flags = opened.header.flags
        self.fates.pass_to(chunk.glsn)
        if flags & _PASSED:
            self.fates.on_chunk(chunk)
            return Judgement.PASS
        if not flags & _TRANSACTION:
            return Judgement.SHOW
        try:
            mark = mark_of(opened.extensions)
        except errors.MalformedBatch:
            return Judgement.PASS  # of no transaction: nobody ever shows it
        fate = self._fate((mark.txid, mark.after))
        if fate is not None:
            self.held = None
            # By where the batch begins: it is shown as a whole, also to who begins to read in the middle of it.
            return Judgement.SHOW if shows(mark, chunk.stored[0], fate) else Judgement.PASS
        if self.held is None or self.held.key != (mark.txid, mark.after):
            self._hold(Held(chunk.glsn, mark, now, chunk.stored[5]))
        return Judgement.HOLD

    def _hold(self, held: Held) -> None:
        self.held = held
        self._earlier = self._tail = None
        self._pronounced = float("-inf")
        self._watch()

    def _watch(self) -> None:
        """Keep what becomes of the transaction that holds, once all of it is covered; else look before the rest."""
        assert self.held is not None
        txid, after = self.held.key
        begin = max(after + 1, self._floor)
        if self.fates.begin <= begin:
            self._earlier = None
            self.fates.watch(txid, after)
        elif self._earlier is None:
            self._earlier = Fates(begin, self._most)

    def _fate(self, key: Key) -> Fate | None:
        """Of a transaction, if it is known. What is not covered is not known: there may be an earlier verdict."""
        if (fate := self._known.get(key)) is not None:
            self._known.move_to_end(key)
            return fate
        fates, (txid, after) = self.fates, key
        if self._earlier is not None and self.held is not None and self.held.key == key:
            fates = self._earlier  # which begins where the transaction does
        elif not fates.covers(txid, after) and fates.begin > self._floor:
            return None
        if (fate := fates.fate(txid, after)) is not None:
            self.fates.forget(txid, after)
            self._know(key, fate)
        return fate

    def _know(self, key: Key, fate: Fate) -> None:
        self._known[key] = fate
        self._weight += weight(fate)
        while self._weight > self._most and len(self._known) > 1:
            self._weight -= weight(self._known.popitem(last=False)[1])

    @property
    def is_decided(self) -> bool:
        """Whether what is held need not be any longer."""
        return self.held is not None and self._fate(self.held.key) is not None

    # Looking

    @property
    def look(self) -> Look | None:
        """Where verdicts are wanted from; None if none are."""
        if self.held is None or self.is_decided:
            return None
        if self._earlier is not None:
            return Look(self._earlier.position, self.fates.begin)
        return Look(self.fates.position, None)

    def on_chunk(self, chunk: Chunk) -> None:
        """What the log has from where `look` begins. Raises if a verdict's batch is damaged."""
        if self._earlier is None:
            self.fates.on_chunk(chunk)
            return
        self._earlier.on_chunk(chunk)
        self._try_join()

    def on_lost(self, end: int) -> None:
        """What was looked through is lost up to a position, and verdicts with it."""
        (self._earlier or self.fates).pass_to(end)
        self._try_join()

    def on_trimmed(self, first: int) -> None:
        """What was to be looked through is trimmed, up to a position."""
        if self.held is None or first <= self._floor:
            return
        if first > self.held.glsn:
            self.trimmed = GLSN(first)
            return
        self._floor = GLSN(first)
        self._earlier = None
        self._watch()

    def _try_join(self) -> None:
        earlier = self._earlier
        if earlier is not None and earlier.position >= self.fates.begin:
            if self.held is not None and self._fate(self.held.key) is None:
                self.fates.watch(*self.held.key)  # before anything is forgotten
            self._earlier = None
            self.fates.join(earlier)

    # Expiring

    def is_due(self, now: float) -> bool:
        """Whether what is held need not be waited for any longer."""
        held = self.held
        if held is None or self.is_decided:
            return False
        if self._floor > held.mark.after + 1:
            return True  # nobody trims what an open one begins with: it was decided, or nobody knows of it
        return now >= held.since + held.expiry or 0 < held.time <= self.fates.time - held.expiry * 1e6

    def due_at(self) -> float | None:
        """When that is so at the latest, if there is no verdict."""
        return None if self.held is None else self.held.since + self.held.expiry

    def held_since(self, since: float) -> None:
        """Others were held by it before, or it is known to be older than that."""
        if self.held is not None:
            self.held = self.held._replace(since=min(self.held.since, since))

    def wants_tail(self, now: float) -> bool:
        """Whether the tail is to be asked for, and told to `on_tail`."""
        return self._tail is None and self.is_due(now)

    def on_tail(self, key: Key, tail: int) -> None:
        """The tail, asked for after that was wanted for the transaction."""
        if self.held is not None and self.held.key == key:
            self._tail = GLSN(tail)

    def wants_verdict(self, now: float) -> Verdict | None:
        """What is to be appended now, if there is no verdict up to the tail; `on_pronounced` is told that it is."""
        if self._tail is None or self._earlier is not None or self.fates.position <= self._tail:
            return None
        if not self.is_due(now) or now < self._pronounced + PRONOUNCE_AGAIN:
            return None
        assert self.held is not None
        txid, after = self.held.key
        return Verdict(VerdictKind.EXPIRE, txid, after, reason=f"it was not decided within {self.held.expiry:g} s")

    def on_pronounced(self, now: float) -> None:
        """It is being appended. If that comes to nothing it will be wanted again, a little later."""
        self._pronounced = now
