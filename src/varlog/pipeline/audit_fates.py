"""What became of transactions, for an audit: which of a replica's entries readers see, and so the archive has.

A task asks for the fate of every transaction that it meets (`FatesOf`), by a feed of verdicts, which whoever answers
has to be believed for. Therefore it also notes what it has met itself: every verdict, and how many entries of which
part it took for visible, because of a verdict where. Spark brings together what is of the same transaction, whichever
copy and slice it was met in, and `judge_transactions` holds it against each other: the verdict that all went by is the
first one that was read, and a committed part has as many entries as its COMMIT says.

A transaction is judged by the verdicts below the end of the audit, so that every task sees the same. What is open there
is hidden, and no archive has it: those end before. What lies below the log's beginning is trimmed, and by the rules of
`varlog.core.fates` nothing of that matters for what is left.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, NamedTuple

from varlog import batch, errors, limits
from varlog.batch.transactions import Mark, VerdictKind, decode_verdict, encode_verdict, mark_of
from varlog.client.log import Log
from varlog.client.verdicts import VerdictFeed
from varlog.core.fates import Fate, Fates, Key, shows
from varlog.core.merging import Chunk
from varlog.pipeline.audit_findings import TOPIC, Fault
from varlog.pipeline.audit_rows import Kind, Notes

GROUPS: Final = 256
"""In so many groups transactions are judged."""
PASSED: Final = int(batch.BatchFlag.JUNK | batch.BatchFlag.CONTROL)
"""Batches that hold nothing for readers."""
SECONDS: Final = 60.0
"""For the verdicts between one transaction and the next."""

Row = dict[str, Any]
OpenLog = Callable[[], Awaitable[Log]]


def group_of(txid: int) -> int:
    """What stands for a slice where rows are of a transaction: no slice begins below 1."""
    return -1 - txid % GROUPS


class FatesOf:
    """The fates of transactions of a topic, as of the end of an audit. `open_log` is asked when one is first wanted.
    How much is remembered is bounded, by `most`."""

    def __init__(self, open_log: OpenLog, end: int, most: int = limits.REMEMBERED_FATES) -> None:
        self._open_log = open_log
        self._end = end
        self._most = most
        self._floor = 1
        """What lies below is trimmed."""
        self._known: OrderedDict[Key, Fate | None] = OrderedDict()
        self._fates: Fates | None = None
        """The stretch that was read last."""

    async def shows(self, mark: Mark, glsn: int) -> tuple[bool, Fate | None]:
        """Whether readers see a batch that has a position, and by which verdict."""
        fate = await self._fate(mark, glsn)
        return fate is not None and shows(mark, glsn, fate), fate

    async def shows_batch(self, opened: batch.RecordBatch, glsn: int) -> bool:
        """The same of any batch that is not plain."""
        if opened.flags & PASSED:
            return False
        try:
            return (
                not opened.flags & batch.BatchFlag.TRANSACTION
                or (await self.shows(mark_of(opened.extensions), glsn))[0]
            )
        except errors.MalformedBatch:
            return False

    async def _fate(self, mark: Mark, glsn: int) -> Fate | None:
        key = mark.txid, mark.after
        while key not in self._known:
            try:
                self._known[key] = await self._find(key)
            except errors.Trimmed as trimmed:
                if trimmed.first > glsn:
                    raise
                self._floor, self._fates = trimmed.first, None
        self._known.move_to_end(key)
        if len(self._known) > self._most:
            self._known.popitem(last=False)
        return self._known[key]

    async def _find(self, key: Key) -> Fate | None:
        """The first verdict from where the transaction begins, or from where the log does."""
        begin = max(key[1] + 1, self._floor)
        if self._fates is None or self._fates.position < begin:
            self._fates = Fates(begin, self._most)
        fates = self._fates
        if fates.begin > begin:
            earlier = Fates(begin, self._most)
            await self._read(earlier, fates.begin, key)
            found = earlier.fate(*key) or fates.fate(*key)
            if found is not None:
                return found
            fates.join(earlier)
        if (found := fates.fate(*key)) is None:
            await self._read(fates, self._end, key)
            found = fates.fate(*key)
        fates.forget(*key)
        return found

    async def _read(self, fates: Fates, end: int, key: Key) -> None:
        """Go on to a position, or to the verdict on a transaction, which is not forgotten."""
        fates.watch(*key)
        log = await self._open_log()
        while fates.position < end:
            done = asyncio.get_running_loop().create_future()

            def take(_: VerdictFeed, chunk: Chunk, done: asyncio.Future[errors.VarlogError | None] = done) -> None:
                if not done.done():
                    fates.on_chunk(chunk)
                    if fates.fate(*key) is not None:
                        done.set_result(None)

            def stopped(
                _: VerdictFeed, error: errors.VarlogError | None, done: asyncio.Future[errors.VarlogError | None] = done
            ) -> None:
                if not done.done():
                    done.set_result(error)

            feed = log._verdicts.feed(fates.position, end, take, stopped)
            try:
                async with asyncio.timeout(SECONDS):
                    error = await done
            except TimeoutError:
                said = f"verdicts on transactions were read up to {fates.position - 1}, not up to {end - 1}, in time"
                raise errors.DeadlineExceeded(said) from None
            finally:
                feed.close()
            if isinstance(error, errors.Lost):
                fates.pass_to(error.end)
            elif error is not None:
                raise error
            elif fates.fate(*key) is not None:
                return


class Met:
    """What one task has met of transactions, in one slice of one replica."""

    def __init__(self, log_stream: int) -> None:
        self._log_stream = log_stream
        self._shown: Counter[tuple[int, int, int, int]] = Counter()

    def verdict(self, notes: Notes, fate: Fate) -> None:
        """A verdict that the replica has."""
        verdict = fate.verdict
        notes.add(
            Kind.VERDICT,
            self._log_stream,
            verdict.after,
            fate.glsn,
            slice=group_of(verdict.txid),
            content=encode_verdict(verdict),
        )

    def batch(self, mark: Mark, entries: int, fate: Fate | None) -> None:
        """Entries of a part: how many of them are seen, and why."""
        self._shown[mark.txid, mark.after, mark.part, fate.glsn if fate is not None else 0] += entries

    def tell(self, notes: Notes) -> None:
        """At the end of the slice."""
        for (txid, after, part, fate), entries in self._shown.items():
            notes.add(
                Kind.MARKED,
                self._log_stream,
                after,
                fate,
                slice=group_of(txid),
                rows=entries,
                positions=notes.slice_begin,
                detail=f"{txid} {part}",
            )


# Judging


class Bounds(NamedTuple):
    """What has to be known of the whole."""

    begin: int
    lost: tuple[tuple[int, int, int], ...]


class _Transaction:
    """All that was met of one."""

    def __init__(self) -> None:
        self.verdicts: list[Fate] = []
        self.went_by: set[int] = set()
        self.entries: dict[int, dict[tuple[int, int], list[int]]] = {}
        """By part; of each log stream and slice, how many each copy has."""


def judge_transactions(bounds: Bounds, rows: Iterable[Row]) -> list[Row]:
    """What is wrong with the transactions of a group, as faults, and how many there are."""
    found: dict[tuple[int, int], _Transaction] = {}
    for row in rows:
        if row["kind"] == Kind.VERDICT:
            verdict = decode_verdict(row["content"])
            found.setdefault((verdict.txid, verdict.after), _Transaction()).verdicts.append(Fate(row["end"], verdict))
        elif row["kind"] == Kind.MARKED:
            txid, part = map(int, row["detail"].split())
            one = found.setdefault((txid, row["begin"]), _Transaction())
            one.went_by.add(row["end"])
            places = one.entries.setdefault(part, {})
            places.setdefault((row["log_stream"], row["positions"]), []).append(row["rows"])
    faults = [fault for (txid, after), one in sorted(found.items()) for fault in _judged(bounds, txid, after, one)]
    return [*faults, _row(Kind.TRANSACTIONS, 0, 0, rows=len(found))]


def _judged(bounds: Bounds, txid: int, after: int, one: _Transaction) -> Iterable[Row]:
    first = min((fate for fate in one.verdicts if fate.glsn > after), key=lambda fate: fate.glsn, default=None)
    at = first.glsn if first is not None else 0
    for other in sorted(one.went_by - {at}):
        has = f"the first verdict on it is at {at}" if at else "there is no verdict on it"
        was = f"the one at {other}" if other else "none"
        yield _fault(after + 1, max(at, other) + 1, f"transaction {txid}: {has}, and a reader went by {was}")
    if first is None or first.verdict.kind is not VerdictKind.COMMIT or one.went_by - {at}:
        return
    checked = first.verdict.checked
    if after + 1 < bounds.begin or any(begin <= checked and end > after + 1 for _, begin, end in bounds.lost):
        return  # some of it may be gone, as it should be
    for part, entries in first.verdict.parts:
        held = sum(Counter(counts).most_common(1)[0][0] for counts in one.entries.get(part, {}).values())
        if held != entries:
            said = f"transaction {txid}, committed at {at}: a part of {entries} entries has {held} in the log"
            yield _fault(after + 1, at + 1, said)


def _fault(begin: int, end: int, detail: str) -> Row:
    return _row(Kind.FAULT, begin, end, fault=Fault.TRANSACTION.value, detail=detail)


def _row(kind: Kind, begin: int, end: int, **more: object) -> Row:
    return {"kind": kind.value, "copy": TOPIC, "log_stream": 0, "slice": 0, "begin": begin, "end": end, **more}
