"""The messages that come by the ten thousand, packed by hand.

Their bodies are fixed little-endian fields, followed in some by the raw bytes of a record batch. Each function here
makes the codec of one message from the message's number: the header of its frame and its fixed part are one `struct`,
so encoding a message is one call to it and one concatenation.

A decoder is given the buffer and where in it the body lies. `decode` is for a buffer that will be overwritten: what it
returns owns its bytes. `adopt` is for a buffer that was made for this frame alone: what it returns refers into it.
The reader of frames has checked the body's length against the codec's bounds before either is called.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Any, Final, NamedTuple

from varlog import limits
from varlog.batch import Buffer
from varlog.core.messages import (
    Append,
    AppendReply,
    Message,
    Replicate,
    ReplicateAck,
    Scan,
    ScanReply,
    StoredLine,
)
from varlog.errors import BatchTooLarge, InvalidArgument, ProtocolError

Out = Callable[[Buffer], None]
"""Takes the next piece of what is sent; a piece must not change any more."""

Decode = Callable[[memoryview, int, int], Message]

JOIN_BYTES: Final = 16 * limits.KIB
"""A batch up to this size is copied behind its header; a larger one is sent from where it lies."""

FRAME: Final = "<IHH"


class Codec(NamedTuple):
    """How one kind of message becomes bytes and is made from them."""

    encode: Callable[[Any, Out], int]
    """Takes a message of that kind and hands over the pieces of the whole frame; returns how many bytes they are."""
    decode: Decode
    adopt: Decode
    least: int
    most: int
    """Bounds of the length of the body."""


class Ping(Message, frozen=True):
    """Asks whether the peer is there; every server answers it, at any time after the hello."""

    request: int
    payload: bytes = b""
    """Anything; only its length matters, to whoever measures."""


class Pong(Message, frozen=True):
    request: int
    time: int
    """The peer's clock, in microseconds since 1970."""


LAYOUTS: Final[dict[type[Message], str]] = {
    Ping: "Q",
    Pong: "QQ",
    Append: "QQQQQ",
    AppendReply: "QQHQQQIB?",
    Scan: "QQQI?",
    ScanReply: "QQHQQIH",
    Replicate: "QQQQ",
    ReplicateAck: "QQQ?QQ",
}
"""The fixed part of each, in the order of its fields; a batch or payload is what follows. Only a `ScanReply` differs:
its fixed part is request, lsid, code, complete_to, first, number of batches and bytes of detail; the detail and the
batches follow, each batch behind a `STORED`."""

STORED: Final = Struct("<QQIQQQI")
"""Before each batch: glsn, llsn, count, epoch, version, time, length of the batch."""


def _fixed(cls: type[Message]) -> tuple[Callable[..., bytes], Callable[..., tuple[Any, ...]], int]:
    """To pack the fixed part behind its frame's header, to unpack it, and its size."""
    body = Struct("<" + LAYOUTS[cls])
    return Struct(FRAME + LAYOUTS[cls]).pack, body.unpack_from, body.size


def _payload_size(payload: Buffer, most: int) -> int:
    size = len(payload)
    if size > most:
        raise BatchTooLarge(f"{size} bytes do not fit into a message that holds at most {most}; split them")
    return size


def ping(number: int) -> Codec:
    pack, unpack, _ = _fixed(Ping)

    def encode(message: Ping, out: Out) -> int:
        size = 8 + _payload_size(message.payload, limits.MAX_PING_BYTES)
        out(pack(size, number, 0, message.request) + message.payload)
        return 8 + size

    def decode(view: memoryview, begin: int, end: int) -> Message:
        return Ping(unpack(view, begin)[0], view[begin + 8 : end].tobytes())

    return Codec(encode, decode, decode, 8, 8 + limits.MAX_PING_BYTES)


def pong(number: int) -> Codec:
    pack, unpack, _ = _fixed(Pong)

    def encode(message: Pong, out: Out) -> int:
        out(pack(16, number, 0, message.request, message.time))
        return 24

    def decode(view: memoryview, begin: int, _end: int) -> Message:
        return Pong(*unpack(view, begin))

    return Codec(encode, decode, decode, 16, 16)


def append(number: int) -> Codec:
    pack, unpack, _ = _fixed(Append)

    def encode(message: Append, out: Out) -> int:
        batch = message.batch
        size = len(batch)
        if size > JOIN_BYTES:
            _payload_size(batch, limits.MAX_BATCH_BYTES)
        head = pack(
            40 + size,
            number,
            0,
            message.request,
            message.lsid,
            message.epoch,
            message.prev_sequence,
            message.horizon,
        )
        if size <= JOIN_BYTES:
            out(head + batch)
        else:
            out(head)
            out(batch)
        return 48 + size

    def decode(view: memoryview, begin: int, end: int) -> Message:
        request, lsid, epoch, prev_sequence, horizon = unpack(view, begin)
        return Append(request, lsid, epoch, prev_sequence, horizon, view[begin + 40 : end].tobytes())

    def adopt(view: memoryview, begin: int, end: int) -> Message:
        request, lsid, epoch, prev_sequence, horizon = unpack(view, begin)
        return Append(request, lsid, epoch, prev_sequence, horizon, view[begin + 40 : end])

    return Codec(encode, decode, adopt, 40, 40 + limits.MAX_BATCH_BYTES)


