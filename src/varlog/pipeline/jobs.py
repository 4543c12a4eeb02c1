"""What jobs have in common: one may follow a log until it is stopped, and each is also an application of its own.

Who follows a log has patience: a cluster that cannot be reached is tried again, and says so. A signal of a supervisor
lets what is under way be finished. Now and then what killed jobs have left is collected.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Final

from varlog import errors
from varlog.cli.output import Output

PAUSE_SECONDS: Final = 5.0
"""Before a cluster that cannot be reached is tried again."""
COLLECT_SECONDS: Final = 3600.0


class Silence(Output):
    """For callers who take the summary."""

    def write(self, data: bytes) -> None:
        """Nobody reads it."""


class Following:
    """A job that may follow a log; see the module's text."""

    def __init__(self, output: Output, *, follow: bool) -> None:
        self._output = output
        self._follow = follow
        self._stopped = threading.Event()
        self._begun = time.monotonic()
        self._collected = -COLLECT_SECONDS

    def stop(self) -> None:
        """Let it end after the batch that is under way."""
        self._stopped.set()

    @property
    def _seconds(self) -> float:
        """Since it began."""
        return round(time.monotonic() - self._begun, 3)

    def _is_patient_with(self, error: errors.VarlogError) -> bool:
        """Whoever follows a log waits for it to come back."""
        if not self._follow or not error.retriable:
            return False
        self._output.note(f"{type(error).__name__}: {error}; trying again in {PAUSE_SECONDS:g} s")
        return not self._stopped.wait(PAUSE_SECONDS)

    def _is_time_to_collect(self) -> bool:
        """Once in a while, and at the beginning."""
        if time.monotonic() - self._collected < COLLECT_SECONDS:
            return False
        self._collected = time.monotonic()
        return True


@contextlib.contextmanager
def ends_on_sigterm(job: Following) -> Iterator[None]:
    """A supervisor's way to stop a job that follows: the batch under way is finished."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda *_: job.stop())
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def submitted(name: str, argv: Sequence[str] | None) -> int:
    """What `spark-submit` calls: the same as `varlog pipeline NAME`."""
    from varlog.cli import main as command  # noqa: PLC0415  # the command line imports the jobs

    given = list(sys.argv[1:] if argv is None else argv)
    with contextlib.suppress(ValueError):
        given.remove("--")
    return command(["pipeline", name, *given])
