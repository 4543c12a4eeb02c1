"""The stage of the golden scripts of the sequencer ordering: a small simulated cluster whose messages are told.

It is a cluster of the simulator, production code on a network on which every message takes a millisecond and nothing
goes wrong by chance. What a script says happens, and then the world goes on until that is over. The trace has what was
sent, in words; the hellos, reports and questions after metadata that nobody would draw are left out. Where nothing is
told for a while, the trace says how long.

The commands are the methods named `do_...`; their text says what they do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tests.golden import chain_words as words
from varlog import errors
from varlog.core.address import METADATA_REPOSITORY, node_address
from varlog.core.appending import Committed, Outcome, Rejected
from varlog.core.chainreading import ChainSubscription
from varlog.core.chainreads import Found
from varlog.core.chainwriting import ChainWriter
from varlog.core.merging import Chunk
from varlog.core.messages import Decided, Message, Metadata, ProposeProjection
from varlog.core.reconfiguring import Change
from varlog.sim.chains.clients import TOPIC, ClientHost, Doom, Shared, payloads_of
from varlog.sim.chains.cluster import ChainCluster
from varlog.sim.chains.network import ChainNetwork
from varlog.sim.chains.shape import ChainShape
from varlog.sim.evidence import is_junk
from varlog.sim.network import Conditions
from varlog.sim.process import Process
from varlog.sim.world import World
from varlog.types import GLSN, StorageNodeID, WriterID

FILL_AFTER = 1.0
PATIENCE = 20.0
"""So long a command's end is waited for."""
REST = 0.3
"""So long the world goes on after it, for what follows from it."""
SHORT = 0.15
"""Shorter pauses are not told,"""
LONG = 0.7
"""longer ones in seconds."""
REPEATED = 4
"""So many lines may repeat themselves."""
AND_SO_ON = "(and so on)"

Tell = Callable[[str], None]


class TellingNetwork(ChainNetwork):
    """Tells what is sent between clients, sequencers and replicas."""

    tell: Tell

    def send(self, source: Process, address: str, message: object) -> None:
        assert isinstance(message, Message)
        if source.alive and self._is_of_the_story(source.name, address, message):
            target = self._endpoints.get("mr/1" if address == METADATA_REPOSITORY else address)
            is_cut = target is not None and (source, target[0]) in self._blocked
            name = METADATA_REPOSITORY if source.name.startswith("mr/") else source.name
            self.tell(f"{name} {'-x' if is_cut else '->'} {address}  {self._words(message)}")
        super().send(source, address, message)

    def _is_of_the_story(self, source: str, address: str, message: Message) -> bool:
        if isinstance(message, ProposeProjection):
            self._proposals.add((source, message.request))
        if isinstance(message, Decided):
            return (address, message.request) in self._proposals
        if isinstance(message, Metadata):
            return self._is_news(address, message)
        return words.message(message) is not None

    def __init__(self, world: World, cluster: ChainCluster) -> None:
        super().__init__(world, cluster.witness)
        self.conditions = Conditions(min_delay=0.001, mean_delay=0.0)
        self._proposals: set[tuple[str, int]] = set()
        self._epochs: dict[str, int] = {}

    def _is_news(self, address: str, metadata: Metadata) -> bool:
        """Whether a client hears of a later epoch than the one it knows."""
        projection = metadata.topics[0].projection if metadata.topics else None
        if not address.startswith("cl") or projection is None or self._epochs.get(address, 0) >= projection.epoch:
            return False
        is_first = address not in self._epochs
        self._epochs[address] = projection.epoch
        return not is_first

    @staticmethod
    def _words(message: Message) -> str:
        if isinstance(message, Metadata):
            projection = message.topics[0].projection
            assert projection is not None, "it was looked at"
            return f"the projection of epoch {projection.epoch}"
        return str(words.message(message))


class StageCluster(ChainCluster):
    """Chains that begin with sn/1, sn/2 and so on in turn, and no clients but those of the script."""

    def _make_network(self) -> ChainNetwork:
        return TellingNetwork(self.world, self)

    def _chains(self, snids: Sequence[StorageNodeID]) -> list[tuple[StorageNodeID, ...]]:
        count = len(snids)
        return [tuple(snids[(n + i) % count] for i in range(count)) for n in range(self.shape.streams)]

    def _make_clients(self) -> list[ClientHost]:
        return []

    def add(self, client: ClientHost) -> None:
        self._hosts[client.process.name] = client
        self.clients.append(client)

    def come_back(self, name: str) -> None:
        self.restart(name)

    def _die(self, name: str) -> None:
        """Nobody starts it again but the script."""
        self.kill(name)


