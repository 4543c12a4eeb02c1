"""What docs/spark.md shows is what happens: its programs run one after another, as in a notebook, on one session."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.docs.sessions import align, blocks_of
from tests.spark.topics import small_cluster
from varlog.spark.connections import connections
from varlog.spark.options import OPTIONS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "spark.md"


@pytest.fixture
def directory() -> Iterator[Path]:
    """A running cluster, at a path as short as the one that the page names."""
    with tempfile.TemporaryDirectory(prefix="varlog-data") as path:
        cluster = small_cluster(Path(path), streams=1)
        asyncio.run(cluster.__aenter__())
        try:
            yield cluster.path
        finally:
            connections.close()
            asyncio.run(cluster.stop())


def test_the_page_shows_what_happens(spark: SparkSession, directory: Path) -> None:
    assert spark is not None
    page = PAGE.read_text()
    names: dict[str, object] = {}
    printed: list[str] = []
    for block in reversed(real := list(_run(page, names, str(directory)))):
        begin, end, shown, printed = block
        if align(shown.splitlines(), printed) is None:
            assert os.environ.get("VARLOG_REWRITE_GOLDEN") == "1", f"shown:\n{shown}\nreal:\n" + "\n".join(printed)
            page = page[:begin] + "\n".join([*printed, ""]) + page[end:]
    assert real
    if os.environ.get("VARLOG_REWRITE_GOLDEN") == "1":
        PAGE.write_text(page)


def _run(page: str, names: dict[str, object], path: str) -> Iterator[tuple[int, int, str, list[str]]]:
    """Each `text` block, and what the program before it has printed."""
    printed: list[str] | None = None
    for block in blocks_of(page):
        if block.tag == "python":
            said = io.StringIO()
            with contextlib.redirect_stdout(said):
                exec(compile(block.text.replace('"varlog-data', f'"{path}'), "spark.md", "exec"), names)
            printed = [line.rstrip() for line in said.getvalue().splitlines() if line.strip()]
        elif block.tag == "text" and printed is not None:
            yield block.begin, block.end, block.text, printed


def test_the_page_has_every_option() -> None:
    listed = re.findall(r"^\| `([\w.]+)` \|", PAGE.read_text().split("## Options")[1].split("\n## ")[0], re.MULTILINE)
    assert sorted(listed) == sorted(OPTIONS)
