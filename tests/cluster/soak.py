"""The scenarios again and again, each round with a seed of its own.

    python -m tests.cluster.soak --rounds 20 --seed 1

A round that fails prints its seed, the violations, the end of the daemons' logs and where the history is kept; running
with that seed and one round repeats the same scenario with the same choices, though not with the same timing.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import tempfile
from pathlib import Path
from random import Random
from time import monotonic

from tests.cluster.cluster import Files
from tests.cluster.inside import SCENARIOS, run_inside
from tests.cluster.repairs import ON_PROXIED_REPAIR, ON_REPAIR, WITH_SPARE
from tests.cluster.scenarios import ON_DIRECT, ON_PROXIES, live_through


def play(seed: int) -> None:
    """One round."""
    rng = Random(seed)
    directory = Path(tempfile.mkdtemp(prefix="varlog-soak-"))
    begun = monotonic()
    if rng.random() < 0.1:
        name = rng.choice(list(SCENARIOS))
        tell(f"seed {seed}: {name}")
        run_inside(name, directory / "cluster")
    else:
        play_here(seed, rng, directory / "cluster")
    tell(f": {monotonic() - begun:.1f} s\n")
    shutil.rmtree(directory)


def play_here(seed: int, rng: Random, directory: Path) -> None:
    """One that needs no machine of its own."""
    proxied, spares, managers = rng.random() < 0.4, rng.choice((0, 0, 1)), rng.choice((1, 1, 2))
    scenario = rng.choice(
        [*ON_PROXIES, *ON_PROXIED_REPAIR] if proxied else [*ON_DIRECT, *ON_REPAIR, *(WITH_SPARE * spares)]
    )
    files = rng.choice((Files.PLAIN, Files.FORGETFUL))
    trims = rng.random() < 0.5
    what = f"{files.value} files, {spares} spares, {managers} managers{', trims' if trims else ''}"
    tell(f"seed {seed}: {scenario.__name__}, {what}")
    asyncio.run(
        live_through(
            scenario,
            directory,
            seed=seed,
            files=files,
            proxied=proxied,
            trims=trims,
            spares=spares,
            managers=managers,
        )
    )


def tell(text: str) -> None:
    print(text, end="", flush=True)  # noqa: T201


def main() -> None:
    """See the module's text."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    for seed in range(asked.seed, asked.seed + asked.rounds):
        try:
            play(seed)
        except BaseException:
            print(f"\nfailed; again with --rounds 1 --seed {seed}", file=sys.stderr)  # noqa: T201
            raise


if __name__ == "__main__":
    main()
