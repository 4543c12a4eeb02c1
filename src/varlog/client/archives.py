"""The archive of a topic, as a reader of the log meets it: where the log was trimmed, reading goes on there.

Which archive it is stands in the metadata. It is opened when it is first needed, kept, and looked at anew when it ends
before what is asked for. `ArchiveFeed` is a source of batches like the log's own `Feed`.

An archive is read in threads, because files and object stores block: the event loop goes on meanwhile. Each feed has at
most one thread at work, which brings one part after another, and stops when enough of them lie ready.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from copy import copy
from typing import TYPE_CHECKING, TypeVar

from varlog import errors, limits
from varlog.client.session import Session
from varlog.types import GLSN, ClusterID, TopicID

if TYPE_CHECKING:
    import pyarrow as pa

    from varlog.archive import Archive
    from varlog.client.archived import ArchivedBatch

_T = TypeVar("_T")


def open_archive(uri: str, cid: ClusterID, tpid: TopicID, name: str) -> Archive:
    """The archive at a place, if it is that of a topic. Blocks."""
    from varlog.archive import Archive  # noqa: PLC0415  # it needs an extra

    archive = Archive.open(uri)
    archive.check(cid=cid, topic=name, tpid=tpid)
    return archive


class Archives:
    """The archive of one client's topic, whichever is attached. Its feeds end with the client."""

    def __init__(self, session: Session, tpid: TopicID, name: str, timeout: float) -> None:
        self.session = session
        self._tpid = tpid
        self._name = name
        self._timeout = timeout
        self._archive: Archive | None = None
        self._uri = ""
        """Where that one is."""
        self._opening = asyncio.Lock()
        self._feeds: set[ArchiveFeed] = set()

    async def feed(
        self, begin: int, end: int | None, trimmed: errors.Trimmed, deadline: float | None, *, whole: bool
    ) -> ArchiveFeed:
        """What the archive has from `begin` on, which the log has not; an error if that is nothing."""
        archive = await self.attached(begin, deadline)
        if archive is None:
            raise errors.Trimmed(trimmed.first, begin)
        if not archive.begin <= begin < archive.end:
            raise errors.Trimmed(archive.begin if begin < archive.begin else trimmed.first, begin, self._uri)
        feed = ArchiveFeed(self, archive, begin, end, self._timeout, whole=whole)
        self._feeds.add(feed)
        return feed

    async def attached(self, position: int, deadline: float | None) -> Archive | None:
        """The archive, new enough to have a position if that was archived; None if there is none."""
        if deadline is None:
            deadline = self.session.loop.time() + self._timeout
        async with self._opening:
            if self._archive is not None and self._uri == self._attached_uri() and position < self._archive.end:
                return self._archive
            await self.session.refreshed(deadline)
            uri = self._attached_uri()
            if not uri:
                self._archive, self._uri = None, ""
            elif self._archive is None or self._uri != uri:
                cid, tpid, name = self.session.cluster.cid, self._tpid, self._name
                self._archive = await self.in_thread(lambda: open_archive(uri, cid, tpid, name), deadline, uri)
                self._uri = uri
            else:
                await self.in_thread(self._archive.refresh, deadline, uri)
            return self._archive

    async def check(self, uri: str, deadline: float) -> str:
        """Where an archive is, in the form that is written down, if it can be read and is of this topic."""
        cid, tpid, name = self.session.cluster.cid, self._tpid, self._name
        found = await self.in_thread(lambda: open_archive(uri, cid, tpid, name), deadline, uri)
        return found.uri

    def _attached_uri(self) -> str:
        topic = self.session.routing.topic(self._tpid)
        return topic.archive if topic is not None else ""

    async def in_thread(self, work: Callable[[], _T], deadline: float, uri: str) -> _T:
        """Do something that blocks; if it takes too long it is not waited for."""
        try:
            async with asyncio.timeout_at(deadline):
                return await self.session.loop.run_in_executor(None, _typed, work, uri)
        except TimeoutError:
            raise errors.DeadlineExceeded(f"the archive at {uri} could not be read in time") from None

    def dismiss(self, feed: ArchiveFeed) -> None:
        self._feeds.discard(feed)

    def abandon(self, error: errors.VarlogError) -> None:
        """End everything under way."""
        for feed in list(self._feeds):
            feed.abandon(error)


