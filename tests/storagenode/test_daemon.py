"""What a storage node shows to those who watch it."""

from __future__ import annotations

from pathlib import Path

from tests.daemon.small import CID, cluster, run, until
from varlog.core.messages import Scan, ScanReply
from varlog.daemon.metrics import Metrics
from varlog.storagenode.daemon import declare, health
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
