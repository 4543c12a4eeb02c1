"""A witness: sees every message between the processes of a run, and says what must never be seen.

Clients cannot notice all that goes wrong: what was filled without having been given out does no harm before somebody is
given that position, and a replica that answers in an epoch it has promised to leave does none before a reconfiguration
has counted without it. So the witness notes what sequencers have given out, which projections there were, and what
replicas have promised and stored, and holds every message against that.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence as Seq

from varlog import batch
from varlog.core.messages import (
    ChainSeal,
    ChainSealed,
    ChainWrite,
    ChainWritten,
    Granted,
    Message,
    Metadata,
    Next,
)
from varlog.core.projection import Projection
from varlog.sim.runner import Violation

_Replica = tuple[str, int]
"""A node's address, and a log stream."""


class Witness:
    """See the module's text."""

    def __init__(self) -> None:
        self.violations: list[Violation] = []
        self.projections: dict[int, Projection] = {}
        """By epoch."""
        self.granted = 0
        """The largest position given out in any epoch."""
        self._granted: defaultdict[int, int] = defaultdict(int)
        """The largest position given out, by epoch."""
        self._counts: dict[tuple[str, int], tuple[int, ...]] = {}
        """Of how many entries each the batches are that positions were asked for, by who asked and its number."""
        self._asked: dict[tuple[str, int], int] = {}
        """The epoch of a write, by who sent it and its number."""
        self._joining: set[tuple[str, int]] = set()
        """Seals of replicas that join, by who sent them and their numbers."""
        self._promised: defaultdict[_Replica, int] = defaultdict(int)
        """The greatest epoch that a replica has told that it is sealed in."""
        self._stored: defaultdict[_Replica, dict[int, int]] = defaultdict(dict)
        """Where what a replica was given to store ends, by epoch."""

    def alarm(self, checker: str, words: str) -> None:
        self.violations.append((checker, words))

    # What is sent

    def sent(self, source: str, address: str, message: Message) -> None:
        """Called for every message, when it is sent."""
        match message:
            case Next():
                self._counts[source, message.request] = message.counts
            case Granted() if message.code == 0:
                self._on_granted(address, message)
            case ChainWrite():
                self._on_write(source, message)
            case ChainWritten() if message.code == 0:
                self._on_written(source, address, message)
            case ChainSeal() if message.joins:
                self._joining.add((source, message.request))
            case ChainSealed() if message.code == 0:
                self._on_sealed(source, address, message)
            case Metadata():
                for topic in message.topics:
                    if topic.projection is not None:
                        self._on_projection(topic.projection)
            case _:
                pass

    def _on_granted(self, address: str, granted: Granted) -> None:
        counts = self._counts.get((address, granted.request))
        if counts is not None and len(counts) == len(granted.glsns):
            last = granted.glsns[-1] + counts[-1] - 1
            self._granted[granted.epoch] = max(self._granted[granted.epoch], last)
            self.granted = max(self.granted, last)

    def _on_projection(self, projection: Projection) -> None:
        known = self.projections.setdefault(projection.epoch, projection)
        if known != projection:
            self.alarm("one_projection", f"epoch {projection.epoch} has two projections: {known} and {projection}")

    def _on_write(self, source: str, write: ChainWrite) -> None:
        """Whatever is written was given out in that epoch, or lies below what is (rules 20, 21, S5)."""
        self._asked[source, write.request] = write.epoch
        projection = self.projections.get(write.epoch)
        if projection is None:
            self.alarm("given_out", f"{source} writes in epoch {write.epoch}, which has no projection")
            return
        last = max(projection.start - 1, self._granted[write.epoch])
        for glsn, content in zip(write.glsns, write.batches, strict=True):
            header = batch.peek_header(content)
            if glsn + header.count - 1 > last:
                what = "junk" if header.flags & batch.BatchFlag.JUNK else "a value"
                self.alarm(
                    "given_out",
                    f"{source} writes {what} at {glsn}-{glsn + header.count - 1} in epoch {write.epoch}, "
                    f"where only positions up to {last} were given out",
                )

    # What replicas promise

    def stored(self, node: str, lsid: int, epoch: int, ends: Seq[int]) -> None:
        """A replica was given batches to store, written in an epoch."""
        of_epoch = self._stored[node, lsid]
        of_epoch[epoch] = max(of_epoch.get(epoch, 0), *ends)

    def wiped(self, node: str, lsid: int, glsn: int) -> None:
        """A replica voided what it had at or beyond a position."""
        of_epoch = self._stored[node, lsid]
        for epoch in of_epoch:
            of_epoch[epoch] = min(of_epoch[epoch], glsn)

    def forgotten(self, node: str) -> None:
        """A node has lost its disk, and all that was stored there."""
        for replica in [replica for replica in self._stored if replica[0] == node]:
            self.removed(*replica)

    def removed(self, node: str, lsid: int) -> None:
        """A replica was deleted."""
        self._stored.pop((node, lsid), None)
        self._promised.pop((node, lsid), None)

    def _on_sealed(self, source: str, address: str, sealed: ChainSealed) -> None:
        """What a seal tells is all there is, and will be, of the epochs before it (S6); of one that joins, it tells
        nothing, since that is going to copy the tail."""
        replica = (source, sealed.lsid)
        self._promised[replica] = max(self._promised[replica], sealed.epoch)
        ends = [end for epoch, end in self._stored[replica].items() if epoch < sealed.epoch]
        if (address, sealed.request) not in self._joining and max(ends, default=0) > sealed.end:
            self.alarm(
                "sealed",
                f"{source} says that log stream {sealed.lsid}, sealed in epoch {sealed.epoch}, ends at {sealed.end}, "
                f"and was given something to store up to {max(ends)}",
            )

    def _on_written(self, source: str, address: str, written: ChainWritten) -> None:
        """Nobody is told that something was written in an epoch which the replica has promised to leave."""
        epoch = self._asked.get((address, written.request), 0)
        promised = self._promised[source, written.lsid]
        if epoch < promised:
            self.alarm(
                "sealed",
                f"{source} tells {address} of log stream {written.lsid} that it wrote something in epoch {epoch}, "
                f"after it was sealed in epoch {promised}",
            )
