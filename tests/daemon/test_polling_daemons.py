"""Which waits daemons spend looking: those within an append that comes alone, and no others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.daemon.small import Small, cluster, run, until
from varlog import batch
from varlog.core.messages import Append, GetMetadata, Metadata, Scan, ScanReply
from varlog.daemon.polling import Polling
from varlog.types import GLSN, LLSN, Sequence
from varlog.wire.hello import Role

UNDER_WAY, AFTERWARDS = True, False
WITH_A_CUT = True


@contextmanager
def overheard(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[Polling, bool]]]:
    """Whoever begins to wait meanwhile, and for what."""
    heard: list[tuple[Polling, bool]] = []

    def rest(polling: Polling, kind: bool) -> None:
        heard.append((polling, kind))

    with monkeypatch.context() as patched:
        patched.setattr(Polling, "rest", rest)
        yield heard


def kinds(heard: list[tuple[Polling, bool]], of: Polling) -> list[bool]:
    return [kind for polling, kind in heard if polling is of]


def is_committed_everywhere(small: Small, glsn: int) -> bool:
    return all(executor.local_hwm >= glsn for node in small.nodes.values() for executor in node.node.executors)


def test_all_who_take_part_in_a_lone_append_wait_for_its_next_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with cluster(tmp_path) as small:
            await small.append(b"first")
            await until(lambda: is_committed_everywhere(small, 1))
            with overheard(monkeypatch) as heard:
                await small.append(b"alone", sequence=2)
                await until(lambda: is_committed_everywhere(small, 2))
            for node in small.nodes.values():
                assert kinds(heard, node._polling)[:2] == [UNDER_WAY, AFTERWARDS]
            assert WITH_A_CUT in kinds(heard, small.vmr._polling)

    run(main())


def test_reads_are_waited_for_asleep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with cluster(tmp_path) as small:
            (stream,) = small.streams()
            await small.append(b"x")
            await until(lambda: is_committed_everywhere(small, 1))
            reader = await small.call_node(stream.primary)
            with overheard(monkeypatch) as heard:
                for _ in range(5):
                    await reader.ask(ScanReply, lambda request: Scan(request, stream.lsid, GLSN(1), 1 << 20, False))
            assert not kinds(heard, small.nodes[stream.primary]._polling)

    run(main())


def test_a_metadata_repository_waits_asleep_for_all_but_reports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with cluster(tmp_path) as small:
            await small.append(b"x")
            asking = await small.call(small.vmr.address, Role.METADATA_REPOSITORY)
            begun: list[bool] = []
            monkeypatch.setattr(small.vmr._polling, "wake", lambda: begun.append(small.vmr._has_report))
            with overheard(monkeypatch) as heard:
                for _ in range(5):
                    await asking.ask(Metadata, GetMetadata)
            assert begun.count(False) >= 5
            assert len(kinds(heard, small.vmr._polling)) <= begun.count(True), "those are the nodes' own reports"

    run(main())


def test_where_many_appends_are_under_way_nobody_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with cluster(tmp_path) as small:
            (stream,) = small.streams()
            await small.append(b"first", writer=8)  # it runs
            writer = await small.call_node(stream.primary)
            with overheard(monkeypatch) as heard:
                for sequence in range(1, 11):
                    packed = batch.encode([b"one of many"], writer_id=7, sequence=sequence)
                    message = Append(sequence, stream.lsid, stream.epoch, Sequence(sequence - 1), LLSN(1), packed)
                    writer.connection.send(message)  # they go out together at the end of the turn
                await until(lambda: is_committed_everywhere(small, 11))
            for node in small.nodes.values():
                assert not kinds(heard, node._polling)
            assert WITH_A_CUT not in kinds(heard, small.vmr._polling)

    run(main())
