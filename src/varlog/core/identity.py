"""Who a storage node is, and how it proves that (B11).

A directory can be copied, put under another node, or be empty; its name proves nothing. So a node is given a *secret*
at registration, which its volumes hold, and the metadata repository keeps the *proof* of it, from which the secret
cannot be found. A node shows its secret whenever it connects, and only then do its reports count.

The secret is rolled: with each start the node names the proof of the next one, and changes to that once it is recorded.
So of two copies of a node's volumes the one that is started first is the node, and the other has a secret that has
passed. Both secrets count in between, because the node may stop at any point of it:

    on the volumes                on record         what is announced
    secret 1                      1                 1, and the proof of 2
    secret 1, next 2              1, next 2         (admitted: the volumes change to 2)
    secret 2                      1, next 2         2
    secret 2                      2                 (admitted)

A node that has lost its disks has no secret. When no log stream runs with it any more it is *renewed*: it is given
another secret, of the next *generation*. The number of a start (boot) begins with the generation, so that it grows
although the count of starts is lost with the disks.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Final, NamedTuple

from varlog import errors
from varlog.types import StorageNodeID

SECRET_BYTES: Final = 32
_DIGITS: Final = 2 * SECRET_BYTES
GENERATION_SHIFT: Final = 32
MAX_GENERATION: Final = (1 << 31) - 1


def new_secret(random: bytes) -> str:
    """A secret of so many random bytes."""
    if len(random) != SECRET_BYTES:
        raise errors.InvalidArgument(f"a node's secret is made of {SECRET_BYTES} bytes, not {len(random)}")
    return random.hex()


def is_secret(text: str) -> bool:
    """Whether it has the form of a secret, which is also that of a proof."""
    return len(text) == _DIGITS and not text.strip("0123456789abcdef")


def proof_of(snid: StorageNodeID, secret: str) -> str:
    """What the metadata repository keeps of a node's secret."""
    return sha256(b"varlog node %d %s" % (snid, secret.encode())).hexdigest()


def boot_of(generation: int, starts: int) -> int:
    """The number of a start: greater at every start, and after every renewal."""
    return generation << GENERATION_SHIFT | starts


def generation_of(boot: int) -> int:
    return boot >> GENERATION_SHIFT


class Recorded(NamedTuple):
    """What the metadata repository knows of who a node is."""

    generation: int
    proof: str
    next_proof: str
    boot: int
    """Of the start that was admitted last; 0 if none was."""


def admit(snid: StorageNodeID, recorded: Recorded, boot: int, secret: str, next_proof: str) -> Recorded:
    """What to record when a node announces itself, if it is who it says it is.

    `WrongIdentity` says that it is not. A node that has shown no secret goes on without taking part, since it may be
    given one; one that has shown a wrong secret stops. `Conflict` says that the secret on record has not reached the
    node: it has shown an earlier one, nothing is wrong with it, and it has to wait for another.
    """
    if not secret:
        raise errors.WrongIdentity(
            f"storage node {snid} is registered, but the volumes it was started with hold no secret: they are new, or "
            "its data was lost; once no log stream runs with it the manager gives it a new identity"
        )
    shown = proof_of(snid, secret)
    if shown == recorded.next_proof:
        recorded = recorded._replace(proof=shown, next_proof="")
    elif shown != recorded.proof:
        if generation_of(recorded.boot) < recorded.generation > generation_of(boot):
            raise errors.Conflict(f"storage node {snid} is about to be given a new identity")
        raise errors.WrongIdentity(
            "if metadata was restored from a backup that is older than the node's last start, empty nothing: varlog "
            f"metadata rebuild. Else the volumes are not those of storage node {snid} as it was last seen: they are a "
            "copy, or an older state of them, or another node's; start it with its own, or empty them to begin anew"
        )
    if boot < recorded.boot:
        raise errors.WrongIdentity(
            f"storage node {snid} has counted fewer starts than when it was last seen: its volumes are an older state; "
            "start it with its own volumes, or empty them to begin anew"
        )
    return recorded._replace(boot=boot, next_proof=next_proof or recorded.next_proof)
