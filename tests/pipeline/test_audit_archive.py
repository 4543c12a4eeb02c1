"""`audit` finds what was planted in the files of an archive, and tells it from what was planted in the log.

The archive of one topic is copied for each fault, and the copy forged: data files with correct checksums, and a
manifest that agrees with them where that is said.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

import varlog
from tests.pipeline.forging import edit_manifest, forget, rewrite, set_payload, set_rows
from tests.pipeline.written import Written, archived, write_topic
from varlog.archive import Archive, Range
from varlog.cli.failures import Exit
from varlog.cli.output import Output
from varlog.core.verifying import Verdict
from varlog.errors import NoArchive, WrongIdentity
from varlog.pipeline.audit import audit, run
from varlog.pipeline.audit_findings import ARCHIVE, Fault
from varlog.pipeline.audit_result import AuditResult
from varlog.pipeline.audit_rows import CELL
from varlog.processes import LocalCluster
from varlog.spark.connections import connections

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

TRIMMED = 3000
"""The log begins behind this position; the archive has everything."""


class Archived(NamedTuple):
    topic: Written
    archive: Path
    ranges: tuple[Range, ...]
    cluster: LocalCluster


async def _made(path: Path) -> tuple[LocalCluster, Written, int]:
    cluster = LocalCluster(path)
    await cluster.__aenter__()
    written = await write_topic(cluster.path, "orders")
    async with varlog.connect(cluster.path, topic="orders") as log:
        await log.append_fill(5)
        await log.append_batch([b"behind/%d" % number for number in range(10)])
        return cluster, written, log.topic.tpid


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Archived]:
    directory = tmp_path_factory.mktemp("archived")
    cluster, written, tpid = asyncio.run(_made(directory / "varlog-data"))
    last = max(place.glsn for place in written.places.values())
    uri = directory / "archive"
    archive = archived(written, uri, tpid, [1, 2500, 9000, 10_010, last + 10])
    with varlog.sync.connect(cluster.path, topic="orders") as log:
        log.trim(TRIMMED)
    yield Archived(written, uri, archive.ranges, cluster)
    connections.close()
    asyncio.run(cluster.stop())


def audited(made: Archived, archive: Path, spark: SparkSession) -> AuditResult:
    result, _ = audit(lambda: spark, made.topic.connection, str(archive), slice_positions=CELL)
    return result


def rows_of(result: AuditResult) -> int:
    return sum(copy.rows for copy in result.copies if copy.copy == ARCHIVE)


Plant = Callable[[Path, Archived], tuple[Fault, int, int]]
"""Forges a copy of the archive; what is wrong then, and where."""


def _change(archive: Path, held: Range, change: Callable[[pa.Table], pa.Table]) -> None:
    rewrite(archive, held.path, change)


def _missing(archive: Path, made: Archived) -> tuple[Fault, int, int]:
    held = made.ranges[1]
    at = 5000 - held.begin
    _change(archive, held, lambda rows: set_rows(rows, [n for n in range(len(rows)) if n not in {at, at + 1}]))
    return Fault.MISSING, 5000, 5002


def _swapped(archive: Path, made: Archived) -> tuple[Fault, int, int]:
    """The payloads of two entries of one log stream."""
    held = made.ranges[1]

    def change(rows: pa.Table) -> pa.Table:
        one, other = rows["payload"][100].as_py(), rows["payload"][200].as_py()
        return set_payload(set_payload(rows, 100, other), 200, one)

    _change(archive, held, lambda rows: _in_live_cell(rows, held, change))
    return Fault.SWAPPED, held.begin + 2100, held.begin + 2201


def _in_live_cell(rows: pa.Table, held: Range, change: Callable[[pa.Table], pa.Table]) -> pa.Table:
    """Rows from 2000 on are of positions that the log still has."""
    import pyarrow as pa  # noqa: PLC0415

    assert held.begin + 2000 > TRIMMED
    return pa.concat_tables([rows.slice(0, 2000), change(rows.slice(2000)).combine_chunks()])


def _out_of_order(archive: Path, made: Archived) -> tuple[Fault, int, int]:
    """Two rows, as they stand in the file."""
    held = made.ranges[2]

    def change(rows: pa.Table) -> pa.Table:
        order = list(range(len(rows)))
        order[10], order[11] = 11, 10
        return set_rows(rows, order)

    _change(archive, held, change)
    return Fault.SWAPPED, held.begin + 10, held.begin + 12


def _flipped(archive: Path, made: Archived) -> tuple[Fault, int, int]:
    held = made.ranges[2]

    def change(rows: pa.Table) -> pa.Table:
        payload = rows["payload"][50].as_py()
        return set_payload(rows, 50, bytes([payload[0] ^ 4]) + payload[1:])

    _change(archive, held, change)
    return Fault.CHANGED, held.begin + 50, held.begin + 51


def _rotten(archive: Path, made: Archived) -> tuple[Fault, int, int]:
    """A bit of the file, which its own checksums tell."""
    held = made.ranges[1]
    path = archive / held.path
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    return Fault.DAMAGED, held.begin, held.end


def _duplicated(archive: Path, made: Archived) -> tuple[Fault, int, int]:
    held = made.ranges[2]
    order = [*range(60), *range(40, 60), *range(60, held.rows)]
    rewrite(archive, held.path, lambda rows: set_rows(rows, order), counted=False)
    return Fault.DUPLICATED, held.begin + 40, held.begin + 60


def _duplicated_below(archive: Path, made: Archived) -> tuple[Fault, int, int]:
    """Where the log is trimmed, and only the file itself can tell."""
    held = made.ranges[0]
    order = [*range(60), 59, *range(60, held.rows)]
    rewrite(archive, held.path, lambda rows: set_rows(rows, order), counted=False)
    return Fault.DUPLICATED, held.begin + 59, held.begin + 60


def _impossible(archive: Path, made: Archived) -> tuple[Fault, int, int]:
    """The manifest says of a file what cannot be."""
    held = made.ranges[2]
    _change(archive, held, lambda rows: set_rows(rows, [*range(len(rows)), 0]))
    return Fault.DAMAGED, 0, 0


def _gap_in_manifest(archive: Path, made: Archived) -> tuple[Fault, int, int]:
    held = made.ranges[1]
    forget(archive, held.path)
    return Fault.GAP, held.begin, held.end


def _gap_in_files(archive: Path, made: Archived) -> tuple[Fault, int, int]:
    held = made.ranges[2]
    (archive / held.path).unlink()
    return Fault.GAP, held.begin, held.end


def _gap_below_the_log(archive: Path, made: Archived) -> tuple[Fault, int, int]:
    """The archive ends before the log begins."""
    for held in made.ranges[1:]:
        forget(archive, held.path)
    return Fault.GAP, made.ranges[0].end, TRIMMED + 1


def _overlap(archive: Path, made: Archived) -> tuple[Fault, int, int]:
    """Two files of the manifest hold the same positions."""
    held = made.ranges[1]
    begin, end = f"{held.begin:020d}", f"{held.begin - 500:020d}"
    renamed = held.path.replace(begin, end, 1)
    (archive / held.path).rename(archive / renamed)

    def change(action: dict[str, dict[str, object]]) -> dict[str, dict[str, object]]:
        add = action.get("add")
        return {"add": add | {"path": renamed}} if add is not None and add["path"] == held.path else action

    edit_manifest(archive, change)
    return Fault.DUPLICATED, held.begin - 500, held.begin


def _foreign_rows(archive: Path, made: Archived) -> tuple[Fault, int, int]:
    """A file that has rows of other positions than its name says."""
    held = made.ranges[3]
    other = made.ranges[2]
    shutil.copy(archive / other.path, archive / held.path)
    rewrite(archive, held.path, lambda rows: rows, counted=False)
    return Fault.EXTRA, other.begin, other.end


PLANTS: dict[str, Plant] = {
    "missing-entry": _missing,
    "swapped-pair": _swapped,
    "rows-out-of-order": _out_of_order,
    "flipped-bit": _flipped,
    "rotten-file": _rotten,
    "duplicated-range": _duplicated,
    "duplicated-below-the-log": _duplicated_below,
    "impossible-manifest": _impossible,
    "gap-in-the-manifest": _gap_in_manifest,
    "gap-in-the-files": _gap_in_files,
    "gap-below-the-log": _gap_below_the_log,
    "overlapping-files": _overlap,
    "foreign-rows": _foreign_rows,
}


def test_P1_an_archive_that_equals_the_log_is_found_so(made: Archived, spark: SparkSession) -> None:
    result = audited(made, made.archive, spark)
    assert (result.verdict, result.findings) == (Verdict.CONSISTENT, [])
    entries = len(made.topic.places)
    assert (result.archive_first, result.archive_last) == (1, made.ranges[-1].end - 1)
    assert rows_of(result) == entries + 4, "all but what fills the log"
    assert (result.first, result.last) == (TRIMMED + 1, entries + 15)


@pytest.mark.parametrize("name", PLANTS)
def test_P1_a_fault_in_the_archive_is_found(name: str, made: Archived, spark: SparkSession, tmp_path: Path) -> None:
    copy = tmp_path / "archive"
    shutil.copytree(made.archive, copy)
    fault, begin, end = PLANTS[name](copy, made)
    result = audited(made, copy, spark)
    assert result.verdict is Verdict.INCONSISTENT
    found = [(finding.fault, finding.begin, finding.end) for finding in result.findings]
    assert any(f is fault and begin <= b and e <= end for f, b, e in found), result.findings
    assert {finding.copy for finding in result.findings} == {ARCHIVE}, "the log is blamed"


def test_an_archive_of_another_topic_is_refused(made: Archived, spark: SparkSession, tmp_path: Path) -> None:
    Archive.create(str(tmp_path / "other"), cid=77, topic="orders", tpid=1, first=1)
    with pytest.raises(WrongIdentity, match="cluster 77"):
        audited(made, tmp_path / "other", spark)
    with pytest.raises(NoArchive):
        audited(made, tmp_path / "nothing", spark)


def test_the_page_and_what_is_said_of_a_silent_node(
    made: Archived, spark: SparkSession, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """What cannot be read leaves the proofs open; the page needs nothing but itself. No manager takes the silent node
    out of the sets while the audit looks at them."""
    silent = (*made.cluster.managers, made.cluster.nodes[0])
    for daemon in silent:
        asyncio.run(daemon.kill())
    try:
        page = tmp_path / "audit.html"
        code = run(made.topic.connection, str(made.archive), page, lambda: spark, Output(json=False))
    finally:
        for daemon in reversed(silent):
            asyncio.run(daemon.start())
    assert code == Exit.INCOMPLETE
    told = capfd.readouterr().out
    assert "topic 'orders' is incomplete" in told
    assert "Replicas are equal: open, 2 parts could not be read" in told
    assert "The archive equals the log: proven" in told
    text = page.read_text()
    assert text.count("<svg") == 3
    assert "<script" not in text
    assert "src=" not in text
    assert "http" not in text.replace("http://www.w3.org/", "")
    assert ">incomplete</span>" in text
