"""The messages that come by the ten thousand, packed by hand.

Their bodies are fixed little-endian fields, followed in some by the raw bytes of a record batch. Each function here
makes the codec of one message from the message's number: the header of its frame and its fixed part are one `struct`,
so encoding a message is one call to it, a checksum over it, and one or two concatenations.

A decoder is given the buffer and where in it the body lies. `decode` is for a buffer that will be overwritten: what it
returns owns its bytes. `adopt` is for a buffer that was made for this frame alone: what it returns refers into it.
The reader of frames has checked the body's length against the codec's bounds before either is called.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from struct import Struct
from typing import Any, Final, NamedTuple

import msgspec
from crc32c import crc32c

from varlog import limits
from varlog.batch import Buffer
from varlog.core.messages import (
    Append,
    AppendReplies,
    AppendReply,
    ChainPart,
    ChainRead,
    ChainWrite,
    ChainWritten,
    FetchLog,
    Granted,
    LogPart,
    Message,
    Next,
    Replicate,
    ReplicateAck,
    Scan,
    ScanReply,
    StoredLine,
)
from varlog.errors import BatchTooLarge, InvalidArgument, ProtocolError
from varlog.types import CommitContext

Out = Callable[[Buffer], None]
"""Takes the next piece of what is sent; a piece must not change any more."""

Decode = Callable[[memoryview, int, int], Message]

JOIN_BYTES: Final = 16 * limits.KIB
"""A batch up to this size is copied behind its header; a larger one is sent from where it lies."""

SMALL_BATCH: Final = 2 * limits.KIB
"""Batches of this size or less are copied for no more than a view of them costs."""
RUN_BYTES: Final = 64 * limits.KIB
"""Of several batches together, likewise."""

FRAME: Final = "<IHH"
"""What follows a frame's checksum: length of the body, type, 0."""
HEADER_BYTES: Final = 12
_CRC: Final = Struct("<I")


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
    AppendReplies: "QQB?QI",
    Scan: "QQQI??",
    ScanReply: "QQHQQIH",
    Replicate: "QQQI",
    ReplicateAck: "QQQ?QQ",
    FetchLog: "QQQQQQI?",
    LogPart: "QQHQQIIIH",
    Next: "QQQI",
    Granted: "QHQQIIH",
    ChainWrite: "QQQI",
    ChainWritten: "QQHQ?IH",
    ChainRead: "QQQQI?Q?",
    ChainPart: "QQHQQQQIH",
}
"""The fixed part of each, in the order of its fields; a batch or payload is what follows. Some differ. `ScanReply`:
its fixed part is request, lsid, code, complete_to, first, number n of batches and bytes of detail; n times `STORED`,
the detail and the batches follow. `AppendReplies` and `Replicate`: the fixed part ends with the number n of what
follows in columns: n requests, n llsns (u64 each) and n counts (u32); or n previous sequences (u64), the lengths of n
batches (u32), and the batches. `LogPart`: the fixed part ends with the numbers n of batches and m of commits, and the
bytes of base and detail; n epochs, n previous sequences (u64 each) and n lengths (u32), m commits of eight u64, the
base, the detail and the batches follow. Those of the sequencer ordering are described in `chained`."""

STORED_FIELDS: Final = "QQIQQQI"
STORED: Final = Struct("<" + STORED_FIELDS)
"""Of each batch: glsn, llsn, count, epoch, version, time, length of the batch."""


def fixed_part(cls: type[Message]) -> tuple[Callable[..., bytes], Callable[..., tuple[Any, ...]], int]:
    """To pack the fixed part behind its frame's header, to unpack it, and its size."""
    body = Struct("<" + LAYOUTS[cls])
    return Struct(FRAME + LAYOUTS[cls]).pack, body.unpack_from, body.size


def sealed(rest: bytes) -> bytes:
    """A whole frame, from all that follows its checksum."""
    return _CRC.pack(crc32c(rest)) + rest


def seal_pieces(first: bytes, batches: Sequence[Buffer], out: Out) -> None:
    """The same of a frame whose batches are sent from where they lie."""
    crc = crc32c(first)
    for batch in batches:
        crc = crc32c(batch, crc)
    out(_CRC.pack(crc) + first)
    for batch in batches:
        out(batch)


def _payload_size(payload: Buffer, most: int) -> int:
    size = len(payload)
    if size > most:
        raise BatchTooLarge(f"{size} bytes do not fit into a message that holds at most {most}; split them")
    return size


