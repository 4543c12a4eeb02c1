"""Questions with one answer: to a metadata repository, to a storage node, to the manager.

A question that changes nothing, or changes the same thing however often it is asked (`repeats`), is asked again on each
new connection, after a silence, and when another metadata repository leads. Any other is sent once: if the connection
breaks before the answer, what became of it is not known.

Of the metadata repositories the one that leads is asked (`varlog.core.following`); while there is none, questions wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from copy import copy
from typing import Final

from varlog import errors
from varlog.core.following import Following
from varlog.core.messages import Leading, Message, NotLeading
from varlog.wire.connection import Connection
from varlog.wire.link import Link

ASK_AGAIN: Final = 1.0
_TRY_AGAIN: Final = frozenset({errors.NotLeader.code, errors.Busy.code, errors.StoreUnavailable.code})


class _Question:
    __slots__ = (
        "again", "answer", "asked_at", "changes", "deadline", "link", "message", "refusal", "repeats", "sent",
        "whatever",
    )  # fmt: skip

    def __init__(
        self, message: Message, link: Link | None, deadline: float, repeats: bool, changes: bool, whatever: bool
    ) -> None:
        self.message = message
        self.link = link
        """None: whichever metadata repository leads."""
        self.deadline = deadline
        self.repeats = repeats
        self.changes = changes
        self.whatever = whatever
        self.sent = False
        self.asked_at = 0.0
        self.again = False
        self.refusal = ""
        """What was said last instead of an answer."""
        self.answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()


class Asking:
    """See the module's text."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, stir: Callable[[], None], new_request: Callable[[], int]
    ) -> None:
        self._loop = loop
        self._stir = stir
        self.new_request = new_request
        self._questions: dict[int, _Question] = {}
        self._repositories: list[Link] = []
        self._following: Following[Link] = Following()
        self._closed: errors.VarlogError | None = None

    @property
    def outstanding(self) -> int:
        return len(self._questions)

    def add_repository(self, link: Link) -> Link:
        self._repositories.append(link)
        return link

    async def ask(
        self,
        build: Callable[[int], Message],
        deadline: float,
        *,
        of: Link | None = None,
        repeats: bool = True,
        changes: bool = False,
        whatever: bool = False,
    ) -> Message:
        """Put a question, made with its request number, and wait for the answer. One with an error is raised, unless
        `whatever` is answered is wanted."""
        if self._closed is not None:
            raise copy(self._closed)
        request = self.new_request()
        question = _Question(build(request), of, deadline, repeats, changes, whatever)
        self._questions[request] = question
        try:
            self._put(question)
            self._stir()
            return await question.answer
        finally:
            del self._questions[request]

    def tell_repository(self, message: Message) -> bool:
        """Send to the metadata repository that leads; nothing is waited for. False: it was not sent, nobody leads."""
        return self.leader is not None and self.leader.send(message)

    @property
    def leader(self) -> Link | None:
        """The metadata repository that is asked."""
        return self._following.leader

    def on_said(self, link: Link, said: Leading | NotLeading) -> bool:
        """A metadata repository says whether it leads. True if there is somebody to ask anew."""
        if not self._following.on_said(link, said) or self.leader is None:
            return False
        for question in list(self._questions.values()):
            if question.link is None and (question.repeats or not question.sent):
                self._put(question)
        return True

    def why_nobody_leads(self) -> str:
        """What is known of each metadata repository."""
        states = (f"{link.address}: {_state(link)}" for link in self._repositories)
        elsewhere = self._following.known_elsewhere()
        hint = f"; one that leads is said to be at {elsewhere}" if elsewhere else ""
        return f"{'; '.join(states)}{hint}"

    def _put(self, question: _Question) -> None:
        """Send it, unless it was answered just now. One that cannot be said in bytes ends here, and holds up no other
        one."""
        if question.answer.done():
            return
        link = question.link or self.leader
        question.asked_at = self._loop.time()
        question.again = False
        try:
            question.sent |= link is not None and link.send(question.message)
        except errors.InvalidArgument as error:
            question.answer.set_exception(error)

    def on_connected(self, connection: Connection) -> None:
        for question in list(self._questions.values()):
            link = question.link
            if link is not None and link.connection is connection and (question.repeats or not question.sent):
                self._put(question)

    def on_closed(self, link: Link) -> None:
        self._following.on_closed(link)
        for question in list(self._questions.values()):
            if question.link is link and question.sent and not question.repeats and not question.answer.done():
                question.answer.set_exception(
                    errors.ConnectionLost(
                        f"the connection to {link.address} broke before {type(question.message).__name__} was "
                        "answered; it may have been done, look before asking again"
                    )
                )

    def on_answer(self, message: Message) -> None:
        question = self._questions.get(getattr(message, "request", 0))
        if question is None or question.answer.done():
            return
        code: int = getattr(message, "code", 0)
        if code == 0:
            question.answer.set_result(message)
        elif code in _TRY_AGAIN and question.repeats:
            question.again = True
            question.refusal = errors.VarlogError.registry[code].__name__
        elif question.whatever:
            question.answer.set_result(message)
        else:
            question.answer.set_exception(errors.VarlogError.of(code, getattr(message, "detail", "")))

    def tick(self, now: float) -> None:
        for question in list(self._questions.values()):
            if question.answer.done():
                continue
            if now >= question.deadline:
                question.answer.set_exception(self._late(question))
            elif question.again or not question.sent or (question.repeats and now - question.asked_at >= ASK_AGAIN):
                self._put(question)

    def _late(self, question: _Question) -> errors.VarlogError:
        link = question.link or self.leader
        if link is None and not question.sent:
            return errors.Unreachable(
                f"no metadata repository leads: {self.why_nobody_leads()}; check that the process runs"
            )
        if link is not None and not question.sent:
            return errors.Unreachable(f"{link.address}: {link.error or 'not connected'}; check that the process runs")
        whom = link.address if link is not None else "the metadata repository"
        what = f"{whom} did not answer {type(question.message).__name__} in time"
        if question.refusal:
            what += f"; it last said {question.refusal}"
        if question.changes:
            return errors.Unknown(f"{what}; it may have been done")
        return errors.DeadlineExceeded(what)

    def close(self, error: errors.VarlogError) -> None:
        self._closed = error
        for question in self._questions.values():
            if not question.answer.done():
                question.answer.set_exception(copy(error))


def _state(link: Link) -> str:
    return "does not lead" if link.connected else str(link.error or "not connected")
