"""The page of a daemon: what it answers, and that nobody who connects to it can disturb the daemon.

Every test runs on both event loops.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
import uvloop
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from varlog import limits
from varlog.daemon.http import Endpoint, Health
from varlog.errors import CannotListen

Loop = Callable[[], asyncio.AbstractEventLoop]


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def loop(request: pytest.FixtureRequest) -> Loop:
    chosen: Loop = request.param
    return chosen


async def metrics() -> bytes:
    return b"varlog_things 1\n"


def healthy() -> Health:
    return Health("ok", {"replicas": 3})


def serving(
    loop: Loop,
    visit: Callable[[Endpoint], Awaitable[None]],
    *,
    address: str = "127.0.0.1:0",
    render: Callable[[], Awaitable[bytes]] = metrics,
    health: Callable[[], Health] = healthy,
) -> None:
    """Run `visit` against an endpoint; whatever the loop is not told what to do with is an error."""
    strays: list[dict[str, Any]] = []

    async def whole() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: strays.append(context))
        endpoint = await Endpoint.start(address, "vsn", render, health)
        try:
            await asyncio.wait_for(visit(endpoint), 60)
        finally:
            await endpoint.close()

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(whole())
    assert not strays


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def leave(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


async def connect(endpoint: Endpoint, on_exit: AsyncExitStack) -> Streams:
    host, _, port = endpoint.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    on_exit.callback(leave, writer)
    return reader, writer


async def received(reader: asyncio.StreamReader) -> bytes:
    """Everything until the server ended the connection, whichever way."""
    parts = []
    try:
        while part := await reader.read(65536):
            parts.append(part)
    except ConnectionError:
        pass
    return b"".join(parts)


async def exchange(endpoint: Endpoint, request: bytes) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of the reply; status 0 if there was none."""
    async with AsyncExitStack() as on_exit:
        reader, writer = await connect(endpoint, on_exit)
        writer.write(request)
        reply = await received(reader)
    if not reply:
        return 0, {}, b""
    head, _, body = reply.partition(b"\r\n\r\n")
    first, *rest = head.decode().split("\r\n")
    return int(first.split(" ")[1]), dict(line.split(": ", 1) for line in rest), body


async def until(holds: Callable[[], bool]) -> None:
    while not holds():
        turn = asyncio.Event()
        asyncio.get_running_loop().call_soon(turn.set)
        await turn.wait()


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()


def test_metrics(loop: Loop) -> None:
    async def visit(endpoint: Endpoint) -> None:
        status, headers, body = await exchange(endpoint, get("/metrics?name=x"))
        assert (status, body) == (200, b"varlog_things 1\n")
        assert headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        assert headers["Content-Length"] == str(len(body))
        assert headers["Connection"] == "close"

    serving(loop, visit)


@pytest.mark.parametrize(("status", "code"), [("ok", 200), ("starting", 503), ("stopping", 503)])
def test_health(loop: Loop, status: str, code: int) -> None:
    async def visit(endpoint: Endpoint) -> None:
        told, headers, body = await exchange(endpoint, get("/healthz"))
        assert (told, headers["Content-Type"]) == (code, "application/json")
        assert json.loads(body) == {"status": status, "role": "vsn", "details": {"replicas": 3}}

    serving(loop, visit, health=lambda: Health(status, {"replicas": 3}))


def test_a_daemon_that_cannot_tell_its_health_is_not_healthy(loop: Loop) -> None:
    def broken() -> Health:
        raise KeyError("gone")

    async def visit(endpoint: Endpoint) -> None:
        status, _, body = await exchange(endpoint, get("/healthz"))
        assert (status, json.loads(body)["status"]) == (503, "unknown")

    serving(loop, visit, health=broken)