def ping(number: int) -> Codec:
    pack, unpack, _ = fixed_part(Ping)

    def encode(message: Ping, out: Out) -> int:
        size = 8 + _payload_size(message.payload, limits.MAX_PING_BYTES)
        out(sealed(pack(size, number, 0, message.request) + message.payload))
        return HEADER_BYTES + size

    def decode(view: memoryview, begin: int, end: int) -> Message:
        return Ping(unpack(view, begin)[0], view[begin + 8 : end].tobytes())

    return Codec(encode, decode, decode, 8, 8 + limits.MAX_PING_BYTES)


def pong(number: int) -> Codec:
    pack, unpack, _ = fixed_part(Pong)

    def encode(message: Pong, out: Out) -> int:
        out(sealed(pack(16, number, 0, message.request, message.time)))
        return HEADER_BYTES + 16

    def decode(view: memoryview, begin: int, _end: int) -> Message:
        return Pong(*unpack(view, begin))

    return Codec(encode, decode, decode, 16, 16)


def append(number: int) -> Codec:
    pack, unpack, _ = fixed_part(Append)

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
            out(sealed(head + batch))
        else:
            seal_pieces(head, (batch,), out)
        return HEADER_BYTES + 40 + size

    def decode(view: memoryview, begin: int, end: int) -> Message:
        request, lsid, epoch, prev_sequence, horizon = unpack(view, begin)
        return Append(request, lsid, epoch, prev_sequence, horizon, view[begin + 40 : end].tobytes())

    def adopt(view: memoryview, begin: int, end: int) -> Message:
        request, lsid, epoch, prev_sequence, horizon = unpack(view, begin)
        return Append(request, lsid, epoch, prev_sequence, horizon, view[begin + 40 : end])

    return Codec(encode, decode, adopt, 40, 40 + limits.MAX_BATCH_BYTES)


