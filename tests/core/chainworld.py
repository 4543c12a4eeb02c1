"""A topic that a sequencer orders, whole but for disks and wires: storage nodes, sequencers, clients that append and
reconfigure. All of them are production code; the logs and the metadata repository are on paper.

Nothing arrives or becomes durable before the test says so. What is on its way between two parties keeps its order, as
on a connection; to and from one that is down it is lost.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from itertools import count, pairwise

from msgspec.structs import replace

from tests.core.writeonce_paper import PaperWriteOnceLog
from varlog import batch, errors
from varlog.core.address import METADATA_REPOSITORY, node_address, sequencer_address
from varlog.core.appending import Committed, Outcome
from varlog.core.chainpushing import Chains
from varlog.core.chainreplica import ChainReplica
from varlog.core.chainwriting import ChainWriter
from varlog.core.conversing import Answer, Conversation
from varlog.core.messages import (
    ChainWritten,
    Decided,
    GetMetadata,
    Granted,
    Message,
    Metadata,
    NodeInfo,
    Peek,
    ProposeProjection,
    RegisterSequencer,
    SequencerInfo,
    StreamInfo,
    TopicInfo,
)
from varlog.core.projection import Projection, check
from varlog.core.reconfiguring import Change, reconfigure
from varlog.core.routing import Routing
from varlog.core.sequencer import Sequencer
from varlog.core.storagenode import StorageNode
from varlog.core.trouble import Trouble
from varlog.types import (
    GLSN,
    LLSN,
    Epoch,
    LogStreamID,
    Ordering,
    StorageNodeID,
    StreamStatus,
    TopicID,
    Version,
    WriterID,
)

TOPIC = TopicID(1)
BLOCK = 4
FIRST = "vsq1:1"


class Node:
    """A storage node with a replica of every log stream that it is to have."""

    def __init__(self, world: World, snid: StorageNodeID, lsids: tuple[int, ...]) -> None:
        self.address = node_address(snid)
        self.snid = snid
        self.logs = {LogStreamID(lsid): PaperWriteOnceLog() for lsid in lsids}
        self._world = world
        self._boots = count(1)
        self.start()

    def start(self) -> None:
        self.node = StorageNode(self.snid, next(self._boots), self._send, lambda _branch: None)
        for lsid, log in self.logs.items():
            self.node.chains.add(ChainReplica(self.snid, TOPIC, lsid, log, self._send, lambda _branch: None))
        self.node.chains.renew(self._world.now + 1e6)

    def crash(self) -> None:
        """What was not durable is gone."""
        self.logs = {lsid: log.restarted() for lsid, log in self.logs.items()}

    def _send(self, address: str, message: Message) -> None:
        if address != METADATA_REPOSITORY:  # which hears no reports here
            self._world.send(self.address, address, message)

    def receive(self, source: str, message: Message) -> None:
        self.node.on_message(source, message, self._world.now)
        self.node.flush(self._world.now)

    def sync(self) -> bool:
        """Let all that is staged be durable, and do the reads that are allowed."""
        before = [log.durable for log in self.logs.values()]
        for lsid, log in self.logs.items():
            if log.durable != log.staged:
                log.make_durable()
                self.node.chains.on_durable(lsid)
        self.node.flush(self._world.now)
        has_read = bool(self.node.chains.reads)
        while self.node.chains.reads:
            plan = self.node.chains.reads.pop(0)
            self.node.chains.finish_read(plan, self.logs[plan.replica.lsid].read(plan.glsn, plan.max_bytes))
        return has_read or before != [log.durable for log in self.logs.values()]

    def content(self, lsid: int) -> dict[int, bytes]:
        return {line.glsn: bytes(line.batch) for line in self.logs[LogStreamID(lsid)].read(GLSN(1), 1 << 40)}


class Client:
    """Appends, and reconfigures when it has reason to complain."""

    def __init__(self, world: World, number: int) -> None:
        self.address = f"client{number}"
        self.world = world
        self.routing = Routing()
        self.outcomes: dict[object, Outcome] = {}
        self.troubles: list[Trouble] = []
        self.reconfigures = False
        self.conversation: Conversation | None = None
        self._waiting: list[Answer | None] = []
        self._requests: dict[int, int] = {}
        self._paused_until = 0.0
        self._since = 0.0
        self.is_stirred = False
        self.epoch: int | None = None
        """What the last conversation returned,"""
        self.error: errors.VarlogError | None = None
        """or why it came to nothing."""
        self.chains = Chains(TOPIC, self.routing, world.request, self._send, self._complain)
        self.writer = ChainWriter(
            TOPIC, self.chains, WriterID(number), world.request, lambda: 0, self._send, self._settle, self._complain,
            self._soon,
        )  # fmt: skip

    def _send(self, address: str, message: Message) -> bool:
        return self.world.send(self.address, address, message)

    def _soon(self) -> None:
        self.is_stirred = True

    def _settle(self, id_: object, outcome: Outcome) -> None:
        assert id_ not in self.outcomes, "told once"
        self.outcomes[id_] = outcome

    def _complain(self, trouble: Trouble) -> None:
        self.troubles.append(trouble)
        if self.reconfigures and self.conversation is None:
            self.begin(Change(trouble.epoch, trouble.seen, trouble.nodes, trouble.sequencers))

    # Appending

    def append(self, id_: object, *entries: bytes, timeout: float = 100.0, lane: int = 0) -> None:
        data = list(entries) or [str(id_).encode()]
        self.writer.append(id_, data, self.world.now + timeout, self.world.now, lane=lane)

    def flush(self) -> None:
        if self.is_stirred:
            self.is_stirred = False
            self.writer.flush(self.world.now)

    def positions(self) -> dict[object, int]:
        return {id_: outcome.glsn for id_, outcome in self.outcomes.items() if isinstance(outcome, Committed)}

    # Reconfiguring

    def begin(self, change: Change) -> None:
        self.conversation = reconfigure(self.world.request, TOPIC, change)
        self._go_on(None)

    def _go_on(self, answers: list[Answer] | None) -> None:
        assert self.conversation is not None
        try:
            requests = self.conversation.send(answers)  # type: ignore[arg-type]
        except StopIteration as stop:
            self.epoch = stop.value
            self.conversation = None
            self.look(anyway=True)
            return
        except errors.VarlogError as error:
            self.error = error
            self.conversation = None
            return
        self._waiting = [None] * len(requests)
        self._requests = {}
        self._since = self.world.now
        if not requests:
            self._paused_until = self.world.now + 0.05
        for number, (address, message) in enumerate(requests):
            self._requests[message.request] = number  # type: ignore[attr-defined]
            if not self.world.send(self.address, address, message):
                self._waiting[number] = errors.Unreachable(f"{address} is down")
        self._if_complete()

    def _if_complete(self) -> None:
        if self._waiting and None not in self._waiting:
            answers, self._waiting = [a for a in self._waiting if a is not None], []
            self._go_on(answers)

    # What happens to it

    def receive(self, message: Message) -> None:
        now = self.world.now
        if isinstance(message, Metadata) and message.version >= self.routing.version:
            self.routing.update(message)
            self.chains.on_metadata(now)
            self.writer.on_metadata(now)
        number = self._requests.pop(getattr(message, "request", 0), None)
        if number is not None and self._waiting:
            self._waiting[number] = message
            self._if_complete()
        elif isinstance(message, ChainWritten):
            self.chains.on_reply(message, now)
        elif isinstance(message, Granted):
            self.writer.on_reply(message, now)
        self.look()

    def look(self, *, anyway: bool = False) -> None:
        if anyway or self.chains.wants_metadata or self.writer.wants_metadata:
            self._send(METADATA_REPOSITORY, GetMetadata(self.world.request()))

    def tick(self) -> None:
        now = self.world.now
        for address in self.world.down:
            if address.startswith("sn/"):
                self.chains.on_disconnected(StorageNodeID(int(address[3:])), now)
            else:
                self.writer.on_sequencer(address.removeprefix(sequencer_address("")), False, now)
        self.chains.tick(now)
        self.writer.tick(now)
        self.look()
        if self.conversation is not None and now - self._since > 0.5:
            if not self._waiting:
                self._go_on([])
            else:
                self._waiting = [errors.DeadlineExceeded("no answer") if a is None else a for a in self._waiting]
                self._if_complete()
        elif self.conversation is not None and not self._waiting and now >= self._paused_until:
            self._go_on([])

    def on_up(self, address: str) -> None:
        if address.startswith("sn/"):
            self.chains.on_connected(StorageNodeID(int(address[3:])), self.world.now)
        else:
            self.writer.on_sequencer(address.removeprefix(sequencer_address("")), True, self.world.now)


class World:
    """See the module's text."""

    def __init__(self, chains: dict[int, tuple[int, ...]], *, clients: int = 1, spares: tuple[int, ...] = ()) -> None:
        self.now = 10.0
        self.request: Callable[[], int] = count(1).__next__
        self.wires: dict[tuple[str, str], deque[Message]] = {}
        self.down: set[str] = set()
        self.taken: list[tuple[str, Message]] = []
        """All that arrived somewhere."""
        snids = sorted({snid for nodes in chains.values() for snid in nodes} | set(spares))
        self.nodes = {snid: Node(self, StorageNodeID(snid), tuple(chains)) for snid in snids}
        self.by_address = {node.address: node for node in self.nodes.values()}
        streams = tuple(
            StreamInfo(
                LogStreamID(lsid), TOPIC, Epoch(0), StreamStatus.CHAINED, tuple(map(StorageNodeID, nodes)),
                StorageNodeID(nodes[0]), LLSN(1), GLSN(0),
            )
            for lsid, nodes in chains.items()
        )  # fmt: skip
        topic = TopicInfo(TOPIC, "topic", GLSN(0), GLSN(0), 3, 1, "", Ordering.SEQUENCER, BLOCK, None)
        self.metadata = Metadata(0, Version(1), tuple(NodeInfo(StorageNodeID(s)) for s in snids), (topic,), streams)
        self.sequencers: dict[str, Sequencer] = {}
        self.start_sequencer(FIRST, 1)
        self.clients = [Client(self, number + 1) for number in range(clients)]
        self.clients[0].begin(Change())
        self.settle()
        for client in self.clients:
            client.look(anyway=True)
        self.send(self.clients[0].address, sequencer_address(FIRST), Peek(self.request(), TOPIC, Epoch(1)))
        self.settle()
        self.taken.clear()

    @property
    def projection(self) -> Projection:
        projection = self.metadata.topics[0].projection
        assert projection is not None
        return projection

    def start_sequencer(self, location: str, boot: int) -> None:
        address = sequencer_address(location)

        def send(to: str, message: Message) -> None:
            self.send(address, to, message)

        self.down.discard(address)
        self.sequencers[address] = Sequencer(location, boot, lambda: int(self.now * 1e6), self.request, send)
        self.sequencers[address].on_leader(self.now)

    # The wire

    def send(self, source: str, address: str, message: Message) -> bool:
        if {source, address} & self.down:
            return False
        self.wires.setdefault((source, address), deque()).append(message)
        return True

    def deliver(self, source: str, address: str) -> None:
        """Let the first message of a wire arrive."""
        message = self.wires[source, address].popleft()
        self.taken.append((address, message))
        if address in self.by_address:
            self.by_address[address].receive(source, message)
        elif address in self.sequencers:
            self.sequencers[address].on_message(source, message, self.now)
        elif address == METADATA_REPOSITORY:
            self._on_repository(source, message)
        else:
            for client in self.clients:
                if client.address == address:
                    client.receive(message)

    def _on_repository(self, source: str, message: Message) -> None:
        metadata = self.metadata
        (topic,) = metadata.topics
        changed = metadata
        match message:
            case GetMetadata(request):
                self.send(METADATA_REPOSITORY, source, replace(metadata, request=request))
                return
            case RegisterSequencer(request, address, boot):
                others = tuple(known for known in metadata.sequencers if known.address != address)
                changed = replace(metadata, sequencers=(*others, SequencerInfo(address, boot)))
            case ProposeProjection(request, _, base, projection):
                check(projection)
                if base == (topic.projection.epoch if topic.projection is not None else 0):
                    changed = replace(metadata, topics=(replace(topic, projection=projection),))
            case _:
                raise AssertionError(f"{message} is not for the metadata repository")
        code = errors.Conflict.code if changed is metadata else 0
        if not code:
            self.metadata = replace(changed, version=Version(metadata.version + 1))
        self.send(METADATA_REPOSITORY, source, Decided(request, code, self.metadata.version))

    # Time and failures

    def settle(self, *, syncs: bool = True) -> None:
        """Let everything arrive and become durable, without time passing."""
        while True:
            for client in self.clients:
                client.flush()
            wires = [wire for wire, queue in self.wires.items() if queue]
            for wire in wires:
                self.deliver(*wire)
            did = [node.sync() for node in self.nodes.values() if node.address not in self.down] if syncs else []
            if not wires and not any(did) and not any(client.is_stirred for client in self.clients):
                return

    def pass_time(self, seconds: float) -> None:
        """In small steps, each settled."""
        for _ in range(round(seconds / 0.05)):
            self.tick(0.05)
            self.settle()

    def tick(self, seconds: float) -> None:
        self.now += seconds
        for sequencer in self.sequencers.values():
            sequencer.tick(self.now)
        for node in self.nodes.values():
            if node.address not in self.down:
                node.node.tick(self.now)
                node.node.flush(self.now)
        for client in self.clients:
            client.tick()

    def step(self, dice: random.Random) -> None:
        """Let one thing happen, of all that can."""
        wires = [wire for wire, queue in self.wires.items() if queue]
        events: list[Callable[[], object]] = [lambda wire=wire: self.deliver(*wire) for wire in wires]  # type: ignore[misc]
        events += [node.sync for node in self.nodes.values() if node.address not in self.down]
        events += [client.flush for client in self.clients if client.is_stirred]
        events.append(lambda: self.tick(dice.uniform(0, 0.1)))
        dice.choice(events)()

    def kill(self, address: str) -> None:
        """A process dies: what is on its way to and from it is lost."""
        self.down.add(address)
        for wire, queue in self.wires.items():
            if address in wire:
                queue.clear()
        if address in self.by_address:
            self.by_address[address].crash()

    def revive(self, address: str, boot: int = 0) -> None:
        self.down.discard(address)
        if address in self.by_address:
            self.by_address[address].start()
        elif boot:
            self.start_sequencer(address.removeprefix(sequencer_address("")), boot)
        for client in self.clients:
            client.on_up(address)

    def stored(self, lsid: int = 1) -> dict[int, bytes]:
        """What the replicas of a chain agree on."""
        chain = self.projection.chain(LogStreamID(lsid))
        contents = [self.nodes[snid].content(lsid) for snid in chain.nodes]
        for before, after in pairwise(contents):
            assert after.items() <= before.items(), "a replica has what the one before it does not have"
        return contents[-1]


def entries(stored: dict[int, bytes]) -> dict[int, list[bytes]]:
    """Positions and entries; none of junk."""
    opened = {glsn: batch.decode(found) for glsn, found in sorted(stored.items())}
    return {glsn: [] if found.flags & batch.BatchFlag.JUNK else found.to_list() for glsn, found in opened.items()}
