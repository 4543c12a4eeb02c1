"""The replicas of a storage node: each a storage on some volume, and the executor over it.

There are two kinds, one for each ordering: which one a log stream on disk is of, its files say. What they have in
common is all that most of a node needs to know of them.

At start every log stream found on the volumes is opened and recovered (B3); later some are added and removed. A replica
begins in SEALING (B7): making one gives nobody anything to append to. Data that is there already is never taken for a
new log stream's (B6).

What cannot be opened concerns itself alone: the others are served, and it is kept as what it is (`UnopenedReplica`),
with its files as they are, until whoever manages the cluster has decided about it. Only what is another's (B4), and
what this process lacks, keeps a node from starting.

A removal that was interrupted is finished at the next start: the directory says that it is being removed before the
first of its files goes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final, NamedTuple

from varlog import errors, limits
from varlog.core.address import Send
from varlog.core.branches import Observe
from varlog.core.chainreplica import ChainReplica
from varlog.core.executor import LogStreamExecutor
from varlog.core.messages import ReplicaInfo
from varlog.storage.directory import is_shortage, typed_errors
from varlog.storage.files import FileSystem
from varlog.storage.format import LogBase
from varlog.storage.grouped import AnyLog
from varlog.storage.identity import identify, ordering_of
from varlog.storage.log import LogStreamStorage
from varlog.storage.logfiles import LOCK_NAME, MARK_NAME, UNFINISHED, make_room, publish
from varlog.storage.options import StorageOptions
from varlog.storage.writeonce import WriteOnceStorage
from varlog.storagenode.volumes import Volumes
from varlog.types import (
    FIRST_LLSN,
    MAX_ID,
    Epoch,
    LogStreamID,
    LogStreamIdentity,
    Ordering,
    ReplicaState,
    TopicID,
)

REMOVED_NAME: Final = "removed"
"""A directory that holds a file of this name is being deleted."""

ITS_OWN: Final = (errors.Corrupt, errors.Poisoned, errors.DiskFull, errors.NotWritable)
"""What can be wrong with one replica while the others are well."""


class Replica(NamedTuple):
    """Of a log stream that commits order."""

    volume: str
    storage: LogStreamStorage
    executor: LogStreamExecutor


class ChainedReplica(NamedTuple):
    """Of one that a sequencer orders."""

    volume: str
    storage: WriteOnceStorage
    executor: ChainReplica


AnyReplica = Replica | ChainedReplica


class UnopenedReplica(NamedTuple):
    """One that is on the disk and could not be opened. Its topic and its ordering may be unknown: it answers nobody,
    and promises nothing."""

    volume: str
    lsid: LogStreamID
    error: errors.VarlogError
    """Why."""

    def info(self) -> ReplicaInfo:
        state = (Epoch(0), ReplicaState.SEALING, FIRST_LLSN, FIRST_LLSN, False)
        return ReplicaInfo(self.lsid, *state, fault=self.error.code, volume=self.volume)


class Replicas:
    """See the module's text. `served(replica)` is told of every replica that comes to life."""

    def __init__(
        self,
        fs: FileSystem,
        volumes: Volumes,
        options: StorageOptions,
        send: Send,
        observe: Observe,
        served: Callable[[AnyReplica], None],
    ) -> None:
        self._fs = fs
        self._volumes = volumes
        self._options = options
        self._send = send
        self._observe = observe
        self._served = served
        self._replicas: dict[LogStreamID, AnyReplica] = {}
        self._by_storage: dict[AnyLog, AnyReplica] = {}
        self.unopened: dict[LogStreamID, UnopenedReplica] = {}
        """What is there and is not served."""

    def __iter__(self) -> Iterator[AnyReplica]:
        return iter(self._replicas.values())

    def __len__(self) -> int:
        return len(self._replicas)

    def get(self, lsid: LogStreamID) -> AnyReplica | None:
        return self._replicas.get(lsid)

    def committed(self, lsid: LogStreamID) -> Replica | None:
        """Only one that commits order."""
        replica = self._replicas.get(lsid)
        return replica if isinstance(replica, Replica) else None

    def of(self, storage: AnyLog) -> AnyReplica:
        """The replica whose storage it is."""
        return self._by_storage[storage]

    def open_all(self) -> None:
        """Load every log stream the volumes hold (B3)."""
        for lsid, volume in self._volumes.replicas().items():
            path = self._volumes.replica_path(volume, lsid)
            if self._fs.exists(f"{path}/{REMOVED_NAME}"):
                with suppress(OSError):  # what cannot be deleted is in nobody's way
                    self._delete(path)
                continue
            try:
                if self._open_found(volume, lsid) is None:
                    self._clear_begun(path)
            except ITS_OWN as error:
                if is_shortage(error):
                    raise
                self.unopened[lsid] = UnopenedReplica(volume, lsid, error)

    def _open_found(self, volume: str, lsid: LogStreamID) -> AnyReplica | None:
        """What the files of a replica say it is; None if its making was interrupted, and nobody was told of it."""
        path = self._volumes.replica_path(volume, lsid)
        with typed_errors(path):
            found = identify(self._fs, path)
            if found is not None:
                return self._open(volume, LogStreamIdentity(self._volumes.cid, self._volumes.snid, found.tpid, lsid))
            if self._fs.exists(f"{path}/{MARK_NAME}"):  # which is made after the first segment
                raise errors.Corrupt("all segments are missing", segment=f"lsid={lsid}", offset=0)
            return None

    def _open(self, volume: str, identity: LogStreamIdentity) -> AnyReplica:
        path = self._volumes.replica_path(volume, identity.lsid)
        if ordering_of(self._fs, path) is Ordering.SEQUENCER:
            return self._chain(volume, WriteOnceStorage.open(self._fs, path, identity, self._options), identity)
        return self._serve(volume, LogStreamStorage.open(self._fs, path, identity, self._options), identity)

    def add(self, tpid: TopicID, lsid: LogStreamID, volume: str, ordering: Ordering = Ordering.COMMIT) -> AnyReplica:
        """Make an empty replica. One that is there, of the same topic and without a past, is the same request again."""
        if not (1 <= tpid <= MAX_ID and 1 <= lsid <= MAX_ID):
            raise errors.InvalidArgument(f"topic {tpid}, log stream {lsid}: ids go from 1 to {MAX_ID}")
        if volume and volume not in self._volumes.paths:
            raise errors.InvalidArgument(f"{volume} is none of this node's volumes {', '.join(self._volumes.paths)}")
        replica = self._replicas.get(lsid)
        if replica is not None:
            executor = replica.executor
            is_other = isinstance(replica, ChainedReplica) != (ordering is Ordering.SEQUENCER)
            if executor.tpid != tpid or executor.epoch > 0 or volume not in ("", replica.volume) or is_other:
                raise errors.AlreadyExists(f"log stream {lsid} has data on this node, in {replica.volume}")
            return replica
        if (unopened := self.unopened.get(lsid)) is not None:
            raise errors.AlreadyExists(f"log stream {lsid} has data in {unopened.volume}: {unopened.error}")
        count = len(self._replicas) + len(self.unopened)
        if count >= limits.MAX_LOG_STREAMS_PER_NODE:
            raise errors.LimitExceeded(f"this node has {count} log streams already")
        volume = volume or self._volumes.paths[count % len(self._volumes.paths)]
        for other in self._volumes.paths:
            if other != volume and self._fs.exists(self._volumes.replica_path(other, lsid)):
                raise errors.AlreadyExists(f"log stream {lsid} has a directory in {other}; nothing was changed")
        if ordering is Ordering.SEQUENCER:
            identity = LogStreamIdentity(self._volumes.cid, self._volumes.snid, tpid, lsid)
            with self._cleaned_up(path := self._volumes.replica_path(volume, lsid)):
                chained = WriteOnceStorage.create(self._fs, path, identity, self._options)
            return self._chain(volume, chained, identity)
        return self.make(tpid, lsid, volume)

    def make(self, tpid: TopicID, lsid: LogStreamID, volume: str, base: LogBase | None = None) -> Replica:
        """Make a replica where there is none: empty, or one that begins with a base."""
        identity = LogStreamIdentity(self._volumes.cid, self._volumes.snid, tpid, lsid)
        with self._cleaned_up(path := self._volumes.replica_path(volume, lsid)):
            storage = LogStreamStorage.create(self._fs, path, identity, self._options, base)
        return self._serve(volume, storage, identity)

    @contextmanager
    def _cleaned_up(self, path: str) -> Iterator[None]:
        """A log stream is made; what was only begun is not left behind."""
        if self._fs.exists(f"{path}/{REMOVED_NAME}"):  # the next start would delete what is made there now
            raise errors.AlreadyExists(f"{path} was to be deleted and could not be; delete it by hand")
        try:
            yield
        except errors.VarlogError:
            self._clear_begun(path)
            raise

    def _clear_begun(self, path: str) -> None:
        """Delete a directory if nothing in it was ever finished: what was only begun holds space, and no other log
        stream gets that id."""
        with suppress(OSError):
            names = self._fs.listdir(path)
            if all(name == LOCK_NAME or name.endswith(UNFINISHED) for name in names):
                self._delete(path)

    def _serve(self, volume: str, storage: LogStreamStorage, identity: LogStreamIdentity) -> Replica:
        executor = LogStreamExecutor(identity.snid, identity.tpid, identity.lsid, storage, self._send, self._observe)
        storage.snapshot_source = executor.dedup.snapshot
        executor.recover(storage.recovered, storage.corruption)
        replica = Replica(volume, storage, executor)
        self._keep(replica)
        return replica

    def _chain(self, volume: str, storage: WriteOnceStorage, identity: LogStreamIdentity) -> ChainedReplica:
        executor = ChainReplica(
            identity.snid, identity.tpid, identity.lsid, storage, self._send, self._observe, storage.corruption
        )
        replica = ChainedReplica(volume, storage, executor)
        self._keep(replica)
        return replica

    def _keep(self, replica: AnyReplica) -> None:
        self._replicas[replica.executor.lsid] = self._by_storage[replica.storage] = replica
        self._served(replica)

    def check_room(self, volume: str, lsid: LogStreamID) -> None:
        """Raise unless the disk of a replica takes what opening it may need, a segment."""
        path = self._volumes.replica_path(volume, lsid)
        with typed_errors(path):
            make_room(self._fs, path, self._options.segment_bytes)

    def reopen(self, volume: str, lsid: LogStreamID) -> AnyReplica:
        """Open a replica that was closed, or could not be opened, as at the start of the node. If that fails it is kept
        as one that could not be, whatever the reason."""
        try:
            replica = self._open_found(volume, lsid)
        except errors.VarlogError as error:
            self.unopened[lsid] = UnopenedReplica(volume, lsid, error)
            raise
        self.unopened.pop(lsid, None)
        if replica is None:
            raise errors.NoSuchReplica(f"nothing is left of log stream {lsid} in {volume}")
        return replica

    def close_one(self, lsid: LogStreamID) -> AnyReplica:
        """Close a replica of which no group and no read is under way, as if the process was killed."""
        replica = self._replicas.pop(lsid)
        del self._by_storage[replica.storage]
        replica.storage.abandon()
        return replica

    def let_go(self, lsid: LogStreamID) -> str:
        """The same, for good; what is to be deleted then. Also of what was never opened."""
        unopened = self.unopened.pop(lsid, None)
        volume = unopened.volume if unopened is not None else self.close_one(lsid).volume
        path = self._volumes.replica_path(volume, lsid)
        with suppress(OSError):  # what a full disk does not let be said must still be possible to do
            publish(self._fs, path, REMOVED_NAME, b"").close()
        return path

    def delete(self, path: str) -> None:
        """Delete what was let go of; in any thread."""
        with typed_errors(path):
            self._delete(path)

    def _delete(self, path: str) -> None:
        """All of a directory; what says that it is being removed goes last."""
        for name in self._fs.listdir(path):
            if name != REMOVED_NAME:
                self._fs.unlink(f"{path}/{name}")
        self._fs.sync_dir(path)
        for name in self._fs.listdir(path):
            self._fs.unlink(f"{path}/{name}")
        self._fs.rmdir(path)
        self._fs.sync_dir(path.rpartition("/")[0])

    def abandon(self) -> None:
        """Let go of everything as it is, as if the process was killed."""
        for replica in self._replicas.values():
            replica.storage.abandon()
        self._replicas.clear()
        self._by_storage.clear()

    def close(self) -> None:
        """Sync and let go of everything; a disk that fails now has failed for its own replicas only."""
        for replica in self._replicas.values():
            try:
                replica.storage.close()
            except errors.VarlogError as error:
                replica.executor.on_failed(error.code)
        self._replicas.clear()
        self._by_storage.clear()
