"""What a batch says of a transaction: the mark of a batch that belongs to one, and the verdict that ends it.

A batch of a transaction has the flag TRANSACTION and an extension, the *mark*: of which transaction it is, of which
part of it, and after which position all of the transaction lies. A *verdict* is the only entry of a batch that has the
flag CONTROL. The first verdict on a transaction, in the order of the log, is its fate; others mean nothing. A COMMIT
names the parts that are committed, so what was written for a part that nobody counted in is never seen.

A COMMIT also says up to where its writer had looked for a verdict before, and found none: at least up to the last batch
that it counts in. What lies behind that position is not committed by it. So a COMMIT that came too late can show
nothing even when the verdict that came first is trimmed: that one is behind every batch the COMMIT speaks of, and as
long as one of those is there, so is the verdict.

Layouts, little-endian. The mark:

    offset  0  txid      u64
            8  after     u64   every batch of the transaction, and every verdict on it, has a greater GLSN
           16  part      u64   one writer's share; chosen at random by who begins it
           24  expiry    u32   milliseconds: readers need not wait for its verdict any longer
           28  reserved  u32   0

A verdict:

    offset  0  kind      u8    see `VerdictKind`
            1  reserved  7 x u8  0
            8  txid      u64
           16  after     u64   as in the mark: both together name the transaction
           24  checked   u64   no verdict is at a GLSN after `after` and up to this one; 0 unless it is a COMMIT
           32  count     u32   parts, 0 unless it is a COMMIT
           36  reserved  u32   0
           40  parts           each: part u64, entries u64, ascending by part
               reason          UTF-8 text for people, to the end
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from enum import IntEnum
from itertools import pairwise
from typing import Final, NamedTuple

from varlog import limits
from varlog.batch.header import Buffer
from varlog.errors import InvalidArgument, MalformedBatch
from varlog.types import GLSN, TransactionID

MARK_TAG: Final = 1
"""Of the extension."""
_MARK: Final = struct.Struct("<QQQII")
MARK_BYTES: Final = _MARK.size
_VERDICT: Final = struct.Struct("<B7xQQQII")
_PART: Final = struct.Struct("<QQ")


class VerdictKind(IntEnum):
    """How a transaction ended."""

    COMMIT = 1
    ABORT = 2
    EXPIRE = 3


_KINDS: Final = frozenset(VerdictKind)


class Mark(NamedTuple):
    """Which transaction a batch belongs to."""

    txid: TransactionID
    after: GLSN
    part: int
    expiry: int
    """Milliseconds."""


class Verdict(NamedTuple):
    """How a transaction ended, as the log has it."""

    kind: VerdictKind
    txid: TransactionID
    after: GLSN
    parts: tuple[tuple[int, int], ...] = ()
    """(part, how many entries it has), ascending."""
    reason: str = ""
    checked: GLSN = GLSN(0)
    """Of a COMMIT: batches up to here are committed by it; before it was written, no verdict was up to here."""


def encode_mark(mark: Mark) -> bytes:
    """The extension's bytes."""
    try:
        return _MARK.pack(mark.txid, mark.after, mark.part, mark.expiry, 0)
    except struct.error as e:
        raise InvalidArgument(f"{mark} does not fit a batch: {e}") from None


def mark_of(extensions: Mapping[int, bytes]) -> Mark:
    """The mark of a batch that has the flag TRANSACTION."""
    found = extensions.get(MARK_TAG, b"")
    if len(found) != _MARK.size:
        raise MalformedBatch(f"the mark of a transaction has {_MARK.size} bytes, not {len(found)}")
    txid, after, part, expiry, reserved = _MARK.unpack(found)
    if reserved or not txid:
        raise MalformedBatch("the mark of a transaction has no id, or reserved bytes that are not zero")
    return Mark(TransactionID(txid), GLSN(after), part, expiry)


def encode_verdict(verdict: Verdict) -> bytes:
    """The entry that says so."""
    if len(verdict.parts) > limits.MAX_TRANSACTION_PARTS:
        raise InvalidArgument(f"{len(verdict.parts)} parts, at most {limits.MAX_TRANSACTION_PARTS} make a transaction")
    # Names of files that are no UTF-8 come as lone surrogates, in what errors say.
    reason = verdict.reason.encode(errors="backslashreplace")[: limits.MAX_DETAIL].decode(errors="ignore").encode()
    try:
        head = _VERDICT.pack(verdict.kind, verdict.txid, verdict.after, verdict.checked, len(verdict.parts), 0)
        return b"".join([head, *(_PART.pack(*part) for part in verdict.parts), reason])
    except struct.error as e:
        raise InvalidArgument(f"a verdict on transaction {verdict.txid} does not fit an entry: {e}") from None


def decode_verdict(entry: Buffer) -> Verdict:
    """What an entry of a batch with the flag CONTROL says."""
    if len(entry) < _VERDICT.size:
        raise MalformedBatch(f"{len(entry)} bytes are no verdict on a transaction")
    kind, txid, after, checked, count, reserved = _VERDICT.unpack_from(entry)
    parts_end = _VERDICT.size + count * _PART.size
    if count > limits.MAX_TRANSACTION_PARTS or len(entry) < parts_end or reserved or not txid:
        raise MalformedBatch(f"a verdict of {len(entry)} bytes cannot name {count} parts, or names no transaction")
    if kind not in _KINDS or ((count or checked) and kind != VerdictKind.COMMIT):
        raise MalformedBatch(f"{count} parts in a verdict of kind {kind}, unknown to this release or without parts")
    if checked and checked < after:
        raise MalformedBatch(f"a COMMIT of what lies after {after} that was checked up to {checked} only")
    parts = tuple(_PART.iter_unpack(memoryview(entry)[_VERDICT.size : parts_end]))
    if any(low >= high for (low, _), (high, _) in pairwise(parts)):
        raise MalformedBatch("the parts of a verdict are not in order")
    reason = bytes(memoryview(entry)[parts_end:][: limits.MAX_DETAIL]).decode(errors="replace")
    return Verdict(VerdictKind(kind), TransactionID(txid), GLSN(after), parts, reason, GLSN(checked))
