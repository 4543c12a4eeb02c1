"""The volumes of a storage node: where its data lies, and who the node is (B1, B2, B4, B5).

A replica lies in `<volume>/cid=<cid>/snid=<snid>/lsid=<lsid>`, on one volume. The directory above it, the
StorageNodePath, also holds `boot`, how often the node was started, and `lock`, which one process has. A node that is
not told its id takes the one it finds on its volumes, or makes one at random and keeps it by making the directory.

What must always hold: the boot number is greater at every start, on whatever volumes survive.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from varlog import errors
from varlog.storage.directory import error_of, lock_directory
from varlog.storage.files import FileSystem, Lock
from varlog.storage.logfiles import publish
from varlog.types import MAX_ID, ClusterID, LogStreamID, StorageNodeID

_BOOT_NAME = "boot"
_BOOT_BYTES = 32
_LAST_BOOT = (1 << 63) - 1


class Volumes:
    """The volumes of one node, locked for this process."""

    def __init__(self, fs: FileSystem, cid: ClusterID, snid: StorageNodeID, paths: Sequence[str]) -> None:
        """Use `open`."""
        self.cid = cid
        self.snid = snid
        self.paths = tuple(paths)
        self.boot = 0
        """Greater at every start."""
        self._fs = fs
        self._locks: list[Lock] = []

    @classmethod
    def open(
        cls,
        fs: FileSystem,
        cid: ClusterID,
        snid: StorageNodeID | None,
        paths: Sequence[str],
        *,
        error_if_exists: bool = False,
    ) -> Volumes:
        """Check the volumes, find out or decide who the node is, and count this start."""
        paths = [os.path.abspath(path) for path in paths]
        for path in paths:
            if not fs.is_writable_directory(path):
                raise errors.NotWritable(f"volume {path} is not an existing directory that can be written")
        volumes = cls(fs, cid, snid or _find_snid(fs, cid, paths), paths)
        exist = [path for path in volumes.node_paths if fs.exists(path)]
        if error_if_exists and exist:
            raise errors.AlreadyExists(f"{exist[0]} exists already; this node was started before")
        for path in volumes.node_paths:
            with _typed_errors(path):
                fs.mkdir(path)
        try:
            volumes._begin()
        except BaseException:
            volumes.close()
            raise
        return volumes

    def _begin(self) -> None:
        for path in self.node_paths:
            self._locks.append(lock_directory(self._fs, path))
        self.boot = max(map(self._read_boot, self.node_paths)) + 1
        for path in self.node_paths:
            with _typed_errors(path):
                publish(self._fs, path, _BOOT_NAME, b"%d" % self.boot).close()

    def _read_boot(self, path: str) -> int:
        name = f"{path}/{_BOOT_NAME}"
        if not self._fs.exists(name):
            return 0
        with _typed_errors(name):
            file = self._fs.open(name)
            try:
                data = file.pread(_BOOT_BYTES, 0)
            finally:
                file.close()
        if not bytes(data).isdigit() or int(data) > _LAST_BOOT:
            raise errors.WrongIdentity(f"{name} does not hold the number of a start")
        return int(data)

    @property
    def node_paths(self) -> list[str]:
        return [f"{path}/cid={self.cid}/snid={self.snid}" for path in self.paths]

    def replica_path(self, volume: str, lsid: LogStreamID) -> str:
        return f"{volume}/cid={self.cid}/snid={self.snid}/lsid={lsid}"

    def replicas(self) -> dict[LogStreamID, str]:
        """The volume of every log stream found (B3). One found on two volumes is an error (B4)."""
        found: dict[LogStreamID, str] = {}
        for volume, path in zip(self.paths, self.node_paths, strict=True):
            for number in _numbers(self._fs, path, "lsid="):
                lsid = LogStreamID(number)
                if lsid in found:
                    raise errors.WrongIdentity(
                        f"log stream {lsid} is on two volumes, {found[lsid]} and {volume}: a replica is on one; move "
                        "the one that does not belong there away"
                    )
                found[lsid] = volume
        return found

    def close(self) -> None:
        for lock in self._locks:
            lock.release()
        self._locks.clear()


def _find_snid(fs: FileSystem, cid: ClusterID, paths: Sequence[str]) -> StorageNodeID:
    found = {number for path in paths for number in _numbers(fs, f"{path}/cid={cid}", "snid=")}
    if len(found) > 1:
        raise errors.InvalidArgument(
            f"the volumes hold data of storage nodes {sorted(found)}; say with --snid which one this is"
        )
    return StorageNodeID(found.pop() if found else secrets.randbelow((1 << 32) - 1) + 1)


def _numbers(fs: FileSystem, path: str, prefix: str) -> list[int]:
    """The ids that directories are named after. What is not named exactly as this node names them is none of its."""
    with _typed_errors(path):
        names = fs.listdir(path) if fs.exists(path) else []
    found = [name.removeprefix(prefix) for name in names if name.startswith(prefix)]
    numbers = [int(digits) for digits in found if digits.isascii() and digits.isdigit() and digits[0] != "0"]
    return [number for number in numbers if number <= MAX_ID]


@contextmanager
def _typed_errors(path: str) -> Iterator[None]:
    """A volume that cannot be used is not usable, whatever the operating system calls it; only a full one is told
    apart."""
    try:
        yield
    except OSError as e:
        error = error_of(path, e)
        raise (error if isinstance(error, errors.DiskFull) else errors.NotWritable(f"{path}: {e}")) from e
