"""SegmentIndex: where in one segment a batch lies, and which GLSNs its commits gave.

Sorted arrays: the LLSNs of the batches that live, where their frames begin and how long they are, and the commit
contexts, `COMMIT_FIELDS` numbers each. Within one commit GLSN - LLSN is constant, so the commits are the GLSN index.

The owner's thread adds while other threads look up, without a lock. That is safe because a reader asks only for what
was committed before, which is never taken out again: `drop_from` replaces the arrays instead of cutting them, and a
commit that is half appended is not counted.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from typing import Final

from varlog.storage import format as fmt
from varlog.storage.files import Buffer
from varlog.types import GLSN, LLSN, CommitContext, Epoch, Version

_VERSION: Final = 0
_LLSN_BEGIN: Final = 4
_GLSN_BEGIN: Final = 5


class SegmentIndex:
    """See the module's text."""

    __slots__ = ("_commits", "_llsns", "_offsets", "_sizes")

    def __init__(self) -> None:
        self._llsns: array[int] = array("Q")
        self._offsets: array[int] = array("I")
        self._sizes: array[int] = array("I")
        self._commits: array[int] = array("Q")

    @classmethod
    def decode(cls, body: Buffer) -> SegmentIndex | None:
        found = fmt.decode_index(body)
        if found is None:
            return None
        index = cls()
        index._llsns, index._offsets, index._sizes, index._commits = found
        return index

    def encode(self) -> bytes:
        return fmt.encode_index(self._llsns, self._offsets, self._sizes, self._commits)

    def add_batch(self, llsn: LLSN, offset: int, size: int) -> None:
        """A frame of `size` bytes at `offset` holds the batch at `llsn`."""
        # The LLSN last: a reader that finds it finds the rest.
        self._offsets.append(offset)
        self._sizes.append(size)
        self._llsns.append(llsn)

    def add_batches(self, llsns: Sequence[int], offsets: Sequence[int], sizes: Iterable[int]) -> None:
        """The same of several, in columns."""
        self._offsets.extend(offsets)
        self._sizes.extend(sizes)
        self._llsns.extend(llsns)

    def add_commit(self, cc: CommitContext) -> None:
        self._commits.extend(cc)

    def drop_from(self, llsn_end: LLSN) -> None:
        """Batches at or above `llsn_end` are void."""
        keep = bisect_right(self._llsns, llsn_end - 1)
        if keep < len(self._llsns):
            self._llsns = self._llsns[:keep]
            self._offsets = self._offsets[:keep]
            self._sizes = self._sizes[:keep]

    # Batches

    def __len__(self) -> int:
        return len(self._llsns)

    def find(self, llsn: LLSN) -> int:
        """The number of the last batch that begins at or below `llsn`; -1 if there is none."""
        return bisect_right(self._llsns, llsn) - 1

    def run(self, number: int, llsn_end: LLSN, size: int) -> list[tuple[int, int, int]]:
        """(LLSN, offset, size) of the frames from batch `number` on that begin below `llsn_end` and lie within `size`
        bytes of the file; at least one."""
        offsets, sizes = self._offsets, self._sizes
        limit = offsets[number] + size
        end = min(bisect_left(self._llsns, llsn_end), bisect_left(offsets, limit))
        if end > number + 1 and offsets[end - 1] + sizes[end - 1] > limit:
            end -= 1
        end = max(end, number + 1)
        return list(zip(self._llsns[number:end], offsets[number:end], sizes[number:end], strict=True))

    def batches(self, number: int, llsn_end: LLSN, most: int) -> list[tuple[int, int, int]]:
        """(LLSN, offset, size) of at most so many frames from batch `number` on that begin below `llsn_end`."""
        end = min(bisect_left(self._llsns, llsn_end), number + most)
        return list(zip(self._llsns[number:end], self._offsets[number:end], self._sizes[number:end], strict=True))

    # Commits

    @property
    def commits(self) -> int:
        return len(self._commits) // fmt.COMMIT_FIELDS

    def commit(self, number: int) -> CommitContext:
        at = number * fmt.COMMIT_FIELDS
        version, epoch, hwm, prev_hwm, llsn_begin, glsn_begin, count, time = self._commits[at : at + fmt.COMMIT_FIELDS]
        return CommitContext(
            Version(version), Epoch(epoch), GLSN(hwm), GLSN(prev_hwm), LLSN(llsn_begin), GLSN(glsn_begin), count, time
        )

    def commit_of_glsn(self, glsn: GLSN) -> int:
        """The number of the last commit that begins at or below `glsn`; -1 if there is none."""
        return self._search(_GLSN_BEGIN, glsn)

    def commit_of_llsn(self, llsn: LLSN) -> int:
        return self._search(_LLSN_BEGIN, llsn)

    def commit_of_version(self, version: Version) -> int:
        return self._search(_VERSION, version)

    def _search(self, field: int, value: int) -> int:
        commits = self._commits
        return bisect_right(range(self.commits), value, key=lambda i: commits[i * fmt.COMMIT_FIELDS + field]) - 1
