"""Which transaction may be begun, and what the register takes of those that ended: `decisions`, for transactions.

Who begins says the name, a token of its own attempt and perhaps a number. The same three again are the same attempt, so
that several can work on it and an answer that was lost can be asked for again; another token, or a greater number, is
another attempt, which comes to stand in the place of all earlier ones of the name. A token whose attempt was replaced
or has ended begins nothing any more.
"""

from __future__ import annotations

from typing import Final

from varlog import errors, limits
from varlog.core import metastate as m
from varlog.core.messages import (
    BeginTransaction,
    Begun,
    CommittedName,
    Decided,
    EndTransaction,
    ForgetTransactions,
    GetTransactions,
    Message,
    OpenTransaction,
    Transactions,
)
from varlog.core.metastate import AnyEntry, MetadataState, Topic
from varlog.core.projection import NEVER
from varlog.core.register import Attempt, Named, Register
from varlog.types import GLSN, TopicID, TransactionID

_NEWEST: Final = TransactionID(1 << 64)
_NOTHING: Final = Register()
_MOST_BYTES: Final = 12 * limits.MAX_TRANSACTION_NAME + limits.REGISTER_BYTES_OF_ONE
"""Of one: name, once more, and token, in UTF-8."""


def concerned(state: MetadataState, request: Message) -> tuple[int, str] | None:
    """The topic and the name that a begin or an end has to do with: of two with different ones, neither depends on the
    other. None of anything else."""
    if isinstance(request, BeginTransaction):
        return request.tpid, request.name
    if isinstance(request, EndTransaction):
        attempt = state.registers.get(request.tpid, _NOTHING).open.get(request.txid)
        return request.tpid, attempt.name if attempt is not None else ""
    return None


def has_room(state: MetadataState, more: int) -> bool:
    """Whether so many more can be begun that no limit has to be looked at between them."""
    registers = state.registers.values()
    return (
        all(len(one.open) + more <= limits.MAX_OPEN_TRANSACTIONS for one in registers)
        and all(len(one.names) + len(one.open) + more <= limits.MAX_TRANSACTION_NAMES for one in registers)
        and sum(one.bytes for one in registers) + more * _MOST_BYTES <= limits.REGISTER_BYTES - limits.REGISTER_RESERVE
    )


def begin(state: MetadataState, request: BeginTransaction, now: float) -> AnyEntry | None:
    """A new attempt; None if it is one that there is already."""
    topic = _topic(state, request.tpid)
    after = _after(topic, request)
    _check_text("name", request.name)
    _check_text("token", request.token)
    if not -1 <= request.number <= limits.MAX_TRANSACTION_NUMBER:
        raise errors.InvalidArgument(f"a transaction's number goes from 0 on, or is -1 for none; not {request.number}")
    most = int(limits.MAX_TRANSACTION_SECONDS * 1000)
    if not 1 <= request.expiry <= most:
        raise errors.InvalidArgument(f"a transaction expires after 1 to {most} milliseconds, not {request.expiry}")
    register = state.registers.get(request.tpid, _NOTHING)
    known = register.named(request.name)
    if known is not None and _is_there(register, known, request):
        return None
    _check_room(state, register, known, request)
    return m.TransactionBegun(
        request.tpid, request.name, request.token, request.number, after, request.expiry, int(now * 1000)
    )


def _topic(state: MetadataState, tpid: TopicID) -> Topic:
    topic = state.topics.get(tpid)
    if topic is None:
        raise errors.UnknownTopic(f"there is no topic {tpid}")
    return topic


def _after(topic: Topic, request: BeginTransaction) -> GLSN:
    """A position that everything of the transaction comes after. The high watermark is one, and no trim point is above
    it: one that lies below could have been told by who asked before the log was trimmed."""
    most = topic.hwm if topic.projection is None else NEVER - 2
    if not 0 <= request.after <= most:
        raise errors.InvalidArgument(f"a transaction cannot begin after {request.after}, which was never given out")
    return max(request.after, topic.hwm)


def _check_text(what: str, text: str) -> None:
    most = limits.MAX_TRANSACTION_NAME
    if not 1 <= len(text) <= most or not text.isprintable():
        raise errors.InvalidArgument(f"the {what} of a transaction has 1 to {most} printable characters")


def _is_there(register: Register, known: Named, request: BeginTransaction) -> bool:
    """Whether what is asked for is the latest attempt of a name. Refuses what was done, or was replaced."""
    name, number = request.name, request.number
    if 0 <= number <= known.committed:
        raise errors.AlreadyCommitted(
            f"number {number} of {name!r} is committed: {known.committed} is the last one, by the commit at "
            f"{known.glsn}; it must not be written again"
        )
    place = known.place(request.token)
    if place > 0:
        raise errors.TransactionAborted(f"a later attempt of {name!r} has taken the place of this one")
    if place < 0 or number > known.number:
        return False
    if number < known.number:
        raise errors.TransactionAborted(f"this attempt of {name!r} went on to number {known.number}")
    if known.latest not in register.open:
        raise errors.TransactionAborted(f"transaction {known.latest} of {name!r} has ended; begin another one")
    return True