def test_metrics_that_fail_are_nobody_elses_failure(loop: Loop) -> None:
    async def broken() -> bytes:
        raise KeyError("gone")

    async def visit(endpoint: Endpoint) -> None:
        status, _, _ = await exchange(endpoint, get("/metrics"))
        assert status == 500
        status, _, _ = await exchange(endpoint, get("/healthz"))
        assert status == 200

    serving(loop, visit, render=broken)


def test_the_front_page_names_the_others(loop: Loop) -> None:
    async def visit(endpoint: Endpoint) -> None:
        status, _, body = await exchange(endpoint, get("/"))
        assert status == 200
        assert b"/metrics" in body
        assert b"/healthz" in body

    serving(loop, visit)


def test_head_is_answered_without_a_body(loop: Loop) -> None:
    async def visit(endpoint: Endpoint) -> None:
        status, headers, body = await exchange(endpoint, b"HEAD /metrics HTTP/1.0\r\n\r\n")
        assert (status, headers["Content-Length"], body) == (200, "16", b"")

    serving(loop, visit)


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (get("/nothing"), 404),
        (get("//metrics"), 404),
        (get("/%2e%2e/etc/passwd"), 404),
        (b"POST /metrics HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", 405),
        (b"DELETE / HTTP/1.1\r\n\r\n", 405),
        (b"GET /metrics\r\n\r\n", 400),
        (b"GET /metrics HTTP/2\r\n\r\n", 400),
        (b"\r\n\r\n", 400),
        (b"\x16\x03\x01\xff \xfe\x00\r\n\r\n", 400),
        (b"GET \xff\xfe HTTP/1.1\r\n\r\n", 404),
    ],
)
def test_anything_else_is_refused(loop: Loop, request_: bytes, status: int) -> None:
    async def visit(endpoint: Endpoint) -> None:
        told, headers, _ = await exchange(endpoint, request_)
        assert told == status
        assert ("Allow" in headers) == (status == 405)

    serving(loop, visit)


def test_one_request_per_connection(loop: Loop) -> None:
    async def visit(endpoint: Endpoint) -> None:
        _, _, body = await exchange(endpoint, get("/metrics") * 3)
        assert body == b"varlog_things 1\n"

    serving(loop, visit)


@pytest.mark.parametrize(
    "request_",
    [
        b"GET /" + b"a" * 100_000,
        b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 20_000 + b"\r\n",
        b"GET / HTTP/1.1\r\nX: " + b"y" * limits.HTTP_HEAD_BYTES + b"\r\n\r\n",
    ],
)
def test_a_huge_head_is_refused(loop: Loop, request_: bytes) -> None:
    async def visit(endpoint: Endpoint) -> None:
        status, _, _ = await exchange(endpoint, request_)
        assert status in {431, 0}  # a client that goes on sending may lose the answer
        status, _, _ = await exchange(endpoint, get("/"))
        assert status == 200

    serving(loop, visit)


def test_a_head_that_is_a_little_too_long_gets_its_answer(loop: Loop) -> None:
    async def visit(endpoint: Endpoint) -> None:
        status, _, _ = await exchange(endpoint, b"GET / HTTP/1.1\r\nX: " + b"y" * limits.HTTP_HEAD_BYTES)
        assert status == 431

    serving(loop, visit)


@pytest.mark.parametrize("beginning", [b"", b"GET / HTTP/1.1\r\n", b"\x00" * 100])
def test_a_slow_client_is_dropped_at_the_deadline(
    loop: Loop, beginning: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "HTTP_SECONDS", 0.1)

    async def visit(endpoint: Endpoint) -> None:
        status, _, _ = await exchange(endpoint, beginning)
        assert status == 0

    serving(loop, visit)


