"""`varlog verify`: are all replicas equal, and is every position there exactly once?

What is asked and what follows from the answers is `varlog.core.verifying`; here the questions are carried, progress is
shown and the verdict is told.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
from cyclopts import Parameter

from varlog.cli.failures import Exit
from varlog.cli.looking import Seen, caught_up, metadata_of
from varlog.cli.options import USUAL_CLUSTER, Cluster
from varlog.cli.output import Column, Output, duration_of
from varlog.core.fingerprints import Span
from varlog.core.messages import TopicInfo
from varlog.core.verifying import Answer, Copy, Finding, Question, Verdict, Verification
from varlog.errors import UnknownTopic, VarlogError
from varlog.types import GLSN, Ordering

if TYPE_CHECKING:
    from collections.abc import Callable

    from varlog import Admin

PART_SECONDS: Final = 60.0
"""For one fingerprint: some megabytes from a disk that may be busy, behind others that wait."""
LONGEST_LIST: Final = 5

_CODES: Final = {
    Verdict.CONSISTENT: Exit.OK,
    Verdict.INCOMPLETE: Exit.INCOMPLETE,
    Verdict.INCONSISTENT: Exit.NOT_WELL,
}


class ReplicaVerdict(msgspec.Struct):
    log_stream: int
    node: int
    role: str
    finding: str
    entries: int
    detail: str


class TopicVerdict(msgspec.Struct):
    topic: str
    verdict: str
    first: int
    last: int
    entries: int
    seconds: float
    missing: list[Span]
    twice: list[Span]
    lost: int
    faults: list[str]
    unread: list[int]
    replicas: list[ReplicaVerdict]


async def verify(
    topic: Annotated[str | None, Parameter(metavar="TOPIC", show_default=False)] = None,
    /,
    *,
    at: Cluster = USUAL_CLUSTER,
) -> int:
    """Compare replicas.

    Parameters
    ----------
    topic
        The topic; all of them if it is left out.
    """
    worst = Verdict.CONSISTENT
    async with at.admin() as admin:
        listed = [known for known in (await metadata_of(at, admin)).topics if topic in {None, known.name}]
        if not listed and topic is not None:
            raise UnknownTopic(f"there is no topic {topic!r}")
        tails = {known.tpid: await _tail(at, known) for known in listed if known.ordering is Ordering.SEQUENCER}
        seen = await caught_up(at, admin)
        for known in seen.metadata.topics:
            if topic in {None, known.name}:
                whole = msgspec.structs.replace(known, hwm=tails.get(known.tpid, known.hwm))
                found = await _verify(at, admin, seen, whole)
                worst = max(worst, Verdict(found.verdict), key=list(Verdict).index)
    if not listed:
        at.output.line("there is no topic to verify")
    return _CODES[worst]


async def _tail(at: Cluster, topic: TopicInfo) -> GLSN:
    """Of a topic that a sequencer orders; the metadata repository does not know it. Up to there there are no holes, for
    whoever asks fills those that stay."""
    async with at.connect(topic.name) as log:
        return GLSN(await log.tail(timeout=at.patience))


async def _verify(at: Cluster, admin: Admin, seen: Seen, topic: TopicInfo) -> TopicVerdict:
    began = time.monotonic()
    verification = Verification(seen.metadata, topic, seen.infos, seen.silent)
    with _progress(at.output, topic.name, verification) as moved:
        await _carry(admin, verification, moved)
    found = _verdict_of(topic, verification, time.monotonic() - began)
    at.output.record(found)
    if not at.json:
        _show(at.output, found, verification)
    return found


async def _carry(admin: Admin, verification: Verification, moved: Callable[[], None]) -> None:
    conversation = verification.run()
    try:
        questions = next(conversation)
        while True:
            answers = await asyncio.gather(*(_ask(admin, question) for question in questions))
            questions = conversation.send(answers)
            moved()
    except StopIteration:
        moved()


async def _ask(admin: Admin, question: Question) -> Answer:
    try:
        return await admin.fingerprint(*question, timeout=PART_SECONDS)
    except VarlogError as error:
        return error


def _verdict_of(topic: TopicInfo, verification: Verification, seconds: float) -> TopicVerdict:
    density = verification.density
    return TopicVerdict(
        topic=topic.name,
        verdict=verification.verdict,
        first=topic.trim + 1,
        last=min(topic.hwm, density.judged - 1),
        entries=sum(copy.entries for copy in verification.copies),
        seconds=round(seconds, 3),
        missing=density.missing,
        twice=density.twice,
        lost=density.lost,
        faults=verification.faults,
        unread=list(verification.unread),
        replicas=[
            ReplicaVerdict(copy.lsid, copy.snid, copy.role, copy.finding or Finding.SILENT, copy.entries, copy.detail)
            for copy in verification.copies
        ],
    )


# For people


def _show(output: Output, found: TopicVerdict, verification: Verification) -> None:
    output.table(
        (
            Column("log stream", right=True),
            Column("node", right=True),
            Column("role"),
            Column("entries", right=True),
            Column("verdict"),
            Column("remarks"),
        ),
        [_row(copy) for copy in verification.copies],
    )
    output.line()
    for sentence in _sentences(found, verification):
        output.line(sentence)
    took = f"{found.seconds:.2f} s" if found.seconds < 10 else duration_of(found.seconds)
    output.line(f"topic {found.topic!r} is {found.verdict}; {found.entries} entries were read in {took}")


def _row(copy: Copy) -> Sequence[object]:
    return copy.lsid, copy.snid, copy.role, copy.entries, copy.finding or "", copy.detail


def _sentences(found: TopicVerdict, verification: Verification) -> Iterator[str]:
    """What is wrong with the topic as a whole, or that nothing is."""
    yield from found.faults
    for lsid, glsn in verification.unread.items():
        yield f"log stream {lsid}: nobody can tell what it has from GLSN {glsn} on"
    for what, spans in (("missing", found.missing), ("there twice", found.twice)):
        if spans:
            listed = ", ".join(f"{begin} to {end - 1}" for begin, end in spans[:LONGEST_LIST])
            rest = f" and {len(spans) - LONGEST_LIST} more ranges" if len(spans) > LONGEST_LIST else ""
            yield f"positions that are {what}: GLSN {listed}{rest}"
    if found.lost:
        yield f"{found.lost} positions were declared lost"
    if found.last < found.first:
        yield "there are no entries" if not verification.unread else "no position could be judged"
    elif not found.missing and not found.twice:
        but = ", but for those declared lost" if found.lost else ""
        yield f"every position from GLSN {found.first} to {found.last} is there exactly once{but}"


@contextmanager
def _progress(output: Output, name: str, verification: Verification) -> Iterator[Callable[[], None]]:
    """A bar on standard error, if somebody looks at it; what is yielded is to be called when something was compared."""
    if output.json or not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console  # noqa: PLC0415  # takes a while to import, and pipes need none of it
    from rich.progress import Progress  # noqa: PLC0415

    with Progress(console=Console(stderr=True, highlight=False), transient=True) as progress:
        bar = progress.add_task(f"comparing {name!r}", total=max(1, verification.total))
        yield lambda: progress.update(bar, completed=verification.done)
