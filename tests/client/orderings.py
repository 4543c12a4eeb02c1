"""Topics of both orderings, for what is the same in both."""

from __future__ import annotations

from pathlib import Path

import varlog

ORDERINGS = ["commit", "sequencer"]


async def add_topics(path: Path) -> None:
    async with varlog.admin(path) as operator:
        for ordering in ORDERINGS:
            await operator.add_topic(ordering, streams=2, ordering=ordering)
