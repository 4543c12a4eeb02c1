"""The command `varlog demo`: a simulated cluster at work, told as it happens.

Three storage nodes, two log streams on three replicas each, a metadata repository, a manager, and clients that append
and read. One node loses power in the middle of its work, and what it had not synced is gone; it comes back. Then all
machines lose power at once. Each time the manager brings the log streams back, in its own words, and in the end the
checkers judge everything that clients were told and replicas hold.

The story is fixed, its course is the seed's: numbers, sentences and findings are read off the run, none is made up
beforehand. What is simulated are the network, the disks and the clocks; the rest is the code that production runs.
"""

from __future__ import annotations

import inspect
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Annotated, Final

from cyclopts import Parameter, validators
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from varlog.core.messages import StreamInfo
from varlog.sim.checkers import CHECKERS, check_all
from varlog.sim.clients import TOPIC, WriterClient
from varlog.sim.cluster import GRACE_SECONDS, Cluster
from varlog.sim.disk import DiskFault
from varlog.sim.evidence import Evidence, LivenessPhase
from varlog.sim.history import Kind, Outcome
from varlog.sim.nodes import StorageNodeHost
from varlog.sim.shape import Shape
from varlog.sim.world import World
from varlog.types import ReplicaState

SHAPE: Final = Shape(
    nodes=3, streams=2, replication_factor=3, writers=0, retrying_writers=4, readers=1, subscribers=1, trimmers=0
)
WORK_SECONDS: Final = 3.0
DOWN_SECONDS: Final = 2.0
RECOVERY_SECONDS: Final = 30.0
EXCERPT: Final = 4
"""As many batches are shown on either side of a power loss."""

_UNSYNCED: Final = (DiskFault.LOST_WRITE, DiskFault.TORN_WRITE, DiskFault.ZEROED_WRITE)


def run_demo(*, seed: Annotated[int, Parameter(validator=validators.Number(gte=0))] = 1) -> int:
    """Tell the story.

    Parameters
    ----------
    seed
        Another seed is another course of the same story; the same seed is the same course.
    """
    started = time.monotonic()
    demo = Demo(seed, Console(highlight=False))
    demo.play()
    return demo.judge(started)


