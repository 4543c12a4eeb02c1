"""LogState: the LogStreamContext (B8) of a replica, moved forward by the records of its log.

Staging a record and replaying it at recovery go through the same four methods, so what is recovered is what was. Each
method checks that the record follows from the state before it changes anything; a record that does not follow is never
staged, and found in a file it means that the file is damaged.

What must always hold: committed_end <= end; version, hwm, local_hwm and epoch only grow; nothing below committed_end
is ever dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from varlog.errors import ConsistencyViolation
from varlog.storage.format import Context, Members
from varlog.types import FIRST_LLSN, GLSN, LLSN, CommitContext, Epoch, Version

EMPTY = Context(FIRST_LLSN, FIRST_LLSN, Version(0), GLSN(0), GLSN(0), Epoch(0), Members())
"""The context of a log stream nothing ever happened to."""


class State(Protocol):
    """The state of any log."""

    version: Version
    end: LLSN

    def context(self) -> Context:
        """What the head of a segment says of it."""


class LogState:
    """See the module's text."""

    __slots__ = ("committed_end", "end", "epoch", "hwm", "local_hwm", "members", "version")

    def __init__(self, context: Context) -> None:
        (
            self.committed_end,
            self.end,
            self.version,
            self.hwm,
            self.local_hwm,
            self.epoch,
            self.members,
        ) = context

    def context(self) -> Context:
        return Context(
            self.committed_end, self.end, self.version, self.hwm, self.local_hwm, self.epoch, self.members
        )  # fmt: skip

    def batch(self, llsn: LLSN, count: int, epoch: Epoch) -> None:
        if llsn != self.end or count <= 0:
            raise ConsistencyViolation(f"a batch of {count} at LLSN {llsn} does not follow the end {self.end}")
        self.end = LLSN(llsn + count)
        if epoch > self.epoch:
            self.epoch = epoch

    def batches(self, llsn: LLSN, counts: Sequence[int], epoch: Epoch) -> None:
        """The same of several that follow one another."""
        if llsn != self.end or min(counts) <= 0:
            raise ConsistencyViolation(f"batches of {counts} at LLSN {llsn} do not follow the end {self.end}")
        self.end = LLSN(llsn + sum(counts))
        if epoch > self.epoch:
            self.epoch = epoch

    def commit(self, cc: CommitContext) -> None:
        if cc.llsn_begin != self.committed_end or cc.count <= 0 or cc.version <= self.version:
            raise ConsistencyViolation(f"{cc} does not follow LLSN {self.committed_end}, version {self.version}")
        llsn_end, last = LLSN(cc.llsn_begin + cc.count), GLSN(cc.glsn_begin + cc.count - 1)
        if llsn_end > self.end:
            raise ConsistencyViolation(f"{cc} commits what is not stored: the end is {self.end}")
        if cc.glsn_begin <= self.local_hwm or cc.hwm < last or cc.hwm < self.hwm:
            raise ConsistencyViolation(f"{cc} goes back behind GLSN {self.local_hwm}, high watermark {self.hwm}")
        self.committed_end = llsn_end
        self.version = cc.version
        self.hwm = cc.hwm
        self.local_hwm = last

    def seal(self, epoch: Epoch, llsn_end: LLSN) -> None:
        if epoch < self.epoch or llsn_end < self.committed_end:
            raise ConsistencyViolation(
                f"a seal of epoch {epoch} at LLSN {llsn_end} goes back behind epoch {self.epoch}, LLSN "
                f"{self.committed_end}"
            )
        self.epoch = epoch
        self.end = min(self.end, llsn_end)

    def unseal(self, epoch: Epoch, members: Members) -> None:
        if epoch < self.epoch:
            raise ConsistencyViolation(f"an unseal of epoch {epoch} goes back behind epoch {self.epoch}")
        self.epoch = epoch
        self.members = members
