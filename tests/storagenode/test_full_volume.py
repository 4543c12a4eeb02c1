"""A log that has filled its own volume: nothing that was only begun keeps what is free, so the node can be started, and
a trim makes room."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Sequence
from itertools import count
from pathlib import Path

from tests.daemon.small import Small, run, until
from varlog import errors
from varlog.core.messages import Decided, TrimTopic
from varlog.storage.files import Buffer, OSFile, OSFileSystem
from varlog.types import GLSN, TopicID

SEGMENT = 64 * 1024
ROOM = 7 * SEGMENT + SEGMENT // 2
ENTRY = bytes(8 * 1024)


class BoundedFile(OSFile):
    """As on ext4, what is asked for beyond the room there is gets what is left of it, and fails then."""

    def __init__(self, fd: int, fs: BoundedFileSystem) -> None:
        super().__init__(fd)
        self._fs = fs

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> None:
        self._grow(offset + sum(map(len, buffers)))
        super().pwritev(buffers, offset)

    def allocate(self, size: int) -> None:
        self._grow(size)
        super().allocate(size)

    def _grow(self, size: int) -> None:
        free = self._fs.free
        if size - self.size() > free:
            super().allocate(self.size() + free)
            raise OSError(errno.ENOSPC, "no space left")


class BoundedFileSystem(OSFileSystem):
    """Real files, on a volume that has so much room."""

    def __init__(self, volume: Path) -> None:
        self._volume = volume

    @property
    def free(self) -> int:
        return max(0, ROOM - sum(path.stat().st_size for path in self._volume.rglob("*") if path.is_file()))

    def open(self, path: str) -> BoundedFile:
        return BoundedFile(os.open(path, os.O_RDWR | os.O_CLOEXEC), self)

    def create(self, path: str) -> BoundedFile:
        return BoundedFile(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), self)


class Full(Small):
    """A cluster of one node, whose volume is filled by appends."""

    async def fill(self) -> int:
        """Returns how many were acknowledged."""
        fs = BoundedFileSystem(Path(self.volumes(1)[0]))
        await self.start(nodes=0, streams=0)
        await self.start_node(1, fs, segment_bytes=SEGMENT)
        await self.add_nodes()
        await self.add_topic()
        acknowledged = 0
        (replica,) = self.nodes[1].replicas

        async def append_all() -> None:
            nonlocal acknowledged
            for sequence in count(1):
                assert (await self.append(ENTRY, sequence=sequence)).code == 0
                acknowledged = sequence

        appending = asyncio.ensure_future(append_all())
        await until(lambda: appending.done() or not replica.executor.healthy)
        assert appending.cancel()
        assert replica.executor.fault == errors.DiskFull.code
        return acknowledged

    @property
    def replica_path(self) -> Path:
        (path,) = Path(self.volumes(1)[0]).rglob("lsid=1")
        return path

    def unfinished(self) -> list[Path]:
        return [*Path(self.volumes(1)[0]).rglob("*.tmp")]

    async def append_again(self, acknowledged: int) -> None:
        """What was refused, until it is taken."""
        while (await self.append(ENTRY, sequence=acknowledged + 1)).code:
            pass


def test_M8_a_node_whose_log_has_filled_its_volume_is_started_again(tmp_path: Path) -> None:
    async def main() -> None:
        async with Full(tmp_path) as small:
            acknowledged = await small.fill()
            assert acknowledged > SEGMENT // len(ENTRY), "more than a segment"
            assert not small.unfinished()
            await small.stop_node(1)
            left = small.replica_path / "next.seg.tmp"
            left.write_bytes(bytes(BoundedFileSystem(Path(small.volumes(1)[0])).free))
            await small.start_node(1, BoundedFileSystem(Path(small.volumes(1)[0])), segment_bytes=SEGMENT)
            assert not left.exists(), "a process that was killed may have left it"
            await until(lambda: small.nodes[1].is_connected)
            (replica,) = (await small.info(1)).replicas
            assert replica.committed_end > acknowledged, "all of it, and perhaps what nobody was told of"

    run(main())


def test_M8_a_trim_makes_room_for_a_replica_that_has_none(tmp_path: Path) -> None:
    async def main() -> None:
        async with Full(tmp_path) as small:
            acknowledged = await small.fill()
            client = await small.call_vmr()
            trimmed = await client.ask(Decided, lambda request: TrimTopic(request, TopicID(1), GLSN(acknowledged)))
            assert trimmed.code == 0
            await small.append_again(acknowledged)

    run(main())
