"""Storage nodes with a replica of one chain each, and the wire between them, for tests of chains.

The log is on paper. Nothing arrives, is read or becomes durable before the test says so; `Members.settle` lets
everything happen that can, without time passing. A node is leased unless a test lets that run out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import count
from typing import TypeVar

from tests.core.writeonce_paper import PaperWriteOnceLog
from varlog import batch, errors
from varlog.core.address import node_address
from varlog.core.chainreplica import ChainReplica
from varlog.core.messages import (
    ChainCopied,
    ChainCopy,
    ChainPart,
    ChainRead,
    ChainSeal,
    ChainSealed,
    ChainWrite,
    ChainWritten,
    Digest,
    GetDigest,
    Message,
)
from varlog.core.storagenode import StorageNode
from varlog.types import GLSN, Epoch, LogStreamID, StorageNodeID, TopicID

M = TypeVar("M", bound=Message)
TPID, LSID = TopicID(1), LogStreamID(1)
CLIENT, OTHER_CLIENT, MANAGER = "client", "other client", "manager"


def batch_of(number: int, entries: int = 1, *, writer: int = 7, size: int = 0) -> bytes:
    """Of a writer, with a content that only this number has."""
    content = [b"%d.%d" % (number, entry) + bytes(size) for entry in range(entries)]
    return batch.encode(content, writer_id=writer, sequence=number)


def junk(entries: int = 1) -> bytes:
    return batch.encode([b""] * entries, writer_id=0, sequence=0, flags=int(batch.BatchFlag.JUNK))


def name_of(code: int) -> str:
    return errors.VarlogError.registry[code].__name__ if code else ""


class Member:
    """One node."""

    def __init__(self, snid: int = 1, *, synced: bool = True) -> None:
        self.snid = StorageNodeID(snid)
        self.sent: list[tuple[str, Message]] = []
        self.branches: list[object] = []
        self.now = 0.0
        self._boot = 0
        self._requests = count(1)
        self._serve(PaperWriteOnceLog(synced=synced))

    def _serve(self, log: PaperWriteOnceLog) -> None:
        self.log = log
        self._boot += 1
        self.node = StorageNode(self.snid, self._boot, self._send, self.branches.append)
        self.chains = self.node.chains
        self.replica = ChainReplica(self.snid, TPID, LSID, log, self._send, self.branches.append)
        self.chains.add(self.replica)
        self.chains.renew(self.now)
        self.sent.clear()

    def restart(self) -> None:
        """Kill the process and start it again; what was not durable is gone."""
        self._serve(self.log.restarted())

    def _send(self, address: str, message: Message) -> None:
        self.sent.append((address, message))

    # The duties of a caller

    def receive(self, source: str, message: Message) -> None:
        self.node.on_message(source, message, self.now)
        self.node.flush(self.now)

    def read_plans(self) -> bool:
        """Do the reads that are allowed, and those that follow from them."""
        has_read = bool(self.chains.reads)
        while self.chains.reads:
            plan = self.chains.reads.pop(0)
            try:
                self.chains.finish_read(plan, self.log.read(plan.glsn, plan.max_bytes))
            except errors.Trimmed as error:
                self.chains.finish_read(plan, error)
        return has_read

    def sync(self, records: int | None = None) -> bool:
        """Let the first so many records, or all, be durable."""
        before = self.log.durable
        self.log.make_durable(records)
        if self.log.durable == before or LSID not in self.chains:
            return False
        self.chains.on_durable(LSID)
        self.node.flush(self.now)
        return True

    def pass_time(self, seconds: float, *, leased: bool = True) -> None:
        self.now += seconds
        if leased:
            self.chains.renew(self.now)
        self.node.tick(self.now)
        self.node.flush(self.now)

    # What is asked of it

    def write(self, glsn: int, content: bytes, *, epoch: int = 1, time: int = 0, source: str = CLIENT) -> int:
        return self.write_all([(glsn, content)], epoch=epoch, time=time, source=source)

    def write_all(
        self, placed: Iterable[tuple[int, bytes]], *, epoch: int = 1, time: int = 0, source: str = CLIENT
    ) -> int:
        request = next(self._requests)
        glsns, batches = zip(*placed, strict=True)
        self.receive(source, ChainWrite(request, LSID, Epoch(epoch), glsns, (time,) * len(glsns), batches))
        return request

    def seal(self, epoch: int, *, base: int = 0, joins: bool = False, source: str = CLIENT) -> int:
        request = next(self._requests)
        self.receive(source, ChainSeal(request, LSID, Epoch(epoch), Epoch(base), joins))
        return request

    def read(self, glsn: int, *, epoch: int = 1, max_bytes: int = 1 << 20, wait: bool = False, seen: int = 0) -> int:
        request = next(self._requests)
        self.receive(CLIENT, ChainRead(request, LSID, Epoch(epoch), GLSN(glsn), max_bytes, wait, seen))
        return request

    def digest(self, glsn: int = 1, *, epoch: int = 1, runs: bool = False) -> int:
        request = next(self._requests)
        self.receive(CLIENT, GetDigest(request, LSID, Epoch(epoch), GLSN(glsn), runs))
        return request

    def copy(self, source: int, epoch: int, end: int = 0) -> int:
        request = next(self._requests)
        self.receive(MANAGER, ChainCopy(request, LSID, Epoch(epoch), StorageNodeID(source), GLSN(end)))
        return request

    # What it says

    def answers(self, request: int) -> list[Message]:
        kinds = (ChainWritten, ChainPart, ChainSealed, ChainCopied, Digest)
        return [m for _, m in self.sent if isinstance(m, kinds) and m.request == request]

    def answer(self, kind: type[M], request: int) -> M:
        (found,) = self.answers(request)
        assert isinstance(found, kind)
        return found

    def result(self, request: int) -> str:
        """How a write was answered: "ok" or the names of errors, of each batch that was refused; "" if it was not."""
        if not self.answers(request):
            return ""
        written = self.answer(ChainWritten, request)
        if written.code:
            return name_of(written.code)
        return ", ".join(f"{number} {name_of(code)}" for number, code, *_ in written.refused) or "ok"

    def positions(self, request: int) -> list[int]:
        """Where the batches are that a read has brought."""
        part = self.answer(ChainPart, request)
        assert part.code == 0
        return [line[0] for line in part.batches]

    @property
    def content(self) -> dict[int, bytes]:
        """All that it has."""
        lines = self.log.read(GLSN(self.log.trim + 1), 1 << 40)
        return {line.glsn: bytes(line.batch) for line in lines}


class Members:
    """Several of them."""

    def __init__(self, number: int = 2) -> None:
        self.all = {node_address(StorageNodeID(snid)): Member(snid) for snid in range(1, number + 1)}
        self.cut_off: set[str] = set()

    def __getitem__(self, snid: int) -> Member:
        return self.all[node_address(StorageNodeID(snid))]

    def settle(self) -> None:
        """Let everything arrive, be read and be written."""
        while self.step():
            pass

    def step(self) -> bool:
        """Let what was sent so far arrive, and what can be read and written be so; whether there was any."""
        members = self.all.values()
        return any([self._deliver(), *[m.sync() for m in members], *[m.read_plans() for m in members]])

    def _deliver(self) -> bool:
        queue: deque[tuple[str, str, Message]] = deque()
        for source, member in self.all.items():
            kept = []
            for address, message in member.sent:
                if address in self.all:
                    queue.append((source, address, message))
                else:
                    kept.append((address, message))
            member.sent[:] = kept
        for source, address, message in queue:
            if not {source, address} & self.cut_off:
                self.all[address].receive(source, message)
        return bool(queue)

    def pass_time(self, seconds: float) -> None:
        """In small steps, each settled."""
        for _ in range(round(seconds / 0.05)):
            for member in self.all.values():
                member.pass_time(0.05)
            self.settle()
