"""Leader election, or a lock that outlives its holder, with fencing tokens.

    python examples/leader_election.py        # a story: one leader is paused, the next one killed

To play it yourself, start `varlog dev --topic election` in one terminal and contenders in two others:

    python examples/leader_election.py --cluster varlog-data --store store.txt --name alice
    python examples/leader_election.py --cluster varlog-data --store store.txt --name bob

Press Ctrl-Z in the leader's terminal, see the other one take over, and let the first one go on with `fg`.

How it works. Contenders append *acquire*, *renew* and *release* to a topic, and all of them follow it. Who leads is a
function of the log alone (`Lease.apply`), so all come to the same answer, in the same order. Time is the log's, too:
every entry carries the time at which it got its position, by one clock that never goes back. An *acquire* counts if by
that time the lease before it had run out or been released.

A leader renews its lease, and steps down when it hears of another leader or could not renew for as long as the lease
lasts. That alone is not safe, because it may be paused at any moment, also between looking and acting. **The token
makes it safe**: the position of the *acquire* in the log. Positions only grow, so a later leader has a greater token.
A leader shows its token with everything it does to the outside world, here to a `FencedFile`, which refuses one that is
smaller than any it has seen.

What stands in the log before the present leader's *acquire* no longer matters, so every new leader trims it.
"""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import json
import os
import signal
import sys
import tempfile
import time
import uuid
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import varlog
from varlog.errors import Trimmed, VarlogError

TOPIC = "election"
LEASE_SECONDS = 1.0


@dataclass
class Lease:
    """The state machine: who leads, by which token, until when. No I/O, and no clock but the log's."""

    holder: str = ""
    token: int = 0
    expires: int = 0
    """Microseconds, as entries have it."""

    def apply(self, entry: varlog.Entry) -> None:
        """What the entry changes, if anything."""
        command = json.loads(entry.data)
        until = entry.timestamp + round(command["seconds"] * 1_000_000)
        match command["do"]:
            case "acquire" if not self.holder or entry.timestamp >= self.expires:
                self.holder, self.token, self.expires = command["who"], entry.glsn, until
            case "renew" if self.holder and command["token"] == self.token:
                self.expires = until
            case "release" if command["token"] == self.token:
                self.holder = ""


class Contender:
    """Takes part in an election. An async context manager: it follows the log for as long as the block lasts."""

    def __init__(self, log: varlog.Log, name: str, *, seconds: float = LEASE_SECONDS) -> None:
        self.lease = Lease()
        """As far as we have heard."""
        self.seconds = seconds
        self._log = log
        self._who = f"{name}/{uuid.uuid4().hex}"
        self._heard_up_to = 0
        self._leadership: Leadership | None = None
        self._news: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._following: asyncio.Task[None]

    async def __aenter__(self) -> Contender:
        self._following = asyncio.create_task(self._follow())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._leadership is not None:
            await self._leadership.resign()
        self._following.cancel()
        await asyncio.gather(self._following, return_exceptions=True)

    async def lead(self) -> Leadership:
        """Wait until we lead."""
        await self._hear(await self._log.tail())
        while True:
            await self._vacancy()
            begun = time.monotonic()
            position = await self.say("acquire")
            if self.lease.token == position:
                break
        self._leadership = Leadership(self, position, begun + self.seconds)
        if position > 1:
            await self._log.trim(position - 1)
        return self._leadership

    async def say(self, what: str, token: int = 0) -> int:
        """Append to the log, and wait until we know what came of it; returns its position."""
        command = {"do": what, "who": self._who, "token": token, "seconds": self.seconds}
        position = (await self._log.append(json.dumps(command).encode())).glsn
        await self._hear(position)
        return position

    async def _vacancy(self) -> None:
        """Wait until it is worth a try: nobody leads, or the leader has not renewed for as long as its lease lasts. Our
        own clock decides when we try, and the log's whether we succeed."""
        with suppress(TimeoutError):
            while self.lease.holder:
                expires = self.lease.expires
                async with asyncio.timeout(self.seconds):
                    while self.lease.holder and self.lease.expires == expires:
                        await self._hear_more()

    # Following the log

    async def _hear(self, position: int) -> None:
        while self._heard_up_to < position:
            await self._hear_more()

    async def _hear_more(self) -> None:
        """Wait for the next entry; if we cannot follow the log any longer, raise why."""
        await asyncio.wait([self._following, self._news], return_when=asyncio.FIRST_COMPLETED)
        if self._following.done():
            self._following.result()

    async def _follow(self) -> None:
        while True:
            begin = max(self._heard_up_to + 1, await self._log.first())
            with suppress(Trimmed):  # just now: there is a new leader
                async for entry in self._log.subscribe(begin):
                    self._apply(entry)

    def _apply(self, entry: varlog.Entry) -> None:
        if entry.glsn > self._heard_up_to + 1:
            self.lease = Lease()  # the log begins with an entry by which somebody came to lead: nothing else matters
        self.lease.apply(entry)
        self._heard_up_to = entry.glsn
        if self._leadership is not None and self.lease.token != self._leadership.token:
            self._leadership.lost.set()
        self._news.set_result(None)
        self._news = asyncio.get_running_loop().create_future()


