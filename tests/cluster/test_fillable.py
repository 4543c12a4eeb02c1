"""The disk that is full when told so."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.fillable import FillableFileSystem


def test_nothing_grows_while_the_marker_is_there(tmp_path: Path) -> None:
    marker = tmp_path / "full"
    fs = FillableFileSystem(str(marker))
    file = fs.create(f"{tmp_path}/file")
    file.pwritev([b"before"], 0)
    file.allocate(8)
    marker.touch()
    file.pwritev([b"inside"], 2)
    with pytest.raises(OSError, match="no space"):
        file.pwritev([b"123", b"456"], 6)
    with pytest.raises(OSError, match="no space"):
        file.allocate(9)
    file.allocate(3)
    assert file.pread(20, 0) == b"beinsi12", "as much as there was room for"
    marker.unlink()
    file.pwritev([b"123", b"456"], 6)
    assert file.pread(20, 0) == b"beinsi123456"
    file.close()
    opened = fs.open(f"{tmp_path}/file")
    marker.touch()
    with pytest.raises(OSError, match="no space"):
        opened.allocate(13)
    opened.close()
