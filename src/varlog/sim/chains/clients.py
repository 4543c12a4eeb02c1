"""Simulated clients of a topic that a sequencer orders: the production machines in simulated processes.

Every client can do what any client can: it pushes batches down chains, fills what it found missing, and when something
does not work it proposes another projection. `ClientHost` has the machines and carries their messages; what a client is
there for is said in `jobs`. What one asks for and is told goes into the history.

There are no connections in a simulated network. A client is told that a peer is gone when that is dead while it looks,
and that there is a new connection when it finds it started again.

A client may be *doomed*: then it dies at a moment that the nemesis chose by what the client is about to send.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from random import Random
from typing import Any, Final

from varlog import batch, errors
from varlog.core.address import METADATA_REPOSITORY, node_address, sequencer_address
from varlog.core.chainprefix import Prefix
from varlog.core.chainpushing import Chains
from varlog.core.chainreading import ChainSubscription
from varlog.core.chainreads import ChainReads
from varlog.core.chainwriting import ChainWriter
from varlog.core.mending import Mending
from varlog.core.messages import (
    ChainPart,
    ChainWrite,
    ChainWritten,
    Digest,
    GetMetadata,
    Granted,
    Message,
    Metadata,
    Peeked,
    ProposeProjection,
    StoredLine,
    Tail,
)
from varlog.core.reconfiguring import Change, reconfigure
from varlog.core.routing import Routing
from varlog.core.trouble import Trouble
from varlog.sim import evidence
from varlog.sim.chains.network import ChainNetwork
from varlog.sim.chains.talking import PAUSE_SECONDS, Talks
from varlog.sim.chains.witness import Witness
from varlog.sim.history import History
from varlog.sim.process import Process
from varlog.types import Epoch, TopicID

TOPIC: Final = TopicID(1)
TICK: Final = 0.05
METADATA_EVERY: Final = 0.1
AGAIN_SECONDS: Final = 0.25
"""Between two proposals, if the first came to nothing."""


class Doom(Enum):
    """At what a client dies."""

    BEFORE_WRITE = "client died between next and write"
    PART_WAY = "client died part-way down a chain"
    AFTER_SEAL = "proposer died between seal and proposal"


class Work(Enum):
    """What clients did beside what they are there for."""

    RECONFIGURED = "client made another projection"
    FOUND = "client took the projection that another had made"
    GAVE_UP = "reconfiguration came to nothing"


@dataclass
class Shared:
    """What all clients of a run have in common."""

    network: ChainNetwork
    history: History
    witness: Witness
    dies: Callable[[str], None]
    """A doomed client ends now."""
    known_tail: int = 0
    """The greatest position any client was told of."""
    stopping: bool = False
    """No new operations are begun."""

    def learn(self, glsn: int) -> None:
        self.known_tail = max(self.known_tail, glsn)


class Proposer:
    """Sees to another projection when a client's machines complain, as `client.reconfiguring` does."""

    def __init__(self, host: ClientHost) -> None:
        self._host = host
        self._trouble = Trouble(Epoch(0))
        self._is_busy = False

    def complain(self, trouble: Trouble) -> None:
        projection = self._host.routing.projection(TOPIC)
        if projection is not None and projection.epoch > trouble.epoch:
            return
        if trouble.epoch > self._trouble.epoch:
            self._trouble = Trouble(trouble.epoch)
        known = self._trouble
        self._trouble = Trouble(
            known.epoch,
            known.nodes | trouble.nodes,
            known.sequencers | trouble.sequencers,
            max(known.seen, trouble.seen),
        )
        if not self._is_busy:
            self._is_busy = True
            self._host.process.at(self._host.rng.uniform(0.0, PAUSE_SECONDS), self._begin)

    def _begin(self) -> None:
        known = self._trouble
        change = Change(known.epoch, known.seen, known.nodes, known.sequencers)
        self._trouble = Trouble(known.epoch, seen=known.seen)
        self.propose(change)

    def propose(self, change: Change) -> None:
        """Hold the conversation."""
        self._is_busy = True
        self._host.proposed = Epoch(0)
        self._host.talks.begin(reconfigure(self._host.request, TOPIC, change), self._ended)

    def _ended(self, outcome: int | errors.VarlogError) -> None:
        host = self._host
        host.process.world.note("reconfigured", host.process, outcome)
        if isinstance(outcome, errors.VarlogError):
            host.process.world.count(Work.GAVE_UP, host.process)
            host.process.at(AGAIN_SECONDS, self._rest)
            return
        mine = outcome == host.proposed
        host.process.world.count(Work.RECONFIGURED if mine else Work.FOUND, host.process)
        host.refresh()
        self._rest()

    def _rest(self) -> None:
        self._is_busy = False


