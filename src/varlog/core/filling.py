"""Who waits for what is pushed down a chain: appends that want values of their own written, fills that want positions
written no matter with what, or nobody."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from functools import lru_cache
from typing import Any, Final, NamedTuple, Protocol

from varlog import batch, errors
from varlog.batch import BatchHeader
from varlog.types import GLSN, Epoch, LogStreamID

_PLAIN_JUNK: Final = 16
"""Junk of more positions is compressed."""


class Filled(NamedTuple):
    """A range is written or junk on every replica."""

    found: tuple[tuple[GLSN, BatchHeader], ...]
    """What was there already, and is on all of them now; the rest is junk that was written for this fill."""


class Asker(Protocol):
    """Who is told what became of batches. An id is whatever it gave with a batch."""

    takes_junk: bool
    """It wants positions written, no matter with what; otherwise, values of its own."""

    def claims(self, id_: Any, glsn: GLSN, header: BatchHeader) -> bool:
        """Whether what was found in the range of a batch is what it wants there."""

    def is_over(self, id_: Any) -> bool:
        """Whether nobody waits for a batch any more; if it has not been sent it is not going to be."""

    def on_written(
        self,
        ids: Seq[Any],
        glsns: Seq[int],
        counts: Seq[int],
        lsid: LogStreamID,
        epoch: Epoch,
        replicas: int,
        synced: bool,
    ) -> None:
        """They are on every replica: values of its own, or whatever else it takes."""

    def on_lost(self, id_: Any, glsn: GLSN) -> None:
        """It is not there from `glsn` on, and never will be by this attempt."""

    def on_refused(self, id_: Any, code: int) -> None:
        """No log would take it: it is not there."""

    def on_unknown(self, id_: Any, error: errors.VarlogError) -> None:
        """Nobody will find out any more whether it is there, or was."""

    def on_parts(self, id_: Any, more: int) -> None:
        """What it wants filled is under way in so many parts more, each of which will be told of."""


class Filling:
    """A fill that somebody waits for."""

    takes_junk = True

    def __init__(self, done: Callable[[Filled | errors.VarlogError], None]) -> None:
        self._done: Callable[[Filled | errors.VarlogError], None] | None = done
        self._parts = 0
        self._found: dict[GLSN, BatchHeader] = {}

    def claims(self, _id: object, glsn: GLSN, header: BatchHeader) -> bool:
        self._found[glsn] = header
        return True

    def is_over(self, _id: object) -> bool:
        return self._done is None

    def on_written(
        self,
        ids: Seq[Any],
        _glsns: object,
        _counts: object,
        _lsid: object,
        _epoch: object,
        _replicas: object,
        _: object,
    ) -> None:
        self._parts -= len(ids)
        if not self._parts:
            self._finish(Filled(tuple(sorted(self._found.items()))))

    def on_lost(self, _id: object, glsn: GLSN) -> None:
        self._finish(errors.Unwritten(f"position {glsn} was not given out, or by a sequencer that was replaced"))

    def on_refused(self, _id: object, code: int) -> None:
        self._finish(errors.VarlogError.of(code, ""))

    def on_unknown(self, _id: object, error: errors.VarlogError) -> None:
        self._finish(error)

    def on_parts(self, _id: object, more: int) -> None:
        self._parts += more

    def _finish(self, outcome: Filled | errors.VarlogError) -> None:
        done, self._done = self._done, None
        if done is not None:
            done(outcome)


class Nobody:
    """Nobody waits."""

    takes_junk = True

    def claims(self, *_: object) -> bool:
        return True

    def is_over(self, _id: object) -> bool:
        return False

    def on_written(self, *_: object) -> None: ...

    def on_lost(self, *_: object) -> None: ...

    def on_refused(self, *_: object) -> None: ...

    def on_unknown(self, *_: object) -> None: ...

    def on_parts(self, *_: object) -> None: ...


NOBODY: Final = Nobody()


@lru_cache(64)
def junk(count: int) -> bytes:
    """So many positions that hold nothing. It is the same whoever makes it."""
    codec = batch.Codec.NONE if count <= _PLAIN_JUNK else batch.Codec.ZSTD
    return batch.encode([b""] * count, codec=codec, flags=int(batch.BatchFlag.JUNK))
