"""The report of an audit: one HTML file that needs nothing else, with the verdict, the proofs, the findings and plots.

The file is written whole or not at all. Nothing in it is loaded from elsewhere: plots are SVG inside the page. Whatever
comes from the cluster, such as names and what nodes say, is escaped.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from varlog.cli.output import duration_of, size_of
from varlog.core.verifying import Verdict
from varlog.pipeline.audit_findings import ARCHIVE, TOPIC, Fault, Finding
from varlog.types import Ordering

if TYPE_CHECKING:
    from varlog.pipeline.audit_result import AuditResult, Bucket, Pictured

GOOD: Final = "#2c7a4b"
BAD: Final = "#c0392b"
UNSURE: Final = "#b9770e"
HELD: Final = "#4a7fb5"
LINES: Final = ("#4a7fb5", "#d98032", "#5a9e6f", "#8e6bb0", "#a8655c", "#7f7f7f", "#b5a642", "#3fa7b5")
LANES: Final = 60
"""So many copies are drawn; of more those with the most findings."""

_COLOURS: Final = {Verdict.CONSISTENT: GOOD, Verdict.INCOMPLETE: UNSURE, Verdict.INCONSISTENT: BAD}
_STYLE: Final = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 1100px; padding: 0 1em; color: #222; }
h1 { font-size: 1.5em; } h2 { font-size: 1.15em; margin-top: 2em; }
.verdict { color: white; border-radius: 4px; padding: .15em .6em; }
table { border-collapse: collapse; width: 100%; } th { text-align: left; border-bottom: 2px solid #999; }
td, th { padding: .25em .8em .25em 0; vertical-align: top; } td { border-bottom: 1px solid #ddd; }
.number { text-align: right; font-variant-numeric: tabular-nums; } th.number { text-align: right; }
figure { margin: 1em 0; } figcaption { color: #555; } svg { max-width: 100%; height: auto; }
.proof { list-style: none; padding: 0; } .mark { display: inline-block; width: 8.5em; font-weight: 600; }
"""

COMMIT: Final = Ordering.COMMIT.label
_REPLICA: Final = frozenset(Fault) - {Fault.UNREAD, Fault.CHAIN, Fault.LLSN}


def proofs(result: AuditResult) -> list[tuple[str, str, str]]:
    """What an audit proves, each with how it stands (proven, open, not so) and why."""
    found = result.findings
    archive = [finding for finding in found if finding.copy == ARCHIVE]
    nodes = [finding for finding in found if finding.copy > ARCHIVE]
    of_topic = [finding for finding in found if finding.copy == TOPIC and finding.fault is not Fault.TRANSACTION]
    llsns = [f for f in nodes if f.fault is Fault.LLSN]
    claims = [
        ("Every position is there exactly once", of_topic + [f for f in archive if f.fault is Fault.GAP], found),
        ("LLSNs have no hole" if result.ordering == COMMIT else "LLSNs are GLSNs", llsns, nodes),
        ("Replicas are equal", [f for f in nodes if f.fault in _REPLICA], nodes),
    ]
    if result.ordering == COMMIT:
        claims.append(("The chain of commits is whole", [f for f in nodes if f.fault is Fault.CHAIN], nodes))
    if result.transactions:
        claims.append(("Transactions are whole", [f for f in found if f.fault is Fault.TRANSACTION], nodes))
    if result.archive:
        wrong = [f for f in archive if f.fault is not Fault.UNREAD]
        claims.append(("The archive equals the log", wrong, archive))
    told = []
    for claim, wrong, concerned in claims:
        unread = sum(finding.fault is Fault.UNREAD for finding in concerned)
        if wrong:
            told.append((claim, "not so", _count(len(wrong), "finding")))
        elif unread:
            told.append((claim, "open", f"{_count(unread, 'part')} could not be read"))
        else:
            told.append((claim, "proven", ""))
    return told


def write(path: Path, result: AuditResult, pictured: Pictured) -> None:
    """Write the report."""
    page = render(result, pictured)
    draft = path.with_name(f".{path.name}.new")
    draft.write_text(page, encoding="utf-8")
    os.replace(draft, path)


