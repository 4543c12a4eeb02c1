"""A closer look at a cell in which copies differ: entry by entry, to say what is wrong and exactly where.

Most cells are never looked at this way. Of those that differ, neighbours in which the same copies differ are one run,
and the first and the last cell of a run are looked at: what happened shows at its ends. A look reads some thousand
positions from every copy concerned and compares each of the losers with one of the winners.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Final, NamedTuple

import pyarrow as pa

from varlog import batch, errors, limits
from varlog.client.replicas import scan_replica
from varlog.client.session import Session
from varlog.pipeline.audit_archive import open_file, rows_of
from varlog.pipeline.audit_fates import FatesOf
from varlog.pipeline.audit_findings import ARCHIVE, Fault, Finding, spans_of
from varlog.pipeline.audit_judging import Run
from varlog.pipeline.audit_plan import Manifest
from varlog.pipeline.audit_replica import SECONDS

LOOKS: Final = 64
"""So many cells are looked at; more faults than that are one fault."""
KEPT_BYTES: Final = 8 * limits.MIB
"""Of payloads of one copy, to be compared bit by bit; of others only their digests."""


class Look(NamedTuple):
    """What one task looks at."""

    log_stream: int
    begin: int
    end: int
    known: int
    """Beyond this the log stream has nothing, and no replica is asked."""
    winner: int
    losers: tuple[int, ...]
    undecided: bool
    uri: str
    files: tuple[str, ...]
    """Those of the archive that have to do with these positions."""
    audited: int
    """Where the audit ends, and verdicts on transactions count up to."""


class Row(NamedTuple):
    """One entry of one copy."""

    glsn: int
    llsn: int
    time: int
    size: int
    digest: bytes
    payload: bytes | None


class Rows(NamedTuple):
    """What a copy has in a cell, in its order."""

    rows: list[Row]
    batches: list[tuple[object, ...]]
    """Of a replica: everything else that is stored of a batch."""


def looks_at(runs: Sequence[Run], archive: Manifest | None, ends: Mapping[int, int], audited: int) -> list[Look]:
    """The cells to look at. `ends` says where log streams end, `audited` where the audit does."""
    uri, files = (archive.uri, archive.files) if archive is not None else ("", ())
    looks = []
    for run in runs:
        for begin, end in {(run.begin, run.first_end), (run.last_begin, run.end)}:
            of_cell = tuple(file.path for file in files if file.begin < end and file.end > begin)
            about = run.winners[0], run.losers, run.undecided, uri, of_cell, audited
            looks.append(Look(run.log_stream, begin, end, min(end, ends[run.log_stream]), *about))
    return sorted(looks, key=lambda look: (look.begin, look.log_stream))[:LOOKS]


async def look(session: Session, at: Look, fates: FatesOf) -> list[Finding]:
    """What is wrong there."""
    found: list[Finding] = []
    copies: dict[int, Rows] = {}
    for copy in (at.winner, *at.losers):
        try:
            copies[copy] = _archived(at) if copy == ARCHIVE else await _stored(session, copy, at, fates)
        except (errors.VarlogError, OSError, pa.ArrowException) as error:
            said = f"{type(error).__name__}: {' '.join(str(error).split())}"
            found.append(Finding(at.begin, at.end, at.log_stream, copy, Fault.UNREAD, said))
    if at.winner in copies:
        for copy in at.losers:
            if copy in copies:
                found += _told(at, copy, compare(copies[at.winner], copies[copy], at.begin, at.end))
    return found


def _told(at: Look, copy: int, differences: Iterable[tuple[Fault, int, int, str]]) -> Iterator[Finding]:
    other = f"node {at.winner}"
    for fault, begin, end, said in differences:
        unsure = f"; whether it or {other} is right cannot be told from these copies" if at.undecided else ""
        yield Finding(begin, end, at.log_stream, copy, fault, f"{said}{unsure}")


# Reading


class _Gathering:
    """Rows, with the payloads of the first of them."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self._room = KEPT_BYTES

    def add(self, glsn: int, llsn: int, time: int, payload: bytes) -> None:
        self._room -= len(payload)
        kept = payload if self._room >= 0 else None
        self.rows.append(Row(glsn, llsn, time, len(payload), sha256(payload).digest(), kept))


async def _stored(session: Session, snid: int, at: Look, fates: FatesOf) -> Rows:
    """As a replica has it."""
    gathering = _Gathering()
    batches: list[tuple[object, ...]] = []
    async for lines in scan_replica(session, snid, at.log_stream, at.begin, at.known, timeout=SECONDS):
        for glsn, llsn, count, epoch, version, time, data in lines:
            written = epoch if version else 0  # what no commit has placed was repaired, or copied, in any epoch
            batches.append((glsn, llsn, count, written, version, time, sha256(data).digest()))
            try:
                opened = batch.decode(data)
            except errors.VarlogError:
                continue  # which was told when it was first read
            if opened.flags and not await fates.shows_batch(opened, max(glsn, at.begin)):
                continue
            for number, payload in enumerate(opened.to_list()):
                if at.begin <= glsn + number < at.end:
                    gathering.add(glsn + number, llsn + number, time, payload)
    return Rows(gathering.rows, batches)


def _archived(at: Look) -> Rows:
    """As the archive has it."""
    gathering = _Gathering()
    for path in at.files:
        with open_file(at.uri, path) as file:
            for rows in rows_of(file, path):
                glsns, lsids = rows.column("glsn").to_pylist(), rows.column("log_stream").to_pylist()
                wanted = [
                    number
                    for number, (glsn, lsid) in enumerate(zip(glsns, lsids, strict=True))
                    if lsid == at.log_stream and glsn is not None and at.begin <= glsn < at.end
                ]
                chosen = rows.take(pa.array(wanted, pa.int64()))
                times = chosen.column("timestamp").cast(pa.int64()).to_pylist()
                llsns, payloads = chosen.column("llsn").to_pylist(), chosen.column("payload").to_pylist()
                for glsn, *row in zip(chosen.column("glsn").to_pylist(), llsns, times, payloads, strict=True):
                    gathering.add(glsn, *row)
    return Rows(gathering.rows, [])


