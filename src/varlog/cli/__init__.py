"""The command `varlog`.

Each command lives with the part it drives and is named here by its import path only, so that starting the program
costs no more than the command that runs. What it does is told here for the same reason: the list of commands is shown
without loading any of them. Its options are told where they are defined.
"""

from __future__ import annotations

from typing import Final

from cyclopts import App

from varlog import __version__

DEMO: Final = """Watch a simulated cluster append, lose power, and recover; then see its history checked.

Exit code 0: every check passed. 1: something was violated.
"""
SIM: Final = """Run simulated clusters under faults and check everything they did.

Each seed is one run: a cluster of some shape, clients that append, read, subscribe, peek and trim, and a nemesis that
breaks network, disks, clocks and processes. A seed always takes the same course, so a failure can be replayed with
--seed.

Exit code 0: nothing was violated. 1: something was, or --require-coverage found a zero.
"""

app = App(name="varlog", help="A strongly consistent, totally ordered distributed log.", version=__version__)
app.command("varlog.sim.demo:run_demo", name="demo", help=DEMO)
app.command("varlog.sim.command:run_sim", name="sim", help=SIM)


def main() -> None:
    """Entry point of the `varlog` script."""
    app()
