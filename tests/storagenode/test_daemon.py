"""What a storage node shows to those who watch it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.proxy import BreakingProxy
from tests.daemon.small import CID, Small, cluster, run, until
from varlog import limits
from varlog.core.messages import Scan, ScanReply
from varlog.daemon.metrics import Metrics
from varlog.storagenode.daemon import declare, health, remind
from varlog.types import GLSN, LogStreamID


def test_M12_the_metrics_of_a_node(tmp_path: Path) -> None:
    async def test() -> None:
        async with cluster(tmp_path, streams=2) as small:
            await small.append(b"one", b"two")
            reader = await small.call_node(1)
            await reader.ask(ScanReply, lambda request: Scan(request, LogStreamID(1), GLSN(1), 1 << 20, False))
            metrics = Metrics("vsn", CID)
            declare(metrics, small.nodes[1])
            lines = (await metrics.render()).decode().splitlines()
            for line in (
                'varlog_replica_batches_total{log_stream="1"} 1.0',
                'varlog_replica_batches_total{log_stream="2"} 0.0',
                'varlog_replica_entries_total{log_stream="1"} 2.0',
                'varlog_replica_commits_total{log_stream="1"} 1.0',
                'varlog_replica_scans_total{log_stream="1"} 1.0',
                'varlog_replica_refused_total{log_stream="1"} 0.0',
                'varlog_replica_committed_end{log_stream="1"} 3.0',
                'varlog_replica_durable_end{log_stream="1"} 3.0',
                'varlog_replica_end{log_stream="1"} 3.0',
                'varlog_replica_global_hwm{log_stream="1"} 2.0',
                'varlog_replica_state{log_stream="1"} 2.0',
                'varlog_replica_epoch{log_stream="2"} 2.0',
                "varlog_leased 1.0",
                "varlog_unreadable_metrics 0.0",
            ):
                assert line in lines
            assert any(line.startswith("varlog_connections ") for line in lines)
            assert any(line.startswith('varlog_protocol_branches_total{branch="B7_') for line in lines)

    run(test())


def test_M12_the_health_of_a_node(tmp_path: Path) -> None:
    async def test() -> None:
        async with cluster(tmp_path) as small:
            node = small.nodes[1]
            told = health(node)
            assert told.status == "ok"
            assert told.details["snid"] == 1
            assert told.details["address"] == node.address
            assert told.details["log_streams"] == {1: "RUNNING"}
            await small.stop_vmr()
            await until(lambda: not node.is_connected)
            assert health(node).status == "disconnected"
            assert small.vmr.address in health(node).details["metadata_repository"]
            await small.start_vmr(small.vmr.address)
            await until(lambda: node.is_connected)
            next(iter(node.replicas)).executor.on_corrupt()
            assert health(node).status == "degraded"
            assert health(node).details["in_need_of_repair"] == [1]

    run(test())


def test_a_metadata_repository_that_hangs_is_told_from_one_that_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        async with Small(tmp_path) as small:
            await small.start(nodes=0, streams=0)
            async with await BreakingProxy.start(small.vmr.address) as proxy:
                node = await small.start_node(1, metadata_repository=proxy.address)
                await small.add_nodes()
                await until(lambda: health(node).status == "ok")
                proxy.block()
                await until(lambda: health(node).status == "disconnected")
                assert node.is_connected
                assert health(node).details["metadata_repository"] == f"{proxy.address}: does not answer"
                await proxy.heal()
                await until(lambda: health(node).status == "ok")
                await small.stop_node(1)
                await proxy.wait_until(lambda: not proxy.connections)

    monkeypatch.setattr(limits, "NODE_LEASE_SECONDS", 2.0)
    run(test())


def test_a_node_that_nobody_has_added_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with cluster(tmp_path, nodes=0, streams=0) as small:
            node = await small.start_node(1)
            await until(lambda: health(node).status == "not registered")
            assert health(node).details["metadata_repository"] == "connected"
            remind(node)
            assert f"varlog node add {node.address}" in caplog.text
            caplog.clear()
            await small.add_node(node)
            await until(lambda: health(node).status == "ok")
            remind(node)
            assert not caplog.text

    run(test())
