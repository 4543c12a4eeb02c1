"""`vms start`: the manager as a process of its own."""

from __future__ import annotations

from varlog.daemon.config import ManagerConfig
from varlog.daemon.http import Health
from varlog.daemon.metrics import Labelled
from varlog.daemon.service import Service, run
from varlog.manager.server import ManagerServer


def main(config: ManagerConfig) -> int:
    """Run until stopped; returns the exit code."""

    async def live(service: Service[ManagerConfig]) -> None:
        manager = await ManagerServer.start(config)
        try:
            metrics = service.metrics
            metrics.gauge("varlog_nodes_registered", "Storage nodes registered.", lambda: len(manager.registered))
            metrics.gauge("varlog_nodes_answering", "Storage nodes that answer.", lambda: len(manager.answering))
            metrics.gauge("varlog_manager_leads", "1 if this manager acts, 0 if it stands by.", lambda: manager.leads)
            metrics.counters(
                "varlog_manager_steps",
                "Requests sent to bring log streams back.",
                ("request",),
                lambda: _steps(manager),
            )
            await service.expose(lambda: health(manager))
            service.ready(manager.listening)
            await service.stop.wait()
        finally:
            await manager.stop()

    return run(live, config)


def _steps(manager: ManagerServer) -> Labelled:
    return [((kind,), count) for kind, count in sorted(manager.sent.items())]


def health(manager: ManagerServer) -> Health:
    """Whether it does its part: the metadata repository answers it, and if it leads, so do all nodes. Which nodes are
    silent is for the one that leads to say."""
    silent = sorted(set(manager.registered) - set(manager.answering)) if manager.leads else []
    status = "disconnected" if not manager.is_answered else "degraded" if silent else "ok"
    details = {
        "address": manager.address,
        "role": "leading" if manager.leads else "standing by",
        "leader": manager.leader_elsewhere or None,
        "metadata_repository": manager.repositories.told(answers=manager.is_answered),
        "storage_nodes": manager.registered,
        "silent": silent,
        "doing": manager.doing,
    }
    return Health(status, details)
