"""The operating system's files: who else may open them."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from varlog.storage.files import OSFileSystem


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def generous_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("generous_umask")
def test_nobody_else_can_open_a_lock_and_hold_it(tmp_path: Path) -> None:
    OSFileSystem().lock(str(tmp_path / "lock")).release()
    assert mode_of(tmp_path / "lock") == 0o600


def test_a_lock_that_others_can_open_is_closed_to_them(tmp_path: Path) -> None:
    (tmp_path / "lock").touch()
    (tmp_path / "lock").chmod(0o644)
    OSFileSystem().lock(str(tmp_path / "lock")).release()
    assert mode_of(tmp_path / "lock") == 0o600


@pytest.mark.usefixtures("generous_umask")
def test_nobody_else_can_open_data(tmp_path: Path) -> None:
    OSFileSystem().create(str(tmp_path / "data")).close()
    assert mode_of(tmp_path / "data") == 0o600
