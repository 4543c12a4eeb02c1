"""What one replica holds of a slice: its batches are read and hashed here, byte by byte, by the auditor itself.

A node that is wrong about its data would be wrong about a digest of it too, so it is asked for the data. What has to
hold of any replica by itself is checked on the way: every batch is whole and has as many entries as its log stream
says, LLSNs go on without a hole, positions, versions and times never go back, and one commit's positions are
consecutive.

Of a replica of a chain LLSNs are GLSNs, positions have holes where other log streams have theirs, there are no commits,
and only junk may have no time. In which epoch a replica was written differs from one to the next, and is left out.

Which entries of transactions readers see is asked for and noted (`audit_fates`); the others have no row, like fill, and
count as they are stored.

The commit contexts are not part of what a reader is given. They are asked for as the node's fingerprint of the same
range, which walks the chain (`varlog.core.fingerprints`), and whose positions must be those of the entries that were
read.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from itertools import pairwise
from struct import Struct
from typing import Final, NamedTuple

import numpy as np

from varlog import batch, errors
from varlog.batch.transactions import mark_of
from varlog.client.administering import Admin
from varlog.client.replicas import scan_replica
from varlog.client.session import Session
from varlog.core.fates import Fate, verdict_of
from varlog.core.messages import StoredLine
from varlog.pipeline.audit_fates import PASSED, FatesOf, Met
from varlog.pipeline.audit_findings import Fault
from varlog.pipeline.audit_rows import CELL, DIGEST_BYTES, Kind, Notes, RowDigest, Spans, cell_of, cells_of
from varlog.types import GLSN

SECONDS: Final = 60.0
"""For one answer: a megabyte from a disk that may be busy, behind others that wait."""

_LINE: Final = Struct("<QQQQQQ")
_BROKEN: Final = frozenset({errors.Corrupt.code, errors.ConsistencyViolation.code, errors.Poisoned.code})


class ReplicaSlice(NamedTuple):
    """What one task reads: [begin, end) of a log stream from one node."""

    snid: int
    lsid: int
    begin: int
    end: int
    known: int
    """Beyond this the log stream has nothing, as the metadata repository says, and nobody is asked."""
    audited: int
    """Where the audit ends, and verdicts on transactions count up to."""
    is_chained: bool = False
    """A sequencer orders the topic."""


async def read(session: Session, part: ReplicaSlice, fates: FatesOf) -> Notes:
    """Everything there is to say of a slice of a replica. What goes wrong is part of it."""
    begin = part.begin
    while True:
        reading = _Reading(part, begin, fates)
        try:
            await reading.run(session)
        except errors.Trimmed as trimmed:
            begin = min(trimmed.first, part.known)
            continue
        except errors.VarlogError as error:
            fault = Fault.DAMAGED if error.code in _BROKEN else Fault.UNREAD
            reading.notes.fault(fault, part.lsid, reading.covered, part.end, f"{type(error).__name__}: {error}")
        if begin > part.begin:
            reading.notes.fault(Fault.TRIMMED, part.lsid, part.begin, begin, "")
        return reading.notes


class _Cell:
    __slots__ = ("raw", "rows")

    def __init__(self) -> None:
        self.rows = RowDigest()
        self.raw = sha256()


class _Reading:
    def __init__(self, part: ReplicaSlice, begin: int, fates: FatesOf) -> None:
        self._part = part
        self._fates = fates
        self._met = Met(part.lsid)
        self._lsid = part.lsid
        self._begin = begin
        self._end = part.known
        self.notes = Notes(part.snid, part.begin)
        self.covered = begin
        """Everything below was read."""
        self._spans = Spans()
        self._cells: dict[int, _Cell] = {}
        self._llsn_begin = self._llsn_end = self._glsn_end = 0
        self._version = self._time = self._first_time = 0

    async def run(self, session: Session) -> None:
        part = self._part
        if self._begin < self._end:
            async for lines in scan_replica(session, part.snid, part.lsid, self._begin, self._end, timeout=SECONDS):
                for line in lines:
                    opened = self._opened(line)
                    if opened is not None and opened.flags:
                        opened = await self._visible(line, opened)
                    self._add(line, opened)
            self.covered = self._end
            self._tell_slice(None if part.is_chained else await self._judge_chain(Admin(session, SECONDS)))
        self.notes.spans(part.lsid, self._spans)
        self._met.tell(self.notes)
        for begin, end in pairwise([*cells_of(part.begin, part.end), part.end]):
            self._tell_cell(begin, end)

    def _tell_cell(self, begin: int, end: int) -> None:
        cell = self._cells.get(begin) or _Cell()
        self.notes.add(
            Kind.CELL,
            self._lsid,
            begin,
            end,
            rows=cell.rows.rows,
            bytes=cell.rows.bytes,
            content=cell.rows.digest(),
            raw=cell.raw.digest()[:DIGEST_BYTES],
        )

    # Batches

    def _add(self, line: StoredLine, opened: batch.RecordBatch | None) -> None:
        """A batch, and the same if it has anything for readers."""
        glsn, llsn, count, epoch, version, time, data = line
        if self._part.is_chained:
            self._check_chained(line)
            epoch = 0
        else:
            self._check(line)
        begin, end = max(glsn, self._begin), min(glsn + count, self._end)
        if begin >= end:
            return
        self._spans.add(begin, end)
        self.covered = max(self.covered, end)
        if glsn >= self._begin:
            # A batch belongs to the cell it begins in, whole, as every replica has it.
            raw = self._cell(glsn).raw
            raw.update(_LINE.pack(glsn, llsn, count, epoch, version, time))
            raw.update(data)
        if opened is None:
            return
        if count == 1:
            self._cell(glsn).rows.add_one(glsn, llsn, time, opened[0])
            return
        payloads = opened.to_arrow()
        for first, last in _by_cell(begin, end):
            taken = payloads.slice(first - glsn, last - first)
            glsns, llsns = np.arange(first, last), np.arange(llsn + first - glsn, llsn + last - glsn)
            self._cell(first).rows.add(glsns, llsns, np.full(last - first, time), taken)

    def _cell(self, glsn: int) -> _Cell:
        begin = cell_of(glsn, self._part.begin)
        cell = self._cells.get(begin)
        if cell is None:
            cell = self._cells[begin] = _Cell()
        return cell

    def _opened(self, line: StoredLine) -> batch.RecordBatch | None:
        """The batch, verified; None if it is none."""
        glsn, _, count, *_, data = line
        try:
            opened = batch.decode(data)
        except errors.VarlogError as error:
            self._fault(Fault.DAMAGED, glsn, glsn + count, f"{type(error).__name__}: {error}")
            return None
        if opened.count != count:
            said = f"a batch of {opened.count} entries where the log stream says {count}"
            fault = Fault.MISSING if opened.count < count else Fault.EXTRA
            self._fault(fault, glsn + min(opened.count, count), glsn + max(opened.count, count), said)
            return None
        return opened

    async def _visible(self, line: StoredLine, opened: batch.RecordBatch) -> batch.RecordBatch | None:
        """The batch, if readers see it."""
        glsn, _, count, *_, data = line
        if opened.flags & PASSED:
            verdict = verdict_of(data)
            if verdict is not None and glsn >= self._begin:
                self._met.verdict(self.notes, Fate(GLSN(glsn), verdict))
            return None
        if not opened.flags & batch.BatchFlag.TRANSACTION:
            return opened
        try:
            mark = mark_of(opened.extensions)
        except errors.MalformedBatch:
            return None  # of no transaction: nobody ever shows it
        begin, end = max(glsn, self._begin), min(glsn + count, self._end)  # it may be trimmed up to its middle
        is_shown, fate = await self._fates.shows(mark, begin)
        self._met.batch(mark, max(0, end - begin) if is_shown else 0, fate)
        return opened if is_shown else None

    def _check(self, line: StoredLine) -> None:
        """Against the batch before it."""
        glsn, llsn, count, _, version, time, _ = line
        if self._llsn_end:
            if llsn != self._llsn_end:
                self._fault(Fault.LLSN, glsn, glsn + count, f"LLSN {llsn} follows on {self._llsn_end - 1}")
            if glsn < self._glsn_end:
                self._fault(Fault.DISORDER, glsn, glsn + count, f"GLSN {glsn} comes after {self._glsn_end - 1}")
            if version < self._version or time < self._time:
                said = f"version {version} of {time} us comes after version {self._version} of {self._time} us"
                self._fault(Fault.CHAIN, glsn, glsn + count, said)
            if version == self._version and (glsn != self._glsn_end or time != self._time):
                self._fault(Fault.CHAIN, glsn, glsn + count, f"commit {version} gives positions or times of its own")
        else:
            self._llsn_begin = llsn + max(0, self._begin - glsn)
            self._first_time = time
        self._llsn_end, self._glsn_end, self._version, self._time = llsn + count, glsn + count, version, time

    def _check_chained(self, line: StoredLine) -> None:
        """The same of a chain."""
        glsn, llsn, count, _, _, time, _ = line
        if llsn != glsn:
            self._fault(Fault.LLSN, glsn, glsn + count, f"LLSN {llsn} at GLSN {glsn}")
        if glsn < self._glsn_end:
            self._fault(Fault.DISORDER, glsn, glsn + count, f"GLSN {glsn} comes after {self._glsn_end - 1}")
        if time and time < self._time:
            self._fault(Fault.DISORDER, glsn, glsn + count, f"its time {time} us comes after {self._time} us")
        self._llsn_begin = self._llsn_begin or max(glsn, self._begin)
        self._first_time, self._time = self._first_time or time, time or self._time
        self._llsn_end = self._glsn_end = glsn + count

    def _fault(self, fault: Fault, begin: int, end: int, detail: str) -> None:
        self.notes.fault(fault, self._lsid, begin, end, detail)

    # Commits

    async def _judge_chain(self, admin: Admin) -> _Chain | None:
        """The commits of the slice; None if they could not be followed, which is a finding."""
        chain = _Chain()
        try:
            await self._walk(admin, chain)
        except errors.Trimmed:
            raise
        except errors.VarlogError as error:
            broken = error.code == errors.ConsistencyViolation.code
            fault = Fault.CHAIN if broken else Fault.DAMAGED if error.code in _BROKEN else Fault.UNREAD
            self._fault(fault, chain.at or self._begin, self._end, f"its commits: {type(error).__name__}: {error}")
            return None
        if chain.spans != self._spans:
            said = f"its commits give {chain.spans.positions} positions, its entries have {self._spans.positions}"
            self._fault(Fault.CHAIN, self._begin, self._end, f"{said}, or others")
        return chain

    async def _walk(self, admin: Admin, chain: _Chain) -> None:
        """Follow the commits, as the node tells of them."""
        part, chain.at = self._part, self._begin
        while chain.at < self._end:
            told = await admin.fingerprint(part.snid, part.lsid, chain.at, self._end)
            if told.trim >= chain.at:
                raise errors.Trimmed(told.trim + 1)
            if told.batches:
                if chain.last_version and told.first_version != chain.last_version and told.prev_hwm < chain.hwm:
                    self._fault(Fault.CHAIN, chain.at, told.next_glsn or self._end, "its commits go back")
                if not chain.last_version:
                    chain.first_version, chain.prev_hwm = told.first_version, told.prev_hwm
                chain.last_version, chain.hwm = told.last_version, told.hwm
            chain.digest.update(told.chain)
            chain.commits += told.commits
            for begin, end in told.spans:
                chain.spans.add(begin, end)
            chain.at = told.next_glsn or self._end

    def _tell_slice(self, chain: _Chain | None) -> None:
        commits = {}
        if chain is not None:
            commits = {
                "raw": chain.digest.digest()[:DIGEST_BYTES],
                "first_version": chain.first_version,
                "prev_hwm": chain.prev_hwm,
                "last_version": chain.last_version,
                "hwm": chain.hwm,
                "commits": chain.commits,
            }
        self.notes.add(
            Kind.SLICE,
            self._lsid,
            self._begin,
            self._end,
            rows=sum(cell.rows.rows for cell in self._cells.values()),
            positions=self._spans.positions,
            bytes=sum(cell.rows.bytes for cell in self._cells.values()),
            llsn_begin=self._llsn_begin,
            llsn_end=self._llsn_end - max(0, self._glsn_end - self._end),
            first_time=self._first_time,
            last_time=self._time,
            **commits,
        )


class _Chain:
    """Commits that follow each other."""

    def __init__(self) -> None:
        self.at = 0
        """As far as they were followed."""
        self.digest = sha256()
        self.spans = Spans()
        self.first_version = self.prev_hwm = self.last_version = self.hwm = self.commits = 0


def _by_cell(begin: int, end: int) -> Iterator[tuple[int, int]]:
    while begin < end:
        stop = min(end, begin - begin % CELL + CELL)
        yield begin, stop
        begin = stop
