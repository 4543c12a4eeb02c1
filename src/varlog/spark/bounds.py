"""What a query reads of each topic, found out before it is run; so that no more of the log has to be read.

Spark would hand conditions down to a source by itself, but not safely: it keeps what a source made of them at the table
and takes it for every other use of the same DataFrame or view, so a join, a union or the next query gets rows of the
first one's range only. So this looks at the plan that Spark has made of the query: each scan of a topic, and the
condition that its rows have to fulfil. What lies within the bounds of any of them is read.

What must always hold: nothing is left out that fulfils a condition. Of a condition that is not understood nothing
follows; a plan in which a scan might be hidden has no bounds at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from varlog.spark import planning
from varlog.spark.options import MAX_POSITION
from varlog.spark.source import NAME

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    import varlog


class Bounds(NamedTuple):
    """A range of positions and of times, in microseconds since 1970; both ends are within."""

    first: int = 0
    last: int = MAX_POSITION
    since: int = 0
    until: int = MAX_POSITION

    def both(self, other: Bounds) -> Bounds:
        """What lies within both."""
        return Bounds(
            max(self.first, other.first),
            min(self.last, other.last),
            max(self.since, other.since),
            min(self.until, other.until),
        )

    def either(self, other: Bounds) -> Bounds:
        """What lies within one of them, and what is between."""
        return Bounds(
            min(self.first, other.first),
            max(self.last, other.last),
            min(self.since, other.since),
            max(self.until, other.until),
        )


EVERYTHING: Final = Bounds()
_NO_SCANS: Final = ("LocalRelation", "OneRowRelation", "Range")
"""Leaves of a plan that read nothing."""
_SIDES: Final = {
    "EqualTo": (True, True),
    "GreaterThan": (True, False),
    "GreaterThanOrEqual": (True, False),
    "LessThan": (False, True),
    "LessThanOrEqual": (False, True),
}
"""Whether a comparison bounds what is on its left from below, and from above."""


def bounds_of(frame: DataFrame) -> dict[str, Bounds]:
    """By topic, what a query reads. Nothing, if that cannot be told."""
    plan = frame._jdf.queryExecution().optimizedPlan()
    found: dict[str, Bounds] = {}
    for root in (plan, *_items(plan.subqueriesAll())):
        for topic, bounds in _scans(root, EVERYTHING):
            if topic is None:
                return {}
            found[topic] = found[topic].either(bounds) if topic in found else bounds
    return found


def are_within(found: Mapping[str, Bounds], allowed: Mapping[str, Bounds]) -> bool:
    """Whether a query reads nothing else of those topics."""
    return all(topic in found and found[topic].either(bounds) == bounds for topic, bounds in allowed.items())


async def limiting_options(log: varlog.Log, bounds: Bounds) -> dict[str, str]:
    """The source's options for what there is within bounds."""
    extent = await planning.extent_of(log)
    latest = min(await log.stable() + 1, extent.end)
    begin, end = max(extent.earliest, bounds.first), min(latest, bounds.last + 1)
    if bounds.since:
        begin = max(begin, await log.find_time(bounds.since))
    if bounds.until < MAX_POSITION:
        end = min(end, await log.find_time(bounds.until + 1))
    begin = min(begin, latest)
    options = {"startingOffsets": str(begin)} if bounds.first or bounds.since else {}
    if min(bounds.last, bounds.until) < MAX_POSITION:
        options["endingOffsets"] = str(max(begin, end))
    return options


# Spark's plans


def _scans(node: Any, bounds: Bounds) -> Iterator[tuple[str | None, Bounds]]:
    """The topics that are read below a node whose rows have to lie within bounds; None for what is not known."""
    kind = _kind(node)
    children = _items(node.children())
    if kind == "DataSourceV2ScanRelation" and node.relation().table().name() == NAME:
        yield node.relation().options().get("topic"), bounds
    elif not children and kind not in _NO_SCANS:
        yield None, bounds
    for child in children:
        yield from _scans(child, _fulfilling(node.condition()) if kind == "Filter" else EVERYTHING)


def _fulfilling(condition: Any) -> Bounds:
    """Within which everything lies that fulfils a condition."""
    kind = _kind(condition)
    if kind == "And":
        return _fulfilling(condition.left()).both(_fulfilling(condition.right()))
    if kind == "Or":
        return _fulfilling(condition.left()).either(_fulfilling(condition.right()))
    if kind == "In" and all(_kind(one) == "Literal" for one in _items(condition.list())):
        return _among(condition.value(), [one.value() for one in _items(condition.list())])
    if kind == "InSet":
        return _among(condition.child(), _items(condition.hset().toSeq()))
    if kind in _SIDES:
        sides = _SIDES[kind]
        left, right = condition.left(), condition.right()
        if _kind(left) == "Literal":
            left, right, sides = right, left, sides[::-1]
        if _kind(right) == "Literal":
            value = right.value()
            return _compared(left, value if sides[0] else None, value if sides[1] else None)
    return EVERYTHING


def _among(column: Any, values: list[Any]) -> Bounds:
    known = [value for value in values if isinstance(value, int)]
    return _compared(column, min(known), max(known)) if known and len(known) == len(values) else EVERYTHING


def _compared(column: Any, low: object, high: object) -> Bounds:
    if _kind(column) != "AttributeReference" or column.name() not in ("glsn", "timestamp"):
        return EVERYTHING
    least = max(0, low) if isinstance(low, int) else 0
    most = min(max(0, high), MAX_POSITION) if isinstance(high, int) else MAX_POSITION
    return Bounds(first=least, last=most) if column.name() == "glsn" else Bounds(since=least, until=most)


def _kind(node: Any) -> str:
    name: str = node.getClass().getSimpleName()
    return name.removesuffix("$")


def _items(sequence: Any) -> list[Any]:
    return [sequence.apply(index) for index in range(sequence.size())]
