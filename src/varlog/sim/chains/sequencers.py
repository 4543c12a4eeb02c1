"""Simulated sequencers: the production core in simulated processes. Nothing of one outlives its process."""

from __future__ import annotations

from varlog import errors
from varlog.core.address import sequencer_address
from varlog.core.messages import Message, Next
from varlog.core.sequencer import Sequencer
from varlog.sim.network import Network
from varlog.sim.process import Process

TICK = 0.05


class SequencerHost:
    """One sequencer. Where it listens is said by its number."""

    def __init__(self, process: Process, network: Network, location: str) -> None:
        self.process = process
        self.location = location
        self._network = network
        self._starts = 0
        self._requests = 0
        network.attach(sequencer_address(location), process, self._receive)

    def start(self) -> None:
        """Begin to serve; the process is alive."""
        self._starts += 1
        self.sequencer = Sequencer(self.location, self._starts, self._clock, self._request, self._send)
        self.sequencer.on_leader(self.process.monotonic())
        self._tick()

    def kill(self) -> None:
        self.process.kill()

    def _clock(self) -> int:
        return max(0, int(self.process.clock() * 1_000_000))

    def _request(self) -> int:
        self._requests += 1
        return self._requests

    def _send(self, address: str, message: Message) -> None:
        self._network.send(self.process, address, message)

    def _receive(self, source: str, message: Message) -> None:
        if isinstance(message, Next) and (granted := self.sequencer.grant(message)) is not None:
            self._send(source, granted)
            return
        try:
            self.sequencer.on_message(source, message, self.process.monotonic())
        except errors.InvalidArgument as error:
            self.process.world.trace("stray message", self.process, str(error))

    def _tick(self) -> None:
        self.sequencer.tick(self.process.monotonic())
        self.process.at(TICK, self._tick)
