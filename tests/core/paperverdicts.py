"""A log on paper that has transactions in it: a list of batches at their positions, and what of it is visible by the
rule as it is written down."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from varlog import batch
from varlog.batch import BatchFlag
from varlog.batch.transactions import (
    MARK_TAG,
    Mark,
    Verdict,
    VerdictKind,
    encode_mark,
    encode_verdict,
)
from varlog.core.committed import Committed, Judgement
from varlog.core.merging import Chunk
from varlog.core.messages import StoredLine
from varlog.core.sifting import sifted
from varlog.types import GLSN, LogStreamID, TransactionID

LSID = LogStreamID(1)
SECOND = 1_000_000


class Batch(NamedTuple):
    """One of the log; what it is of a transaction is said by its mark, or by the verdict that it is."""

    glsn: int
    entries: int = 1
    mark: Mark | None = None
    verdict: Verdict | None = None
    time: int = SECOND
    flags: int = 0
    """Other ones."""
    extension: bytes | None = None
    """In place of a mark."""

    @property
    def end(self) -> int:
        return self.glsn + self.entries

    @property
    def line(self) -> StoredLine:
        flags, extensions = self.flags, None
        entries = [b"%d" % glsn for glsn in range(self.glsn, self.end)]
        if self.verdict is not None:
            flags, entries = flags | BatchFlag.CONTROL, [encode_verdict(self.verdict)]
        if self.mark is not None:
            flags, extensions = flags | BatchFlag.TRANSACTION, {MARK_TAG: encode_mark(self.mark)}
        if self.extension is not None:
            extensions = {MARK_TAG: self.extension}
        data = batch.encode(entries, writer_id=1, sequence=self.glsn, flags=flags, extensions=extensions)
        return (self.glsn, self.glsn, self.entries, 2, 1, self.time, data)

    @property
    def chunk(self) -> Chunk:
        return Chunk(GLSN(self.glsn), LSID, 0, self.entries, self.line)


def mark(txid: int, after: int, part: int = 1, expiry: int = 1000) -> Mark:
    return Mark(TransactionID(txid), GLSN(after), part, expiry)


def commit(txid: int, after: int, checked: int, *parts: int) -> Verdict:
    counted = tuple((part, 1) for part in sorted(parts or (1,)))
    return Verdict(VerdictKind.COMMIT, TransactionID(txid), GLSN(after), counted, checked=GLSN(checked))


def abort(txid: int, after: int, kind: VerdictKind = VerdictKind.ABORT) -> Verdict:
    return Verdict(kind, TransactionID(txid), GLSN(after), reason="given up")


def visible(log: Iterable[Batch]) -> list[int]:
    """Where what is visible begins: the rule, word by word."""
    log = list(log)
    found = []
    for each in log:
        if each.verdict is not None or each.flags:
            continue
        if each.mark is not None:
            name = each.mark.txid, each.mark.after
            verdicts = [(v.glsn, v.verdict) for v in log if v.verdict is not None and v.verdict[1:3] == name]
            glsn, fate = next(((glsn, v) for glsn, v in verdicts if glsn > each.mark.after), (0, None))
            if (
                fate is None
                or fate.kind is not VerdictKind.COMMIT
                or not each.mark.after < each.glsn <= fate.checked
                or each.glsn > glsn
                or each.mark.part not in {part for part, _ in fate.parts}
            ):
                continue
        found.append(each.glsn)
    return found


class Reader:
    """Reads a log on paper from `begin` up to `end`, looking for verdicts where it is told to."""

    def __init__(self, log: Iterable[Batch], begin: int, end: int, *, most: int = 100, first: int = 1) -> None:
        self.log = list(log)
        self.first = first
        """What lies below is trimmed."""
        self.committed = Committed(begin, most)
        self.shown: list[int] = []
        self.passed: list[int] = []
        self.looks: list[tuple[int, int | None]] = []
        self.now = 0.0
        self._pending = [each for each in self.log if begin <= each.glsn < end]

    def read(self) -> bool:
        """Go on; False if it is held, and what there is of the log does not say more."""
        while self._pending:
            each = self._pending[0]
            judgement = Judgement.SHOW
            if each.line[6][14]:
                judgement = self.committed.judge(each.chunk, batch.decode(each.line[6]), self.now)
            if judgement is Judgement.HOLD:
                if not self._look():
                    return False
                continue
            (self.shown if judgement is Judgement.SHOW else self.passed).append(each.glsn)
            del self._pending[0]
        return True

    def _look(self) -> bool:
        """Whether that has decided something."""
        while (look := self.committed.look) is not None:
            self.looks.append((look.begin, look.end))
            if look.begin < self.first:
                self.committed.on_trimmed(self.first)
                continue
            end = look.end if look.end is not None else self.log[-1].end
            if look.begin >= end:
                return False
            stretch = [each.line for each in self.log if each.end > look.begin and each.glsn < end]
            for line in sifted(stretch):
                self.committed.on_chunk(Chunk(GLSN(line[0]), LSID, 0, line[2], line))
                if self.committed.is_decided:
                    return True
        return self.committed.is_decided
