"""Topics that tests of Spark write to, and read through Spark."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, SparkSession

import varlog.sync
from varlog.processes import LocalCluster
from varlog.spark.options import Connection


def small_cluster(path: Path, *, streams: int = 2) -> LocalCluster:
    """Three nodes with small files."""
    cluster = LocalCluster(path, streams=streams)
    for node in cluster.nodes:
        node.options["segment_bytes"] = str(1 << 20)
    return cluster


class Topic(NamedTuple):
    """One topic of a cluster."""

    path: Path
    name: str

    @property
    def connection(self) -> Connection:
        return Connection(str(self.path), self.name, poll_timeout=60.0)

    @contextlib.contextmanager
    def log(self) -> Iterator[varlog.sync.Log]:
        with varlog.sync.connect(self.path, topic=self.name, timeout=30.0) as log:
            yield log

    def write(self, *batches: Sequence[bytes]) -> int:
        """Append batches one after another; the last position."""
        with self.log() as log:
            for batch in batches:
                log.append_batch(batch)
            return log.tail()

    def write_numbers(self, count: int, *, per_batch: int = 100, size: int = 0) -> int:
        """Entries that say which they are, in a pipeline on one log stream after another; the last position."""
        with self.log() as log:
            tail = log.tail()
            for begin in range(0, count, per_batch * 10):
                with log.appender() as appender:
                    for first in range(begin, min(count, begin + per_batch * 10), per_batch):
                        numbers = range(first, min(count, first + per_batch))
                        appender.append_batch([b"%d" % number + bytes(size) for number in numbers])
            assert log.tail() == tail + count
            return tail + count

    def payloads(self, begin: int, end: int) -> list[bytes]:
        """What the client reads."""
        with self.log() as log:
            return [payload for batch in log.scan(begin, end) for payload in batch.payloads()]

    def options(self, **options: Any) -> dict[str, str]:
        return {"cluster": str(self.path), "topic": self.name, **{name: str(value) for name, value in options.items()}}

    def read(self, spark: SparkSession, **options: Any) -> DataFrame:
        return spark.read.format("varlog").options(**self.options(**options)).load()

    def stream(self, spark: SparkSession, **options: Any) -> DataFrame:
        return spark.readStream.format("varlog").options(**self.options(**options)).load()
