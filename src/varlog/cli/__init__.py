"""The command `varlog`.

Each command lives with the part it drives and is named here by its import path only, so that starting the program
costs no more than the command that runs.
"""

from __future__ import annotations

from cyclopts import App

from varlog import __version__

app = App(name="varlog", help="A strongly consistent, totally ordered distributed log.", version=__version__)
app.command("varlog.sim.demo:run_demo", name="demo")
app.command("varlog.sim.command:run_sim", name="sim")


def main() -> None:
    """Entry point of the `varlog` script."""
    app()