def test_a_client_that_does_not_read_is_dropped_at_the_deadline(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HTTP_SECONDS", 0.1)
    size = 32 * limits.MIB

    async def large() -> bytes:
        return bytes(size)

    async def visit(endpoint: Endpoint) -> None:
        async with AsyncExitStack() as on_exit:
            reader, writer = await connect(endpoint, on_exit)
            reader._transport.pause_reading()  # type: ignore[attr-defined]
            writer.write(get("/metrics"))
            await until(lambda: endpoint.connections == 1)
            status, _, _ = await exchange(endpoint, get("/healthz"))
            assert status == 200
            await until(lambda: endpoint.connections == 0)
            reader._transport.resume_reading()  # type: ignore[attr-defined]
            assert len(await received(reader)) < size

    serving(loop, visit, render=large)


def test_a_further_connection_takes_the_place_of_the_oldest(loop: Loop) -> None:
    async def visit(endpoint: Endpoint) -> None:
        async with AsyncExitStack() as on_exit:
            idle = [await connect(endpoint, on_exit) for _ in range(limits.HTTP_CONNECTIONS)]
            for _ in range(3):
                status, _, _ = await exchange(endpoint, get("/healthz"))
                assert status == 200
            assert endpoint.connections <= limits.HTTP_CONNECTIONS
            assert await received(idle[0][0]) == b""
            idle[-1][1].write(get("/"))
            assert (await received(idle[-1][0])).startswith(b"HTTP/1.1 200")

    serving(loop, visit)


def test_hundreds_of_connections_are_never_more_than_the_limit(loop: Loop) -> None:
    async def visit(endpoint: Endpoint) -> None:
        async with AsyncExitStack() as on_exit:
            for _ in range(300):
                await connect(endpoint, on_exit)
                assert endpoint.connections <= limits.HTTP_CONNECTIONS
            status, _, _ = await exchange(endpoint, get("/healthz"))
            assert status == 200

    serving(loop, visit)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(garbage=st.lists(st.binary(max_size=300), min_size=1, max_size=10), ended=st.booleans())
def test_garbage_gets_an_answer_or_nothing(garbage: list[bytes], ended: bool) -> None:
    async def visit(endpoint: Endpoint) -> None:
        async with AsyncExitStack() as on_exit:
            for piece in garbage:
                reader, writer = await connect(endpoint, on_exit)
                writer.write(piece + (b"\r\n\r\n" if ended else b""))
                writer.write_eof()
                reply = await received(reader)
                assert reply.startswith(b"HTTP/1.1 ") or (not reply and b"\r\n\r\n" not in piece and not ended)
        status, _, _ = await exchange(endpoint, get("/healthz"))
        assert status == 200

    serving(uvloop.new_event_loop, visit)


def test_closing_drops_whoever_is_connected(loop: Loop) -> None:
    async def visit(endpoint: Endpoint) -> None:
        async with AsyncExitStack() as on_exit:
            reader, writer = await connect(endpoint, on_exit)
            writer.write(b"GET /")
            await exchange(endpoint, get("/"))
            await endpoint.close()
            assert await received(reader) == b""
            with pytest.raises(OSError, match="Connect"):
                await connect(endpoint, on_exit)

    serving(loop, visit)


def test_ipv6(loop: Loop) -> None:
    async def visit(endpoint: Endpoint) -> None:
        assert endpoint.address.startswith("[::1]:")
        status, _, _ = await exchange(endpoint, get("/"))
        assert status == 200

    serving(loop, visit, address="[::1]:0")


def test_a_place_where_it_cannot_listen(loop: Loop) -> None:
    async def visit(endpoint: Endpoint) -> None:
        with pytest.raises(CannotListen, match=rf"{endpoint.address} is taken by another process"):
            await Endpoint.start(endpoint.address, "vsn", metrics, healthy)
        with pytest.raises(CannotListen, match=r"192\.0\.2\.1:1: Cannot assign requested address"):
            await Endpoint.start("192.0.2.1:1", "vsn", metrics, healthy)
        with pytest.raises(CannotListen, match=r"no\.such\.host\.invalid:1: "):
            await Endpoint.start("no.such.host.invalid:1", "vsn", metrics, healthy)

    serving(loop, visit)
