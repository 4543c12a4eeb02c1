"""The stage of the golden scripts of transactions: a small simulated cluster whose clients transact as they are told.

It is a cluster of the simulator, production code on a network on which every message takes a millisecond and nothing
goes wrong by chance. Told is what a procedure asks for, step by step, and what came of it; and what readers show, pass
over, and wait for. How a verdict or an entry is appended is told by other scripts.

The commands are the methods named `do_...`; their text says what they do.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from varlog import batch, errors
from varlog.batch.transactions import MARK_TAG, Mark, Verdict, VerdictKind, decode_verdict, encode_mark
from varlog.core import transacting
from varlog.core.appending import Committed, Outcome
from varlog.core.content import Tagged
from varlog.core.fates import Fate
from varlog.core.messages import BeginTransaction, Begun, Decided, EndTransaction, OpenTransaction, TrimTopic
from varlog.core.transacting import Part
from varlog.sim.clients import ClientHost
from varlog.sim.evidence import Evidence, verdict_in
from varlog.sim.history import Kind
from varlog.sim.ledger import Spoken
from varlog.sim.network import Conditions
from varlog.sim.shape import Shape
from varlog.sim.transactions.clients import TransactingClient
from varlog.sim.transactions.cluster import TransactionalCluster
from varlog.sim.transactions.jobs import Board
from varlog.sim.transactions.reading import CommittedReading
from varlog.sim.transactions.ways import TOPIC, Inquiries, Procedures, Ways
from varlog.sim.world import World
from varlog.types import GLSN, Ordering

PATIENCE = 20.0
"""So long a command's end is waited for."""
REST = 0.3
"""So long the world goes on after it, for what follows from it."""


class StageCluster(TransactionalCluster):
    """No clients but those of the script."""

    def _make_clients(self) -> list[ClientHost]:
        self._board = Board()
        return []


class Actor:
    """The job of a client: what the script says."""

    def __init__(self, ways: Ways, inquiries: Inquiries, number: int) -> None:
        self.ways = ways
        self.inquiries = inquiries
        self.procedures = Procedures(ways, inquiries)
        self.part = number
        self.one: OpenTransaction | None = None
        self.attempts = self.written = self.last = 0
        self.reading: CommittedReading | None = None

    def start(self) -> None:
        pass

    def tick(self) -> None:
        if self.reading is not None:
            self.reading.tick()

    def killed(self) -> None:
        pass

    @property
    def transaction(self) -> OpenTransaction:
        assert self.one is not None, "the script has begun one"
        return self.one

    def share(self) -> Part:
        return Part(self.part, self.written, self.last)