class ClientHost:
    """See the module's text."""

    def __init__(self, process: Process, shared: Shared, *, fill_after: float = 1.0) -> None:
        self.process = process
        self.shared = shared
        self.fill_after = fill_after
        self.rng: Random = process.world.rng(process.name)
        self.doom: Doom | None = None
        self.proposed = Epoch(0)
        """The epoch that it last proposed a projection for."""
        self.talks = Talks(process, self.rng, self.send)
        self._requests = 0
        shared.network.attach(process.name, process, self._receive)

    def start(self) -> None:
        """Begin, or begin anew after a crash: nothing is remembered."""
        self.routing = Routing()
        self._asked = -METADATA_EVERY
        self._links: dict[str, int] = {}
        """How often each peer had been started when it was last seen alive; -1: it is gone."""
        self.talks.clear()
        self.doom = None
        self.proposer = Proposer(self)
        complain = self.proposer.complain
        self.chains = Chains(TOPIC, self.routing, self.request, self.send, complain)
        self.mending = Mending(TOPIC, self.routing, self.request, self.ask, self.chains.fill, complain, self._alarm)
        self.prefix = Prefix(
            TOPIC, self.routing, self.request, self.ask, self.mending.mend, complain, fill_after=self.fill_after
        )
        self.reads = ChainReads(TOPIC, self.routing, self.request, self.ask, complain)
        self.writer: ChainWriter | None = None
        self.subscription: ChainSubscription | None = None
        self.begin()
        self._tick()

    def kill(self) -> None:
        """The process ends; what it had asked for was never answered."""
        self.process.kill()

    @property
    def now(self) -> float:
        return self.process.monotonic()

    def request(self) -> int:
        self._requests += 1
        return self._requests

    def _alarm(self, error: errors.VarlogError) -> None:
        self.shared.witness.alarm("invariant", f"{self.process.name}: {error}")

    def _machines(self) -> list[Any]:
        """In the order in which they are told of metadata."""
        own = (self.chains, self.writer, self.mending, self.prefix, self.reads, self.subscription)
        return [machine for machine in own if machine is not None]

    # Messages

    def send(self, address: str, message: Message) -> bool:
        """False if it certainly was not sent."""
        if isinstance(message, ProposeProjection):
            self.proposed = message.projection.epoch
        if self.doom is not None and self._is_doomed_by(address, message):
            self.process.world.count(self.doom, self.process)
            self.doom = None
            self.shared.dies(self.process.name)
            return False
        if address != METADATA_REPOSITORY and self.shared.network.start_of(address) < 0:
            self._note_gone(address)
            return False
        self.shared.network.send(self.process, address, message)
        return True

    def ask(self, address: str, message: Message) -> None:
        """As `send`, for those who wait for an answer in any case."""
        self.send(address, message)

    def _is_doomed_by(self, address: str, message: Message) -> bool:
        if self.doom is Doom.AFTER_SEAL:
            return isinstance(message, ProposeProjection)
        projection = self.chains.projection
        if not isinstance(message, ChainWrite) or projection is None:
            return False
        is_head = address == node_address(projection.chain(message.lsid).head)
        return is_head is (self.doom is Doom.BEFORE_WRITE)

    def _receive(self, _source: str, message: Message) -> None:
        match message:
            case Metadata():
                self._on_metadata(message)
                self.talks.on_answer(message)
            case ChainWritten():
                self.chains.on_reply(message, self.now)
            case Granted():
                if self.writer is not None:
                    self.writer.on_reply(message, self.now)
            case ChainPart() | Digest():
                self._on_read(message)
            case Peeked() | Tail():
                self.mending.on_reply(message, self.now)
                if isinstance(message, Tail):
                    self.reads.on_reply(message, self.now)
                self.talks.on_answer(message)
                self.on_message(message)
            case _:
                self.talks.on_answer(message)
                self.on_message(message)
        self._refresh()

    def _on_read(self, message: ChainPart | Digest) -> None:
        if isinstance(message, ChainPart):
            self.reads.on_reply(message, self.now)
        self.prefix.on_reply(message, self.now)
        if self.subscription is not None:
            self.subscription.on_reply(message, self.now)

    def _on_metadata(self, message: Metadata) -> None:
        if self.routing.update(message) or message.version == self.routing.version:
            for machine in self._machines():
                machine.on_metadata(self.now)

    def _tick(self) -> None:
        now = self.now
        self._look_around()
        for machine in self._machines():
            machine.tick(now)
        if self.chains.violation is not None:
            self._alarm(self.chains.violation)
            self.chains.violation = None
        self.on_tick()
        self._refresh()
        self.process.at(TICK, self._tick)

    def refresh(self) -> None:
        """Read the metadata anew."""
        self._asked = self.now
        self.send(METADATA_REPOSITORY, GetMetadata(self.request()))

    def _refresh(self) -> None:
        if self.now - self._asked >= METADATA_EVERY and any(machine.wants_metadata for machine in self._machines()):
            self.refresh()

    # Peers

    def _look_around(self) -> None:
        """Find out who is gone, and who is back."""
        projection = self.routing.projection(TOPIC)
        if projection is None:
            return
        peers = [node_address(snid) for snid in sorted({snid for c in projection.chains for snid in c.nodes})]
        for address in (*peers, sequencer_address(projection.sequencer)):
            start, known = self.shared.network.start_of(address), self._links.get(address)
            if known is not None and start != known:
                self._note_gone(address)
            if start >= 0 and start != known:
                self._links[address] = start
                self._tell(address, is_connected=True)

    def _note_gone(self, address: str) -> None:
        if self._links.get(address, 0) >= 0:
            self._links[address] = -1
            self._tell(address, is_connected=False)

    def _tell(self, address: str, *, is_connected: bool) -> None:
        projection = self.routing.projection(TOPIC)
        if projection is None:
            return
        if address == sequencer_address(projection.sequencer):
            if self.writer is not None:
                self.writer.on_sequencer(projection.sequencer, is_connected, self.now)
            return
        for snid in {snid for chain in projection.chains for snid in chain.nodes}:
            if node_address(snid) == address:
                for machine in self._machines():
                    tell = machine.on_connected if is_connected else machine.on_disconnected
                    tell(snid, self.now)

    # The job, to be filled in

    def begin(self) -> None: ...

    def on_message(self, message: Message) -> None: ...

    def on_tick(self) -> None: ...


def payloads_of(line: StoredLine, skip: int = 0, count: int | None = None) -> list[bytes]:
    """The entries of a batch, or what stands for them."""
    return evidence.payloads_of(batch.decode(line[6]), line[0], skip, count)
