"""`audit` finds what was planted in the files of real nodes, which notice nothing of it themselves.

One cluster of real processes has a topic for each fault. Its nodes are stopped, the files of one of them are forged
(see `forging`), and they are started again, without a manager, who might repair something.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from tests.pipeline import forging
from tests.pipeline.forging import Change, forge, replica_of
from tests.pipeline.written import BATCHES, Written, write_topic
from varlog.core.verifying import Verdict
from varlog.pipeline.audit import audit
from varlog.pipeline.audit_findings import TOPIC, Fault
from varlog.pipeline.audit_result import AuditResult
from varlog.pipeline.audit_rows import CELL
from varlog.pipeline.report import proofs
from varlog.processes import LocalCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FORGED = 2
"""The node whose files are forged."""
ALL = (1, 2, 3)

Expected = tuple[int, Fault, int, int]
"""A copy, what is wrong with it, and the positions."""


class Case(NamedTuple):
    """A fault: how it is planted, and what is to be found of it."""

    lsid: int
    change: Change
    expected: tuple[Expected, ...]
    nodes: tuple[int, ...] = (FORGED,)
    says: str = ""
    blames: tuple[int, ...] = ()
    """Other copies that something is found in."""


def _missing(topic: Written) -> Case:
    at, lsid = topic.glsn(b"7/0"), topic.places[b"7/0"].lsid
    return Case(lsid, forging.drop(b"7/0"), ((FORGED, Fault.MISSING, at, at + 3),), says="LLSNs are lower by 3")


def _missing_in_batch(topic: Written) -> Case:
    at = topic.glsn(b"7/2")
    return Case(topic.places[b"7/2"].lsid, forging.shrink(b"7/2"), ((FORGED, Fault.MISSING, at, at + 1),))


def _swapped(topic: Written) -> Case:
    (one, other, *_), lsid = topic.neighbours(4)
    expected = (FORGED, Fault.SWAPPED, topic.glsn(one), topic.glsn(other) + 3)
    return Case(lsid, forging.swap(one, other), (expected,), says="stand in each other's places")


def _flipped(topic: Written) -> Case:
    at = topic.glsn(b"9/1")
    change = forging.flip(b"9/1")
    return Case(topic.places[b"9/1"].lsid, change, ((FORGED, Fault.CHANGED, at, at + 1),), says="1 bit differs")


def _duplicated(topic: Written) -> Case:
    (one, two, three, four, *_), lsid = topic.neighbours(2)
    expected = ((FORGED, Fault.DUPLICATED, topic.glsn(to), topic.glsn(to) + 3) for to in (three, four))
    return Case(lsid, forging.repeat([one, two], [three, four]), tuple(expected), says="it holds what belongs to")


def _short(topic: Written) -> Case:
    payloads, lsid = topic.neighbours(10)
    before, _ = topic.neighbours(0)
    end = topic.glsn(before[before.index(payloads[0]) - 1]) + 3
    last = topic.glsn(before[-1]) + 3
    return Case(lsid, forging.cut(payloads[0]), ((FORGED, Fault.SHORT, end, last),))


def _overlapping(topic: Written) -> Case:
    """All replicas of a log stream agree, and are wrong: two log streams have the same positions."""
    at = topic.glsn(b"12/0")
    expected = ((TOPIC, Fault.TWICE, at - 1, at), (TOPIC, Fault.NOWHERE, at + 2, at + 3))
    return Case(topic.places[b"12/0"].lsid, forging.move_commit(b"12/0", -1), expected, ALL, "the chain", ALL)


def _other_time(topic: Written) -> Case:
    at = topic.glsn(b"12/0")
    expected = (FORGED, Fault.DIFFERS, at, at + 3)
    return Case(topic.places[b"12/0"].lsid, forging.retime(b"12/0", 1), (expected,), says="the time of the commit")


def _far_flipped(topic: Written) -> Case:
    """In another cell, and in a batch that lies in two of them."""
    payload = b"first/0/4500"
    at = topic.glsn(payload)
    assert at // CELL > topic.glsn(b"first/0/0") // CELL
    change = forging.flip(payload, 0x80)
    return Case(topic.places[payload].lsid, change, ((FORGED, Fault.CHANGED, at, at + 1),))


def _chain_flipped(topic: Written) -> Case:
    at = topic.glsn(b"9/1")
    change = forging.flip(b"9/1", 0x80)
    return Case(topic.places[b"9/1"].lsid, change, ((FORGED, Fault.CHANGED, at, at + 1),), says="1 bit differs")


def _chain_other_time(topic: Written) -> Case:
    """Of a batch that is no longer in order for it."""
    at = topic.glsn(b"12/0")
    expected = ((FORGED, Fault.DIFFERS, at, at + 3), (FORGED, Fault.DISORDER, at, at + 3))
    return Case(topic.places[b"12/0"].lsid, forging.retime_chained(b"12/0", -60_000_000), expected, says="its time")


CASES: dict[str, Callable[[Written], Case]] = {
    "missing-entry": _missing,
    "missing-entry-of-a-batch": _missing_in_batch,
    "swapped-pair": _swapped,
    "flipped-bit": _flipped,
    "flipped-bit-across-cells": _far_flipped,
    "duplicated-range": _duplicated,
    "short-replica": _short,
    "overlapping-positions": _overlapping,
    "other-time": _other_time,
}
CHAIN_CASES: dict[str, Callable[[Written], Case]] = {
    "chain-flipped-bit": _chain_flipped,
    "chain-other-time": _chain_other_time,
}


async def _forged(path: Path) -> tuple[LocalCluster, dict[str, tuple[Written, Case | None]]]:
    cluster = LocalCluster(path)
    await cluster.__aenter__()
    topics: dict[str, tuple[Written, Case | None]] = {}
    try:
        for name, planted in CASES.items():
            written = await write_topic(cluster.path, name)
            topics[name] = written, planted(written)
        for name, planted in CHAIN_CASES.items():
            written = await write_topic(cluster.path, name, ordering="sequencer")
            topics[name] = written, planted(written)
        topics["clean"] = await write_topic(cluster.path, "clean"), None
        topics["chain-clean"] = await write_topic(cluster.path, "chain-clean", ordering="sequencer"), None
        await cluster.vms.kill()
        for node in cluster.nodes:
            assert await node.stop() == 0
        for _, case in topics.values():
            if case is not None:
                for number in case.nodes:
                    forge(replica_of(cluster.path / f"node-{number}", case.lsid), case.change)
        for node in cluster.nodes:
            await node.start()
    except BaseException:
        await cluster.stop()
        raise
    return cluster, topics


@pytest.fixture(scope="module")
def topics(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, tuple[Written, Case | None]]]:
    cluster, topics = asyncio.run(_forged(tmp_path_factory.mktemp("forged") / "varlog-data"))
    yield topics
    asyncio.run(cluster.stop())


def found_in(result: AuditResult) -> list[Expected]:
    return [(finding.copy, finding.fault, finding.begin, finding.end) for finding in result.findings]


@pytest.mark.parametrize("name", [*CASES, *CHAIN_CASES])
def test_P1_a_fault_in_a_replica_is_found(
    name: str, topics: dict[str, tuple[Written, Case | None]], spark: SparkSession
) -> None:
    topic, case = topics[name]
    assert case is not None
    result, _ = audit(lambda: spark, topic.connection, slice_positions=2 * CELL)
    assert result.verdict is Verdict.INCONSISTENT, result.findings
    found = found_in(result)
    assert set(case.expected) <= set(found), result.findings
    assert {copy for copy, *_ in found} == {*case.blames, *(copy for copy, *_ in case.expected)}, found
    assert {finding.log_stream for finding in result.findings} <= {0, case.lsid}
    assert any(case.says in finding.detail for finding in result.findings)


def test_P1_a_clean_topic_is_found_clean(topics: dict[str, tuple[Written, Case | None]], spark: SparkSession) -> None:
    topic, _ = topics["clean"]
    result, pictured = audit(lambda: spark, topic.connection, slice_positions=CELL)
    assert (result.verdict, result.findings) == (Verdict.CONSISTENT, [])
    entries = len(topic.places)
    assert (result.first, result.last, result.entries) == (1, entries, 3 * entries)
    assert {(copy.copy, copy.differing) for copy in result.copies} == {(1, 0), (2, 0), (3, 0)}
    assert result.entries == sum(copy.rows for copy in result.copies) == sum(b.rows for b in pictured.buckets)
    assert result.tasks > 2 * BATCHES // 3
    assert pictured.times == sorted(pictured.times)


def test_S11_a_clean_topic_of_chains_is_found_clean(
    topics: dict[str, tuple[Written, Case | None]], spark: SparkSession
) -> None:
    topic, _ = topics["chain-clean"]
    result, _ = audit(lambda: spark, topic.connection, slice_positions=CELL)
    assert (result.verdict, result.findings) == (Verdict.CONSISTENT, [])
    entries = len(topic.places)
    assert (result.ordering, result.first, result.entries) == ("sequencer", 1, 3 * entries)
    assert result.last == max(place.glsn for place in topic.places.values()) > entries, "junk is a position"
    assert {(copy.copy, copy.differing, copy.commits) for copy in result.copies} == {(1, 0, 0), (2, 0, 0), (3, 0, 0)}
    claims = [claim for claim, stands, _ in proofs(result) if stands == "proven"]
    assert claims == ["Every position is there exactly once", "LLSNs are GLSNs", "Replicas are equal"]
