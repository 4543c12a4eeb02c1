"""Which cluster a command means, and what it says when that cannot be reached."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests.cli.shell import Dev, Shell
from tests.wire.certificates import Authority
from varlog.wire.secret import Secret


def test_a_cluster_is_named_by_its_file_its_directory_or_its_address(
    shell: Shell, dev: Dev, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VARLOG_CLUSTER")
    secret = str(dev.path / "secret")
    for where in (
        ("--cluster", str(dev.path)),
        ("--cluster", str(dev.path / "cluster.toml")),
        ("--cluster", dev.about["address"], "--secret-file", secret, "--cid", "1"),
        ("--cluster", f"127.0.0.1:1,{dev.about['address']}", "--secret-file", secret),
    ):
        assert shell.run("tail", "--topic", topic, *where).text == ""
    monkeypatch.chdir(dev.path.parent)
    assert shell.run("tail", "--topic", topic).text == "", "./varlog-data is the default"


def test_no_cluster_at_all_is_said_with_what_to_do(bare: Shell) -> None:
    code, out, err = bare.run("append", "hello")
    assert (code, out) == (2, b"")
    assert err.startswith("varlog: BadConfig: varlog-data: ")
    assert "varlog dev" in err


def test_a_cluster_that_does_not_answer(bare: Shell, tmp_path: Path) -> None:
    Secret.create(tmp_path / "secret")
    with socket.socket() as bound:  # and not listening
        bound.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{bound.getsockname()[1]}"
        where = ("--cluster", address, "--secret-file", str(tmp_path / "secret"), "--timeout", "0.2")
        code, out, err = bare.run("status", *where)
        failure = bare.run("append", "x", *where, "--json").failure
    assert (code, out) == (3, b"")
    assert err.startswith("varlog: Unreachable: ")
    assert f"cannot connect to {address}: Connection refused" in err
    assert (failure["error"], failure["happened"], failure["retriable"]) == ("Unreachable", False, True)


@pytest.mark.parametrize(
    ("options", "error", "code"),
    [
        (("--secret-file", "other"), "WrongSecret", 3),
        (("--cid", "9"), "WrongCluster", 3),
        (("--secret-file", "gone"), "SecretUnusable", 2),
        (("--tls-cert", "node.pem", "--tls-key", "node.key", "--tls-ca", "node.ca.pem"), "TlsMismatch", 3),
        (("--tls-cert", "gone", "--tls-key", "node.key", "--tls-ca", "node.ca.pem"), "TlsUnusable", 2),
        (("--tls-cert", "node.pem"), "InvalidArgument", 2),
    ],
)
def test_a_cluster_that_does_not_let_us_in(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], error: str, code: int
) -> None:
    monkeypatch.chdir(tmp_path)
    Secret.create(tmp_path / "other")
    Authority().issue(tmp_path)
    done = shell.run("status", *options)
    assert (done.code, done.out) == (code, b"")
    assert done.err.startswith(f"varlog: {error}: ")
    assert done.err.count("\n") == 1


def test_why_nobody_lets_us_in_is_said_once(shell: Shell) -> None:
    """By a process of its own, in which nobody has set up logging."""
    code, out, err = shell.feed(b"", "tail", "--cid", "9")
    assert (code, out) == (3, b"")
    assert err.startswith("varlog: WrongCluster: ")
    assert err.count("\n") == 1
    assert shell.feed(b"", "tail", "--cid", "9", "--json").failure["error"] == "WrongCluster"


def test_a_certificate_that_expires_soon_is_told_of(shell: Shell, tmp_path: Path) -> None:
    files = Authority().issue(tmp_path, days=2)
    options = ("--tls-cert", str(files.cert), "--tls-key", str(files.key), "--tls-ca", str(files.ca))
    told, failure = shell.feed(b"", "status", *options).err.splitlines()
    assert told.startswith(f"certificate {files.cert} is good until ")
    assert failure.startswith("varlog: TlsMismatch: ")
    assert shell.feed(b"", "status", *options, "--json").failure["error"] == "TlsMismatch"


def test_an_address_alone_needs_a_secret(bare: Shell) -> None:
    code, _, err = bare.run("status", "--cluster", "127.0.0.1:1")
    assert code == 2
    assert "secret file" in err
