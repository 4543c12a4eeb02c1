"""`varlog sequencer`: sequencers, and what is done to topics that they order (S1, S5, S6)."""

from __future__ import annotations

from varlog.cli.looking import metadata_of
from varlog.cli.options import USUAL_CLUSTER, USUAL_TOPIC, Cluster, Position, Positive, Topic
from varlog.cli.output import Column

_COLUMNS = (Column("sequencer"), Column("topics"))


async def list_sequencer(*, at: Cluster = USUAL_CLUSTER) -> None:
    """List sequencers."""
    async with at.admin() as admin:
        metadata = await metadata_of(at, admin)
    rows = []
    for known in metadata.sequencers:
        named = [
            topic.name
            for topic in metadata.topics
            if topic.projection is not None
            and (topic.projection.sequencer, topic.projection.boot) == (known.address, known.boot)
        ]
        at.output.record({"sequencer": known.address, "topics": named})
        rows.append((known.address, ", ".join(named)))
    at.output.table(_COLUMNS, rows)


async def peek_sequencer(*, at: Topic = USUAL_TOPIC) -> None:
    """Show the last position given out."""
    async with at.log() as log:
        glsn = await log.peek(timeout=at.patience)
        at.output.record({"topic": log.name, "glsn": glsn})
        at.output.line(f"topic {log.name!r}: positions up to GLSN {glsn} were given out")


async def fill_sequencer(glsn: Position, /, *, count: Positive = 1, at: Topic = USUAL_TOPIC) -> None:
    """Fill positions.

    Parameters
    ----------
    glsn
        The first position to fill.
    count
        How many positions to fill.
    """
    async with at.log() as log:
        await log.fill(glsn, count, timeout=at.patience)
        at.output.record({"topic": log.name, "glsn": glsn, "count": count})
        what = f"GLSN {glsn}" if count == 1 else f"GLSN {glsn} to {glsn + count - 1}"
        at.output.line(f"topic {log.name!r}: {what} filled; readers pass over")


async def seal_sequencer(*, at: Topic = USUAL_TOPIC) -> None:
    """Begin the next epoch."""
    async with at.log() as log:
        epoch = await log.seal(timeout=at.patience)
        at.output.record({"topic": log.name, "epoch": epoch})
        at.output.line(f"topic {log.name!r}: epoch {epoch}")
