"""Where archives are: paths and URIs in all their forms, and what happens when a place cannot be written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pyarrow import fs

from tests.archive.made import archive, create, file, glsns_of, rows
from varlog.archive import Archive, Place, resolve
from varlog.archive.manifest import Identity
from varlog.archive.parquet import write_rows
from varlog.errors import InvalidArgument, NotWritable


def test_one_place_has_one_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    wanted = str(tmp_path / "a b")
    for form in (
        "a b",
        "./a b/",
        f"{tmp_path}/x/../a b",
        (tmp_path / "a b").as_uri(),
        f"file://localhost{tmp_path}/a b",
    ):
        assert resolve(form) == wanted
    assert resolve("s3://bucket/prefix/") == "s3://bucket/prefix"


@pytest.mark.parametrize(
    "uri", ["", "file://host/path", "file://", "/a%41", "a\\b", "/a\nb", "nothing://here", "s3:/", "/a%"]
)
def test_what_is_no_place(uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    if uri == "s3:/":
        assert resolve(uri) == str(tmp_path / "s3:"), "a path like any other"
        return
    with pytest.raises(InvalidArgument):
        Place.of(uri)


@pytest.mark.parametrize("name", ["with space", "für", "a#b?c=d&e", "q'uo\"te", "a:b", "[x]*{y}"])
def test_unusual_names_work(name: str, tmp_path: Path) -> None:
    made = archive(tmp_path / name / "it", 1, 10)
    made.commit([file(made.uri, 10, 20)], 10)
    for uri in (str(tmp_path / name / "it"), (tmp_path / name / "it").as_uri()):
        again = Archive.open(uri)
        assert again.uri == str(tmp_path / name / "it")
        assert glsns_of(again.scan(1, 20)) == list(range(1, 20))
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_an_archive_made_by_file_uri(tmp_path: Path) -> None:
    uri = (tmp_path / "it").as_uri()
    made = create(uri)
    made.commit([file(uri, 1, 10)], 1)
    assert glsns_of(Archive.open(uri).scan(1, 10)) == list(range(1, 10))


def test_a_store_without_renames_and_syncs(tmp_path: Path) -> None:
    """The way of object stores, on a file system that is not taken for a local disk."""
    directory = tmp_path / "bucket"
    directory.mkdir()
    place = Place(
        str(directory / "it"), fs.SubTreeFileSystem(str(directory), fs.LocalFileSystem()), "it", is_local=False
    )
    made = Archive.create_at(place, Identity(1, "log", 1, 1))
    first = write_rows(place, 1, 10, [rows(range(1, 10))])
    made.commit([first], 1)
    unused = write_rows(place, 10, 20, [rows(range(10, 20))])
    assert glsns_of(Archive.at(place).scan(1, 10)) == list(range(1, 10))
    assert made.find_time(0) == 1
    os.utime(directory / "it" / unused.path, (0, 0))
    assert made.collect(60) == [unused.path]
    assert {path.name for path in (directory / "it" / "data").iterdir()} == {Path(first.path).name}


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    with pytest.raises(NotWritable, match="cannot be written"):
        create(tmp_path / "file" / "it")
    made = archive(tmp_path / "it", 1)
    os.rmdir(tmp_path / "it" / "data")
    (tmp_path / "it" / "data").write_text("")
    with pytest.raises(NotWritable, match="cannot be written"):
        file(made.uri, 1, 10)
