"""Daemons as real processes, as `varlog.processes` starts them, and what only tests do with them.

They are started through `launch`, which can put another file layer under them; they can be made to hang, and what they
say can be waited for.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from tests.cluster.waiting import until
from varlog import processes
from varlog.processes import StartFailed

__all__ = ["Daemon", "StartFailed"]

ROOT: Final = Path(__file__).resolve().parents[2]
"""Where `launch` can be imported from."""


class Daemon(processes.Daemon):
    """See the module's text."""

    def __init__(
        self, name: str, program: str, directory: Path, options: Mapping[str, str], layer: Sequence[str] = ()
    ) -> None:
        super().__init__(name, program, directory, options)
        self.cwd = ROOT
        self.layer = layer
        """What `launch` is told of files."""

    def command(self) -> Sequence[str]:
        return [sys.executable, "-m", "tests.cluster.launch", "--parent", str(os.getpid()), *self.layer, self.program]

    def pause(self) -> None:
        """It hangs: nothing of it runs, but its connections stay."""
        self.send(signal.SIGSTOP)

    def resume(self) -> None:
        self.send(signal.SIGCONT)

    async def says(self, text: str) -> None:
        """Wait until its log has that text."""

        async def has_said() -> bool:
            return text in self.log.read_text(errors="replace")

        await until(has_said)
