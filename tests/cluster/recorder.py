"""A client of the public API that notes everything it asks for and is told, for the simulator's checkers to judge.

What an error means for the history is what it says itself: an append that did not happen is rejected, one that may have
is unknown. Whatever is cancelled or never answered stays pending.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from varlog import AppendResult, Log
from varlog.errors import Trimmed, VarlogError
from varlog.sim.checkers import check_all
from varlog.sim.evidence import Evidence
from varlog.sim.history import History, Kind, Operation, Outcome

SHOWN = 20


class RecordedLog:
    """One client."""

    def __init__(self, name: str, log: Log, history: History) -> None:
        self.name = name
        self.log = log
        self._history = history
        self._topic = log.topic.tpid

    async def append(self, payloads: Sequence[bytes], *, seconds: float | None = None) -> bool:
        """One batch; whether it was acknowledged."""
        op = self._history.invoke(self.name, Kind.APPEND, self._topic, payloads=payloads)
        try:
            if len(payloads) == 1:
                result = await self.log.append(payloads[0], timeout=seconds)
            else:
                result = await self.log.append_batch(payloads, timeout=seconds)
        except VarlogError as error:
            self._not_done(op, error)
            return False
        self._done(op, result)
        return True

    async def pipeline(self, batches: AsyncIterator[Sequence[bytes]], *, seconds: float | None = None) -> None:
        """Batches sent one after another by one appender, without waiting for what becomes of each."""
        async with self.log.appender(timeout=seconds) as appender:
            async for payloads in batches:
                op = self._history.invoke(self.name, Kind.APPEND, self._topic, payloads=payloads)
                try:
                    sent = await appender.append_batch(payloads)
                except VarlogError as error:
                    self._not_done(op, error)
                else:
                    sent.add_done_callback(partial(self._decided, op))
            with suppress(VarlogError):
                await appender.flush()

    def _decided(self, op: Operation, sent: asyncio.Future[AppendResult]) -> None:
        if sent.cancelled():
            return
        error = sent.exception()
        if error is None:
            self._done(op, sent.result())
        elif isinstance(error, VarlogError):
            self._not_done(op, error)

    async def read(self, glsn: int, *, seconds: float | None = None) -> None:
        op = self._history.invoke(self.name, Kind.READ, self._topic, position=glsn)
        try:
            entry = await self.log.read(glsn, timeout=seconds)
        except VarlogError as error:
            self._failed(op, error)
        else:
            self._history.ok(op, payloads=[entry.data])

    async def scan(self, begin: int, end: int, *, seconds: float | None = None) -> None:
        op = self._history.invoke(self.name, Kind.SCAN, self._topic, position=begin, end=end)
        try:
            async for batch in self.log.scan(begin, end, timeout=seconds):
                self._history.deliver(op, batch.glsn, batch.payloads())
        except VarlogError as error:
            self._failed(op, error)
        else:
            self._history.ok(op)

    async def subscribe(self, begin: int) -> None:
        """Goes on until it is cancelled or refused."""
        op = self._history.invoke(self.name, Kind.SUBSCRIBE, self._topic, position=begin)
        try:
            async for batch in self.log.subscribe(begin).batches():
                self._history.deliver(op, batch.glsn, batch.payloads())
        except VarlogError as error:
            self._failed(op, error)

    async def tail(self, *, seconds: float | None = None) -> int:
        """The tail; 0 if it was not told."""
        op = self._history.invoke(self.name, Kind.TAIL, self._topic)
        try:
            tail = await self.log.tail(timeout=seconds)
        except VarlogError as error:
            self._failed(op, error)
            return 0
        self._history.ok(op, glsn=tail)
        return tail

    async def trim(self, glsn: int, *, seconds: float | None = None) -> None:
        op = self._history.invoke(self.name, Kind.TRIM, self._topic, position=glsn)
        try:
            await self.log.trim(glsn, timeout=seconds)
        except VarlogError as error:
            self._not_done(op, error)
        else:
            self._history.ok(op)

    def _done(self, op: Operation, result: AppendResult) -> None:
        self._history.ok(op, glsn=result.glsn, lsid=result.log_stream, epoch=result.epoch)

    def _not_done(self, op: Operation, error: VarlogError) -> None:
        end = self._history.unknown if error.happened is not False else self._history.rejected
        end(op, type(error).__name__)

    def _failed(self, op: Operation, error: VarlogError) -> None:
        self._history.failed(op, type(error).__name__, first=error.first if isinstance(error, Trimmed) else 0)


def out_of_order(history: History, client: str) -> list[str]:
    """Acknowledged appends of a client that sends by one appender, where they are not in the order they were sent."""
    told = []
    last = None
    for op in history.of(Kind.APPEND):
        if op.client == client and op.outcome is Outcome.OK:
            if last is not None and op.glsn <= last.glsn:
                told.append(f"{op} was sent after {last}")
            last = op
    return told


def judge(evidence: Evidence, directory: Path) -> None:
    """Let every checker look at it. What a checker objects to is raised, and the history is kept in a file."""
    violations = check_all(evidence)
    if violations:
        kept = directory / "history.jsonl"
        kept.write_bytes(evidence.history.to_json_lines())
        told = "\n".join(f"{name}: {message}" for name, message in violations[:SHOWN])
        raise AssertionError(f"{len(violations)} violations; the history is in {kept}\n{told}")
