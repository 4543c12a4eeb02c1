"""The register of a topic's transactions: which were begun and are not known to have ended, which number was last
committed under a name, and which attempts of a name there were.

It is part of the metadata and changes by entries only (`metastate`); what may become an entry is decided in
`registering`. What is in the log decides a transaction. The register says where to look, whom an attempt has to fence,
and what a replayed one need not write again.

Of a name are kept: what was committed under it, until an operator has it forgotten; and the tokens of its last
attempts, in a few bytes each, so that an attempt that was replaced does not replace its successor. A name without a
committed number is forgotten some time after its last attempt has ended: then a token of it counts as a new one, which
begins a transaction that nobody commits.

What must always hold: an attempt is open from the entry that began it to the one that says it ended; the number of a
name never falls unless it is forgotten; `bytes` is at least what it takes in a snapshot.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from typing import Final

import msgspec

from varlog import limits
from varlog.types import GLSN, TransactionID

_DIGEST_BYTES: Final = 8
_BYTES_OF_ATTEMPT: Final = 64
_BYTES_OF_NAME: Final = 48


class Attempt(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """An open transaction."""

    txid: TransactionID
    name: str
    token: str
    number: int
    after: GLSN
    expiry: int
    begun: int
    """When, in milliseconds, by the clock of who led then."""

    @property
    def bytes(self) -> int:
        return len(self.name.encode()) + len(self.token.encode()) + _BYTES_OF_ATTEMPT


class Named(msgspec.Struct, array_like=True, gc=False):
    """What is remembered of a name."""

    committed: int = -1
    """The last number that was committed under it, and where the commit is."""
    glsn: GLSN = GLSN(0)
    latest: TransactionID = TransactionID(0)
    number: int = -1
    """Of the latest attempt."""
    open: int = 0
    """How many of its attempts are."""
    digests: bytes = b""
    """Of the tokens of its attempts, the latest one last."""

    def place(self, token: str) -> int:
        """How many attempts with other tokens came after the one with this; -1 if it is not known."""
        wanted = _digest(token)
        known = [self.digests[at : at + _DIGEST_BYTES] for at in range(0, len(self.digests), _DIGEST_BYTES)]
        return known[::-1].index(wanted) if wanted in known else -1

    def remember(self, token: str) -> None:
        if self.place(token) != 0:
            self.digests = (self.digests + _digest(token))[-limits.REMEMBERED_ATTEMPTS * _DIGEST_BYTES :]


def _digest(token: str) -> bytes:
    return blake2b(token.encode(), digest_size=_DIGEST_BYTES).digest()


class Register(msgspec.Struct, array_like=True):
    """See the module's text."""

    open: dict[TransactionID, Attempt] = {}
    names: dict[str, Named] = {}
    """With a committed number."""
    others: dict[str, Named] = {}
    """Without one; the one that was begun last is last."""
    bytes: int = 0

    def named(self, name: str) -> Named | None:
        return self.names.get(name) or self.others.get(name)

    def attempts(self, name: str, before: TransactionID) -> Iterator[Attempt]:
        """The open ones of a name that were begun before this one."""
        known = self.named(name)
        if known is not None and known.open:
            yield from (one for one in self.open.values() if one.name == name and one.txid < before)

    def begin(self, attempt: Attempt) -> None:
        """A transaction was begun."""
        name = attempt.name
        known = self.names.get(name)
        if known is None:
            known = self.others.pop(name, None) or self._add(name)
            self.others[name] = known
        self.bytes -= len(known.digests)
        known.remember(attempt.token)
        known.latest, known.number = attempt.txid, attempt.number
        known.open += 1
        self.open[attempt.txid] = attempt
        self.bytes += len(known.digests) + attempt.bytes
        self._let_go()

    def _add(self, name: str) -> Named:
        self.bytes += len(name.encode()) + _BYTES_OF_NAME
        return Named()

    def _let_go(self) -> None:
        """Forget names of which nothing is open and nothing was committed, but for the last ones."""
        if len(self.others) <= limits.REMEMBERED_NAMES:
            return
        ended = [name for name, known in self.others.items() if not known.open]
        for name in ended[: -limits.REMEMBERED_NAMES]:
            self._drop(name, self.others.pop(name))

    def _drop(self, name: str, known: Named) -> None:
        self.bytes -= len(name.encode()) + _BYTES_OF_NAME + len(known.digests)

    def end(self, txid: TransactionID, is_committed: bool, glsn: GLSN) -> None:
        """An open transaction has ended."""
        attempt = self.open.pop(txid)
        self.bytes -= attempt.bytes
        name = attempt.name
        known = self.names.get(name) or self.others[name]
        known.open -= 1
        if is_committed and attempt.number > known.committed:
            known.committed, known.glsn = attempt.number, glsn
            self.others.pop(name, None)
            self.names[name] = known
        self._let_go()

    def forget(self, name: str) -> None:
        """Nothing was ever committed under this name; no attempt of it is open."""
        self._drop(name, self.names.pop(name))
