"""What the pages for people show is what happens. `VARLOG_REWRITE_GOLDEN=1` pastes it anew."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.docs.sessions import align, replay

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    ROOT / "README.md",
    *(ROOT / "docs" / name for name in ("client.md", "operations.md", "orderings.md", "transactions.md")),
]


@pytest.mark.timeout(400)
@pytest.mark.xdist_group("spark")
@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_a_page_shows_what_happens(page: Path, tmp_path: Path) -> None:
    shown = page.read_text()
    real, differences = replay(shown, tmp_path)
    if os.environ.get("VARLOG_REWRITE_GOLDEN") == "1":
        page.write_text(real)
    else:
        assert not differences, "\n".join(differences)


@pytest.mark.parametrize(
    ("shown", "real", "same"),
    [
        ("a", "a", True),
        ("a", "b", False),
        ("a", "a b", False),
        ("a b", "a", False),
        ("... b", "a a b", True),
        ("a ...", "a b b", True),
        ("a ... c", "a b c", True),
        ("a ... c", "a c", True),
        ("a ... c", "a b d", False),
        ("a ... b ... d", "a x b c d", True),
        ("a ... b c ... d", "a b x b c d", True),
        ("a ... b", "a b c", False),
        ("...", "a b", True),
    ],
)
def test_lines_may_be_left_out_where_it_is_said(shown: str, real: str, same: bool) -> None:
    aligned = align(shown.split(), real.split())
    assert (aligned is not None) is same
    if aligned is not None:
        assert aligned == shown.split()


def test_what_differs_from_run_to_run_is_compared_by_its_form() -> None:
    assert align(["pid 12  127.0.0.1:9091 9.5 GB"], ["pid 3456 127.0.0.1:30000  12.5 GB"])
    assert not align(["GLSN 1"], ["GLSN 2"])
    assert align(["GLSN 1"], ["GLSN 2"], numbers_vary=True) == ["GLSN 2"]
    assert not align(["GLSN 1"], ["GLSN x"], numbers_vary=True)