def _typed(work: Callable[[], _T], uri: str) -> _T:
    """Turn what file systems and libraries raise into what a caller can act on."""
    import pyarrow as pa  # noqa: PLC0415

    try:
        return work()
    except OSError as error:
        raise errors.Unreachable(f"the archive at {uri} cannot be read: {error}") from error
    except pa.ArrowException as error:
        raise errors.BrokenArchive(f"the archive at {uri} holds what is no archive's: {error}") from error


class ArchiveFeed:
    """See the module's text. From `begin` up to `end`, or to where the archive ends."""

    def __init__(
        self, archives: Archives, archive: Archive, begin: int, end: int | None, timeout: float, *, whole: bool
    ) -> None:
        self._archives = archives
        self._archive = archive
        self._loop = archives.session.loop
        self._stop = archive.end if end is None else min(end, archive.end)
        self._timeout = timeout
        self._whole = whole
        self.position = GLSN(begin)
        """Everything below was taken or passed over."""
        self.filled = 0
        """How many positions were passed over, because the archive has no row for them."""
        self._read_to = begin
        self._rows: Iterator[pa.RecordBatch] = archive.scan(begin, self._stop)
        self._ready: deque[tuple[ArchivedBatch, int]] = deque()
        """What was read and not taken; with the last of a part, how many bytes go with it."""
        self._held = 0
        self._is_reading = False
        self._ended = False
        self._error: errors.VarlogError | None = None
        self._waiting: asyncio.Future[None] | None = None
        self._read_on()

    def take(self) -> ArchivedBatch | None:
        """The next batch, if it is there."""
        if not self._ready:
            return None
        batch, freed = self._ready.popleft()
        end = batch.end
        self.filled += end - self.position - batch.count
        self.position = end
        if freed:
            self._held -= freed
            self._read_on()
        return batch

    async def next(self, timeout: float | None) -> ArchivedBatch | None:
        """The next batch, waited for; None at the end. There is something to come, so it is never waited for ever."""
        timeout = self._timeout if timeout is None else timeout
        deadline = self._loop.time() + timeout
        while (found := self.take()) is None:
            if self._ended:
                if self._error is not None:
                    raise copy(self._error)
                self.filled += self._stop - self.position
                self.position = GLSN(self._stop)
                return None
            self._waiting = self._loop.create_future()
            try:
                async with asyncio.timeout_at(deadline):
                    await self._waiting
            except TimeoutError:
                raise errors.DeadlineExceeded(
                    f"the archive at {self._archive.uri} did not bring position {self.position} within {timeout:.3g} s"
                ) from None
            finally:
                self._waiting = None
        return found

    def close(self) -> None:
        """Read no more."""
        self.abandon(errors.Closed("the subscription was closed"))

    def abandon(self, error: errors.VarlogError) -> None:
        if not self._ended:
            self._ready.clear()
            self._end(error)

    def _end(self, error: errors.VarlogError | None) -> None:
        self._ended, self._error = True, error
        self._archives.dismiss(self)
        self._wake()

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def _read_on(self) -> None:
        if not self._is_reading and not self._ended and self._held <= limits.CLIENT_READ_AHEAD_BYTES:
            try:
                reading = self._loop.run_in_executor(None, _typed, self._read_part, self._archive.uri)
            except RuntimeError:  # there are no threads any more
                self._end(errors.Closed("the event loop ended"))
            else:
                self._is_reading = True
                reading.add_done_callback(self._on_part)

    def _read_part(self) -> list[tuple[ArchivedBatch, int]]:
        """In a thread, one at a time: what is to lie ready next, nothing at the end."""
        from varlog.client.archived import batches_of  # noqa: PLC0415  # pyarrow is large

        for rows in self._rows:
            if found := batches_of(rows, self._read_to, self._stop, whole=self._whole):
                self._read_to = found[-1].end
                return [*((batch, 0) for batch in found[:-1]), (found[-1], max(1, int(rows.nbytes)))]
        return []

    def _on_part(self, reading: asyncio.Future[list[tuple[ArchivedBatch, int]]]) -> None:
        self._is_reading = False
        error = errors.Closed("the event loop ended") if reading.cancelled() else reading.exception()
        if self._ended:
            return
        if error is not None:
            what = f"reading the archive at {self._archive.uri} failed: {error!r}"
            self._end(error if isinstance(error, errors.VarlogError) else errors.BrokenArchive(what))
        elif part := reading.result():
            self._ready += part
            self._held += part[-1][1]
            self._read_on()
            self._wake()
        else:
            self._end(None)