class Leadership:
    """A contender leads, by a token. It renews its lease until it resigns or cannot; then `lost` is set."""

    def __init__(self, contender: Contender, token: int, until: float) -> None:
        self.token = token
        self.lost = asyncio.Event()
        """Whether we lead no longer, as far as we know: another one may lead before we hear of it."""
        self._contender = contender
        self._renewing = asyncio.create_task(self._renew(until))

    async def _renew(self, until: float) -> None:
        """`until` is by our own clock, counted from before we asked: the log's clock gives us no less."""
        seconds = self._contender.seconds
        try:
            while not self.lost.is_set():
                async with asyncio.timeout(until - time.monotonic()):
                    await asyncio.sleep(seconds / 3)
                    begun = time.monotonic()
                    await self._contender.say("renew", self.token)
                    until = begun + seconds
        except (TimeoutError, VarlogError):
            pass
        finally:
            self.lost.set()

    async def resign(self) -> None:
        """Let others lead at once."""
        had_lost = self.lost.is_set()
        self._renewing.cancel()
        await asyncio.gather(self._renewing, return_exceptions=True)
        if not had_lost:
            with suppress(VarlogError):  # then it runs out
                await self._contender.say("release", self.token)


class Fenced(Exception):
    """A leader acts on a leadership that has passed."""


class FencedFile:
    """Stands for what leaders change in the outside world: a file of lines, each with the token of who wrote it. It
    takes no token that is smaller than one it has taken before."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, token: int, text: str) -> None:
        with self._path.open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # until it is closed
            greatest = max((seen for seen, _ in self.lines()), default=0)
            if token < greatest:
                raise Fenced(f"token {token} is refused: {greatest} was here")
            file.write(f"{token} {text}\n")

    def lines(self) -> list[tuple[int, str]]:
        """What was written, each with its token."""
        written = (line.partition(" ") for line in self._path.read_text().splitlines()) if self._path.exists() else ()
        return [(int(token), text) for token, _, text in written]


# Contenders as processes, and a story


def work(n: int, pause_at: int | None) -> None:
    """What a leader does between looking whether it leads and writing. Here nobody can tell it to stop."""
    time.sleep(0.02)
    if n == pause_at:
        print("is paused in the midst of its work", flush=True)
        os.kill(os.getpid(), signal.SIGSTOP)


async def contend(where: str, name: str, store: FencedFile, pause_at: int | None) -> None:
    """Lead whenever possible, and write while leading."""
    n = 0
    async with varlog.connect(where, topic=TOPIC) as log, Contender(log, name) as contender:
        while True:
            leadership = await contender.lead()
            print(f"leads with token {leadership.token}", flush=True)
            try:
                while not leadership.lost.is_set():
                    n += 1
                    work(n, pause_at)
                    store.write(leadership.token, name)
                    await asyncio.sleep(0.02)
                print("has lost the lease", flush=True)
            except Fenced as fenced:
                print(f"is fenced: {fenced}", flush=True)


class Process:
    """A contender as a process of its own."""

    @classmethod
    async def start(cls, where: str, store: Path, name: str, *options: str) -> Process:
        process = cls()
        process.name = name
        command = [sys.executable, __file__, "--cluster", where, "--store", str(store), "--name", name, *options]
        process.child = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        return process

    name: str
    child: asyncio.subprocess.Process

    async def says(self, beginning: str) -> str:
        """Repeat what it says, until it says that."""
        assert self.child.stdout is not None
        async with asyncio.timeout(30):
            while line := (await self.child.stdout.readline()).decode().strip():
                print(f"{self.name} {line}")
                if line.startswith(beginning):
                    return line
        raise EOFError(f"{self.name} has ended")

    async def kill(self) -> None:
        with suppress(ProcessLookupError):
            self.child.kill()
        await self.child.wait()


async def written(store: FencedFile, name: str, count: int) -> None:
    """Wait until the store has so many more lines of somebody."""
    wanted = [writer for _, writer in store.lines()].count(name) + count
    while [writer for _, writer in store.lines()].count(name) < wanted:  # noqa: ASYNC110  # by another process
        await asyncio.sleep(0.05)


async def tell() -> None:
    """Alice leads and is paused; Bob takes over; Alice is fenced; Bob is killed; Alice leads again."""
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        where, store = str(directory / "cluster"), FencedFile(directory / "store")
        await stack.enter_async_context(varlog.embedded(where, topic=TOPIC))
        alice = await Process.start(where, directory / "store", "alice", "--pause-at", "20")
        stack.push_async_callback(alice.kill)
        await alice.says("leads")
        bob = await Process.start(where, directory / "store", "bob")
        stack.push_async_callback(bob.kill)
        await alice.says("is paused")
        await bob.says("leads")
        await written(store, "bob", 10)
        print("alice goes on, and does not know")
        alice.child.send_signal(signal.SIGCONT)
        await alice.says("is fenced")
        print("bob is killed")
        await bob.kill()
        await alice.says("leads")
        await written(store, "alice", 10)
        await alice.kill()
        lines = store.lines()
    tokens = [token for token, _ in lines]
    reigns = sorted(set(lines))
    assert tokens == sorted(tokens), "a leader wrote after its successor"
    assert len(reigns) == len(set(tokens)), "two led with one token"
    print(f"the store has {len(lines)} lines of {len(reigns)} leaders, one after another:")
    for token, name in reigns:
        print(f"  token {token}: {name}, {lines.count((token, name))} lines")


def main() -> None:
    parser = argparse.ArgumentParser(description="Leader election with fencing tokens on Varlog.")
    parser.add_argument("--cluster", help='contend on a running cluster that has the topic "election"')
    parser.add_argument("--store", type=Path, default=Path("store.txt"), help="the file that leaders write to")
    parser.add_argument("--name", default="somebody")
    parser.add_argument("--pause-at", type=int, metavar="N", help="stop, as by Ctrl-Z, amid writing the Nth line")
    asked = parser.parse_args()
    with suppress(KeyboardInterrupt):
        if asked.cluster is None:
            asyncio.run(tell())
        else:
            asyncio.run(contend(asked.cluster, asked.name, FencedFile(asked.store), asked.pause_at))


if __name__ == "__main__":
    main()
