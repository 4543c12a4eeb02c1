"""What is wrong with a cluster, for people: since when, what the manager does about it, and what only a person can do.

`diagnose` looks at the same world as the manager's decisions (`manager`), with the same memory, and asks them what they
would do: so a finding repeats the very sentence that the manager acts on. It decides nothing and changes nothing.

Kinds are for scripts and do not change their meaning. Findings come in the order of their severity: what keeps entries
from being appended or leaves them with a single copy, then what is not as it should be and works all the same, then
what somebody has asked for or what passes by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from varlog import limits
from varlog.core.findings import Look, Severity, finding
from varlog.core.messages import Finding
from varlog.core.node_findings import findings_of_nodes
from varlog.core.steps import REPLACE_AFTER
from varlog.core.stream_findings import findings_of_streams
from varlog.core.world import HEARD_AFTER, Memory, World
from varlog.types import StreamStatus

_ORDER: Final = {severity.value: number for number, severity in enumerate(Severity)}


def diagnose(world: World, memory: Memory, replace_after: float = REPLACE_AFTER) -> tuple[Finding, ...]:
    """Everything that is not as it should be, the worst first. `memory` has observed this world already."""
    look = Look(world, memory, replace_after)
    found = [*_metadata_silent(world), *findings_of_nodes(look), *_empty_topics(world), *findings_of_streams(look)]
    found.sort(key=lambda one: _ORDER[one.severity])
    rest = len(found) - limits.MAX_FINDINGS
    if rest > 0:
        found[limits.MAX_FINDINGS :] = [finding("more", Severity.NOTE, "cluster", f"{rest} more findings are left out")]
    return tuple(found)


def _metadata_silent(world: World) -> Iterator[Finding]:
    silent = world.metadata_silent
    if silent >= HEARD_AFTER:
        yield finding(
            "metadata-silent",
            Severity.URGENT,
            "metadata repository",
            f"has not answered the manager for {silent:.1f} s: no entry gets a position, and nothing can be changed",
            seconds=silent,
            person="see that vmr runs, what its log says, and that its disk is not full",
        )


def _empty_topics(world: World) -> Iterator[Finding]:
    used = {stream.tpid for stream in world.metadata.streams if stream.status is not StreamStatus.ABORTED}
    for topic in world.metadata.topics:
        if topic.tpid not in used:
            yield finding(
                "topic-empty",
                Severity.URGENT,
                f"topic {topic.name!r}",
                "has no log stream, and takes no appends",
                person=f"varlog stream add --topic {topic.name}",
            )
