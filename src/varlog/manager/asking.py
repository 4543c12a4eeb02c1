"""Asking: requests of the manager that somebody waits for, until they are answered.

An answer counts if it comes over the connection that the request went over. When that connection ends first, nobody
knows what became of the request, and who waits is told so at once instead of after the deadline.
"""

from __future__ import annotations

import asyncio
from typing import Final

from varlog import errors
from varlog.core.messages import Message
from varlog.wire.connection import Connection

ANSWER_SECONDS: Final = 5.0


class Asking:
    """See the module's text. It can be the receiver of a connection that is there for one question."""

    def __init__(self) -> None:
        self._waiting: dict[int, tuple[Connection, asyncio.Future[Message]]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    async def ask(self, connection: Connection, message: Message, seconds: float = ANSWER_SECONDS) -> Message:
        """Send a request and wait for its answer."""
        what, whom = type(message).__name__, connection.remote
        request: int = message.request  # type: ignore[attr-defined]
        answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._waiting[request] = connection, answer
        try:
            if not connection.send(message):
                raise errors.Unreachable(f"{whom} takes no more at the moment")
            async with asyncio.timeout(seconds):
                return await answer
        except TimeoutError:
            raise errors.DeadlineExceeded(f"{whom} did not answer {what} within {seconds:g} s") from None
        finally:
            del self._waiting[request]

    def answers(self, connection: Connection, message: Message) -> bool:
        """Whether somebody waited for this message; who did has it now."""
        asked, answer = self._waiting.get(getattr(message, "request", 0), (None, None))
        if asked is not connection or answer is None or answer.done():
            return False
        answer.set_result(message)
        return True

    # As a receiver

    def on_connected(self, connection: Connection) -> None:
        """Whoever dialled knows."""

    def on_message(self, connection: Connection, message: Message) -> None:
        self.answers(connection, message)

    def on_turn(self, connection: Connection) -> None:
        """Answers do not wait for each other."""

    def on_closed(self, connection: Connection, error: errors.VarlogError | None) -> None:
        for asked, answer in self._waiting.values():
            if asked is connection and not answer.done():
                lost = f"{connection.remote} went away before it answered: {error or 'the connection was closed'}"
                answer.set_exception(errors.ConnectionLost(lost))
