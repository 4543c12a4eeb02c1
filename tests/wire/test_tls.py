"""Connections inside TLS: what passes through them, who is refused and why, and what is no certificate at all."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tests.wire.certificates import Authority, encrypt, write
from tests.wire.peers import CLIENT, MEMBERS, NODE, SECRET, Recorder, Stranger, run, until
from varlog import errors, limits
from varlog.core.messages import Append, Message, ScanReply
from varlog.types import LLSN, Epoch, LogStreamID, Sequence
from varlog.wire import Connection, Ping, Role, Secret, Server, dial
from varlog.wire import connection as wire_connection
from varlog.wire.endpoint import parse_address
from varlog.wire.frames import ReceiveBudget
from varlog.wire.tls import Tls, TlsFiles

MIB = limits.MIB


class Given:
    """Credentials that never change."""

    def __init__(self, tls: Tls | None, secret: Secret = SECRET) -> None:
        self.tls = tls
        self.secret = secret


class Unchecked(Tls):
    """Of files that no process would take for its own."""

    def __init__(self, files: TlsFiles) -> None:
        self._dialing = context(files, ssl.PROTOCOL_TLS_CLIENT)
        self._accepting = context(files, ssl.PROTOCOL_TLS_SERVER)


def context(files: TlsFiles, kind: int) -> ssl.SSLContext:
    made = ssl.SSLContext(kind)
    made.load_verify_locations(cafile=files.ca)
    made.load_cert_chain(files.cert, files.key)
    made.verify_mode = ssl.CERT_REQUIRED
    return made


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


@pytest.fixture(scope="module")
def other() -> Authority:
    return Authority()


@pytest.fixture
def tls(authority: Authority, tmp_path: Path) -> Tls:
    return Tls.load(authority.issue(tmp_path))


async def serve(receiver: Recorder, tls: Tls | None) -> Server:
    return await Server.start("127.0.0.1:0", NODE, MEMBERS, Given(tls), receiver)


async def join(server: Server, receiver: Recorder, tls: Tls | None, secret: Secret = SECRET) -> Connection:
    return await dial(server.address, CLIENT, Role.STORAGE_NODE, Given(tls, secret), receiver)


def append(number: int, size: int) -> Append:
    return Append(number, LogStreamID(2), Epoch(2), Sequence(0), LLSN(1), Random(number).randbytes(size))


class Generous(Recorder):
    """Answers a ping with much more than it asked for."""

    def answer(self, connection: Connection, message: Message) -> None:
        if isinstance(message, Ping):
            line = (1, 1, 1, 2, 3, 4, bytes(64 << 10))
            connection.send(ScanReply(message.request, LogStreamID(1), 0, (line,)))


# What passes


def test_messages_of_every_size_arrive_as_they_were_sent(tls: Tls) -> None:
    sizes = [0, 1, 100, 16_384, 16_385, 70_000, 255_000, 300_000, 3 * MIB, 5, 9 * MIB]

    async def main() -> None:
        there, here = Recorder(), Recorder()
        server = await serve(there, tls)
        connection = await join(server, here, tls)
        sent = [append(number, size) for number, size in enumerate(sizes * 2)]
        assert all(connection.send(each) for each in sent)
        assert await there.received(len(sent)) == sent
        (accepted,) = there.connections
        assert (accepted.peer, connection.peer) == (CLIENT, NODE)
        for each in sent:
            accepted.send(each)
        assert await here.received(len(sent)) == sent
        connection.close()
        assert isinstance(await there.ended(), errors.ConnectionLost)
        assert connection.held == 0
        await server.close()

    run(main())


def test_nobody_on_the_way_can_read_it(tls: Tls) -> None:
    said = bytearray()
    words = b"what nobody else is to know"

    async def main() -> None:
        there, here = Recorder(), Recorder()
        server = await serve(there, tls)
        host, port = parse_address(server.address)

        async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while data := await reader.read(1 << 16):
                said.extend(data)
                writer.write(data)
            writer.close()

        async def between(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            to = await asyncio.open_connection(host, port)
            await asyncio.gather(carry(reader, to[1]), carry(to[0], writer))

        listener = await asyncio.start_server(between, "127.0.0.1", 0)
        port_between = listener.sockets[0].getsockname()[1]
        connection = await dial(f"127.0.0.1:{port_between}", CLIENT, Role.STORAGE_NODE, Given(tls), here)
        connection.send(Ping(1, words))
        await here.received(1)
        assert there.messages == [Ping(1, words)]
        connection.close()
        await there.ended()
        await server.close()
        listener.close()
        await listener.wait_closed()

    run(main())
    assert len(said) > len(words)
    assert words not in said


def test_a_connection_without_certificates_knows_nothing_of_tls() -> None:
    async def main() -> None:
        there, here = Recorder(), Recorder()
        server = await serve(there, None)
        connection = await join(server, here, None)
        assert type(connection) is Connection
        assert {type(each) for each in server.connections} == {Connection}
        connection.close()
        await server.close()

    run(main())


def test_a_server_reads_no_more_of_a_peer_that_does_not_read(tls: Tls, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that had arrived by then is forgotten when it reads again."""
    monkeypatch.setattr(limits, "CONNECTION_BUFFER_HIGH", 1 * MIB)
    count = 600

    async def main() -> None:
        there, here = Generous(), Recorder()
        server = await serve(there, tls)
        connection = await join(server, here, tls)
        transport = connection._transport
        transport.pause_reading()
        for number in range(count):
            connection.send(Ping(number, bytes(limits.MAX_PING_BYTES)))
        await there.until(lambda: bool(there.connections) and there.connections[0].buffered > 1 * MIB)
        assert len(there.messages) < count
        transport.resume_reading()
        replies = await here.received(count)
        assert [reply.request for reply in replies if isinstance(reply, ScanReply)] == list(range(count))
        connection.close()
        await server.close()

    run(main())


