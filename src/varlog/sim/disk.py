"""A simulated disk: files that forget what was not synced.

`SimDisk` gives the file seam of `varlog.storage.files` over memory. Every file has two contents: the *view* (the page
cache, what every read sees) and the *durable* one (what lies on the medium). A write goes to the view and is noted as
pending; `fdatasync` carries the pending operations over. Names work the same way: `sync_dir` makes them durable. So

- `kill()` ends a process: locks and open files are gone, the view stays as it is;
- `power_loss(rng)` ends the machine: of each pending operation the medium holds what `medium.draw_outcome` says,
  independently; a file whose name was never synced is gone with its content; the view is then the medium.

Faults: a full disk (`set_free_bytes`), failing writes and syncs, the failure of any one operation by its number, bit
rot in synced bytes, and slowness, which is only a number that hosts multiply their delays by. After a failed
`fdatasync` the data is clean but lost: reads still show it, no later sync makes it durable, only writing it again
does; `evict()` lets the reads see the truth.

`start_recording()` notes every operation for `varlog.sim.crash`, which enumerates all that a crash could leave.

What always holds: durable content is the result of synced operations alone (plus bit rot); nothing here draws a random
number by itself, so the same calls give the same disk.
"""

from __future__ import annotations

import errno
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache

from varlog.sim.medium import (
    Allocate,
    Content,
    FileImage,
    FileOperation,
    Image,
    NameKind,
    NameTarget,
    Note,
    Operation,
    SetNames,
    Survival,
    SyncDir,
    SyncFailed,
    SyncFile,
    Truncate,
    Write,
    apply,
    draw_outcome,
    parent,
)
from varlog.storage.files import Buffer


class DiskFault(Enum):
    """What a disk may do to its owner; `SimDisk.faults` counts how often it did."""

    FULL = "disk full"
    WRITE_ERROR = "write error"
    SYNC_ERROR = "fsync error"
    SYNC_LIE = "fsync that was none"
    BIT_ROT = "bit rot"
    LOST_WRITE = "unsynced write lost"
    TORN_WRITE = "unsynced write torn"
    ZEROED_WRITE = "unsynced write became zeros"
    LOST_NAME = "unsynced directory operation lost"


_SURVIVAL_FAULT = {
    Survival.ABSENT: DiskFault.LOST_WRITE,
    Survival.CUT: DiskFault.TORN_WRITE,
    Survival.ZEROS: DiskFault.ZEROED_WRITE,
}


@dataclass(frozen=True)
class Recording:
    """Operations and the disk they began on: names and contents that were durable then."""

    names: Mapping[str, NameTarget]
    files: Mapping[int, FileImage]
    operations: Sequence[Operation]


class _Inode:
    """One file, whatever its names."""

    __slots__ = ("durable", "lost", "number", "pending", "view")

    def __init__(self, number: int, content: Content) -> None:
        self.number = number
        self.view = content
        self.durable = content.copy()
        self.pending: list[FileOperation] = []
        self.lost = False
        """A failed sync left the view ahead of what the medium will ever hold."""


_Node = _Inode | NameKind
_PendingNames = tuple[SetNames, tuple[_Node, ...]]


@dataclass
class _Armed:
    """A fault that waits for its operation."""

    fault: DiskFault
    prefix: str
    count: int
    rng: random.Random | None = field(default=None, repr=False)


class SimFile:
    """An open file of a `SimDisk`. Dead after `kill` or `power_loss`, as its process is."""

    __slots__ = ("_disk", "_inode", "_life", "_path")

    def __init__(self, disk: SimDisk, inode: _Inode, path: str, life: int) -> None:
        self._disk = disk
        self._inode = inode
        self._path = path
        self._life = life

    def _check(self) -> None:
        if self._life != self._disk.life:
            raise OSError(errno.EBADF, "the file is closed", self._path)

    def pread(self, length: int, offset: int) -> bytes:
        self._check()
        return self._inode.view.read(length, offset)

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> None:
        self._check()
        data = bytes(buffers[0]) if len(buffers) == 1 else b"".join(buffers)
        self._disk.write(self._inode, self._path, data, offset)

    def fdatasync(self) -> None:
        self._check()
        self._disk.sync(self._inode, self._path)

    def allocate(self, size: int) -> None:
        self._check()
        self._disk.resize(self._inode, self._path, Allocate(self._inode.number, size))

    def truncate(self, size: int) -> None:
        self._check()
        self._disk.resize(self._inode, self._path, Truncate(self._inode.number, size))

    def size(self) -> int:
        self._check()
        return self._inode.view.size

    def forget(self) -> None:
        """It has no other memory than this."""
        self._check()

    def close(self) -> None:
        self._check()
        self._life = -1


