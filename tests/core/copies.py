"""Storage nodes with a replica of one log stream each, and the wire between them, for tests of copies.

A `Site` does what a caller of `StorageNode` has to do. Nothing arrives, is read or is written before the test says so;
`Sites.settle` lets everything happen that can, without time passing.
"""

from __future__ import annotations

from collections import deque
from typing import TypeVar

from tests.core.replica import LSID, MANAGER, Replica, batch_of, cut
from varlog import batch, errors
from varlog.core.address import node_address
from varlog.core.dedup import DedupTable
from varlog.core.messages import LogPart, Message, Seal, Sync, SyncReply, Unseal
from varlog.core.storagenode import StorageNode
from varlog.sim.disk import SimDisk
from varlog.storage.copying import base_of
from varlog.types import GLSN, LLSN, Epoch, Sequence, StorageNodeID, Version

M = TypeVar("M", bound=Message)
SMALL_SEGMENTS = 1 << 11


class Site:
    """One node."""

    def __init__(self, snid: int, segment_bytes: int = SMALL_SEGMENTS) -> None:
        self.snid = StorageNodeID(snid)
        self.segment_bytes = segment_bytes
        self.sent: list[tuple[str, Message]] = []
        self.branches: list[object] = []
        self.now = 0.0
        self._boot = 0
        self._serve(Replica(self.snid, dedup=self.table(), segment_bytes=segment_bytes))

    @staticmethod
    def table() -> DedupTable:
        return DedupTable(per_writer=4, total=10)

    def _serve(self, replica: Replica) -> None:
        self.replica = replica
        self._boot += 1
        self.node = StorageNode(self.snid, self._boot, self._send, self.branches.append)
        replica.send = self._send  # type: ignore[method-assign]
        replica.executor._send = self._send
        replica.executor._observe = self.branches.append
        self.node.add(replica.executor)
        self.node.tick(self.now)
        self.sent.clear()

    def _send(self, address: str, message: Message) -> None:
        self.sent.append((address, message))

    def restart(self) -> None:
        """Kill the process and start it again."""
        disk = self.replica.disk
        disk.kill()
        self._serve(Replica(self.snid, disk, self.table(), segment_bytes=self.segment_bytes))

    # The duties of a caller

    def receive(self, source: str, message: Message) -> None:
        self.node.on_message(source, message, self.now)

    def read(self) -> None:
        fetches, self.node.syncing.fetches = self.node.syncing.fetches, []
        for plan in fetches:
            fetch = plan.fetch
            try:
                storage = self.replica.storage
                part = storage.copy_from(fetch.llsn_begin, fetch.after, fetch.max_bytes, plan.executor.dedup.fold)
            except errors.VarlogError as error:
                self.node.finish_fetch(plan, error)
            else:
                self.node.finish_fetch(plan, part)

    def start_anew(self) -> None:
        restarts, self.node.syncing.restarts = self.node.syncing.restarts, []
        for plan in restarts:
            base = base_of(plan.base, plan.epoch)
            self.node.remove(LSID)
            self.replica.storage.abandon()
            replica = Replica(self.snid, SimDisk(), self.table(), base=base, segment_bytes=self.segment_bytes)
            replica.executor._send = self._send
            replica.executor._observe = self.branches.append
            self.replica = replica
            self.node.add(replica.executor)
            self.node.syncing.resume(replica.executor, plan)

    def write(self) -> bool:
        self.node.flush(self.now)
        self.node.stage()
        if not self.replica.storage.staged:
            return False
        self.replica.sync()
        self.node.flush(self.now)
        return True

    # Its replica

    @property
    def ends(self) -> tuple[int, int, int]:
        return self.replica.ends

    @property
    def state(self) -> str:
        return self.replica.state

    def seal(self, epoch: int, llsn_end: int, trim: int = 0) -> None:
        self.receive(MANAGER, Seal(1, LSID, Epoch(epoch), LLSN(llsn_end), GLSN(trim)))

    def unseal(self, epoch: int, *members: int) -> None:
        replicas = tuple(map(StorageNodeID, members or (self.snid,)))
        self.receive(MANAGER, Unseal(1, LSID, Epoch(epoch), replicas, replicas[0], GLSN(0)))

    def sync_from(self, source: int, epoch: int, *, learner: bool = False) -> None:
        self.receive(MANAGER, Sync(1, LSID, Epoch(epoch), StorageNodeID(source), learner))

    def run(self, epoch: int) -> None:
        """Seal at the end and unseal, alone."""
        self.seal(epoch - 1, self.replica.executor.committed_end)
        self.write()
        self.unseal(epoch)
        self.write()

    def store(self, *sequences: int, epoch: int = 2, writer: int = 7, size: int = 8) -> None:
        """Batches of two entries, as a replica of the set in that epoch has them."""
        executor = self.replica.executor
        for sequence in sequences:
            content = batch_of(sequence, b"%d" % sequence, b"x" * size, writer=writer)
            executor.store_copied(Epoch(epoch), Sequence(sequence - 1), batch.verify(content), content)
        self.write()
        executor.durable_end = executor.end

    def commit(self, llsn_end: int, *, epoch: int = 2, skip: int = 0) -> None:
        executor = self.replica.executor
        glsn = executor.global_hwm + 1 + skip
        version = executor.version + 1
        cc = cut(executor.committed_end, llsn_end, epoch=epoch, glsn=glsn, version=version)
        assert executor.apply_commit(cc)
        self.write()

    def log(self) -> tuple[list[tuple[int, ...]], list[bytes], bytes]:
        """What is committed here, with its commit contexts and deduplication table."""
        executor, storage = self.replica.executor, self.replica.storage
        first = GLSN(executor.trim_glsn + 1)
        stored = storage.read(first, GLSN(executor.local_hwm + 1), 1 << 30)
        contexts = [cc for cc in storage.commit_contexts(Version(0)) if cc.glsn_end > first]
        lines = [(b.glsn, b.llsn, b.count, b.epoch, b.version) for b in stored]
        return [*lines, *contexts], [bytes(b.batch) for b in stored], executor.dedup.snapshot()


