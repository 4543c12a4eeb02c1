"""Announcing: a node tells the metadata repository where it is and who it is (M1, B11).

The decisions are `core.proving`'s; this carries them out, and says in the log what became of them. No secret is logged.
"""

from __future__ import annotations

import secrets
from functools import partial
from typing import Final

from varlog import errors
from varlog.core.identity import SECRET_BYTES
from varlog.core.messages import AdoptIdentity, AnnounceNode, Decided, IdentityAdopted
from varlog.core.proving import Outcome, Prover
from varlog.daemon import logs
from varlog.storagenode.volumes import Volumes

_TAKES_PART: Final = (Outcome.ADMITTED, Outcome.PROVEN)


class Announcing:
    """See the module's text."""

    def __init__(self, volumes: Volumes) -> None:
        self._paths = tuple(volumes.paths)
        self._prover = Prover(volumes.snid, volumes.starts, volumes.secrets, partial(secrets.token_bytes, SECRET_BYTES))
        self._log = logs.get().bind(snid=volumes.snid)
        self.is_due = False
        """The metadata repository had no time to listen, or believes the node to be somewhere else."""
        self.refusal = ""
        """Why the node takes no part although it is registered."""
        self.is_unknown = False
        """It is not registered."""

    @property
    def boot(self) -> int:
        return self._prover.boot

    @property
    def is_identified(self) -> bool:
        return self._prover.is_identified

    @property
    def was_refused(self) -> bool:
        return self.is_unknown or bool(self.refusal)

    def announce(self, request: int, address: str) -> AnnounceNode:
        """What to say after every connect, and whenever it is due."""
        self.is_due = False
        return self._prover.announce(request, address, self._paths)

    def on_decided(self, answer: Decided) -> Outcome:
        """What the answer means. Raises `WrongIdentity` if the node must stop."""
        outcome = self._prover.on_decided(answer)
        self.is_due = outcome is Outcome.LATER
        if outcome in _TAKES_PART:
            self.is_unknown, self.refusal = False, ""
        elif answer.code and answer.detail != self.refusal:
            self._log.info("not taking part", reason=answer.detail)
            self.is_unknown = answer.code == errors.UnknownNode.code
            self.refusal = "" if self.is_unknown else answer.detail
        return outcome

    def adopt(self, message: AdoptIdentity) -> IdentityAdopted:
        """Take a secret from the manager."""
        reply = self._prover.adopt(message)
        if reply.code:
            self._log.warning("an identity was refused", generation=message.generation, reason=reply.detail)
        else:
            self._log.info("identity taken", generation=message.generation)
        return reply
