"""The table of `materialize` by itself: what merging leaves, in any order and again, and who may change it."""

from __future__ import annotations

import os
import random
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from varlog.errors import BrokenArchive, Conflict, DiskFull, UnsupportedFormat, WrongIdentity
from varlog.pipeline import materialize_table
from varlog.pipeline.materialize_table import COLUMNS, File, Identity, Table, latest_of, merge
from varlog.pipeline.materialize_tasks import Seen

IDENTITY = Identity(1, "orders", 7, "customer.id", "", 4)
TIME = datetime(2026, 1, 31, tzinfo=UTC)


def changes(*rows: tuple[str, int]) -> pa.Table:
    """Keys and positions; a value says both."""
    return pa.Table.from_pylist(
        [{"key": key, "value": f"{key}@{glsn}", "glsn": glsn, "timestamp": TIME} for key, glsn in rows], schema=COLUMNS
    )


def rows_of(uri: Path, file: File) -> dict[str, int]:
    rows = pq.read_table(uri / file.path).to_pylist()
    assert all(row["value"] == f"{row['key']}@{row['glsn']}" for row in rows)
    found = {row["key"]: row["glsn"] for row in rows}
    assert len(found) == len(rows) == file.rows
    return found


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "table"


@pytest.fixture
def table(place: Path) -> Table:
    return Table.open(str(place), IDENTITY)


def test_a_key_has_the_row_of_its_greatest_position(place: Path, table: Table) -> None:
    first = merge(table.uri, 2, None, changes(("a", 5), ("b", 1), ("a", 2), ("c", 3)))
    assert first is not None
    assert rows_of(place, first) == {"a": 5, "b": 1, "c": 3}
    table.replace([first])
    second = merge(table.uri, 2, table.files[2], changes(("b", 9), ("a", 4), ("d", 8)))
    assert second is not None
    assert rows_of(place, second) == {"a": 5, "b": 9, "c": 3, "d": 8}
    table.replace([second])
    assert (table.rows, Table.open(str(place), IDENTITY).files) == (4, {2: second})
    assert merge(table.uri, 2, second, changes(("b", 9), ("a", 1))) is None, "nothing of it is new"
    assert {path.name for path in (place / "data").iterdir()} == {Path(f.path).name for f in (first, second)}


