"""What is logged while a command runs, told on standard error.

Why a command fails is told once, by `varlog.cli.failures`: what the library logs on the way there is for applications
that want it, and no command says it. Told is what nobody else would say: what the parts of a cluster complain of that
runs in this process, and that a certificate or a secret will soon be of no use.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

import msgspec


@contextmanager
def telling(logger: str = "", *, json: bool) -> Iterator[None]:
    """Tell meanwhile of the warnings and errors of a logger, and of all below it: a line each, or an object."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setLevel(logging.WARNING)
    if json:
        handler.setFormatter(_Objects())
    told = logging.getLogger(logger)
    told.addHandler(handler)
    try:
        yield
    finally:
        told.removeHandler(handler)


class _Objects(logging.Formatter):
    """As the daemons log for machines."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "timestamp": datetime.fromtimestamp(record.created, UTC),
            "level": record.levelname.lower(),
            "event": super().format(record),
            "logger": record.name,
        }
        return msgspec.json.encode(line).decode()
