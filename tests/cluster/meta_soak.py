"""The scenarios of clusters on etcd, again and again, each round with a seed of its own.

    python -m tests.cluster.meta_soak --rounds 20 --seed 1
    python -m tests.cluster.meta_soak --only pause_leader_for_long

A round is a cluster that goes through two or three of them, chosen by the seed. One etcd of three members serves all
rounds. What a failure shows is told in `tests.cluster.soak`.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from random import Random
from time import monotonic
from typing import Final

from tests.cluster.meta_scenarios import (
    ON_ETCD,
    ON_MACHINES,
    ON_MANAGERS,
    ON_REPOSITORIES,
    WITHOUT_NODE,
    MetaScenario,
    live_through_on_etcd,
)
from tests.cluster.soak import tell
from varlog.etcdserver import EtcdCluster

ALL: Final = {scenario.__name__: scenario for scenario in (*ON_REPOSITORIES, *ON_ETCD, *ON_MACHINES, *ON_MANAGERS)}


async def play(seed: int, only: Sequence[MetaScenario], etcd: EtcdCluster) -> None:
    """One round."""
    rng = Random(seed)
    directory = Path(tempfile.mkdtemp(prefix="varlog-soak-"))
    begun = monotonic()
    scenarios = tuple(only or rng.sample(list(ALL.values()), k=rng.choice((2, 3))))
    repositories, trims = rng.choice((2, 3)), rng.random() < 0.5 and not set(scenarios) & set(WITHOUT_NODE)
    names = ", ".join(scenario.__name__ for scenario in scenarios)
    tell(f"seed {seed}: {names}; {repositories} metadata repositories{', trims' if trims else ''}")
    await live_through_on_etcd(
        scenarios, directory / "cluster", etcd, seed=seed, repositories=repositories, trims=trims
    )
    tell(f": {monotonic() - begun:.1f} s\n")
    shutil.rmtree(directory)


async def soak(rounds: int, first: int, only: Sequence[MetaScenario]) -> None:
    with tempfile.TemporaryDirectory(prefix="varlog-soak-etcd-") as directory:
        async with EtcdCluster(directory) as etcd:
            for seed in range(first, first + rounds):
                try:
                    await play(seed, only, etcd)
                except BaseException:
                    print(f"\nfailed; again with --rounds 1 --seed {seed}", file=sys.stderr)  # noqa: T201
                    raise


def main() -> None:
    """See the module's text."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--only", choices=ALL, nargs="+", default=[], help="play these, instead of what the seed chooses"
    )
    asked = parser.parse_args()
    asyncio.run(soak(asked.rounds, asked.seed, [ALL[name] for name in asked.only]))


if __name__ == "__main__":
    main()