def render(result: AuditResult, pictured: Pictured) -> str:
    """The page."""
    title = f"Audit of topic {escape(repr(result.topic))}"
    made = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    body = [
        f'<h1>{title} <span class="verdict" style="background:{_COLOURS[result.verdict]}">{result.verdict}</span></h1>',
        f"<p>{escape(_summary(result))} Made {made}.</p>",
        "<h2>What was to be proven</h2>",
        _proofs(result),
        "<h2>Findings</h2>",
        _findings(result),
        "<h2>Copies</h2>",
        _copies(result),
        "<h2>Along the log</h2>",
        *(_figure(*drawn) for drawn in plots(result, pictured)),
    ]
    head = f'<meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style>'
    return f'<!doctype html>\n<html lang="en"><head>{head}</head><body>\n' + "\n".join(body) + "\n</body></html>\n"


def _summary(result: AuditResult) -> str:
    if result.last < result.first:
        log = "The log holds no position"
    else:
        log = f"The log holds GLSN {result.first} to {result.last}"
    archive = f", the archive {result.archive} GLSN {result.archive_first} to {result.archive_last}"
    read = f"{result.entries:,} entries ({size_of(result.bytes)}) were read"
    how = f"from {_count(len(result.copies), 'copy', 'copies')} by {_count(result.tasks, 'task')}"
    took = duration_of(result.seconds)
    return f"{log}{archive if result.archive else ''}. {read} {how} in {took}."


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def _proofs(result: AuditResult) -> str:
    lines = []
    for claim, stands, why in proofs(result):
        colour = {"proven": GOOD, "open": UNSURE}.get(stands, BAD)
        rest = f": {escape(why)}" if why else ""
        lines.append(f'<li><span class="mark" style="color:{colour}">{stands}</span>{claim}{rest}</li>')
    return f'<ul class="proof">{"".join(lines)}</ul>'


def _table(heads: Sequence[tuple[str, bool]], rows: Sequence[Sequence[object]]) -> str:
    """Heads are given with whether their column holds numbers."""
    classes = [' class="number"' if number else "" for _, number in heads]
    head = "".join(f"<th{mark}>{title}</th>" for mark, (title, _) in zip(classes, heads, strict=True))
    lines = [
        "".join(f"<td{mark}>{escape(str(cell))}</td>" for mark, cell in zip(classes, row, strict=True)) for row in rows
    ]
    return f"<table><tr>{head}</tr>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def _findings(result: AuditResult) -> str:
    if not result.findings:
        return "<p>None.</p>"
    heads = [("where", False), ("log stream", True), ("positions", False), ("fault", False), ("what", False)]
    rows = [
        (finding.where, finding.log_stream or "", finding.positions, finding.fault.value, finding.detail)
        for finding in result.findings
    ]
    more = f"<p>And {result.more_findings:,} more.</p>" if result.more_findings else ""
    return _table(heads, rows) + more


def _copies(result: AuditResult) -> str:
    heads = [("copy", False), ("role", False), ("log stream", True), ("from GLSN", True), ("to GLSN", True)]
    heads += [("entries", True), ("bytes", True), ("commits", True), ("cells that differ", True), ("remarks", False)]
    rows = [
        (
            "archive" if copy.copy == ARCHIVE else f"node {copy.copy}",
            copy.role,
            copy.log_stream,
            copy.first,
            copy.last,
            f"{copy.rows:,}",
            size_of(copy.bytes),
            f"{copy.commits:,}" if copy.copy != ARCHIVE else "",
            copy.differing or "",
            copy.remark,
        )
        for copy in result.copies
    ]
    return _table(heads, rows)


def _figure(caption: str, svg: str) -> str:
    return f"<figure>{svg}<figcaption>{escape(caption)}</figcaption></figure>"


# Plots


def plots(result: AuditResult, pictured: Pictured) -> Iterator[tuple[str, str]]:
    """Captions and SVGs."""
    if not pictured.buckets:
        return
    yield (
        "What each copy holds. Red: it differs from the others, or has a fault. Yellow: it could not be read.",
        _svg(lambda axes: _draw_copies(axes, result, pictured), 0.9 + 0.28 * min(LANES, len(_lanes(result)))),
    )
    yield "Entries of each log stream along the log.", _svg(lambda axes: _draw_streams(axes, pictured), 3.0)
    if len(pictured.times) > 1:
        yield "When positions were given.", _svg(lambda axes: _draw_times(axes, pictured.times), 2.6)


