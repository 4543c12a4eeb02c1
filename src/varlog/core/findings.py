"""Findings: something that is not as it should be, told to people, and what is needed to tell it.

`Look` is what every finding is made of: the world the manager sees, since when it has been so, and the steps that the
manager takes in it. It is handed to `node_findings` and `stream_findings`; `diagnosing` puts theirs together.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from enum import StrEnum
from functools import cached_property
from itertools import count
from typing import Final

from varlog import limits
from varlog.core.manager import reconcile
from varlog.core.messages import Finding
from varlog.core.world import Memory, Sight, World
from varlog.types import LogStreamID, StorageNodeID, TopicID

_SENTENCES: Final = 4
_NODES: Final = re.compile(r"\bnodes? (\d+(?:, \d+)*)")


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
        self._said: dict[str, list[str]] = {}
        """The manager's sentences, by their subjects."""
        for step in reconcile(world, memory, count(1).__next__, replace_after=replace_after):
            self._said.setdefault(step.subject, []).append(step.sentence)

    def since(self, sight: Sight, *numbers: int) -> float | None:
        """For how long something has been so; None if it is not."""
        return self.memory.seconds(self.world.now, sight, *numbers)

    def doing(self, subject: str) -> str:
        """The manager's steps for a subject, in its own words."""
        return _few(sentence.partition(": ")[2] for sentence in self._said.get(subject, ()))

    def doing_for(self, lsids: Collection[LogStreamID]) -> str:
        """The manager's steps for some log streams."""
        return _few(sentence for lsid in lsids for sentence in self._said.get(f"log stream {lsid}", ()))

    def doing_about(self, snid: StorageNodeID) -> str:
        """The manager's steps that are for a node, or because of it."""
        return _few(self._mentions.get(snid, ()))

    @cached_property
    def _mentions(self) -> dict[int, list[str]]:
        """The manager's sentences, by the nodes they name."""
        mentions: dict[int, list[str]] = {}
        for sentence in (sentence for said in self._said.values() for sentence in said):
            for named in _NODES.findall(sentence):
                for snid in named.split(", "):
                    mentions.setdefault(int(snid), []).append(sentence)
        return mentions

    @cached_property
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

    @cached_property
    def lsids(self) -> frozenset[LogStreamID]:
        """The log streams that there are."""
        return frozenset(stream.lsid for stream in self.world.metadata.streams)

    @cached_property
    def open_topics(self) -> frozenset[TopicID]:
        """The topics that take appends on some log stream, or would if it were well."""
        return frozenset(
            stream.tpid for stream in self.world.metadata.streams if not stream.is_held and stream.replicas
        )

    @cached_property
    def sets(self) -> dict[StorageNodeID, list[LogStreamID]]:
        """The log streams that each node is in the set of."""
        sets: dict[StorageNodeID, list[LogStreamID]] = {snid: [] for snid in self.world.nodes}
        for stream in self.world.metadata.streams:
            for snid in stream.replicas:
                sets.setdefault(snid, []).append(stream.lsid)
        return sets


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
