"""A daemon that ends with the process that started it, however that ends: for demonstrations, benchmarks and tests.

    python -m varlog.daemon.child PARENT vsn start ...

PARENT is the process id of whoever starts it; what follows is what a user types.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import Final

from varlog.daemon import commands

_PR_SET_PDEATHSIG: Final = 1


def end_with(parent: int) -> None:
    """Let the kernel kill this process when its parent ends."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit("the parent has ended already")


def main() -> int:
    """See the module's text."""
    parent, program, *arguments = sys.argv[1:]
    end_with(int(parent))
    run = {"vsn": commands.vsn, "vmr": commands.vmr, "vms": commands.vms, "vsq": commands.vsq}[program]
    return run(arguments)


if __name__ == "__main__":
    sys.exit(main())
