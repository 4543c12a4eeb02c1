"""`varlog doctor`: what is wrong, since when, what the manager does about it, and what only a person can do.

Findings that differ in nothing but their subject are told once, for all of them.
"""

from __future__ import annotations

import asyncio
import shutil
import textwrap
from collections import Counter
from collections.abc import Sequence
from typing import Final

import msgspec

from varlog import errors
from varlog.cli.examining import Examination, examine
from varlog.cli.failures import Exit, NotConnected
from varlog.cli.looking import Seen
from varlog.cli.options import USUAL_CLUSTER, Cluster
from varlog.cli.output import Output, duration_of
from varlog.core.findings import Severity, finding
from varlog.core.messages import Finding, Standing, StreamInfo
from varlog.core.world import Memory
from varlog.types import StreamStatus

LOOK_AGAIN: Final = 1.5
"""Without a manager, that something does not move shows by a second look."""
LONGEST_LIST: Final = 12

_STYLES: Final = {Severity.URGENT: "bold red", Severity.DEGRADED: "bold yellow", Severity.NOTE: "bold cyan"}


class Report(msgspec.Struct):
    """What the doctor says."""

    healthy: bool
    findings: list[Finding]
    doing: tuple[str, ...] = ()
    version: int = 0
    manager: str = ""
    leader: str = ""
    term: int = 0
    repositories: int = 0
    repositories_answering: int = 0
    nodes: int = 0
    nodes_answering: int = 0
    streams: int = 0
    streams_running: int = 0


async def doctor(*, at: Cluster = USUAL_CLUSTER) -> int:
    """Say what is wrong."""
    report = await _report(at)
    record = msgspec.structs.asdict(report)
    at.output.record({**record, "findings": [msgspec.structs.asdict(found) for found in report.findings]})
    if not at.json:
        _show(at.output, report)
    return Exit.OK if report.healthy else Exit.NOT_WELL


async def _report(at: Cluster) -> Report:
    memory = Memory()
    try:
        async with at.admin() as admin:
            examination = await examine(at, admin, memory)
            if examination.seen.manager_error:
                await asyncio.sleep(LOOK_AGAIN)
                examination = await examine(at, admin, memory)
    except NotConnected as error:
        if not isinstance(error.why, errors.Unreachable):
            raise
        return Report(False, [_without_metadata(error.why)])
    return _report_of(examination)


def _without_metadata(why: errors.VarlogError) -> Finding:
    """Nothing else can be looked at: where anybody is only the metadata repository says."""
    return finding(
        "metadata-unreachable",
        Severity.URGENT,
        "metadata repository",
        f"{why}. No entry gets a position and nothing can be changed until it is back; what is in the log is safe, and "
        "clients that are connected to storage nodes can still read",
        person="see that vmr runs at that address and what its log says, and start it again; if it does run, check the "
        "address in the cluster file, and the network. If it says that it does not lead, see that a majority of its "
        "store runs: /healthz of every vmr tells how it reaches it. What else is wrong can be seen only then",
    )


def _report_of(examination: Examination) -> Report:
    seen = examination.seen
    standings = [found for found in seen.repositories.values() if isinstance(found, Standing)]
    return Report(
        healthy=not examination.problems,
        findings=list(examination.findings),
        doing=examination.doing,
        version=seen.metadata.version,
        manager=seen.metadata.manager,
        leader=next((found.address for found in standings if found.role == "leading"), ""),
        term=max((found.term for found in standings), default=0),
        repositories=len(seen.repositories),
        repositories_answering=len(standings),
        nodes=len(seen.metadata.nodes),
        nodes_answering=len(seen.infos),
        streams=len(seen.metadata.streams),
        streams_running=sum(_runs(seen, stream) for stream in seen.metadata.streams),
    )


def _runs(seen: Seen, stream: StreamInfo) -> bool:
    """Whether it takes appends; a chain does if all its members are there, in its epoch."""
    if stream.status is not StreamStatus.CHAINED:
        return stream.status is StreamStatus.RUNNING
    serving = {
        snid
        for snid, info in seen.infos.items()
        for replica in info.replicas
        if replica.lsid == stream.lsid and replica.healthy and replica.epoch == stream.epoch
    }
    return stream.epoch > 0 and serving.issuperset(stream.replicas)


# For people


def _show(output: Output, report: Report) -> None:
    page = Page(output)
    page.line(_verdict(report), "bold green" if report.healthy else "bold red")
    if report.version:
        page.line(
            f"{report.nodes_answering} of {report.nodes} storage nodes answer, {report.streams_running} of "
            f"{report.streams} log streams run; manager at {report.manager or 'no address'}, metadata version "
            f"{report.version}"
        )
    if report.repositories > 1:
        page.line(
            f"{report.repositories_answering} of {report.repositories} metadata repositories answer; "
            f"{report.leader or 'none'} leads, in term {report.term}"
        )
    for subject, found in grouped(report.findings):
        page.line()
        since = f", for {duration_of(found.seconds)}" if found.seconds else ""
        page.line(f"{found.severity}: {subject}{since}", _STYLES[Severity(found.severity)])
        page.paragraph("what", found.what)
        page.paragraph("manager", found.doing)
        page.paragraph("you", found.person)
    if report.doing and not any(found.doing for found in report.findings):
        page.line()
        for sentence in report.doing[-LONGEST_LIST:]:
            page.line(f"the manager: {sentence}")


def _verdict(report: Report) -> str:
    counts = Counter(found.severity for found in report.findings)
    listed = ", ".join(f"{counts[severity]} {severity}" for severity in Severity if counts[severity])
    if report.healthy:
        return "all is well" + (f"; {listed}" if listed else "")
    return f"not all is well: {listed}"


def grouped(findings: Sequence[Finding]) -> list[tuple[str, Finding]]:
    """Findings that say the same of several subjects as one, with the subjects in a row."""
    groups: dict[tuple[str, ...], list[Finding]] = {}
    for found in findings:
        groups.setdefault((found.kind, found.severity, found.what, found.doing, found.person), []).append(found)
    return [
        (_subjects([found.subject for found in group]), max(group, key=lambda found: found.seconds))
        for group in groups.values()
    ]


def _subjects(subjects: Sequence[str]) -> str:
    """ "log stream 1", "log streams 1, 2, 3"."""
    if len(subjects) == 1:
        return subjects[0]
    noun = subjects[0].rpartition(" ")[0]
    names = [subject.rpartition(" ")[2] for subject in subjects]
    rest = len(names) - LONGEST_LIST
    return f"{noun}s {', '.join(names[:LONGEST_LIST])}" + (f" and {rest} more" if rest > 0 else "")


class Page:
    """Text for people: on a terminal coloured and no wider than it is, in a pipe as it comes."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._width = shutil.get_terminal_size().columns if output.is_terminal else 0

    def line(self, text: str = "", style: str = "") -> None:
        if not self._output.is_terminal:
            self._output.line(text)
            return
        from rich.console import Console  # noqa: PLC0415  # takes a while to import, and pipes need none of it
        from rich.text import Text  # noqa: PLC0415

        Console(highlight=False, soft_wrap=not self._width).print(Text(text, style))

    def paragraph(self, label: str, text: str) -> None:
        """A text behind a label, if there is one."""
        if not text:
            return
        head = f"  {label + ':':9}"
        if self._width <= len(head) + 20:
            self._output.line(head + text)
            return
        indent = " " * len(head)
        self._output.line(textwrap.fill(text, self._width, initial_indent=head, subsequent_indent=indent))
