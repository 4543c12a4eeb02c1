"""What simulated clients do with transactions: they begin, join, commit, abort and abandon them, over and over.

Several clients share a few names, so that attempts take each other's place all the time. Under some names transactions
are numbered, as batches of a query are: the next number is that after the last one that somebody knows to be committed,
and a number whose commit nobody is sure of is tried again. A `Board` is what the clients of a run know beside the log:
numbers that are done, whom to help, where the log begins, and what verdicts any of them has read.

A client goes on with a transaction however long ago it should have expired, and whoever has taken its place: that
nothing comes of it is for the log to say.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Protocol

from varlog import batch, errors
from varlog.batch.transactions import MARK_TAG, Mark, VerdictKind, encode_mark
from varlog.core import transacting
from varlog.core.appending import Committed, Outcome, Rejected
from varlog.core.content import Tagged
from varlog.core.fates import Fate
from varlog.core.messages import Decided, GetTransactions, OpenTransaction, Transactions, TrimTopic
from varlog.core.transacting import Part
from varlog.sim.history import Kind, Operation
from varlog.sim.ledger import Spoken
from varlog.sim.transactions.ways import TOPIC, Inquiries, Procedures, Transacted, Ways
from varlog.types import GLSN

NAMES: Final = ("plain", "query", "other query")
NUMBERED: Final = NAMES[1:]
BEGIN_SECONDS: Final = 3.0
END_SECONDS: Final = 3.0
COMMIT_TIMES: Final = 4
"""How often one asks at most what became of a commit."""


@dataclass
class Invitation:
    """Who transacts asks others to write a part each."""

    name: str
    number: int
    token: str
    expiry: int
    parts: list[Part] = field(default_factory=list)
    """Those that have been written."""
    is_open: bool = True


@dataclass
class Board:
    """See the module's text."""

    done: dict[str, int] = field(default_factory=lambda: dict.fromkeys(NUMBERED, -1))
    """The last number of each name that is known to be committed."""
    invitations: list[Invitation] = field(default_factory=list)
    verdicts: set[Spoken] = field(default_factory=set)
    first: int = 1
    """Where the log begins."""

    def note(self, name: str, number: int) -> None:
        if number >= 0:
            self.done[name] = max(self.done[name], number)

    def invite(self, invitation: Invitation) -> None:
        self.invitations = [*(one for one in self.invitations if one.is_open), invitation][-8:]


class Job(Protocol):
    """What a client is there for."""

    def start(self) -> None: ...

    def tick(self) -> None: ...

    def killed(self) -> None: ...


class Share:
    """What one client writes in a transaction: its part."""

    def __init__(self, ways: Ways, one: OpenTransaction, entries: int, done: Callable[[Part | None], None]) -> None:
        self._ways = ways
        self._mark = Mark(one.txid, one.after, ways.rng.getrandbits(63) + 1, one.expiry)
        self._left = entries
        self._done = done
        self._written = self._last = self._under_way = 0
        self._is_whole = True

    def begin(self) -> None:
        if self._left:
            self._next()
        else:
            self._finish()

    def _finish(self) -> None:
        whole = Part(self._mark.part, self._written, self._last)
        self._done(whole if self._is_whole else None)

    def _next(self) -> None:
        rng = self._ways.rng
        count = min(self._left, rng.choice((1, 1, 3)))
        self._left -= count
        self._append(count)
        if self._left:
            self._ways.process.at(rng.expovariate(1.0) * rng.choice((0.01, 0.1)), self._next)

    def _append(self, count: int) -> None:
        ways, mark = self._ways, self._mark
        id_ = ways.request()
        payloads = [f"{ways.process.name}:{id_}:{i}:{mark.txid}".encode() for i in range(count)]
        operation = ways.history.invoke(
            ways.process.name, Kind.APPEND, TOPIC, payloads=payloads, transaction=mark.txid, part=mark.part
        )
        self._under_way += 1
        content = Tagged(payloads, int(batch.BatchFlag.TRANSACTION), {MARK_TAG: encode_mark(mark)})
        deadline = ways.now + ways.rng.choice((1.0, 2.0, 4.0))
        ways.append(content, deadline, partial(self._settled, operation, count))

    def _settled(self, operation: Operation, count: int, outcome: Outcome) -> None:
        history = self._ways.history
        self._under_way -= 1
        match outcome:
            case Committed(glsn):
                history.ok(operation, glsn=glsn, lsid=outcome.log_stream, epoch=outcome.epoch)
                self._ways.learn(glsn + count - 1)
                self._written += count
                self._last = max(self._last, glsn + count - 1)
            case Rejected(code):
                history.rejected(operation, errors.VarlogError.registry[code].__name__)
                self._is_whole = False
            case _:
                history.unknown(operation, "Unknown")
                self._is_whole = False
        if self._left == 0 and self._under_way == 0:
            self._ways.process.at(0.0, self._finish)


