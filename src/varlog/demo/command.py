"""The command `varlog demo`: the story, told as it happens.

A metadata repository, a manager and three storage nodes are started as processes of their own, in a directory that is
deleted afterwards. Writers append and readers follow. A storage node is killed with SIGKILL: the log goes on without
it; it is started again, copies what it missed and is a replica again. Then all five processes are killed and started
again. Each time the log comes back by itself, in the manager's own words, and the writers go on. In the end
`varlog.demo.proof` judges what the clients saw.

On a terminal a panel below the story shows the processes and the pulse of the log. Elsewhere there are plain lines.
However the demo ends, also by Ctrl-C, the processes it started end with it (see `varlog.processes`).
"""

from __future__ import annotations

import asyncio
import json
import signal
import tempfile
import time
from pathlib import Path
from typing import Final

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from varlog import errors, limits
from varlog.client.administering import admin
from varlog.core.messages import StreamInfo
from varlog.daemon.service import loop_factory
from varlog.demo.clients import Clients
from varlog.demo.proof import CHECKS, judge
from varlog.oneprocess import NODES
from varlog.processes import Daemon, LocalCluster, StartFailed
from varlog.types import StreamStatus

WRITERS: Final = 4
READERS: Final = 2
STREAMS: Final = 2
SEGMENT_BYTES: Final = 8 * limits.MIB
"""Small, because segments are preallocated and this is a visit only."""
WORK_SECONDS: Final = 3.0
DOWN_SECONDS: Final = 1.5
RECOVERY_SECONDS: Final = 30.0
SAMPLE_SECONDS: Final = 0.1
PULSE: Final = 40
"""So many samples are shown."""
BARS: Final = " ▁▂▃▄▅▆▇█"
ROLES: Final = {"vmr": "metadata repository", "vms": "manager", "vsn": "storage node"}


def run_demo() -> int:
    """Tell the story; 0 if the proof holds."""
    console = Console(highlight=False)
    with (
        tempfile.TemporaryDirectory(prefix="varlog-demo-") as path,
        asyncio.Runner(loop_factory=loop_factory()) as runner,
    ):
        try:
            return runner.run(Demo(Path(path), console).run())
        except StartFailed as error:
            console.print(str(error), style="red", markup=False, soft_wrap=True)
            return 1


def _is_whole(stream: StreamInfo) -> bool:
    return stream.status is StreamStatus.RUNNING and len(stream.replicas) == NODES


