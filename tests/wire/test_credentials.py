"""Secrets and certificates that are replaced while they are in use."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.wire.certificates import Authority, write
from tests.wire.peers import CLIENT, MEMBERS, NODE, Recorder, run, until
from varlog import errors
from varlog.wire import Ping, Role, Secret, Server, dial
from varlog.wire.credentials import FileCredentials
from varlog.wire.secret import add, promote, retire
from varlog.wire.tls import Tls, TlsFiles


async def serve(credentials: FileCredentials, receiver: Recorder | None = None) -> Server:
    return await Server.start("127.0.0.1:0", NODE, MEMBERS, credentials, receiver or Recorder())


async def greet(server: Server, credentials: FileCredentials | Secret) -> None:
    connection = await dial(server.address, CLIENT, Role.STORAGE_NODE, credentials, Recorder())
    connection.close()
    await connection.gone()


def copy(source: Path, to: Path) -> None:
    """As files are brought to other machines."""
    write(to, source.read_bytes(), 0o600)


def secret_files(tmp_path: Path) -> tuple[Path, Path]:
    """Of a server, and of a client elsewhere."""
    Secret.create(tmp_path / "server")
    copy(tmp_path / "server", tmp_path / "client")
    return tmp_path / "server", tmp_path / "client"


def test_a_secret_is_replaced_while_both_sides_run(tmp_path: Path) -> None:
    there, here = secret_files(tmp_path)
    old = Secret.load(there)

    async def main() -> None:
        receiver, answers = Recorder(), Recorder()
        server, mine = await serve(FileCredentials(there), receiver), FileCredentials(here)
        lasting = await dial(server.address, CLIENT, Role.STORAGE_NODE, mine, answers)
        for step in (add, promote, retire):
            step(there)
            await greet(server, mine)
            copy(there, here)
            await greet(server, mine)
        with pytest.raises(errors.WrongSecret):
            await greet(server, old)
        lasting.send(Ping(1))
        await answers.received(1)
        assert not answers.closed, "who was connected before still is"
        lasting.close()
        await server.close()

    run(main())


@pytest.mark.parametrize("content", [b"", b"0011", b"not digits", bytes(5000)], ids=["empty", "half", "other", "large"])
def test_a_secret_file_that_cannot_be_used_is_told_and_the_one_before_stays(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes
) -> None:
    there, here = secret_files(tmp_path)
    caplog.set_level(logging.INFO)

    async def main() -> None:
        credentials, mine = FileCredentials(there), FileCredentials(here)
        server = await serve(credentials)
        there.write_bytes(content)
        for _ in range(3):
            await greet(server, mine)
        told = [record.message for record in caplog.records if record.levelno == logging.WARNING]
        assert len(told) == 1, "once"
        assert f"secret file {there}: what is there now cannot be used, and what was stays" in told[0]
        add(here)
        copy(here, there)
        await greet(server, mine)
        await until(lambda: any("read anew" in record.message for record in caplog.records))
        await server.close()

    run(main())


def test_a_file_that_is_gone_for_a_moment_is_no_harm(tmp_path: Path) -> None:
    there, _ = secret_files(tmp_path)
    credentials = FileCredentials(there)
    before = credentials.secret.fingerprints()
    there.rename(tmp_path / "away")
    assert credentials.secret.fingerprints() == before
    Secret.create(there)
    assert credentials.secret.fingerprints() != before


def test_a_file_that_others_may_use_by_now_is_not_taken(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    there, _ = secret_files(tmp_path)
    credentials = FileCredentials(there)
    before = credentials.secret.fingerprints()
    add(there)
    there.chmod(0o644)
    assert credentials.secret.fingerprints() == before
    assert "chmod 600" in caplog.text


def test_a_file_is_not_read_again_while_it_stays_as_it_is(tmp_path: Path) -> None:
    there, _ = secret_files(tmp_path)
    long_ago = (1_000_000_000, 1_000_000_000)
    os.utime(there, long_ago)
    credentials = FileCredentials(there)
    first = credentials.secret

    async def main() -> None:
        await until(lambda: credentials.secret is credentials.secret)

    run(main())
    settled = credentials.secret
    assert settled.fingerprints() == first.fingerprints()
    assert all(credentials.secret is settled for _ in range(10))
    key = there.read_bytes()
    there.write_bytes(bytes.fromhex(key.decode())[::-1].hex().encode() + b"\n")
    os.utime(there, long_ago)
    assert credentials.secret.fingerprints() != first.fingerprints(), "the same size and time, and yet another file"


def test_a_change_is_told_without_a_connection(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    there, _ = secret_files(tmp_path)
    caplog.set_level(logging.INFO)

    async def main() -> None:
        server = await serve(FileCredentials(there))
        fingerprint = add(there).fingerprints()[-1]
        await until(lambda: any("read anew" in each.message and fingerprint in each.message for each in caplog.records))
        await server.close()

    run(main())


# Certificates


def test_certificates_and_their_ca_are_replaced_while_both_sides_run(tmp_path: Path) -> None:
    old, new = Authority(), Authority()
    secret, _ = secret_files(tmp_path)
    there, here = old.issue(tmp_path, name="there"), old.issue(tmp_path, name="here")

    async def main() -> None:
        server, mine = await serve(FileCredentials(secret, there)), FileCredentials(secret, here)
        steps: list[Callable[[TlsFiles], None]] = [
            lambda files: write(files.ca, old.pem + new.pem),
            lambda files: renew(new, files),
            lambda files: write(files.ca, new.pem),
        ]
        await greet(server, mine)
        for step in steps:
            step(there)
            await greet(server, mine)
            step(here)
            await greet(server, mine)
        (tmp_path / "late").mkdir()
        late = FileCredentials(secret, old.issue(tmp_path / "late"))
        with pytest.raises(errors.WrongCertificate):
            await greet(server, late)
        await server.close()

    def renew(authority: Authority, files: TlsFiles) -> None:
        (tmp_path / "new").mkdir(exist_ok=True)
        renewed = authority.issue(tmp_path / "new")
        write(files.cert, Path(renewed.cert).read_bytes())
        write(files.key, Path(renewed.key).read_bytes(), 0o600)

    run(main())


def test_half_of_what_is_replaced_is_not_taken(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A certificate without its key, one of another CA, one that has expired, half a file: what was before stays."""
    authority, other = Authority(), Authority()
    secret, _ = secret_files(tmp_path)
    files = authority.issue(tmp_path, name="there")
    kept = {path: Path(path).read_bytes() for path in files}
    (tmp_path / "new").mkdir()
    new = authority.issue(tmp_path / "new")
    foreign = other.issue(tmp_path / "new", name="foreign")
    expired = authority.issue(tmp_path / "new", name="expired", expired=True)
    whole = Path(new.cert).read_bytes()

    async def main() -> None:
        credentials, mine = FileCredentials(secret, files), FileCredentials(secret, new)
        server = await serve(credentials)
        serial = serial_of(credentials)
        for bad, told in (
            ({files.cert: whole}, "key values mismatch"),
            ({files.cert: whole[: len(whole) // 2]}, "not a certificate"),
            ({files.cert: b""}, "not a certificate"),
            ({files.ca: kept[files.ca][:100]}, "no certificates of a CA"),
            (both_of(foreign), "issuer"),
            (both_of(expired), "expired"),
        ):
            caplog.clear()
            for path, content in bad.items():
                write(path, content, 0o600)
            await greet(server, mine)
            assert told in caplog.text
            assert serial_of(credentials) == serial
            for path, content in kept.items():
                write(path, content, 0o600)
            await greet(server, mine)
        for path, content in both_of(new).items():
            write(path, content, 0o600)
            await greet(server, mine)
        assert serial_of(credentials) == serial_of(mine)
        await server.close()

    def both_of(others: TlsFiles) -> dict[str | Path, bytes]:
        """These, in the place of the server's certificate and key."""
        return {files.cert: Path(others.cert).read_bytes(), files.key: Path(others.key).read_bytes()}

    def serial_of(credentials: FileCredentials) -> str:
        assert isinstance(credentials.tls, Tls)
        return credentials.tls.serial

    run(main())


def test_a_certificate_that_will_expire_soon_is_told_once_a_day(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    secret, _ = secret_files(tmp_path)
    credentials = FileCredentials(secret, Authority().issue(tmp_path, days=13))
    assert credentials.tls is not None
    assert credentials.tls.not_after in caplog.text
    assert caplog.text.count("renew it") == 1
    caplog.clear()
    assert FileCredentials(secret, Authority().issue(tmp_path, days=20)).tls is not None
    assert not caplog.text


def test_what_cannot_be_used_at_the_start_is_raised(tmp_path: Path) -> None:
    secret, _ = secret_files(tmp_path)
    with pytest.raises(errors.SecretUnusable, match="No such file"):
        FileCredentials(tmp_path / "missing")
    with pytest.raises(errors.TlsUnusable, match="cannot read"):
        FileCredentials(secret, TlsFiles(tmp_path / "a", tmp_path / "b", tmp_path / "c"))
