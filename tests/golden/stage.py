"""The stage of a golden script: a cluster in which nothing happens until the script says so.

Messages lie in flight until they are delivered, dropped or copied; what a process has staged lies in memory until it is
synced; time stands still. Every command leaves a trace: what was delivered, and below it, indented, what changed, which
rule's branch was taken, what was sent. The commands are the methods named `do_...`; their text says what they do.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from functools import partial
from itertools import count
from typing import NamedTuple

from tests.golden import words
from tests.golden.actors import MANAGER, TOPIC, MetadataActor, StorageNodeActor
from tests.golden.manager import ManagerActor, request_of
from tests.golden.view import View, changes
from varlog import limits
from varlog.core.address import METADATA_REPOSITORY, Address
from varlog.core.appending import Outcome, Writer
from varlog.core.branches import Branch
from varlog.core.describing import describe
from varlog.core.manager import Step
from varlog.core.messages import (
    AppendReplies,
    AppendReply,
    CreateStream,
    CreateTopic,
    Decided,
    Message,
    RegisterNode,
    RegisterStream,
    Scan,
    SealStream,
    Sync,
    TrimTopic,
    Unseal,
)
from varlog.core.rebuilding import Wishes, rebuild
from varlog.core.routing import Routing
from varlog.errors import VarlogError
from varlog.sim.disk import SimDisk
from varlog.sim.medium import Image
from varlog.storagenode.surveying import survey
from varlog.types import GLSN, Epoch, LogStreamID, StorageNodeID, WriterID

READER = "reader"
LOOK_SECONDS = 0.2
"""Between two looks of the manager, where a script leaves it to itself;"""
QUIET_LOOKS = 8
"""and after so many of them without anything new nothing more is expected."""


class Letter(NamedTuple):
    """A message in flight."""

    source: Address
    target: Address
    message: Message

    def __str__(self) -> str:
        return f"{self.source} -> {self.target}  {words.message(self.message)}"


def _sent(letters: list[Letter]) -> Iterator[str]:
    """A line for each kind of message; what is in it is told when it arrives."""
    for kind in dict.fromkeys(type(letter.message).__name__ for letter in letters):
        targets = [letter.target for letter in letters if type(letter.message).__name__ == kind]
        yield f"{letters[0].source} sends {kind} to {', '.join(targets)}"


def _why(stopped: str) -> str:
    """Why a node has stopped, if that is not what it was just told."""
    return f": {stopped}" if stopped.startswith("node ") else ""


class Client:
    """A writer, and what it appends."""

    def __init__(self, number: int, send: Callable[[Address, Message], None], tell: Callable[[str], None]) -> None:
        self.routing = Routing()
        self._payloads: dict[int, str] = {}
        self._tell = tell
        # Consecutive clients choose consecutive log streams, of up to five.
        ids = (WriterID(60 * life + number - 1) for life in count(1))
        self.writer = Writer(
            TOPIC, self.routing, partial(next, ids), partial(next, count(1)), lambda: 0, send, self._settle
        )

    def append(self, entries: list[str], now: float) -> None:
        id_ = len(self._payloads)
        self._payloads[id_] = " ".join(entries)
        self.writer.append(id_, [entry.encode() for entry in entries], now + 60.0, now)

    def _settle(self, id_: int, outcome: Outcome) -> None:
        self._tell(f"[{self._payloads[id_]}] {words.outcome(outcome)}")


def _key(step: Step) -> object:
    """What makes a step not worth telling again: the same request, or the same reason to wait whatever the time."""
    return step.key if step.message is not None else re.sub(r"[\d.]+ s\b", "", step.sentence)


class Stage:
    """See the module's text."""

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self._now = 0.0
        self._flight: list[Letter] = []
        self._nodes: dict[Address, StorageNodeActor] = {}
        self._clients: dict[Address, Client] = {}
        self._trace: list[str] = []
        self._asides: list[str] = []
        self._manager = ManagerActor(self._sender(MANAGER), self._trace_indented)
        self._backups: dict[Address, Image] = {}
        self._version = 0
        """The last decision that was told."""

    def execute(self, command: str) -> list[str]:
        """Do one command; its trace."""
        name, *args = command.split()
        self._trace = []
        getattr(self, f"do_{name}")(*args)
        return self._trace or ["nothing happens"]

    # What happens in one process, and what is seen of it

    @contextmanager
    def _event(self, actor: Address, headline: str | None) -> Iterator[None]:
        if headline is not None:
            self._trace.append(headline)
        before = self._views(actor)
        self._asides, sent = [], len(self._flight)
        yield
        if actor == METADATA_REPOSITORY and self._mr.repository.state.version > self._version:
            self._tell_decisions()
        self._trace += [f"    {actor} {line}" for line in changes(before, self._views(actor))]
        self._trace += [f"    ({aside})" for aside in self._asides]
        self._trace += [f"    {line}" for line in _sent(self._flight[sent:])]

    def _trace_indented(self, line: str) -> None:
        self._trace.append(f"    {line}")

    def _views(self, actor: Address) -> dict[LogStreamID, View]:
        node = self._nodes.get(actor)
        if node is None:
            return {}
        return {executor.lsid: View.of(executor, node.node) for executor in node.node.executors}

    def _tell_decisions(self) -> None:
        for version, entry in self._mr.entries(self._version):
            self._trace.append(f"    mr version {version}: {words.entry(entry)}")
            self._version = version

    def _observe(self, branch: Enum) -> None:
        if isinstance(branch, Branch):
            self._asides.append(branch.value)

    def _sender(self, source: Address) -> Callable[[Address, Message], None]:
        return lambda target, message: self._flight.append(Letter(source, target, message))

    # Setting the stage

    def do_cluster(self, *settings: str) -> None:
        """nodes=N rf=N streams=N [min=N] [sync=off] [secrets=on] [registered=N]: a new cluster, set up and running.
        With secrets its nodes prove who they are; only so many of them are registered."""
        wanted = dict(setting.split("=") for setting in settings)
        self._clear()
        self._mr = MetadataActor(self._sender(METADATA_REPOSITORY), self._observe)
        secrets, sync = wanted.get("secrets") == "on", wanted.get("sync") != "off"
        snids = [StorageNodeID(n + 1) for n in range(int(wanted["nodes"]))]
        for snid in snids:
            send = self._sender(f"sn/{snid}")
            node = StorageNodeActor(snid, send, self._observe, sync=sync, announces=secrets)
            self._nodes[node.address] = node
        self.do_settle()
        registered = snids[: int(wanted.get("registered", len(snids)))]
        for snid in registered:
            if secrets:
                self._manager.operate(request_of("add-node", [f"sn/{snid}"]))
                self.do_settle()
            else:
                self._ask(RegisterNode(0, snid))
        factor = int(wanted["rf"])
        self._ask(CreateTopic(0, "log", factor, int(wanted.get("min", min(2, factor)))))
        for n in range(int(wanted["streams"])):
            lsid = LogStreamID(self._ask(CreateStream(0, TOPIC)).value)
            replicas = tuple((registered * 2)[n % len(registered) :][:factor])
            for snid in replicas:
                self._nodes[f"sn/{snid}"].add_log_stream(lsid)
            self._ask(RegisterStream(0, lsid, replicas))
        self._version = self._mr.repository.state.version
        self.do_recover()
        self._trace = []
        self.do_show("all")

    def _ask(self, message: Message) -> Decided:
        self._mr.receive(MANAGER, message, self._now)
        self._mr.sync()
        answer = next(letter for letter in self._flight if letter.target == MANAGER)
        self._flight.remove(answer)
        assert isinstance(answer.message, Decided)
        return answer.message

    # Messages

    def do_deliver(self, *which: str) -> None:
        """SOURCE -> TARGET [KIND]: what is in flight there now. all: everything, until nothing is in flight."""
        if which == ("all",):
            while self._flight:
                self._deliver(self._flight[0])
        else:
            for letter in self._select(which):
                self._deliver(letter)

    def do_drop(self, *which: str) -> None:
        """SOURCE -> TARGET [KIND]: lose what is in flight there."""
        for letter in self._select(which):
            self._flight.remove(letter)
            self._trace.append(f"lost: {letter}")

    def do_copy(self, *which: str) -> None:
        """SOURCE -> TARGET [KIND]: what is in flight there will arrive twice; the copy at the very end."""
        for letter in self._select(which):
            self._flight.append(letter)
            self._trace.append(f"twice in flight: {letter}")

    def _select(self, which: tuple[str, ...]) -> list[Letter]:
        source, _, target, *kinds = which
        found: list[Letter] = []
        for letter in self._flight:
            fits = source in {"*", letter.source} and target in {"*", letter.target}
            if fits and (not kinds or type(letter.message).__name__ in kinds) and letter not in found:
                found.append(letter)
        assert found, f"nothing is in flight: {' '.join(which)}"
        return found

    def _deliver(self, letter: Letter) -> None:
        self._flight.remove(letter)
        source, target, message = letter
        if (node := self._nodes.get(target)) is not None and not node.alive:
            self._trace.append(f"lost: {letter}")
            if source == MANAGER:
                self._manager.on_unreachable(message)
            return
        with self._event(target, str(letter)):
            if target in self._clients and isinstance(message, AppendReply):
                self._clients[target].writer.on_reply(message, self._now)
            elif target in self._clients and isinstance(message, AppendReplies):
                for reply in message.each():
                    self._clients[target].writer.on_reply(reply, self._now)
            elif (node := self._nodes.get(target.removeprefix("at/"))) is not None:
                node.receive(source, message, self._now)
                if node.stopped:
                    self._trace_indented(f"{node.address} stops{_why(node.stopped)}")
                    self._mr.repository.on_closed(node.address)
            elif target == MANAGER:
                self._manager.receive(message)
            elif target == METADATA_REPOSITORY:
                self._mr.receive(source, message, self._now)

    # Disks and crashes

    def do_sync(self, *actors: str) -> None:
        """SN or mr, or several, or all: write what was staged and sync what needs it."""
        everyone = [*(address for address, node in self._nodes.items() if node.alive), METADATA_REPOSITORY]
        for actor in everyone if actors == ("all",) else actors:
            self._sync(actor)

    def _sync(self, actor: Address) -> bool:
        """Whether anything came of it."""
        told = len(self._trace)
        with self._event(actor, f"{actor} syncs"):
            if actor == METADATA_REPOSITORY:
                self._mr.sync()
            else:
                self._nodes[actor].sync(self._now)
        if len(self._trace) > told + 1:
            return True
        del self._trace[told:]
        return False

    def do_crash(self, actor: str, *how: str) -> None:
        """ACTOR [power [lose=N,N]]: the process dies; with power, its unsynced writes are gone, or only those."""
        lost = [letter for letter in self._flight if letter.target == actor]
        self._flight = [letter for letter in self._flight if letter.target != actor]
        if actor in self._nodes:
            self._mr.repository.on_closed(actor)
        if actor == MANAGER:
            self._manager.start()
            self._trace.append("manager: killed, and another one started; it remembers nothing")
        elif actor == METADATA_REPOSITORY:
            self._mr.crash()
            self._trace.append("mr: killed")
        elif not how:
            self._nodes[actor].crash()
            self._trace.append(f"{actor}: killed")
        else:
            numbers = {int(n) for setting in how[1:] for n in setting.removeprefix("lose=").split(",")}
            writes = self._nodes[actor].lose_power(numbers or None)
            lost_writes = f"number {', '.join(map(str, sorted(numbers)))}" if numbers else "all"
            unsynced = f"unsynced writes: {writes}; lost: {lost_writes}" if writes else "everything it wrote was synced"
            self._trace.append(f"{actor}: power lost; {unsynced}")
        self._trace += [f"lost: {letter}" for letter in lost]

    def do_restart(self, actor: str) -> None:
        """ACTOR: starts again, from its disk."""
        if actor == METADATA_REPOSITORY:
            self._mr.start()
            self._version = self._mr.repository.state.version
            self._trace.append(f"mr: leads in term {self._mr.repository.term}, at version {self._version}")
            return
        with self._event(actor, f"{actor}: starts"):
            self._nodes[actor].start()
        self.do_show(actor)

    def do_fault(self, actor: str, what: str) -> None:
        """SN sync|disk: its next sync fails; or it is killed, and its disk is lost and an empty one in its place."""
        node = self._nodes[actor]
        if what == "sync":
            node.disk.fail_syncs(prefix=f"/volume/cid=1/snid={node.snid}/lsid=1")
            self._trace.append(f"{actor}: the next sync of its disk will fail")
        else:
            node.lose_disk()
            self._mr.repository.on_closed(actor)
            self._flight = [letter for letter in self._flight if letter.target != actor]
            self._trace.append(f"{actor}: killed; its disk is lost, and an empty one is in its place")

    def do_backup(self, actor: str) -> None:
        """SN or mr: somebody makes a copy of its disk."""
        self._backups[actor] = self._actor(actor).disk.image()
        self._trace.append(f"{actor}: its disk is copied")

    def do_restore(self, actor: str, how: str = "") -> None:
        """SN or mr [after=SECONDS]: the process dies, and the copy of its disk is put in its place. Of the metadata
        repository, with a time, it is put back as a backup that is so old."""
        self.do_crash(actor)
        self._actor(actor).disk = SimDisk.from_image(self._backups[actor])
        if how:
            self._mr.restore(int(how.removeprefix("after=")))
            self._trace.append(f"{actor}: the copy is restored as a backup")
        else:
            self._trace.append(f"{actor}: the copy is put in the place of its disk")

    def _actor(self, actor: Address) -> StorageNodeActor | MetadataActor:
        return self._mr if actor == METADATA_REPOSITORY else self._nodes[actor]

    def do_rebuild(self, *actors: str) -> None:
        """SN...: what metadata would be made of what these nodes, which are stopped, have on their disks."""
        surveys = [survey(self._nodes[actor].disk, ["/volume"], None, None, 0) for actor in actors]
        try:
            state = rebuild(surveys, Wishes()).checkpoint.state
        except VarlogError as error:
            self._trace.append(f"refused: {error}")
            return
        for stream in state.streams.values():
            on = ", ".join(f"sn/{snid}" for snid in stream.replicas)
            self._trace.append(f"ls {stream.lsid} {stream.status.name} in epoch {stream.epoch} on {on}")
        self._trace.append(f"the tail is GLSN {state.topics[TOPIC].hwm}")

    # Time

    def do_wait(self, seconds: str, *actors: str) -> None:
        """SECONDS [ACTOR...]: time passes for all, and those named, or all, look at the clock once."""
        self._now += float(seconds)
        everyone = [*self._nodes, METADATA_REPOSITORY, *self._clients]
        for actor in actors or everyone:
            with self._event(actor, None):
                if actor in self._clients:
                    self._clients[actor].writer.tick(self._now)
                elif actor == METADATA_REPOSITORY and self._mr.alive:
                    self._mr.tick(self._now)
                elif actor in self._nodes and self._nodes[actor].alive:
                    self._nodes[actor].tick(self._now)

    def do_settle(self) -> None:
        """Deliver and sync whatever there is, until nothing moves."""
        moved = True
        while moved:
            self.do_deliver("all")
            moved = bool([actor for actor in self._busy() if self._sync(actor)])

    def _busy(self) -> list[Address]:
        staged = [address for address, node in self._nodes.items() if node.staged]
        return [*staged, METADATA_REPOSITORY] if self._mr.alive else staged

    def do_go(self) -> None:
        """As settle, and tells less: what changed, and what the manager says and hears; not the reports and commits
        that go on all the time."""
        self.do_settle()
        self._trace = list(words.gist(self._trace))

    # The manager

    def do_manager(self) -> None:
        """The manager looks at the world once and asks for what follows."""
        with self._event(MANAGER, None):
            for step in self._steps():
                self._trace.append(f"manager: {step.sentence}")

    def _steps(self) -> list[Step]:
        self._look()
        return self._manager.steps(lambda snid: self._nodes[f"sn/{snid}"].alive)

    def _look(self) -> None:
        """Whoever is alive answers at once, unless nothing of it reaches anybody."""
        answering = [partial(node.info, now=self._now) for node in self._nodes.values() if node.alive]
        self._manager.look(describe(self._mr.repository.state, 0), answering, self._now)

    def do_operator(self, name: str, *settings: str) -> None:
        """WHAT [SETTING...]: an operator asks the manager for something (`manager.request_of`)."""
        with self._event(MANAGER, None):
            self._look()
            self._manager.operate(request_of(name, settings))

    def do_ask(self, node: str, what: str, *settings: str) -> None:
        """SN Sync|Unseal or mr RegisterStream ls=N [epoch=N] [from=N] [set=N,N]: a request of a manager, though nothing
        calls for it now, and the answer to it."""
        given = dict(setting.split("=") for setting in settings)
        request, lsid, epoch = self._manager.new_request(), LogStreamID(int(given["ls"])), int(given.get("epoch", "0"))
        replicas = tuple(StorageNodeID(int(snid)) for snid in given.get("set", "0").split(","))
        messages: dict[str, Message] = {
            "Sync": Sync(request, lsid, Epoch(epoch), StorageNodeID(int(given.get("from", "0"))), False),
            "Unseal": Unseal(request, lsid, Epoch(epoch), replicas, replicas[0], GLSN(0)),
            "RegisterStream": RegisterStream(request, lsid, replicas),
        }
        self._flight.append(Letter(MANAGER, node, messages[what]))
        self._deliver(self._flight[-1])
        if node == METADATA_REPOSITORY:
            self._sync(METADATA_REPOSITORY)
        for letter in [letter for letter in self._flight if letter.target == MANAGER]:
            self._deliver(letter)

    def do_seal(self, lsid: str) -> None:
        """ls=N: somebody asks for a seal."""
        for info in describe(self._mr.repository.state, 0).streams:
            if f"ls={info.lsid}" == lsid:
                message = SealStream(self._manager.new_request(), info.lsid, info.epoch)
                self._flight.append(Letter(MANAGER, METADATA_REPOSITORY, message))
                self._trace.append(str(self._flight[-1]))

    def do_trim(self, glsn: str) -> None:
        """to=GLSN: the topic is trimmed, and everybody knows."""
        self._ask(TrimTopic(0, TOPIC, GLSN(int(glsn.removeprefix("to=")))))
        self._version = self._mr.repository.state.version
        self.do_settle()
        self._trace = [f"everything to GLSN {glsn.removeprefix('to=')} is trimmed"]

    def do_recover(self) -> None:
        """The manager looks and acts until it knows nothing new; all arrives and is synced; of all that only its
        sentences are told, each once."""
        sentences: list[str] = []
        known: list[object] = []
        quiet = 0
        while quiet < QUIET_LOOKS:
            self.do_wait(str(LOOK_SECONDS), *self._nodes, METADATA_REPOSITORY)
            self.do_settle()
            steps = self._steps()
            new = [step for step in steps if _key(step) not in known]
            known += [_key(step) for step in new]
            quiet = 0 if new else quiet + 1
            sentences += [f"manager: {step.sentence}" for step in new]
            assert len(sentences) < 500, "it does not come to rest: " + "\n".join(sentences[-20:])
            self.do_settle()
        self._trace = sentences

    # Clients

    def do_append(self, client: str, *entries: str) -> None:
        """CLIENT ENTRY...: one batch."""
        if client not in self._clients:
            number = int(client.removeprefix("w"))
            self._clients[client] = Client(number, self._sender(client), lambda line: self._say(client, line))
            self._refresh(client)
        with self._event(client, None):
            self._clients[client].append(list(entries), self._now)
            if self._clients[client].writer.wants_metadata:
                self._refresh(client)

    def do_commit(self, client: str, *entries: str) -> None:
        """CLIENT ENTRY...: one batch, and everything it takes until the client is answered and nothing moves."""
        self.do_append(client, *entries)
        self.do_settle()
        self._trace = [line for line in self._trace if line.startswith(f"    {client}: ")]

    def do_refresh(self, client: str) -> None:
        """CLIENT: learns the present metadata."""
        with self._event(client, None):
            self._refresh(client)

    def _refresh(self, client: str) -> None:
        self._clients[client].routing.update(describe(self._mr.repository.state, 0))
        self._clients[client].writer.on_metadata(self._now)

    def _say(self, client: str, line: str) -> None:
        self._trace.append(f"    {client}: {line}")

    def do_read(self, node: str, lsid: str, begin: str) -> None:
        """SN ls=N from=GLSN: what a replica answers to a read, without waiting."""
        request = self._manager.new_request()
        asked = LogStreamID(int(lsid.removeprefix("ls="))), GLSN(int(begin.removeprefix("from=")))
        self._nodes[node].read(READER, Scan(request, *asked, limits.SCAN_REPLY_BYTES, wait=False), self._now)
        letter = next(letter for letter in self._flight if letter.target == READER)
        self._flight.remove(letter)
        self._trace.append(str(letter))

    # Looking

    def do_show(self, actor: str) -> None:
        """SN, mr or all: the present state."""
        if actor in {METADATA_REPOSITORY, "all"}:
            repository = self._mr.repository
            tail = repository.state.topics[TOPIC].hwm
            self._trace.append(f"mr at version {repository.state.version}; the tail is GLSN {tail}")
            self._trace += [f"    {words.stream(info)}" for info in describe(repository.state, 0).streams]
        for address, node in self._nodes.items():
            if actor in {address, "all"} and node.alive:
                self._trace.append(f"{address} at version {node.node.version}")
                self._trace += [f"    {words.replica(executor)}" for executor in node.node.executors]