class SimLock:
    __slots__ = ("_disk", "_life", "_path")

    def __init__(self, disk: SimDisk, path: str, life: int) -> None:
        self._disk = disk
        self._path = path
        self._life = life

    def release(self) -> None:
        if self._life == self._disk.life:
            self._disk.unlock(self._path)
        self._life = -1


class SimDisk:
    """One machine's disk. See the module's text for what it remembers and forgets."""

    def __init__(self) -> None:
        self.life = 0
        """Raised by `kill` and `power_loss`; files and locks of an earlier life are dead."""
        self.faults: Counter[DiskFault] = Counter()
        self.slowness = 1.0
        """Hosts multiply the time their disk operations take by this."""
        self.lies: Callable[[str], bool] | None = None
        """Asked at each sync of a file; if it says so, the sync succeeds and nothing becomes durable."""
        self.operations = 0
        """How many changing operations were asked for so far; `fail_operation` counts in these."""
        self._names: dict[str, _Node] = {"/": NameKind.DIRECTORY}
        self._durable_names: dict[str, _Node] = dict(self._names)
        self._pending_names: list[_PendingNames] = []
        self._locks: set[str] = set()
        self._armed: list[_Armed] = []
        self._armed_number: tuple[int, int] | None = None
        self._free: int | None = None
        self._next_inode = 1
        self._record: list[Operation] | None = None
        self._record_start: tuple[dict[str, NameTarget], dict[int, FileImage]] = ({}, {})

    @classmethod
    def from_image(cls, image: Image) -> SimDisk:
        """A disk as it is found after a crash: everything on it is durable."""
        disk = cls()
        for path in sorted(image.directories):
            disk._names[path] = NameKind.DIRECTORY
        for path, file in image.files.items():
            disk._names[path] = disk._new_inode(Content(file.data, file.size))
        disk._durable_names = dict(disk._names)
        return disk

    def image(self) -> Image:
        """What a reader sees now."""
        directories = frozenset(
            path for path, node in self._names.items() if isinstance(node, NameKind) and path != "/"
        )
        files = {
            path: FileImage(bytes(node.view.data), node.view.size)
            for path, node in self._names.items()
            if isinstance(node, _Inode)
        }
        return Image(directories, files)

    # FileSystem

    def open(self, path: str) -> SimFile:
        path = _clean(path)
        return SimFile(self, self._file(path), path, self.life)

    def create(self, path: str) -> SimFile:
        path = _clean(path)
        self._count_operation(path)
        self._require_parent(path)
        if path in self._names:
            raise FileExistsError(errno.EEXIST, "the name is taken", path)
        if self._free == 0:
            self._full(path)
        inode = self._new_inode(Content())
        self._set_names(((path, inode),))
        return SimFile(self, inode, path, self.life)

    def exists(self, path: str) -> bool:
        return _clean(path) in self._names

    def is_writable_directory(self, path: str) -> bool:
        return self._names.get(_clean(path)) is NameKind.DIRECTORY

    def listdir(self, path: str) -> list[str]:
        path = _clean(path)
        self._require_directory(path)
        return sorted(name.rpartition("/")[2] for name in self._names if parent(name) == path and name != "/")

    def mkdir(self, path: str) -> None:
        path = _clean(path)
        node = self._names.get(path)
        if node is NameKind.DIRECTORY:
            return
        if node is not None:
            raise FileExistsError(errno.EEXIST, "a file has that name", path)
        self.mkdir(parent(path))
        self._count_operation(path)
        self._set_names(((path, NameKind.DIRECTORY),))
        self.sync_dir(parent(path))

    def rename(self, source: str, target: str) -> None:
        source, target = _clean(source), _clean(target)
        self._count_operation(source)
        inode = self._file(source)
        self._require_parent(target)
        replaced = self._names.get(target)
        if replaced is NameKind.DIRECTORY:
            raise IsADirectoryError(errno.EISDIR, "is a directory", target)
        if replaced is inode:
            return
        self._release(replaced)
        self._set_names(((source, NameKind.NOTHING), (target, inode)))

    def unlink(self, path: str) -> None:
        path = _clean(path)
        self._count_operation(path)
        self._release(self._file(path))
        self._set_names(((path, NameKind.NOTHING),))

    def rmdir(self, path: str) -> None:
        path = _clean(path)
        self._count_operation(path)
        if self.listdir(path):
            raise OSError(errno.ENOTEMPTY, "the directory is not empty", path)
        self._set_names(((path, NameKind.NOTHING),))

    def sync_dir(self, path: str) -> None:
        path = _clean(path)
        self._count_operation(path)
        self._require_directory(path)
        pending, self._pending_names = self._pending_names, []
        mine: list[_PendingNames] = []
        for one in pending:
            (mine if one[0].is_in(path) else self._pending_names).append(one)
        if (armed := self._take_armed(DiskFault.SYNC_ERROR, path)) is not None:
            self._note_operation(SyncFailed(path))
            if armed.rng is not None:
                self._survive_names(mine, armed.rng)
            raise OSError(errno.EIO, "fsync failed", path)
        self._note_operation(SyncDir(path))
        for change, nodes in mine:
            _apply_names(self._durable_names, change, nodes)

    def lock(self, path: str) -> SimLock:
        path = _clean(path)
        if path in self._locks:
            raise BlockingIOError(errno.EWOULDBLOCK, "the lock is held", path)
        if path not in self._names:
            self.create(path)
        self._locks.add(path)
        return SimLock(self, path, self.life)

    # What files ask of their disk

    def write(self, inode: _Inode, path: str, data: bytes, offset: int) -> None:
        self._count_operation(path)
        if (armed := self._take_armed(DiskFault.WRITE_ERROR, path)) is not None:
            if armed.rng is not None:
                self._change(inode, Write(inode.number, offset, data[: armed.rng.randint(0, len(data))]))
            raise OSError(errno.EIO, "write failed", path)
        growth = offset + len(data) - inode.view.size
        if self._free is not None and growth > 0:
            if growth > self._free:
                self._change(inode, Write(inode.number, offset, data[: max(0, len(data) - (growth - self._free))]))
                self._free = 0
                self._full(path)
            self._free -= growth
        self._change(inode, Write(inode.number, offset, data))

    def resize(self, inode: _Inode, path: str, operation: Truncate | Allocate) -> None:
        self._count_operation(path)
        growth = operation.size - inode.view.size
        if isinstance(operation, Allocate) and growth <= 0:
            return
        if self._free is not None:
            if growth > self._free:
                self._full(path)
            self._free -= growth
        self._change(inode, operation)

    def sync(self, inode: _Inode, path: str) -> None:
        self._count_operation(path)
        pending, inode.pending = inode.pending, []
        if (armed := self._take_armed(DiskFault.SYNC_ERROR, path)) is not None:
            self._note_operation(SyncFailed(inode.number))
            inode.lost = True
            for operation in pending if armed.rng is not None else ():
                assert armed.rng is not None
                apply(inode.durable, operation, draw_outcome(operation, armed.rng))
            raise OSError(errno.EIO, "fsync failed", path)
        if pending and self.lies is not None and self.lies(path):
            self.faults[DiskFault.SYNC_LIE] += 1
            inode.pending = pending
            return
        self._note_operation(SyncFile(inode.number))
        for operation in pending:
            apply(inode.durable, operation)

    def unlock(self, path: str) -> None:
        self._locks.discard(path)

    # Crashes and faults

    def kill(self) -> None:
        """The process ends: files and locks are gone, the page cache stays."""
        self.life += 1
        self._locks.clear()

    def power_loss(self, rng: random.Random) -> None:
        """The machine ends: only the medium is left, with a chance for each unsynced operation."""
        self.kill()
        pending, self._pending_names = self._pending_names, []
        self._survive_names(pending, rng)
        for path in sorted(self._durable_names):
            if self._durable_names.get(parent(path)) is not NameKind.DIRECTORY:
                del self._durable_names[path]
        self._names = dict(self._durable_names)
        for path in sorted(self._names):
            node = self._names[path]
            if isinstance(node, _Inode):
                for operation in node.pending:
                    outcome = draw_outcome(operation, rng)
                    if isinstance(operation, Write) and outcome.survival in _SURVIVAL_FAULT:
                        self.faults[_SURVIVAL_FAULT[outcome.survival]] += 1
                    apply(node.durable, operation, outcome)
                node.pending = []
                node.lost = False
                node.view = node.durable.copy()

    def evict(self) -> None:
        """Drop clean pages: what a failed sync lost is no longer shown."""
        for node in self._names.values():
            if isinstance(node, _Inode) and node.lost:
                node.lost = False
                node.view = node.durable.copy()
                for operation in node.pending:
                    apply(node.view, operation)

    def set_free_bytes(self, free: int | None) -> None:
        """Let files grow by so many bytes more, then fail with ENOSPC; None is an endless disk."""
        self._free = free

    def fail_writes(self, count: int = 1, prefix: str = "/", rng: random.Random | None = None) -> None:
        """The next `count` writes below `prefix` fail with EIO; with an rng, part of the data is written."""
        self._armed.append(_Armed(DiskFault.WRITE_ERROR, _clean(prefix), count, rng))

    def fail_syncs(self, count: int = 1, prefix: str = "/", rng: random.Random | None = None) -> None:
        """The next `count` syncs below `prefix` fail; with an rng, part of the data is durable all the same."""
        self._armed.append(_Armed(DiskFault.SYNC_ERROR, _clean(prefix), count, rng))

    def fail_operation(self, number: int, error: int) -> None:
        """The changing operation with that number (see `operations`) fails with this errno and does nothing."""
        self._armed_number = (number, error)

    def heal(self) -> None:
        """No fault from now on; what was damaged stays so."""
        self._armed = []
        self._armed_number = None
        self._free = None
        self.slowness = 1.0

    def flip_bit(self, path: str, offset: int, bit: int = 0) -> None:
        """Bit rot at one place, on the medium and in the cache."""
        inode = self._file(_clean(path))
        for content in (inode.durable, inode.view):
            if offset >= content.size:
                raise ValueError(f"{path} ends at {content.size}, there is no byte {offset}")
            content.write(offset, bytes([content.read(1, offset)[0] ^ (1 << bit)]))
        self.faults[DiskFault.BIT_ROT] += 1

    def rot(self, rng: random.Random, prefix: str = "/", suffix: str = "") -> tuple[str, int] | None:
        """Flip a bit of synced, written bytes in some file below `prefix`; tells where, or None if there is none."""
        prefix = _clean(prefix)
        paths = [
            path
            for path in sorted(self._durable_names)
            if isinstance(node := self._durable_names[path], _Inode)
            and self._names.get(path) is node
            and _is_below(path, prefix)
            and path.endswith(suffix)
            and node.durable.data
        ]
        if not paths:
            return None
        path = rng.choice(paths)
        inode = self._file(path)
        offset = rng.randrange(len(inode.durable.data))
        bit = rng.randrange(8)
        if offset >= inode.view.size or any(_touches(operation, offset) for operation in inode.pending):
            return None
        self.flip_bit(path, offset, bit)
        return path, offset

    # Recording

    def start_recording(self) -> None:
        """Note every operation from now on. What is unsynced now counts as done first."""
        names = {path: _target(node) for path, node in self._durable_names.items()}
        files: dict[int, FileImage] = {}
        record: list[Operation] = []
        for node in _inodes(self._durable_names, self._names):
            files[node.number] = FileImage(bytes(node.durable.data), node.durable.size)
            record.extend(node.pending)
        record.extend(change for change, _ in self._pending_names)
        self._record = record
        self._record_start = (names, files)

    def note(self, what: object) -> None:
        """Put a mark between the recorded operations; a crash state tells which marks came before it."""
        self._note_operation(Note(what))

    def recorded(self) -> Recording:
        """What was recorded since `start_recording`, which goes on."""
        if self._record is None:
            raise ValueError("start_recording() comes first")
        names, files = self._record_start
        return Recording(names, files, tuple(self._record))

    # Inside

    def _new_inode(self, content: Content) -> _Inode:
        inode = _Inode(self._next_inode, content)
        self._next_inode += 1
        return inode

    def _file(self, path: str) -> _Inode:
        node = self._names.get(path)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        if isinstance(node, NameKind):
            raise IsADirectoryError(errno.EISDIR, "is a directory", path)
        return node

    def _require_directory(self, path: str) -> None:
        node = self._names.get(path)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, "no such directory", path)
        if node is not NameKind.DIRECTORY:
            raise NotADirectoryError(errno.ENOTDIR, "not a directory", path)

    def _require_parent(self, path: str) -> None:
        self._require_directory(parent(path))

    def _release(self, node: _Node | None) -> None:
        if self._free is not None and isinstance(node, _Inode):
            self._free += node.view.size

    def _count_operation(self, path: str) -> None:
        number = self.operations
        self.operations += 1
        if self._armed_number is not None and self._armed_number[0] == number:
            error = self._armed_number[1]
            self._armed_number = None
            if error == errno.ENOSPC:
                self._full(path)
            raise OSError(error, "injected failure", path)

    def _full(self, path: str) -> None:
        self.faults[DiskFault.FULL] += 1
        raise OSError(errno.ENOSPC, "no space left", path)

    def _take_armed(self, fault: DiskFault, path: str) -> _Armed | None:
        for armed in self._armed:
            if armed.fault is fault and _is_below(path, armed.prefix):
                armed.count -= 1
                if armed.count <= 0:
                    self._armed.remove(armed)
                self.faults[fault] += 1
                return armed
        return None

    def _note_operation(self, operation: Operation) -> None:
        if self._record is not None:
            self._record.append(operation)

    def _change(self, inode: _Inode, operation: FileOperation) -> None:
        apply(inode.view, operation)
        inode.pending.append(operation)
        self._note_operation(operation)

    def _set_names(self, sets: tuple[tuple[str, _Node], ...]) -> None:
        change = SetNames(tuple((path, _target(node)) for path, node in sets))
        nodes = tuple(node for _, node in sets)
        self._pending_names.append((change, nodes))
        _apply_names(self._names, change, nodes)
        self._note_operation(change)

    def _survive_names(self, pending: list[_PendingNames], rng: random.Random) -> None:
        for change, nodes in pending:
            if draw_outcome(change, rng).survival is Survival.WHOLE:
                _apply_names(self._durable_names, change, nodes)
            else:
                self.faults[DiskFault.LOST_NAME] += 1


@lru_cache(4096)
def _clean(path: str) -> str:
    return "/" + "/".join(part for part in path.split("/") if part)


def _apply_names(names: dict[str, _Node], change: SetNames, nodes: tuple[_Node, ...]) -> None:
    for (path, _), node in zip(change.sets, nodes, strict=True):
        if node is NameKind.NOTHING:
            names.pop(path, None)
        else:
            names[path] = node


def _is_below(path: str, prefix: str) -> bool:
    return path == prefix or path.startswith(prefix if prefix.endswith("/") else prefix + "/")


def _target(node: _Node) -> NameTarget:
    return node.number if isinstance(node, _Inode) else node


def _touches(operation: FileOperation, offset: int) -> bool:
    if isinstance(operation, Write):
        return operation.offset <= offset < operation.offset + len(operation.data)
    return isinstance(operation, Truncate) and operation.size <= offset


def _inodes(*names: Mapping[str, _Node]) -> Iterable[_Inode]:
    """Every file that has a name in any of these, once, oldest first."""
    found = {node.number: node for one in names for node in one.values() if isinstance(node, _Inode)}
    return [found[number] for number in sorted(found)]
