"""What a storage node's volumes say of who it is (B11): `identity`, a file in each StorageNodePath.

It names the cluster and the node, and holds the node's secret, and the one after it while the node changes from one to
the other. A change is written to the volumes one after another, and may be interrupted between any two of them: the
next secret is on all volumes before it becomes the secret on any. So volumes agree if one secret is what each of them
holds or is about to. Volumes that do not agree are not of one node, or not of one time, and it is not started with
them:

- a directory that was copied, renamed or put under another name holds another name inside;
- a volume that was swapped with another node's, or is an older copy, holds another secret;
- a volume that holds log streams and no secret, beside others that hold one, is not this node's.

A volume that holds nothing is a new one, and is given the secret. If none holds a secret, the node was never registered
or has lost its disks; the metadata repository can tell.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

import msgspec

from varlog import errors
from varlog.core.proving import Held
from varlog.storage.directory import error_of
from varlog.storage.files import FileSystem
from varlog.storage.logfiles import publish
from varlog.types import ClusterID, StorageNodeID

IDENTITY_NAME: Final = "identity"
_FORMAT: Final = 1
_MOST_BYTES: Final = 4096


@contextmanager
def volume_errors(path: str) -> Iterator[None]:
    """A volume that cannot be used is not usable, whatever the operating system calls it; only a full one is told
    apart."""
    try:
        yield
    except OSError as e:
        error = error_of(path, e)
        raise (error if isinstance(error, errors.DiskFull) else errors.NotWritable(f"{path}: {e}")) from e


class Content(msgspec.Struct, frozen=True):
    """What the file holds."""

    format: int
    cid: ClusterID
    snid: StorageNodeID
    held: Held | None = None
    next: Held | None = None


class _Version(msgspec.Struct):
    format: int


class Secrets:
    """The secrets of one node on its volumes; `Keeper` says what is asked of it. Made by `load`."""

    def __init__(self, fs: FileSystem, cid: ClusterID, snid: StorageNodeID, paths: Sequence[str]) -> None:
        self._fs = fs
        self._cid = cid
        self._snid = snid
        self._paths = tuple(paths)
        self.held: Held | None = None
        self.next: Held | None = None

    @classmethod
    def load(
        cls, fs: FileSystem, cid: ClusterID, snid: StorageNodeID, paths: Sequence[str], occupied: Sequence[str]
    ) -> Secrets:
        """Read what the node's directories hold; `occupied` are those with log streams in them. Refuses what is not of
        one and the same node."""
        secrets = cls(fs, cid, snid, paths)
        found = {path: content for path in paths if (content := read(fs, path)) is not None}
        for path, content in found.items():
            secrets._check_name(path, content)
        whole = {path: content for path, content in found.items() if content.held is not None}
        if not whole:
            return secrets
        for path in occupied:
            if path not in found:
                raise errors.WrongIdentity(
                    f"{path} holds log streams but no identity, and {next(iter(whole))} has one: it is not of this "
                    "node; start without it, or move what it holds away"
                )
        secrets.held = agreed(found)
        new = [path for path in paths if path not in found]
        for path in new:
            secrets._write(path, secrets.held, None)
        return secrets

    def _check_name(self, path: str, content: Content) -> None:
        if (content.cid, content.snid) != (self._cid, self._snid):
            raise errors.WrongIdentity(
                f"{path} is the data of storage node {content.snid} of cluster {content.cid}, not of storage node "
                f"{self._snid} of cluster {self._cid}: it was copied or renamed; move it back"
            )

    def keep(self, held: Held | None, successor: Held | None) -> None:
        """See `Keeper`."""
        for path in self._paths:
            self._write(path, held, successor)
        self.held, self.next = held, successor

    def _write(self, path: str, held: Held | None, successor: Held | None) -> None:
        data = msgspec.json.encode(Content(_FORMAT, self._cid, self._snid, held, successor))
        with volume_errors(path):
            publish(self._fs, path, IDENTITY_NAME, data).close()


def agreed(found: Mapping[str, Content]) -> Held:
    """The one secret that every volume holds or is about to, if some volume holds one."""
    whole = {path: content for path, content in found.items() if content.held is not None}
    for held in dict.fromkeys(content.held for content in whole.values()):
        if held is not None and all(held in (content.held, content.next) for content in found.values()):
            return held
    paths = list(found)
    generations = {content.held.generation for content in whole.values() if content.held is not None}
    what = "different identities" if len(generations) > 1 else "an identity of different times"
    raise errors.WrongIdentity(
        f"the volumes {' and '.join(paths)} hold {what}: one is a copy, another node's, or was left out of a start; "
        "start without the one that does not belong here, or empty it"
    )


def read(fs: FileSystem, path: str) -> Content | None:
    """What a node's directory says of whose it is; None if nothing."""
    name = f"{path}/{IDENTITY_NAME}"
    with volume_errors(name):
        if not fs.exists(name):
            return None
        file = fs.open(name)
        try:
            data = bytes(file.pread(_MOST_BYTES, 0))
        finally:
            file.close()
    try:
        written = msgspec.json.decode(data, type=_Version).format
        if written > _FORMAT:
            raise errors.UnsupportedFormat(f"{name} was written by a newer version; upgrade before starting this node")
        return msgspec.json.decode(data, type=Content)
    except (msgspec.DecodeError, UnicodeDecodeError):  # not what is in it: that may be a secret
        raise errors.WrongIdentity(f"{name} does not hold the identity of a storage node") from None
