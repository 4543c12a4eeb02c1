"""Findings: something that is not as it should be, told to people, and what is needed to tell it.

`Look` is what every finding is made of: the world the manager sees, since when it has been so, and the steps that the
manager takes in it. It is handed to `node_findings` and `stream_findings`; `diagnosing` puts theirs together.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from enum import StrEnum
from itertools import count
from typing import Final

from varlog import limits
from varlog.core.manager import reconcile
from varlog.core.messages import Finding
from varlog.core.world import Memory, Sight, World
from varlog.types import LogStreamID, StorageNodeID

_SENTENCES: Final = 4


class Severity(StrEnum):
    """How bad a finding is."""

    URGENT = "urgent"
    """Entries cannot be appended, or have only one copy left."""
    DEGRADED = "degraded"
    """All goes on, with less than there should be."""
    NOTE = "note"
    """Somebody has asked for it, or it passes by itself."""


class Look:
    """See the module's text."""

    def __init__(self, world: World, memory: Memory, replace_after: float) -> None:
        self.world = world
        self.memory = memory
        self._steps = reconcile(world, memory, count(1).__next__, replace_after=replace_after)

    def since(self, sight: Sight, *numbers: int) -> float | None:
        """For how long something has been so; None if it is not."""
        return self.memory.seconds(self.world.now, sight, *numbers)

    def doing(self, subject: str) -> str:
        """The manager's steps for a subject, in its own words."""
        return _few(step.sentence.partition(": ")[2] for step in self._steps if step.subject == subject)

    def doing_for(self, lsids: Collection[LogStreamID]) -> str:
        """The manager's steps for some log streams."""
        subjects = {f"log stream {lsid}" for lsid in lsids}
        return _few(step.sentence for step in self._steps if step.subject in subjects)

    def doing_about(self, snid: StorageNodeID) -> str:
        """The manager's steps that are for a node, or because of it."""
        mention = re.compile(rf"\bnodes? (?:\d+, )*{snid}\b")
        return _few(step.sentence for step in self._steps if mention.search(step.sentence))

    def able(self) -> list[StorageNodeID]:
        """The nodes that can have replicas, as far as is known."""
        return [
            snid
            for snid, view in self.world.views.items()
            if view.info is not None
            and not view.is_dead
            and not self.world.nodes[snid].is_draining
            and (view.info.is_identified or not self.world.nodes[snid].generation)
        ]

    def sets_with(self, snid: StorageNodeID) -> list[LogStreamID]:
        """The log streams that a node is in the set of."""
        return [stream.lsid for stream in self.world.metadata.streams if snid in stream.replicas]


def finding(
    kind: str,
    severity: Severity,
    subject: str,
    what: str,
    *,
    seconds: float | None = None,
    doing: str = "",
    person: str = "",
) -> Finding:
    """What is wrong with a subject; see `messages.Finding`."""
    return Finding(kind, severity, subject, what, round(seconds or 0.0, 1), doing, person)


def _few(sentences: Iterable[str]) -> str:
    """Some sentences in one; of very many the first."""
    said = list(dict.fromkeys(sentences))
    rest = len(said) - _SENTENCES
    told = "; ".join(said[:_SENTENCES])
    return (f"{told}; and {rest} more like that" if rest > 0 else told)[: limits.MAX_DETAIL]


def listed(lsids: list[LogStreamID]) -> str:
    """Log streams in a sentence: "log stream 1", "log streams 1, 2"."""
    few = ", ".join(map(str, lsids[:8])) + (", ..." if len(lsids) > 8 else "")
    return f"log stream{'s' if len(lsids) > 1 else ''} {few}"
