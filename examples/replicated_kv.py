"""A replicated key-value store, by state-machine replication.

    python examples/replicated_kv.py                          # with a cluster of its own, in this process
    python examples/replicated_kv.py --cluster varlog-data    # with one that runs: varlog dev --topic kv

Every replica has the whole store in memory and applies the commands in the log, one after another. What a command does
depends on nothing but the commands before it, so all replicas go through the same states, and it does not matter which
of them a client talks to.

- *Write*: append the command, wait until our own replica has applied it, and look at what came of it. A
  compare-and-set is decided by its place in the log, equally on every replica: no locks, no coordinator.
- *Versions*: a key's version is the position in the log at which it was last written; 0 if it is not there.
- *Linearizable read*: ask for the log's tail, and answer when everything up to there is applied. Whatever was
  acknowledged to anybody before the read began is then part of the answer.
- *Snapshot*: the state up to some position is itself an entry of the log; once it is there, the log is trimmed up to
  that position. A replica that starts, or was away for so long that the log was trimmed under it, begins with the first
  snapshot it finds that joins up with what is left of the log. (So the state has to fit into one entry, 16 MiB.)
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import varlog
from varlog.errors import Trimmed

TOPIC = "kv"


class Value(NamedTuple):
    """What a key has, and since which position in the log."""

    text: str
    version: int


ABSENT = Value("", 0)


class Skipped(Exception):
    """The replica was away for so long that it went on from a snapshot: whether the write took effect is not known."""


class Store:
    """The state machine: commands in, results out, no I/O and no clock. `applied` is the last command's position."""

    def __init__(self) -> None:
        self.applied = 0
        self.values: dict[str, Value] = {}

    def apply(self, position: int, command: dict[str, Any]) -> bool:
        """Whether the command took effect: one that names a version does so only if the key has that version."""
        self.applied = position
        if command["do"] == "snapshot":
            return True
        key, expected = command["key"], command["expected"]
        if expected is not None and self.get(key).version != expected:
            return False
        if command["do"] == "put":
            self.values[key] = Value(command["text"], position)
        else:
            self.values.pop(key, None)
        return True

    def get(self, key: str) -> Value:
        return self.values.get(key, ABSENT)

    def snapshot(self) -> dict[str, Any]:
        """The state as a command for those who do not have it."""
        return {"do": "snapshot", "applied": self.applied, "values": self.values}

    def restore(self, snapshot: dict[str, Any]) -> None:
        self.applied = snapshot["applied"]
        self.values = {key: Value(*value) for key, value in snapshot["values"].items()}


