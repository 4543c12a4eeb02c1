"""On a Spark cluster: a master and two workers that have nothing of ours but what `docs/spark.md` says to ship.

All paths have spaces in them. The log's address is all that executors are told; the secret comes with `--files`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

import varlog.sync
from tests.cli.shell import Dev
from tests.docs.sessions import until
from tests.spark.standalone import SECONDS, WORKERS, StandaloneSpark, descendants, listening, standalone
from varlog.archive import Archive
from varlog.pipeline import archive
from varlog.spark import pack

ENTRIES: Final = 20_000
BATCH: Final = 500
LOOPBACK: Final = {"0100007F", "0000000000000000FFFF00000100007F"}
"""As the kernel writes 127.0.0.1."""

pytestmark = [pytest.mark.timeout(400), pytest.mark.xdist_group("spark")]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("a path with spaces")


@pytest.fixture(scope="module")
def log(directory: Path) -> Iterator[Dev]:
    """A cluster of Varlog, with a log."""
    dev = Dev(directory / "varlog data", "--streams", "2")
    with varlog.sync.connect(dev.path) as connected:
        for first in range(1, ENTRIES + 1, BATCH):
            connected.append_batch([b"%d" % number for number in range(first, first + BATCH)])
    yield dev
    assert dev.stop() == (0, "")


@pytest.fixture(scope="module")
def shipped(directory: Path, log: Dev) -> list[str]:
    """What goes to the executors, as documented."""
    packed = directory / "varlog-deps.tar"
    assert pack.main([str(packed)]) == 0
    return [
        *("--archives", f"{packed.as_uri()}#varlog-deps", "--conf", "spark.executorEnv.PYTHONPATH=varlog-deps"),
        *("--files", (log.path / "secret").as_uri()),
    ]


@pytest.fixture(scope="module")
def spark_cluster(directory: Path) -> Iterator[StandaloneSpark]:
    with standalone(directory / "spark cluster") as cluster:
        yield cluster
        processes = descendants(cluster.pids)
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in processes))


def outcome(cluster: StandaloneSpark, process: subprocess.Popen[str]) -> str:
    """What a submitted application printed."""
    try:
        out, err = process.communicate(timeout=2 * SECONDS)
    finally:
        process.kill()
    assert process.returncode == 0, f"{err}\n{cluster.logs()}"
    return out


def has_ended(process: subprocess.Popen[str], within: float) -> bool:
    try:
        process.wait(within)
    except subprocess.TimeoutExpired:
        return False
    return True


def address_of(log: Dev) -> str:
    address: str = log.about["address"]
    return address


def test_P1_executors_read_the_log_with_what_was_shipped(
    spark_cluster: StandaloneSpark, shipped: list[str], log: Dev
) -> None:
    program = Path(__file__).with_name("read_log.py")
    (spark_cluster.directory / "secret").write_bytes((log.path / "secret").read_bytes())
    (spark_cluster.directory / "secret").chmod(0o600)
    process = spark_cluster.submit(shipped, program, address_of(log), "secret", "log")
    addresses: set[str] = set()
    while not has_ended(process, within=0.5) and len(addresses) < len(LOOPBACK) + 1:
        addresses |= listening(descendants([*spark_cluster.pids, process.pid]))
    said: dict[str, Any] = json.loads(outcome(spark_cluster, process))
    places = said.pop("places")
    total = ENTRIES * (ENTRIES + 1) // 2
    assert said == {"rows": ENTRIES, "first": 1, "last": ENTRIES, "positions": ENTRIES, "sum": total}
    assert len({place["module"] for place in places}) == WORKERS
    assert all("varlog-deps" in place["module"] for place in places)
    assert {os.path.realpath(place["prefix"]) for place in places} == {os.path.realpath(sys.base_prefix)}
    assert addresses <= LOOPBACK
    assert addresses


def test_P1_the_archive_job_runs_by_spark_submit(spark_cluster: StandaloneSpark, shipped: list[str], log: Dev) -> None:
    program = Path(archive.__file__)
    target = spark_cluster.directory / "the archive"
    arguments = ("--cluster", address_of(log), "--secret-file", "secret", "--rows-per-file", "3000", str(target))
    outcome(spark_cluster, spark_cluster.submit(shipped, program, *arguments))
    archived = Archive.open(str(target))
    rows = [row for batch in archived.scan(1, ENTRIES + 1) for row in batch["payload"].to_pylist()]
    assert rows == [b"%d" % number for number in range(1, ENTRIES + 1)]
    assert max(part.end - part.begin for part in archived.ranges) <= 3000
