"""The command `varlog demo`: the story, told as it happens.

A metadata repository, a manager and three storage nodes are started as processes of their own, in a directory that is
deleted afterwards. Writers append and readers follow. A storage node is killed with SIGKILL: the log goes on without
it; it is started again, copies what it missed and is a replica again. Then all five processes are killed and started
again. Each time the log comes back by itself, in the manager's own words, and the writers go on.

Then Spark, if it is installed: a job archives the log as it grows and trims what is archived, ends, and the writers
write on; so one part of the log is in the archive only, the other in the live log only. Spark reads both as one table,
from which come the numbers and the pictures. In the end `varlog.demo.proof` judges what the clients saw, and what Spark
read is held against it.

On a terminal a panel below the story shows the processes and the pulse of the log. Elsewhere there are plain lines.
However the demo ends, also by Ctrl-C, the processes it started end with it (see `varlog.processes`).
"""

from __future__ import annotations

import asyncio
import json
import signal
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from cyclopts import Parameter
from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from varlog import errors, limits
from varlog.client.administering import admin
from varlog.core.messages import StreamInfo
from varlog.daemon.service import loop_factory
from varlog.demo.archiving import Archiver
from varlog.demo.clients import Clients
from varlog.demo.proof import judge
from varlog.oneprocess import NODES
from varlog.processes import Daemon, LocalCluster, StartFailed
from varlog.types import StreamStatus

if TYPE_CHECKING:
    from varlog.demo.analysis import Analysis

WRITERS: Final = 4
READERS: Final = 2
STREAMS: Final = 2
SEGMENT_BYTES: Final = 8 * limits.MIB
"""Small, because segments are preallocated and this is a visit only."""
WORK_SECONDS: Final = 3.0
DOWN_SECONDS: Final = 1.5
RECOVERY_SECONDS: Final = 30.0
CALM_SECONDS: Final = 0.002
"""What a writer waits after each entry while Spark is at work beside it."""
SAMPLE_SECONDS: Final = 0.1
BATCHES: Final = 3
"""So often the archiver is waited for, until it has what was in the log a moment before."""
PULSE: Final = 40
"""So many samples are shown."""
BARS: Final = " ▁▂▃▄▅▆▇█"
ROLES: Final = {"vmr": "metadata repository", "vms": "manager", "vsn": "storage node"}


def run_demo(*, output: Annotated[Path, Parameter(metavar="DIR")] = Path("varlog-demo")) -> int:
    """Tell the story; 0 if the proof holds.

    Parameters
    ----------
    output
        Where the pictures go.
    """
    console = Console(highlight=False)
    with (
        tempfile.TemporaryDirectory(prefix="varlog-demo-") as path,
        asyncio.Runner(loop_factory=loop_factory()) as runner,
    ):
        try:
            return runner.run(Demo(Path(path), console, output).run())
        except StartFailed as error:
            console.print(str(error), style="red", markup=False, soft_wrap=True)
            return 1


def _why_no_spark() -> str:
    """What is missing for the part with Spark; nothing if that can be told."""
    if find_spec("pyspark") is None:
        return "Spark is not installed"
    from varlog.spark.java import find_java  # noqa: PLC0415

    try:
        find_java()
    except errors.NoJava as error:
        return str(error)
    return ""


def _is_whole(stream: StreamInfo) -> bool:
    return stream.status is StreamStatus.RUNNING and len(stream.replicas) == NODES


def _table_of(analysis: Analysis) -> Table:
    table = Table()
    table.add_column("kind")
    for title in ("events", "from the archive", "from the live log", "euros"):
        table.add_column(title, justify="right")
    for kind, events, archived, live, euros in analysis.by_kind:
        table.add_row(kind, f"{events:,}", f"{archived:,}", f"{live:,}", f"{euros:,.2f}")
    return table


