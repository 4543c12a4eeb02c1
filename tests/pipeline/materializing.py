"""A materialize job whose driver is killed at a step, and what tests of the job share.

The driver is a process of its own, with a Spark of its own (`python -m tests.pipeline.materializing ...`); it kills
itself with SIGKILL, so nothing is finished or cleaned up, and Spark notices that it is gone.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Sequence
from enum import Enum
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from tests.pipeline.killing import ROOT, wait_for_end
from tests.spark.topics import Topic
from varlog.pipeline.materialize import Step, Steps, Wanted, materialize
from varlog.spark import session
from varlog.spark.options import Connection

COUNT = 1200
PER_BATCH = 400
KEYS = 50
SECONDS = 200.0
"""For a driver with a Spark of its own, on a busy machine."""


def wanted(uri: str | Path, **options: object) -> Wanted:
    given = {"key": "who.id", "value": "amount", "parts": 2, "positions_per_batch": PER_BATCH} | options
    return Wanted(str(uri), **given)  # type: ignore[arg-type]


def write(topic: Topic, count: int = COUNT, seed: int = 1) -> list[bytes]:
    """Entries of some keys, in a pipeline over both log streams, and one in a hundred that is of no key."""
    choice = random.Random(seed)
    entries = [
        json.dumps({"who": {"id": f"k{choice.randrange(KEYS)}"}, "amount": number}).encode() for number in range(count)
    ]
    for number in range(0, count, 100):
        entries[number] = choice.choice([b"{not JSON", b'{"who": {"id": null}}', b"\xff\xfe", b'{"who": 7}'])
    with topic.log() as log:
        tail = log.tail()
        for begin in range(0, count, 100):
            log.append_batch(entries[begin : begin + 100])
        return [payload for batch in log.scan(tail + 1) for payload in batch.payloads()]


def latest(entries: Sequence[bytes], first: int = 1) -> dict[str, tuple[str, int]]:
    """What a table of these entries has: keys with value and position."""
    found: dict[str, tuple[str, int]] = {}
    for glsn, entry in enumerate(entries, first):
        if b"amount" in entry:
            held = json.loads(entry)
            found[held["who"]["id"]] = (str(held["amount"]), glsn)
    return found


def table_of(uri: Path) -> dict[str, tuple[str, int]]:
    """What the table has, each key once."""
    rows = pa.table(DeltaTable(str(uri)).to_pyarrow_table()).to_pylist()
    found = {row["key"]: (row["value"], row["glsn"]) for row in rows}
    assert len(found) == len(rows), "a key has one row"
    return found


class Kill(Enum):
    """At which step of the second micro-batch, and how many are in the table then."""

    def __init__(self, step: Step, committed: int) -> None:
        self.step = step
        self.committed = committed

    WRITTEN = (Step.WRITTEN, 1)
    COMMITTED = (Step.COMMITTED, 2)


def kill(cluster: Path, topic: str, uri: Path, when: Kill) -> None:
    """Run the job until it is killed, and wait until its Spark has ended as well."""
    pid_file, log = uri.with_name(f"{uri.name}.pid"), uri.with_name(f"{uri.name}.log")
    command = [sys.executable, "-m", "tests.pipeline.materializing", str(cluster), topic, str(uri), when.name]
    with log.open("wb") as said:
        ended = subprocess.run(
            [*command, str(pid_file)], cwd=ROOT, check=False, stdout=said, stderr=said, timeout=SECONDS
        )
    assert ended.returncode == -signal.SIGKILL, log.read_text()
    wait_for_end(int(pid_file.read_text()))


class _Dies(Steps):
    def __init__(self, step: Step, time: int) -> None:
        self._step = step
        self._left = time

    def reached(self, step: Step) -> None:
        if step is self._step:
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """See the module's text."""
    cluster, topic, uri, name, pid_file = sys.argv[1:]

    def start() -> SparkSession:
        spark = session("killed", master="local[2]", log_file=f"{uri}.spark.log")
        gateway = spark.sparkContext._gateway
        assert gateway is not None
        Path(pid_file).write_text(str(gateway.proc.pid))
        return spark

    materialize(Connection(cluster, topic), wanted(uri), start, steps=_Dies(Kill[name].step, 2))


if __name__ == "__main__":
    main()
