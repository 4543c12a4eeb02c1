"""Following: which metadata repository leads, for whoever is connected to several of them.

Every metadata repository says to those who are connected to it whether it leads, and in which term (`Leading`,
`NotLeading`). The one to speak to is the connected one that says it leads, unless another that is connected says that
there is a later term: then it has been deposed and does not know yet, because it was paused or is cut off from the
store. To follow the wrong one is harmless, as it can decide nothing, and says how far what it tells reaches (`Cuts`).
It only takes time, and not for long: one that the store does not answer resigns.

Nothing is remembered of those who are not connected any more. Metadata that was restored from an old backup may begin
with an earlier term, and whoever has seen more than it holds must find out and stop (rule 5).

A new leader counts as a reconnection, and so does the same one in a new term: nothing is assumed known there.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

from varlog.core.messages import Leading, NotLeading
from varlog.types import Term

K = TypeVar("K", bound=Hashable)


class Following(Generic[K]):
    """See the module's text. `K` is whatever a connection to a metadata repository is known by."""

    def __init__(self) -> None:
        self._said: dict[K, Leading | NotLeading] = {}
        self.leader: K | None = None
        self.term = Term(0)
        """Of the leader; 0 if there is none."""

    def on_said(self, who: K, said: Leading | NotLeading) -> bool:
        """A connected one says whether it leads. True if there is another leader now, a new term of the same, or
        none any more."""
        self._said[who] = said
        return self._choose()

    def on_closed(self, who: K) -> bool:
        """A connection has ended. True as above."""
        self._said.pop(who, None)
        return self._choose()

    def known_elsewhere(self) -> str:
        """Where the leader is that is not connected, as others tell; empty if nobody tells."""
        if self.leader is not None:
            return ""
        latest = max(self._said.values(), key=lambda said: said.term, default=None)
        return latest.address if isinstance(latest, NotLeading) else ""

    def _choose(self) -> bool:
        before = self.leader, self.term
        self.leader, self.term = None, Term(0)
        latest = max((said.term for said in self._said.values()), default=Term(0))
        for who, said in self._said.items():
            if isinstance(said, Leading) and said.term == latest:
                self.leader, self.term = who, said.term
        return (self.leader, self.term) != before
