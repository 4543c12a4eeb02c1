"""Simulated managers: the production decisions and conversations in simulated processes.

A manager asks everyone how they are a few times a second and sends what `varlog.core.manager` decides. Operators ask it
for what they want; what comes of that is written down, for a run to show that it was tried. One manager sets the
cluster up; a second one, where a run has two, stands by until it is registered as the one that leads. Each says so
twice a second, and believes that it leads until it is told otherwise: for a while there may be two.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from collections.abc import Sequence as Seq
from enum import Enum
from typing import Final

from varlog import errors
from varlog.core.address import METADATA_REPOSITORY, node_address
from varlog.core.conversing import Answer, Conversation, Requests
from varlog.core.identity import SECRET_BYTES, new_secret, proof_of
from varlog.core.manager import reconcile
from varlog.core.messages import (
    AbortStream,
    AddLogStream,
    AdoptIdentity,
    CreateStream,
    CreateTopic,
    Decided,
    GetInfo,
    GetMetadata,
    IdentityAdopted,
    Info,
    Message,
    Metadata,
    RegisterManager,
    RegisterNode,
    RegisterStream,
    RemoveLogStream,
    RenewNode,
    ReplicaReply,
    Seal,
    SealStream,
    StreamInfo,
    SyncReply,
    Unseal,
)
from varlog.core.registration import Registrar
from varlog.core.world import Memory
from varlog.manager.doing import Doing
from varlog.manager.lookout import Lookout
from varlog.sim.network import Network
from varlog.sim.process import Process
from varlog.types import GLSN, LogStreamID, StorageNodeID, TopicID

HEARTBEAT: Final = 0.1
REGISTER_EVERY: Final = 0.5
FRESH: Final = 1.0
ANSWER_SECONDS: Final = 0.7
REPLACE_AFTER: Final = 3.0
COLLECT_AFTER: Final = 2.0
"""A run is short: who is away is not waited for as long as in earnest, nor is what is of no use kept as long."""
MOST_PAUSES: Final = 6
_AGAIN: Final = frozenset(error.code for error in (errors.NotLeader, errors.Busy, errors.DeadlineExceeded))


class Operation(Enum):
    """What came of what operators asked for."""

    DONE = "operator's request was granted"
    REFUSED = "operator's request was refused"


class Collection(Enum):
    """What the managers cleared away."""

    GIVEN_UP = "log stream in the making was given up"
    UNMADE = "what was made of one that was given up was removed"
    LEFT_OVER = "replica that had left its set was removed"

    @classmethod
    def of(cls, message: Message | None) -> Collection | None:
        match message:
            case AbortStream():
                return cls.GIVEN_UP
            case RemoveLogStream(new_only=True):
                return cls.UNMADE
            case RemoveLogStream(until=until) if until:
                return cls.LEFT_OVER
            case _:
                return None


class _Talk:
    """A conversation under way."""

    def __init__(self, conversation: Conversation, ended: Callable[[errors.VarlogError | None], None]) -> None:
        self.conversation = conversation
        self.ended = ended
        self.waiting: dict[int, int] = {}
        """Which of the answers each request number is for."""
        self.answers: list[Answer] = []
        self.deadline = 0.0


class ManagerHost:
    """See the module's text."""

    def __init__(
        self,
        process: Process,
        network: Network,
        snids: Seq[StorageNodeID],
        streams: Seq[tuple[StorageNodeID, ...]],
        replication_factor: int,
        outsider: StorageNodeID | None = None,
        first: int = 1,
    ) -> None:
        self.process = process
        self._network = network
        self._snids = snids
        self._streams = streams
        self._replication_factor = replication_factor
        self._outsider = outsider
        """A node that has data of a log stream it is no replica of, and is told what its replicas are."""
        self._first = GLSN(first)
        self._rng = process.world.rng(process.name)
        self._requests = 0
        self.is_set_up = not snids
        self.steps: list[tuple[float, str]] = []
        """What it decided, and when."""
        self._begin_life()
        network.attach(process.name, process, self._receive)

    def _begin_life(self) -> None:
        self._lookout = Lookout()
        self._memory = Memory()
        self._doing = Doing()
        self._talks: list[_Talk] = []
        self._registrar = Registrar(self._request, self._fresh_infos, self._secret)
        self.leads = False
        """It was registered as the one that leads, and has not heard otherwise."""
        self._registration = 0
        self._register_at = 0.0

    def start(self) -> None:
        """Begin; the process is alive."""
        self._begin_life()
        if not self.is_set_up:
            self._converse(self._set_up(), self._on_set_up)
        self._tick()

    def kill(self) -> None:
        self.process.kill()

    def _request(self) -> int:
        self._requests += 1
        return self._requests

    def _secret(self) -> str:
        return new_secret(self._rng.randbytes(SECRET_BYTES))

    def _fresh_infos(self) -> dict[StorageNodeID, Info]:
        return self._lookout.fresh_infos(FRESH, self.process.monotonic())

    # What is asked of it

    @property
    def metadata(self) -> Metadata | None:
        return self._lookout.metadata

    def operate(self, asked: Message) -> None:
        """Do what an operator asks for. Who stands by refuses it, as does the metadata repository."""

        def ended(error: errors.VarlogError | None) -> None:
            self.process.world.count(Operation.DONE if error is None else Operation.REFUSED, self.process, asked)
            self.process.world.note("operator", self.process, str(error or "done"))

        if self.leads:
            self._converse(self._registrar.begin(asked), ended)
        else:
            ended(errors.StandBy("another manager leads"))

    def add_stream(self, replicas: tuple[StorageNodeID, ...]) -> None:
        """Make one more log stream, on nodes that need not be the best ones, and not always in one go: others may find
        it half-made, and give it up."""
        self._converse(self._add_stream(replicas, self._rng.randrange(MOST_PAUSES)), lambda _: None)

    def seal(self, lsid: LogStreamID) -> None:
        """Seal a log stream for no reason. The manager will unseal it."""
        for stream in self.metadata.streams if self.metadata is not None else ():
            if stream.lsid == lsid:
                self._send(METADATA_REPOSITORY, SealStream(self._request(), lsid, stream.epoch))

    def _set_up(self) -> Conversation:
        """Register nodes, the topic and its log streams (M1, M2), as a new cluster's operator does."""
        for snid in self._snids:
            secret = self._secret()
            yield from self._insist(METADATA_REPOSITORY, RegisterNode, snid, "", (), proof_of(snid, secret))
            yield from self._insist(node_address(snid), AdoptIdentity, snid, secret, 1)
        least = min(2, self._replication_factor)
        yield from self._insist(METADATA_REPOSITORY, CreateTopic, "log", self._replication_factor, least, self._first)
        for replicas in self._streams:
            yield from self._add_stream(replicas)
        return 0

    def _on_set_up(self, error: errors.VarlogError | None) -> None:
        assert error is None, f"the cluster cannot be set up: {error}"
        self.is_set_up = True

    def _add_stream(self, replicas: tuple[StorageNodeID, ...], pauses: int = 0) -> Conversation:
        created = yield from self._insist(METADATA_REPOSITORY, CreateStream, TopicID(1))
        assert isinstance(created, Decided)
        lsid = LogStreamID(created.value)
        outsiders = () if self._outsider is None or self._outsider in replicas else (self._outsider,)
        for snid in (*replicas, *outsiders):
            yield from self._insist(node_address(snid), AddLogStream, TopicID(1), lsid)
        for _ in range(pauses):
            yield []  # nobody answers, so it goes on when it has waited for long enough
        yield from self._insist(METADATA_REPOSITORY, RegisterStream, lsid, replicas)
        return lsid

    def _insist(
        self, address: str, kind: Callable[..., Message], *fields: object
    ) -> Generator[Requests, Seq[Answer], Answer]:
        """Ask again until somebody has the time to answer. What exists already was made by an earlier one of these
        requests, whose answer was lost."""
        while True:
            (answer,) = yield [(address, kind(self._request(), *fields))]
            code = answer.code if isinstance(answer, errors.VarlogError) else getattr(answer, "code", 0)
            if code == errors.StandBy.code:
                yield []  # for a while
            elif code not in _AGAIN:
                if code not in (0, errors.AlreadyExists.code):
                    raise errors.VarlogError.of(code, getattr(answer, "detail", ""))
                return answer

    # Conversations

    def _converse(self, conversation: Conversation, ended: Callable[[errors.VarlogError | None], None]) -> None:
        talk = _Talk(conversation, ended)
        self._talks.append(talk)
        self._go_on(talk, None)

    def _go_on(self, talk: _Talk, answers: Seq[Answer] | None) -> None:
        try:
            requests = talk.conversation.send(answers)  # type: ignore[arg-type]  # the first one is None
        except (StopIteration, errors.VarlogError) as end:
            self._talks.remove(talk)
            talk.ended(end if isinstance(end, errors.VarlogError) else None)
            return
        talk.deadline = self.process.monotonic() + ANSWER_SECONDS
        talk.answers = [errors.DeadlineExceeded("no answer")] * len(requests)
        talk.waiting = {}
        for number, (address, message) in enumerate(requests):
            talk.waiting[message.request] = number  # type: ignore[attr-defined]
            self._send(address, message)

    def _on_answer(self, message: Message) -> None:
        request: int = message.request  # type: ignore[attr-defined]
        for talk in self._talks:
            if request in talk.waiting:
                talk.answers[talk.waiting.pop(request)] = message
                if not talk.waiting:
                    self._go_on(talk, talk.answers)
                return

    def _expire_talks(self) -> None:
        now = self.process.monotonic()
        for talk in [talk for talk in self._talks if now >= talk.deadline]:
            self._go_on(talk, talk.answers)

    # Watching

    def _send(self, address: str, message: Message) -> None:
        self._network.send(self.process, address, message)

    def _receive(self, _source: str, message: Message) -> None:
        now = self.process.monotonic()
        match message:
            case Metadata():
                if self.metadata is None or message.version >= self.metadata.version:
                    self._lookout.on_metadata(message, self._requests, now)
                    for node in message.nodes:
                        self._send(node_address(node.snid), GetInfo(self._request()))
            case Info():
                if self._lookout.on_info(message, now):
                    self._act()
            case Decided(request, code) if request == self._registration:
                self.leads = code == 0
            case Decided() | ReplicaReply() | SyncReply() | IdentityAdopted():
                if isinstance(message, ReplicaReply) and message.code:
                    self._on_refused(message, now)
                self._send(METADATA_REPOSITORY, GetMetadata(self._request()))
            case _:
                raise errors.InvalidArgument(f"a manager does not take {type(message).__name__}")
        self._on_answer(message)

    def _on_refused(self, message: ReplicaReply, now: float) -> None:
        if isinstance(self._doing.asked(message.request), AddLogStream):
            self._lookout.on_refused(message, now)

    def _act(self) -> None:
        world = self._lookout.world(self.process.monotonic(), lambda _: True, frozenset())
        if world is None:
            return
        self._memory.observe(world)
        if not self.leads:
            return
        steps = reconcile(world, self._memory, self._request, self._choose_primary, REPLACE_AFTER, COLLECT_AFTER)
        for step, is_new in self._doing.take(steps, world.now):
            if is_new:
                self.steps.append((self.process.world.now, step.sentence))
                self.process.world.trace("manager", self.process, step.sentence)
                if (collected := Collection.of(step.message)) is not None:
                    self.process.world.count(collected, self.process)
            if isinstance(step.message, RenewNode):
                if step.message.snid not in self._registrar.giving:
                    self._converse(self._registrar.renew_node(step.message.snid), lambda _: None)
            elif step.message is not None:
                self._send(step.address, step.message)
                if isinstance(step.message, Seal | Unseal) and self._outsider is not None:
                    self._send(node_address(self._outsider), step.message)

    def _tick(self) -> None:
        self._expire_talks()
        self._act()
        if self.process.monotonic() >= self._register_at:
            self._register_at = self.process.monotonic() + REGISTER_EVERY
            self._registration = self._request()
            self._send(METADATA_REPOSITORY, RegisterManager(self._registration, self.process.name))
        self._send(METADATA_REPOSITORY, GetMetadata(self._request()))
        self.process.at(HEARTBEAT, self._tick)

    def _choose_primary(self, stream: StreamInfo) -> StorageNodeID:
        return self._rng.choice(stream.replicas)
