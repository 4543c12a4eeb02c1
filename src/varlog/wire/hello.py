"""The hello: how two processes make sure of each other before anything else is said.

    dialer                                   server
      Hello(version, cid, role, id, nonce) ->
                                          <- Welcome(version, cid, role, id, nonce, proof)
      Proof(proof)                         ->
                                          <- Ready()

Each side chooses a nonce, and proves that it knows the cluster's secret by an HMAC over everything both have said. The
two proofs begin with different labels, so neither can be sent back as the other (reflection); both nonces are in both,
so neither is worth anything on another connection (replay). A side that does not agree sends `Refused` with the code of
the error, and closes. `Refused` may also come later, as the last thing a peer says before it closes.

Nothing here does I/O: a handshake is given messages and returns what to answer. It is over when `peer` is set, and
until then nothing it was told is believed.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from enum import IntEnum
from struct import Struct
from typing import Annotated, Final, NamedTuple, Protocol

from msgspec import Meta

from varlog.core.messages import Message
from varlog.errors import ProtocolError, UnsupportedProtocol, VarlogError, WrongCluster, WrongRole, WrongSecret
from varlog.types import ClusterID
from varlog.wire.secret import Secret

PROTOCOL_VERSION: Final = 1
NONCE_BYTES: Final = 32
PROOF_BYTES: Final = 32
MAX_DETAIL: Final = 200
"""Characters, so that a refusal fits into a frame of the hello whatever they are."""

SERVER_LABEL: Final = b"varlog server proof\0"
DIALER_LABEL: Final = b"varlog dialer proof\0"
_STATEMENT = Struct("<HQBQBQ")

Natural = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
Nonce = Annotated[bytes, Meta(min_length=NONCE_BYTES, max_length=NONCE_BYTES)]
ProofBytes = Annotated[bytes, Meta(min_length=PROOF_BYTES, max_length=PROOF_BYTES)]


class Role(IntEnum):
    """What kind of process is at the other end."""

    CLIENT = 1
    STORAGE_NODE = 2
    METADATA_REPOSITORY = 3
    MANAGER = 4
    SEQUENCER = 5


class Identity(NamedTuple):
    """Who a process is: the cluster it belongs to, its role, and its id among those of its role (0: it has none)."""

    cid: ClusterID
    role: Role
    node_id: int = 0


class Hello(Message, frozen=True):
    """The first message of every connection."""

    version: Natural
    cid: Natural
    role: Natural
    node_id: Natural
    nonce: Nonce


class Welcome(Message, frozen=True):
    """The server's part of the hello, with its proof."""

    version: Natural
    cid: Natural
    role: Natural
    node_id: Natural
    nonce: Nonce
    proof: ProofBytes


class Proof(Message, frozen=True):
    """The dialer's proof."""

    proof: ProofBytes


class Ready(Message, frozen=True):
    """The hello is done; from here on both may send whatever the protocol allows."""


class Refused(Message, frozen=True):
    """Why the sender closes the connection: the code of an error, and what it has to say."""

    code: Natural
    detail: str


class PeerRefused(Exception):
    """Taken apart, a `Refused` is not a message for anyone but the end of the connection."""

    def __init__(self, refused: Refused) -> None:
        super().__init__(refused.detail)
        self.error = reason(refused)


class Handshake(Protocol):
    """One side of a hello."""

    peer: Identity | None
    """Who is at the other end; None until the hello is done."""

    def begin(self) -> Message | None:
        """What to say unasked."""

    def receive(self, message: Message) -> Message | None:
        """What to answer; raises why the peer is not to be talked to."""


def refusal(error: VarlogError) -> Refused:
    """What to say before closing because of an error."""
    sayable = str(error)[:MAX_DETAIL].encode("utf-8", "replace").decode()
    return Refused(error.code, sayable)


def reason(refused: Refused) -> VarlogError:
    """The error a peer closed because of, as this side raises it."""
    detail = refused.detail[:MAX_DETAIL]
    cls = VarlogError.registry.get(refused.code, ProtocolError)
    takes_a_text = cls.__init__ is VarlogError.__init__
    return cls(detail) if takes_a_text else ProtocolError(detail)