class Sites:
    """See the module's text. Node 1 is meant to be the source and node 2 the target."""

    def __init__(self, count: int = 2) -> None:
        self.sites = {node_address(StorageNodeID(snid)): Site(snid) for snid in range(1, count + 1)}
        self.now = 0.0
        self.wire: deque[tuple[str, str, Message]] = deque()
        self.told: list[Message] = []
        """To the manager, the metadata repository, clients."""
        self.cut_off: set[str] = set()
        """Whom nothing reaches."""
        self.parts = 0

    def __getitem__(self, snid: int) -> Site:
        return self.sites[node_address(StorageNodeID(snid))]

    @property
    def source(self) -> Site:
        return self[1]

    @property
    def target(self) -> Site:
        return self[2]

    def pump(self) -> bool:
        """Let what was sent arrive, once. False if there was nothing."""
        for address, site in self.sites.items():
            site.now = self.now
            sent, site.sent = site.sent, []
            self.wire.extend((address, to, message) for to, message in sent)
        moved = bool(self.wire)
        while self.wire:
            source, to, message = self.wire.popleft()
            if to not in self.sites:
                self.told.append(message)
            elif not {source, to} & self.cut_off:
                self.parts += isinstance(message, LogPart)
                self.sites[to].receive(source, message)
        return moved

    def step(self) -> bool:
        """One round: deliver, read, write. False if nothing happened."""
        happened = self.pump()
        for site in self.sites.values():
            site.read()
            site.start_anew()
            happened = site.write() or happened or bool(site.sent)
        return happened

    def settle(self) -> None:
        for _ in range(1000):
            if not self.step():
                return
        raise AssertionError("it does not come to rest")

    def pass_time(self, seconds: float, *, every: float = 0.02) -> None:
        """Ticks and all that comes of them."""
        end = self.now + seconds
        while self.now < end:
            self.now += every
            for site in self.sites.values():
                site.now = self.now
                site.node.tick(self.now)
            self.settle()

    def of(self, kind: type[M]) -> list[M]:
        """What was told of that kind; it is forgotten then."""
        found = [message for message in self.told if isinstance(message, kind)]
        self.told = [message for message in self.told if not isinstance(message, kind)]
        return found

    def reply(self) -> SyncReply:
        """The last answer to a Sync."""
        self.settle()
        return self.of(SyncReply)[-1]


def sealed_source(sites: Sites, batches: int = 6) -> int:
    """Node 1 SEALED in epoch 3 with so many batches of two entries; returns the seal point."""
    source = sites.source
    source.run(2)
    for sequence in range(1, batches + 1):
        source.store(sequence)
        source.commit(2 * sequence + 1)
    source.seal(3, 2 * batches + 1)
    sites.settle()
    assert source.state == "SEALED 3"
    return 2 * batches + 1


def lacking_target(sites: Sites, seal_point: int) -> Site:
    """Node 2, SEALING in epoch 3, knows that cuts do not complete it."""
    target = sites.target
    target.seal(3, seal_point)
    sites.settle()
    target.replica.executor.needs_sync = True
    return target


def running_source(sites: Sites, batches: int = 6) -> Site:
    """Node 1 runs in epoch 4, after an epoch 2 in which it stored so many batches."""
    sealed_source(sites, batches)
    sites.source.unseal(4)
    sites.settle()
    return sites.source