class Demo:
    """One telling of the story."""

    def __init__(self, path: Path, console: Console, output: Path) -> None:
        self._console = console
        self._output = output
        self._begun = time.monotonic()
        self._cluster = LocalCluster(path, streams=STREAMS, sequencers=0)
        self._cluster.vms.options["log_format"] = "json"
        for node in self._cluster.nodes:
            node.options["segment_bytes"] = str(SEGMENT_BYTES)
        self._clients = Clients(path)
        self._archiver = Archiver(path, path / "archive", path / "archive.log", self._tell_archiver)
        self._analysis: Analysis | None = None
        self._kills: list[tuple[float, str]] = []
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
                    if self._archiver.was_started:
                        self._act("Spark reads archive and live log as one")
                        await self._analyse(tail)
                finally:
                    watching.cancel()
                    await asyncio.gather(watching, return_exceptions=True)
                    await self._archiver.stop()
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
        missing = await asyncio.to_thread(_why_no_spark)
        if missing:
            self._say(f"the story ends here: {missing}; to see it go on: pip install 'varlog[spark]'", "yellow")
        else:
            self._act("Spark archives the log as it grows")
            await self._archive()

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
        self._kills.append((time.time(), daemons[0].name if len(daemons) == 1 else "everything"))
        for daemon in daemons:
            await daemon.ended()
            self._say(f"{daemon.name} (pid {daemon.pid}) is gone", "red")
        self._killed += len(daemons)
        return killed

    async def _start(self, *daemons: Daemon) -> None:
        """They are told of once they run: what the manager does about one that serves may be told before that is known
        here."""
        starting = asyncio.gather(*(daemon.start() for daemon in daemons))
        await asyncio.sleep(0)  # they are launched in this turn
        for daemon in daemons:
            self._say(f"{daemon.name} is started again (pid {daemon.pid})", "green")
        await starting

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

    async def _archive(self) -> None:
        """Archive and trim what there is, as it grows; then let it grow without."""
        self._clients.pause = CALM_SECONDS
        archiver = self._archiver
        await archiver.attach()
        self._say(f"$ {archiver.command}")
        await archiver.start()
        self._say("Spark starts; the writers go on, more slowly beside it")
        for _ in range(BATCHES):
            await archiver.reached(self._clients.greatest)
        await archiver.stop()
        self._say(f"GLSN 1 to {archiver.trimmed:,} are in the archive only; what comes now is in the log only", "green")
        self._clients.pause = 0.0
        await self._work()

    async def _analyse(self, tail: int) -> None:
        from varlog.demo.analysis import BY_KIND, analyse  # noqa: PLC0415  # Spark is large
        from varlog.demo.plots import Mark, draw  # noqa: PLC0415

        self._say("Spark starts, once more")
        begun = time.monotonic()
        end = self._archiver.trimmed + 1
        found = await asyncio.to_thread(analyse, self._cluster.path, archived_end=end, tail=tail)
        seconds = time.monotonic() - begun
        self._say(f"{found.fingerprint.entries:,} rows, {seconds:.1f} seconds with starting Spark", "green")
        self._console.print(BY_KIND.format(archived_end=end), style="dim", markup=False, soft_wrap=True)
        self._console.print(_table_of(found))
        marks = [Mark(moment, f"kill -9 {what}") for moment, what in self._kills]
        for picture in await asyncio.to_thread(draw, found, marks, end, self._output):
            self._say(f"drawn: {picture}")
        self._analysis = found

    async def _is_whole(self) -> None:
        """Wait until every log stream runs on all the replicas it is to have."""
        deadline = time.monotonic() + RECOVERY_SECONDS
        async with admin(self._cluster.path) as operator:
            while not all(_is_whole(stream) for stream in await operator.streams()):
                if time.monotonic() > deadline:
                    raise errors.DeadlineExceeded(f"not all replicas were there within {RECOVERY_SECONDS:g} seconds")
                await asyncio.sleep(SAMPLE_SECONDS)

    async def _goes_on(self, killed: float, sentence: str) -> None:
        """Wait until what is sent from now on is acknowledged; the cluster comes back by itself."""
        gone_on, deadline = self._clients.mark(), time.monotonic() + RECOVERY_SECONDS
        while not gone_on():
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

    def _tell_archiver(self, told: dict[str, Any]) -> None:
        positions = f"GLSN {told['begin']:,} to {told['end'] - 1:,}"
        files = "1 file" if told["files"] == 1 else f"{told['files']} files"
        self._say(f"archived: {positions}, {files}, {told['bytes'] / 1e6:.2f} MB; then trimmed", "blue")

    def _panel(self) -> Group:
        states = Text()
        for daemon in self._cluster.daemons:
            states.append(f" {daemon.name} ", style="black on green" if daemon.alive else "white on red")
            states.append(" ")
        recent = self._pulse[-PULSE:]
        highest = max([1, *recent])
        bars = "".join(BARS[round(count / highest * (len(BARS) - 1))] for count in recent)
        rate = f"{sum(self._pulse[-10:]) / SAMPLE_SECONDS / 10:,.0f} entries/s"
        lines = [Text(), states, Text(f"{bars:>{PULSE}}  {rate}  {self._clients.greatest:,} in all")]
        if self._archiver.was_started:
            done = round((self._archiver.end - 1) / self._clients.greatest * PULSE)
            lines.append(Text(f"{'━' * done:{PULSE}}  archived up to {self._archiver.end - 1:,}"))
        return Group(*lines)

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
        verdicts = list(judge(self._clients.record))
        if self._analysis is not None:
            verdicts.append(self._judge_spark(self._analysis))
        failed = 0
        for claim, findings in verdicts:
            verdict = "[bold red]VIOLATED[/bold red]" if findings else "[green]holds[/green]"
            self._console.print(f"  {verdict}  {claim}", soft_wrap=True)
            for finding in findings:
                self._console.print(f"    {finding}", style="red", markup=False, soft_wrap=True)
            failed += bool(findings)
        self._act("The run")
        self._console.print(self._summary(tail, failed, len(verdicts)))
        if not failed:
            self._console.print("[green]one order, nothing lost, nothing twice[/green]")
        return 1 if failed else 0

    def _judge_spark(self, analysis: Analysis) -> tuple[str, list[str]]:
        from varlog.demo.analysis import fingerprint_of  # noqa: PLC0415

        seen = fingerprint_of(self._clients.record)
        different = [] if analysis.fingerprint == seen else [f"Spark read {analysis.fingerprint}, a reader saw {seen}"]
        return "What Spark read of archive and live log is what the readers saw", different

    def _summary(self, tail: int, failed: int, checks: int) -> Table:
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
            ("archived", f"{self._archiver.end - 1:,}"),
            ("read by each reader", ", ".join(sorted({f"{len(seen):,}" for seen in record.read}))),
            ("processes killed", f"{self._killed}"),
            ("longest wait of a writer", f"{self._longest_pause:.1f} s"),
            ("most entries in a second", f"{self._fastest():,}"),
            ("checks passed", f"{checks - failed} of {checks}"),
            ("seconds", f"{seconds:.1f}"),
        ):
            table.add_row(name, value)
        return table

    def _fastest(self) -> int:
        """The most that was acknowledged within a second."""
        samples = round(1 / SAMPLE_SECONDS)
        return max((sum(self._pulse[begin : begin + samples]) for begin in range(len(self._pulse))), default=0)