def statement(label: bytes, dialer: Identity, server: Identity, dialer_nonce: bytes, server_nonce: bytes) -> bytes:
    """What a proof is made over."""
    said = _STATEMENT.pack(PROTOCOL_VERSION, dialer.cid, dialer.role, dialer.node_id, server.role, server.node_id)
    return label + said + dialer_nonce + server_nonce


def _check(theirs: Hello | Welcome, ours: Identity, wanted: frozenset[Role]) -> Identity:
    """Who the peer says it is, if it may be that. Both sides read what this says, so it speaks of them by name."""
    them, us = ("the dialer", "the server") if isinstance(theirs, Hello) else ("the server", "the dialer")
    if theirs.version != PROTOCOL_VERSION:
        raise UnsupportedProtocol(
            f"{them} speaks version {theirs.version} of the protocol, {us} version {PROTOCOL_VERSION}"
        )
    if theirs.cid != ours.cid:
        raise WrongCluster(f"{them} is of cluster {theirs.cid}, {us} of cluster {ours.cid}")
    if theirs.role not in wanted:
        known = Role(theirs.role).name if theirs.role in Role.__members__.values() else f"of role {theirs.role}"
        expected = " or ".join(role.name for role in sorted(wanted))
        raise WrongRole(f"{them} is {known}; {us}, a {ours.role.name}, talks to {expected} here")
    return Identity(ours.cid, Role(theirs.role), theirs.node_id)


class Dialing:
    """The hello of the side that connects."""

    def __init__(self, identity: Identity, wants: Role, secret: Secret, node_id: int = 0) -> None:
        """`node_id` is which one of its role the server has to be; 0: any."""
        self.peer: Identity | None = None
        self._identity = identity
        self._wants = frozenset({wants})
        self._node_id = node_id
        self._secret = secret
        self._nonce = secrets.token_bytes(NONCE_BYTES)
        self._proven: Identity | None = None

    def begin(self) -> Message:
        return Hello(PROTOCOL_VERSION, self._identity.cid, self._identity.role, self._identity.node_id, self._nonce)

    def receive(self, message: Message) -> Message | None:
        if isinstance(message, Welcome) and self._proven is None:
            server = _check(message, self._identity, self._wants)
            if self._node_id not in {0, server.node_id}:
                raise WrongRole(f"the server is {server.role.name} {server.node_id}; the dialer wants {self._node_id}")
            both = (self._identity, server, self._nonce, message.nonce)
            if not self._secret.proves(message.proof, statement(SERVER_LABEL, *both)):
                raise WrongSecret("the server could not prove that it knows the cluster's secret")
            self._proven = server
            return Proof(self._secret.proof(statement(DIALER_LABEL, *both)))
        if isinstance(message, Ready) and self._proven is not None:
            self.peer = self._proven
            return None
        raise ProtocolError(f"{type(message).__name__} has no place here in a hello")


class Accepting:
    """The hello of the side that listens."""

    def __init__(
        self,
        identity: Identity,
        accepts: frozenset[Role],
        secret: Secret,
        admit: Callable[[Identity], None] | None = None,
    ) -> None:
        """`admit` is asked for everybody who has proven to be of the cluster, and raises why there is no place."""
        self.peer: Identity | None = None
        self._identity = identity
        self._accepts = accepts
        self._admit = admit
        self._secret = secret
        self._nonce = secrets.token_bytes(NONCE_BYTES)
        self._claimed: Identity | None = None
        self._expected = b""

    def begin(self) -> None:
        """The dialer speaks first."""

    def receive(self, message: Message) -> Message | None:
        if isinstance(message, Hello) and self._claimed is None:
            self._claimed = _check(message, self._identity, self._accepts)
            both = (self._claimed, self._identity, message.nonce, self._nonce)
            self._expected = statement(DIALER_LABEL, *both)
            proof = self._secret.proof(statement(SERVER_LABEL, *both))
            ours = self._identity
            return Welcome(PROTOCOL_VERSION, ours.cid, ours.role, ours.node_id, self._nonce, proof)
        if isinstance(message, Proof) and self._claimed is not None:
            if not self._secret.proves(message.proof, self._expected):
                raise WrongSecret("the dialer could not prove that it knows the cluster's secret")
            if self._admit is not None:
                self._admit(self._claimed)
            self.peer = self._claimed
            return Ready()
        raise ProtocolError(f"{type(message).__name__} has no place here in a hello")
