"""What a process that Spark runs our code in is told about its memory, and about its log.

Spark's Python workers look through all objects for garbage after every task, and after every query that is planned:
with all that was imported this takes longer than a small task does. So what is there at the beginning of the first task
and at that of the second, when Spark has just collected what was garbage of the first, is taken for permanent.

Standard error of such a process is the log of the driver or of the executor, and no application sets up logging there.
So warnings go where Python lets them go by itself, and the library does not keep them quiet.
"""

from __future__ import annotations

import gc
import logging
import sys
from itertools import count
from typing import Final

from varlog import memory

_FREEZES: Final = 2

_tasks: Final = count()


def is_worker() -> bool:
    """Whether this is a process that Spark runs tasks in."""
    if "pyspark" not in sys.modules:
        return False
    from pyspark import SparkFiles  # noqa: PLC0415

    return SparkFiles._is_running_on_worker


def settle() -> None:
    """To be called at the beginning of a task."""
    if not is_worker():
        return
    number = next(_tasks)
    if number == 0:
        memory.keep()
    if number < _FREEZES:
        gc.freeze()


def speak_up() -> None:
    """To be called before anything is told: let warnings reach the log of the executor."""
    if is_worker():
        logger = logging.getLogger("varlog")
        for handler in [known for known in logger.handlers if isinstance(known, logging.NullHandler)]:
            logger.removeHandler(handler)
