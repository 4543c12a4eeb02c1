"""The messages of the sequencer ordering that come by the ten thousand, packed by hand as those of `hot` are.

What follows the fixed part of each (`hot.LAYOUTS`), which ends with how much that is:

    Next          n counts (u32)
    Granted       n positions (u64), m times what was skipped (position u64, count u32), the detail
    ChainWrite    n positions, n times (u64), n lengths (u32), the batches
    ChainWritten  n refusals (`REFUSED`), the detail, the batches that are there
    ChainPart     n lines (`hot.STORED`), the detail, the batches

and it fills the body exactly. A single append is asked for, granted and written by messages of one element: those are
taken apart and put together without a column.
"""

from __future__ import annotations

import struct
from itertools import chain
from struct import Struct
from typing import Final

from varlog import limits
from varlog.batch import Buffer
from varlog.core.messages import (
    ChainPart,
    ChainRead,
    ChainWrite,
    ChainWritten,
    Granted,
    Message,
    Next,
    Refusal,
    StoredLine,
)
from varlog.errors import BatchTooLarge, InvalidArgument, ProtocolError
from varlog.wire.hot import (
    FRAME,
    HEADER_BYTES,
    LAYOUTS,
    MAX_DETAIL_BYTES,
    MAX_SCAN_REPLY,
    RUN_BYTES,
    SMALL_BATCH,
    STORED,
    STORED_FIELDS,
    Codec,
    Out,
    fixed_part,
    seal_pieces,
    sealed,
)

REFUSED_FIELDS: Final = "IHQQI"
REFUSED: Final = Struct("<" + REFUSED_FIELDS)
"""Of each batch that was refused: which one, code, position and time of the batch that is there, length of that."""

MAX_CHAIN_ANSWER: Final = MAX_SCAN_REPLY
"""Of an answer with batches: it ends with the one that reaches `limits.SCAN_REPLY_BYTES`."""


def next_positions(number: int) -> Codec:
    pack, unpack, head = fixed_part(Next)
    pack_one, unpack_one = Struct(FRAME + LAYOUTS[Next] + "I").pack, Struct("<" + LAYOUTS[Next] + "I").unpack_from
    most, one = limits.MAX_GRANTS, head + 4

    def encode(message: Next, out: Out) -> int:
        counts = message.counts
        n = len(counts)
        if n == 1:
            out(sealed(pack_one(one, number, 0, message.request, message.tpid, message.epoch, 1, counts[0])))
            return HEADER_BYTES + one
        if not 0 < n <= most:
            raise InvalidArgument(f"positions for {n} batches; a request asks for one, and at most {most}")
        size = head + n * 4
        columns = struct.pack(f"<{n}I", *counts)
        out(sealed(pack(size, number, 0, message.request, message.tpid, message.epoch, n) + columns))
        return HEADER_BYTES + size

    def decode(view: memoryview, begin: int, end: int) -> Message:
        if end - begin == one:
            request, tpid, epoch, n, count = unpack_one(view, begin)
            if n == 1:
                return Next(request, tpid, epoch, (count,))
        request, tpid, epoch, n = unpack(view, begin)
        if not n or end - begin != head + n * 4:
            raise ProtocolError(f"positions for {n} batches in {end - begin} bytes")
        return Next(request, tpid, epoch, struct.unpack_from(f"<{n}I", view, begin + head))

    return Codec(encode, decode, decode, head + 4, head + most * 4)


def granted(number: int) -> Codec:
    pack, unpack, head = fixed_part(Granted)
    skip = Struct("<QI")
    pack_one, unpack_one = Struct(FRAME + LAYOUTS[Granted] + "Q").pack, Struct("<" + LAYOUTS[Granted] + "Q").unpack_from
    one = head + 8
    most = limits.MAX_GRANTS
    """For each batch something may have been skipped, once."""

    def encode(message: Granted, out: Out) -> int:
        glsns, skipped = message.glsns, message.skipped
        if len(glsns) == 1 and not skipped and not message.detail:
            frame = pack_one(
                one, number, 0, message.request, message.code, message.epoch, message.time, 1, 0, 0, glsns[0]
            )  # fmt: skip
            out(sealed(frame))
            return HEADER_BYTES + one
        detail = message.detail.encode("utf-8", "replace")[:MAX_DETAIL_BYTES]
        n, m = len(glsns), len(skipped)
        if n > most or m > most:
            raise InvalidArgument(f"{n} positions, {m} skipped; a message grants at most {most}")
        columns = b"".join((struct.pack(f"<{n}Q", *glsns), *[skip.pack(*each) for each in skipped], detail))
        size = head + len(columns)
        fixed = pack(
            size, number, 0, message.request, message.code, message.epoch, message.time, n, m, len(detail)
        )  # fmt: skip
        out(sealed(fixed + columns))
        return HEADER_BYTES + size

    def decode(view: memoryview, begin: int, end: int) -> Message:
        if end - begin == one:
            request, code, epoch, time, n, m, told, glsn = unpack_one(view, begin)
            if n == 1 and not m and not told:
                return Granted(request, code, epoch, (glsn,), time)
        request, code, epoch, time, n, m, told = unpack(view, begin)
        at = begin + head
        skipped_at = at + n * 8
        detail_at = skipped_at + m * skip.size
        if detail_at + told != end:
            raise ProtocolError(f"{n} positions and {m} skipped in {end - begin} bytes")
        glsns = struct.unpack_from(f"<{n}Q", view, at)
        skipped = tuple(skip.iter_unpack(view[skipped_at:detail_at]))
        return Granted(request, code, epoch, glsns, time, skipped, str(view[detail_at:end], "utf-8", "replace"))

    return Codec(encode, decode, decode, head, head + most * (8 + skip.size) + MAX_DETAIL_BYTES)


