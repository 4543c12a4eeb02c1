"""Fingerprints: what a replica holds of a range of its log, in a few bytes, to be compared with another replica's.

`fingerprint` reads committed batches from a position on and hashes each with its LLSN, GLSN and epoch, and the commit
contexts that gave them their positions. Replicas that hold the same give the same fingerprint, whatever their segments
look like: it covers whole batches, and where it stops depends on nothing but the batches and commits themselves. At the
edges of the range commits are counted as far as they lie inside, because a replica that began its copy behind a trim
point may hold only the rest of the first one.

What must hold of any replica by itself is checked on the way: LLSNs without holes, commits that follow each other
without a hole, each of them beyond the high watermark of the one before (B9). What does not hold is a
`ConsistencyViolation`; damaged bytes are the `Corrupt` of whoever reads them.

Of a log stream that a sequencer orders, `written_fingerprint` does the same: there are no commits and no LLSNs but
GLSNs, positions may be missing, and the epoch a batch was written in may differ from replica to replica, as one that
repairs a chain writes in the epoch it finds.

`Density` puts the positions of all log streams of a topic together: every one of them must be there exactly once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Seq
from hashlib import sha256
from heapq import heappop, heappush
from struct import Struct
from typing import Final, NamedTuple, Protocol

from varlog import errors, limits
from varlog.core.messages import Fingerprint, StoredLine
from varlog.types import GLSN, LLSN, CommitContext, LogStreamID, StorageNodeID, Version

Span = tuple[int, int]
"""Positions [begin, end)."""

_BATCH: Final = Struct("<QQQI")
_COMMIT: Final = Struct("<QQQQQQQQ")
_WRITTEN: Final = Struct("<QIQ")


class CommittedLog(Protocol):
    """What is asked of a replica's storage."""

    def read(self, glsn_begin: GLSN, glsn_end: GLSN, max_bytes: int) -> Seq[StoredLine]:
        """Committed batches that overlap the range, ascending; at least one if there is one."""

    def commit_contexts(self, after_version: Version) -> Iterator[CommitContext]:
        """Those with a greater version, ascending."""


class WrittenLog(Protocol):
    """What is asked of the storage of a chain's replica."""

    def read(self, glsn: GLSN, max_bytes: int) -> Seq[StoredLine]:
        """Batches that end beyond a position, ascending; at least one if there is one."""


class Held(NamedTuple):
    """What one fingerprint covers."""

    trim: GLSN
    next_glsn: GLSN
    llsn_begin: LLSN
    llsn_end: LLSN
    batches: int
    commits: int
    content: bytes
    chain: bytes
    first_version: Version
    prev_hwm: GLSN
    last_version: Version
    hwm: GLSN
    spans: tuple[Span, ...]

    def answer(self, request: int, lsid: LogStreamID, snid: StorageNodeID) -> Fingerprint:
        return Fingerprint(request, lsid, 0, snid, *self)


def fingerprint(log: CommittedLog, trim: GLSN, glsn_begin: GLSN, glsn_end: GLSN) -> Held:
    """Of [glsn_begin, glsn_end), as far as one fingerprint goes. `trim` is where the log is known to be trimmed to; it
    may be trimmed further meanwhile."""
    while True:
        begin = GLSN(max(glsn_begin, trim + 1))
        try:
            batches = _Batches(begin, glsn_end)
            batches.read(log)
            return _held(log, batches, trim)
        except errors.Trimmed as trimmed:
            trim = GLSN(trimmed.first - 1)


