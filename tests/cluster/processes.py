"""Daemons as real processes: start, kill, stop for a while, end, start again where they were.

`Daemon` is one of them. Its ports are the operating system's choice at the first start, and the same ones afterwards,
so that those who know its address find it again. What it says goes to a log file beside its data.

What always holds: every wait has a deadline; signals go to the process by its id; and a daemon ends with the test's own
process, however that ends (see `launch`).
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from tests.cluster.waiting import SECONDS, until

ROOT: Final = Path(__file__).resolve().parents[2]
LINES: Final = 40
"""How much of a log is shown."""


class StartFailed(Exception):
    """A daemon ended instead of serving."""

    def __init__(self, name: str, code: int, said: str) -> None:
        super().__init__(f"{name} ended with exit code {code} and said:\n{said}")
        self.code = code
        self.said = said


class Daemon:
    """See the module's text."""

    def __init__(
        self, name: str, program: str, directory: Path, options: Mapping[str, str], layer: Sequence[str] = ()
    ) -> None:
        self.name = name
        self.log = directory / f"{name}.log"
        self.options = {"listen": "127.0.0.1:0", "http": "127.0.0.1:0", "log_format": "console", **options}
        """By key of the config file; those that hold at the next start."""
        self.flags: list[str] = []
        """What options cannot say."""
        self.layer = layer
        """What `launch` is told of files."""
        self._program = program
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """Where it listens, from the first start on."""
        return self.options["listen"]

    @property
    def http(self) -> str:
        return self.options["http"]

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

    async def start(self) -> None:
        """Start it and wait until it serves; `StartFailed` if it ends instead."""
        assert not self.alive, f"{self.name} is running"
        begin = self.log.stat().st_size if self.log.exists() else 0
        told = (await self._launch()).split()
        if not told:
            raise StartFailed(self.name, await self.ended(), self.log.read_bytes()[begin:].decode())
        self.options["listen"] = told[0]
        if len(told) > 1:
            self.options["http"] = told[1]

    async def _launch(self) -> str:
        """What it says when it is ready; nothing if it is never."""
        readable, writable = os.pipe()
        self._process = self._spawn(writable)
        os.close(writable)
        reader = asyncio.StreamReader()
        pipe = os.fdopen(readable, "rb")
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), pipe
        )
        try:
            return (await asyncio.wait_for(reader.read(), SECONDS)).decode()
        finally:
            transport.close()

    def _spawn(self, ready_fd: int) -> subprocess.Popen[bytes]:
        flags = [word for key, value in self.options.items() for word in (f"--{key.replace('_', '-')}", value)]
        command = [sys.executable, "-m", "tests.cluster.launch", "--parent", str(os.getpid()), *self.layer]
        command += [self._program, "start", *flags, *self.flags, "--ready-fd", str(ready_fd)]
        with self.log.open("ab") as log:
            return subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=[ready_fd]
            )

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

    async def stop(self) -> int:
        """SIGTERM, as its supervisor does; the exit code."""
        self.send(signal.SIGTERM)
        return await self.ended()

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

    def said(self) -> str:
        """The end of its log."""
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return "\n".join(lines[-LINES:])
