"""Prover: a storage node's side of proving who it is (B11; `core.identity` tells the whole story).

It says what to announce to the metadata repository, and what follows from the answer. The secrets are kept by a
`Keeper`, durably and on all volumes before anybody is told of them. So whatever is interrupted, what the volumes hold
is accepted by the metadata repository afterwards: a secret is dropped only once its successor is on record.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import NamedTuple, Protocol

from varlog import errors, limits
from varlog.core import identity
from varlog.core.messages import AdoptIdentity, AnnounceNode, Decided, IdentityAdopted
from varlog.types import StorageNodeID


class Held(NamedTuple):
    """A secret that a node has or will have."""

    generation: int
    secret: str
    origin: str
    """The proof of the secret that was given with this generation: all that follow are made by the node itself."""

    def __repr__(self) -> str:
        return f"Held({self.generation}, ...)"


class Keeper(Protocol):
    """Where a node's secrets lie."""

    held: Held | None
    next: Held | None

    def keep(self, held: Held | None, successor: Held | None) -> None:
        """Have both, on all volumes, when this returns. If it raises, some volumes have them and some what was there
        before; `held` and `next` tell the latter."""


class Outcome(Enum):
    """What the metadata repository's answer means."""

    ADMITTED = "the node takes part"
    PROVEN = "it takes part; announce it again, with its next secret"
    LATER = "announce it again, after a while"
    APART = "it takes no part"


class Prover:
    """See the module's text. `random` gives the bytes that a secret is made of."""

    def __init__(self, snid: StorageNodeID, starts: int, keeper: Keeper, random: Callable[[], bytes]) -> None:
        self._snid = snid
        self._starts = starts
        self._keeper = keeper
        self._random = random
        self._has_rolled = False
        self._request: int | None = None
        self._is_admitted = False
        self._is_outdated = False
        """The secret it has belongs to the past, and the one on record has not reached it."""

    @property
    def boot(self) -> int:
        """The number of this start. Another identity makes it another start."""
        held = self._keeper.held
        return identity.boot_of(held.generation if held is not None else 0, self._starts)

    @property
    def is_identified(self) -> bool:
        """Whether it can say who it is, or need not."""
        return self._is_admitted or (self._keeper.held is not None and not self._is_outdated)

    def announce(self, request: int, address: str, volumes: tuple[str, ...]) -> AnnounceNode:
        """What to say to the metadata repository after every connect."""
        self._request = request
        keeper = self._keeper
        held = keeper.held
        if held is None:
            return AnnounceNode(request, self._snid, address, volumes, self.boot)
        if keeper.next is None and not self._has_rolled:
            self._prepare(held)
        proof = identity.proof_of(self._snid, keeper.next.secret) if keeper.next is not None else ""
        return AnnounceNode(request, self._snid, address, volumes, self.boot, held.secret, proof)

    def _prepare(self, held: Held) -> None:
        """Have another secret ready. Where there is no room for it the old one stays good."""
        successor = held._replace(secret=identity.new_secret(self._random()))
        try:
            self._keeper.keep(held, successor)
        except errors.VarlogError:
            self._has_rolled = True

    def on_decided(self, answer: Decided) -> Outcome:
        """The metadata repository has answered. Raises `WrongIdentity` if this is not the node it claims to be."""
        if answer.request != self._request:
            return Outcome.APART
        self._request = None
        self._is_admitted = answer.code == 0
        if not answer.code:
            self._is_outdated = False
            return self._roll()
        if answer.code == errors.WrongIdentity.code and self._keeper.held is not None:
            raise errors.WrongIdentity(answer.detail)
        if answer.code == errors.Conflict.code:
            self._is_outdated = True
        named = errors.VarlogError.registry.get(answer.code)
        return Outcome.LATER if named is not None and named.retriable else Outcome.APART

    def _roll(self) -> Outcome:
        """The next secret is on record, if there is one: from now on it is the one to show."""
        keeper = self._keeper
        if keeper.next is None:
            return Outcome.ADMITTED
        try:
            keeper.keep(keeper.next, None)
        except errors.VarlogError:  # both are good, until one of them is shown again
            return Outcome.ADMITTED
        self._has_rolled = True
        return Outcome.PROVEN

    def adopt(self, message: AdoptIdentity) -> IdentityAdopted:
        """Take the secret that the manager has had recorded. One of an earlier registration comes too late."""
        try:
            self._adopt(message)
        except errors.VarlogError as error:
            return IdentityAdopted(message.request, error.code, str(error)[: limits.MAX_DETAIL])
        return IdentityAdopted(message.request, 0)

    def _adopt(self, message: AdoptIdentity) -> None:
        if message.snid != self._snid:
            raise errors.WrongIdentity(f"this is storage node {self._snid}, not {message.snid}")
        if not identity.is_secret(message.secret) or not 1 <= message.generation <= identity.MAX_GENERATION:
            raise errors.InvalidArgument("that is no identity of a storage node")
        held, origin = self._keeper.held, identity.proof_of(self._snid, message.secret)
        if held is not None and message.generation <= held.generation:
            if (held.generation, held.origin) == (message.generation, origin):
                return
            raise errors.WrongIdentity(
                f"storage node {self._snid} has its identity number {held.generation} already, and is given number "
                f"{message.generation}"
            )
        given = Held(message.generation, message.secret, origin)
        self._keeper.keep(held, given)
        self._keeper.keep(given, None)
        self._has_rolled = self._is_admitted = self._is_outdated = False
