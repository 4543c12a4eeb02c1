"""LogReader: reading what is committed, from any thread.

A look-up is a bisection over the segments, one in the segment's index, and one read of the file. Consecutive batches
are read together, up to `limits.READ_CHUNK_BYTES` at a time. Every frame that is read is verified: its header against
its place and against the index, its body against its checksum. Files and indexes are kept at hand by `residents`.

What must always hold: what is committed is returned as it was written, or `Corrupt` is raised; a position is answered
with "not there" only if it is not committed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, Final, NamedTuple

from varlog import limits
from varlog.errors import Corrupt
from varlog.storage import format as fmt
from varlog.storage.files import File, FileSystem
from varlog.storage.format import FrameHeader, FrameKind
from varlog.storage.index import SegmentIndex
from varlog.storage.residents import OpenFiles, Residents
from varlog.storage.segment import Segment, SegmentFile
from varlog.types import FIRST_LLSN, GLSN, LLSN, CommitContext, Epoch, Version

Segments = tuple[Segment, ...]

_BATCH: Final = int(FrameKind.BATCH)
_NO_EPOCH: Final = Epoch(0)
_NOT_READ: Final = memoryview(b"")


class StoredBatch(NamedTuple):
    """A committed batch and what is known of it."""

    glsn: GLSN
    """Of its first entry."""
    llsn: LLSN
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody misses here
    epoch: Epoch
    version: Version
    """Of the cut that committed it."""
    time: int
    """Of that cut."""
    batch: memoryview


class StoredFrame(NamedTuple):
    """A batch as it stands in its segment."""

    header: FrameHeader
    batch: memoryview


class LogReader(Residents[SegmentIndex]):
    """See the module's text."""

    def __init__(self, fs: FileSystem, directory: str, open_files: OpenFiles) -> None:
        super().__init__(fs, directory, open_files, SegmentIndex.decode)

    # What is committed

    def read_committed(self, segments: Segments, llsn_begin: LLSN, llsn_end: LLSN, max_bytes: int) -> list[StoredBatch]:
        """Batches that overlap [llsn_begin, llsn_end), which is committed; at least one, about `max_bytes` in all."""
        commits = self.commits_from_llsn(segments, llsn_begin)
        cc = _next(commits, segments)
        found: list[StoredBatch] = []
        for header, batch in self.read(segments, llsn_begin, llsn_end, max_bytes):
            llsn = header.llsn
            while llsn >= cc.llsn_end:
                cc = _next(commits, segments)
            glsn = GLSN(llsn - cc.llsn_begin + cc.glsn_begin)
            found.append(StoredBatch(glsn, llsn, header.count, header.epoch, cc.version, cc.time, batch))
        return found

    def read_verdicts(self, segments: Segments, llsn_begin: LLSN, llsn_end: LLSN, max_bytes: int) -> list[StoredBatch]:
        """The same, for who looks for verdicts: in place of batches that have several entries, and so are none, there
        may be one without its bytes that covers all their positions. They are not read."""
        commits = self.commits_from_llsn(segments, llsn_begin)
        cc = _next(commits, segments)
        found: list[StoredBatch] = []
        for begin, end, frame in self._singles(segments, llsn_begin, llsn_end, max_bytes):
            epoch, batch = (frame.header.epoch, frame.batch) if frame is not None else (_NO_EPOCH, _NOT_READ)
            llsn = begin
            while llsn < end:
                while llsn >= cc.llsn_end:
                    cc = _next(commits, segments)
                upto = LLSN(min(end, cc.llsn_end))
                glsn = GLSN(llsn - cc.llsn_begin + cc.glsn_begin)
                found.append(StoredBatch(glsn, llsn, upto - llsn, epoch, cc.version, cc.time, batch))
                llsn = upto
        return found

    def llsn_after(self, segments: Segments, glsn: GLSN) -> LLSN:
        """The LLSN of the first committed entry whose GLSN is greater, or the committed end."""
        if not segments or glsn + 1 >= segments[-1].glsn_end:
            return committed_end(segments)
        cc = _next(self.commits_from_glsn(segments, GLSN(glsn + 1)), segments)
        return LLSN(cc.llsn_begin + max(0, glsn + 1 - cc.glsn_begin))

    # Batches

    def read(self, segments: Segments, llsn_begin: LLSN, llsn_end: LLSN, max_bytes: int) -> Iterator[StoredFrame]:
        """Batches that overlap [llsn_begin, llsn_end), which is stored; at least one, about `max_bytes` in all."""
        llsn = llsn_begin
        while llsn < llsn_end:
            at = bisect_right(segments, llsn, key=_end)
            if at == len(segments):
                raise _not_covered(segments[-1], llsn)
            segment = segments[at]
            with self.borrow(segment) as resident:
                index = self.index(segment)
                number = index.find(llsn)
                end = min(llsn_end, segment.end)
                while llsn < end:
                    if not 0 <= number < len(index):
                        raise _not_covered(segment, llsn)
                    run = index.run(number, end, min(limits.READ_CHUNK_BYTES, max_bytes))
                    for frame in read_run(resident.file, segment, run):
                        if not frame.header.llsn <= llsn < frame.header.llsn + frame.header.count:
                            raise _not_covered(segment, llsn)
                        llsn = LLSN(frame.header.llsn + frame.header.count)
                        max_bytes -= len(frame.batch)
                        yield frame
                    if max_bytes <= 0:
                        return
                    number += len(run)

    def _singles(
        self, segments: Segments, llsn_begin: LLSN, llsn_end: LLSN, max_bytes: int
    ) -> Iterator[tuple[LLSN, LLSN, StoredFrame | None]]:
        """What overlaps [llsn_begin, llsn_end), in order, as far as one read goes: batches of one entry with their
        frames, and runs of others without."""
        llsn, left = llsn_begin, limits.VERDICTS_LOOK
        while llsn < llsn_end and left > 0 and max_bytes > 0:
            at = bisect_right(segments, llsn, key=_end)
            if at == len(segments):
                raise _not_covered(segments[-1], llsn)
            segment = segments[at]
            with self.borrow(segment) as resident:
                index = self.index(segment)
                number = index.find(llsn)
                batches = index.batches(max(0, number), min(llsn_end, segment.end), left) if number >= 0 else []
                if not batches:
                    raise _not_covered(segment, llsn)
                left -= len(batches)
                for begin, end, run in _sparse_runs(batches):
                    if not run:
                        yield LLSN(begin), LLSN(end), None
                        llsn = LLSN(end)
                        continue
                    for frame in read_run(resident.file, segment, run):
                        if not frame.header.llsn <= llsn < frame.header.llsn + frame.header.count:
                            raise _not_covered(segment, llsn)
                        llsn = LLSN(frame.header.llsn + frame.header.count)
                        max_bytes -= len(frame.batch)
                        yield frame.header.llsn, llsn, frame
                    if max_bytes <= 0:
                        return

    # Commits

    def commits_from_llsn(self, segments: Segments, llsn: LLSN) -> Iterator[CommitContext]:
        """The commits from the one that commits `llsn` on."""
        at = bisect_right(segments, llsn, key=_committed_end)
        return self._commits(segments, at, lambda index: index.commit_of_llsn(llsn))

    def commits_from_glsn(self, segments: Segments, glsn: GLSN) -> Iterator[CommitContext]:
        """The commits from the first one that ends above `glsn` on."""
        at = bisect_right(segments, glsn, key=_glsn_end)
        for cc in self._commits(segments, at, lambda index: index.commit_of_glsn(glsn)):
            if cc.glsn_end > glsn:
                yield cc

    def commits_after_version(self, segments: Segments, version: Version) -> Iterator[CommitContext]:
        at = bisect_right(segments, version, key=_version)
        for cc in self._commits(segments, at, lambda index: index.commit_of_version(version)):
            if cc.version > version:
                yield cc

    def _commits(
        self, segments: Segments, at: int, find: Callable[[SegmentIndex], int]
    ) -> Iterator[CommitContext]:  # fmt: skip
        for segment in segments[at:]:
            index = self.index(segment)
            for number in range(max(0, find(index)), index.commits):
                yield index.commit(number)


