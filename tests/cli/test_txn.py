"""`varlog txn`, end to end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

import varlog
from tests.cli.shell import Dev, Shell
from tests.cli.test_administration import assert_documented
from varlog import Log, errors
from varlog.cli import manual_txn

T = TypeVar("T")


def done(dev: Dev, topic: str, do: Callable[[Log], Awaitable[T]]) -> T:
    """Do something as a client that is gone afterwards."""

    async def run() -> T:
        async with varlog.connect(dev.path, topic=topic) as log:
            return await do(log)

    return asyncio.run(run())


def begun(dev: Dev, topic: str, name: str, *, number: int | None = None, expires: float = 60.0) -> int:
    """A transaction that was begun, and written to, and is not ended."""

    async def begin(log: Log) -> int:
        transaction = await log.begin(name, number=number, expires=expires)
        await transaction.append(b"unseen")
        return transaction.id

    return done(dev, topic, begin)


def test_what_is_open_is_listed(dev: Dev, shell: Shell, topic: str) -> None:
    assert "no transaction is open" in shell.run("txn", "list", "--topic", topic).text
    shell.run("append", "--topic", topic, "seen")
    txid = begun(dev, topic, "import", number=3)
    (listed,) = shell.run("txn", "list", "--topic", topic, "--json").records
    assert_documented(manual_txn.LIST, listed)
    assert 0 <= listed.pop("age") < 60
    assert listed == {"topic": topic, "id": txid, "name": "import", "number": 3, "after": 1, "expires": 60}
    told = shell.run("txn", "list", "--topic", topic).text
    assert f"{txid}  import" in told
    assert "transactions open: 1; readers get up to GLSN 1" in told


def test_what_is_open_is_aborted(dev: Dev, shell: Shell, topic: str) -> None:
    txid = begun(dev, topic, "import")
    ended = shell.run("txn", "abort", str(txid), "--topic", topic, "--reason", "in the way", "--json").record
    assert_documented(manual_txn.ABORT, ended)
    assert ended == {"topic": topic, "id": txid, "ended": "aborted", "glsn": 2}
    assert shell.run("txn", "list", "--topic", topic, "--json").records == []
    again = shell.run("txn", "abort", str(txid), "--topic", topic, "--json")
    assert again.failure["error"] == "TransactionEnded"
    second = begun(dev, topic, "import")
    assert "aborted at GLSN 4" in shell.run("txn", "abort", str(second), "--topic", topic).text


def test_what_expired_is_ended_by_who_looks(dev: Dev, shell: Shell, topic: str) -> None:
    begun(dev, topic, "import", expires=1.0)
    give_up = time.monotonic() + 30
    while shell.run("txn", "list", "--topic", topic, "--json").records:
        assert time.monotonic() < give_up
    assert shell.run("trim", "2", "--topic", topic, "--json").record["trimmed"] == 2


def test_a_topic_is_not_trimmed_beyond_what_is_open(dev: Dev, shell: Shell, topic: str) -> None:
    txid = begun(dev, topic, "import")
    refused = shell.run("trim", "1", "--topic", topic, "--timeout", "1", "--json").failure
    assert refused["error"] == "TransactionOpen"
    assert f"transaction {txid} of 'import'" in refused["message"]


def test_names_are_listed_and_forgotten(dev: Dev, shell: Shell, topic: str) -> None:
    async def commit(log: Log) -> None:
        async with log.transaction("import", number=5) as transaction:
            await transaction.append(b"seen")

    done(dev, topic, commit)
    (named,) = shell.run("txn", "list", "--names", "--topic", topic, "--json").records
    assert_documented(manual_txn.LIST, named)
    assert named == {"topic": topic, "name": "import", "committed": 5, "glsn": 2}
    assert "import" in shell.run("txn", "list", "--names", "--topic", topic).text
    with pytest.raises(errors.AlreadyCommitted):
        done(dev, topic, commit)
    forgotten = shell.run("txn", "forget", "import", "--topic", topic, "--json").record
    assert_documented(manual_txn.FORGET, forgotten)
    assert shell.run("txn", "list", "--names", "--topic", topic, "--json").records == []
    done(dev, topic, commit)
    assert "under 'import' any more" in shell.run("txn", "forget", "import", "--topic", topic).text
    assert "nothing has changed" in shell.run("txn", "forget", "import", "--topic", topic).text
    assert not shell.run("txn", "forget", "import", "--topic", topic, "--json").record["forgotten"]