def _check_room(state: MetadataState, register: Register, known: Named | None, request: BeginTransaction) -> None:
    if len(register.open) >= limits.MAX_OPEN_TRANSACTIONS:
        raise errors.LimitExceeded(
            f"{len(register.open)} transactions of the topic are open; end some, or see with `varlog txn list` which "
            "have expired and abort those"
        )
    full = "forget names that are used no more with `varlog txn forget`"
    if request.number >= 0 and request.name not in register.names:
        numbered = {one.name for one in register.open.values() if one.number >= 0 and one.name not in register.names}
        if len(register.names) + len(numbered - {request.name}) >= limits.MAX_TRANSACTION_NAMES:
            raise errors.LimitExceeded(f"the topic has {limits.MAX_TRANSACTION_NAMES} names of transactions; {full}")
    wanted = 2 * len(request.name.encode()) + len(request.token.encode()) + limits.REGISTER_BYTES_OF_ONE
    most = limits.REGISTER_BYTES - (limits.REGISTER_RESERVE if known is None else 0)
    if sum(one.bytes for one in state.registers.values()) + wanted > most:
        raise errors.LimitExceeded(f"what is kept of transactions would exceed {most} bytes; {full}")


def end(state: MetadataState, request: EndTransaction) -> AnyEntry | None:
    """What the log says of an open one; None if it is not open."""
    _topic(state, request.tpid)
    attempt = state.registers.get(request.tpid, _NOTHING).open.get(request.txid)
    if attempt is None:
        return None
    if request.glsn <= attempt.after:
        raise errors.InvalidArgument(
            f"transaction {request.txid} cannot have ended at {request.glsn}: all of it comes after {attempt.after}"
        )
    return m.TransactionEnded(request.tpid, request.txid, request.is_committed, request.glsn)


def forget(state: MetadataState, request: ForgetTransactions) -> AnyEntry | None:
    """A name whose numbers begin anew; None if none is known."""
    _topic(state, request.tpid)
    register = state.registers.get(request.tpid, _NOTHING)
    for attempt in register.attempts(request.name, _NEWEST):
        raise errors.TransactionOpen(f"{_told(attempt)}; abort it before its name is forgotten")
    return m.TransactionsForgotten(request.tpid, request.name) if request.name in register.names else None


def check_trim(state: MetadataState, tpid: TopicID, glsn: GLSN) -> None:
    """What an open transaction has, and the verdict on it, stay."""
    register = state.registers.get(tpid)
    if register is None or not register.open:
        return
    first = min(register.open.values(), key=lambda attempt: attempt.after)
    if glsn > first.after:
        raise errors.TransactionOpen(f"cannot trim to {glsn}: {_told(first)}, after {first.after}")


def _told(attempt: Attempt) -> str:
    seconds = attempt.expiry / 1000
    return f"transaction {attempt.txid} of {attempt.name!r} is open, which expires {seconds:g} s after it began"


# Answers


def begun(state: MetadataState, request: BeginTransaction, now: float) -> Begun:
    """The answer to who has begun the latest attempt of a name, or joined it."""
    register = state.registers[request.tpid]
    known = register.named(request.name)
    assert known is not None
    attempt = register.open[known.latest]
    earlier = tuple(_described(one, now) for one in register.attempts(request.name, attempt.txid))
    return Begun(request.request, 0, _described(attempt, now), earlier)


def refused(state: MetadataState, request: Message, number: int, code: int, detail: str = "") -> Begun | Decided:
    """The answer to a request, known by this number, that is not granted."""
    if not isinstance(request, BeginTransaction):
        return Decided(number, code, state.version, detail=detail)
    glsn = GLSN(0)
    if code == errors.AlreadyCommitted.code and (known := state.registers[request.tpid].named(request.name)):
        glsn = known.glsn
    return Begun(number, code, glsn=glsn, detail=detail)


def transactions(state: MetadataState, asked: GetTransactions, now: float) -> Transactions:
    """The register as others are told it."""
    if asked.tpid not in state.topics:
        return Transactions(asked.request, errors.UnknownTopic.code, detail=f"there is no topic {asked.tpid}")
    register = state.registers.get(asked.tpid, _NOTHING)
    opened = tuple(_described(attempt, now) for attempt in register.open.values())
    known = ((name, one.committed, one.glsn) for name, one in register.names.items()) if asked.names else ()
    return Transactions(asked.request, 0, opened, tuple(CommittedName(*one) for one in sorted(known)))


def _described(attempt: Attempt, now: float) -> OpenTransaction:
    age = max(0, int(now * 1000) - attempt.begun)
    return OpenTransaction(
        attempt.txid, attempt.name, attempt.number, attempt.after, attempt.expiry, age, attempt.token
    )
