"""Parquet under checksums: whatever byte of a file changes, nothing of what it may have changed is handed out."""

from __future__ import annotations

import io

import pyarrow as pa
import pytest
from pyarrow import parquet

from tests.archive.made import rows
from varlog.archive import checked
from varlog.spark.columns import ARROW_SCHEMA

NAME = f"it{checked.SUFFIX}"
GROUPS = [range(1, 41), range(41, 81), range(81, 121)]


def written(groups: list[range]) -> bytes:
    stream = io.BytesIO()
    with checked.writing(stream, ARROW_SCHEMA, compression="zstd", write_page_checksum=True) as write:
        for glsns in groups:
            write(pa.Table.from_batches([rows(glsns)]))
    return stream.getvalue()


def read(data: bytes, *groups: int) -> list[pa.RecordBatch]:
    """These row groups, or all."""
    with checked.parquet_of(io.BytesIO(data), NAME) as file:
        wanted = groups or range(file.metadata.num_row_groups)
        return [batch for group in wanted for batch in checked.batches_of(file, group, 1000)]


def flipped(data: bytes, at: int, bit: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]


def ends(data: bytes) -> list[int]:
    """Where each row group ends; the footer and its checksum are behind the last one."""
    about = parquet.ParquetFile(io.BytesIO(data)).metadata
    groups = [about.row_group(number) for number in range(about.num_row_groups)]
    last = [group.column(len(ARROW_SCHEMA) - 1) for group in groups]
    return [(found.dictionary_page_offset or found.data_page_offset) + found.total_compressed_size for found in last]


def test_what_is_written_is_read() -> None:
    data = written(GROUPS)
    assert read(data) == [rows(glsns) for glsns in GROUPS]
    assert read(data, 2, 0) == [rows(GROUPS[2]), rows(GROUPS[0])]
    assert read(written([])) == []


def test_others_read_it_as_any_other() -> None:
    found = parquet.read_table(io.BytesIO(written(GROUPS)), page_checksum_verification=True)
    assert found.replace_schema_metadata() == pa.Table.from_batches([rows(glsns) for glsns in GROUPS])


def test_a_flipped_bit_is_found_wherever_it_is() -> None:
    """Also where Parquet has no checksums: in the headers of pages, and in the footer."""
    data = written(GROUPS)
    first, second, third = ends(data)
    assert third == len(data) - 16 - parquet.ParquetFile(io.BytesIO(data)).metadata.serialized_size
    for at in range(len(data)):
        damaged = flipped(data, at, at % 8)
        with pytest.raises(checked.Damaged):
            read(damaged)
        if first <= at < second or at >= third:
            with pytest.raises(checked.Damaged):
                read(damaged, 1)
        elif at % 7 == 0:
            assert read(damaged, 1) == [rows(GROUPS[1])], f"byte {at} is not in what was read"


def test_every_bit_counts_where_a_file_ends() -> None:
    data = written(GROUPS)
    for at in range(len(data) - 64, len(data)):
        for bit in range(8):
            with pytest.raises(checked.Damaged):
                read(flipped(data, at, bit), 0)


def test_a_file_without_rows_is_checked_as_well() -> None:
    data = written([])
    for at in range(4, len(data)):
        with pytest.raises(checked.Damaged):
            read(flipped(data, at, at % 8))


def test_a_file_that_was_cut_short_is_found() -> None:
    data = written(GROUPS)
    for length in range(len(data)):
        with pytest.raises(checked.Damaged):
            read(data[:length])


def test_a_footer_that_is_longer_than_what_is_read_at_first() -> None:
    groups = [range(glsn, glsn + 1) for glsn in range(1, 200)]
    data = written(groups)
    footer = ends(data)[-1]
    assert len(data) - footer > 64 << 10
    assert read(data) == [rows(glsns) for glsns in groups]
    for at in range(footer, len(data), 997):
        with pytest.raises(checked.Damaged):
            read(flipped(data, at, at % 8), 7)


def test_a_part_that_ends_too_early_is_found() -> None:
    """A file that becomes shorter while it is read."""
    data = written(GROUPS)
    stream = io.BytesIO(data)
    with checked.parquet_of(stream, NAME) as file:
        stream.truncate(ends(data)[1] - 1)
        assert list(checked.batches_of(file, 0, 1000)) == [rows(GROUPS[0])]
        with pytest.raises(checked.Damaged, match="it ends before byte"):
            list(checked.batches_of(file, 1, 1000))