class _Transacting:
    """What those who own transactions and those who join them have in common."""

    def __init__(self, ways: Ways, inquiries: Inquiries, board: Board) -> None:
        self.ways = ways
        self.board = board
        self.procedures = Procedures(ways, inquiries)

    def begin_one(self, name: str, number: int, token: str, expiry: int, done: Callable[[Any], None]) -> None:
        history, client = self.ways.history, self.ways.process.name
        operation = history.invoke(client, Kind.BEGIN, TOPIC, name=name, number=number)
        procedure = transacting.begin(TOPIC, self.ways.ordering, name, token, number, expiry)
        watched = _watched(procedure, self.ways.count)
        self.procedures.run(watched, BEGIN_SECONDS, partial(self._begun, operation, done))

    def _begun(self, operation: Operation, done: Callable[[Any], None], came: Any) -> None:
        history = self.ways.history
        if isinstance(came, OpenTransaction):
            operation.transaction = came.txid
            history.ok(operation, glsn=came.after)
        else:
            operation.glsn = getattr(came, "glsn", 0)
            if isinstance(came, errors.TransactionAborted):
                self.ways.count(Transacted.REPLACED)
            history.failed(operation, type(came).__name__)
        done(came)

    def tick(self) -> None:
        pass

    def killed(self) -> None:
        pass


def _watched(
    procedure: transacting.Procedure[OpenTransaction], count: Callable[[Transacted], None]
) -> transacting.Procedure[OpenTransaction]:
    """The procedure that begins one, and what it does to earlier ones noted."""
    came: Any = None
    pronounced: GLSN | None = None
    is_ours = True
    while True:
        try:
            effect = procedure.send(came)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        except errors.AlreadyCommitted:
            count(Transacted.REPLAY_FOUND if pronounced is not None or not is_ours else Transacted.REPLAY_KNOWN)
            raise
        came = yield effect
        if isinstance(effect, transacting.Pronounce) and not isinstance(came, errors.VarlogError):
            pronounced = came
        if isinstance(effect, transacting.Look) and isinstance(came, Fate):
            is_ours = False
            is_commit = came.verdict.kind is VerdictKind.COMMIT
            if is_commit:
                count(Transacted.FENCED_COMMITTED)
            elif came.glsn == pronounced:
                count(Transacted.FENCED_OPEN)


