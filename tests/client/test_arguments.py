"""Arguments: what is wrong with one is said at the call, by the parameter's name, before anything is sent."""

from __future__ import annotations

import inspect
import math
from collections.abc import AsyncIterator, Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import varlog
from tests.client.rig import run
from tests.client.stage import CID, Stage
from varlog import errors

Calls = Callable[[Any, Any, Path, Any], Any]
"""A call, given a log, an admin, the cluster's path and the value."""

SECONDS: list[Any] = ["5", b"5", [], 3j, Decimal(5), 10**400, 10**5000, True, 0, -1, math.nan, math.inf]
POSITIONS: list[Any] = ["5", b"1", [], None, True, 1.0, math.nan, 0, -1, 1 << 63, 10**5000]
ENDS: list[Any] = [value for value in POSITIONS if value is not None]
COUNTS: list[Any] = ["2", None, [], True, 1.5, -1]
IDS: list[Any] = ["1", None, [], True, 1.0, -1, 1 << 70]
TEXTS: list[Any] = [5, None, b"x", [], True]

TABLE: list[tuple[str, str, Calls, list[Any]]] = [
    ("append", "timeout", lambda log, _a, _p, value: log.append(b"x", timeout=value), SECONDS),
    ("append_batch", "timeout", lambda log, _a, _p, value: log.append_batch([b"x"], timeout=value), SECONDS),
    ("scan", "timeout", lambda log, _a, _p, value: log.scan(1, 3, timeout=value), SECONDS),
    ("tail", "timeout", lambda log, _a, _p, value: log.tail(timeout=value), SECONDS),
    ("appender", "timeout", lambda log, _a, _p, value: log.appender(timeout=value), SECONDS),
    ("metadata", "timeout", lambda _l, admin, _p, value: admin.metadata(timeout=value), SECONDS),
    ("remove_topic", "timeout", lambda _l, admin, _p, value: admin.remove_topic("x", timeout=value), SECONDS),
    ("connect", "timeout", lambda _l, _a, path, value: varlog.connect(path, timeout=value), [*SECONDS, None]),
    ("admin", "timeout", lambda _l, _a, path, value: varlog.admin(path, timeout=value), [*SECONDS, None]),
    (
        "connect",
        "fill_after",
        lambda _l, _a, path, value: varlog.connect(path, fill_after=value),
        ["5", None, [], 3j, True, -1, math.nan, math.inf, 10**400],
    ),
    ("read", "glsn", lambda log, _a, _p, value: log.read(value), POSITIONS),
    ("trim", "glsn", lambda log, _a, _p, value: log.trim(value), POSITIONS),
    ("fill", "glsn", lambda log, _a, _p, value: log.fill(value), POSITIONS),
    ("scan", "begin", lambda log, _a, _p, value: log.scan(value), POSITIONS),
    ("subscribe", "begin", lambda log, _a, _p, value: log.subscribe(value), POSITIONS),
    ("scan", "end", lambda log, _a, _p, value: log.scan(1, value), ENDS),
    ("subscribe", "end", lambda log, _a, _p, value: log.subscribe(end=value), ENDS),
    ("scan", "affinity", lambda log, _a, _p, value: log.scan(1, 3, affinity=value), ["5", [], True, 1.0, -1]),
    ("find_time", "timestamp", lambda log, _a, _p, value: log.find_time(value), ["5", None, [], True, 1.0]),
    ("append_fill", "count", lambda log, _a, _p, value: log.append_fill(value), [*COUNTS, 0]),
    ("appender", "window", lambda log, _a, _p, value: log.appender(window=value), [*COUNTS, 0, 1.0, 1 << 20]),
    ("appender", "codec", lambda log, _a, _p, value: log.appender(codec=value), [None, [], 1.0, 1, "zstd"]),
    (
        "connect",
        "cid",
        lambda _l, _a, path, value: varlog.connect(path, cid=value),
        ["5", b"1", [], True, 1.0, 0, 1 << 32],
    ),
    ("connect", "secret_file", lambda _l, _a, path, value: varlog.connect(path, secret_file=value), [0, b"1", []]),
    ("connect", "cluster", lambda _l, _a, _p, value: varlog.connect(value), [0, b"1", [], "x" * 5000]),
    ("connect", "tls", lambda _l, _a, path, value: varlog.connect(path, tls=value), ["5", -1, 0, []]),
    ("connect", "topic", lambda _l, _a, path, value: varlog.connect(path, topic=value), [5, b"x", []]),
    ("embedded", "path", lambda _l, _a, _p, value: varlog.embedded(value), [5, None, ""]),
    ("embedded", "topic", lambda _l, _a, path, value: varlog.embedded(path, topic=value), TEXTS),
    ("embedded", "streams", lambda _l, _a, path, value: varlog.embedded(path, streams=value), [*COUNTS, 0]),
    ("embedded", "nodes", lambda _l, _a, path, value: varlog.embedded(path, nodes=value), [*COUNTS, 0, 65]),
    ("add_node", "address", lambda _l, admin, _p, value: admin.add_node(value), TEXTS),
    ("remove_node", "snid", lambda _l, admin, _p, value: admin.remove_node(value), IDS),
    ("drain_node", "snid", lambda _l, admin, _p, value: admin.drain_node(value), IDS),
    ("replace_node", "by", lambda _l, admin, _p, value: admin.replace_node(1, value), IDS),
    ("add_topic", "name", lambda _l, admin, _p, value: admin.add_topic(value), TEXTS),
    ("add_topic", "streams", lambda _l, admin, _p, value: admin.add_topic("x", streams=value), [*COUNTS, 0]),
    ("add_topic", "block", lambda _l, admin, _p, value: admin.add_topic("x", block=value), COUNTS),
    ("add_topic", "first", lambda _l, admin, _p, value: admin.add_topic("x", first=value), POSITIONS),
    ("remove_topic", "name", lambda _l, admin, _p, value: admin.remove_topic(value), TEXTS),
    ("attach_archive", "uri", lambda _l, admin, _p, value: admin.attach_archive("log", value), TEXTS),
    ("detach_archive", "topic", lambda _l, admin, _p, value: admin.detach_archive(value), TEXTS),
    ("add_stream", "topic", lambda _l, admin, _p, value: admin.add_stream(value), TEXTS),
    (
        "add_stream",
        "nodes",
        lambda _l, admin, _p, value: admin.add_stream("log", nodes=value),
        [5, None, "1", ["1"], [0]],
    ),
    ("remove_stream", "lsid", lambda _l, admin, _p, value: admin.remove_stream(value), IDS),
    ("seal_stream", "lsid", lambda _l, admin, _p, value: admin.seal_stream(value), IDS),
    ("unseal_stream", "lsid", lambda _l, admin, _p, value: admin.unseal_stream(value), IDS),
    ("sync_stream", "target", lambda _l, admin, _p, value: admin.sync_stream(1, value), IDS),
    ("sync_stream", "source", lambda _l, admin, _p, value: admin.sync_stream(1, 2, source=value), IDS),
    ("move_replica", "to", lambda _l, admin, _p, value: admin.move_replica(1, to=value), IDS),
    ("declare_lost", "gone", lambda _l, admin, _p, value: admin.declare_lost(1, gone=value), [5, None, ["1"], [True]]),
]