class StageClient(ClientHost):
    """Does what the script says, and tells what came of it."""

    def __init__(self, process: Process, shared: Shared, tell: Tell) -> None:
        super().__init__(process, shared, fill_after=FILL_AFTER)
        self._say = tell
        self._appends: dict[int, str] = {}
        self.is_busy = False

    def begin(self) -> None:
        number = WriterID(self.process.number * 1000 + self.process.incarnation + 1)
        complain = self.proposer.complain
        self.writer = ChainWriter(
            TOPIC, self.chains, number, self.request, lambda: 0, self.send, self._settle, complain, self._soon
        )
        self.is_busy = False
        self.refresh()

    def _soon(self) -> None:
        self.process.at(0.0, self._flush)

    def _flush(self) -> None:
        assert self.writer is not None
        self.writer.flush(self.now)

    def send(self, address: str, message: Message) -> bool:
        doom = self.doom
        is_sent = super().send(address, message)
        if doom is not None and not self.process.alive:
            self._say(f"    {self.process.name} dies: {doom.value}")
        elif not is_sent and (told := words.message(message)) is not None:
            self._say(f"{self.process.name} -x {address}  {told}")
        return is_sent

    def _done(self, what: str) -> None:
        self.is_busy = False
        self._say(f"    {self.process.name}: {what}")

    def append(self, entries: Sequence[str]) -> None:
        assert self.writer is not None
        id_ = self.request()
        self._appends[id_] = " ".join(entries)
        self.is_busy = True
        self.writer.append(id_, [entry.encode() for entry in entries], self.now + PATIENCE, self.now)

    def _settle(self, id_: int, outcome: Outcome) -> None:
        match outcome:
            case Committed():
                alone = "; no redundancy!" if outcome.replicas == 1 else ""
                where = words.positions(outcome.glsn, outcome.count)
                on = f"{outcome.replicas} replica{'s' if outcome.replicas > 1 else ''}"
                self._done(f"[{self._appends[id_]}] is at {where}, on {on}{alone}")
            case Rejected(code):
                self._done(f"[{self._appends[id_]}] is rejected: {errors.VarlogError.registry[code].__name__}")
            case _:
                self._done(f"[{self._appends[id_]}] is unknown")

    def read(self, glsn: int) -> None:
        self.is_busy = True

        def done(outcome: Found | errors.VarlogError) -> None:
            if isinstance(outcome, Found):
                self._done(f"{_shown(payloads_of(outcome.line, glsn - outcome.line[0], 1))} is at {glsn}")
            else:
                self._done(f"{type(outcome).__name__} at {glsn}")

        self.reads.read(GLSN(glsn), self.now + PATIENCE, done, self.now)

    def subscribe(self, begin: int, end: int) -> None:
        """Deliver what lies between two positions."""
        self.is_busy = True

        def deliver(chunk: Chunk) -> None:
            shown = _shown(payloads_of(chunk.stored, chunk.skip, chunk.count))
            self._say(f"    {self.process.name}: {shown} is at {words.positions(chunk.glsn, chunk.count)}")

        def ended(_error: errors.VarlogError | None) -> None:
            self.is_busy, self.subscription = False, None

        self.subscription = ChainSubscription(
            TOPIC,
            GLSN(begin),
            GLSN(end + 1),
            self.routing,
            self.request,
            self.ask,
            deliver,
            ended,
            self.mending.mend,
            self.proposer.complain,
            fill_after=FILL_AFTER,
        )
        self.subscription.on_metadata(self.now)


def _shown(payloads: Sequence[bytes]) -> str:
    return "junk" if is_junk(payloads[0]) else "[" + " ".join(payload.decode() for payload in payloads) + "]"