def append_reply(number: int) -> Codec:
    pack, unpack, size = _fixed(AppendReply)

    def encode(message: AppendReply, out: Out) -> int:
        out(
            pack(
                size,
                number,
                0,
                message.request,
                message.lsid,
                message.code,
                message.epoch,
                message.glsn,
                message.llsn,
                message.count,
                message.replicas,
                message.synced,
            )
        )
        return 8 + size

    def decode(view: memoryview, begin: int, _end: int) -> Message:
        return AppendReply(*unpack(view, begin))

    return Codec(encode, decode, decode, size, size)


def replicate(number: int) -> Codec:
    pack, unpack, _ = _fixed(Replicate)

    def encode(message: Replicate, out: Out) -> int:
        batch = message.batch
        size = len(batch)
        if size > JOIN_BYTES:
            _payload_size(batch, limits.MAX_BATCH_BYTES)
        head = pack(32 + size, number, 0, message.lsid, message.epoch, message.llsn, message.prev_sequence)
        if size <= JOIN_BYTES:
            out(head + batch)
        else:
            out(head)
            out(batch)
        return 40 + size

    def decode(view: memoryview, begin: int, end: int) -> Message:
        lsid, epoch, llsn, prev_sequence = unpack(view, begin)
        return Replicate(lsid, epoch, llsn, prev_sequence, view[begin + 32 : end].tobytes())

    def adopt(view: memoryview, begin: int, end: int) -> Message:
        lsid, epoch, llsn, prev_sequence = unpack(view, begin)
        return Replicate(lsid, epoch, llsn, prev_sequence, view[begin + 32 : end])

    return Codec(encode, decode, adopt, 32, 32 + limits.MAX_BATCH_BYTES)


def replicate_ack(number: int) -> Codec:
    pack, unpack, size = _fixed(ReplicateAck)

    def encode(message: ReplicateAck, out: Out) -> int:
        out(
            pack(
                size,
                number,
                0,
                message.lsid,
                message.snid,
                message.epoch,
                message.accepted,
                message.received_end,
                message.durable_end,
            )
        )
        return 8 + size

    def decode(view: memoryview, begin: int, _end: int) -> Message:
        return ReplicateAck(*unpack(view, begin))

    return Codec(encode, decode, decode, size, size)


def scan(number: int) -> Codec:
    pack, unpack, size = _fixed(Scan)

    def encode(message: Scan, out: Out) -> int:
        out(
            pack(
                size,
                number,
                0,
                message.request,
                message.lsid,
                message.glsn_begin,
                message.max_bytes,
                message.wait,
            )
        )
        return 8 + size

    def decode(view: memoryview, begin: int, _end: int) -> Message:
        return Scan(*unpack(view, begin))

    return Codec(encode, decode, decode, size, size)


MAX_DETAIL_BYTES: Final = 1 * limits.KIB
MAX_SCAN_REPLY: Final = 2 * limits.SCAN_REPLY_BYTES + limits.MAX_BATCH_BYTES + 2 * MAX_DETAIL_BYTES
"""A reply ends with the batch that reaches `max_bytes`. What stands before its batches may be as much again as they
are, if they are small."""


def scan_reply(number: int) -> Codec:
    pack, unpack, head = _fixed(ScanReply)
    pack_stored, unpack_stored, step = STORED.pack, STORED.unpack_from, STORED.size

    def encode(message: ScanReply, out: Out) -> int:
        detail = message.detail.encode("utf-8", "replace")[:MAX_DETAIL_BYTES]
        pieces: list[Buffer] = [detail] if detail else []
        size = head + len(detail)
        for glsn, llsn, count, epoch, version, time, batch in message.batches:
            length = len(batch)
            size += step + length
            pieces += (pack_stored(glsn, llsn, count, epoch, version, time, length), batch)
        if size > MAX_SCAN_REPLY:
            raise InvalidArgument(f"a reply of {size} bytes to a scan; at most {MAX_SCAN_REPLY} fit into one")
        out(
            pack(
                size,
                number,
                0,
                message.request,
                message.lsid,
                message.code,
                message.complete_to,
                message.first,
                len(message.batches),
                len(detail),
            )
        )
        for piece in pieces:
            out(piece)
        return 8 + size

    def adopt(view: memoryview, begin: int, end: int) -> Message:
        request, lsid, code, complete_to, first, count, told = unpack(view, begin)
        at = begin + head + told
        detail = str(view[begin + head : at], "utf-8", "replace") if told else ""
        batches = _stored(view, at, end, count, unpack_stored)
        return ScanReply(request, lsid, code, batches, complete_to, first, detail)

    def decode(view: memoryview, begin: int, end: int) -> Message:
        """Copies the body once; the batches refer into the copy."""
        return adopt(memoryview(view[begin:end].tobytes()), 0, end - begin)

    return Codec(encode, decode, adopt, head, MAX_SCAN_REPLY)


def _stored(view: memoryview, at: int, end: int, left: int, unpack: Callable[..., Any]) -> tuple[StoredLine, ...]:
    """The batches of a reply to a scan, which fill the rest of it exactly."""
    step = STORED.size
    if left * step > end - at:
        raise ProtocolError(f"{left} batches do not fit into the {end - at} bytes left of a reply to a scan")
    batches: list[StoredLine] = []
    while left:
        glsn, llsn, count, epoch, version, time, length = unpack(view, at)
        begin = at + step
        at = begin + length
        if at > end:
            raise ProtocolError("a batch reaches beyond the end of the reply to a scan")
        batches.append((glsn, llsn, count, epoch, version, time, view[begin:at]))
        left -= 1
    if at != end:
        raise ProtocolError(f"{end - at} bytes follow the last batch of a reply to a scan")
    return tuple(batches)
