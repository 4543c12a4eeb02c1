"""`vsq start`: the sequencer as a process of its own."""

from __future__ import annotations

from varlog.daemon.config import SequencerConfig
from varlog.daemon.http import Health
from varlog.daemon.metrics import Metrics
from varlog.daemon.service import Service, run
from varlog.sequencer.server import SequencerServer


def main(config: SequencerConfig) -> int:
    """Run until stopped; returns the exit code."""

    async def live(service: Service[SequencerConfig]) -> None:
        sequencer = await SequencerServer.start(config)
        try:
            declare(service.metrics, sequencer)
            await service.expose(lambda: health(sequencer))
            service.ready(sequencer.listening)
            await service.stop.wait()
        finally:
            await sequencer.stop()

    return run(live, config)


def declare(metrics: Metrics, sequencer: SequencerServer) -> None:
    core = sequencer.core
    metrics.gauge("varlog_sequencer_registered", "1 if the metadata repository knows it.", lambda: core.is_registered)
    metrics.gauge("varlog_sequencer_topics", "Topics it gives out the positions of.", lambda: core.topics)
    metrics.gauge("varlog_sequencer_waiting", "Requests that wait for a projection.", lambda: core.waiting)
    metrics.counter("varlog_sequencer_requests", "Requests answered with positions.", lambda: core.requests)
    metrics.counter("varlog_sequencer_positions", "Positions given out.", lambda: core.positions)
    metrics.counter(
        "varlog_sequencer_skipped", "Positions left out at the end of a block; clients fill them.", lambda: core.skipped
    )
    metrics.counter("varlog_sequencer_refused", "Requests answered with an error.", lambda: core.refused)


def health(sequencer: SequencerServer) -> Health:
    core = sequencer.core
    status = "ok" if core.is_registered and sequencer.is_connected else "disconnected"
    details = {
        "address": sequencer.address,
        "boot": core.boot,
        "metadata_repository": "connected" if sequencer.is_connected else sequencer.repositories.missing(),
        "registered": core.is_registered,
        "refused": core.complaint or None,
        "topics": core.topics,
    }
    return Health(status, details)
