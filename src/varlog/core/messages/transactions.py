"""Transactions: anyone and the metadata repository.

The metadata repository keeps a register of each topic's transactions: which were begun and are not known to have ended,
and, of names whose transactions are numbered, the last number that was committed. It is told what became of one by
whoever has seen it in the log; what is in the log decides (`varlog.batch.transactions`), so a transaction that the
register still has may have ended already.
"""

from __future__ import annotations

import msgspec

from varlog.core.messages.base import Message
from varlog.types import GLSN, TopicID, TransactionID


class BeginTransaction(Message, frozen=True):
    """Begin an attempt of a name, or join it: who asks with the same name, number and token is told of the same
    transaction, as long as no other attempt of the name was begun."""

    request: int
    tpid: TopicID
    name: str
    token: str
    """Of this attempt; chosen by who makes it."""
    after: GLSN
    """A position that was written before this was asked. 0 leaves it to the metadata repository, which knows one; where
    a sequencer orders the topic that may be far behind."""
    expiry: int
    """Milliseconds until readers need not wait for it any longer."""
    number: int = -1
    """From 0 on. What is committed under a name has ever greater ones; -1: it has none, and nothing is remembered."""


class OpenTransaction(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One that was begun, and is not known to have ended."""

    txid: TransactionID
    name: str
    number: int
    after: GLSN
    """Everything of it is at greater positions."""
    expiry: int
    """Milliseconds,"""
    age: int
    """and how many have passed since it was begun, by the metadata repository's clock."""
    token: str = ""


class Begun(Message, frozen=True):
    """The answer. With AlreadyCommitted, `glsn` is where the commit is that did it."""

    request: int
    code: int
    transaction: OpenTransaction | None = None
    earlier: tuple[OpenTransaction, ...] = ()
    """Attempts of the same name that were begun before it and are not known to have ended: they must be ended, and what
    became of them known, before anything is done in this one."""
    glsn: GLSN = GLSN(0)
    detail: str = ""


class EndTransaction(Message, frozen=True):
    """Tell what the log says of a transaction; answered with `Decided`. `glsn` is that of the verdict."""

    request: int
    tpid: TopicID
    txid: TransactionID
    is_committed: bool
    glsn: GLSN


class ForgetTransactions(Message, frozen=True):
    """Forget which number was last committed under a name; answered with `Decided`."""

    request: int
    tpid: TopicID
    name: str


class GetTransactions(Message, frozen=True):
    """Ask for the register of a topic."""

    request: int
    tpid: TopicID
    names: bool = False
    """Whether also for the numbers last committed: there may be many."""


class CommittedName(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The last number that was committed under a name, and where the commit is."""

    name: str
    number: int
    glsn: GLSN


class Transactions(Message, frozen=True):
    """The register, as the metadata store has confirmed it after it was asked for."""

    request: int
    code: int
    open: tuple[OpenTransaction, ...] = ()
    """By txid."""
    names: tuple[CommittedName, ...] = ()
    """By name; none unless asked for."""
    detail: str = ""
