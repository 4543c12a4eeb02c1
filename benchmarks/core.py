"""The figures of the core: storage, metadata and simulator. `make bench` runs this."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks import cut_1000, open_1gb, sim_rate, storage_append, storage_scan
from benchmarks.harness import Row, options, report, scratch

MEASURES: list[Callable[[Path], list[Row]]] = [
    storage_append.measure,
    storage_scan.measure,
    open_1gb.measure,
    cut_1000.measure,
    sim_rate.measure,
]


def main() -> int:
    options(__doc__).parse_args()
    rows: list[Row] = []
    for measure in MEASURES:
        with scratch() as directory:
            rows += measure(directory)
    return report("core", rows)


if __name__ == "__main__":
    sys.exit(main())
