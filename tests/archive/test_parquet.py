"""One data file: what is not as it should be is neither written nor handed out."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from tests.archive.made import PER_ROW, TIME, archive, create, file, glsns_of, rows
from varlog.archive import Archive, Place, Range, checked, write_range
from varlog.archive.parquet import BATCH_BYTES, ROW_GROUP_BYTES, range_of
from varlog.errors import BrokenArchive, InvalidArgument
from varlog.spark.columns import ARROW_SCHEMA


def test_what_a_file_holds(tmp_path: Path) -> None:
    made = archive(tmp_path / "it", 1, 1000)
    (held,) = made.ranges
    assert held.path.startswith(f"data/{1:020d}-{1000:020d}-")
    found = parquet.read_table(made.path(held))
    assert found.schema.remove_metadata() == ARROW_SCHEMA
    assert found.column("glsn").to_pylist() == list(range(1, 1000))
    assert held.bytes == Path(made.path(held)).stat().st_size
    column = parquet.ParquetFile(made.path(held)).metadata.row_group(0).column(4)
    assert column.compression == "ZSTD"


@pytest.mark.parametrize(
    ("batches", "what"),
    [
        ([rows([4])], "from 4 to 4 and should ascend within 5 to 9"),
        ([rows([10])], "from 10 to 10 and should ascend within 5 to 9"),
        ([rows([5, 7, 6])], "from 5 to 6 and should ascend"),
        ([rows([5, 5])], "from 5 to 5 and should ascend"),
        ([rows([5, 6]), rows([6, 7])], "from 6 to 7 and should ascend within 7 to 9"),
        ([rows([5]).set_column(4, "payload", pa.array([None], pa.binary()))], "a null"),
        ([rows([5]).select(["glsn", "payload"])], "has the columns"),
    ],
)
def test_rows_that_do_not_belong_there_are_not_written(
    batches: list[pa.RecordBatch], what: str, tmp_path: Path
) -> None:
    made = archive(tmp_path / "it", 5)
    with pytest.raises(InvalidArgument, match=what):
        write_range(made.uri, 5, 10, batches)
    assert list((tmp_path / "it" / "data").iterdir()) == []


@pytest.mark.parametrize(("begin", "end"), [(0, 5), (5, 5), (6, 5), (1, (1 << 63) + 1)])
def test_ranges_that_are_none(begin: int, end: int, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="some positions from 1 on"):
        write_range(str(tmp_path), begin, end, [])


def test_a_failure_on_the_way_leaves_nothing(tmp_path: Path) -> None:
    made = archive(tmp_path / "it", 1)

    def breaks() -> Iterator[pa.RecordBatch]:
        yield rows(range(1, 100))
        assert [path.name[0] for path in (tmp_path / "it" / "data").iterdir()] == ["."], "written under another name"
        raise ConnectionResetError("gone")

    with pytest.raises(ConnectionResetError):
        write_range(made.uri, 1, 1000, breaks())
    assert list((tmp_path / "it" / "data").iterdir()) == []


def planted(tmp_path: Path) -> tuple[Archive, Path]:
    made = archive(tmp_path / "it", 1, 1000)
    return made, Path(made.path(made.ranges[0]))


def check_refused(made: Archive, path: Path, what: str) -> None:
    with pytest.raises(BrokenArchive, match=what) as raised:
        list(made.scan(1, 1000))
    assert str(path) in str(raised.value), "the file is named"


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    made, path = planted(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    check_refused(made, path, "bytes instead of")
    with pytest.raises(BrokenArchive, match="bytes instead of"):
        made.find_time(TIME)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    made, path = planted(tmp_path)
    path.unlink()
    check_refused(made, path, "is not there")


def test_a_file_that_is_no_parquet_is_refused(tmp_path: Path) -> None:
    made, path = planted(tmp_path)
    path.write_bytes(bytes(path.stat().st_size))
    check_refused(made, path, "is damaged")


def test_a_flipped_bit_is_found_in_every_column(tmp_path: Path) -> None:
    made, path = planted(tmp_path)
    whole = path.read_bytes()
    group = parquet.ParquetFile(path).metadata.row_group(0)
    for column in map(group.column, range(5)):
        begin = column.dictionary_page_offset or column.data_page_offset
        offset = begin + column.total_compressed_size - 1
        path.write_bytes(whole[:offset] + bytes([whole[offset] ^ 4]) + whole[offset + 1 :])
        check_refused(made, path, "is damaged")


def test_a_flipped_bit_of_the_frame_is_found_by_whoever_opens_the_file(tmp_path: Path) -> None:
    made, path = planted(tmp_path)
    whole = path.read_bytes()
    footer = len(whole) - parquet.ParquetFile(path).metadata.serialized_size - 16
    for offset in [*range(footer, len(whole), 97), len(whole) - 1]:
        path.write_bytes(whole[:offset] + bytes([whole[offset] ^ 4]) + whole[offset + 1 :])
        check_refused(made, path, "is damaged: .*; restore it from a copy")
        for look in (made.last, lambda: made.find_time(TIME), lambda: list(made.scan(500, 501))):
            with pytest.raises(BrokenArchive, match="is damaged"):
                look()


def of_an_earlier_release(uri: str, begin: int, end: int, group: int) -> Range:
    """A file without checksums of its own, with the rows of [begin, end)."""
    path = f"data/{begin:020d}-{end:020d}-{0:032x}.parquet"
    where = Place.of(uri).path(path)
    parquet.write_table(
        pa.Table.from_batches([rows(range(begin, end))]), where, row_group_size=group, write_page_checksum=True
    )
    return range_of(path, end - begin, Path(where).stat().st_size)


def test_files_of_earlier_releases_are_read(tmp_path: Path) -> None:
    made = create(tmp_path / "it")
    made.commit([of_an_earlier_release(made.uri, 1, 301, 100)], 1)
    made.commit([file(made.uri, 301, 400)], 301)
    assert glsns_of(made.scan(1, 400)) == list(range(1, 400))
    for begin, end in ((1, 2), (100, 102), (150, 250), (300, 302)):
        assert glsns_of(made.scan(begin, end)) == list(range(begin, end))
    for glsn in (1, 100, 101, 250, 300, 301):
        assert made.find_time(TIME + glsn * PER_ROW) == glsn
    only = create(tmp_path / "only")
    only.commit([of_an_earlier_release(only.uri, 1, 301, 100)], 1)
    assert only.last() == rows([300])
    assert only.find_time(TIME + 301 * PER_ROW) == 301


def test_statistics_that_nothing_protects_are_not_believed(tmp_path: Path) -> None:
    """A flipped bit in the highest position, or the latest time, of a row group once took all of its rows away."""
    made = create(tmp_path / "it")
    held = of_an_earlier_release(made.uri, 1, 301, 100)
    made.commit([held], 1)
    path = Path(made.path(held))
    whole = path.read_bytes()
    footer = len(whole) - parquet.ParquetFile(path).metadata.serialized_size - 8
    for highest in (200, TIME + 200 * PER_ROW):
        number = highest.to_bytes(8, "little")
        changed = whole[footer:].replace(number, (highest ^ 0x80).to_bytes(8, "little"))
        assert changed != whole[footer:]
        path.write_bytes(whole[:footer] + changed)
        assert glsns_of(made.scan(195, 205)) == list(range(195, 205))
        assert glsns_of(made.scan(1, 301)) == list(range(1, 301))
        assert made.find_time(TIME + 200 * PER_ROW) == 200


@pytest.mark.parametrize(
    ("glsns", "what"),
    [
        ([*range(1, 500), 501, 500, *range(502, 1000)], "do not belong there"),
        ([*range(1, 999), 998], "do not belong there"),
        ([*range(2, 1000), 1000], "do not belong there"),
        ([*range(1, 999)], "has 998 rows"),
    ],
)
def test_other_rows_than_the_name_says_are_refused(glsns: list[int], what: str, tmp_path: Path) -> None:
    made, path = planted(tmp_path)
    table = pa.Table.from_batches([rows(glsns)])
    size = path.stat().st_size
    with path.open("wb") as stream, checked.writing(stream, ARROW_SCHEMA) as write:
        write(table)
    entry = tmp_path / "it" / "_delta_log" / f"{1:020d}.json"
    entry.write_text(entry.read_text().replace(f'"size":{size}', f'"size":{path.stat().st_size}'))
    check_refused(Archive.open(made.uri), path, what)


def test_large_payloads_are_read_in_small_batches(tmp_path: Path) -> None:
    size, count = 1 << 20, 200
    uri = archive(tmp_path / "it", 1).uri

    def large() -> Iterator[pa.RecordBatch]:
        for glsn in range(1, count + 1):
            yield rows([glsn]).set_column(
                4, "payload", pa.array([np.random.default_rng(glsn).bytes(size)], pa.binary())
            )

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    held = write_range(uri, 1, count + 1, large())
    made = Archive.open(uri)
    made.commit([held], 1)
    found = 0
    for batch in made.scan(1, count + 1):
        assert batch.nbytes <= BATCH_BYTES + size
        found += len(batch)
    assert found == count
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert grown < 6 * ROW_GROUP_BYTES, f"{grown >> 20} MiB for a file of {held.bytes >> 20} MiB"


def test_files_of_an_archive_are_read_by_anybody(tmp_path: Path) -> None:
    made = archive(tmp_path / "it", 1, 10, 20)
    from deltalake import DeltaTable  # noqa: PLC0415  # as somebody else would

    table = pa.table(DeltaTable(made.uri).to_pyarrow_table())
    assert sorted(table.column("glsn").to_pylist()) == list(range(1, 20))
    assert file(made.uri, 20, 30).rows == 10
