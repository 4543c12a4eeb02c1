"""cut-1000: how many cuts a second the metadata repository makes when everybody has something to report.

A thousand log streams with three replicas each, on three storage nodes. In every round each node reports an advance of
all its replicas; the repository counts three thousand lines, decides one cut of a thousand ranges, writes it to its
journal, and sends a commit to each node. The journal lies on a disk in memory, because the figure is the core's, and
the time to build the reports is the nodes' and not counted.

`cut-growth` is what a cut costs per log stream with a thousand of them, over what it costs with a hundred: one is
linear growth, and the target allows no more. Each cut of the thousand is followed by ten cuts of the hundred, so that
whatever disturbs the machine for longer than a few milliseconds disturbs both alike.
"""

from __future__ import annotations

from pathlib import Path
from statistics import median
from time import perf_counter

from benchmarks.harness import Row
from varlog.core.address import Address, node_address
from varlog.core.branches import ignore
from varlog.core.messages import (
    Commit,
    CreateStream,
    CreateTopic,
    Decided,
    Message,
    RegisterManager,
    RegisterNode,
    RegisterStream,
    Report,
    ReportLine,
    RunStream,
    UnsealStream,
)
from varlog.core.metarepo import MetadataRepository
from varlog.metarepo.journal import Journal
from varlog.sim.disk import SimDisk
from varlog.types import ClusterID, Epoch, LogStreamID, StorageNodeID, TopicID, Version

NODES = tuple(map(StorageNodeID, (1, 2, 3)))
TOPIC = TopicID(1)
RUNNING = Epoch(2)
ENTRIES = 10
CUTS_PER_ROUND = 50
ROUNDS = 21
MANY, FEW = 1000, 100


class Cluster:
    """A metadata repository with so many running log streams, and the mouths of its storage nodes."""

    def __init__(self, streams: int) -> None:
        self._journal = Journal.open(SimDisk(), "/metadata", ClusterID(1))
        self._repository = MetadataRepository(self._journal, self._hear, ignore)
        self._streams = range(1, streams + 1)
        self._decided: list[Decided] = []
        self._committed: dict[Address, Version] = {}
        self._sequence = 0
        self._end = 1
        self._repository.campaign(0.0)
        self._settle()
        self._set_up()

    def _hear(self, address: Address, message: Message) -> None:
        if isinstance(message, Commit):
            self._committed[address] = message.version
        elif isinstance(message, Decided):
            self._decided.append(message)

    def _settle(self) -> None:
        journal = self._journal
        while (group := journal.take()) is not None:
            journal.write(group)
            journal.sync(group)
            journal.finish(group)

    def _ask(self, message: Message) -> None:
        self._repository.on_message("bench", message, 0.0)
        self._settle()
        assert self._decided.pop().code == 0

    def _set_up(self) -> None:
        self._ask(RegisterManager(0, "bench:1"))
        for snid in NODES:
            self._ask(RegisterNode(0, snid))
        self._ask(CreateTopic(0, "log", len(NODES), 2))
        for number in self._streams:
            lsid = LogStreamID(number)
            self._ask(CreateStream(0, TOPIC))
            self._ask(RegisterStream(0, lsid, NODES))
            self._ask(UnsealStream(0, lsid, Epoch(RUNNING - 1), NODES, NODES[0]))
            self._ask(RunStream(0, lsid, RUNNING))
        self.cut()

    def _reports(self) -> list[Report]:
        """Every replica has stored more, and has its earlier commits on disk."""
        version = self._repository.state.version
        committed, self._end = self._end, self._end + ENTRIES
        self._sequence += 1
        lines: list[ReportLine] = [(number, RUNNING, version, committed, self._end, True) for number in self._streams]
        return [Report(snid, 1, self._sequence, version, tuple(lines), full=False, ask=False) for snid in NODES]

    def cut(self) -> float:
        """Seconds from the reports' arrival to the commits' leaving."""
        reports = self._reports()
        before = self._repository.state.version
        begin = perf_counter()
        for report in reports:
            self._repository.on_message(node_address(report.snid), report, 0.0)
        self._settle()
        elapsed = perf_counter() - begin
        assert self._repository.state.version == before + 1
        assert self._repository.state.streams[LogStreamID(1)].llsn_end == self._end
        return elapsed

    def check(self) -> None:
        """Every node was told of every cut."""
        assert set(self._committed.values()) == {self._repository.state.version}


def take_turns(many: Cluster, few: Cluster) -> tuple[float, float]:
    """Seconds for some cuts of the many, and for cutting as many log streams a few at a time."""
    seconds = same = 0.0
    for _ in range(CUTS_PER_ROUND):
        seconds += many.cut()
        same += sum(few.cut() for _ in range(MANY // FEW))
    many.check()
    few.check()
    return seconds, same


def measure(_: Path) -> list[Row]:
    many, few = Cluster(MANY), Cluster(FEW)
    take_turns(many, few)
    rounds = [take_turns(many, few) for _ in range(ROUNDS)]
    return [
        Row("cut-1000", CUTS_PER_ROUND / median(seconds for seconds, _ in rounds), "cuts/s", op=">=", target=200),
        Row("cut-growth", median(seconds / same for seconds, same in rounds), "x", op="<=", target=1.0),
    ]
