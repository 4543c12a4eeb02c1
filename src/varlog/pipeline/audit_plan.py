"""What an audit reads: which positions of which copies, and what can be said before anything was read.

The topic is audited from its first position to the tail at the beginning, so that appends may go on meanwhile. Where a
sequencer orders it, that is up to where it was written without a hole, and every replica of a chain has all of that.

Positions are cut into slices, at multiples of `SLICE` and wherever a copy, or a file of the archive, begins or ends, so
that a copy either has to do with a whole slice or not at all. One task reads one slice of one replica, or one file of
the archive.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import NamedTuple

from varlog.core.messages import Info, Metadata, StreamInfo, TopicInfo
from varlog.core.verifying import Copy, Verification
from varlog.core.verifying import Finding as CopyFinding
from varlog.pipeline.audit_archive import ArchiveFile
from varlog.pipeline.audit_findings import ARCHIVE, Fault, Finding
from varlog.pipeline.audit_replica import ReplicaSlice
from varlog.pipeline.audit_rows import SLICE
from varlog.types import Ordering, StreamStatus

Part = ReplicaSlice | ArchiveFile


class DataFile(NamedTuple):
    """A file of the archive, as its manifest has it."""

    path: str
    begin: int
    end: int
    rows: int
    size: int


class Manifest(NamedTuple):
    """What an archive says it holds."""

    uri: str
    files: tuple[DataFile, ...]
    """Ascending."""
    broken: str = ""
    """Why nothing can be made of it."""

    @property
    def begin(self) -> int:
        return self.files[0].begin if self.files else 0

    @property
    def end(self) -> int:
        return max((file.end for file in self.files), default=0)


class Plan:
    """See the module's text. `infos` holds the nodes that answered, `silent` why the others did not."""

    def __init__(
        self,
        metadata: Metadata,
        topic: TopicInfo,
        infos: Mapping[int, Info],
        silent: Mapping[int, str],
        archive: Manifest | None,
        slice_positions: int = SLICE,
    ) -> None:
        self.topic = topic
        self.archive = archive
        self.begin = topic.trim + 1
        self.end = topic.hwm + 1
        self.is_chained = topic.ordering is Ordering.SEQUENCER
        self.copies = Verification(metadata, topic, infos, silent).copies
        if self.is_chained:
            self.copies = list(self._of_chains())
        lsids = {copy.lsid for copy in self.copies}
        self.streams = {
            stream.lsid: stream
            for stream in metadata.streams
            if stream.tpid == topic.tpid
            and (stream.lsid in lsids or (stream.status is not StreamStatus.ABORTED and not self.is_chained))
        }
        self.lost = [(s.lost_begin, s.lost_end) for s in self.streams.values() if s.lost_end > s.lost_begin]
        self.findings: list[Finding] = []
        """What is wrong before anything was read."""
        self._cuts = self._cut()
        self.slices = self._slices(slice_positions)
        self._judge_copies(infos)
        if archive is not None:
            self._judge_manifest(archive)
        self.parts = self._parts()

    def end_of(self, lsid: int) -> int:
        """Where what a log stream should have ends."""
        return self.end if self.is_chained else end_of(self.streams[lsid])  # type: ignore[index]

    def _of_chains(self) -> Iterator[Copy]:
        """The members of the chains; whoever is on its way to be one serves nobody."""
        projection = self.topic.projection
        chained = {chain.lsid for chain in projection.chains} if projection is not None else set()
        for copy in self.copies:
            if copy.is_member and copy.lsid in chained:
                copy.end = self.end
                yield copy

    def _cut(self) -> list[int]:
        """Where copies begin or end; all of them are cut there."""
        files = self.archive.files if self.archive is not None else ()
        short = {copy.end for copy in self.copies if copy.finding is None and copy.end < self.end_of(copy.lsid)}
        bounds = [(file.begin, file.end) for file in files] + self.lost
        return sorted({self.begin, self.end, *short, *(at for bound in bounds for at in bound)})

    def _slices(self, most: int) -> list[tuple[int, int]]:
        if self.begin >= self.end:
            return []
        grid = range(self.begin - self.begin % most + most, self.end, most)
        return list(pairwise(sorted({*grid, *(at for at in self._cuts if self.begin <= at <= self.end)})))

    def _parts(self) -> list[Part]:
        """Neighbours are of different nodes, so that tasks side by side do not all ask the same one."""
        asked = [copy for copy in self.copies if copy.finding is None]
        parts: list[Part] = [
            ReplicaSlice(copy.snid, copy.lsid, begin, end, min(end, copy.end), self.end, self.is_chained)
            for begin, end in self.slices
            for copy in asked
            if begin < copy.end
        ]
        if self.archive is not None:
            lsids = tuple(sorted(self.streams))
            for file in self.archive.files:
                cuts = tuple(cut for cut in self._cuts if file.begin < cut < file.end)
                slices = tuple(begin for begin, end in self.slices if begin < file.end and end > file.begin)
                parts.append(ArchiveFile(self.archive.uri, *file, cuts, slices, lsids))
        return parts

    # What is known already

    def _judge_copies(self, infos: Mapping[int, Info]) -> None:
        for copy in self.copies:
            end = self.end_of(copy.lsid)
            if copy.finding is None:
                if copy.is_member and copy.end < end:
                    self._judge_short(copy, infos, end)
            elif copy.finding is CopyFinding.DAMAGED:
                self._find(copy, Fault.DAMAGED, self.begin, end, copy.detail)
            elif copy.is_member:
                self._find(copy, Fault.UNREAD, self.begin, end, copy.detail)

    def _judge_short(self, copy: Copy, infos: Mapping[int, Info], end: int) -> None:
        """A member has everything that was committed on its disk, or has lost it. That it was not told of a commit yet
        is no fault, but what is not committed there cannot be read there."""
        llsn_end = self.streams[copy.lsid].llsn_end
        durable = next(r.durable_end for r in infos[copy.snid].replicas if r.lsid == copy.lsid)
        if durable < llsn_end:
            said = f"it ends at LLSN {durable - 1}; its log stream has {llsn_end - durable} entries more"
            self._find(copy, Fault.SHORT, copy.end, end, said)
        else:
            self._find(copy, Fault.UNREAD, copy.end, end, "it has not been told of the last commits")

    def _find(self, copy: Copy, fault: Fault, begin: int, end: int, detail: str) -> None:
        self.findings.append(Finding(begin, end, copy.lsid, copy.snid, fault, detail))

    def _judge_manifest(self, archive: Manifest) -> None:
        """Files follow each other, up to where the log goes on at the latest."""
        found = self.findings
        if archive.broken:
            found.append(Finding(0, 0, 0, ARCHIVE, Fault.DAMAGED, archive.broken))
        for before, after in pairwise(archive.files):
            if after.begin > before.end:
                said = f"no file between {before.path} and {after.path}"
                found.append(Finding(before.end, after.begin, 0, ARCHIVE, Fault.GAP, said))
            elif after.begin < before.end:
                said = f"{before.path} and {after.path} overlap"
                found.append(Finding(after.begin, min(before.end, after.end), 0, ARCHIVE, Fault.DUPLICATED, said))
        if archive.files and archive.end < self.begin:
            said = "it ends here, and the log was trimmed beyond: nobody has these positions"
            found.append(Finding(archive.end, self.begin, 0, ARCHIVE, Fault.GAP, said))
        if archive.end > self.end:
            said = f"the log ends at GLSN {self.end - 1}"
            found.append(Finding(max(self.end, archive.begin), archive.end, 0, ARCHIVE, Fault.EXTRA, said))


def end_of(stream: StreamInfo) -> int:
    """Where what a log stream should have ends."""
    return stream.lost_begin if stream.lost_end > stream.lost_begin else stream.last_glsn + 1
