"""How the processes of Spark reach a cluster: one event loop in one thread, and connections that are used again.

Spark's Python workers are reused from task to task, and a streaming query plans its micro-batches in one process for as
long as it runs. So a process keeps a connection after its use, and closes it when nobody has wanted it for a while.
What always holds: a connection that is handed out has just answered, and knows the cluster as it is now.

Files that are named by options are looked for where they are named, and then among those that came with the
application (`spark-submit --files`), by their name alone.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final, TypeVar

import varlog
from varlog import errors
from varlog.client import cluster as clusters
from varlog.spark.options import Connection
from varlog.spark.settling import is_worker, settle, speak_up
from varlog.wire.tls import TlsFiles

IDLE_SECONDS: Final = 60.0
"""How long a connection is kept that nobody uses."""

_T = TypeVar("_T")
_Key = tuple[tuple[str, ...], int, str]


class _Held:
    """A connection, and by how many it is used."""

    def __init__(self, log: varlog.Log) -> None:
        self.log = log
        self.users = 0
        self.closing: asyncio.TimerHandle | None = None


class Connections:
    """See the module's text. There is one for the process: `connections`."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._held: dict[_Key, _Held] = {}
        self._opening: asyncio.Lock

    # The loop, from other threads

    def submit(self, work: Coroutine[Any, Any, _T]) -> Future[_T]:
        """Have the event loop do it."""
        with self._guard:
            if self._loop is None:
                speak_up()
                self._loop = _new_event_loop()
                self._opening = asyncio.Lock()
                self._thread = threading.Thread(
                    target=self._serve, args=(self._loop,), name="varlog-spark", daemon=True
                )
                self._thread.start()
            return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Have the event loop do it, and wait; what is done has its own deadlines."""
        future = self.submit(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    @contextlib.contextmanager
    def log(self, connection: Connection) -> Iterator[varlog.Log]:
        """A connection to the topic, for a while."""
        held = self.run(self._acquire(connection))
        try:
            yield held.log
        finally:
            self.run(self._release(held))

    @contextlib.asynccontextmanager
    async def using(self, connection: Connection) -> AsyncIterator[varlog.Log]:
        """The same in the event loop."""
        held = await self._acquire(connection)
        try:
            yield held.log
        finally:
            await self._release(held)

    def ask(self, connection: Connection, question: Callable[[varlog.Log], Coroutine[Any, Any, _T]]) -> _T:
        """Ask the log something that changes nothing; again, if that could help."""
        settle()

        async def asked() -> _T:
            for attempt in range(connection.retries + 1):
                try:
                    held = await self._acquire(connection)
                    try:
                        return await question(held.log)
                    finally:
                        await self._release(held)
                except errors.VarlogError as error:
                    if not error.retriable or attempt == connection.retries:
                        raise
                    await asyncio.sleep(connection.retry_interval)
            raise AssertionError("the last attempt returns or raises")

        return self.run(asked())

    def close(self) -> None:
        """Close what is open, and end the thread. Whoever comes later begins anew."""
        with self._guard:
            loop, self._loop = self._loop, None
            held, self._held = list(self._held.values()), {}
        if loop is None or self._thread is None:
            return

        async def end() -> None:
            for one in held:
                if one.closing is not None:
                    one.closing.cancel()
                await one.log.close()

        asyncio.run_coroutine_threadsafe(end(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        self._thread.join()

    @staticmethod
    def _serve(loop: asyncio.AbstractEventLoop) -> None:
        loop.run_forever()
        loop.close()

    # In the loop

    async def _acquire(self, connection: Connection) -> _Held:
        located = locate(connection)
        cluster = clusters.find(located.cluster, cid=located.cid, secret_file=located.secret_file, tls=located.tls)
        key = (cluster.addresses, int(cluster.cid), located.topic or cluster.topic)
        async with self._opening:
            held = self._held.get(key)
            if held is None or not await self._is_good(held, connection):
                log = await varlog.connect(
                    located.cluster,
                    topic=located.topic,
                    cid=located.cid,
                    secret_file=located.secret_file,
                    tls=located.tls,
                    timeout=connection.timeout,
                )
                if held is not None:
                    self._held.pop(key)
                    if not held.users:
                        await self._close(held)
                held = self._held[key] = _Held(log)
        held.users += 1
        if held.closing is not None:
            held.closing.cancel()
            held.closing = None
        return held

    async def _release(self, held: _Held) -> None:
        held.users -= 1
        if held.users:
            return
        if held not in self._held.values():
            await self._close(held)
        else:
            held.closing = asyncio.get_running_loop().call_later(IDLE_SECONDS, self._on_idle, held)

    def _on_idle(self, held: _Held) -> None:
        self._held = {key: other for key, other in self._held.items() if other is not held}
        self._closing = asyncio.ensure_future(held.log.close())

    @staticmethod
    async def _is_good(held: _Held, connection: Connection) -> bool:
        """Whether it answers, and its topic is still the one of that name."""
        try:
            await held.log.refresh(timeout=connection.timeout)
            return held.log.topic.name == held.log.name
        except errors.VarlogError:
            return False

    @staticmethod
    async def _close(held: _Held) -> None:
        if held.closing is not None:
            held.closing.cancel()
        await held.log.close()


def _new_event_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop  # noqa: PLC0415  # it is not there on every platform
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


connections: Final = Connections()
atexit.register(connections.close)


def pin(connection: Connection) -> Connection:
    """What a driver means, for processes elsewhere, which have another working directory and environment."""
    cluster = connection.cluster or os.environ.get(clusters.ENVIRONMENT) or clusters.DEFAULT_DIRECTORY

    def absolute(name: str) -> str:
        return str(Path(name).absolute()) if Path(name).exists() else name

    secret, tls = connection.secret_file, connection.tls
    return connection._replace(
        cluster=absolute(cluster),
        secret_file=None if secret is None else absolute(secret),
        tls=None if tls is None else TlsFiles(*(absolute(str(file)) for file in tls)),
    )


def locate(connection: Connection) -> Connection:
    """The files that are meant, on this machine."""
    shipped = _shipped()
    if shipped is None:
        return connection
    cluster, secret, tls = connection.cluster, connection.secret_file, connection.tls
    if cluster is not None and not Path(cluster).exists():
        places = (shipped / Path(cluster).name, shipped / clusters.CLUSTER_FILE)
        found = next((place for place in places if place.is_file()), None)
        if found is not None:
            cluster = str(found)
            known = clusters.read_file(found)
            secret = secret or str(shipped / Path(known.secret_file).name)
            tls = tls or known.tls(shipped)

    def here(name: str | Path) -> str:
        place = Path(name) if Path(name).exists() else shipped / Path(name).name
        return str(place)

    secret = here(secret) if secret is not None else None
    tls = TlsFiles(*map(here, tls)) if tls is not None else None
    for private in (secret, tls.key if tls is not None else None):
        if private is not None and Path(private).parent == shipped and Path(private).is_file():
            Path(private).chmod(0o600)  # Spark lets everybody read and run what it ships
    return connection._replace(cluster=cluster, secret_file=secret, tls=tls)


def _shipped() -> Path | None:
    """Where a worker has the files that came with the application."""
    if not is_worker():
        return None
    from pyspark import SparkFiles  # noqa: PLC0415

    return Path(SparkFiles._root_directory) if SparkFiles._root_directory else None
