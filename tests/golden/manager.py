"""The manager of a golden script: the production decisions and conversations, one look or one answer at a time.

It looks at the world when it is told to, sends what follows and says why. Operators ask it for what they want; what it
then says to others lies in flight like everything else. A crash takes all that it knows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from itertools import count

from varlog import errors
from varlog.core.address import Send
from varlog.core.conversing import Answer, Conversation
from varlog.core.identity import SECRET_BYTES, new_secret
from varlog.core.manager import Step, reconcile
from varlog.core.messages import (
    AddNode,
    AddStream,
    DeclareLost,
    DrainNode,
    HoldLogStream,
    Info,
    Message,
    Metadata,
    MoveReplica,
    RenewNode,
    ReplaceNode,
    StreamInfo,
    SyncLogStream,
)
from varlog.core.registration import Registrar
from varlog.core.world import Memory, World
from varlog.manager.lookout import Lookout
from varlog.types import LogStreamID, StorageNodeID

FRESH = 1.0
"""For how long an answer counts when somebody is wanted to take a replica."""


def request_of(name: str, settings: Seq[str]) -> Message:
    """What an operator asks for, as a script says it: add-node sn/1, drain node=2, move ls=1 from=2 to=4."""
    given = dict(setting.split("=") for setting in settings if "=" in setting)

    def node(key: str) -> StorageNodeID:
        return StorageNodeID(int(given.get(key, "0")))

    lsid = LogStreamID(int(given.get("ls", "0")))
    match name:
        case "add-node":
            return AddNode(0, settings[0])
        case "add-stream":
            return AddStream(0, "log")
        case "drain" | "undrain":
            return DrainNode(0, node("node"), undo=name == "undrain")
        case "replace":
            return ReplaceNode(0, node("node"), node("by"))
        case "seal" | "unseal":
            return HoldLogStream(0, lsid, name == "seal")
        case "sync":
            return SyncLogStream(0, lsid, node("node"), node("from"))
        case "move":
            return MoveReplica(0, lsid, node("to"), node("from"))
        case "lost":
            return DeclareLost(
                0, lsid, tuple(StorageNodeID(int(n)) for n in filter(None, given.get("gone", "").split(",")))
            )
        case _:
            raise AssertionError(f"no operator asks for {name}")


class _Talk:
    """A conversation under way."""

    def __init__(self, conversation: Conversation, who: str) -> None:
        self.conversation = conversation
        self.who = who
        self.waiting: dict[int, int] = {}
        self.answers: list[Answer] = []


class ManagerActor:
    """See the module's text. `tell` is handed what operators are told."""

    def __init__(self, send: Send, tell: Callable[[str], None]) -> None:
        self._send = send
        self._tell = tell
        self._requests = count(1)
        self._secrets = count(1)
        self._now = 0.0
        self.start()

    def start(self) -> None:
        """Begin to know things."""
        self._lookout = Lookout()
        self._memory = Memory()
        self._registrar = Registrar(self.new_request, self._fresh_infos, self._new_secret)
        self._talks: list[_Talk] = []

    def new_request(self) -> int:
        return next(self._requests)

    def _new_secret(self) -> str:
        return new_secret(bytes([next(self._secrets)] * SECRET_BYTES))

    def _fresh_infos(self) -> dict[StorageNodeID, Info]:
        return self._lookout.fresh_infos(FRESH, self._now)

    # Looking and deciding

    def look(self, metadata: Metadata, nodes: Iterable[Callable[[int], Info]], now: float) -> None:
        """Hear the metadata repository, and every node that answers."""
        self._now = now
        self._lookout.on_metadata(metadata, self.new_request(), now)
        for node in nodes:
            self._lookout.on_info(node(self.new_request()), now)

    def world(self, is_connected: Callable[[StorageNodeID], bool]) -> World | None:
        return self._lookout.world(self._now, is_connected, frozenset())

    def steps(self, is_connected: Callable[[StorageNodeID], bool]) -> list[Step]:
        """Decide, and ask for what follows."""
        world = self.world(is_connected)
        if world is None:
            return []
        self._memory.observe(world)
        steps = reconcile(world, self._memory, self.new_request, _first)
        for step in steps:
            if isinstance(step.message, RenewNode):
                if step.message.snid not in self._registrar.giving:
                    self._converse(self._registrar.renew_node(step.message.snid), "")
            elif step.message is not None:
                self._send(step.address, step.message)
        return steps

    # Conversations

    def operate(self, asked: Message) -> None:
        """Do what an operator asks for."""
        self._converse(self._registrar.begin(asked), "operator")

    def _converse(self, conversation: Conversation, who: str) -> None:
        talk = _Talk(conversation, who)
        self._talks.append(talk)
        self._go_on(talk, None)

    def _go_on(self, talk: _Talk, answers: Seq[Answer] | None) -> None:
        try:
            requests = talk.conversation.send(answers)  # type: ignore[arg-type]  # the first one is None
        except StopIteration as end:
            self._end(talk, f"done ({end.value})")
            return
        except errors.VarlogError as error:
            self._end(talk, f"{type(error).__name__}: {error}")
            return
        talk.answers = [errors.DeadlineExceeded("no answer")] * len(requests)
        talk.waiting = {}
        for number, (address, message) in enumerate(requests):
            talk.waiting[message.request] = number  # type: ignore[attr-defined]
            self._send(address, message)

    def _end(self, talk: _Talk, outcome: str) -> None:
        self._talks.remove(talk)
        if talk.who:
            self._tell(f"{talk.who} is told: {outcome}")

    def receive(self, message: Message) -> None:
        """An answer. Those that no conversation waits for are not needed: the next look shows what came of it."""
        self._answer(message, message)

    def on_unreachable(self, asked: Message) -> None:
        """Whom it has asked is not there."""
        self._answer(asked, errors.Unreachable("nobody is there"))

    def _answer(self, numbered: Message, answer: Answer) -> None:
        request: int = numbered.request  # type: ignore[attr-defined]
        for talk in self._talks:
            if request in talk.waiting:
                talk.answers[talk.waiting.pop(request)] = answer
                if not talk.waiting:
                    self._go_on(talk, talk.answers)
                return


def _first(stream: StreamInfo) -> StorageNodeID:
    """The first of a set is its primary."""
    return stream.replicas[0]