class _Batches:
    """The batches of a fingerprint."""

    def __init__(self, begin: GLSN, end: GLSN) -> None:
        self.begin = begin
        self.end = end
        self.covered = begin
        """Every batch that begins below this is in it."""
        self.hash = sha256()
        self.llsn_begin = self.llsn_end = LLSN(0)
        self.number = self.commits = self._bytes = 0
        self.first_version = Version(0)
        self._version = Version(0)

    def _is_full(self) -> bool:
        return self._bytes >= limits.FINGERPRINT_BYTES or self.commits >= limits.FINGERPRINT_COMMITS

    def read(self, log: CommittedLog) -> None:
        while self.covered < self.end and not self._is_full():
            found = log.read(self.covered, self.end, limits.READ_CHUNK_BYTES)
            if not found:
                self.covered = self.end
            for line in found:
                self._add(*line)
                if self._is_full():
                    break
        # A batch that the range cuts into is hashed as a whole, and counted as far as it lies inside.
        self.llsn_end = LLSN(self.llsn_end - max(0, self.covered - self.end))
        self.covered = min(self.covered, self.end)

    def _add(
        self, glsn: int, llsn: int, count: int, epoch: int, version: int, _time: int, batch: bytes | memoryview
    ) -> None:
        if self.number and llsn != self.llsn_end:
            raise errors.ConsistencyViolation(f"LLSN {llsn} follows on {self.llsn_end - 1}")
        if version != self._version:
            self._version = Version(version)
            self.first_version = self.first_version or self._version
            self.commits += 1
        if not self.number:
            self.llsn_begin = LLSN(llsn + max(0, self.begin - glsn))
        self.number += 1
        self._bytes += len(batch)
        self.llsn_end = LLSN(llsn + count)
        self.covered = GLSN(glsn + count)
        self.hash.update(_BATCH.pack(llsn, glsn, epoch, count))
        self.hash.update(batch)


def _held(log: CommittedLog, batches: _Batches, trim: GLSN) -> Held:
    """The commits of these batches, checked against each other and against them."""
    chain = sha256()
    first: CommitContext | None = None
    last: CommitContext | None = None
    spans: list[Span] = []
    llsn_end = batches.llsn_begin
    for cc in log.commit_contexts(Version(batches.first_version - 1)) if batches.number else ():
        if cc.glsn_begin >= batches.covered:
            break
        _check(last, cc)
        begin, end = max(cc.glsn_begin, batches.begin), min(cc.glsn_end, batches.covered)
        llsn = LLSN(cc.llsn_begin + begin - cc.glsn_begin)
        llsn_end = LLSN(llsn + end - begin)
        chain.update(_COMMIT.pack(cc.version, cc.epoch, cc.hwm, cc.prev_hwm, llsn, begin, end - begin, cc.time))
        if spans and spans[-1][1] == begin:
            spans[-1] = (spans[-1][0], end)
        else:
            spans.append((begin, end))
        first, last = first or cc, cc
    if llsn_end != batches.llsn_end:
        raise errors.ConsistencyViolation(f"entries up to LLSN {batches.llsn_end - 1}, commits up to {llsn_end - 1}")
    return Held(
        trim,
        GLSN(0) if batches.covered >= batches.end else batches.covered,
        batches.llsn_begin,
        llsn_end,
        batches.number,
        batches.commits,
        batches.hash.digest(),
        chain.digest(),
        *((first.version, first.prev_hwm) if first is not None else (Version(0), GLSN(0))),
        *((last.version, last.hwm) if last is not None else (Version(0), GLSN(0))),
        tuple(spans),
    )


def _check(before: CommitContext | None, cc: CommitContext) -> None:
    """B9: commits follow each other, and each gave positions of its own cut."""
    whole = cc.count > 0 and cc.prev_hwm < cc.glsn_begin and cc.glsn_end <= cc.hwm + 1
    follows = before is None or (
        cc.llsn_begin == before.llsn_end and cc.prev_hwm >= before.hwm and cc.version > before.version
    )
    if not (whole and follows):
        raise errors.ConsistencyViolation(f"the chain of commits is broken: {cc} after {before}")


