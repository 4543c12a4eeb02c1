"""The metrics of a daemon: what it counts anyway, read when somebody asks.

Code that counts adds to a plain integer attribute and knows nothing of metrics. A daemon declares, once and by name,
where such a number is to be found; the declared functions are called when the metrics are rendered. So a message costs
no more for being counted, and a daemon that nobody watches does nothing at all for it.

Rendering happens on the daemon's own event loop and is bounded: the loop gets its turn after each family, and one
rendering serves everybody who asks within a second. A function that fails leaves its family out and is told in
`varlog_unreadable_metrics`; it disturbs nobody.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Final, NamedTuple

from varlog import __version__, limits
from varlog.daemon import logs

if TYPE_CHECKING:
    from prometheus_client import Metric

NAME: Final = re.compile(r"varlog(_[a-z0-9]+)+")

Labelled = Iterable[tuple[Sequence[str], float]]
"""Values of one metric, each with the values of its labels in the declared order."""


class _Declared(NamedTuple):
    counts: bool
    name: str
    meaning: str
    labels: tuple[str, ...]
    read: Callable[[], Labelled]


class Metrics:
    """What a daemon has declared, and the text that Prometheus reads."""

    def __init__(self, program: str, cluster: int) -> None:
        self._declared: dict[str, _Declared] = {}
        self._turn = asyncio.Lock()
        self._text = b""
        self._rendered = float("-inf")
        about = (program, __version__, str(cluster))
        self.gauges(
            "varlog_daemon", "Which daemon this is; always 1.", ("program", "version", "cluster"), lambda: [(about, 1)]
        )

    def counter(self, name: str, meaning: str, read: Callable[[], float]) -> None:
        """A number that only grows; `name` without the `_total` that it is shown with."""
        self.counters(name, meaning, (), lambda: [((), read())])

    def gauge(self, name: str, meaning: str, read: Callable[[], float]) -> None:
        """A number that goes up and down."""
        self.gauges(name, meaning, (), lambda: [((), read())])

    def counters(self, name: str, meaning: str, labels: Sequence[str], read: Callable[[], Labelled]) -> None:
        """A counter for each of several things, told apart by labels."""
        self._declare(_Declared(True, name, meaning, tuple(labels), read))

    def gauges(self, name: str, meaning: str, labels: Sequence[str], read: Callable[[], Labelled]) -> None:
        """A gauge for each of several things, told apart by labels."""
        self._declare(_Declared(False, name, meaning, tuple(labels), read))

    async def render(self) -> bytes:
        """All metrics as Prometheus' text format has them, at most a second old."""
        async with self._turn:
            if monotonic() - self._rendered >= limits.METRICS_SECONDS:
                self._text = await self._render()
                self._rendered = monotonic()
            return self._text

    def _declare(self, declared: _Declared) -> None:
        if not NAME.fullmatch(declared.name) or declared.name.endswith("_total"):
            raise ValueError(f"{declared.name!r} is no name for a metric: varlog_words_in_lower_case, without _total")
        if declared.name in self._declared:
            raise ValueError(f"{declared.name} is declared already")
        self._declared[declared.name] = declared

    async def _render(self) -> bytes:
        # Only a daemon that is asked pays for importing it: 25 ms.
        from prometheus_client import GC_COLLECTOR, PROCESS_COLLECTOR, generate_latest  # noqa: PLC0415
        from prometheus_client.core import GaugeMetricFamily  # noqa: PLC0415

        parts: list[bytes] = []
        unreadable = 0
        for declared in [*self._declared.values()]:
            try:
                parts.append(generate_latest(_Families([_family(declared)])))
            except Exception as error:
                unreadable += 1
                logs.get().warning("a metric cannot be read", metric=declared.name, error=repr(error))
            await asyncio.sleep(0)
        missed = GaugeMetricFamily("varlog_unreadable_metrics", "Left out because reading them failed.", unreadable)
        parts += [generate_latest(it) for it in (_Families([missed]), PROCESS_COLLECTOR, GC_COLLECTOR)]
        return b"".join(parts)


class _Families:
    """What `generate_latest` takes for a registry."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> list[Metric]:
        return self._families


def _family(declared: _Declared) -> Metric:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily  # noqa: PLC0415

    kind = CounterMetricFamily if declared.counts else GaugeMetricFamily
    family = kind(declared.name, declared.meaning, labels=declared.labels)
    for labels, value in declared.read():
        family.add_metric(labels, value)
    return family