class Demo:
    """One telling of the story."""

    def __init__(self, seed: int, console: Console) -> None:
        self._console = console
        self._seed = seed
        self._world = World(seed)
        self._cluster = Cluster(self._world, SHAPE)
        self._power_losses = 0
        self._next_step = 0
        self._told: set[str] = set()
        self._tails_at_loss: list[int] = []
        self._healed = 0.0

    def play(self) -> None:
        """Everything that happens, up to the end of the run."""
        self._console.print(f"[bold]A simulated Varlog cluster at work[/bold] (seed {self._seed})")
        self._console.print("Times are simulated seconds. An end is the first position that is not included.")
        self._set_up()
        self._one_node_loses_power()
        self._all_machines_lose_power()
        self._go_on()

    # The acts

    def _set_up(self) -> None:
        cluster = self._cluster
        self._act("A cluster is set up")
        cluster.set_up()
        self._told.update(sentence for _, sentence in cluster.manager.steps)
        shape = cluster.shape
        self._say(f"{shape.nodes} storage nodes, a metadata repository and a manager are started")
        for stream in self._streams():
            backups = ", ".join(str(snid) for snid in stream.replicas if snid != stream.primary)
            self._say(f"log stream {stream.lsid} runs: primary on node {stream.primary}, backups on nodes {backups}")
        self._act("Clients append and read")
        cluster.start_clients()
        self._work()

    def _one_node_loses_power(self) -> None:
        node = self._cluster.nodes[1]
        self._act(f"Node {node.snid} loses power")
        self._run_until(lambda: _has_unsynced(node), 1.0)
        for executor in node.node.executors:
            self._say(
                f"node {node.snid} has stored log stream {executor.lsid} to the end {executor.end}, synced it to "
                f"{executor.durable_end}"
            )
        self._cut_power([node.process.name])
        acknowledged = self._acknowledged()
        self._run(DOWN_SECONDS)
        waiting = sum(op.outcome is Outcome.PENDING for op in self._cluster.history.of(Kind.APPEND))
        self._say(
            f"{DOWN_SECONDS:.0f} seconds later {self._acknowledged() - acknowledged} more appends are acknowledged, "
            f"{waiting} wait: a commit needs every replica"
        )
        self._recover([node.process.name])
        self._work()

    def _all_machines_lose_power(self) -> None:
        cluster = self._cluster
        self._act("All machines lose power at once")
        self._run_until(lambda: all(_has_unsynced_commit(node) for node in cluster.nodes), 1.0)
        names = cluster.servers
        self._cut_power(names)
        self._run(DOWN_SECONDS)
        self._recover(names)

    def _go_on(self) -> None:
        self._healed = self._world.now
        self._work()
        self._cluster.stop_clients()
        self._run(GRACE_SECONDS)

    # What they are made of

    def _work(self) -> None:
        acknowledged = self._acknowledged()
        self._run(WORK_SECONDS)
        self._say(
            f"in {WORK_SECONDS:.0f} seconds {self._acknowledged() - acknowledged} appends are acknowledged; "
            f"the log ends at GLSN {self._tail()}"
        )

    def _cut_power(self, names: Sequence[str]) -> None:
        self._tell_steps()
        self._told.clear()
        self._tails_at_loss.append(self._tail())
        before = self._disk_faults()
        for name in names:
            self._cluster.power_loss(name)
        self._power_losses += len(names)
        lost = self._disk_faults() - before
        counts = ", ".join(f"{fault.value}: {lost[fault]}" for fault in _UNSYNCED if lost[fault])
        self._say(f"{', '.join(names)} without power ({counts})", style="red")

    def _recover(self, names: Sequence[str]) -> None:
        cluster = self._cluster
        for name in names:
            cluster.restart(name)
        self._say(f"{', '.join(names)} started again", style="green")
        nodes = [node for node in cluster.nodes if node.process.name in names]
        found = [(node.snid, executor.info()) for node in nodes for executor in node.node.executors]
        self._run_until(lambda: cluster.leader is not None, RECOVERY_SECONDS)
        decided = {stream.lsid: stream.llsn_end for stream in self._streams()}
        for snid, replica in found:
            end = decided.get(replica.lsid, replica.committed_end)
            lacking = f"; it fetches the cuts up to {end}" if replica.committed_end < end else ""
            self._say(
                f"node {snid} finds log stream {replica.lsid} {replica.state.name}, stored to the end "
                f"{replica.durable_end}, committed to {replica.committed_end}{lacking}"
            )
        self._run_until(self._runs, RECOVERY_SECONDS)
        self._say("all log streams run again, on all replicas" if self._runs() else "not all log streams run again")

    def _runs(self) -> bool:
        """Every log stream runs, in the eyes of the metadata repository and in those of every replica."""
        replicas = (executor for node in self._cluster.nodes for executor in node.node.executors)
        return self._cluster.is_running and all(replica.state is ReplicaState.RUNNING for replica in replicas)

    # What can be seen

    def _streams(self) -> Sequence[StreamInfo]:
        leader = self._cluster.leader
        return leader.repository.metadata(0).streams if leader is not None else ()

    def _tail(self) -> int:
        leader = self._cluster.leader
        return leader.repository.state.topics[TOPIC].hwm if leader is not None else 0

    def _acknowledged(self) -> int:
        return sum(op.outcome is Outcome.OK for op in self._cluster.history.of(Kind.APPEND))

    def _disk_faults(self) -> Counter[DiskFault]:
        total: Counter[DiskFault] = Counter()
        for name in self._cluster.servers:
            total += self._cluster.disk(name).faults
        return total

    def _run(self, seconds: float) -> None:
        self._world.run(self._world.now + seconds)

    def _run_until(self, condition: Callable[[], bool], seconds: float) -> None:
        if not condition():
            self._world.run(self._world.now + seconds, stop=condition)

    # Telling

    def _act(self, title: str) -> None:
        self._console.print(f"\n[bold]{title}[/bold]")

    def _say(self, sentence: str, *, style: str = "") -> None:
        self._tell_steps()
        self._line(self._world.now, sentence, style)

    def _tell_steps(self) -> None:
        """What the manager has decided meanwhile. It repeats a request until it sees the effect; that is told once."""
        steps = self._cluster.manager.steps
        for moment, sentence in steps[self._next_step :]:
            if sentence not in self._told:
                self._told.add(sentence)
                self._line(moment, f"manager: {sentence}", "cyan")
        self._next_step = len(steps)

    def _line(self, moment: float, sentence: str, style: str) -> None:
        self._console.print(f"{moment:8.3f}  {escape(sentence)}", style=style, soft_wrap=True)

    # The end

    def judge(self, started: float) -> int:
        """Show the log, run the checks, sum up; the exit code."""
        cluster = self._cluster
        writers = [client.process.name for client in cluster.clients if isinstance(client, WriterClient)]
        evidence = cluster.evidence(LivenessPhase(self._healed, self._world.now, GRACE_SECONDS, writers))
        violations = check_all(evidence)
        violations += [("invariant", f"{name} stopped: {why}") for name, why in cluster.stops()]
        self._act("The log around the power losses, a line for each batch")
        self._console.print(self._excerpt(evidence))
        self._act("The checks")
        failed = self._tell_checks(violations)
        self._act("The run")
        self._console.print(self._summary(evidence, failed, time.monotonic() - started))
        if not violations:
            self._console.print("[green]nothing was violated[/green]")
        return 1 if violations else 0

    def _excerpt(self, evidence: Evidence) -> Table:
        table = Table("GLSN", "log stream", "LLSN", "epoch", "entries")
        stored = {batch.glsn: (replica.lsid, batch) for replica in evidence.replicas for batch in replica.batches}
        glsns = sorted(stored)
        for tail in self._tails_at_loss:
            middle = bisect_right(glsns, tail)
            table.add_section()
            for glsn in glsns[max(0, middle - EXCERPT) : middle + EXCERPT]:
                lsid, batch = stored[glsn]
                count = len(batch.payloads)
                entries = " ".join(payload.decode().rstrip(".") for payload in batch.payloads[:2])
                table.add_row(
                    _range(glsn, count),
                    str(lsid),
                    _range(batch.llsn, count),
                    str(batch.epoch),
                    f"{entries} ..." if count > 2 else entries,
                )
        return table

    def _tell_checks(self, violations: Sequence[tuple[str, str]]) -> int:
        """How many checkers found something, inline assertions counting as one."""
        names = {name for name, _ in violations}
        for name, check in CHECKERS.items():
            meaning = (inspect.getdoc(inspect.getmodule(check)) or "").partition("\n")[0]
            verdict = "[bold red]VIOLATED[/bold red]" if name in names else "[green]passed[/green]"
            self._console.print(f"  {verdict}  {name}: {escape(meaning)}", soft_wrap=True)
        for name, message in violations:
            self._console.print(f"  {name}: {message}", style="red", markup=False, soft_wrap=True)
        return len(names)

    def _summary(self, evidence: Evidence, failed: int, seconds: float) -> Table:
        history = evidence.history
        appends = Counter(op.outcome for op in history.of(Kind.APPEND))
        reads = [op for op in history.of(Kind.READ, Kind.DELIVERY) if op.outcome is Outcome.OK]
        lost = self._disk_faults()
        table = Table(show_header=False)
        table.add_column()
        table.add_column(justify="right")
        table.add_row("appends acknowledged", f"{appends[Outcome.OK]:,}")
        table.add_row("appends rejected", f"{appends[Outcome.REJECTED]:,}")
        table.add_row("appends with unknown outcome", f"{appends[Outcome.UNKNOWN] + appends[Outcome.PENDING]:,}")
        table.add_row("entries in the log", f"{evidence.hwm(TOPIC):,}")
        table.add_row("entries read", f"{sum(len(op.payloads) for op in reads):,}")
        table.add_row("machines that lost power", f"{self._power_losses:,}")
        table.add_row("unsynced writes lost or damaged", f"{sum(lost[fault] for fault in _UNSYNCED):,}")
        table.add_row("checks passed", f"{max(0, len(CHECKERS) - failed)} of {len(CHECKERS)}")
        table.add_row("simulated seconds", f"{self._world.now:.1f}")
        table.add_row("seconds", f"{seconds:.1f}")
        return table


def _range(first: int, count: int) -> str:
    return str(first) if count == 1 else f"{first}-{first + count - 1}"


def _has_unsynced(node: StorageNodeHost) -> bool:
    """The node holds a batch and a commit that it has not synced."""
    executors = node.node.executors
    return any(e.end > e.durable_end for e in executors) and _has_unsynced_commit(node)


def _has_unsynced_commit(node: StorageNodeHost) -> bool:
    return any(e.version > e.durable_version for e in node.node.executors)
