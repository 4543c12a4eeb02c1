"""The recorder: what it notes of a real client, and what becomes of a history that the checkers object to."""

from __future__ import annotations

import asyncio
from pathlib import Path
from time import monotonic

import pytest

import varlog
from tests.cluster.recorder import RecordedLog, judge
from varlog.sim.evidence import Evidence, TopicState
from varlog.sim.history import History, Kind, Outcome


async def use(client: RecordedLog) -> None:
    assert await client.append([b"one"])
    assert await client.append([b"two", b"three"])
    assert not await client.append([])
    await client.read(2)
    await client.read(9)
    await client.scan(1, 4)
    assert await client.tail() == 3
    await client.trim(1)
    await client.read(1)
    subscription = asyncio.create_task(client.subscribe(2))
    assert await client.append([b"four"])
    await client.trim(9)
    await client.scan(2, 5)
    subscription.cancel()
    await asyncio.gather(subscription, return_exceptions=True)


def test_everything_is_noted_as_it_was_told(tmp_path: Path) -> None:
    history = History(monotonic)

    async def test() -> None:
        async with varlog.embedded(tmp_path) as log:
            await use(RecordedLog("client", log, history))

    asyncio.run(test())
    noted = [(op.kind, op.outcome, op.glsn, op.error) for op in history.operations if op.kind is not Kind.DELIVERY]
    assert noted == [
        (Kind.APPEND, Outcome.OK, 1, ""),
        (Kind.APPEND, Outcome.OK, 2, ""),
        (Kind.APPEND, Outcome.REJECTED, 0, "EmptyBatch"),
        (Kind.READ, Outcome.OK, 0, ""),
        (Kind.READ, Outcome.ERROR, 0, "Unwritten"),
        (Kind.SCAN, Outcome.OK, 0, ""),
        (Kind.TAIL, Outcome.OK, 3, ""),
        (Kind.TRIM, Outcome.OK, 0, ""),
        (Kind.READ, Outcome.ERROR, 0, "Trimmed"),
        (Kind.APPEND, Outcome.OK, 4, ""),
        (Kind.SUBSCRIBE, Outcome.PENDING, 0, ""),
        (Kind.TRIM, Outcome.REJECTED, 0, "InvalidArgument"),
        (Kind.SCAN, Outcome.OK, 0, ""),
    ]
    assert history.of(Kind.READ)[2].first == 2
    scanned = [op.payloads for op in history.of(Kind.DELIVERY) if op.parent == history.of(Kind.SCAN)[0].id]
    assert [payload for payloads in scanned for payload in payloads] == [b"one", b"two", b"three"]


def test_a_history_that_is_objected_to_is_kept(tmp_path: Path) -> None:
    history = History(monotonic)
    lost = history.invoke("client", Kind.APPEND, 1, payloads=[b"lost"])
    history.ok(lost, glsn=1, lsid=1, epoch=2)
    with pytest.raises(AssertionError, match="is lost: GLSN 1 holds nothing") as told:
        judge(Evidence(history, {1: TopicState(1)}, []), tmp_path)
    kept = tmp_path / "history.jsonl"
    assert str(kept) in str(told.value)
    assert History.from_json_lines(kept.read_bytes()).operations == [lost]