def written_fingerprint(log: WrittenLog, trim: GLSN, glsn_begin: GLSN, glsn_end: GLSN) -> Held:
    """As `fingerprint`, of a replica of a chain."""
    while True:
        try:
            return _written(log, trim, GLSN(max(glsn_begin, trim + 1)), glsn_end)
        except errors.Trimmed as trimmed:
            trim = GLSN(trimmed.first - 1)


def _written(log: WrittenLog, trim: GLSN, begin: GLSN, end: GLSN) -> Held:
    content = sha256()
    spans: list[Span] = []
    covered, size, number = begin, 0, 0
    while covered < end and size < limits.FINGERPRINT_BYTES and len(spans) < limits.FINGERPRINT_COMMITS:
        found = [line for line in log.read(covered, limits.READ_CHUNK_BYTES) if line[0] < end]
        if not found:
            covered = end
        for glsn, _, count, _, _, time, batch in found:
            content.update(_WRITTEN.pack(glsn, count, time))
            content.update(batch)
            _join(spans, max(glsn, begin), min(glsn + count, end))
            covered = GLSN(glsn + count)
            size += len(batch)
            number += 1
            if size >= limits.FINGERPRINT_BYTES or len(spans) >= limits.FINGERPRINT_COMMITS:
                break
    next_glsn = GLSN(0) if covered >= end else covered
    none, nowhere = Version(0), GLSN(0)
    return Held(
        trim, next_glsn, LLSN(0), LLSN(0), number, 0, content.digest(), b"", none, nowhere, none, nowhere, tuple(spans)
    )


class Density:
    """Whether every position of a topic is there exactly once.

    Log streams are read side by side; what is not known of one of them yet leaves open what lies beyond, so `judged` is
    as far as the slowest of them. Only what lies beyond `judged` is kept in memory.
    """

    def __init__(self, begin: GLSN, lsids: Iterable[LogStreamID], lost: Iterable[Span] = ()) -> None:
        self.judged = int(begin)
        """Every position below has been judged."""
        self.missing: list[Span] = []
        self.twice: list[Span] = []
        self.lost = 0
        """Positions that are not there and were declared lost."""
        self._lost = sorted(lost)
        self._known = dict.fromkeys(lsids, int(begin))
        self._spans: list[Span] = []

    def add(self, lsid: LogStreamID, spans: Iterable[Span], known: int) -> None:
        """These are all positions that a log stream has from where it was known to `known`."""
        for span in spans:
            heappush(self._spans, span)
        self._known[lsid] = known
        self._settle(min(self._known.values()))

    def trim(self, begin: int) -> None:
        """The log begins here now: what lies below is no longer asked for."""
        self._spans = sorted((max(first, begin), end) for first, end in self._spans if end > begin)
        self.judged = max(self.judged, begin)

    def end(self, end: int) -> None:
        """Nothing more is to be added; a topic without log streams is known all the same."""
        self._settle(min(self._known.values(), default=end))

    def _settle(self, known: int) -> None:
        while self._spans and self._spans[0][0] < known:
            begin, end = heappop(self._spans)
            if begin > self.judged:
                self._miss(self.judged, begin)
            elif begin < self.judged:
                _join(self.twice, begin, min(end, self.judged))
            self.judged = max(self.judged, end)
        if self.judged < known:
            self._miss(self.judged, known)
            self.judged = known

    def _miss(self, begin: int, end: int) -> None:
        at = begin
        for lost_begin, lost_end in self._lost:
            first, last = max(at, lost_begin), min(end, lost_end)
            if first < last:
                if at < first:
                    _join(self.missing, at, first)
                self.lost += last - first
                at = last
        if at < end:
            _join(self.missing, at, end)


def _join(spans: list[Span], begin: int, end: int) -> None:
    """Add a span; of very many the first are enough to know."""
    if spans and spans[-1][1] == begin:
        spans[-1] = (spans[-1][0], end)
    elif len(spans) < limits.FINGERPRINT_COMMITS:
        spans.append((begin, end))