def test_in_whatever_order_and_however_often(place: Path, table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also over several row groups."""
    monkeypatch.setattr(materialize_table, "_READ_ROWS", 16)
    choice = random.Random(8)
    entries = [(f"k{choice.randrange(60)}", glsn) for glsn in range(1, 400)]
    batches = [entries[at : at + 40] for at in range(0, len(entries), 40)]
    again = batches * 2
    choice.shuffle(again)
    for batch in again:
        made = merge(table.uri, 0, table.files.get(0), changes(*batch))
        if made is not None:
            table.replace([made])
    assert rows_of(place, table.files[0]) == dict(entries)


def test_others_read_it_as_a_delta_table(place: Path, table: Table) -> None:
    made = [merge(table.uri, part, None, changes((f"k{part}", part + 1))) for part in range(3)]
    table.replace([file for file in made if file is not None])
    read = pa.table(DeltaTable(str(place)).to_pyarrow_table()).sort_by("glsn")
    assert read.column("key").to_pylist() == ["k0", "k1", "k2"]
    assert read.column("part").to_pylist() == [0, 1, 2]


def test_of_two_who_change_it_one_does(place: Path, table: Table) -> None:
    other = Table.open(str(place), IDENTITY)
    mine, theirs = merge(table.uri, 0, None, changes(("a", 1))), merge(table.uri, 0, None, changes(("a", 2)))
    assert mine is not None
    assert theirs is not None
    other.replace([theirs])
    with pytest.raises(Conflict, match="let one job keep it"):
        table.replace([mine])
    assert table.files == {0: theirs}


def test_what_was_replaced_long_ago_is_deleted(place: Path, table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(materialize_table, "RETAIN_HOURS", 0)
    never = merge(table.uri, 1, None, changes(("z", 1)))
    assert never is not None
    for glsn in (1, 2):
        made = merge(table.uri, 0, table.files.get(0), changes(("a", glsn)))
        assert made is not None
        table.replace([made])
    (place / "_checkpoint").mkdir()
    (place / "_checkpoint" / "metadata").write_text("Spark's")
    os.utime(place / never.path, (1, 1))
    assert table.collect() == 2
    assert [f"data/{path.name}" for path in (place / "data").iterdir()] == [table.files[0].path]
    assert (place / "_checkpoint" / "metadata").exists()
    assert rows_of(place, table.files[0]) == {"a": 2}


@pytest.mark.parametrize(
    ("change", "says"),
    [({"key": "id"}, "key is another"), ({"parts": 5}, "in 5 parts"), ({"tpid": 8}, "tpid"), ({"value": "x"}, "x by")],
)
def test_a_table_of_something_else(place: Path, table: Table, change: dict[str, Any], says: str) -> None:
    assert table.version == 0
    with pytest.raises(WrongIdentity, match=says):
        Table.open(str(place), IDENTITY._replace(**change))


def test_a_table_that_is_made_anew_is_another_one(place: Path, table: Table) -> None:
    """And has a checkpoint of its own, wherever that is."""
    assert Table.open(str(place), IDENTITY).id == table.id
    shutil.rmtree(place)
    assert Table.open(str(place), IDENTITY).id != table.id


def test_a_table_of_somebody_else(place: Path) -> None:
    write_deltalake(str(place), pa.table({"key": ["a"]}))
    with pytest.raises(WrongIdentity, match="not made by this job"):
        Table.open(str(place), IDENTITY)


def test_a_table_of_a_later_release(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(materialize_table, "FORMAT", 2)
    Table.open(str(place), IDENTITY)
    monkeypatch.setattr(materialize_table, "FORMAT", 1)
    with pytest.raises(UnsupportedFormat, match="format 2"):
        Table.open(str(place), IDENTITY)


def test_damage_is_told(place: Path, table: Table) -> None:
    made = merge(table.uri, 0, None, changes(("a", 1)))
    assert made is not None
    with pytest.raises(BrokenArchive, match="not the file that the table names"):
        merge(table.uri, 0, made._replace(rows=2), changes(("a", 2)))
    assert [path.name for path in (place / "data").iterdir()] == [Path(made.path).name], "nothing half done is left"


def test_a_full_disk(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "rename", fail)
    with pytest.raises(DiskFull, match="no space is left for the table at"):
        merge(table.uri, 0, None, changes(("a", 1)))


# What a task remembers of a slot


def advanced(seen: Seen, *rows: tuple[str, int]) -> dict[str, int]:
    found = seen.advance(latest_of(changes(*rows)))
    return dict(zip(found.column("key").to_pylist(), found.column("glsn").to_pylist(), strict=True))


def test_only_what_is_beyond_what_was_seen_is_a_change() -> None:
    seen = Seen.of(None)
    assert advanced(seen, ("a", 3), ("b", 1), ("a", 2)) == {"a": 3, "b": 1}
    seen = Seen.of(seen.packed())
    assert advanced(seen, ("a", 3), ("b", 4), ("c", 9)) == {"b": 4, "c": 9}
    assert advanced(seen, ("a", 1), ("b", 4), ("c", 8)) == {}
    assert advanced(Seen.of(seen.packed()), ("a", 1 << 62), ("b", 4)) == {"a": 1 << 62}


def test_what_is_seen_is_what_a_dictionary_would_have() -> None:
    choice = random.Random(5)
    seen, model = Seen.of(None), dict[str, int]()
    for _ in range(30):
        rows = [(f"k{choice.randrange(40)}", choice.randrange(1000)) for _ in range(20)]
        due: dict[str, int] = {}
        for key, glsn in rows:
            if glsn > max(model.get(key, -1), due.get(key, -1)):
                due[key] = glsn
        assert advanced(seen, *rows) == due
        model |= due
        seen = Seen.of(seen.packed())
