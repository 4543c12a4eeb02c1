"""The archive job on a disk that is too small, for `soak`: a tmpfs in a name space of its own.

    unshare --user --map-root-user --mount python -m tests.pipeline.full DIRECTORY

The cluster's own data is elsewhere. The job ends and says that the disk of the archive is full; what was committed
before stays; and with more space it goes on.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pipeline.archives import check, wanted
from tests.spark.topics import Topic, small_cluster
from varlog.archive import Archive
from varlog.errors import DiskFull
from varlog.pipeline.archive import archive
from varlog.spark import session
from varlog.spark.connections import connections

SCARCE = "700k"
AMPLE = "64m"
COUNT = 4000
SIZE = 100
"""Together with noise that cannot be compressed, more than the scarce disk has."""


def mount(disk: Path, *options: str) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", ",".join(options), "tmpfs", str(disk)], check=True)


def main() -> None:
    """See the module's text."""
    directory = Path(sys.argv[1]) / "full"
    disk = directory / "disk"
    disk.mkdir(parents=True)
    mount(disk, f"size={SCARCE}")
    cluster = small_cluster(directory / "varlog-data")
    asyncio.run(cluster.__aenter__())
    try:
        topic = Topic(cluster.path, "log")
        noise = [Path("/dev/urandom").open("rb").read(SIZE * 2) for _ in range(COUNT)]  # noqa: SIM115
        topic.write(*(noise[begin : begin + 500] for begin in range(0, COUNT, 500)))
        payloads = topic.payloads(1, COUNT + 1)
        spark = session("full", master="local[2]", log_file=directory / "spark.log")
        with pytest.raises(DiskFull, match=f"no space is left for the archive at {disk}/it"):
            archive(topic.connection, wanted(disk / "it"), lambda: spark)
        made = Archive.open(str(disk / "it"))
        assert 1000 < made.end <= COUNT, "a part of it fitted"
        check(topic, disk / "it", payloads[: made.end - 1])
        mount(disk, "remount", f"size={AMPLE}")
        archive(topic.connection, wanted(disk / "it"), lambda: spark)
        check(topic, disk / "it", payloads)
        spark.stop()
        connections.close()
    finally:
        asyncio.run(cluster.stop())


if __name__ == "__main__":
    main()
