"""The figures of the core: storage, metadata and simulator. `make bench` runs this."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import cut_1000
from harness import Row, report, scratch

MEASURES: list[Callable[[Path], list[Row]]] = [cut_1000.measure]


def main() -> int:
    rows: list[Row] = []
    for measure in MEASURES:
        with scratch() as directory:
            rows += measure(directory)
    return report("core", rows)


if __name__ == "__main__":
    sys.exit(main())
