"""The members of an etcd, as one reaches them: one is spoken to at a time, and left as soon as it fails.

Every member does everything, so any will do; the one that leads is the quickest, and is changed to when it is found.
A request goes on to the next member only if nothing can have come of it: the connection was refused, or etcd said so.
One that got no answer within `limits.ETCD_SECONDS` is `Unanswered`, its member is left, and the caller has to know what
that means. Streams (watches) end when their member is left; their owners open them anew.

Before a member is used it is asked how it is: one whose version can lose data (`versions`), or that belongs to another
etcd than those before it, is never used.
"""

from __future__ import annotations

import asyncio
import io
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import aiohttp
from yarl import URL

from varlog import limits
from varlog.errors import EtcdRefused, SecretUnusable, UnsuitableEtcd
from varlog.metarepo.etcd import gateway, versions
from varlog.metarepo.etcd.address import EtcdAddress, EtcdOptions, FileTls
from varlog.metarepo.etcd.gateway import EtcdRefusal, Status

_TIMEOUT: Final = aiohttp.ClientTimeout(total=limits.ETCD_SECONDS, sock_connect=limits.ETCD_CONNECT_SECONDS)
LONG: Final = aiohttp.ClientTimeout(
    total=limits.ETCD_READ_SECONDS, sock_connect=limits.ETCD_CONNECT_SECONDS, sock_read=limits.ETCD_SECONDS
)
"""For an answer that may be large: it comes, as long as some of it comes."""
_LOGIN: Final = aiohttp.ClientTimeout(total=limits.ETCD_LOGIN_SECONDS, sock_connect=limits.ETCD_CONNECT_SECONDS)
_STREAM: Final = aiohttp.ClientTimeout(
    total=None, sock_connect=limits.ETCD_CONNECT_SECONDS, sock_read=limits.ETCD_WATCH_SECONDS
)
_LARGE: Final = 1 << 20
_AUTHENTICATE: Final = "/v3/auth/authenticate"
_PLAIN: Final = {"Content-Type": "application/json"}
_NOTHING_SENT: Final = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)
_FAILURES: Final = (aiohttp.ClientError, TimeoutError, OSError)


class NotSent(Exception):
    """No member got the request: nothing happened."""


class Unanswered(Exception):
    """A member may have got the request."""


class _Endpoint:
    __slots__ = ("base", "name", "status", "streams", "urls")

    def __init__(self, name: str, base: str) -> None:
        self.name = name
        self.base = base
        self.urls: dict[str, URL] = {}
        self.status: Status | None = None
        """What it said of itself last; None before it is used."""
        self.streams: set[aiohttp.ClientResponse] = set()

    def url(self, path: str) -> URL:
        found = self.urls.get(path)
        if found is None:
            found = self.urls[path] = URL(self.base + path)
        return found


