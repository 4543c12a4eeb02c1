"""Figures on pages are figures of the code: speed as it was measured, limits as they are."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any, Final

from varlog import limits

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
RESULTS = ROOT / "benchmarks" / "results" / "cluster.json"
BENCHMARKS = ROOT / "docs" / "benchmarks.md"
SPARK_RESULTS = ROOT / "benchmarks" / "results" / "spark.json"
META_RESULTS = ROOT / "benchmarks" / "results" / "meta.json"
SEQUENCER_RESULTS = ROOT / "benchmarks" / "results" / "sequencer.json"
ORDERINGS = ROOT / "docs" / "orderings.md"

BOTH: Final = {
    "append-100-b1-c256": "append, 100 bytes, each its own batch, 256 in flight",
    "append-1k-b100": "append, 1 KiB, batches of 100",
    "latency-c1": "append, one at a time, median",
    "read": "read of one position, one at a time, median",
}
"""What was measured of both orderings in one run."""

SHOWN: Final = {
    "bare-frames": "the machine: bare frames, request and reply between two processes",
    "fdatasync": "the machine: one `fdatasync` of 4 KiB, median",
    "synced-sequential": "the machine: sequential writes of 1 MiB, each synced",
    "append-100-b1-c256": "append, 100 bytes, each its own batch and acknowledgement, 256 in flight",
    "append-100-b100": "append, 100 bytes, batches of 100",
    "append-100-b1000": "append, 100 bytes, batches of 1000",
    "append-100-b100-ls4": "append, 100 bytes, batches of 100, four log streams",
    "append-1k-b100": "append, 1 KiB, batches of 100",
    "append-1k-b1000": "append, 1 KiB, batches of 1000",
    "append-16k-b10": "append, 16 KiB, batches of 10",
    "latency-c1": "append, one at a time, median",
    "e2e-c1": "from the acknowledgement until a subscriber has it, median",
    "scan-100": "scan, 100 bytes, as batches",
    "scan-100-ls4": "scan of four log streams, merged",
    "iterate-100": "iterate, one entry after another",
    "disk-bytes-1k-b100": "bytes on disk for each byte of payload and replica",
    "rss-max": "most memory of any daemon, with a log of 2 GB",
    "idle-cpu": "all daemons of an idle cluster",
    "restart-2gb": "a storage node with 2 GB serves again",
}
"""Of the results, by name."""


def table() -> str:
    rows = {row["name"]: row for row in json.loads(RESULTS.read_text())}
    lines = ["| What | Measured | Of what the machine can do |", "|---|---:|---:|"]
    lines += [f"| {what} | {_measured(rows[name])} | {_share(rows[name])} |" for name, what in SHOWN.items()]
    return "\n".join([*lines, ""])


def table_of(path: Path, heading: str) -> str:
    lines = [f"| {heading} | Measured | Beside | Asked for |", "|---|---:|---:|---:|"]
    for row in json.loads(path.read_text()):
        asked = f"{'at most ' if row['op'] == '<=' else ''}{row['target']:g}" if row["op"] else ""
        lines.append(f"| `{row['name']}` | {_measured(row)} | {_share(row)} | {asked} |")
    return "\n".join([*lines, ""])


def table_of_both() -> str:
    rows = {row["name"]: row for row in json.loads(SEQUENCER_RESULTS.read_text())}
    lines = ["| Both orderings | commit | sequencer |", "|---|---:|---:|"]
    for name, what in BOTH.items():
        lines.append(f"| {what} | {_measured(rows[f'commit-{name}'])} | {_measured(rows[f'seq-{name}'])} |")
    return "\n".join([*lines, ""])


def _measured(row: dict[str, Any]) -> str:
    value = row["value"]
    number = f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
    return f"{number} {row['unit']}" if row["unit"] != "x" else number


def _share(row: dict[str, Any]) -> str:
    return f"{row['ratio']:.2f} x {row['limit_name'].replace('-', ' ')}" if row["ratio"] is not None else ""


def test_the_readme_shows_what_was_measured() -> None:
    _compare(README, r"^\| What \| Measured .*?(?=\n\n)\n", table())


def test_the_page_on_benchmarks_shows_what_was_measured_on_spark() -> None:
    _compare(BENCHMARKS, r"^\| Row \| Measured .*?(?=\n\n)\n", table_of(SPARK_RESULTS, "Row"))


def test_the_page_on_benchmarks_shows_what_was_measured_of_metadata_in_etcd() -> None:
    _compare(BENCHMARKS, r"^\| Row of etcd \| Measured .*?(?=\n\n)\n", table_of(META_RESULTS, "Row of etcd"))


def test_the_page_on_benchmarks_shows_what_was_measured_of_the_sequencer_ordering() -> None:
    heading = "Row of the sequencer ordering"
    _compare(BENCHMARKS, rf"^\| {heading} \| Measured .*?(?=\n\n)\n", table_of(SEQUENCER_RESULTS, heading))


def test_the_page_on_orderings_compares_them_as_they_were_measured() -> None:
    _compare(ORDERINGS, r"^\| Both orderings \| .*?(?=\n\n)\n", table_of_both())


def _compare(path: Path, pattern: str, measured: str) -> None:
    """`VARLOG_REWRITE_GOLDEN=1` pastes it anew."""
    page = path.read_text()
    found = re.search(pattern, page, re.MULTILINE | re.DOTALL)
    assert found is not None
    if os.environ.get("VARLOG_REWRITE_GOLDEN") == "1":
        path.write_text(page.replace(found[0], measured))
    else:
        assert found[0] == measured


def test_the_client_page_tells_the_limits_of_a_client() -> None:
    page = " ".join((ROOT / "docs" / "client.md").read_text().split())
    room = f"{limits.CLIENT_APPENDS_IN_FLIGHT:,} appends and {limits.CLIENT_BYTES_IN_FLIGHT // limits.MIB} MiB"
    assert f"at most {room} of them under way" in page
    assert f"stops the reading after {limits.CLIENT_READ_AHEAD_BYTES // limits.MIB} MiB" in page
