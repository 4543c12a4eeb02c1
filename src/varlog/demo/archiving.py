"""The archiver of the demo: `varlog pipeline archive --follow --trim` as a process of its own, as a user starts it.

What it tells, as JSON objects, is read as it comes. It ends with the demo, however that ends, and its Spark with it.
The archive is made and attached to the topic before: the job trims nothing that readers would not find there.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from varlog import errors
from varlog.client.administering import admin
from varlog.oneprocess import CID

START_SECONDS: Final = 120.0
"""For Spark to start, and the first part of the log to be archived, on a machine with much else to do."""
STOP_SECONDS: Final = 60.0
ROWS_PER_FILE: Final = 50_000
EVERY_SECONDS: Final = 2

_BOUND: Final = """
import sys
from varlog.cli import main
from varlog.daemon.child import end_with
end_with(int(sys.argv.pop(1)))
sys.exit(main())
"""


class Archiver:
    """See the module's text."""

    def __init__(self, cluster: Path, archive: Path, log: Path, on_progress: Callable[[dict[str, Any]], None]) -> None:
        self.archive = archive
        self.end = 1
        """The position behind what is archived."""
        self.trimmed = 0
        """The position up to which the log is trimmed."""
        self._cluster = cluster
        self._log = log
        self._on_progress = on_progress
        self._process: asyncio.subprocess.Process | None = None
        self._listening: asyncio.Task[None] | None = None
        self._told = asyncio.Event()

    @property
    def was_started(self) -> bool:
        return self._process is not None

    @property
    def command(self) -> str:
        """As a user types it."""
        return f"varlog pipeline archive --follow --every {EVERY_SECONDS} --trim {self.archive.name}"

    async def attach(self) -> None:
        """Make the archive, with nothing in it, and have readers look there."""
        from varlog.archive import Archive  # noqa: PLC0415  # it needs what is installed with Spark only

        async with admin(self._cluster) as operator:
            topic = (await operator.topics())[0]
            make = partial(Archive.create, cid=CID, topic=topic.name, tpid=topic.tpid, first=1)
            await asyncio.to_thread(make, str(self.archive))
            await operator.attach_archive(topic.name, str(self.archive))

    async def start(self) -> None:
        with self._log.open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", _BOUND, str(os.getpid())),
                *("pipeline", "archive", "--cluster", str(self._cluster), "--json", "--trim", "--follow"),
                *("--every", str(EVERY_SECONDS), "--rows-per-file", str(ROWS_PER_FILE), str(self.archive)),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
            )
        self._listening = asyncio.create_task(self._listen(self._process))

    async def reached(self, position: int) -> None:
        """Wait until it has archived so far."""
        async with asyncio.timeout(START_SECONDS):
            while self.end <= position:
                await self._told.wait()
                self._told.clear()
                if self._listening is None or self._listening.done():
                    raise errors.QueryFailed(f"the archiver has ended and said:\n{self._log.read_text()}")

    async def stop(self) -> None:
        """Let it finish what it is at."""
        if self._process is None or self._listening is None:
            return
        if self._process.returncode is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(self._process.wait(), STOP_SECONDS)
        except TimeoutError:
            self._process.kill()
        await self._listening

    async def _listen(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            told = json.loads(line)
            self.end = told["end"]
            if told["event"] == "committed":
                self._on_progress(told)
            else:
                self.trimmed = told["log_first"] - 1
            self._told.set()
        self._told.set()