class Demo:
    """One telling of the story."""

    def __init__(self, path: Path, console: Console) -> None:
        self._console = console
        self._begun = time.monotonic()
        self._cluster = LocalCluster(path, streams=STREAMS)
        self._cluster.vms.options["log_format"] = "json"
        for node in self._cluster.nodes:
            node.options["segment_bytes"] = str(SEGMENT_BYTES)
        self._clients = Clients(path)
        self._killed = 0
        self._longest_pause = 0.0
        self._pulse: list[int] = []
        self._acknowledged_at_sample = 0
        self._heard = 0
        """So much of the manager's log has been told."""

    async def run(self) -> int:
        """The whole of it; the exit code."""
        async with self._cluster:
            self._introduce()
            with Live(console=self._console, auto_refresh=False, transient=True) as live:
                watching = asyncio.create_task(self._watch(live))
                try:
                    await self._play()
                    tail = await self._clients.stop()
                finally:
                    watching.cancel()
                    await asyncio.gather(watching, return_exceptions=True)
                    await self._clients.cancel()
        return self._conclude(tail)

    async def _play(self) -> None:
        self._act(f"{WRITERS} writers append, {READERS} readers follow")
        self._clients.start(writers=WRITERS, readers=READERS)
        await self._work()
        node = self._cluster.nodes[1]
        self._act(f"kill -9 {node.name}")
        await self._go_on_without(node)
        await self._come_back(node)
        self._act("kill -9 everything")
        await self._kill_and_restart(*self._cluster.daemons)

    # What it is made of

    async def _work(self) -> None:
        before = self._clients.acknowledged
        await asyncio.sleep(WORK_SECONDS)
        done = self._clients.acknowledged - before
        self._say(f"{done:,} entries in {WORK_SECONDS:g} seconds; the log ends at {self._clients.greatest:,}")

    async def _kill(self, *daemons: Daemon) -> float:
        """Returns when."""
        for daemon in daemons:
            daemon.send(signal.SIGKILL)
        killed = time.monotonic()
        for daemon in daemons:
            await daemon.ended()
            self._say(f"{daemon.name} (pid {daemon.pid}) is gone", "red")
        self._killed += len(daemons)
        return killed

    async def _start(self, *daemons: Daemon) -> None:
        await asyncio.gather(*(daemon.start() for daemon in daemons))
        for daemon in daemons:
            self._say(f"{daemon.name} is started again (pid {daemon.pid})", "green")

    async def _go_on_without(self, node: Daemon) -> None:
        killed = await self._kill(node)
        await self._goes_on(killed, f"the log goes on without {node.name}")
        await self._work()

    async def _come_back(self, node: Daemon) -> None:
        await self._start(node)
        begun = time.monotonic()
        await self._is_whole()
        seconds = time.monotonic() - begun
        self._say(f"{node.name} has copied what it missed and is a replica again, after {seconds:.1f} seconds", "green")
        await self._work()

    async def _kill_and_restart(self, *daemons: Daemon) -> None:
        killed = await self._kill(*daemons)
        before = self._clients.acknowledged
        await asyncio.sleep(DOWN_SECONDS)
        done = self._clients.acknowledged - before
        self._say(f"{DOWN_SECONDS:g} seconds later {done:,} more entries are acknowledged; the writers wait")
        await self._start(*daemons)
        await self._goes_on(killed, "the log goes on")
        await self._work()

    async def _is_whole(self) -> None:
        """Wait until every log stream runs on all the replicas it is to have."""
        deadline = time.monotonic() + RECOVERY_SECONDS
        async with admin(self._cluster.path) as operator:
            while not all(_is_whole(stream) for stream in await operator.streams()):
                if time.monotonic() > deadline:
                    raise errors.DeadlineExceeded(f"not all replicas were there within {RECOVERY_SECONDS:g} seconds")
                await asyncio.sleep(SAMPLE_SECONDS)

    async def _goes_on(self, killed: float, sentence: str) -> None:
        """Wait for the next acknowledgement; the cluster comes back by itself."""
        before, deadline = self._clients.acknowledged, time.monotonic() + RECOVERY_SECONDS
        while self._clients.acknowledged == before:
            if time.monotonic() > deadline:
                raise errors.DeadlineExceeded(f"the log did not go on within {RECOVERY_SECONDS:g} seconds")
            await asyncio.sleep(0.01)
        pause = time.monotonic() - killed
        self._longest_pause = max(self._longest_pause, pause)
        self._say(f"{sentence}, {pause:.1f} seconds after the kill", "green")

    # Watching

    async def _watch(self, live: Live) -> None:
        """Tell what the manager does, and keep the panel up to date."""
        while True:
            self._tell_manager()
            self._pulse.append(self._clients.acknowledged - self._acknowledged_at_sample)
            self._acknowledged_at_sample = self._clients.acknowledged
            if self._console.is_terminal:
                live.update(self._panel(), refresh=True)
            await asyncio.sleep(SAMPLE_SECONDS)

    def _tell_manager(self) -> None:
        with self._cluster.vms.log.open("rb") as file:
            file.seek(self._heard)
            for line in file:
                if not line.endswith(b"\n"):
                    break  # the rest of it is yet to come
                self._heard += len(line)
                event = json.loads(line)["event"]
                if event.startswith("log stream ") and " is to " not in event:  # not every step of it
                    self._line(f"manager: {event}", "cyan")

    def _panel(self) -> Group:
        states = Text()
        for daemon in self._cluster.daemons:
            states.append(f" {daemon.name} ", style="black on green" if daemon.alive else "white on red")
            states.append(" ")
        recent = self._pulse[-PULSE:]
        highest = max([1, *recent])
        bars = "".join(BARS[round(count / highest * (len(BARS) - 1))] for count in recent)
        rate = f"{sum(self._pulse[-10:]) / SAMPLE_SECONDS / 10:,.0f} entries/s"
        return Group(Text(), states, Text(f"{bars:>{PULSE}}  {rate}  {self._clients.greatest:,} in all"))

    # Telling

    def _introduce(self) -> None:
        self._heard = self._cluster.vms.log.stat().st_size
        self._act(f"A cluster of {len(self._cluster.daemons)} processes")
        for daemon in self._cluster.daemons:
            role = ROLES[daemon.program]
            self._say(f"{daemon.name:4}  pid {daemon.pid}  {daemon.address}  {role}")
        self._say(f"topic 'log': {STREAMS} log streams, each with a replica on every storage node")

    def _act(self, title: str) -> None:
        self._console.print(f"\n[bold]{escape(title)}[/bold]")

    def _say(self, sentence: str, style: str = "") -> None:
        self._tell_manager()
        self._line(sentence, style)

    def _line(self, sentence: str, style: str) -> None:
        moment = time.monotonic() - self._begun
        self._console.print(f"{moment:6.1f}  {escape(sentence)}", style=style, soft_wrap=True)

    def _conclude(self, tail: int) -> int:
        self._act("The proof")
        failed = 0
        for claim, findings in judge(self._clients.record):
            verdict = "[bold red]VIOLATED[/bold red]" if findings else "[green]holds[/green]"
            self._console.print(f"  {verdict}  {claim}", soft_wrap=True)
            for finding in findings:
                self._console.print(f"    {finding}", style="red", markup=False, soft_wrap=True)
            failed += bool(findings)
        self._act("The run")
        self._console.print(self._summary(tail, failed))
        if not failed:
            self._console.print("[green]one order, nothing lost, nothing twice[/green]")
        return 1 if failed else 0

    def _summary(self, tail: int, failed: int) -> Table:
        record = self._clients.record
        seconds = time.monotonic() - self._begun
        unknown = sum(not sent.position for all_sent in record.sent.values() for sent in all_sent)
        table = Table(show_header=False)
        table.add_column()
        table.add_column(justify="right")
        for name, value in (
            ("entries in the log", f"{tail:,}"),
            ("acknowledged", f"{self._clients.acknowledged:,}"),
            ("not acknowledged", f"{unknown:,}"),
            ("read by each reader", ", ".join(sorted({f"{len(seen):,}" for seen in record.read}))),
            ("processes killed", f"{self._killed}"),
            ("longest wait of a writer", f"{self._longest_pause:.1f} s"),
            ("most entries in a second", f"{self._fastest():,}"),
            ("checks passed", f"{len(CHECKS) - failed} of {len(CHECKS)}"),
            ("seconds", f"{seconds:.1f}"),
        ):
            table.add_row(name, value)
        return table

    def _fastest(self) -> int:
        """The most that was acknowledged within a second."""
        samples = round(1 / SAMPLE_SECONDS)
        return max((sum(self._pulse[begin : begin + samples]) for begin in range(len(self._pulse))), default=0)
