"""The volumes of a storage node: where its data lies, and who the node is (B1, B2, B4, B5).

A replica lies in `<volume>/cid=<cid>/snid=<snid>/lsid=<lsid>`, on one volume. The directory above it, the
StorageNodePath, also holds `boot`, how often the node was started, `identity`, by which it proves who it is
(`identity`), and `lock`, which one process has. A node that is not told its id takes the one it finds on its volumes,
or makes one at random and keeps it by making the directory.

What must always hold: the number of starts grows with every start, on whatever volumes survive; and a start that is
refused leaves nothing behind.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence

from varlog import errors
from varlog.core.identity import boot_of
from varlog.core.messages import VolumeInfo
from varlog.storage.directory import lock_directory
from varlog.storage.files import FileSystem, Lock
from varlog.storage.logfiles import UNFINISHED, publish
from varlog.storagenode import identity
from varlog.storagenode.identity import Secrets, volume_errors
from varlog.types import MAX_ID, ClusterID, LogStreamID, StorageNodeID

_BOOT_NAME = "boot"
_BOOT_BYTES = 32
_MOST_STARTS = (1 << 32) - 1


class Volumes:
    """The volumes of one node, locked for this process."""

    def __init__(self, fs: FileSystem, cid: ClusterID, snid: StorageNodeID, paths: Sequence[str]) -> None:
        """Use `open`."""
        self.cid = cid
        self.snid = snid
        self.paths = tuple(paths)
        self.starts = 0
        """How often the node was started on these volumes."""
        self.secrets: Secrets
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
        for path, node_path in zip(paths, volumes.node_paths, strict=True):
            if not fs.exists(node_path):
                _check_unclaimed(fs, path, node_path)
        exist = [path for path in volumes.node_paths if fs.exists(path)]
        if error_if_exists and exist:
            raise errors.AlreadyExists(f"{exist[0]} exists already; this node was started before")
        for path in volumes.node_paths:
            with volume_errors(path):
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
        occupied = [path for path in self.node_paths if numbers(self._fs, path, "lsid=")]
        self.secrets = Secrets.load(self._fs, self.cid, self.snid, self.node_paths, occupied)
        self.starts = max(read_starts(self._fs, path) for path in self.node_paths) + 1
        for path in self.node_paths:
            try:
                self._count_start(path)
            except errors.DiskFull:
                self._clear_unfinished(path)
                self._count_start(path)

    def _count_start(self, path: str) -> None:
        with volume_errors(path):
            publish(self._fs, path, _BOOT_NAME, b"%d" % self.starts).close()

    def _clear_unfinished(self, path: str) -> None:
        """Delete files of replicas that were only begun when a process was killed: they may hold all that was free."""
        for number in numbers(self._fs, path, "lsid="):
            directory = f"{path}/lsid={number}"
            with volume_errors(directory):
                for name in self._fs.listdir(directory):
                    if name.endswith(UNFINISHED):
                        self._fs.unlink(f"{directory}/{name}")

    @property
    def boot(self) -> int:
        """The number of this start: greater at every one."""
        return boot_of(self.secrets.held.generation if self.secrets.held is not None else 0, self.starts)

    @property
    def node_paths(self) -> list[str]:
        return [f"{path}/cid={self.cid}/snid={self.snid}" for path in self.paths]

    def replica_path(self, volume: str, lsid: LogStreamID) -> str:
        return f"{volume}/cid={self.cid}/snid={self.snid}/lsid={lsid}"

    def replicas(self) -> dict[LogStreamID, str]:
        """The volume of every log stream found (B3). One found on two volumes is an error (B4)."""
        found: dict[LogStreamID, str] = {}
        for volume, path in zip(self.paths, self.node_paths, strict=True):
            for number in numbers(self._fs, path, "lsid="):
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


def read_starts(fs: FileSystem, node_path: str) -> int:
    """How often a node was started, as one of its directories says."""
    name = f"{node_path}/{_BOOT_NAME}"
    if not fs.exists(name):
        return 0
    with volume_errors(name):
        file = fs.open(name)
        try:
            data = file.pread(_BOOT_BYTES, 0)
        finally:
            file.close()
    if not bytes(data).isdigit() or int(data) >= _MOST_STARTS:
        raise errors.WrongIdentity(f"{name} does not hold the number of a start")
    return int(data)


def _check_unclaimed(fs: FileSystem, volume: str, wanted: str) -> None:
    """A volume that holds another node, and not this one, was swapped or mistaken for this node's. Whatever were made
    there anew would pass for a lost disk."""
    for cid in numbers(fs, volume, "cid="):
        for snid in numbers(fs, f"{volume}/cid={cid}", "snid="):
            if identity.read(fs, f"{volume}/cid={cid}/snid={snid}") is not None:
                raise errors.WrongIdentity(
                    f"volume {volume} is of storage node {snid} of cluster {cid}, there is no {wanted} on it; start "
                    "the node with its own volumes, or move what is there away"
                )


def _find_snid(fs: FileSystem, cid: ClusterID, paths: Sequence[str]) -> StorageNodeID:
    found = {number for path in paths for number in numbers(fs, f"{path}/cid={cid}", "snid=")}
    if len(found) > 1:
        raise errors.InvalidArgument(
            f"the volumes hold data of storage nodes {sorted(found)}; say with --snid which one this is"
        )
    return StorageNodeID(found.pop() if found else secrets.randbelow((1 << 32) - 1) + 1)


def numbers(fs: FileSystem, path: str, prefix: str) -> list[int]:
    """The ids that directories are named after. What is not named exactly as this node names them is none of its."""
    with volume_errors(path):
        names = fs.listdir(path) if fs.exists(path) else []
    found = [name.removeprefix(prefix) for name in names if name.startswith(prefix)]
    numbers = [int(digits) for digits in found if digits.isascii() and digits.isdigit() and digits[0] != "0"]
    return [number for number in numbers if number <= MAX_ID]


def space_of(paths: tuple[str, ...]) -> tuple[VolumeInfo, ...]:
    """How much room volumes have; one that cannot be asked has none."""
    infos = []
    for path in paths:
        try:
            found = os.statvfs(path)
        except OSError:
            infos.append(VolumeInfo(path, 0, 0))
        else:
            infos.append(VolumeInfo(path, found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize))
    return tuple(infos)