def test_large_frames_wait_for_memory(tls: Tls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire_connection, "BUDGET", ReceiveBudget(2 * MIB))

    async def main() -> None:
        there = Recorder()
        server = await serve(there, tls)
        senders = [await join(server, Recorder(), tls) for _ in range(4)]
        for number, sender in enumerate(senders):
            for part in range(3):
                sender.send(append(10 * number + part, 3 * MIB // 2))
                sender.send(append(100 + 10 * number + part, 40))
        received = await there.received(24)
        numbers = [each.request for each in received if isinstance(each, Append)]
        assert sorted(numbers) == sorted(
            base + 10 * n + part for base in (0, 100) for n in range(4) for part in range(3)
        )
        assert all(each in received for each in [append(1, 3 * MIB // 2), append(132, 40)])
        for sender in senders:
            sender.close()
        await server.close()

    run(main())


# Who is refused


async def refused(server: Server, tls: Tls | None, error: type[errors.VarlogError], told: str) -> None:
    """A dialer is, at once and with that error, and so does the server know."""
    before = server.refusals
    with pytest.raises(error, match=told):
        await join(server, Recorder(), tls)
    await until(lambda: server.refusals == before + 1)


def test_strangers_are_refused_and_disturb_nobody(
    authority: Authority, other: Authority, tls: Tls, tmp_path: Path
) -> None:
    async def main() -> None:
        there, here = Recorder(), Recorder()
        server = await serve(there, tls)
        member = await join(server, here, tls)
        of_another = other.issue(tmp_path, name="other", trusts=authority)
        await refused(server, Unchecked(of_another), errors.WrongCertificate, "does not know the CA")
        expired = authority.issue(tmp_path, name="expired", expired=True)
        await refused(server, Unchecked(expired), errors.WrongCertificate, "has expired")
        await refused(server, None, errors.TlsMismatch, "the server speaks TLS, the dialer does not")
        with pytest.raises(errors.WrongSecret):
            await join(server, Recorder(), tls, Secret(bytes(32)))
        member.send(Ping(1))
        await here.received(1)
        assert not here.closed
        assert len(there.connections) == 1, "the receiver was never told of any of them"
        member.close()
        await server.close()

    run(main())


def test_a_client_without_a_certificate_is_told_so(authority: Authority, tls: Tls, tmp_path: Path) -> None:
    async def main() -> None:
        server = await serve(Recorder(), tls)
        host, port = parse_address(server.address)
        bare = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        write(tmp_path / "ca.pem", authority.pem)
        bare.load_verify_locations(cafile=tmp_path / "ca.pem")
        reader, writer = await asyncio.open_connection(host, port, ssl=bare)
        with pytest.raises(ssl.SSLError, match="CERTIFICATE_REQUIRED"):
            await reader.read()
        writer.transport.abort()
        await until(lambda: server.refusals == 1)
        await server.close()

    run(main())


@pytest.mark.parametrize(
    ("server_is", "told"),
    [("other", "unable to get local issuer"), ("expired", "has expired"), ("elsewhere", "not valid for '127.0.0.1'")],
)
def test_a_server_that_is_not_the_one_is_not_talked_to(
    authority: Authority, other: Authority, tls: Tls, tmp_path: Path, server_is: str, told: str
) -> None:
    wrong = {
        "other": lambda: other.issue(tmp_path, name="other", trusts=authority),
        "expired": lambda: authority.issue(tmp_path, name="expired", expired=True),
        "elsewhere": lambda: authority.issue(tmp_path, "db7.example.org", "10.9.9.9", name="elsewhere"),
    }[server_is]()

    async def main() -> None:
        server = await serve(Recorder(), Unchecked(wrong))
        await refused(server, tls, errors.WrongCertificate, told)
        await server.close()

    run(main())


def test_a_server_is_checked_by_the_name_it_was_dialled_by(authority: Authority, tmp_path: Path) -> None:
    named = Tls.load(authority.issue(tmp_path, "localhost"))

    async def main() -> None:
        server = await serve(Recorder(), named)
        _, port = parse_address(server.address)
        with pytest.raises(errors.WrongCertificate, match="IP address mismatch"):
            await dial(f"127.0.0.1:{port}", CLIENT, Role.STORAGE_NODE, Given(named), Recorder())
        connection = await dial(f"localhost:{port}", CLIENT, Role.STORAGE_NODE, Given(named), Recorder())
        connection.close()
        await server.close()

    run(main())


def test_a_server_without_tls_says_so(tls: Tls) -> None:
    async def main() -> None:
        server = await serve(Recorder(), None)
        await refused(server, tls, errors.TlsMismatch, "does not speak TLS")
        member = await join(server, Recorder(), None)
        member.close()
        await server.close()

    run(main())


def test_older_versions_of_tls_are_refused(authority: Authority, tls: Tls, tmp_path: Path) -> None:
    old = context(authority.issue(tmp_path, name="old"), ssl.PROTOCOL_TLS_CLIENT)
    old.maximum_version = ssl.TLSVersion.TLSv1_2

    async def main() -> None:
        server = await serve(Recorder(), tls)
        host, port = parse_address(server.address)
        with pytest.raises(ssl.SSLError):
            await asyncio.open_connection(host, port, ssl=old)
        await until(lambda: server.refusals == 1)
        await server.close()

    run(main())


def test_who_stops_half_way_is_given_up(tls: Tls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HELLO_SECONDS", 0.1)

    async def main() -> None:
        server = await serve(Recorder(), tls)
        async with await Stranger.to(server), await Stranger.to(server) as begins:
            await begins.say(b"\x16\x03\x01\x02\x00\x01")
            await until(lambda: server.refusals == 2)
        await server.close()

    run(main())


def test_strangers_who_say_nothing_do_not_keep_members_out(tls: Tls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_HELLOS", 4)

    async def main() -> None:
        server = await serve(Recorder(), tls)
        silent = [await Stranger.to(server) for _ in range(10)]
        member = await join(server, Recorder(), tls)
        for each in silent:
            each.leave()
        member.close()
        await server.close()

    run(main())


def noise(seed: int) -> Iterator[bytes]:
    """Nearly TLS, or not at all."""
    drawn = Random(seed)
    for _ in range(25):
        begin = drawn.choice(
            [b"", b"\x16", b"\x16\x03\x01", b"\x16\x03\x01\x00\x05\x01\x00", b"\x15\x03\x03\x00\x02", b"GET /"]
        )
        yield begin + drawn.randbytes(drawn.choice([1, 5, 100, 3000]))


@pytest.mark.parametrize("has_tls", [True, False], ids=["inside", "outside"])
def test_noise_costs_nobody_else_anything(tls: Tls, monkeypatch: pytest.MonkeyPatch, has_tls: bool) -> None:
    monkeypatch.setattr(limits, "HELLO_SECONDS", 0.2)

    async def main() -> None:
        here = Recorder()
        server = await serve(Recorder(), tls if has_tls else None)
        member = await join(server, here, tls if has_tls else None)
        strangers = []
        for said in noise(1):
            strangers.append(await Stranger.to(server))
            await strangers[-1].say(said)
        await until(lambda: server.refusals == len(strangers))
        for each in strangers:
            each.leave()
        member.send(Ping(1))
        await here.received(1)
        member.close()
        await server.close()

    run(main())


def test_damage_on_the_way_ends_the_connection(tls: Tls) -> None:
    async def main() -> None:
        there, here = Recorder(), Recorder()
        server = await serve(there, tls)
        connection = await join(server, here, tls)
        connection._transport.write(b"\x17\x03\x03\x00\x20" + bytes(32))
        error = await there.ended()
        assert isinstance(error, errors.ProtocolError)
        await here.ended()
        await server.close()

    run(main())


# What is no certificate


def complaint(files: TlsFiles) -> str:
    with pytest.raises(errors.TlsUnusable) as refused:
        Tls.load(files)
    return str(refused.value)


def test_files_that_are_of_no_use_are_named(authority: Authority, other: Authority, tmp_path: Path) -> None:
    good = authority.issue(tmp_path)
    foreign = other.issue(tmp_path, name="foreign")
    missing = tmp_path / "missing"
    for key in ("cert", "key", "ca"):
        assert f"cannot read {missing}" in complaint(good._replace(**{key: missing}))
        assert "is not a file" in complaint(good._replace(**{key: tmp_path}))
    write(tmp_path / "empty", b"", 0o600)
    assert "empty holds no certificates" in complaint(good._replace(ca=tmp_path / "empty"))
    assert "empty" in complaint(good._replace(cert=tmp_path / "empty"))
    assert "empty" in complaint(good._replace(key=tmp_path / "empty"))
    assert "key values mismatch" in complaint(good._replace(key=foreign.key))
    assert "unable to get local issuer" in complaint(good._replace(ca=foreign.ca))
    assert "has expired" in complaint(authority.issue(tmp_path, name="expired", expired=True))
    write(tmp_path / "large", bytes(2 * MIB), 0o600)
    assert "more than" in complaint(good._replace(ca=tmp_path / "large"))


@pytest.mark.parametrize("mode", [0o604, 0o640, 0o644, 0o660])
def test_a_key_that_others_may_use_is_refused(authority: Authority, tmp_path: Path, mode: int) -> None:
    files = authority.issue(tmp_path)
    Path(files.key).chmod(mode)
    assert f"mode {mode:04o}); run: chmod 600 {files.key}" in complaint(files)


def test_a_key_with_a_passphrase_is_not_asked_for_it(authority: Authority, tmp_path: Path) -> None:
    files = authority.issue(tmp_path)
    encrypt(files.key)
    assert "encrypted" in complaint(files)


def test_three_files_are_given_or_none() -> None:
    assert TlsFiles.of(None, None, None) is None
    assert TlsFiles.of("a", "b", "c") == TlsFiles("a", "b", "c")
    for given in (("a", None, None), ("a", "b", None), (None, "b", "c")):
        with pytest.raises(errors.InvalidArgument, match="together or not at all"):
            TlsFiles.of(*given)
