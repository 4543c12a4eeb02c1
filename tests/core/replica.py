"""A replica for tests: the production executor over production storage on a simulated disk, and a list of what it
sends. Nothing is written before the test says so."""

from __future__ import annotations

from enum import Enum
from itertools import count
from typing import TypeVar

from varlog import batch
from varlog.core.dedup import DedupTable
from varlog.core.executor import LogStreamExecutor
from varlog.core.messages import (
    Append,
    AppendReplies,
    AppendReply,
    Message,
    ReplicaReply,
    Replicate,
    ReplicateAck,
    Seal,
    Unseal,
)
from varlog.errors import VarlogError
from varlog.sim.disk import SimDisk
from varlog.storage.format import LogBase
from varlog.storage.group import WriteGroup
from varlog.storage.log import LogStreamStorage, StorageOptions
from varlog.types import (
    GLSN,
    LLSN,
    ClusterID,
    CommitContext,
    Epoch,
    LogStreamID,
    LogStreamIdentity,
    Sequence,
    StorageNodeID,
    TopicID,
    Version,
)

TOPIC, LSID = TopicID(1), LogStreamID(1)
ME, OTHER, THIRD = map(StorageNodeID, (1, 2, 3))
CLIENT, MANAGER = "client", "manager"
PATH = "/volume/replica"

M = TypeVar("M", bound=Message)


def batch_of(sequence: int, *entries: bytes, writer: int = 7) -> bytes:
    return batch.encode(entries or [b"%d" % sequence], writer_id=writer, sequence=sequence)


def cut(begin: int, end: int, *, epoch: int = 2, version: int = 0, glsn: int = 0, hwm: int = 0) -> CommitContext:
    """A cut of one log stream that is alone in its topic, so that GLSNs are LLSNs unless told otherwise."""
    glsn = glsn or begin
    last = glsn + end - begin - 1
    return CommitContext(
        Version(version or last),
        Epoch(epoch),
        GLSN(hwm or last),
        GLSN(glsn - 1),
        LLSN(begin),
        GLSN(glsn),
        end - begin,
        0,
    )