def chain_write(number: int) -> Codec:
    pack, unpack, head = fixed_part(ChainWrite)
    each = 8 + 8 + 4
    one = Struct("<QQI")
    most, most_bytes = limits.CHAIN_WRITE_BATCHES, limits.MAX_BATCH_BYTES

    def encode(message: ChainWrite, out: Out) -> int:
        batches = message.batches
        lengths = list(map(len, batches))
        n, size = len(batches), sum(lengths)
        if n > most or size > most_bytes:
            raise BatchTooLarge(f"{n} batches of {size} bytes; a message holds at most {most} of {most_bytes} in all")
        body = head + n * each + size
        fixed = pack(body, number, 0, message.request, message.lsid, message.epoch, n)
        columns = struct.pack(f"<{2 * n}Q{n}I", *message.glsns, *message.times, *lengths)
        if size <= RUN_BYTES:
            out(sealed(b"".join((fixed, columns, *batches))))
        else:
            seal_pieces(fixed + columns, batches, out)
        return HEADER_BYTES + body

    def adopt(body: bytes | memoryview, begin: int, end: int) -> Message:
        request, lsid, epoch, n = unpack(body, begin)
        at = begin + head + n * each
        if n == 1 and at <= end:
            glsn, time, length = one.unpack_from(body, begin + head)
            if at + length == end:
                return ChainWrite(request, lsid, epoch, (glsn,), (time,), (body[at:end],))
        if not 0 < n <= most or at > end:
            raise ProtocolError(f"{n} batches in {end - begin} bytes")
        columns = struct.unpack_from(f"<{2 * n}Q{n}I", body, begin + head)
        batches = []
        for length in columns[2 * n :]:
            batches.append(body[at : at + length])
            at += length
        if at != end:
            raise ProtocolError(f"the batches of a message to a chain end at byte {at - begin} of {end - begin}")
        return ChainWrite(request, lsid, epoch, columns[:n], columns[n : 2 * n], tuple(batches))

    def decode(view: memoryview, begin: int, end: int) -> Message:
        """Copies the body once; large batches refer into the copy, small ones are worth one of their own."""
        body = view[begin:end].tobytes()
        n = unpack(body)[3]
        return adopt(body if len(body) <= n * SMALL_BATCH else memoryview(body), 0, end - begin)

    return Codec(encode, decode, adopt, head, head + each * most + most_bytes)


def chain_written(number: int) -> Codec:
    pack, unpack, head = fixed_part(ChainWritten)
    step = REFUSED.size
    most = limits.CHAIN_WRITE_BATCHES

    def encode(message: ChainWritten, out: Out) -> int:
        refused = message.refused
        detail = message.detail.encode("utf-8", "replace")[:MAX_DETAIL_BYTES]
        n = len(refused)
        batches = [each[4] for each in refused]
        size = head + n * step + len(detail) + sum(map(len, batches))
        if n > most or size > MAX_CHAIN_ANSWER:
            raise InvalidArgument(f"{n} refused in {size} bytes; at most {most} in {MAX_CHAIN_ANSWER} fit into one")
        fixed = pack(
            size, number, 0, message.request, message.lsid, message.code, message.epoch, message.synced, n, len(detail)
        )
        if not n and not detail:
            out(sealed(fixed))
            return HEADER_BYTES + size
        fields = chain.from_iterable((*each[:4], len(each[4])) for each in refused)
        seal_pieces(b"".join((fixed, struct.pack("<" + n * REFUSED_FIELDS, *fields), detail)), batches, out)
        return HEADER_BYTES + size

    def adopt(view: memoryview, begin: int, end: int) -> Message:
        request, lsid, code, epoch, synced, n, told = unpack(view, begin)
        lines = begin + head
        if lines == end and not n and not told:
            return ChainWritten(request, lsid, code, epoch, synced)
        detail_at = lines + n * step
        at = detail_at + told
        if n > most or at > end:
            raise ProtocolError(f"{n} refused in {end - begin} bytes")
        refused: list[Refusal] = []
        for which, why, glsn, time, length in REFUSED.iter_unpack(view[lines:detail_at]):
            refused.append((which, why, glsn, time, view[at : at + length]))
            at += length
        if at != end:
            raise ProtocolError(f"the batches of what was refused end at byte {at - begin} of {end - begin}")
        detail = str(view[detail_at : detail_at + told], "utf-8", "replace")
        return ChainWritten(request, lsid, code, epoch, synced, tuple(refused), detail)

    def decode(view: memoryview, begin: int, end: int) -> Message:
        if end - begin == head:
            return adopt(view, begin, end)
        return adopt(memoryview(view[begin:end].tobytes()), 0, end - begin)

    return Codec(encode, decode, adopt, head, MAX_CHAIN_ANSWER)