class Transactor(_Transacting):
    """Begins transactions, one after another, and sees to their end, mostly."""

    def __init__(self, ways: Ways, inquiries: Inquiries, board: Board, *, pace: float) -> None:
        super().__init__(ways, inquiries, board)
        self._pace = pace
        self._attempts = 0
        self._invitation: Invitation | None = None

    def start(self) -> None:
        self._rest()

    def _rest(self, _came: Any = None) -> None:
        if self._invitation is not None:
            self._invitation.is_open = False
        rng = self.ways.rng
        self.ways.process.at(rng.expovariate(1.0) * self._pace, self._next)

    def _next(self) -> None:
        ways, rng = self.ways, self.ways.rng
        if ways.stopping:
            return
        name = rng.choice(NAMES)
        number = -1
        if name in NUMBERED:
            number = max(0, self.board.done[name] + rng.choice((0, 1, 1, 1, 1)))
        self._attempts += 1
        token = f"{ways.process.name}/{ways.process.incarnation}/{self._attempts}"
        expiry = rng.choice((500, 1000, 2500))
        self._invitation = Invitation(name, number, token, expiry)
        self.begin_one(name, number, token, expiry, self._on_begun)

    def _on_begun(self, came: Any) -> None:
        assert self._invitation is not None, "it is there as long as anything is begun"
        if not isinstance(came, OpenTransaction):
            if isinstance(came, errors.AlreadyCommitted):
                self.board.note(self._invitation.name, self._invitation.number)
            self._rest()
            return
        self.ways.count(Transacted.BEGUN)
        rng = self.ways.rng
        if rng.random() < 0.5:
            self.board.invite(self._invitation)
        Share(self.ways, came, rng.choice((0, 1, 2, 6)), partial(self._written, came)).begin()

    def _written(self, one: OpenTransaction, part: Part | None) -> None:
        rng = self.ways.rng
        fate = rng.random()
        wait = rng.expovariate(1.0) * 0.2
        if fate < 0.1:
            self.ways.count(Transacted.ABANDONED)
            self._rest()
            return
        if fate < 0.25:
            wait = rng.uniform(0.5, 2.0) * one.expiry / 1000
        if part is None or fate > 0.88:
            self.ways.process.at(wait, self._abort, one)
        else:
            self.ways.process.at(wait, self._gather, one, part)

    def _gather(self, one: OpenTransaction, own: Part) -> None:
        """Count in what others have written, or some of it."""
        assert self._invitation is not None, "it is there as long as anything is begun"
        self._invitation.is_open = False
        counted = [own]
        for part in self._invitation.parts:
            if self.ways.rng.random() < 0.8:
                counted.append(part)
            else:
                self.ways.count(Transacted.UNCOUNTED)
        self._commit(one, counted, COMMIT_TIMES)

    def _commit(self, one: OpenTransaction, counted: list[Part], times: int) -> None:
        ways = self.ways
        parts = tuple(sorted((part.part, part.entries) for part in counted if part.entries))
        operation = ways.history.invoke(ways.process.name, Kind.COMMIT, TOPIC, transaction=one.txid, parts=parts)
        procedure = _late_noted(transacting.commit(one, counted, again=times < COMMIT_TIMES), ways.count)
        self.procedures.run(procedure, END_SECONDS, partial(self._on_committed, operation, one, counted, times))

    def _on_committed(
        self, operation: Operation, one: OpenTransaction, counted: list[Part], times: int, came: Any
    ) -> None:
        ways, history = self.ways, self.ways.history
        if isinstance(came, Fate):
            history.ok(operation, glsn=came.glsn)
            ways.count(Transacted.COMMITTED if operation.parts else Transacted.COMMIT_EMPTY)
            if times < COMMIT_TIMES:
                ways.count(Transacted.COMMIT_AGAIN)
            self.board.note(one.name, one.number)
            self._after_commit(one, counted, times, came)
            return
        if isinstance(came, errors.TransactionAborted):
            expired = " expired " in str(came)
            ways.count(Transacted.COMMIT_EXPIRED if expired else Transacted.COMMIT_ABORTED)
        if isinstance(came, errors.Unknown | errors.DeadlineExceeded):
            history.unknown(operation, type(came).__name__)
            ways.count(Transacted.COMMIT_UNKNOWN)
            again = ways.rng.random()
            if times > 1 and again < 0.9:
                wait = ways.rng.uniform(0.0, 0.5)
                if again < 0.6:
                    ways.process.at(wait, self._commit, one, counted, times - 1)
                else:
                    ways.process.at(wait, self._abort, one)
                return
        else:
            history.failed(operation, type(came).__name__)
        self._rest()

    def _after_commit(self, one: OpenTransaction, counted: list[Part], times: int, fate: Fate) -> None:
        """Mostly the register is told. Or that is lost, or the same is asked for again, or an abort."""
        chance = self.ways.rng.random()
        if chance < 0.7:
            self.procedures.run(transacting.tell(TOPIC, one.txid, fate), END_SECONDS, self._rest)
        elif chance < 0.75 and times > 1:
            self._commit(one, counted, times - 1)
        elif chance < 0.8:
            self._abort(one)
        else:
            self._rest()

    def _abort(self, one: OpenTransaction) -> None:
        ways = self.ways
        operation = ways.history.invoke(ways.process.name, Kind.ABORT, TOPIC, transaction=one.txid)
        procedure = transacting.abort(TOPIC, one, "it is not wanted")
        self.procedures.run(procedure, END_SECONDS, partial(self._on_aborted, operation))

    def _on_aborted(self, operation: Operation, came: Any) -> None:
        if isinstance(came, Fate):
            self.ways.history.ok(operation)
            self.ways.count(Transacted.ABORTED)
        else:
            if isinstance(came, errors.AlreadyCommitted):
                self.ways.count(Transacted.ABORT_TOO_LATE)
            self.ways.history.failed(operation, "Ended" if came is None else type(came).__name__)
        self._rest()


def _late_noted(
    procedure: transacting.Procedure[Fate], count: Callable[[Transacted], None]
) -> transacting.Procedure[Fate]:
    """A procedure that commits, and whether another verdict than its own came first noted."""
    came: Any = None
    pronounced: GLSN | None = None
    while True:
        try:
            effect = procedure.send(came)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        came = yield effect
        if isinstance(effect, transacting.Pronounce) and not isinstance(came, errors.VarlogError):
            pronounced = came
        elif isinstance(came, Fate) and pronounced is not None and came.glsn < pronounced:
            count(Transacted.COMMIT_LATE)


