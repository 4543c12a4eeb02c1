"""A process asks for the descriptors it may have, and leaves most of them to others than readers."""

from __future__ import annotations

import subprocess
import sys

import pytest

ASKS = """
import resource, sys
from varlog import descriptors

soft, hard = int(sys.argv[1]), int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
descriptors.raise_limit()
print(*resource.getrlimit(resource.RLIMIT_NOFILE), descriptors.for_segments())
"""


@pytest.mark.parametrize(
    ("soft", "hard", "found"),
    [(64, 256, (256, 256, 64)), (256, 256, (256, 256, 64)), (32, 40, (40, 40, 16))],
)
def test_it_asks_for_all_there_are_and_keeps_a_part_for_segments(soft: int, hard: int, found: tuple[int, ...]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ASKS, str(soft), str(hard)], capture_output=True, text=True, check=True
    )  # fmt: skip
    assert tuple(map(int, done.stdout.split())) == found


EMBEDS = """
import asyncio, resource, sys
import varlog

async def main():
    async with varlog.embedded(sys.argv[1]) as log:
        await log.append(b"x")
        print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])

resource.setrlimit(resource.RLIMIT_NOFILE, (256, 512))
asyncio.run(main())
"""


def test_a_cluster_in_one_process_asks_too(tmp_path: object) -> None:
    done = subprocess.run([sys.executable, "-c", EMBEDS, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout == "512\n"