def _svg(draw: Any, height: float) -> str:
    from matplotlib import rc_context  # noqa: PLC0415  # takes a while to import
    from matplotlib.figure import Figure  # noqa: PLC0415

    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "varlog", "font.size": 9, "font.family": "sans-serif"}):
        figure = Figure(figsize=(10, height), layout="constrained")
        axes = figure.subplots()
        axes.spines[["top", "right"]].set_visible(False)
        draw(axes)
        written = io.StringIO()
        figure.savefig(written, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    svg = written.getvalue()
    return svg[svg.index("<svg") :]


def _lanes(result: AuditResult) -> list[tuple[int, int]]:
    """The copies that are drawn, as (copy, log stream)."""
    wrong = {(finding.copy, finding.log_stream) for finding in result.findings}
    lanes = [(copy.copy, copy.log_stream) for copy in result.copies]
    if len(lanes) > LANES:
        lanes = sorted(lanes, key=lambda lane: lane not in wrong)[:LANES]
    return sorted(lanes, key=lambda lane: (lane[1], lane[0] == ARCHIVE, lane[0]))


def _draw_copies(axes: Any, result: AuditResult, pictured: Pictured) -> None:
    lanes = _lanes(result)
    height = {lane: len(lanes) - number for number, lane in enumerate(lanes)}
    width = pictured.bucket_positions
    for lane, y in height.items():
        mine = [bucket for bucket in pictured.buckets if (bucket.copy, bucket.log_stream) == lane]
        for colour, chosen in ((HELD, [b for b in mine if b.rows]), (BAD, [b for b in mine if b.differing])):
            axes.broken_barh(_bars(chosen, width), (y - 0.35, 0.7), facecolors=colour, linewidth=0)
    least = max(width, (result.last - result.first) / 300)
    for finding in result.findings:
        for lane in _concerned(finding, height):
            colour = UNSURE if finding.fault is Fault.UNREAD else BAD
            length = max(least, finding.end - finding.begin)
            axes.broken_barh([(finding.begin, length)], (height[lane] - 0.35, 0.7), facecolors=colour, linewidth=0)
    axes.set_yticks(list(height.values()), [_lane_name(*lane) for lane in height])
    axes.set_ylim(0.4, len(lanes) + 0.6)
    axes.set_xlabel("GLSN")
    axes.ticklabel_format(axis="x", style="plain", useOffset=False)


def _bars(buckets: Sequence[Bucket], width: int) -> list[tuple[int, int]]:
    """Where they are, as (begin, length); neighbours are one."""
    bars: list[tuple[int, int]] = []
    for bucket in buckets:
        length = width - bucket.begin % width
        if bars and sum(bars[-1]) == bucket.begin:
            bars[-1] = (bars[-1][0], bars[-1][1] + length)
        else:
            bars.append((bucket.begin, length))
    return bars


def _concerned(finding: Finding, lanes: Mapping[tuple[int, int], int]) -> list[tuple[int, int]]:
    if finding.copy == TOPIC:
        return []
    return [lane for lane in lanes if lane[0] == finding.copy and finding.log_stream in {0, lane[1]}]


def _lane_name(copy: int, lsid: int) -> str:
    return f"log stream {lsid}, {'archive' if copy == ARCHIVE else f'node {copy}'}"


def _draw_streams(axes: Any, pictured: Pictured) -> None:
    entries: dict[int, dict[int, int]] = {}
    for bucket in pictured.buckets:
        of_stream = entries.setdefault(bucket.log_stream, {})
        of_stream[bucket.begin] = max(of_stream.get(bucket.begin, 0), bucket.rows)
    begins = sorted({bucket.begin for bucket in pictured.buckets})
    shown = sorted(entries, key=lambda lsid: -sum(entries[lsid].values()))[: len(LINES)]
    for lsid, colour in zip(sorted(shown), LINES, strict=False):
        rows = [entries[lsid].get(begin, 0) for begin in begins]
        axes.step(begins, rows, where="post", color=colour, label=f"log stream {lsid}", linewidth=1.4)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("GLSN")
    axes.set_ylabel(f"entries per {pictured.bucket_positions:,} positions")
    axes.ticklabel_format(axis="x", style="plain", useOffset=False)
    axes.legend(frameon=False, ncols=4, loc="lower right")


def _draw_times(axes: Any, times: Sequence[tuple[int, int]]) -> None:
    when = [datetime.fromtimestamp(microseconds / 1e6, UTC) for _, microseconds in times]
    axes.plot(when, [position for position, _ in times], color=HELD, marker="o", markersize=3, linewidth=1.4)
    axes.set_ylabel("GLSN")
    axes.set_xlabel("when positions were given (UTC)")
    axes.ticklabel_format(axis="y", style="plain", useOffset=False)
