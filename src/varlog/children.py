"""Child: a process of one's own that is started, watched, signalled and started again.

What daemons (`varlog.processes`) and members of an etcd (`varlog.etcdserver`) have in common. What always holds: every
wait has a deadline, and signals go to a process by its id. Linux only.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import weakref
from pathlib import Path
from typing import Final

SECONDS: Final = 30.0
"""How long a process may take to start, or to end."""
LINES: Final = 40
"""How much of a log is shown."""


class Child:
    """See the module's text. What starts it sets `_process`; what it says goes to `log`."""

    def __init__(self, name: str, log: Path) -> None:
        self.name = name
        self.log = log
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def was_started(self) -> bool:
        return self._process is not None

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self.name} was never started"
        return self._process.pid

    def send(self, number: signal.Signals) -> None:
        """A signal; to one that has ended, nothing."""
        if self.alive:
            os.kill(self.pid, number)

    async def ended(self, seconds: float = SECONDS) -> int:
        """Wait for its end; the exit code."""
        process = self._process
        assert process is not None, f"{self.name} was never started"
        if process.poll() is None:
            loop = asyncio.get_running_loop()
            end = asyncio.Event()
            watched = os.pidfd_open(process.pid)
            loop.add_reader(watched, end.set)
            try:
                await asyncio.wait_for(end.wait(), seconds)
            finally:
                loop.remove_reader(watched)
                os.close(watched)
        return process.wait()

    async def kill(self) -> None:
        """SIGKILL, and it is gone."""
        self.send(signal.SIGKILL)
        await self.ended()

    def said(self) -> str:
        """The end of its log."""
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return "\n".join(lines[-LINES:])


def hold_port(owner: object, host: str, port: int) -> int:
    """Take this port, or any if it is 0, for as long as the owner is there. It stays its owner's also while nobody
    listens: by a socket that is bound and does not listen, beside which the owner's process can bind its own. Otherwise
    any outgoing connection might get it."""
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        holder.bind((host, port))
    except OSError:
        holder.close()
        raise
    bound: int = holder.getsockname()[1]
    weakref.finalize(owner, os.close, holder.detach())
    return bound