class Endpoints:
    """See the module's text."""

    def __init__(self, address: EtcdAddress, options: EtcdOptions, *, any_version: bool) -> None:
        self.error = ""
        """Why a member was left last."""
        self.round_trip = 0.0
        """Seconds of the last request that was answered."""
        self._options = options
        self._any_version = any_version
        self._cluster = 0
        self._headers = _PLAIN
        self._clock = asyncio.get_running_loop().time
        self._all = [_Endpoint(name, address.base(name)) for name in address.endpoints]
        self._current = self._all[0]
        self._tls = FileTls(options) if address.tls else None
        self._login: asyncio.Task[Exception | None] | None = None
        """Under way; it ends with why it failed, if it did."""
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding"),
        )

    @property
    def name(self) -> str:
        """Who is spoken to."""
        return self._current.name

    @property
    def status(self) -> Status | None:
        return self._current.status

    @property
    def _ssl(self) -> ssl.SSLContext | bool:
        return True if self._tls is None else self._tls.context

    async def close(self) -> None:
        self._leave_streams(self._current)
        if self._login is not None:
            self._login.cancel()
            await asyncio.wait((self._login,))
        await self._session.close()

    async def call(self, path: str, body: bytes, timeout: aiohttp.ClientTimeout = _TIMEOUT) -> bytes:  # noqa: ASYNC109
        """The answer. Raises EtcdRefusal if that is an error, NotSent, or Unanswered."""
        for _ in self._all:
            endpoint = self._current
            try:
                return await self._ask(endpoint, path, body, timeout)
            except NotSent as e:
                self._leave(endpoint, str(e))
            except EtcdRefusal as e:
                if not e.elsewhere:
                    raise
                self._leave(endpoint, f"{endpoint.name}: {e}")
            except Unanswered as e:
                self._leave(endpoint, str(e))
                raise
        raise NotSent(self.error)

    @asynccontextmanager
    async def stream(self, path: str, body: bytes) -> AsyncIterator[aiohttp.StreamReader]:
        """An answer without an end, from the member that is spoken to. Raises as `call` does."""
        endpoint = self._current
        try:
            await self._prepare(endpoint)
            async with asyncio.timeout(limits.ETCD_SECONDS):
                reply = await self._session.post(
                    endpoint.url(path),
                    data=body,
                    headers=self._headers,
                    timeout=_STREAM,
                    ssl=self._ssl,
                    allow_redirects=False,
                )
        except (NotSent, Unanswered, *_FAILURES) as e:
            self._leave(endpoint, str(e) if isinstance(e, NotSent | Unanswered) else _failed(endpoint, e))
            raise Unanswered(self.error) from None
        endpoint.streams.add(reply)
        try:
            if endpoint is not self._current:
                raise Unanswered(f"{endpoint.name} was left")
            if reply.status != 200:
                raise gateway.refusal(await _whole(reply), reply.status)
            yield reply.content
        except _FAILURES as e:
            raise Unanswered(_failed(endpoint, e)) from None
        finally:
            endpoint.streams.discard(reply)
            reply.close()

    async def look(self) -> None:
        """See how the member is that is spoken to; leave it if it is dead or cut off, or if another one leads. New
        certificates are taken here, too."""
        endpoint = self._current
        try:
            if self._tls is not None:
                self._tls.renew()
            status = await self._examine(endpoint)
        except (NotSent, Unanswered, UnsuitableEtcd) as e:
            self._leave(endpoint, str(e))
            return
        except SecretUnusable as e:
            self.error = str(e)
            return
        if not status.leader:
            self._leave(endpoint, f"{endpoint.name} knows of no leader of etcd")
        elif not status.leads:
            await self._find_leader(endpoint)

    async def _find_leader(self, left: _Endpoint) -> None:
        others = [endpoint for endpoint in self._all if endpoint is not left]
        for endpoint, found in zip(
            others, await asyncio.gather(*map(self._examine, others), return_exceptions=True), strict=True
        ):
            if isinstance(found, Status) and found.leads and self._current is left:
                self._move(endpoint)

    async def greet(self) -> None:
        """See how all members are that are reached, and begin with the one that leads. Raises UnsuitableEtcd, or
        NotSent if there is none."""
        found = await asyncio.gather(*map(self._examine, self._all), return_exceptions=True)
        for error in found:
            if isinstance(error, UnsuitableEtcd):
                raise error
        reached = [endpoint for endpoint in self._all if endpoint.status is not None]
        if not reached:
            raise NotSent("; ".join(map(str, found)))
        self._current = min(reached, key=lambda endpoint: not (endpoint.status and endpoint.status.leads))

    async def login(self) -> None:
        """Show who we are, before anything is asked. Raises EtcdRefused if that is not accepted."""
        if not self._options.user:
            return
        try:
            self._take_token(await self.call(_AUTHENTICATE, self._credentials(), _LOGIN))
        except EtcdRefusal as e:
            raise EtcdRefused(f"etcd does not let user {self._options.user} in: {e}") from None

    # One member

    async def _ask(self, endpoint: _Endpoint, path: str, body: bytes, timeout: aiohttp.ClientTimeout) -> bytes:  # noqa: ASYNC109
        if endpoint.status is None:
            await self._prepare(endpoint)
        shown = self._headers
        try:
            return await self._post(endpoint, path, body, timeout)
        except EtcdRefusal as e:
            if not e.wants_token or not self._options.user:
                raise
        if shown is self._headers:
            await self._log_in_anew(endpoint)
        return await self._post(endpoint, path, body, timeout)

    async def _log_in_anew(self, endpoint: _Endpoint) -> None:
        """A member that was restarted has forgotten whom it has let in, and refuses everything that is under way at
        once. All of that waits for one login: etcd makes passwords costly to try."""
        if self._login is None:
            self._login = asyncio.ensure_future(self._try_login(endpoint))
        failed = await asyncio.shield(self._login)
        if failed is not None:
            raise failed

    async def _try_login(self, endpoint: _Endpoint) -> Exception | None:
        try:
            self._take_token(await self._post(endpoint, _AUTHENTICATE, self._credentials(), _LOGIN))
        except EtcdRefusal as e:
            return e
        except (NotSent, Unanswered, SecretUnusable, *gateway.MALFORMED) as e:
            return NotSent(str(e))
        finally:
            self._login = None
        return None

    async def _prepare(self, endpoint: _Endpoint) -> None:
        """Nothing is asked of a member before it has said who it is."""
        if endpoint.status is None:
            try:
                await self._examine(endpoint)
            except (Unanswered, UnsuitableEtcd) as e:
                raise NotSent(str(e)) from None

    async def _examine(self, endpoint: _Endpoint) -> Status:
        try:
            status = gateway.decode_status(await self._post(endpoint, "/v3/maintenance/status", b"{}", _TIMEOUT))
        except (EtcdRefusal, *gateway.MALFORMED) as e:
            raise NotSent(f"{endpoint.name} is no etcd with an HTTP gateway: {e}") from None
        if not self._any_version:
            versions.check(status.version, endpoint.name)
        self._cluster = self._cluster or status.header.cluster_id
        if status.header.cluster_id != self._cluster:
            raise UnsuitableEtcd(f"{endpoint.name} belongs to another etcd than the other addresses")
        endpoint.status = status
        return status

    async def _post(self, endpoint: _Endpoint, path: str, body: bytes, timeout: aiohttp.ClientTimeout) -> bytes:  # noqa: ASYNC109
        begin = self._clock()
        data = body if len(body) < _LARGE else io.BytesIO(body)
        headers = self._headers if path != _AUTHENTICATE else _PLAIN  # with an old token no login is accepted
        try:
            async with self._session.post(
                endpoint.url(path),
                data=data,
                headers=headers,
                timeout=timeout,
                ssl=self._ssl,
                allow_redirects=False,
            ) as reply:
                answer = await _whole(reply)
                status = reply.status
        except _NOTHING_SENT as e:
            raise NotSent(_failed(endpoint, e)) from None
        except _FAILURES as e:
            raise Unanswered(_failed(endpoint, e)) from None
        if status != 200:
            raise gateway.refusal(answer, status)
        self.round_trip = self._clock() - begin
        return answer

    def _credentials(self) -> bytes:
        return gateway.encode({"name": self._options.user, "password": self._options.password()})

    def _take_token(self, answer: bytes) -> None:
        self._headers = {**_PLAIN, "Authorization": gateway.decode_token(answer)}

    # Which member

    def _leave(self, endpoint: _Endpoint, why: str) -> None:
        self.error = why
        if endpoint is self._current:
            self._move(self._all[(self._all.index(endpoint) + 1) % len(self._all)])

    def _move(self, endpoint: _Endpoint) -> None:
        left, self._current = self._current, endpoint
        self._leave_streams(left)

    def _leave_streams(self, endpoint: _Endpoint) -> None:
        for reply in tuple(endpoint.streams):
            reply.close()


async def _whole(reply: aiohttp.ClientResponse) -> bytes:
    """An answer, if it is not larger than one may be."""
    if reply.content_length is not None and reply.content_length <= limits.ETCD_REPLY_BYTES:
        return await reply.read()
    parts, size = [], 0
    async for part in reply.content.iter_any():
        parts.append(part)
        size += len(part)
        if size > limits.ETCD_REPLY_BYTES:
            raise aiohttp.ClientPayloadError(f"an answer of more than {limits.ETCD_REPLY_BYTES} bytes")
    return b"".join(parts)


def _failed(endpoint: _Endpoint, error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return f"{endpoint.name} did not answer in time"
    return f"{endpoint.name}: {str(error) or type(error).__name__}"
