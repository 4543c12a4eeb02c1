"""The replicas of a storage node: each a storage on some volume, and the executor over it.

At start every log stream found on the volumes is opened and recovered (B3); later some are added and removed. A replica
begins in SEALING (B7): making one gives nobody anything to append to. Data that is there already is never taken for a
new log stream's (B6).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from varlog import errors, limits
from varlog.core.address import Send
from varlog.core.branches import Observe
from varlog.core.executor import LogStreamExecutor
from varlog.storage.directory import typed_errors
from varlog.storage.files import FileSystem
from varlog.storage.identity import identify
from varlog.storage.log import LogStreamStorage
from varlog.storage.options import StorageOptions
from varlog.storagenode.volumes import Volumes
from varlog.types import LogStreamID, LogStreamIdentity, TopicID


class Replica(NamedTuple):
    volume: str
    storage: LogStreamStorage
    executor: LogStreamExecutor


class Replicas:
    """See the module's text. `served(executor)` is told of every replica that comes to life."""

    def __init__(
        self,
        fs: FileSystem,
        volumes: Volumes,
        options: StorageOptions,
        send: Send,
        observe: Observe,
        served: Callable[[LogStreamExecutor], None],
    ) -> None:
        self._fs = fs
        self._volumes = volumes
        self._options = options
        self._send = send
        self._observe = observe
        self._served = served
        self._replicas: dict[LogStreamID, Replica] = {}

    def __iter__(self) -> Iterator[Replica]:
        return iter(self._replicas.values())

    def __len__(self) -> int:
        return len(self._replicas)

    def get(self, lsid: LogStreamID) -> Replica | None:
        return self._replicas.get(lsid)

    def open_all(self) -> None:
        """Load every log stream the volumes hold (B3)."""
        for lsid, volume in self._volumes.replicas().items():
            path = self._volumes.replica_path(volume, lsid)
            found = identify(self._fs, path)
            if found is None:
                continue  # its making was interrupted: nobody was told of it
            wanted = LogStreamIdentity(self._volumes.cid, self._volumes.snid, found.tpid, lsid)
            self._serve(volume, LogStreamStorage.open(self._fs, path, wanted, self._options), wanted)

    def add(self, tpid: TopicID, lsid: LogStreamID, volume: str) -> Replica:
        """Make an empty replica. One that is there, of the same topic and without a past, is the same request again."""
        replica = self._replicas.get(lsid)
        if replica is not None:
            executor = replica.executor
            if executor.tpid != tpid or executor.epoch > 0:
                raise errors.AlreadyExists(f"log stream {lsid} has data on this node, in {replica.volume}")
            return replica
        if volume and volume not in self._volumes.paths:
            raise errors.InvalidArgument(f"{volume} is none of this node's volumes {', '.join(self._volumes.paths)}")
        if len(self._replicas) >= limits.MAX_LOG_STREAMS_PER_NODE:
            raise errors.LimitExceeded(f"this node has {len(self._replicas)} log streams already")
        volume = volume or self._volumes.paths[len(self._replicas) % len(self._volumes.paths)]
        identity = LogStreamIdentity(self._volumes.cid, self._volumes.snid, tpid, lsid)
        path = self._volumes.replica_path(volume, lsid)
        return self._serve(volume, LogStreamStorage.create(self._fs, path, identity, self._options), identity)

    def _serve(self, volume: str, storage: LogStreamStorage, identity: LogStreamIdentity) -> Replica:
        executor = LogStreamExecutor(identity.snid, identity.tpid, identity.lsid, storage, self._send, self._observe)
        storage.snapshot_source = executor.dedup.snapshot
        executor.recover(storage.recovered, storage.corruption)
        replica = self._replicas[identity.lsid] = Replica(volume, storage, executor)
        self._served(executor)
        return replica

    def remove(self, lsid: LogStreamID) -> None:
        """Delete a replica with its data. No group of it is under way."""
        volume, storage, _ = self._replicas.pop(lsid)
        path = self._volumes.replica_path(volume, lsid)
        storage.abandon()
        with typed_errors(path):
            for name in self._fs.listdir(path):
                self._fs.unlink(f"{path}/{name}")
            self._fs.rmdir(path)
            self._fs.sync_dir(path.rpartition("/")[0])

    def close(self) -> None:
        """Sync and let go of everything; a disk that fails now has failed for its own replicas only."""
        for replica in self._replicas.values():
            try:
                replica.storage.close()
            except errors.VarlogError as error:
                replica.executor.on_failed(error.code)
        self._replicas.clear()