def append_reply(number: int) -> Codec:
    pack, unpack, size = fixed_part(AppendReply)

    def encode(message: AppendReply, out: Out) -> int:
        out(
            sealed(
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
        )
        return HEADER_BYTES + size

    def decode(view: memoryview, begin: int, _end: int) -> Message:
        return AppendReply(*unpack(view, begin))

    return Codec(encode, decode, decode, size, size)


def append_replies(number: int) -> Codec:
    pack, unpack, head = fixed_part(AppendReplies)
    each = 8 + 8 + 4

    def encode(message: AppendReplies, out: Out) -> int:
        n = len(message.requests)
        size = head + n * each
        fixed = pack(
            size, number, 0, message.lsid, message.epoch, message.replicas, message.synced, message.shift, n
        )  # fmt: skip
        columns = struct.pack(f"<{2 * n}Q{n}I", *message.requests, *message.llsns, *message.counts)
        out(sealed(fixed + columns))
        return HEADER_BYTES + size

    def decode(view: memoryview, begin: int, end: int) -> Message:
        lsid, epoch, replicas, synced, shift, n = unpack(view, begin)
        if end - begin != head + n * each:
            raise ProtocolError(f"{n} acknowledgements in {end - begin} bytes")
        columns = struct.unpack_from(f"<{2 * n}Q{n}I", view, begin + head)
        return AppendReplies(
            lsid, epoch, replicas, synced, shift, columns[:n], columns[n : 2 * n], columns[2 * n :]
        )  # fmt: skip

    return Codec(encode, decode, decode, head, head + each * limits.MAX_UNCOMMITTED_BATCHES)


def replicate(number: int) -> Codec:
    pack, unpack, head = fixed_part(Replicate)
    each = 8 + 4
    one = Struct("<QI")
    pack_one, unpack_one = one.pack, one.unpack_from
    most, most_bytes = limits.REPLICATE_BATCHES, limits.MAX_BATCH_BYTES
    # The last small message and its frame: it goes to every backup, and is packed once. They are one tuple, so that
    # loops in several threads can never take a message for another.
    last: tuple[Replicate | None, bytes] = (None, b"")

    def encode(message: Replicate, out: Out) -> int:
        nonlocal last
        known, frame = last
        if known is message:
            out(frame)
            return len(frame)
        batches = message.batches
        n, size = len(batches), sum(map(len, batches))
        if n > most or size > most_bytes:
            raise BatchTooLarge(f"{n} batches of {size} bytes; a message holds at most {most} of {most_bytes} in all")
        body = head + n * each + size
        fixed = pack(body, number, 0, message.lsid, message.epoch, message.llsn, n)
        if n == 1:
            columns = pack_one(message.prev_sequences[0], size)
        else:
            columns = struct.pack(f"<{n}Q{n}I", *message.prev_sequences, *map(len, batches))
        if size <= RUN_BYTES:
            frame = sealed(b"".join((fixed, columns, *batches)))
            last = (message, frame)
            out(frame)
        else:
            seal_pieces(fixed + columns, batches, out)
        return HEADER_BYTES + body

    def adopt(body: bytes | memoryview, begin: int, end: int) -> Message:
        lsid, epoch, llsn, n = unpack(body, begin)
        at = begin + head + n * each
        if not 0 < n <= most or at > end:
            raise ProtocolError(f"{n} batches in {end - begin} bytes")
        columns = struct.unpack_from(f"<{n}Q{n}I", body, begin + head)
        batches = []
        for length in columns[n:]:
            batches.append(body[at : at + length])
            at += length
        if at != end:
            raise ProtocolError(f"the batches of a message to a backup end at byte {at - begin} of {end - begin}")
        return Replicate(lsid, epoch, llsn, columns[:n], tuple(batches))

    def decode(view: memoryview, begin: int, end: int) -> Message:
        """Copies the body once; large batches refer into the copy, small ones are worth one of their own."""
        lsid, epoch, llsn, n = unpack(view, begin)
        at = begin + head + each
        if n == 1 and at <= end:  # what comes alone is copied alone
            prev_sequence, length = unpack_one(view, begin + head)
            if at + length == end:
                return Replicate(lsid, epoch, llsn, (prev_sequence,), (view[at:end].tobytes(),))
        body = view[begin:end].tobytes()
        return adopt(body if len(body) <= n * SMALL_BATCH else memoryview(body), 0, end - begin)

    return Codec(encode, decode, adopt, head, head + each * most + most_bytes)


def replicate_ack(number: int) -> Codec:
    pack, unpack, size = fixed_part(ReplicateAck)

    def encode(message: ReplicateAck, out: Out) -> int:
        out(
            sealed(
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
        )
        return HEADER_BYTES + size

    def decode(view: memoryview, begin: int, _end: int) -> Message:
        return ReplicateAck(*unpack(view, begin))

    return Codec(encode, decode, decode, size, size)


def scan(number: int) -> Codec:
    pack, unpack, size = fixed_part(Scan)

    def encode(message: Scan, out: Out) -> int:
        out(
            sealed(
                pack(
                    size,
                    number,
                    0,
                    message.request,
                    message.lsid,
                    message.glsn_begin,
                    message.max_bytes,
                    message.wait,
                    message.verdicts,
                )
            )
        )
        return HEADER_BYTES + size

    def decode(view: memoryview, begin: int, _end: int) -> Message:
        return Scan(*unpack(view, begin))

    return Codec(encode, decode, decode, size, size)


MAX_DETAIL_BYTES: Final = 1 * limits.KIB
MAX_SCAN_REPLY: Final = 2 * limits.SCAN_REPLY_BYTES + limits.MAX_BATCH_BYTES + 2 * MAX_DETAIL_BYTES
"""A reply ends with the batch that reaches `max_bytes`. What stands before its batches may be as much again as they
are, if they are small."""


def scan_reply(number: int) -> Codec:
    pack, unpack, head = fixed_part(ScanReply)
    step = STORED.size

    def encode(message: ScanReply, out: Out) -> int:
        detail = message.detail.encode("utf-8", "replace")[:MAX_DETAIL_BYTES]
        batches: list[Buffer] = []
        fields: list[int] = []
        for glsn, llsn, count, epoch, version, time, batch in message.batches:
            fields += (glsn, llsn, count, epoch, version, time, len(batch))
            batches.append(batch)
        n = len(batches)
        size = head + n * step + len(detail) + sum(map(len, batches))
        if size > MAX_SCAN_REPLY:
            raise InvalidArgument(f"a reply of {size} bytes to a scan; at most {MAX_SCAN_REPLY} fit into one")
        fixed = pack(
            size, number, 0, message.request, message.lsid, message.code, message.complete_to, message.first, n,
            len(detail),
        )  # fmt: skip
        seal_pieces(b"".join((fixed, struct.pack("<" + n * STORED_FIELDS, *fields), detail)), batches, out)
        return HEADER_BYTES + size

    def adopt(view: memoryview, begin: int, end: int) -> Message:
        request, lsid, code, complete_to, first, n, told = unpack(view, begin)
        lines = begin + head
        at = lines + n * step
        if at + told > end:
            raise ProtocolError(f"{n} batches do not fit into the {end - begin} bytes of a reply to a scan")
        detail = str(view[at : at + told], "utf-8", "replace") if told else ""
        at += told
        batches: list[StoredLine] = []
        for glsn, llsn, count, epoch, version, time, length in STORED.iter_unpack(view[lines : lines + n * step]):
            batches.append((glsn, llsn, count, epoch, version, time, view[at : at + length]))
            at += length
        if at != end:
            raise ProtocolError(f"the batches of a reply to a scan end at byte {at - begin} of {end - begin}")
        return ScanReply(request, lsid, code, tuple(batches), complete_to, first, detail)

    def decode(view: memoryview, begin: int, end: int) -> Message:
        """Copies the body once; the batches refer into the copy."""
        return adopt(memoryview(view[begin:end].tobytes()), 0, end - begin)

    return Codec(encode, decode, adopt, head, MAX_SCAN_REPLY)


def fetch_log(number: int) -> Codec:
    pack, unpack, size = fixed_part(FetchLog)

    def encode(message: FetchLog, out: Out) -> int:
        out(sealed(pack(size, number, 0, *msgspec.structs.astuple(message))))
        return HEADER_BYTES + size

    def decode(view: memoryview, begin: int, _end: int) -> Message:
        return FetchLog(*unpack(view, begin))

    return Codec(encode, decode, decode, size, size)


MAX_COPIED_BYTES: Final = limits.COPY_PART_BYTES + limits.MAX_BATCH_BYTES
"""A part ends with the batch that reaches its size."""


def log_part(number: int) -> Codec:
    pack, unpack, head = fixed_part(LogPart)
    commit = Struct("<8Q")
    most = limits.COPY_PART_BATCHES
    """Every commit in a part ends with one of its batches, so there are no more of them than that."""
    largest = head + most * (8 + 8 + 4 + commit.size) + MAX_DETAIL_BYTES + max(MAX_COPIED_BYTES, limits.COPY_BASE_BYTES)

    def encode(message: LogPart, out: Out) -> int:
        detail = message.detail.encode("utf-8", "replace")[:MAX_DETAIL_BYTES]
        batches, commits, base = message.batches, message.commits, message.base
        n, m = len(batches), len(commits)
        columns = struct.pack(f"<{2 * n}Q{n}I", *message.epochs, *message.prev_sequences, *map(len, batches))
        told = b"".join((columns, *[commit.pack(*cc) for cc in commits], base, detail))
        size = head + len(told) + sum(map(len, batches))
        if n > most or m > most or size > largest:
            raise BatchTooLarge(f"{n} batches and {m} commits in {size} bytes; a part has at most {most} of each")
        fixed = pack(
            size, number, 0, message.request, message.lsid, message.code, message.committed_end, message.llsn, n, m,
            len(base), len(detail),
        )  # fmt: skip
        seal_pieces(fixed + told, batches, out)
        return HEADER_BYTES + size

    def adopt(view: memoryview, begin: int, end: int) -> Message:
        request, lsid, code, committed_end, llsn, n, m, based, told = unpack(view, begin)
        at = begin + head
        batches_at = at + n * 20 + m * commit.size + based + told
        if n > most or m > most or batches_at > end:
            raise ProtocolError(f"{n} batches and {m} commits do not fit into the {end - begin} bytes of a part")
        columns = struct.unpack_from(f"<{2 * n}Q{n}I", view, at)
        at += n * 20
        commits = tuple([CommitContext._make(fields) for fields in commit.iter_unpack(view[at : at + m * commit.size])])
        at += m * commit.size
        base, detail = view[at : at + based].tobytes(), str(view[at + based : batches_at], "utf-8", "replace")
        at = batches_at
        batches = []
        for length in columns[2 * n :]:
            batches.append(view[at : at + length])
            at += length
        if at != end:
            raise ProtocolError(f"the batches of a part end at byte {at - begin} of {end - begin}")
        return LogPart(
            request, lsid, code, committed_end, llsn, columns[:n], columns[n : 2 * n], tuple(batches), commits, base,
            detail,
        )  # fmt: skip

    def decode(view: memoryview, begin: int, end: int) -> Message:
        """Copies the body once; the batches refer into the copy."""
        return adopt(memoryview(view[begin:end].tobytes()), 0, end - begin)

    return Codec(encode, decode, adopt, head, largest)
