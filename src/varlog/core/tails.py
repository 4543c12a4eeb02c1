"""The tail of a topic is linearizable: it is confirmed by the metadata store, not by what a leader believes (O2). So is
the epoch of a topic that a sequencer orders, by which a peek is confirmed (rule 20), and what is open of transactions.

A question is answered only from a state at least as new as what the store showed to a read that began after the
question was asked. Who asks while a read is under way waits for the next one, so there is never more than one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from varlog import errors, limits
from varlog.core import registering
from varlog.core.address import Address, Send
from varlog.core.messages import GetTail, GetTransactions, Tail, Transactions
from varlog.core.metastate import MetadataState
from varlog.core.store import LEADER_KEY, MetadataStore, ReadOutcome, ReadResult

VERSION_KEY: Final = "version"
Question = GetTail | GetTransactions
NO_LEAD: Final = -1
"""In place of the leader key's revision while the repository does not lead."""


def leads(found: ReadResult, led: int) -> bool:
    """Whether the store knows the leader by this revision of its key; a store that was emptied knows nobody."""
    leader = found.kvs.get(LEADER_KEY)
    return leader is not None and leader.revision == led


class Tails:
    """The questions that are not answered yet. `confirmed` is called when some may be (`answer`), `fenced`
    when the store shows another leader."""

    def __init__(
        self, store: MetadataStore, send: Send, confirmed: Callable[[], None], fenced: Callable[[], None]
    ) -> None:
        self._store = store
        self._send = send
        self._confirmed = confirmed
        self._fenced = fenced
        self._led = NO_LEAD
        self._asked: list[tuple[Question, Address]] = []
        self._is_reading = False
        self._read: list[tuple[int, Question, Address]] = []
        """Confirmed: the revision of the version key that the answer must include."""

    def begin(self, leader_revision: int) -> None:
        """A leadership begins, of which the store knows by this revision."""
        self._led = leader_revision
        self._is_reading = False

    def end(self) -> None:
        """It has passed: who still waits is sent to another."""
        self._led = NO_LEAD
        waiting = [*self._asked, *((question, source) for _, question, source in self._read)]
        self._asked.clear()
        self._read.clear()
        self._refuse(waiting, errors.NotLeader.code)

    def ask(self, source: Address, message: Question) -> None:
        if len(self._asked) + len(self._read) >= limits.MAX_PENDING_DECISIONS:
            self._refuse([(message, source)], errors.Busy.code)
        else:
            self._asked.append((message, source))
            self._read_next()

    def _read_next(self) -> None:
        if self._asked and not self._is_reading:
            asked, self._asked = self._asked, []
            self._is_reading = True
            self._store.read([LEADER_KEY, VERSION_KEY], partial(self._on_read, self._led, asked))

    def _on_read(self, led: int, asked: list[tuple[Question, Address]], outcome: ReadOutcome) -> None:
        if led != self._led:  # of a leadership that has passed: it says nothing of this one
            self._refuse(asked, errors.NotLeader.code)
            return
        self._is_reading = False
        if not isinstance(outcome, ReadResult):
            self._refuse(asked, outcome.code)
        elif not leads(outcome, led):
            self._refuse(asked, errors.NotLeader.code)
            self._fenced()
            return
        else:
            revision = outcome.kvs[VERSION_KEY].revision if VERSION_KEY in outcome.kvs else 0
            self._read.extend((revision, question, source) for question, source in asked)
            self._confirmed()
        self._read_next()

    def _refuse(self, asked: Iterable[tuple[Question, Address]], code: int) -> None:
        for question, source in asked:
            answer = Tail if isinstance(question, GetTail) else Transactions
            self._send(source, answer(question.request, code))

    def answer(self, state: MetadataState, version_revision: int, now: float) -> None:
        """Answer what this state, of this revision of the version key, is new enough for."""
        waiting, self._read = self._read, []
        for revision, question, source in waiting:
            if revision > version_revision:  # the store is ahead of us: a write of ours is still unanswered
                self._read.append((revision, question, source))
            elif isinstance(question, GetTail):
                self._send(source, _tail(state, question))
            else:
                self._send(source, registering.transactions(state, question, now))


def _tail(state: MetadataState, question: GetTail) -> Tail:
    topic = state.topics.get(question.tpid)
    if topic is None:
        return Tail(question.request, errors.UnknownTopic.code)
    register = state.registers.get(question.tpid)
    return Tail(
        question.request, 0, topic.hwm, topic.trim, topic.epoch, len(register.open) if register is not None else 0
    )