class TransactionStage:
    """See the module's text."""

    def __init__(self) -> None:
        self._trace: list[str] = []
        self._actors: dict[str, Actor] = {}
        self._told = 0

    def execute(self, command: str) -> list[str]:
        """Do one command; its trace."""
        name, *args = command.split()
        self._trace = []
        getattr(self, f"do_{name}")(*args)
        return self._trace or ["nothing happens"]

    def _actor(self, name: str) -> Actor:
        if name not in self._actors:
            made: list[Actor] = []

            def make(ways: Ways, inquiries: Inquiries) -> Actor:
                made.append(Actor(ways, inquiries, int(name[1:]) if name[1:].isdigit() else 0))
                return made[-1]

            client = TransactingClient(self._world.process(name), self._cluster.shared, make)
            client.start()
            self._actors[name] = made[0]
        return self._actors[name]

    def _go_on(self, done: list[Any]) -> Any:
        """Until something is done, and a little longer."""
        self._world.run(self._world.now + PATIENCE, stop=lambda: bool(done))
        assert done, "it did not come to an end"
        self._world.run(self._world.now + REST)
        self._tell_reads()
        return done[0]

    def _run(self, name: str, procedure: transacting.Procedure[Any]) -> Any:
        done: list[Any] = []
        self._actor(name).procedures.run(self._told_steps(name, procedure), PATIENCE, done.append)
        return self._go_on(done)

    # Words

    def _told_steps(self, name: str, procedure: transacting.Procedure[Any]) -> transacting.Procedure[Any]:
        came: Any = None
        while True:
            try:
                effect = procedure.send(came)
            except StopIteration as end:
                return end.value
            came = yield effect
            self._trace.append(f"{name} {_step(effect, came)}")

    def _tell_reads(self) -> None:
        history = self._cluster.history
        for op in history.operations[self._told :]:
            if op.kind is Kind.DELIVERY:
                self._trace.append(
                    f"    {op.client} shows {_positions(op.glsn, len(op.payloads))} {_words(op.payloads)}"
                )
            elif op.kind is Kind.PASS:
                self._trace.append(f"    {op.client} passes over {_positions(op.glsn, op.end - op.glsn)}")
            elif op.kind is Kind.VERDICT and op.client.startswith("r"):
                self._trace.append(f"    {op.client} ends transaction {op.transaction} with an EXPIRE")
        self._told = len(history.operations)
        for name, actor in self._actors.items():
            held = actor.reading.held if actor.reading is not None else None
            if held is not None:
                self._trace.append(f"    {name} waits at {held.glsn} for transaction {held.mark.txid}")

    # Setting the stage

    def do_cluster(self) -> None:
        """A cluster of one node with two log streams."""
        self._world = World(1)
        self._cluster = StageCluster(self._world, Shape(nodes=1, streams=2, replication_factor=1))
        self._cluster.network.conditions = Conditions(min_delay=0.001, mean_delay=0.0)
        self._cluster.set_up()

    # What writers do

    def do_begin(self, name: str, called: str, *settings: str) -> None:
        """WRITER NAME [number=N] [token=T] [expires=MILLISECONDS]: begin one, or join it."""
        given = dict(setting.split("=") for setting in settings)
        number, expiry = int(given.get("number", -1)), int(given.get("expires", 60_000))
        actor = self._actor(name)
        actor.attempts += 1
        token = given.get("token", f"{name}/{actor.attempts}")
        came = self._run(name, transacting.begin(TOPIC, Ordering.COMMIT, called, token, number, expiry))
        if isinstance(came, OpenTransaction):
            actor.one, actor.written, actor.last = came, 0, 0
            self._trace.append(f"    {name} is in transaction {came.txid}, after {came.after}")
        else:
            self._tell_error(name, came)

    def do_append(self, name: str, *entries: str) -> None:
        """WRITER ENTRY...: append one batch to its transaction, as its part."""
        actor = self._actor(name)
        one = actor.transaction
        mark = encode_mark(Mark(one.txid, one.after, actor.part, one.expiry))
        flags = int(batch.BatchFlag.TRANSACTION)
        glsn = self._append(actor, Tagged([entry.encode() for entry in entries], flags, {MARK_TAG: mark}))
        actor.written += len(entries)
        actor.last = glsn + len(entries) - 1
        self._trace.insert(0, f"{name}: {_positions(glsn, len(entries))} [{' '.join(entries)}]")

    def do_plain(self, name: str, *entries: str) -> None:
        """WRITER ENTRY...: append a batch that belongs to no transaction."""
        glsn = self._append(self._actor(name), [entry.encode() for entry in entries])
        self._trace.insert(0, f"{name}: {_positions(glsn, len(entries))} [{' '.join(entries)}]")

    def _append(self, actor: Actor, content: Any) -> int:
        done: list[Outcome] = []
        actor.ways.append(content, actor.ways.now + PATIENCE, done.append)
        outcome = self._go_on(done)
        assert isinstance(outcome, Committed), "nothing fails by chance"
        self._cluster.shared.learn(outcome.glsn + outcome.count - 1)
        return outcome.glsn

    def do_commit(self, name: str, *others: str) -> None:
        """WRITER [WRITER...]: the first commits its part, and those of the others."""
        actor = self._actor(name)
        shares = [actor.share(), *(self._actor(other).share() for other in others)]
        came = self._run(name, transacting.commit(actor.transaction, shares))
        if isinstance(came, Fate):
            self._trace.append(f"    {name}: transaction {actor.transaction.txid} is committed, at {came.glsn}")
        else:
            self._tell_error(name, came)

    def do_tell(self, name: str, glsn: str) -> None:
        """WRITER POSITION: the register is told that its transaction is committed there."""
        actor = self._actor(name)
        one = actor.transaction
        verdict = Verdict(VerdictKind.COMMIT, one.txid, one.after)
        self._run(name, transacting.tell(TOPIC, one.txid, Fate(GLSN(int(glsn)), verdict)))

    def do_abort(self, name: str) -> None:
        """WRITER: it aborts its transaction."""
        one = self._actor(name).transaction
        came = self._run(name, transacting.abort(TOPIC, one, "it is not wanted"))
        if isinstance(came, Fate):
            self._trace.append(f"    {name}: transaction {one.txid} is aborted")
        else:
            self._tell_error(name, came)

    def _tell_error(self, name: str, came: Any) -> None:
        self._trace.append(f"    {name}: {type(came).__name__}: {came}")

    # What readers do

    def do_read(self, name: str, begin: str = "1", end: str = "") -> None:
        """READER [BEGIN [END]]: read on from there, and show what is committed."""
        actor = self._actor(name)
        operation = self._cluster.history.invoke(name, Kind.SUBSCRIBE, TOPIC, position=int(begin))
        ended = partial(self._on_end, name)
        upto = int(end) if end else None
        actor.reading = CommittedReading(actor.ways, actor.procedures, operation, upto, 100, ended, self._saw)
        self._world.run(self._world.now + REST)
        self._tell_reads()

    @staticmethod
    def _saw(_spoken: Iterable[Spoken]) -> None:
        """The log is shown by a command."""

    def _on_end(self, name: str, error: errors.VarlogError | None) -> None:
        self._actors[name].reading = None
        if error is not None:
            self._tell_error(name, error)

    def do_wait(self, seconds: str) -> None:
        """SECONDS: let time pass."""
        self._world.run(self._world.now + float(seconds))
        self._tell_reads()

    # What operators do

    def do_trim(self, glsn: str) -> None:
        """POSITION: trim up to there."""
        done: list[Any] = []
        actor = self._actor("operator")
        self._cluster.history.invoke("operator", Kind.TRIM, TOPIC, position=int(glsn))
        actor.inquiries.ask(TrimTopic(0, TOPIC, GLSN(int(glsn))), actor.ways.now + PATIENCE, done.append)
        came = self._go_on(done)
        assert isinstance(came, Decided)
        code = errors.VarlogError.registry[came.code].__name__ if came.code else "done"
        self._trace.insert(0, f"trim to {glsn}: {code}{f': {came.detail}' if came.detail else ''}")

    def do_log(self) -> None:
        """What is in the log."""
        evidence: Evidence = self._cluster.evidence(None)
        for (_, glsn), position in sorted(evidence.stored.items()):
            said = verdict_in(position.payload)
            words = position.payload.decode() if said is None else _verdict(decode_verdict(said))
            self._trace.append(f"{glsn:4}  {words}")


