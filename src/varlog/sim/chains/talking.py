"""Conversations of simulated processes: whoever holds one sends what it wants sent, and hands it the answers."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from random import Random

from varlog import errors
from varlog.core.conversing import Answer, Conversation
from varlog.core.messages import Message
from varlog.sim.process import Process

ANSWER_SECONDS = 1.0
PAUSE_SECONDS = 0.1
"""The longest pause."""

Ended = Callable[[int | errors.VarlogError], None]


class _Talk:
    """One that is under way."""

    def __init__(self, conversation: Conversation, ended: Ended) -> None:
        self.conversation = conversation
        self.ended = ended
        self.round = 0
        self.waiting: dict[int, int] = {}
        """Which of the answers each request number is for."""
        self.answers: list[Answer] = []


class Talks:
    """All conversations of a process. They end with it."""

    def __init__(self, process: Process, rng: Random, send: Callable[[str, Message], object]) -> None:
        self._process = process
        self._rng = rng
        self._send = send
        self._talks: list[_Talk] = []

    def __len__(self) -> int:
        return len(self._talks)

    def begin(self, conversation: Conversation, ended: Ended) -> None:
        """Hold a conversation; `ended` is told what it returned, or raised."""
        talk = _Talk(conversation, ended)
        self._talks.append(talk)
        self._go_on(talk, None)

    def clear(self) -> None:
        """The process has forgotten them."""
        self._talks.clear()

    def _go_on(self, talk: _Talk, answers: Seq[Answer] | None) -> None:
        try:
            requests = talk.conversation.send(answers)  # type: ignore[arg-type]  # the first one is None
        except StopIteration as end:
            self._end(talk, end.value)
            return
        except errors.VarlogError as error:
            self._end(talk, error)
            return
        talk.round += 1
        talk.answers = [errors.DeadlineExceeded("no answer")] * len(requests)
        talk.waiting = {message.request: number for number, (_, message) in enumerate(requests)}  # type: ignore[attr-defined]
        wait = ANSWER_SECONDS if requests else self._rng.uniform(0.0, PAUSE_SECONDS)
        self._process.at(wait, self._expire, talk, talk.round)
        for address, message in requests:
            self._send(address, message)

    def _end(self, talk: _Talk, outcome: int | errors.VarlogError) -> None:
        self._talks.remove(talk)
        talk.ended(outcome)

    def _expire(self, talk: _Talk, number: int) -> None:
        if talk in self._talks and talk.round == number:
            self._go_on(talk, talk.answers)

    def on_answer(self, message: Message) -> None:
        """Anything that has a request's number. Who no longer leads is not listened to: another one may answer."""
        request = getattr(message, "request", None)
        if request is None or getattr(message, "code", 0) == errors.NotLeader.code:
            return
        for talk in self._talks:
            if request in talk.waiting:
                talk.answers[talk.waiting.pop(request)] = message
                if not talk.waiting:
                    self._go_on(talk, talk.answers)
                return