def _sparse_runs(batches: list[tuple[int, int, int]]) -> Iterator[tuple[int, int, list[tuple[int, int, int]]]]:
    """Consecutive batches as runs [begin, end) of such as need not be read, because they have several entries; and such
    as must be, which are as many as are read at once. The last one is among these: the next one tells how many entries
    a batch has, and it has none."""
    begin = batches[0][0]
    run: list[tuple[int, int, int]] = []
    for one, following in pairwise(batches):
        if following[0] - one[0] > 1:
            if run:
                yield begin, one[0], run
                begin, run = one[0], []
            continue
        if not run and begin < one[0]:
            yield begin, one[0], []
        elif run and one[1] + one[2] - run[0][1] > limits.READ_CHUNK_BYTES:
            yield begin, one[0], run
            run = []
        if not run:
            begin = one[0]
        run.append(one)
    last = batches[-1]
    if run:
        yield begin, last[0], run
    elif begin < last[0]:
        yield begin, last[0], []
    yield last[0], last[0], [last]


def committed_end(segments: Segments) -> LLSN:
    """Where what is committed ends, as readers may know it: what lies below is in the index."""
    return segments[-1].committed_end if segments else FIRST_LLSN


def _next(commits: Iterator[CommitContext], segments: Segments) -> CommitContext:
    cc = next(commits, None)
    if cc is None:
        raise Corrupt("a commit context is missing", segment=segments[-1].name, offset=segments[-1].index_offset)
    return cc


def _end(segment: Segment) -> LLSN:
    return segment.end


def _committed_end(segment: Segment) -> LLSN:
    return segment.committed_end


def _glsn_end(segment: Segment) -> GLSN:
    return segment.glsn_end


def _version(segment: Segment) -> Version:
    return segment.version


def read_run(file: File, segment: SegmentFile[Any], run: list[tuple[int, int, int]]) -> Iterator[StoredFrame]:
    """The frames at (LLSN, offset, size), in the order of their offsets, which lie close together."""
    begin = run[0][1]
    try:
        view = memoryview(file.pread(run[-1][1] + run[-1][2] - begin, begin))
    except OSError as e:
        raise Corrupt(f"unreadable bytes ({e})", segment=segment.name, offset=begin) from e
    for llsn, offset, size in run:
        at = offset - begin
        header = fmt.decode_frame_header(view, at, offset)
        if (
            header is None
            or header.nonce != segment.nonce
            or header.kind != _BATCH
            or header.llsn != llsn
            or header.length + fmt.FRAME_HEADER_BYTES != size
        ):
            raise Corrupt("a damaged frame header", segment=segment.name, offset=offset)
        batch = view[at + fmt.FRAME_HEADER_BYTES : at + size]
        if not fmt.is_body_whole(header, batch):
            raise Corrupt("a damaged batch", segment=segment.name, offset=offset)
        yield StoredFrame(header, batch)


def _not_covered(segment: Segment, llsn: LLSN) -> Corrupt:
    return Corrupt(f"an index without LLSN {llsn}", segment=segment.name, offset=segment.index_offset)