def _positions(glsn: int, count: int) -> str:
    return str(glsn) if count == 1 else f"{glsn}-{glsn + count - 1}"


def _words(payloads: tuple[bytes, ...]) -> str:
    return "[" + " ".join(payload.decode() for payload in payloads) + "]"


def _verdict(verdict: Verdict) -> str:
    said = f"{verdict.kind.name} transaction {verdict.txid}"
    if verdict.kind is VerdictKind.COMMIT:
        parts = ", ".join(f"{entries} of part {part}" for part, entries in verdict.parts)
        return f"{said}: {parts or 'nothing'}, up to {verdict.checked}"
    return f"{said}: {verdict.reason}"


def _step(effect: transacting.Effect, came: Any) -> str:
    """What a procedure asked for, and what came of it."""
    match effect:
        case transacting.Ask(message):
            return f"asks mr to {_question(message)}: {_answer(came)}"
        case transacting.Pronounce(verdict):
            return f"appends {_verdict(verdict)}: at {came}"
        case transacting.Look(txid, after, upto):
            where = f"from {after + 1} to {'the tail' if upto is None else upto}"
            found = f"{came.verdict.kind.name} at {came.glsn}" if isinstance(came, Fate) else "nothing"
            if isinstance(came, errors.VarlogError):
                found = type(came).__name__
            return f"looks for a verdict on transaction {txid} {where}: {found}"
        case _:
            return "peeks"


def _question(message: Any) -> str:
    if isinstance(message, BeginTransaction):
        number = f" number {message.number}" if message.number >= 0 else ""
        return f"begin {message.name!r}{number} as {message.token!r}"
    assert isinstance(message, EndTransaction)
    return f"note that transaction {message.txid} was {'committed' if message.is_committed else 'aborted'}"


def _answer(came: Any) -> str:
    if came.code:
        return errors.VarlogError.registry[came.code].__name__
    if not isinstance(came, Begun):
        return "done"
    assert came.transaction is not None, "it is what was asked for"
    earlier = " and ".join(f"transaction {one.txid}" for one in came.earlier)
    return f"transaction {came.transaction.txid}" + (f"; {earlier} came before" if earlier else "")
