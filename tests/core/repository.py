"""A metadata repository for tests: the production one over a store, and a list of what it sends. Nothing the store was
asked is answered before the test says so."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from itertools import count
from typing import TypeVar

from tests.metarepo.rigs import Rig, SimRig
from varlog.core.managership import MANAGERS_REQUESTS
from varlog.core.messages import (
    CreateStream,
    CreateTopic,
    Decided,
    Message,
    RegisterManager,
    RegisterNode,
    RegisterStream,
    Report,
    ReportLine,
    RunStream,
    UnsealStream,
)
from varlog.core.metarepo import MetadataRepository
from varlog.core.store import MetadataStore
from varlog.sim.store import SimStoreClient
from varlog.types import Epoch, LogStreamID, StorageNodeID, TopicID, Version

A, B = StorageNodeID(1), StorageNodeID(2)
TOPIC = TopicID(1)
ONE, TWO = LogStreamID(1), LogStreamID(2)
REGISTRATION = 0
"""What a manager's registration is asked for with; its answer is of no interest."""
M = TypeVar("M", bound=Message)


def line(lsid: int, end: int, *, epoch: int = 2, durable: int = 0) -> ReportLine:
    return (lsid, epoch, durable, 1, end, True)


class Repository:
    """See the module's text."""

    def __init__(self, rig: Rig, store: MetadataStore | None = None) -> None:
        self.rig = rig
        self.now = 1.0
        self.sent: list[tuple[str, Message]] = []
        self.branches: list[Enum] = []
        self._requests = count(1)
        self._seqs = count(1)
        self.core = MetadataRepository(store or rig.store, self._send, self.branches.append)
        self.core.campaign(self.now)
        rig.settle()

    def _send(self, address: str, message: Message) -> None:
        if not isinstance(message, Decided) or message.request != REGISTRATION:
            self.sent.append((address, message))

    def set_up(self) -> Repository:
        """Two nodes, a topic, log stream 1 on both nodes and 2 on node 2, all running. What was sent is forgotten."""
        for snid in (A, B):
            self.ask(RegisterNode(self.request(), snid))
        self.ask(CreateTopic(self.request(), "log", 2, 1))
        self.ask(CreateTopic(self.request(), "single", 1, 1))
        for lsid, tpid, replicas in ((ONE, TOPIC, (A, B)), (TWO, TopicID(2), (B,))):
            self.ask(CreateStream(self.request(), tpid))
            self.ask(RegisterStream(self.request(), lsid, replicas))
            self.ask(UnsealStream(self.request(), lsid, Epoch(1), replicas, replicas[0]))
            self.ask(RunStream(self.request(), lsid, Epoch(2)))
        for snid in (A, B):
            self.report(snid, full=True, ask=True)
        self.rig.settle()
        self.sent.clear()
        self.branches.clear()
        return self

    def request(self) -> int:
        return next(self._requests)

    def receive(self, message: Message, source: str = "asker") -> None:
        """Who asks for what only a manager may ask for is the manager, without anything being written of it."""
        if type(message) in MANAGERS_REQUESTS:
            self.core.on_message(source, RegisterManager(REGISTRATION, ""), self.now)
        self.core.on_message(source, message, self.now)

    def ask(self, message: Message) -> Decided:
        self.receive(message)
        self.rig.settle()
        return self.messages(Decided)[-1]

    def report(
        self,
        snid: StorageNodeID,
        *lines: ReportLine,
        boot: int = 1,
        version: int | None = None,
        full: bool = False,
        ask: bool = False,
    ) -> None:
        seen = self.core.state.version if version is None else Version(version)
        self.receive(Report(snid, boot, next(self._seqs), seen, lines, full, ask), f"sn/{snid}")

    def cut(self, end: int, *, durable: int = 0) -> None:
        """Both replicas of log stream 1 report, and what follows from it is written."""
        for snid in (A, B):
            self.report(snid, line(ONE, end, durable=durable))
        self.rig.settle()

    def messages(self, kind: type[M]) -> list[M]:
        return [message for _, message in self.sent if isinstance(message, kind)]

    def to(self, address: str, kind: type[M]) -> list[M]:
        return [message for target, message in self.sent if target == address and isinstance(message, kind)]

    @property
    def version(self) -> int:
        return self.core.state.version

    @property
    def tail(self) -> int:
        return self.core.state.topics[TOPIC].hwm


class Answers:
    """The way back from a simulated store to one client. What is held up arrives when the test says so."""

    def __init__(self, rig: SimRig) -> None:
        self.rig = rig
        self.client = SimStoreClient(rig.sim, self._schedule)
        self.holding = False
        self._held: list[Callable[[], None]] = []

    def _schedule(self, delay: float, act: Callable[[], None]) -> None:
        if self.holding:
            self._held.append(act)
        else:
            self.rig.timeline.schedule(delay, act)

    def hold(self) -> None:
        """From now on nothing comes back."""
        self.holding = True

    def resume(self) -> None:
        """What is asked from now on is answered; what is held up stays so."""
        self.holding = False

    def arrive(self, which: int = 0) -> None:
        """One of the answers held up arrives, and what it makes the client ask for takes effect."""
        self._held.pop(which)()
        self.rig.settle()

    def __len__(self) -> int:
        return len(self._held)
