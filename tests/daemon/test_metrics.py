"""Metrics: read when asked for, in the text that Prometheus reads, at nobody's expense."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from itertools import pairwise

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from varlog import __version__, limits
from varlog.daemon.metrics import Metrics


def parsed(text: bytes) -> dict[str, Metric]:
    return {family.name: family for family in text_string_to_metric_families(text.decode())}


def rendered(metrics: Metrics) -> dict[str, Metric]:
    return parsed(asyncio.run(metrics.render()))


class Node:
    """Something that counts in plain integers."""

    def __init__(self) -> None:
        self.appends = 0
        self.ends = {1: 10, 2: 20}


def test_numbers_are_read_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "METRICS_SECONDS", 0)
    node, metrics = Node(), Metrics("vsn", 7)
    metrics.counter("varlog_appends", "Batches appended.", lambda: node.appends)
    metrics.gauges(
        "varlog_end", "Where it ends.", ("lsid",), lambda: [((str(lsid),), end) for lsid, end in node.ends.items()]
    )
    node.appends += 5
    families = rendered(metrics)
    assert (families["varlog_appends"].type, families["varlog_appends"].documentation) == (
        "counter",
        "Batches appended.",
    )
    assert [(s.name, s.value) for s in families["varlog_appends"].samples] == [("varlog_appends_total", 5)]
    assert [(s.labels, s.value) for s in families["varlog_end"].samples] == [({"lsid": "1"}, 10), ({"lsid": "2"}, 20)]
    node.appends += 1
    del node.ends[1]
    families = rendered(metrics)
    assert families["varlog_appends"].samples[0].value == 6
    assert len(families["varlog_end"].samples) == 1


def test_the_daemon_and_its_process_are_described() -> None:
    families = rendered(Metrics("vsn", 7))
    (about,) = families["varlog_daemon"].samples
    assert about.labels == {"program": "vsn", "version": __version__, "cluster": "7"}
    assert families["process_resident_memory_bytes"].samples[0].value > 0
    assert "process_cpu_seconds" in families
    assert "python_gc_collections" in families


def test_one_that_cannot_be_read_is_left_out_and_counted() -> None:
    metrics = Metrics("vsn", 1)

    def broken() -> float:
        raise KeyError("gone")

    metrics.gauge("varlog_broken", "Fails.", broken)
    metrics.gauges("varlog_mislabelled", "Fails too.", ("lsid",), lambda: [(("1",), "no number")])  # type: ignore[list-item]
    metrics.gauge("varlog_sound", "Does not.", lambda: 1)
    families = rendered(metrics)
    assert families["varlog_sound"].samples[0].value == 1
    assert "varlog_broken" not in families
    assert "varlog_mislabelled" not in families
    assert families["varlog_unreadable_metrics"].samples[0].value == 2


def test_many_who_ask_at_once_share_one_rendering() -> None:
    metrics, reads = Metrics("vsn", 1), 0

    def read() -> float:
        nonlocal reads
        reads += 1
        return reads

    metrics.gauge("varlog_reads", "How often it was read.", read)

    async def ask() -> Iterable[bytes]:
        return await asyncio.gather(*(metrics.render() for _ in range(50)))

    assert len(set(asyncio.run(ask()))) == 1
    assert reads == 1


def test_the_loop_gets_its_turn_between_families() -> None:
    metrics, order = Metrics("vsn", 1), list[str]()

    def reading(name: str) -> float:
        order.append(name)
        return 1

    for name in ("a", "b", "c"):
        metrics.gauge(f"varlog_{name}", "A number.", lambda name=name: reading(name))  # type: ignore[misc]

    async def compete() -> None:
        def work() -> None:
            order.append("daemon")
            if not rendering.done():
                asyncio.get_running_loop().call_soon(work)

        rendering = asyncio.ensure_future(metrics.render())
        work()
        await rendering

    asyncio.run(compete())
    read = [index for index, who in enumerate(order) if who != "daemon"]
    assert [order[index] for index in read] == ["a", "b", "c"]
    assert all(later - earlier > 1 for earlier, later in pairwise(read))


@pytest.mark.parametrize("name", ["appends", "varlog_Appends", "varlog", "varlog_appends_total", "varlog_a-b", ""])
def test_names_are_of_one_style(name: str) -> None:
    with pytest.raises(ValueError, match="no name for a metric"):
        Metrics("vsn", 1).counter(name, "Whatever.", lambda: 0)


def test_a_name_is_declared_once() -> None:
    metrics = Metrics("vsn", 1)
    metrics.counter("varlog_appends", "Once.", lambda: 0)
    with pytest.raises(ValueError, match="varlog_appends is declared already"):
        metrics.gauge("varlog_appends", "Twice.", lambda: 0)


def test_labels_with_odd_characters_are_escaped() -> None:
    metrics = Metrics("vsn", 1)
    metrics.gauges("varlog_hwm", "Of a topic.", ("topic",), lambda: [(('a"b\\c\nd',), 1)])
    assert rendered(metrics)["varlog_hwm"].samples[0].labels == {"topic": 'a"b\\c\nd'}
