"""What the processes of the cluster cost, as the kernel counts it: CPU, memory, bytes written, and time to start."""

from __future__ import annotations

import asyncio
import compileall
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from time import perf_counter

import varlog
from varlog.processes import Daemon, LocalCluster

CLIENT = "client"
OTHERS = "others"


def cpu_seconds(pid: int) -> float:
    """What a process has used of CPUs since it began, in all its threads; to the nanosecond, not to the tick."""
    return time.clock_gettime((~pid << 3) | 2)  # as clock_getcpuclockid(3) makes it


class CpuUse:
    """Who uses how much CPU from the making of this on. `OTHERS` is whatever else the machine was busy with: the
    kernel's own threads, and processes that have nothing to do with the cluster and disturb what is measured."""

    def __init__(self, daemons: Sequence[Daemon]) -> None:
        self._pids = {daemon.name: daemon.pid for daemon in daemons}
        self._then = self._now()
        self._busy = _busy_seconds()
        self._began = perf_counter()

    def _now(self) -> dict[str, float]:
        return {CLIENT: time.process_time(), **{name: cpu_seconds(pid) for name, pid in self._pids.items()}}

    def shares(self) -> dict[str, float]:
        """Cores, by name."""
        elapsed = perf_counter() - self._began
        shares = {name: (used - self._then[name]) / elapsed for name, used in self._now().items()}
        shares[OTHERS] = max(0.0, (_busy_seconds() - self._busy) / elapsed - sum(shares.values()))
        return shares


def _busy_seconds() -> float:
    """Of all CPUs, since the machine began."""
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(
        int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    )
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


@contextmanager
def placed(*, together: bool) -> Iterator[None]:
    """Meanwhile this process has a core to itself and those it started have another one, or all have the same.

    Where the kernel puts two that wait for each other depends on what they did before, and a frame there and back takes
    twice as long between two cores: what is compared has to be placed alike."""
    allowed = os.sched_getaffinity(0)
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    try:
        for pid in map(int, children):
            os.sched_setaffinity(pid, {max(allowed)})
        os.sched_setaffinity(0, {max(allowed) if together else min(allowed)})
        yield
    finally:
        for pid in (0, *map(int, children)):
            os.sched_setaffinity(pid, allowed)


def in_words(shares: Mapping[str, float], rate: float) -> str:
    """What each does for one of so many things a second, which does not depend on what else the machine does; and how
    many cores were busy."""
    used = {name: share for name, share in shares.items() if name != OTHERS}
    each = ", ".join(f"{name} {share / rate * 1e6:.1f}" for name, share in used.items())
    ours = sum(used.values())
    return f"CPU per batch {ours / rate * 1e6:.1f} us ({each}), {ours:.2f} cores; others {shares[OTHERS]:.2f} cores"


def status_bytes(pid: int, key: str) -> int:
    """A size from /proc/PID/status, such as VmHWM."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == key:
            return int(value.split()[0]) * 1024
    raise KeyError(key)


def written_bytes(pid: int) -> int:
    """What a process has sent towards the disk."""
    fields = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
    return int(fields["write_bytes"])


async def idle_cores(daemons: Sequence[Daemon], seconds: float) -> dict[str, float]:
    """How much CPU daemons use while nobody asks anything of them."""
    use = CpuUse(daemons)
    await asyncio.sleep(seconds)
    shares = use.shares()
    return {daemon.name: shares[daemon.name] for daemon in daemons}


class InstalledDaemon(Daemon):
    """Started by the command that users type."""

    def command(self) -> Sequence[str]:
        return [str(Path(sys.executable).with_name(self.program))]


def python_seconds() -> float:
    """How long Python itself takes to start and end."""
    began = perf_counter()
    subprocess.run([sys.executable, "-c", "pass"], check=True)
    return perf_counter() - began


async def restart(cluster: LocalCluster, rounds: int, *, kill: bool) -> tuple[float, float]:
    """Median seconds from exec until the first storage node serves, and of Python's own start, in turns. It was killed
    before, or stopped in good order."""
    compileall.compile_dir(varlog.__path__[0], quiet=2)  # as pip leaves a package that it installs
    node = cluster.nodes[0]
    again = InstalledDaemon(node.name, node.program, cluster.path, node.options)
    await node.kill()
    serving, python = [], []
    try:
        for _ in range(rounds + 1):
            python.append(python_seconds())
            began = perf_counter()
            await again.start()
            serving.append(perf_counter() - began)
            await (again.kill() if kill else again.stop())
    finally:
        if again.alive:
            await again.kill()
        await node.start()
    return median(serving[1:]), median(python[1:])
