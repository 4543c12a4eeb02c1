"""An archive job whose driver is killed at a step, and what is left when another one has gone on.

The driver is a process of its own, with a Spark of its own (`python -m tests.pipeline.killing ...`); it kills itself
with SIGKILL, so nothing is finished or cleaned up. Spark and its workers notice that the driver is gone, and end; they
may have written another file by then. Then the job is run again, and the archive must be exact: every entry once, in
order, and nothing trimmed that it does not have.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
from enum import Enum
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from tests.pipeline.archives import At, check, wanted
from tests.spark.topics import Topic
from varlog.archive import Archive
from varlog.pipeline.archive import Step, archive
from varlog.spark import session
from varlog.spark.options import Connection

ROOT: Final = Path(__file__).resolve().parents[2]
SECONDS: Final = 110.0
COUNT: Final = 2500
LOOK_SECONDS: Final = 0.001


class Kill(Enum):
    """When: at which step, and for the how maniest time it is reached; the second batch has one before and one after
    it."""

    def __init__(self, step: Step, time: int, _during: str = "") -> None:
        self.step = step
        self.time = time

    OPENED = (Step.OPENED, 1)
    FIRST_PLANNED = (Step.PLANNED, 1)
    FIRST_WRITTEN = (Step.WRITTEN, 1)
    FIRST_COMMITTED = (Step.COMMITTED, 1)
    FIRST_TRIMMED = (Step.TRIMMED, 2)
    PLANNED = (Step.PLANNED, 2)
    WRITING = (Step.PLANNED, 2, "while files are written")
    WRITTEN = (Step.WRITTEN, 2)
    COMMITTED = (Step.COMMITTED, 2)
    TRIMMED = (Step.TRIMMED, 3)

    @property
    def committed(self) -> int:
        """How many batches have been committed by then."""
        return self.time if self.step is Step.COMMITTED else self.time - 1


def kill(cluster: Path, topic: str, uri: Path, when: Kill) -> None:
    """Run the job until it is killed, and wait until its Spark has ended as well."""
    pid_file = uri.with_name(f"{uri.name}.pid")
    command = [sys.executable, "-m", "tests.pipeline.killing", str(cluster), topic, str(uri), when.name, str(pid_file)]
    with uri.with_name(f"{uri.name}.log").open("wb") as said:
        ended = subprocess.run(command, cwd=ROOT, check=False, stdout=said, stderr=said, timeout=SECONDS)
    assert ended.returncode == -signal.SIGKILL, uri.with_name(f"{uri.name}.log").read_text()
    if pid_file.exists():
        wait_for_end(int(pid_file.read_text()))


def wait_for_end(pid: int) -> None:
    """Until a process of somebody else's has ended."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        ended, _, _ = select.select([process], [], [], SECONDS)
        assert ended, "Spark goes on without its driver"
    finally:
        os.close(process)


def check_killed(topic: Topic, uri: Path, when: Kill, payloads: list[bytes]) -> None:
    """What is there after the kill: whole batches, and the log still has the rest."""
    check(topic, uri, payloads[: 1000 * when.committed])
    if when is Kill.WRITTEN:
        named = {held.path for held in Archive.open(str(uri)).ranges}
        assert {f"data/{path.name}" for path in (uri / "data").iterdir()} > named, "files that no commit names"


# The driver


def main() -> None:
    """See the module's text."""
    cluster, topic, uri, name, pid_file = sys.argv[1:]
    when = Kill[name]

    def start() -> SparkSession:
        spark = session("killed", master="local[2]", log_file=f"{uri}.spark.log")
        gateway = spark.sparkContext._gateway
        assert gateway is not None
        Path(pid_file).write_text(str(gateway.proc.pid))
        return spark

    def die() -> None:
        if when is Kill.WRITING:
            threading.Thread(target=_die_when_written_to, args=(Path(uri),), daemon=True).start()
        else:
            os.kill(os.getpid(), signal.SIGKILL)

    asked = wanted(uri, attach=True, trim=True)
    archive(Connection(cluster, topic), asked, start, steps=At(when.step, die, when.time))


def _die_when_written_to(uri: Path) -> None:
    before = len(list((uri / "data").iterdir()))
    while len(list((uri / "data").iterdir())) == before:
        threading.Event().wait(LOOK_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
