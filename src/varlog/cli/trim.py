"""`varlog trim`: forget the beginning of a log."""

from __future__ import annotations

from varlog.cli.options import USUAL_TOPIC, Position, Topic, Yes
from varlog.cli.output import confirmed


async def trim(glsn: Position, /, *, yes: Yes = False, at: Topic = USUAL_TOPIC) -> int:
    """Trim.

    Parameters
    ----------
    glsn
        The last position to delete.
    """
    output = at.output
    async with at.log() as log:
        if not yes and not await confirmed(f"Delete every entry of topic {log.name!r} up to GLSN {glsn}, for good?"):
            return 1
        trimmed = await log.trim(glsn, timeout=at.patience)
        output.record({"topic": log.name, "trimmed": trimmed, "first": trimmed + 1})
        output.line(f"topic {log.name!r} now begins at GLSN {trimmed + 1}")
    return 0