class Replica:
    """See the module's text."""

    def __init__(
        self,
        snid: StorageNodeID = ME,
        disk: SimDisk | None = None,
        dedup: DedupTable | None = None,
        *,
        base: LogBase | None = None,
        segment_bytes: int = 1 << 16,
    ) -> None:
        self.snid = snid
        self.disk = disk or SimDisk()
        self.sent: list[tuple[str, Message]] = []
        self.branches: list[Enum] = []
        self.now = 0.0
        self._requests = count(1)
        nonces = count(1000)
        options = StorageOptions(segment_bytes=segment_bytes, nonce=lambda: next(nonces))
        identity = LogStreamIdentity(ClusterID(1), snid, TOPIC, LSID)
        if self.disk.exists(PATH):
            self.storage = LogStreamStorage.open(self.disk, PATH, identity, options)
        else:
            self.storage = LogStreamStorage.create(self.disk, PATH, identity, options, base)
        self.executor = LogStreamExecutor(snid, TOPIC, LSID, self.storage, self.send, self.branches.append, dedup)
        self.storage.snapshot_source = self.executor.dedup.snapshot
        recovered = self.storage.recovered
        self.executor.recover(recovered, recovered.corruption)

    def send(self, address: str, message: Message) -> None:
        self.sent.append((address, message))

    def restarted(self) -> Replica:
        """The same replica after its process was killed and started again."""
        self.disk.kill()
        return Replica(self.snid, self.disk)

    # What happens to it

    def seal(self, epoch: int, llsn_end: int, trim: int = 0, *, source: str = MANAGER) -> int:
        request = next(self._requests)
        self.executor.seal(source, Seal(request, LSID, Epoch(epoch), LLSN(llsn_end), GLSN(trim)))
        return request

    def unseal(self, epoch: int, replicas: tuple[int, ...] = (ME,), primary: int = ME) -> int:
        request = next(self._requests)
        members = tuple(map(StorageNodeID, replicas))
        message = Unseal(request, LSID, Epoch(epoch), members, StorageNodeID(primary), GLSN(0))
        self.executor.unseal(MANAGER, message, self.now)
        return request

    def run(self, replicas: tuple[int, ...] = (ME,), primary: int = ME) -> Replica:
        """Seal and unseal, so that it runs in the next even epoch; what it sent for that is forgotten."""
        epoch = self.executor.epoch
        self.seal(epoch + 1, self.executor.committed_end)
        self.sync()
        self.unseal(epoch + 2, replicas, primary)
        self.sync()
        self.sent.clear()
        self.branches.clear()
        return self

    def append(self, sequence: int, *entries: bytes, prev: int | None = None, epoch: int = 2, horizon: int = 1) -> int:
        """An append that is alone in its turn."""
        before = Sequence(sequence - 1 if prev is None else prev)
        request = self._append(CLIENT, batch_of(sequence, *entries), before, Epoch(epoch), LLSN(horizon))
        self.executor.flush()
        self.executor.stage()
        return request

    def append_together(self, *sequences: int, client: str = CLIENT, writer: int = 7) -> list[int]:
        """Several appends of one turn."""
        requests = [
            self._append(client, batch_of(sequence, writer=writer), Sequence(sequence - 1), Epoch(2), LLSN(1))
            for sequence in sequences
        ]
        self.executor.flush()
        self.executor.stage()
        return requests

    def _append(self, client: str, data: bytes, prev: Sequence, epoch: Epoch, horizon: LLSN) -> int:
        request = next(self._requests)
        message = Append(request, LSID, epoch, prev, horizon, data)
        self.executor.append(client, message, batch.verify(data), self.now)
        return request

    def replicate(self, sequence: int, llsn: int, *entries: bytes, epoch: int = 2) -> None:
        """A run of one batch."""
        self.replicate_run(llsn, (sequence, *(entries or [b"%d" % sequence])), epoch=epoch)

    def replicate_run(
        self, llsn: int, *batches: tuple[int, *tuple[bytes, ...]], epoch: int = 2, source: int = OTHER
    ) -> None:
        """A run of batches, each told as its sequence and its entries."""
        contents = tuple(batch_of(sequence, *entries) for sequence, *entries in batches)
        prev_sequences = tuple(Sequence(sequence - 1) for sequence, *_ in batches)
        message = Replicate(LSID, Epoch(epoch), LLSN(llsn), prev_sequences, contents)
        self.executor.on_replicate(f"sn/{source}", message, list(map(batch.verify, contents)))
        self.executor.stage()

    def acknowledged(self, end: int, *, epoch: int = 2, accepted: bool = True, snid: int = OTHER) -> None:
        """A backup answers."""
        ends = (LLSN(end), LLSN(end))
        message = ReplicateAck(LSID, StorageNodeID(snid), Epoch(epoch), accepted, *ends)
        self.executor.on_replicate_ack(message, self.now)

    def commit(self, begin: int, end: int, *, epoch: int = 2, **where: int) -> bool:
        return self.executor.apply_commit(cut(begin, end, epoch=epoch, **where))

    def tick(self, seconds: float) -> None:
        self.now += seconds
        self.executor.tick(self.now)

    # Its disk

    def write(self) -> WriteGroup:
        """Write what is staged and leave it unsynced: it may be synced, or not, any time later."""
        group = self.storage.take()
        assert group is not None
        self.storage.write(group)
        return group

    def synced(self, group: WriteGroup) -> None:
        if group.needs_sync:
            self.storage.sync(group)
        self.storage.finish(group)
        if group.needs_sync:
            last = None
            if group.last_epoch is not None and group.last_llsn_end is not None:
                last = (group.last_epoch, group.last_llsn_end)
            self.executor.on_durable(last, group.epoch_records, self.storage.durable_version)

    def sync(self) -> None:
        """Write and sync everything that is staged."""
        while self.storage.staged:
            self.synced(self.write())

    # What it says

    def messages(self, kind: type[M]) -> list[M]:
        return [message for _, message in self.sent if isinstance(message, kind)]

    def append_replies(self) -> list[AppendReply]:
        """Every answer to an append, whether it came alone or with others."""
        replies: list[AppendReply] = []
        for _, message in self.sent:
            if isinstance(message, AppendReply):
                replies.append(message)
            elif isinstance(message, AppendReplies):
                replies += message.each()
        return replies

    def answer(self, request: int) -> str:
        """How an append was answered: its GLSN, the name of an error, or "" if it was not."""
        replies = [reply for reply in self.append_replies() if reply.request == request]
        if not replies:
            return ""
        (reply,) = replies
        return VarlogError.registry[reply.code].__name__ if reply.code else f"GLSN {reply.glsn}"

    def reply(self, request: int) -> str:
        """How a seal or unseal was answered: state and epoch, the name of an error, or "" if it was not."""
        replies = [reply for reply in self.messages(ReplicaReply) if reply.request == request]
        if not replies:
            return ""
        (reply,) = replies
        return VarlogError.registry[reply.code].__name__ if reply.code else f"{reply.state.name} {reply.epoch}"

    @property
    def state(self) -> str:
        return f"{self.executor.state.name} {self.executor.epoch}"

    @property
    def ends(self) -> tuple[int, int, int]:
        """Committed, durable, stored."""
        return self.executor.committed_end, self.executor.durable_end, self.executor.end
