"""The network of a run: every process that may lead is reached at the metadata repository's address, who is dead cannot
be connected to, and a witness sees what is sent."""

from __future__ import annotations

from collections.abc import Sequence

from varlog.core.address import METADATA_REPOSITORY
from varlog.core.messages import Message
from varlog.sim.chains.witness import Witness
from varlog.sim.network import Network
from varlog.sim.process import Process
from varlog.sim.world import World


class ChainNetwork(Network):
    """See the module's text."""

    def __init__(self, world: World, witness: Witness) -> None:
        super().__init__(world)
        self.repositories: Sequence[str] = ()
        self._witness = witness

    def start_of(self, address: str) -> int:
        """Which start of the process at an address lives; -1 if none does."""
        endpoint = self._endpoints.get(address)
        return endpoint[0].incarnation if endpoint is not None and endpoint[0].alive else -1

    def send(self, source: Process, address: str, message: object) -> None:
        if not source.alive:
            return
        assert isinstance(message, Message)
        self._witness.sent(source.name, address, message)
        if address == METADATA_REPOSITORY:
            for repository in self.repositories:
                super().send(source, repository, message)
        else:
            super().send(source, address, message)
