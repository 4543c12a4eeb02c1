"""Minutes of counting on an etcd whose members are killed, frozen and started again at random.

    python -m tests.metarepo.etcd_soak --seconds 60 --seed 1

Each of several stores counts up a key of its own (`Counter`): whatever becomes of members and answers, every number is
written once and told once, in order. In the end all members run, and every count goes on.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections import Counter as Tally
from contextlib import AsyncExitStack

from tests.cluster.waiting import pause
from tests.metarepo.etcds import Counter, opened
from varlog.etcdserver import EtcdCluster

STORES = 4
LONGEST_FAULT = 4.0
LONGEST_PEACE = 2.0
CALM_SECONDS = 20.0
"""In which every count has to go on again."""


async def break_at_random(etcd: EtcdCluster, rng: random.Random, until: float, done: Tally[str]) -> None:
    """One fault after another: of one member, or of two at once, which is the majority."""
    while time.monotonic() < until:
        await pause(rng.uniform(0, LONGEST_PEACE))
        members = rng.sample(etcd.members, rng.choice((1, 1, 2)))
        frozen = [member for member in members if rng.random() < 0.5]
        killed = [member for member in members if member not in frozen]
        for member in frozen:
            member.pause()
        await asyncio.gather(*(member.kill() for member in killed))
        done[f"{len(killed)} killed, {len(frozen)} frozen"] += 1
        await pause(rng.uniform(0, LONGEST_FAULT))
        for member in frozen:
            member.resume()
        await asyncio.gather(*(member.start() for member in killed))


async def count(counter: Counter, stop: asyncio.Event) -> None:
    while not stop.is_set():
        await counter.up()


async def soak(seconds: float, seed: int) -> str:
    rng = random.Random(seed)
    done: Tally[str] = Tally()
    with tempfile.TemporaryDirectory(prefix="etcd ") as directory:
        async with AsyncExitStack() as stack:
            etcd = await stack.enter_async_context(EtcdCluster(directory))
            counters = [await Counter.at(await stack.enter_async_context(opened(etcd))) for _ in range(STORES)]
            stop = asyncio.Event()
            counting = [asyncio.ensure_future(count(counter, stop)) for counter in counters]
            await break_at_random(etcd, rng, time.monotonic() + seconds, done)
            stop.set()
            await asyncio.wait_for(asyncio.gather(*counting), CALM_SECONDS)
            for counter in counters:
                await counter.up()
                await counter.check()
    counts = ", ".join(f"{counter.value} ({counter.unknown} unknown)" for counter in counters)
    return f"seed {seed}: {dict(done)}; counted {counts}: every number once"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    sys.stdout.write(asyncio.run(soak(options.seconds, options.seed)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