def chain_read(number: int) -> Codec:
    pack, unpack, size = fixed_part(ChainRead)

    def encode(message: ChainRead, out: Out) -> int:
        frame = pack(
            size, number, 0, message.request, message.lsid, message.epoch, message.glsn, message.max_bytes,
            message.wait, message.seen, message.verdicts,
        )  # fmt: skip
        out(sealed(frame))
        return HEADER_BYTES + size

    def decode(view: memoryview, begin: int, _end: int) -> Message:
        return ChainRead(*unpack(view, begin))

    return Codec(encode, decode, decode, size, size)


def chain_part(number: int) -> Codec:
    pack, unpack, head = fixed_part(ChainPart)
    step = STORED.size
    pack_one = Struct(FRAME + LAYOUTS[ChainPart] + STORED_FIELDS).pack
    unpack_one = Struct("<" + LAYOUTS[ChainPart] + STORED_FIELDS).unpack_from
    one = head + step

    def encode(message: ChainPart, out: Out) -> int:
        if len(message.batches) == 1 and not message.detail:
            ((glsn, llsn, count, epoch, version, time, batch),) = message.batches
            length = len(batch)
            if length <= SMALL_BATCH:
                size = one + length
                fixed = pack_one(
                    size, number, 0, message.request, message.lsid, message.code, message.epoch, message.end,
                    message.seen, message.first, 1, 0, glsn, llsn, count, epoch, version, time, length,
                )  # fmt: skip
                out(sealed(b"".join((fixed, batch))))
                return HEADER_BYTES + size
        detail = message.detail.encode("utf-8", "replace")[:MAX_DETAIL_BYTES]
        batches: list[Buffer] = []
        fields: list[int] = []
        for glsn, llsn, count, epoch, version, time, batch in message.batches:
            fields += (glsn, llsn, count, epoch, version, time, len(batch))
            batches.append(batch)
        n = len(batches)
        size = head + n * step + len(detail) + sum(map(len, batches))
        if size > MAX_CHAIN_ANSWER:
            raise InvalidArgument(f"an answer of {size} bytes to a read; at most {MAX_CHAIN_ANSWER} fit into one")
        fixed = pack(
            size, number, 0, message.request, message.lsid, message.code, message.epoch, message.end, message.seen,
            message.first, n, len(detail),
        )  # fmt: skip
        told = b"".join((fixed, struct.pack("<" + n * STORED_FIELDS, *fields), detail))
        if size <= RUN_BYTES:
            out(sealed(b"".join((told, *batches))))
        else:
            seal_pieces(told, batches, out)
        return HEADER_BYTES + size

    def adopt(view: memoryview, begin: int, end: int) -> Message:
        request, lsid, code, own, written_end, seen, first, n, told = unpack(view, begin)
        lines = begin + head
        detail_at = lines + n * step
        at = detail_at + told
        if at > end:
            raise ProtocolError(f"{n} batches do not fit into the {end - begin} bytes of an answer to a read")
        batches: list[StoredLine] = []
        for glsn, llsn, count, epoch, version, time, length in STORED.iter_unpack(view[lines:detail_at]):
            batches.append((glsn, llsn, count, epoch, version, time, view[at : at + length]))
            at += length
        if at != end:
            raise ProtocolError(f"the batches of an answer to a read end at byte {at - begin} of {end - begin}")
        detail = str(view[detail_at : detail_at + told], "utf-8", "replace") if told else ""
        return ChainPart(request, lsid, code, own, tuple(batches), written_end, seen, first, detail)

    def decode(view: memoryview, begin: int, end: int) -> Message:
        """Copies the body once; the batches refer into the copy. A small one that comes alone is all that is copied."""
        if one <= end - begin <= one + SMALL_BATCH:
            (request, lsid, code, own, written_end, seen, first, n, told,
             glsn, llsn, count, epoch, version, time, length) = unpack_one(view, begin)  # fmt: skip
            if n == 1 and not told and begin + one + length == end:
                line = glsn, llsn, count, epoch, version, time, view[begin + one : end].tobytes()
                return ChainPart(request, lsid, code, own, (line,), written_end, seen, first)
        return adopt(memoryview(view[begin:end].tobytes()), 0, end - begin)

    return Codec(encode, decode, adopt, head, MAX_CHAIN_ANSWER)
