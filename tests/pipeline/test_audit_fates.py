"""What an audit makes of transactions: fates found whatever is asked for first, and faults of what tasks have met."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import varlog
from varlog import errors
from varlog.batch.transactions import Mark, Verdict, VerdictKind
from varlog.core.fates import Fate
from varlog.pipeline.audit_fates import Bounds, FatesOf, Met, group_of, judge_transactions
from varlog.pipeline.audit_findings import TOPIC, Fault
from varlog.pipeline.audit_rows import FOUND, Kind, Notes
from varlog.types import GLSN, TransactionID


class Begun(list[tuple[Mark, int, bool]]):
    """Marks with a position that they are at, and whether readers see what is there."""


async def write(log: varlog.Log, count: int) -> Begun:
    """Transactions that overlap, every third of which is aborted."""
    found = Begun()
    for number in range(0, count, 2):
        several = [await log.begin(f"t{number + at}") for at in range(2)]
        for at, one in enumerate(several):
            written = await one.append_batch([b"a", b"b"])
            mark = Mark(TransactionID(one.id), GLSN(_after(one)), _part(one), 60_000)
            found.append((mark, written.glsn, (number + at) % 3 != 0))
        for at, one in enumerate(several):
            await (one.commit() if (number + at) % 3 else one.abort())
    return found


def _after(transaction: Any) -> int:
    after: int = transaction._one.after
    return after


def _part(transaction: Any) -> int:
    part: int = transaction._part
    return part


@pytest.mark.parametrize("most", [1, 1000])
@pytest.mark.parametrize("order", [1, -1])
def test_fates_are_found_whatever_is_asked_for_first(tmp_path: Path, most: int, order: int) -> None:
    """Also if next to nothing may be remembered."""

    async def main() -> None:
        async with varlog.embedded(tmp_path) as log:

            async def same() -> varlog.Log:
                return log

            begun = await write(log, 12)
            fates = FatesOf(same, await log.tail() + 1, most)
            for mark, glsn, is_seen in begun[::order] * 2:
                shown, fate = await fates.shows(mark, glsn)
                assert fate is not None
                assert shown == is_seen == (fate.verdict.kind is VerdictKind.COMMIT)

    asyncio.run(main())


def test_what_is_open_at_the_end_is_hidden_and_what_is_trimmed_does_not_matter(tmp_path: Path) -> None:
    async def main() -> None:
        async with varlog.embedded(tmp_path) as log:

            async def same() -> varlog.Log:
                return log

            begun = await write(log, 4)
            end = await log.tail() + 1
            late = await log.begin("late")
            glsn = (await late.append_batch([b"c", b"d"])).glsn
            mark = Mark(TransactionID(late.id), GLSN(_after(late)), _part(late), 60_000)
            await late.commit()
            assert await FatesOf(same, glsn + 2).shows(mark, glsn) == (False, None)
            trim = begun[-1][1]
            await log.trim(trim)
            fates = FatesOf(same, await log.tail() + 1)
            shown, _ = await fates.shows(begun[-1][0], trim + 1)
            assert shown == begun[-1][2], "what is left of it"
            assert (await fates.shows(mark, glsn))[0]
            with pytest.raises(errors.Trimmed):
                await FatesOf(same, end).shows(begun[0][0], begun[0][1])

    asyncio.run(main())


# Judging


MARK = Mark(TransactionID(7), GLSN(10), 5, 60_000)
COMMIT = Fate(GLSN(20), Verdict(VerdictKind.COMMIT, MARK.txid, MARK.after, ((5, 4),), checked=GLSN(18)))
ABORT = Fate(GLSN(19), Verdict(VerdictKind.ABORT, MARK.txid, MARK.after))
BOUNDS = Bounds(1, ())


def rows_of(*copies: Notes) -> list[dict[str, Any]]:
    rows = [row for notes in copies for batch in notes.batches() for row in batch.to_pylist()]
    assert {row["slice"] for row in rows} == {group_of(MARK.txid)}
    assert all(set(row) == set(FOUND.names) for row in rows)
    return rows


def noted(copy: int, entries: int, went_by: Fate | None, *verdicts: Fate) -> Notes:
    notes, met = Notes(copy, 1), Met(1)
    for verdict in verdicts:
        met.verdict(notes, verdict)
    met.batch(MARK, entries, went_by)
    met.tell(notes)
    return notes


def judged(bounds: Bounds, *copies: Notes) -> list[str]:
    *faults, count = judge_transactions(bounds, rows_of(*copies))
    assert (count["kind"], count["rows"]) == (Kind.TRANSACTIONS, 1)
    assert all((row["fault"], row["copy"], row["begin"]) == (Fault.TRANSACTION, TOPIC, 11) for row in faults)
    return [row["detail"] for row in faults]


def test_a_transaction_that_is_whole_on_all_copies() -> None:
    assert judged(BOUNDS, *(noted(copy, 4, COMMIT, COMMIT) for copy in (1, 2, 3))) == []
    assert judged(BOUNDS, noted(1, 0, ABORT, ABORT, COMMIT)) == [], "the first verdict counts"
    assert judged(BOUNDS, noted(1, 0, None)) == [], "it is open"


def test_a_part_that_is_not_whole() -> None:
    copies = [noted(copy, 3, COMMIT, COMMIT) for copy in (1, 2, 3)]
    assert judged(BOUNDS, *copies) == ["transaction 7, committed at 20: a part of 4 entries has 3 in the log"]
    assert judged(Bounds(12, ()), *copies) == [], "one may be trimmed"
    assert judged(Bounds(1, ((1, 15, 17),)), *copies) == [], "or lost"
    assert judged(BOUNDS, noted(1, 3, COMMIT, COMMIT), noted(2, 4, COMMIT), noted(3, 4, COMMIT)) == [], (
        "that a replica lacks one is found by comparing replicas"
    )


def test_a_reader_that_was_told_of_another_verdict() -> None:
    assert judged(BOUNDS, noted(1, 4, COMMIT, ABORT, COMMIT)) == [
        "transaction 7: the first verdict on it is at 19, and a reader went by the one at 20"
    ]
    assert judged(BOUNDS, noted(1, 0, None, COMMIT)) == [
        "transaction 7: the first verdict on it is at 20, and a reader went by none"
    ]
    assert judged(BOUNDS, noted(1, 4, COMMIT)) == [
        "transaction 7: there is no verdict on it, and a reader went by the one at 20"
    ]
