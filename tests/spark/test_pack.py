"""What is packed for executors: everything they import, nothing of this machine."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from varlog.spark import pack


def test_it_has_what_executors_import_and_no_more(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    archive = tmp_path / "a name with spaces.tar"
    assert pack.main([str(archive)]) == 0
    told = capsys.readouterr().out
    assert "a%20name%20with%20spaces.tar#varlog-deps" in told, "Spark wants a URI"
    with tarfile.open(archive) as tar:
        members = tar.getmembers()
    names = {member.name for member in members}
    assert {"varlog/__init__.py", "varlog/spark/task.py", "pyspark_varlog/__init__.py"} <= names
    tops = {name.split("/")[0] for name in names}
    assert {"pyarrow", "numpy", "msgspec", "crc32c", "zstandard", "deltalake"} <= tops
    assert not {"pyspark", "pytest", "mypy", "bin"} & tops
    assert all(member.isfile() for member in members)
    assert not [name for name in names if name.startswith("/") or ".." in name.split("/") or "__pycache__" in name]
    assert [path.name for path in tmp_path.iterdir()] == [archive.name]


def test_a_name_that_spark_would_not_unpack_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert pack.main([str(tmp_path / "deps.rar")]) == 2
    assert ".tar.gz" in capsys.readouterr().err
    assert pack.main([str(tmp_path / "nowhere" / "deps.tar")]) == 2
    assert not list(tmp_path.iterdir())
