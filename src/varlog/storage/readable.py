"""ReadableLog: what can be asked of a replica's log, from any thread, while it is written and trimmed.

Only what is committed is told, and only what is in the files: readers never meet the writer. `LogStreamStorage` is
built on this and moves its fields forward.

A trim may take files away from under a reader. What then looks like damage is looked at again, in the segments that are
left: a replica that is told to be damaged is thrown away.
"""

from __future__ import annotations

from collections.abc import Iterator

from varlog.errors import Corrupt, Trimmed
from varlog.storage import copying
from varlog.storage.copying import Copied, Fold
from varlog.storage.files import FileSystem, Lock
from varlog.storage.grouped import GroupedLog
from varlog.storage.options import StorageOptions
from varlog.storage.reader import LogReader, StoredBatch, committed_end
from varlog.storage.recovery import Recovered
from varlog.storage.segment import ActiveSegment, Segment
from varlog.types import FIRST_LLSN, GLSN, LLSN, CommitContext, LogStreamIdentity, Version


class ReadableLog(GroupedLog[ActiveSegment, Segment]):
    """See the module's text."""

    _layout = ActiveSegment

    def __init__(
        self, fs: FileSystem, path: str, identity: LogStreamIdentity, options: StorageOptions, lock: Lock
    ) -> None:
        super().__init__(fs, path, identity, options, lock)
        self._reader: LogReader = LogReader(fs, path, options.open_files)
        self._trim_llsn = FIRST_LLSN
        self._trim_glsn = GLSN(0)
        self._readable_end = FIRST_LLSN
        """What is stored below this is in the file."""
        self.recovered: Recovered

    def _segment_of(self, active: ActiveSegment) -> Segment:
        return active.segment

    def read(self, glsn_begin: GLSN, glsn_end: GLSN, max_bytes: int, *, verdicts: bool = False) -> list[StoredBatch]:
        """Committed batches that overlap [glsn_begin, glsn_end), ascending; at least one if there is one.

        A batch is whole also where the range cuts into it. `Trimmed` if `glsn_begin` is, `Corrupt` if what stands there
        is damaged. For who wants `verdicts` only, of others there may be nothing but their positions."""
        while True:
            segments = self._segments
            if glsn_begin <= self._trim_glsn:
                raise Trimmed(self._trim_glsn + 1)
            try:
                begin = self._reader.llsn_after(segments, GLSN(glsn_begin - 1))
                end = self._reader.llsn_after(segments, GLSN(glsn_end - 1))
                return self._read(segments, begin, end, max_bytes, verdicts=verdicts)
            except Corrupt:
                if segments is self._segments:
                    raise

    def read_llsn(self, llsn_begin: LLSN, llsn_end: LLSN, max_bytes: int) -> list[StoredBatch]:
        """Committed batches that overlap [llsn_begin, llsn_end), as `read`."""
        while True:
            segments = self._segments
            if llsn_begin < self._trim_llsn:
                raise Trimmed(self._trim_glsn + 1)
            try:
                return self._read(segments, llsn_begin, min(llsn_end, committed_end(segments)), max_bytes)
            except Corrupt:
                if segments is self._segments:
                    raise

    def llsn_after(self, glsn: GLSN) -> LLSN:
        """The LLSN of the first committed entry whose GLSN is greater, or the committed end."""
        segments = self._segments
        return self._reader.llsn_after(segments, max(glsn, self._trim_glsn))

    def commit_contexts(self, after_version: Version) -> Iterator[CommitContext]:
        """The stored commit contexts with a greater version, ascending; those of trimmed segments are gone."""
        while True:
            segments = self._segments
            try:
                for context in self._reader.commits_after_version(segments, after_version):
                    after_version = context.version
                    yield context
                break
            except Corrupt:
                if segments is self._segments:
                    raise
        if self.corruption is not None:
            raise self.corruption

    def copy_from(self, llsn_begin: LLSN, after: Version, max_bytes: int, fold: Fold) -> Copied:
        """What is committed from `llsn_begin` on, for another replica: batches, at least one if there is one, and the
        commit contexts after version `after` that end within them. Or, if the log begins later than that, what to begin
        with instead; `fold` makes a deduplication table of what the files have of it."""
        while True:
            segments = self._segments
            try:
                first = copying.first_llsn(self._reader, segments, self._trim_llsn)
                if llsn_begin < first:
                    trimmed = (self._trim_llsn, self._trim_glsn)
                    return copying.base_part(self._fs, self._path, segments, first, trimmed, fold)
                end = min(committed_end(segments), self._readable_end)
                if self.corruption is not None and llsn_begin >= end:
                    raise self.corruption
                return copying.part(self._reader, segments, llsn_begin, end, after, max_bytes)
            except Corrupt:
                if segments is self._segments:
                    raise

    def _read(
        self,
        segments: tuple[Segment, ...],
        llsn_begin: LLSN,
        llsn_end: LLSN,
        max_bytes: int,
        *,
        verdicts: bool = False,
    ) -> list[StoredBatch]:
        llsn_end = min(llsn_end, self._readable_end)
        if llsn_begin >= llsn_end:
            if self.corruption is not None and llsn_begin >= committed_end(segments):
                raise self.corruption
            return []
        read = self._reader.read_verdicts if verdicts else self._reader.read_committed
        return read(segments, llsn_begin, llsn_end, max_bytes)