# Comparing


def compare(reference: Rows, copy: Rows, begin: int, end: int) -> list[tuple[Fault, int, int, str]]:
    """How a copy differs from another one that is taken for right, as (fault, begin, end, what)."""
    right = {row.glsn: row for row in reference.rows}
    found = list(_presence(right, copy.rows))
    held = {row.glsn: row for row in copy.rows}
    both = sorted(right.keys() & held.keys())
    found += _contents(right, held, [glsn for glsn in both if right[glsn].digest != held[glsn].digest])
    for shift, spans in _shifts({glsn: held[glsn].llsn - right[glsn].llsn for glsn in both}).items():
        what = f"LLSNs are {'higher' if shift > 0 else 'lower'} by {abs(shift)} than elsewhere"
        found += [(Fault.LLSN, *span, what) for span in spans]
    other_times = [glsn for glsn in both if right[glsn].time != held[glsn].time]
    found += [(Fault.DIFFERS, *span, "the time of the commit is another one") for span in spans_of(other_times)]
    if not found:
        others = sorted({int(str(line[0])) for line in {*reference.batches} ^ {*copy.batches}})
        first, last = (others[0], others[-1] + 1) if others else (begin, end)
        what = "a batch that begins here is not as elsewhere: its bounds, epoch, commit or writer, or its later entries"
        found.append((Fault.DIFFERS, max(first, begin), min(last, end), what))
    return found


def _presence(right: dict[int, Row], rows: Sequence[Row]) -> Iterator[tuple[Fault, int, int, str]]:
    glsns = [row.glsn for row in rows]
    times = Counter(glsns)
    for span in spans_of(sorted(glsn for glsn, number in times.items() if number > 1)):
        yield Fault.DUPLICATED, *span, "it is there more than once"
    for span in spans_of(sorted(right.keys() - times.keys())):
        yield Fault.MISSING, *span, "it is not there"
    for span in spans_of(sorted(times.keys() - right.keys())):
        yield Fault.EXTRA, *span, "nobody else has it"
    ordered = sorted(glsns)
    misplaced = [glsn for glsn, other in zip(glsns, ordered, strict=True) if glsn != other]
    if misplaced and len(times) == len(glsns):
        first, last = min(misplaced), max(misplaced)
        yield Fault.SWAPPED, first, last + 1, f"{len(misplaced)} rows between them stand in another order"


def _contents(
    right: dict[int, Row], held: dict[int, Row], changed: Sequence[int]
) -> Iterator[tuple[Fault, int, int, str]]:
    """What became of entries that are not what they should be: another one's, or nobody's."""
    known = Counter(row.digest for row in right.values())
    home = {row.digest: row.glsn for row in right.values() if known[row.digest] == 1}
    from_where = {glsn: home[held[glsn].digest] for glsn in changed if held[glsn].digest in home}
    swapped = {glsn: other for glsn, other in from_where.items() if from_where.get(other) == glsn}
    for shift, spans in _moved({glsn: other - glsn for glsn, other in swapped.items() if glsn < other}).items():
        for begin, end in spans:
            what = f"{_named(begin, end)} and {_named(begin + shift, end + shift)} stand in each other's places"
            yield Fault.SWAPPED, begin, end + shift, what
    again = {glsn: other - glsn for glsn, other in from_where.items() if glsn not in swapped}
    for shift, spans in _moved(again).items():
        for begin, end in spans:
            yield Fault.DUPLICATED, begin, end, f"it holds what belongs to {_named(begin + shift, end + shift)}"
    for begin, end in spans_of(glsn for glsn in changed if glsn not in from_where):
        yield Fault.CHANGED, begin, end, _difference(right[begin], held[begin])


def _difference(right: Row, held: Row) -> str:
    if right.size != held.size:
        return f"an entry of {held.size} bytes, elsewhere it has {right.size}"
    if right.payload is None or held.payload is None:
        return "its bytes are others than elsewhere"
    bits = [(a ^ b).bit_count() for a, b in zip(right.payload, held.payload, strict=True)]
    first = next(number for number, differ in enumerate(bits) if differ)
    total = sum(bits)
    return f"{total} {'bit differs' if total == 1 else 'bits differ'}, the first in byte {first}"


def _shifts(shifts: dict[int, int]) -> dict[int, list[tuple[int, int]]]:
    """Spans of entries that follow each other, by how far something is shifted there, without those where it is not."""
    ordered = sorted(shifts)
    by_shift: dict[int, list[int]] = {}
    for place, glsn in enumerate(ordered):
        if shifts[glsn]:
            by_shift.setdefault(shifts[glsn], []).append(place)
    return {
        shift: [(ordered[first], ordered[last - 1] + 1) for first, last in spans_of(places)]
        for shift, places in by_shift.items()
    }


def _moved(shifts: dict[int, int]) -> dict[int, list[tuple[int, int]]]:
    """Spans of positions that follow each other, by how far away what they hold belongs."""
    by_shift: dict[int, list[int]] = {}
    for glsn, shift in sorted(shifts.items()):
        by_shift.setdefault(shift, []).append(glsn)
    return {shift: spans_of(glsns) for shift, glsns in by_shift.items()}


def _named(begin: int, end: int) -> str:
    return f"GLSN {begin}" if end == begin + 1 else f"GLSN {begin} to {end - 1}"