class ChainStage:
    """See the module's text."""

    def __init__(self) -> None:
        self._trace: list[str] = []
        self._last: list[str] = []
        self._told_at = 0.0

    def execute(self, command: str) -> list[str]:
        """Do one command; its trace."""
        name, *args = command.split()
        self._trace, self._last = [], []
        if name not in ("cluster", "create"):
            self._told_at = self._world.now
        getattr(self, f"do_{name}")(*args)
        return self._trace or ["nothing happens"]

    def _tell(self, line: str) -> None:
        """What repeats itself is told twice."""
        if line in self._last and self._trace.count(line) > 1:
            if self._trace[-1] != AND_SO_ON:
                self._trace.append(AND_SO_ON)
            return
        now = self._world.now
        passed = now - self._told_at
        if passed >= SHORT:
            self._trace.append("(a moment later)" if passed < LONG else f"(about {passed:.0f} s later)")
        self._told_at = now
        self._trace.append(line)
        self._last = [*self._last, line][-REPEATED:]

    def _go_on(self, *clients: StageClient) -> None:
        """Until those have what they wanted, and a little longer."""
        self._world.run(self._world.now + PATIENCE, stop=lambda: not any(c.is_busy for c in clients if c.process.alive))
        self._world.run(self._world.now + REST)

    def _client(self, name: str) -> StageClient:
        if name not in self._clients:
            client = StageClient(self._world.process(name), self._cluster.shared, self._tell)
            self._clients[name] = client
            self._cluster.add(client)
            client.start()
            self._world.run(self._world.now + REST)
            self._told_at = self._world.now
        return self._clients[name]

    # Setting the stage

    def do_cluster(self, *settings: str) -> None:
        """nodes=N [streams=N] [block=N] [sequencers=N]: a new cluster. Nobody repairs it but its clients."""
        self.do_create(*settings)
        self._trace = []
        self.do_show()

    def do_create(self, *settings: str) -> None:
        """The same, and how its first projection is made is told."""
        wanted = {key: int(value) for key, value in (setting.split("=") for setting in settings)}
        nodes = wanted["nodes"]
        shape = ChainShape(
            nodes,
            wanted.get("streams", 1),
            nodes,
            sequencers=wanted.get("sequencers", 1),
            block=wanted.get("block", 8),
        )
        self._world = World(1)
        self._cluster = StageCluster(self._world, shape)
        assert isinstance(self._cluster.network, TellingNetwork)
        self._cluster.network.tell = self._tell
        self._clients: dict[str, StageClient] = {}
        self._told_at = SHORT * 100
        self._cluster.set_up()
        self._world.run(self._world.now + 1.5)
        self._cluster.kill("manager")

    def do_clients(self, *names: str) -> None:
        """NAME...: clients that know the projection."""
        for name in names:
            self._client(name)

    # What clients do

    def do_append(self, name: str, *entries: str) -> None:
        """CLIENT ENTRY...: append one batch."""
        client = self._client(name)
        client.append(entries)
        self._go_on(client)

    def do_appends(self, *given: str) -> None:
        """CLIENT=ENTRY...: each appends at the same moment."""
        wanted = [one.split("=") for one in given]
        for name, entry in wanted:
            self._client(name).append([entry])
        self._go_on(*(self._client(name) for name, _ in wanted))

    def do_read(self, name: str, glsn: str) -> None:
        """CLIENT POSITION: read it, once."""
        client = self._client(name)
        client.read(int(glsn))
        self._go_on(client)

    def do_subscribe(self, name: str, begin: str, end: str) -> None:
        """CLIENT BEGIN END: read on, holes waited for and then filled, up to a position."""
        client = self._client(name)
        client.subscribe(int(begin), int(end))
        self._go_on(client)

    def do_seal(self, name: str) -> None:
        """CLIENT: end the epoch, and begin the next."""
        client = self._client(name)
        projection = client.routing.projection(TOPIC)
        assert projection is not None, "the client knows it"
        client.proposer.propose(Change(projection.epoch))
        self._world.run(self._world.now + 1.0)

    def do_doom(self, name: str, when: str) -> None:
        """CLIENT before-write|part-way|after-seal: it dies then."""
        self._client(name).doom = Doom[when.upper().replace("-", "_")]

    # What befalls processes

    def do_kill(self, *names: str) -> None:
        """NAME...: these processes end."""
        for name in names:
            self._cluster.kill(name)
            self._trace.append(f"{name} is dead")

    def do_start(self, *names: str) -> None:
        """NAME...: these processes begin anew."""
        for name in names:
            self._cluster.come_back(name)
            self._trace.append(f"{name} is alive")
        self._world.run(self._world.now + 1.0)

    def do_cut(self, *names: str) -> None:
        """NAME...: these can reach each other, and nobody else."""
        processes = self._world.processes
        some = [processes[name] for name in names]
        self._cluster.network.partition(some, [p for name, p in processes.items() if name not in names])
        self._trace.append(f"{' and '.join(names)} can reach nobody else")

    def do_join(self) -> None:
        """Everybody can reach everybody."""
        self._cluster.network.heal()
        self._trace.append("everybody can reach everybody")

    def do_wait(self, seconds: str) -> None:
        """SECONDS: let time pass."""
        self._world.run(self._world.now + float(seconds))

    def do_show(self) -> None:
        """The projection in force, and what every replica holds."""
        projection = self._cluster.projection
        assert projection is not None, "the cluster is set up"
        self._trace.append(f"mr: {words.projection(projection)}")
        for host in self._cluster.nodes:
            if not host.process.alive:
                self._trace.append(f"{node_address(host.snid)}: dead")
                continue
            for lsid, storage in sorted(host.storages.items()):
                held = storage.read(GLSN(storage.trim + 1), 1 << 20) if storage.end > storage.trim + 1 else []
                shown = ", ".join(f"{words.positions(b.glsn, b.count)} {words.entries(b.batch)}" for b in held)
                self._trace.append(
                    f"{node_address(host.snid)}: log stream {lsid} in epoch {storage.epoch}: {shown or 'nothing'}"
                )
