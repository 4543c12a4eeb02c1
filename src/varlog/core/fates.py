"""What became of transactions, as the log has it.

The first verdict on a transaction, in the order of the log, is its *fate*; later ones mean nothing
(`varlog.batch.transactions`). `Fates` knows all verdicts of a stretch of the log, and grows with every chunk it is
given: those of a subscription to verdicts, or of any other. A transaction begins after a position that its name says,
so its fate is known from any stretch that begins there.

What is remembered of verdicts is bounded. When it is too much the stretch begins later: what it says is true, and
what it does not know has to be looked for again. A transaction that somebody waits for is *watched* meanwhile, from
when all of it is covered on, and what becomes of it is not forgotten.

A batch with the flag CONTROL that holds no verdict says nothing, to anybody.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final, NamedTuple

from varlog import batch, errors, limits
from varlog.batch.transactions import Mark, Verdict, VerdictKind, decode_verdict
from varlog.core.merging import Chunk
from varlog.core.sifting import is_control
from varlog.types import GLSN, TransactionID

_COMMIT: Final = VerdictKind.COMMIT


class Fate(NamedTuple):
    """The first verdict on a transaction, and where it is."""

    glsn: GLSN
    verdict: Verdict


Key = tuple[TransactionID, GLSN]
"""What names a transaction: its id, and the position after which all of it lies."""


def weight(fate: Fate) -> int:
    """What it counts for, where fates are remembered: a COMMIT may name many parts."""
    return 1 + len(fate.verdict.parts)


def shows(mark: Mark, glsn: int, fate: Fate) -> bool:
    """Whether readers see a batch at a position, of a transaction with that fate.

    Its part is counted by the commit, and it is not behind what the committer had looked through before: up to there no
    verdict was found. So a verdict that a trim has taken away cannot have been about anything that is still there."""
    verdict = fate.verdict
    if verdict.kind != _COMMIT or not mark.after < glsn <= verdict.checked or glsn >= fate.glsn:
        return False
    number = bisect_left(verdict.parts, (mark.part, 0))
    return number < len(verdict.parts) and verdict.parts[number][0] == mark.part


def verdict_of(data: bytes | memoryview) -> Verdict | None:
    """The verdict that a batch holds, if it holds one. Raises if the batch is damaged."""
    if not is_control(data):
        return None
    opened = batch.decode(data)
    if not opened.header.flags & batch.BatchFlag.CONTROL or opened.header.flags & batch.BatchFlag.JUNK:
        return None
    try:
        return decode_verdict(opened[0]) if opened.header.count == 1 else None
    except errors.VarlogError:
        return None


class Fates:
    """See the module's text. All verdicts in [begin, position) are known."""

    def __init__(self, begin: int, most: int = limits.REMEMBERED_FATES) -> None:
        self.begin = GLSN(begin)
        self.position = GLSN(begin)
        self.time = 0
        """The greatest time of what it was given."""
        self._most = most
        self._first: dict[Key, Fate] = {}
        """In the order of the log."""
        self._weight = 0
        self._watched: dict[Key, Fate | None] = {}

    def __len__(self) -> int:
        return len(self._first)

    # Looking up

    def covers(self, txid: TransactionID, after: GLSN) -> bool:
        """Whether all of the transaction up to `position` is in the stretch, or was while it is watched."""
        return self.begin <= after + 1 or (txid, after) in self._watched

    def fate(self, txid: TransactionID, after: GLSN) -> Fate | None:
        """What the stretch says of a transaction; None if it has no verdict on it. That is the truth if it `covers` the
        transaction; otherwise there may be an earlier verdict."""
        key = txid, after
        return self._watched.get(key) or self._first.get(key)

    def watch(self, txid: TransactionID, after: GLSN) -> None:
        """Do not forget what becomes of one that is covered."""
        self._watched[txid, after] = self.fate(txid, after)

    def forget(self, txid: TransactionID, after: GLSN) -> None:
        """Nobody waits for it any more."""
        self._watched.pop((txid, after), None)

    # Growing

    def on_chunk(self, chunk: Chunk) -> None:
        """What the log has at `position`, or has had before; what lies beyond it must come later. Raises if a verdict's
        batch is damaged: then the chunk has to be brought again."""
        end = chunk.glsn + chunk.count
        if end <= self.position:
            return
        if chunk.glsn > self.position:
            raise errors.ConsistencyViolation(f"positions from {chunk.glsn} on, where {self.position} comes next")
        verdict = verdict_of(chunk.stored[6])
        if verdict is not None:
            self._note(chunk.glsn, verdict)
        self.time = max(self.time, chunk.stored[5])
        self.position = GLSN(end)

    def pass_to(self, position: int) -> None:
        """There is no verdict up to a position, or none that is still there."""
        self.position = GLSN(max(self.position, position))

    def join(self, earlier: Fates) -> None:
        """Add a stretch that ends where this one begins, or later."""
        if earlier.position < self.begin:
            raise errors.ConsistencyViolation(f"a stretch up to {earlier.position} before one from {self.begin} on")
        later = [(key, fate) for key, fate in self._first.items() if key not in earlier._first]
        self._first = {**earlier._first, **dict(later)}
        self._weight = sum(map(weight, self._first.values()))
        self.begin = min(self.begin, earlier.begin)
        self.time = max(self.time, earlier.time)
        self._shed()

    def _note(self, glsn: GLSN, verdict: Verdict) -> None:
        key = verdict.txid, verdict.after
        if glsn <= verdict.after:
            return  # of a transaction that begins behind it
        fate = Fate(glsn, verdict)
        if key in self._watched and self._watched[key] is None:
            self._watched[key] = fate
        if key not in self._first:
            self._first[key] = fate
            self._weight += weight(fate)
            self._shed()

    def _shed(self) -> None:
        while self._weight > self._most and len(self._first) > 1:
            dropped = self._first.pop(next(iter(self._first)))
            self._weight -= weight(dropped)
            self.begin = GLSN(dropped.glsn + 1)
