"""A replica on paper: committed batches and commit contexts in lists, for what reads a log and never writes one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from varlog import errors
from varlog.core.messages import StoredLine
from varlog.types import GLSN, LLSN, CommitContext, Epoch, Version

EVERYTHING = 1 << 40


@dataclass
class PaperLog:
    """See the module's text. Every entry says which it is."""

    lines: list[StoredLine] = field(default_factory=list)
    commits: list[CommitContext] = field(default_factory=list)
    trimmed: int = 0
    damaged: int = EVERYTHING
    """The position from which on it cannot be read."""
    chunk: int = 3
    """So many batches it gives at once, whatever was asked for."""

    def commit(self, glsn: int, *counts: int, prev_hwm: int | None = None, hwm: int | None = None) -> None:
        """One more commit, of batches of so many entries each, the first of them at that position."""
        before = self.commits[-1] if self.commits else None
        llsn = before.llsn_end if before is not None else LLSN(1)
        version = Version(before.version + 1 if before is not None else 1)
        count = sum(counts)
        self.commits.append(
            CommitContext(
                version, Epoch(2), GLSN(hwm if hwm is not None else glsn + count - 1),
                GLSN(prev_hwm if prev_hwm is not None else glsn - 1), llsn, GLSN(glsn), count, 1000 * version,
            )
        )  # fmt: skip
        at = 0
        for number in counts:
            content = b"%d:%d" % (glsn + at, number)
            self.lines.append((glsn + at, llsn + at, number, 2, version, 1000 * version, content))
            at += number

    def read(self, glsn_begin: GLSN, glsn_end: GLSN, _max_bytes: int) -> list[StoredLine]:
        if glsn_begin <= self.trimmed:
            raise errors.Trimmed(self.trimmed + 1)
        found = [line for line in self.lines if line[0] + line[2] > glsn_begin and line[0] < glsn_end]
        if any(line[0] + line[2] > self.damaged for line in found[: self.chunk]):
            raise errors.Corrupt("a damaged batch", segment="1.seg", offset=64)
        return found[: self.chunk]

    def commit_contexts(self, after_version: Version) -> Iterator[CommitContext]:
        return iter([cc for cc in self.commits if cc.version > after_version])

    def replace(self, number: int, content: bytes) -> None:
        """Another content of one batch."""
        self.lines[number] = (*self.lines[number][:-1], content)

    @property
    def end(self) -> int:
        return self.commits[-1].glsn_end if self.commits else 1


def paper(*commits: tuple[int, ...], chunk: int = 3) -> PaperLog:
    """A log of commits, each (first position, entries of its batches...)."""
    log = PaperLog(chunk=chunk)
    for glsn, *counts in commits:
        log.commit(glsn, *counts)
    return log
