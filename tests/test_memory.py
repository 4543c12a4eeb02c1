"""Memory that was given back is there for the next one, without the kernel."""

from __future__ import annotations

import subprocess
import sys

from varlog import limits, memory

TAKES = """
import resource, sys
from varlog import memory

assert memory.keep()
def take():
    pieces = [bytearray(int(sys.argv[1])) for _ in range(4)]
take()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    take()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(size: int) -> int:
    """Of 20 times 4 pieces of as many bytes each."""
    done = subprocess.run([sys.executable, "-c", TAKES, str(size)], capture_output=True, text=True, check=True)
    return int(done.stdout)


def test_pieces_that_come_and_go_are_not_asked_of_the_kernel_again() -> None:
    pages = limits.SCAN_REPLY_BYTES // 4096
    assert faults(limits.SCAN_REPLY_BYTES) < pages


def test_what_is_very_large_goes_back_to_the_kernel() -> None:
    pages = 2 * memory.LARGEST_BYTES // 4096
    assert faults(2 * memory.LARGEST_BYTES) > pages
