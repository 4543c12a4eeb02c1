"""The archive job and `materialize`, killed at every step: what `make soak` adds to the tests.

    python -m tests.pipeline.soak

For each step a topic is written, the driver of a job that archives and trims it is killed there, the job is run again,
and the archive is compared with what was written. The same for a table of latest values. Then the job is run on a disk
that is too small for it, in a name space of its own.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
from pathlib import Path
from time import monotonic

import varlog.sync
from tests.pipeline import materializing
from tests.pipeline.archives import check, wanted
from tests.pipeline.killing import COUNT, ROOT, SECONDS, Kill, check_killed, kill
from tests.spark.topics import Topic, small_cluster
from varlog.pipeline.archive import archive
from varlog.pipeline.materialize import materialize
from varlog.spark import session
from varlog.spark.connections import connections

UNSHARE = ("unshare", "--user", "--map-root-user", "--mount")


def play(cluster: Path, directory: Path, when: Kill) -> None:
    """One step."""
    begun = monotonic()
    tell(f"archive, killed at {when.name}")
    topic = Topic(cluster, when.name)
    with varlog.sync.admin(cluster) as admin:
        admin.add_topic(topic.name, streams=2)
    topic.write_numbers(COUNT)
    payloads = topic.payloads(1, COUNT + 1)
    uri = directory / when.name
    kill(cluster, topic.name, uri, when)
    check_killed(topic, uri, when, payloads)
    done = archive(
        topic.connection,
        wanted(uri, attach=True, trim=True),
        lambda: session("soak", master="local[2]", log_file=directory / "spark.log"),
    )
    assert done.log_first in {0, COUNT + 1}
    check(topic, uri, payloads)
    with topic.log() as log:
        assert log.first() == COUNT + 1
    tell(f": {monotonic() - begun:.1f} s\n")


def play_materialize(cluster: Path, directory: Path, when: materializing.Kill) -> None:
    """One kill of the driver that keeps a table."""
    begun = monotonic()
    tell(f"materialize, killed at {when.name}")
    topic, uri = Topic(cluster, f"table-{when.name}"), directory / f"table-{when.name}"
    with varlog.sync.admin(cluster) as admin:
        admin.add_topic(topic.name, streams=2)
    entries = materializing.write(topic)
    materializing.kill(cluster, topic.name, uri, when)
    done = when.committed * materializing.PER_BATCH
    assert materializing.table_of(uri) == materializing.latest(entries[:done])
    materialize(
        topic.connection,
        materializing.wanted(uri),
        lambda: session("soak", master="local[2]", log_file=directory / "spark.log"),
    )
    assert materializing.table_of(uri) == materializing.latest(entries)
    tell(f": {monotonic() - begun:.1f} s\n")


def play_full(directory: Path) -> None:
    """The job on a disk that runs full."""
    begun = monotonic()
    tell("archive, disk full")
    command = [*UNSHARE, sys.executable, "-m", "tests.pipeline.full", str(directory)]
    ended = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True, timeout=SECONDS)
    assert ended.returncode == 0, f"{ended.stdout}\n{ended.stderr}"
    tell(f": {monotonic() - begun:.1f} s\n")


def tell(text: str) -> None:
    print(text, end="", flush=True)  # noqa: T201


def main() -> None:
    """See the module's text."""
    with tempfile.TemporaryDirectory(prefix="varlog-soak-") as path:
        directory = Path(path)
        cluster = small_cluster(directory / "varlog-data")
        asyncio.run(cluster.__aenter__())
        try:
            for when in Kill:
                play(cluster.path, directory, when)
            for step in materializing.Kill:
                play_materialize(cluster.path, directory, step)
            connections.close()
        finally:
            asyncio.run(cluster.stop())
        play_full(directory)


if __name__ == "__main__":
    main()
