"""What a replica of a chain asks of its storage: a log that is written once at each position, in any order.

`varlog.storage` implements it; the core knows it only by this interface. The log is made of the same segments, frames
and groups as any other. A batch's frame carries its position where others carry the LLSN, and the sequencer's time
where others carry a writer's previous sequence. A promise of an epoch is a SEAL frame; one that also wipes names the
position from which on everything before it in the files is void (rule 22), any other one a position beyond all.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import NamedTuple, Protocol

from varlog.batch import BatchHeader
from varlog.types import GLSN, Epoch


class Held(NamedTuple):
    """A batch that is there."""

    glsn: GLSN
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody misses here
    time: int
    check: int
    """Its own checksum."""


class WriteOnceLog(Protocol):
    """Where a replica of a chain stages its records. Staging is memory only; the order of the calls is the order on
    disk. What is staged counts as there at once for `held`, and is durable when its group is finished."""

    @property
    def synced(self) -> bool:
        """Whether what is told to be durable is synced; False for a node that was told not to."""

    @property
    def epoch(self) -> Epoch:
        """The greatest one promised, staged or recovered."""

    @property
    def end(self) -> GLSN:
        """Nothing is there at or beyond this position."""

    @property
    def time(self) -> int:
        """The greatest one of all that is, or was, there."""

    @property
    def trim(self) -> GLSN:
        """Positions up to this one are trimmed."""

    @property
    def staged(self) -> int:
        """How many records were staged since it was opened."""

    @property
    def durable(self) -> int:
        """How many of them are durable."""

    def held(self, glsn: GLSN, end: GLSN) -> Held | None:
        """The first batch that has a position in [glsn, end), staged or durable. Of old positions it may have to read
        an index from disk."""

    def digest(self, glsn: GLSN, most: int) -> Seq[Held]:
        """The batches that end beyond a position, in order, at most so many."""

    def runs(self, glsn: GLSN, most: int) -> tuple[Seq[tuple[int, int]], GLSN]:
        """The positions that are written, as runs [begin, end) that end beyond a position, in order, at most so many;
        and the position below which all are told: the end, if none was left out."""

    def stage_writes(
        self,
        epoch: Epoch,
        glsns: Seq[int],
        times: Seq[int],
        batches: Seq[bytes | memoryview],
        headers: Seq[BatchHeader],
    ) -> None:
        """Batches at positions where nothing is, in any order. A batch may begin in what is trimmed, if it ends beyond
        it."""

    def stage_epoch(self, epoch: Epoch, wipe: GLSN | None = None) -> None:
        """Promise an epoch, and void what was written at or beyond `wipe`, if given."""

    def stage_trim(self, glsn: GLSN) -> None:
        """Everything up to a position may go."""