class Replica:
    """One replica of the store. An async context manager: it follows the log for as long as the block lasts."""

    def __init__(self, log: varlog.Log) -> None:
        self._log = log
        self._store = Store()
        self._outcomes: dict[str, bool | None] = {}
        """Of writes through this replica, by the command's id: whether it took effect, once it is applied."""
        self._news: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._following: asyncio.Task[None]

    async def __aenter__(self) -> Replica:
        self._following = asyncio.create_task(self._follow())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._following.cancel()
        await asyncio.gather(self._following, return_exceptions=True)

    # What clients ask for

    async def get(self, key: str) -> Value:
        """The key's present value (linearizable)."""
        await self._catch_up()
        return self._store.get(key)

    async def keys(self) -> list[str]:
        """All keys there are (linearizable)."""
        await self._catch_up()
        return sorted(self._store.values)

    async def put(self, key: str, text: str) -> None:
        """Write, whatever the key has."""
        await self._write({"do": "put", "key": key, "text": text, "expected": None})

    async def compare_and_set(self, key: str, expected: int, text: str) -> bool:
        """Write if the key still has the version `expected` (0: it is not there); whether it was written."""
        return await self._write({"do": "put", "key": key, "text": text, "expected": expected})

    async def delete(self, key: str, expected: int | None = None) -> bool:
        """Delete, if it still has the version `expected`, where one is given; whether that was so."""
        return await self._write({"do": "delete", "key": key, "expected": expected})

    async def snapshot(self) -> int:
        """Put the state into the log and trim what it replaces; returns the position up to which that is."""
        await self._catch_up()
        command = self._store.snapshot()
        await self._log.append(json.dumps(command).encode())
        if command["applied"]:
            await self._log.trim(command["applied"])
        return int(command["applied"])

    # How it comes about

    async def _catch_up(self) -> None:
        """Wait until everything is applied that is in the log now."""
        await self._reach(await self._log.tail())

    async def _reach(self, position: int) -> None:
        """Wait until the store has everything up to a position; if we cannot follow the log any longer, raise why."""
        while self._store.applied < position:
            await asyncio.wait([self._following, self._news], return_when=asyncio.FIRST_COMPLETED)
            if self._following.done():
                self._following.result()

    async def _write(self, command: dict[str, Any]) -> bool:
        command["id"] = name = uuid.uuid4().hex
        self._outcomes[name] = None
        try:
            # The log takes care that the command is in it once. If `append` cannot tell whether it is there it raises
            # `varlog.errors.Unknown`, and there is nothing better to tell our caller.
            appended = await self._log.append(json.dumps(command).encode())
            await self._reach(appended.glsn)
        finally:
            took_effect = self._outcomes.pop(name)
        if took_effect is None:
            raise Skipped("the replica went on from a snapshot that has this write in it; read to see what came of it")
        return took_effect

    async def _follow(self) -> None:
        while True:
            with suppress(Trimmed):  # it was trimmed just now; what is gone is in a snapshot further on
                await self._apply_from(await self._log.first())

    async def _apply_from(self, first: int) -> None:
        """Apply the log, which begins at `first`; if we lack the state up to there, from a snapshot that has it."""
        early: list[tuple[int, dict[str, Any]]] = []
        async for entry in self._log.subscribe(max(first, self._store.applied + 1)):
            command = json.loads(entry.data)
            if self._store.applied == entry.glsn - 1:
                self._apply(entry.glsn, command)
                continue
            early.append((entry.glsn, command))
            if command["do"] == "snapshot" and command["applied"] >= first - 1:
                self._store.restore(command)
                for position, later in early:
                    if position > self._store.applied:
                        self._apply(position, later)
                early.clear()
                self._wake()

    def _apply(self, position: int, command: dict[str, Any]) -> None:
        took_effect = self._store.apply(position, command)
        if command.get("id") in self._outcomes:
            self._outcomes[command["id"]] = took_effect
        self._wake()

    def _wake(self) -> None:
        self._news.set_result(None)
        self._news = asyncio.get_running_loop().create_future()


# A story to try it out with


async def count(replica: Replica, key: str, times: int) -> int:
    """Add to a number again and again, by compare-and-set; how often somebody else was quicker."""
    conflicts = 0
    for _ in range(times):
        while True:
            value = await replica.get(key)
            if await replica.compare_and_set(key, value.version, str(int(value.text or "0") + 1)):
                break
            conflicts += 1
    return conflicts


async def tell(where: str | Path) -> None:
    """Three replicas count together; a snapshot is made, the log is trimmed, and a fourth replica starts from that."""
    async with AsyncExitStack() as stack:

        async def join() -> Replica:
            log = await stack.enter_async_context(varlog.connect(where, topic=TOPIC))
            return await stack.enter_async_context(Replica(log))

        replicas = [await join() for _ in range(3)]
        before = int((await replicas[0].get("counter")).text or "0")
        conflicts = await asyncio.gather(*(count(replica, "counter", 20) for replica in replicas))
        values = [await replica.get("counter") for replica in replicas]
        print(f"three replicas added 20 each: {', '.join(str(int(value.text) - before) for value in values)}")
        print(f"compare-and-set was refused {sum(conflicts)} times, because another replica was quicker")
        position = await replicas[0].snapshot()
        print(f"snapshot: the log is trimmed up to {position}")
        newcomer = await join()
        agree = await newcomer.get("counter") == values[0]
        print(f"a new replica starts from the snapshot and {'agrees' if agree else 'DISAGREES'}")
        assert agree
        assert {value.text for value in values} == {str(before + 60)}


@asynccontextmanager
async def cluster(named: str | None) -> AsyncIterator[str | Path]:
    """The cluster that was named, or one in this process for as long as the block lasts."""
    if named is not None:
        yield named
        return
    with tempfile.TemporaryDirectory() as path:
        async with varlog.embedded(path, topic=TOPIC):
            yield path


async def main(named: str | None) -> None:
    async with cluster(named) as where:
        await tell(where)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="A replicated key-value store on Varlog.")
    parser.add_argument("--cluster", help='a running cluster that has the topic "kv"; without it, one in this process')
    asyncio.run(main(parser.parse_args().cluster))
