"""What tests of the archive job share: to run it, and to judge what it has left."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.spark.topics import Topic
from varlog.archive import Archive
from varlog.pipeline.archive import Step, Steps, Wanted

ROWS_PER_FILE = 250
"""So that a batch on two cores has a thousand positions."""


def wanted(uri: str | Path, **options: Any) -> Wanted:
    return Wanted(str(uri), **{"rows_per_file": ROWS_PER_FILE, **options})


def check(topic: Topic, uri: str | Path, payloads: list[bytes], first: int = 1) -> Archive:
    """An archive has these entries, each once, in consecutive files; and what the log says together with it is the
    same if it is attached."""
    made = Archive.open(str(uri))
    assert (made.begin, made.end) == (first, first + len(payloads))
    rows = [row for batch in made.scan(made.begin, made.end) for row in zip(*map(_values, batch.columns), strict=True)]
    assert [row[0] for row in rows] == list(range(made.begin, made.end)), "no gap, no repeat"
    assert [row[-1] for row in rows] == payloads
    with topic.log() as log:
        if log.topic.archive:
            assert log.topic.archive == made.uri
            assert topic.payloads(first, made.end) == payloads
        assert log.first() <= made.end, "nothing is trimmed that the archive does not have"
    return made


def _values(column: Any) -> list[Any]:
    values: list[Any] = column.to_pylist()
    return values


class At(Steps):
    """Does something when a step is reached for the n-th time."""

    def __init__(self, step: Step, act: Callable[[], object], time: int = 1) -> None:
        self._step = step
        self._act = act
        self._left = time
        self.seen: list[Step] = []

    def reached(self, step: Step) -> None:
        self.seen.append(step)
        if step is self._step:
            self._left -= 1
            if self._left == 0:
                self._act()


def trim(topic: Topic, glsn: int) -> None:
    with topic.log() as log:
        log.trim(glsn)


def no_spark() -> Any:
    raise AssertionError("there is nothing to do for Spark")
