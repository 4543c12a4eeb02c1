"""How the jobs show how far they are.

On a terminal a bar, on standard error; elsewhere a line now and then, for whoever reads the log of a job that runs by
itself; with `--json` nothing, because the results are what a script waits for.

    with shown(output, "archiving 'orders'", total) as show:
        show(done, "12 files")

`tasks_told` tells how many tasks of a Spark job are done while the job runs.
"""

from __future__ import annotations

import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from varlog.cli.output import Output, duration_of

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

LINE_SECONDS: Final = 10.0
"""Between two lines."""
LOOK_SECONDS: Final = 0.25
"""Between two looks at a Spark job."""

Show = Callable[[float, str], None]
"""Told how much is done, of the total, and what is being done."""


@contextmanager
def shown(output: Output, title: str, total: float) -> Iterator[Show]:
    """See the module's text."""
    if output.json or total <= 0:
        yield lambda _done, _text: None
    elif sys.stderr.isatty():
        with _bar(title, total) as show:
            yield show
    else:
        yield _Lines(output, title, total).show


@contextmanager
def _bar(title: str, total: float) -> Iterator[Show]:
    from rich.console import Console  # noqa: PLC0415  # takes a while to import, and is for terminals alone
    from rich.progress import (  # noqa: PLC0415
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(show_speed=True),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[text]}"),
    )
    with Progress(*columns, console=Console(stderr=True, highlight=False), transient=True) as progress:
        task = progress.add_task(title, total=total, text="")
        yield lambda done, text: progress.update(task, completed=done, text=text)


class _Lines:
    """The same where nobody watches."""

    def __init__(self, output: Output, title: str, total: float) -> None:
        self._output = output
        self._title = title
        self._total = total
        self._begun = self._said = time.monotonic()

    def show(self, done: float, text: str) -> None:
        now = time.monotonic()
        if now - self._said < LINE_SECONDS:
            return
        self._said = now
        share = min(1.0, done / self._total)
        left = f", {duration_of((now - self._begun) * (1 - share) / share)} left" if 0 < share < 1 else ""
        self._output.note(f"{self._title}: {share:.0%}{left}{f', {text}' if text else ''}")


@contextmanager
def tasks_told(spark: SparkSession, told: Callable[[int], None]) -> Iterator[None]:
    """Around an action of Spark in this thread: `told` is called, from another thread, with how many of its tasks are
    done."""
    context = spark.sparkContext
    group, ended = f"varlog-{uuid.uuid4().hex}", threading.Event()
    context.setJobGroup(group, context.appName or "varlog")
    watcher = threading.Thread(target=_watch, args=(context, group, told, ended), name="progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()
        context.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]  # takes it away


def _watch(context: SparkContext, group: str, told: Callable[[int], None], ended: threading.Event) -> None:
    tracker = context.statusTracker()
    last = 0
    while not ended.wait(LOOK_SECONDS):
        jobs = [job for number in tracker.getJobIdsForGroup(group) if (job := tracker.getJobInfo(number)) is not None]
        stages = [tracker.getStageInfo(number) for job in jobs for number in job.stageIds]
        done = sum(stage.numCompletedTasks for stage in stages if stage is not None)
        if done != last:
            last = done
            told(done)
