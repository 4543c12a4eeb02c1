"""How a client is made: `connect` and `admin` return something that can be awaited, or entered with `async with`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from varlog.client import cluster as clusters
from varlog.client.session import Session
from varlog.wire.tls import TlsFiles


class Closable(Protocol):
    """A client."""

    async def close(self) -> None: ...


C = TypeVar("C", bound=Closable)


class Connecting(Generic[C]):
    """A client that is about to be made."""

    def __init__(self, make: Callable[[], Awaitable[C]]) -> None:
        self._make = make
        self._made: list[C] = []

    def __await__(self) -> Generator[Any, None, C]:
        return self._make().__await__()

    async def __aenter__(self) -> C:
        self._made.append(await self._make())
        return self._made[-1]

    async def __aexit__(self, *_: object) -> None:
        await self._made.pop().close()


async def open_session(
    cluster: str | Path | None,
    cid: int | None,
    secret_file: str | Path | None,
    timeout: float,
    tls: TlsFiles | None = None,
) -> Session:
    """Find a cluster, connect to it, and wait for its metadata."""
    session = Session(clusters.find(cluster, cid=cid, secret_file=secret_file, tls=tls))
    try:
        await session.open(session.loop.time() + timeout)
    except BaseException:
        await session.close()
        raise
    return session