class Joiner(_Transacting):
    """Writes parts of the transactions that others have begun."""

    def __init__(self, ways: Ways, inquiries: Inquiries, board: Board, *, pace: float) -> None:
        super().__init__(ways, inquiries, board)
        self._pace = pace

    def start(self) -> None:
        self._rest()

    def _rest(self) -> None:
        self.ways.process.at(self.ways.rng.expovariate(1.0) * self._pace, self._next)

    def _next(self) -> None:
        if self.ways.stopping:
            return
        if not self.board.invitations:
            self._rest()
            return
        invitation = self.ways.rng.choice(self.board.invitations)
        name, number, token, expiry = invitation.name, invitation.number, invitation.token, invitation.expiry
        self.begin_one(name, number, token, expiry, partial(self._on_begun, invitation))

    def _on_begun(self, invitation: Invitation, came: Any) -> None:
        if not isinstance(came, OpenTransaction):
            self._rest()
            return
        self.ways.count(Transacted.JOINED)
        entries = self.ways.rng.choice((1, 2, 4))
        Share(self.ways, came, entries, partial(self._written, invitation)).begin()

    def _written(self, invitation: Invitation, part: Part | None) -> None:
        if part is not None:
            invitation.parts.append(part)
        self._rest()


class Janitor(_Transacting):
    """Ends transactions that have expired, asks what is decided, and trims; what it may not trim because of an open
    one it leaves."""

    def __init__(self, ways: Ways, inquiries: Inquiries, board: Board, *, pace: float) -> None:
        super().__init__(ways, inquiries, board)
        self._inquiries = inquiries
        self._pace = pace

    def start(self) -> None:
        self._rest()

    def _rest(self, _came: Any = None) -> None:
        rng = self.ways.rng
        job = rng.choice((self._list, self._trim, self._stable))
        self.ways.process.at(rng.expovariate(1.0) * self._pace, job)

    def _list(self) -> None:
        if not self.ways.stopping:
            self._inquiries.ask(GetTransactions(0, TOPIC), self.ways.now + END_SECONDS, self._on_listed)

    def _on_listed(self, came: Any) -> None:
        expired = [one for one in came.open if one.age >= one.expiry] if isinstance(came, Transactions) else []
        if not expired:
            self._rest()
            return
        one = self.ways.rng.choice(expired)
        procedure = transacting.settle(TOPIC, one, "it expired", VerdictKind.EXPIRE)
        self.procedures.run(procedure, END_SECONDS, self._on_settled)

    def _on_settled(self, came: Any) -> None:
        if isinstance(came, Fate):
            self.ways.count(Transacted.SETTLED)
        self._rest()

    def _stable(self) -> None:
        """The tail first, and then what is open: what is begun later lies behind that tail."""
        ways = self.ways
        if not ways.stopping:
            operation = ways.history.invoke(ways.process.name, Kind.STABLE, TOPIC)
            ways.tail(ways.now + END_SECONDS, partial(self._on_tail, operation))

    def _on_tail(self, operation: Operation, tail: Any) -> None:
        asked = partial(self._on_open, operation, tail)
        if isinstance(tail, errors.VarlogError):
            asked(tail)
        else:
            self._inquiries.ask(GetTransactions(0, TOPIC), self.ways.now + END_SECONDS, asked)

    def _on_open(self, operation: Operation, tail: Any, came: Any) -> None:
        if isinstance(came, Transactions) and came.code == 0:
            self.ways.history.ok(operation, glsn=min([tail, *(one.after for one in came.open)]))
            self.ways.count(Transacted.STABLE)
        else:
            self.ways.history.failed(operation, type(came).__name__)
        self._rest()

    def _trim(self) -> None:
        ways = self.ways
        if ways.stopping:
            return
        if ways.known_tail < 20:
            self._rest()
            return
        glsn = self._trim_point()
        operation = ways.history.invoke(ways.process.name, Kind.TRIM, TOPIC, position=glsn)
        question = TrimTopic(0, TOPIC, GLSN(glsn))
        self._inquiries.ask(question, ways.now + END_SECONDS, partial(self._on_trimmed, operation))

    def _trim_point(self) -> int:
        """Often just behind a verdict: what comes later of that transaction is then all that is left of it."""
        rng, tail = self.ways.rng, self.ways.known_tail
        spoken = sorted(one.glsn for one in self.board.verdicts)[-20:]
        if spoken and rng.random() < 0.6:
            return min(tail, rng.choice(spoken) + rng.choice((0, 0, 1, 3)))
        return rng.randint(tail // 4, tail)

    def _on_trimmed(self, operation: Operation, came: Any) -> None:
        history = self.ways.history
        if isinstance(came, Decided) and came.code == 0:
            history.ok(operation)
            self.board.first = max(self.board.first, operation.position + 1)
        elif isinstance(came, Decided):
            if came.code == errors.TransactionOpen.code:
                self.ways.count(Transacted.TRIM_REFUSED)
            history.failed(operation, errors.VarlogError.registry[came.code].__name__)
        else:
            history.failed(operation, type(came).__name__)
        self._rest()
