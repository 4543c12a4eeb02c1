"""Starts a daemon for the rig: the production command line, on the file layer that a test wants.

    python -m tests.cluster.launch --parent PID [--forgetful SCRATCH | --fillable MARKER] [--as-user] vsn start ...

What follows the program's name is what its users type, and goes to the code that their command runs. The process ends
with the one that started it, however that ends, so that no test run leaves daemons behind. `--as-user` gives up the
rights of root, where a test is about what may not be done.
"""

from __future__ import annotations

import argparse
import os
import sys
from functools import partial
from importlib import import_module

from tests.cluster.fillable import FillableFileSystem
from tests.cluster.forgetful import ForgetfulFileSystem
from varlog.daemon import commands
from varlog.daemon.child import end_with
from varlog.storage.files import FileSystem

NOBODY = 65534
PROGRAMS = {
    "vsn": (commands.VSN, "varlog.storagenode.daemon"),
    "vmr": (commands.VMR, "varlog.metarepo.daemon"),
    "vms": (commands.VMS, "varlog.manager.daemon"),
}


def become_nobody() -> None:
    """Only root can; anybody else is nobody already."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)


def main() -> int:
    """See the module's text."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--forgetful")
    parser.add_argument("--fillable")
    parser.add_argument("--as-user", action="store_true")
    parser.add_argument("program", choices=PROGRAMS)
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    asked = parser.parse_args()
    end_with(asked.parent)
    daemon, module = PROGRAMS[asked.program]
    fs: FileSystem | None = None
    if asked.forgetful is not None:
        fs = ForgetfulFileSystem(asked.forgetful)
    elif asked.fillable is not None:
        fs = FillableFileSystem(asked.fillable)
    run = import_module(module).main
    daemon = daemon._replace(main=run if fs is None else partial(run, fs=fs))
    if asked.as_user:
        become_nobody()
    return commands._command(daemon, asked.arguments)


if __name__ == "__main__":
    sys.exit(main())
