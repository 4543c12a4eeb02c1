"""A daemon's page for those who watch it: `/metrics` for Prometheus, `/healthz` for supervisors, `/` for people.

It runs on the daemon's own event loop and must never disturb what the daemon is there for. So everything is bounded:
one request per connection; its head is at most 8 KiB; from connect to the last byte taken it has 5 seconds; there are
32 connections at most, and a further one takes the place of the oldest, so slow clients cannot keep a probe out. Bytes
that are not HTTP get an answer if they end like a request and are dropped if not. Bodies are not read.

It shows no entry and changes nothing; still it listens on loopback unless told otherwise.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any, Final, NamedTuple

import msgspec

from varlog import limits
from varlog.daemon import logs
from varlog.wire.endpoint import bind, cannot_listen, format_address

TEXT: Final = "text/plain; charset=utf-8"
PROMETHEUS: Final = "text/plain; version=0.0.4; charset=utf-8"
JSON: Final = "application/json"
END_OF_HEAD: Final = b"\r\n\r\n"


class Health(NamedTuple):
    """What a daemon says of itself."""

    status: str
    """`ok`, or a word for what keeps it from serving."""
    details: dict[str, Any]


class _Reply(NamedTuple):
    status: HTTPStatus
    kind: str = TEXT
    body: bytes = b""


class Endpoint:
    """The listening page. Made by `start`."""

    def __init__(self, program: str, metrics: Callable[[], Awaitable[bytes]], health: Callable[[], Health]) -> None:
        self.address = ""
        """Where it listens, with the port it got."""
        self._program = program
        self._pages: dict[str, Callable[[], Awaitable[_Reply]]] = {
            "/": self._front,
            "/metrics": self._metrics,
            "/healthz": self._healthz,
        }
        self._render = metrics
        self._health = health
        self._open: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        """Connections and who serves them, oldest first."""
        self._server: asyncio.Server

    @classmethod
    async def start(
        cls, address: str, program: str, metrics: Callable[[], Awaitable[bytes]], health: Callable[[], Health]
    ) -> Endpoint:
        """Listen at that address; `CannotListen` if that is not possible."""
        endpoint = cls(program, metrics, health)
        listening = await bind(address)
        try:
            endpoint._server = await asyncio.start_server(
                endpoint._accept, sock=listening, limit=limits.HTTP_HEAD_BYTES, backlog=limits.HTTP_CONNECTIONS
            )
        except OSError as error:
            listening.close()
            raise cannot_listen(address, error) from error
        endpoint.address = format_address(listening.getsockname())
        return endpoint

    @property
    def connections(self) -> int:
        """How many are connected."""
        return len(self._open)

    async def close(self) -> None:
        """Listen no more, and drop whoever is connected."""
        self._server.close()
        for serving, writer in self._open.items():
            writer.transport.abort()  # also where serving it has not begun
            serving.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)
        await self._server.wait_closed()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.connections >= limits.HTTP_CONNECTIONS:
            oldest = next(iter(self._open))
            self._open.pop(oldest).transport.abort()
            oldest.cancel()
        serving = asyncio.create_task(self._serve(reader, writer))
        self._open[serving] = writer
        serving.add_done_callback(lambda done: self._open.pop(done, None))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(limits.HTTP_SECONDS):
                await self._converse(reader, writer)
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            pass  # the client went away, or was too slow
        except Exception:
            logs.get().exception("a request failed")
        finally:
            writer.transport.abort()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(END_OF_HEAD)
        except asyncio.LimitOverrunError:
            head, reply = b"", _Reply(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        else:
            reply = await self._answer(head)
        writer.write(_encode(reply, with_body=not head.startswith(b"HEAD ")))
        await writer.drain()
        writer.write_eof()
        # Closing while the client still sends would make its kernel forget the reply. What comes is dropped, as much
        # as a request may have.
        for _ in range(2):
            if not await reader.read(limits.HTTP_HEAD_BYTES):
                break

    async def _answer(self, head: bytes) -> _Reply:
        match head.split(b"\r\n", 1)[0].split(b" "):
            case [method, target, version] if version.startswith(b"HTTP/1."):
                pass
            case _:
                return _Reply(HTTPStatus.BAD_REQUEST)
        page = self._pages.get(target.split(b"?", 1)[0].decode("latin-1"))
        if page is None:
            return _Reply(HTTPStatus.NOT_FOUND, body=b"There are /metrics and /healthz.\n")
        if method not in {b"GET", b"HEAD"}:
            return _Reply(HTTPStatus.METHOD_NOT_ALLOWED)
        try:
            return await page()
        except Exception:
            logs.get().exception("a page failed", page=target)
            return _Reply(HTTPStatus.INTERNAL_SERVER_ERROR)

    async def _front(self) -> _Reply:
        text = f"Varlog: {self._program}\n\n/metrics  for Prometheus\n/healthz  whether it serves, and how it is\n"
        return _Reply(HTTPStatus.OK, body=text.encode())

    async def _metrics(self) -> _Reply:
        return _Reply(HTTPStatus.OK, PROMETHEUS, await self._render())

    async def _healthz(self) -> _Reply:
        try:
            health = self._health()
        except Exception as error:
            logs.get().exception("the daemon cannot tell its health")
            health = Health("unknown", {"error": repr(error)})
        said = {"status": health.status, "role": self._program, "details": health.details}
        status = HTTPStatus.OK if health.status == "ok" else HTTPStatus.SERVICE_UNAVAILABLE
        return _Reply(status, JSON, msgspec.json.encode(said, enc_hook=str) + b"\n")


def _encode(reply: _Reply, *, with_body: bool) -> bytes:
    body = reply.body or f"{reply.status.phrase}\n".encode()
    lines = [
        f"HTTP/1.1 {reply.status.value} {reply.status.phrase}",
        f"Content-Type: {reply.kind}",
        f"Content-Length: {len(body)}",
        "Cache-Control: no-store",
        "Connection: close",
    ]
    if reply.status is HTTPStatus.METHOD_NOT_ALLOWED:
        lines.append("Allow: GET, HEAD")
    return "\r\n".join([*lines, "", ""]).encode() + (body if with_body else b"")