async def make(call: Any) -> None:
    """Make a call, of whatever kind it is."""
    if isinstance(call, AsyncIterator):
        await anext(call)
    elif inspect.isawaitable(call):
        await call
    else:
        async with call:
            pass


@pytest.mark.parametrize(
    ("parameter", "call", "values"), [row[1:] for row in TABLE], ids=[f"{a}-{b}" for a, b, *_ in TABLE]
)
def test_a_wrong_argument_is_refused_by_its_name(
    tmp_path: Path, parameter: str, call: Calls, values: list[Any]
) -> None:
    async def main() -> None:
        async with (
            await Stage.start(tmp_path) as stage,
            varlog.connect(tmp_path) as log,
            varlog.admin(tmp_path) as admin,
        ):
            puppets = (*stage.repositories, *stage.nodes.values())
            heard = [len(puppet.heard) for puppet in puppets]
            for value in values:
                with pytest.raises(errors.InvalidArgument, match=rf"(?s)^{parameter} is .*, it must be "):
                    await make(call(log, admin, tmp_path, value))
            assert heard == [len(puppet.heard) for puppet in puppets]

    run(main())


def test_numbers_may_be_of_any_kind_that_stands_for_one(tmp_path: Path) -> None:
    async def main() -> None:
        async with await Stage.start(tmp_path) as stage:
            stage.write(1, [b"a", b"b"])
            async with varlog.connect(tmp_path, cid=np.uint32(CID), timeout=np.float32(5)) as log:  # type: ignore[arg-type]
                assert (await log.read(np.int64(2))).data == b"b"  # type: ignore[arg-type]
                scanned = log.scan(np.int64(1), np.uint8(3), affinity=np.int16(1))  # type: ignore[arg-type]
                assert [batch.payloads() async for batch in scanned] == [[b"a", b"b"]]
                async with log.appender(window=np.int32(1), timeout=np.int64(5)) as appender:  # type: ignore[arg-type]
                    assert (await (await appender.append(b"c"))).glsn == 3

    run(main())
