"""The record batch: what goes in comes out, and nothing that was damaged or forged does."""

from __future__ import annotations

import copy
import pickle
import random
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest
import zstandard
from crc32c import crc32c
from hypothesis import example, given
from hypothesis import strategies as st

from varlog import limits
from varlog.batch import (
    HEADER_BYTES,
    VERSION,
    BatchFlag,
    BatchHeader,
    Buffer,
    Codec,
    RecordBatch,
    decode,
    encode,
    entry_of,
    peek_header,
    verify,
    verify_all,
)
from varlog.errors import (
    BatchTooLarge,
    ChecksumMismatch,
    EmptyBatch,
    EntryTooLarge,
    InvalidArgument,
    MalformedBatch,
    UnknownCodec,
    UnsupportedFormat,
    VarlogError,
)
from varlog.types import Sequence, WriterID

ENTRIES = [b"first", b"", b"third " * 20, b"\x00", b"last"]

# Where the header's fields are, by the documented layout.
LENGTH, VERSION_AT, CODEC, FLAGS, COUNT, HEADER_LENGTH, BODY_LENGTH = 8, 12, 13, 14, 16, 20, 48

entries_lists = st.lists(st.binary(max_size=40), min_size=1, max_size=30)


def sealed(batch: bytes) -> bytes:
    """The same bytes under a checksum that fits them: what a faulty or hostile writer could make."""
    return batch[:4] + struct.pack("<I", crc32c(batch[8:])) + batch[8:]


def forged(batch: bytes, at: int, value: bytes) -> bytes:
    return sealed(batch[:at] + value + batch[at + len(value) :])


def with_offsets(offsets: list[int]) -> bytes:
    """A batch of len(offsets) - 1 entries over 8 bytes of data, with these offsets."""
    count = len(offsets) - 1
    honest = encode([b"x" * 8, *[b""] * (count - 1)])
    return forged(honest, HEADER_BYTES, struct.pack(f"<{count + 1}i", *offsets))


# Round trips


@given(entries_lists, st.sampled_from(Codec), st.integers(0, 2**64 - 1), st.integers(-(2**63), 2**63 - 1))
def test_a_list_of_bytes_comes_back(entries: list[bytes], codec: Codec, number: int, timestamp: int) -> None:
    batch = encode(entries, writer_id=number, sequence=number ^ 1, timestamp=timestamp, codec=codec)
    header = verify(batch)
    assert header == peek_header(batch[:HEADER_BYTES])
    assert header.length == len(batch)
    assert (header.writer_id, header.sequence, header.timestamp) == (number, number ^ 1, timestamp)
    for opened in (decode(batch), decode(batch, verified=True)):
        assert opened.to_list() == entries
        assert opened.to_arrow().to_pylist() == entries


@given(
    st.lists(entries_lists, min_size=1, max_size=4),
    st.sampled_from([pa.binary(), pa.large_binary()]),
    st.sampled_from(Codec),
    st.data(),
)
def test_arrow_columns_come_back(
    lists: list[list[bytes]], kind: pa.DataType, codec: Codec, data: st.DataObject
) -> None:
    column = pa.chunked_array([pa.array(entries, kind) for entries in lists], kind)
    begin = data.draw(st.integers(0, len(column) - 1))
    length = data.draw(st.integers(1, len(column) - begin))
    for array in (column, column.slice(begin, length), column.chunk(0), column.chunk(0).slice(len(lists[0]) - 1)):
        batch = encode(array, codec=codec)
        assert batch == encode(array.to_pylist(), codec=codec)
        assert decode(batch).to_list() == array.to_pylist()


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()], ids=str)
def test_columns_of_empty_entries_and_empty_chunks(kind: pa.DataType) -> None:
    assert decode(encode(pa.array([b"", b""], kind))).to_list() == [b"", b""]
    chunks = pa.chunked_array([pa.array([], kind), pa.array([b"x"], kind), pa.array([], kind)])
    assert decode(encode(chunks)).to_list() == [b"x"]


def test_any_bytes_like_entry_is_taken() -> None:
    whole = bytearray(b"0123456789")
    entries: list[Buffer] = [b"bytes", bytearray(b"array"), memoryview(whole)[2:5], memoryview(whole)[::2]]
    wide = memoryview(struct.pack("<3I", 1, 2, 3)).cast("I")
    expected = [b"bytes", b"array", b"234", b"02468", struct.pack("<3I", 1, 2, 3)]
    assert decode(encode([*entries, wide])).to_list() == expected
    assert decode(encode(tuple(entries))).to_list() == expected[:-1]


def test_a_batch_is_a_sequence_of_its_entries() -> None:
    batch = decode(encode(ENTRIES, writer_id=7, sequence=9, timestamp=11, flags=BatchFlag.CONTROL))
    assert (batch.count, len(batch)) == (5, 5)
    assert (batch.writer_id, batch.sequence, batch.timestamp, batch.flags) == (7, 9, 11, BatchFlag.CONTROL)
    assert list(batch) == ENTRIES
    assert [batch[i] for i in range(-5, 5)] == ENTRIES * 2
    for beyond in (5, -6):
        with pytest.raises(IndexError):
            batch[beyond]
    assert "writer 7 sequence 9" in repr(batch)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_buffer_can_be_read(kind: Callable[[bytes], Buffer]) -> None:
    buffer = kind(encode(ENTRIES))
    assert verify(buffer) == peek_header(buffer)
    assert decode(buffer).to_list() == ENTRIES


def test_a_batch_may_lie_anywhere_in_memory() -> None:
    batch = encode(ENTRIES)
    for shift in range(1, 9):
        view = memoryview(bytes(shift) + batch)[shift:]
        assert decode(view).to_arrow().to_pylist() == ENTRIES


@given(st.data(), st.lists(entries_lists, min_size=1, max_size=5), st.sampled_from(Codec))
def test_entries_of_several_batches_become_one_column(
    data: st.DataObject, several: list[list[bytes]], codec: Codec
) -> None:
    parts, wanted = [], []
    for entries in several:
        first = data.draw(st.integers(0, len(entries) - 1))
        count = data.draw(st.integers(1, len(entries) - first))
        parts.append((decode(encode(entries, codec=codec)), first, count))
        wanted += entries[first : first + count]
    column = RecordBatch.join(parts)
    column.validate(full=True)
    assert column.to_pylist() == wanted
    assert column.null_count == 0


def test_a_column_has_as_many_bytes_as_its_offsets_can_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("varlog.batch.arrow._MAX_OFFSET", 5)
    small, large = decode(encode([b"ab", b"cd"])), decode(encode([b"ef"]))
    assert RecordBatch.join([(small, 0, 2)]).to_pylist() == [b"ab", b"cd"]
    with pytest.raises(BatchTooLarge, match="for one column"):
        RecordBatch.join([(small, 0, 2), (large, 0, 1)])


def test_the_column_is_the_batch_itself() -> None:
    batch = encode(ENTRIES)
    column = decode(batch).to_arrow()
    column.validate(full=True)
    _, offsets, data = column.buffers()
    start: int = pa.py_buffer(batch).address
    assert offsets.address == start + HEADER_BYTES
    assert data.address == start + HEADER_BYTES + 4 * (len(ENTRIES) + 1)
    del batch
    assert column.to_pylist() == ENTRIES


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda batch: pickle.loads(pickle.dumps(batch))])
@pytest.mark.parametrize("extensions", [{}, {7: b"seven"}])
def test_a_batch_can_be_copied_and_sent_elsewhere(
    codec: Codec, copied: Callable[[RecordBatch], RecordBatch], extensions: dict[int, bytes]
) -> None:
    encoded = encode(ENTRIES, codec=codec, timestamp=5, extensions=extensions)
    batch = copied(decode(memoryview(bytearray(b"odd" + encoded))[3:]))
    assert (batch.header, dict(batch.extensions)) == (peek_header(encoded), extensions)
    assert batch.to_list() == batch.to_arrow().to_pylist() == ENTRIES
    assert batch[2] == ENTRIES[2]


def test_the_layout_is_the_documented_one() -> None:
    batch = encode([b"ab", b"c"], writer_id=3, sequence=4, timestamp=-5, flags=BatchFlag.JUNK, extensions={9: b"tag"})
    rest = struct.pack("<IBBHIHHQQqII", 88, 1, 0, 1, 2, 64, 0, 3, 4, -5, 24, 0)
    rest += struct.pack("<HH", 9, 3) + b"tag\0" + struct.pack("<3i", 0, 2, 3) + bytes(4) + b"abc" + bytes(5)
    assert batch == b"VLRB" + struct.pack("<I", crc32c(rest)) + rest
    assert peek_header(batch) == BatchHeader(
        88, VERSION, Codec.NONE, BatchFlag.JUNK, 2, 64, WriterID(3), Sequence(4), -5, 24
    )


# Extensions


@given(st.dictionaries(st.integers(1, 65535), st.binary(max_size=50), max_size=6), st.sampled_from(Codec))
def test_extensions_come_back(extensions: dict[int, bytes], codec: Codec) -> None:
    batch = encode(ENTRIES, extensions=extensions, codec=codec)
    assert peek_header(batch).header_bytes % 8 == 0
    assert decode(batch).extensions == extensions
    assert decode(batch).to_list() == ENTRIES


@pytest.mark.parametrize("extensions", [{0: b""}, {65536: b""}, {-1: b""}, {1: bytes(limits.MAX_BATCH_HEADER_BYTES)}])
def test_extensions_outside_of_the_format_are_refused(extensions: dict[int, bytes]) -> None:
    with pytest.raises(InvalidArgument):
        encode(ENTRIES, extensions=extensions)


@pytest.mark.parametrize(
    ("at", "value"),
    [
        (64, struct.pack("<H", 1)),  # a tag twice
        (56, struct.pack("<H", 3)),  # tags out of order
        (56, struct.pack("<H", 0)),  # no tag
        (66, struct.pack("<H", 60)),  # longer than the header
        (63, b"\1"),  # padding
    ],
)
def test_damaged_extensions_are_refused(at: int, value: bytes) -> None:
    batch = encode(ENTRIES, extensions={1: b"abc", 2: b"defg"})
    with pytest.raises(MalformedBatch, match="extension"):
        verify(forged(batch, at, value))


# Limits and wrong arguments


@pytest.mark.parametrize(
    "nothing",
    [[], (), pa.array([], pa.binary()), pa.chunked_array([], pa.binary())],
    ids=["list", "tuple", "column", "chunks"],
)
def test_an_empty_batch_is_refused(nothing: list[bytes]) -> None:
    with pytest.raises(EmptyBatch):
        encode(nothing)
    with pytest.raises(EmptyBatch):
        peek_header(forged(encode([b"x"]), COUNT, bytes(4)))


def test_an_entry_over_the_limit_is_refused() -> None:
    largest = bytes(limits.MAX_ENTRY_BYTES)
    assert verify(encode([largest])).count == 1
    for entries in ([largest + b"x"], pa.array([b"", largest + b"x"], pa.binary())):
        with pytest.raises(EntryTooLarge):
            encode(entries)
    data = bytes(limits.MAX_ENTRY_BYTES + 8)
    merged = forged(encode([data[: len(data) // 2], data[len(data) // 2 :]]), HEADER_BYTES + 4, bytes(4))
    with pytest.raises(EntryTooLarge):
        verify(merged)


@pytest.mark.parametrize("codec", Codec)
def test_a_batch_over_the_limit_is_refused(codec: Codec) -> None:
    half = bytes(limits.MAX_BATCH_BYTES // 2 - HEADER_BYTES)
    assert verify(encode([half, half], codec=codec)).count == 2
    with pytest.raises(BatchTooLarge):
        encode([half, half, bytes(2 * HEADER_BYTES)], codec=codec)
    most = [b""] * limits.MAX_BATCH_ENTRIES
    assert verify(encode(most, codec=codec)).count == limits.MAX_BATCH_ENTRIES
    for entries in ([*most, b""], pa.array([*most, b""], pa.binary())):
        with pytest.raises(BatchTooLarge):
            encode(entries, codec=codec)


@pytest.mark.parametrize(
    ("at", "value"),
    [
        (LENGTH, limits.MAX_BATCH_BYTES + 8),
        (COUNT, limits.MAX_BATCH_ENTRIES + 1),
        (BODY_LENGTH, limits.MAX_BATCH_BYTES + 8),
    ],
)
def test_stated_lengths_over_the_limits_are_refused_by_the_header_alone(at: int, value: int) -> None:
    with pytest.raises(BatchTooLarge):
        peek_header(forged(encode(ENTRIES), at, struct.pack("<I", value)))


@pytest.mark.parametrize(
    "entries",
    [
        b"one entry, not a list",
        ["text"],
        [1],
        [b"x", None],
        pa.array(["text"]),
        pa.array([1, 2]),
        pa.array([b"x", None], pa.binary()),
        pa.chunked_array([pa.array([b"x"]), pa.array([None], pa.binary())]),
    ],
    ids=["bytes", "text", "number", "none", "text column", "number column", "null column", "null chunk"],
)
def test_what_is_not_bytes_is_refused(entries: list[bytes]) -> None:
    with pytest.raises(InvalidArgument):
        encode(entries)


@pytest.mark.parametrize("offsets", [[0, 3, 2, 6], [-1, 3, 5, 6], [0, 3, 5, 9]], ids=["backwards", "before", "beyond"])
@pytest.mark.parametrize(("kind", "code"), [(pa.binary(), "i"), (pa.large_binary(), "q")], ids=["binary", "large"])
def test_a_column_with_bad_offsets_is_refused(offsets: list[int], kind: pa.DataType, code: str) -> None:
    """Arrow takes over what another process sent as it is."""
    table = pa.record_batch({"entries": pa.array([b"abc", b"de", b"f"], kind)})
    sent = table.serialize().to_pybytes()
    honest = struct.pack(f"<4{code}", 0, 3, 5, 6)
    assert sent.count(honest) == 1
    received = pa.ipc.read_record_batch(sent.replace(honest, struct.pack(f"<4{code}", *offsets)), table.schema)
    with pytest.raises(InvalidArgument, match="contradicts itself"):
        encode(received.column(0))


@pytest.mark.parametrize("field", ["writer_id", "sequence", "timestamp", "flags"])
@pytest.mark.parametrize("value", [-(2**63) - 1, 2**64])
def test_a_number_that_does_not_fit_is_refused(field: str, value: int) -> None:
    with pytest.raises(InvalidArgument):
        encode(ENTRIES, **{field: value})  # type: ignore[arg-type]


def test_unknown_flags_and_codecs_are_refused() -> None:
    with pytest.raises(InvalidArgument):
        encode(ENTRIES, flags=8)
    with pytest.raises(UnknownCodec):
        encode(ENTRIES, codec=2)
    with pytest.raises(UnknownCodec):
        verify(forged(encode(ENTRIES), CODEC, b"\2"))
    with pytest.raises(UnsupportedFormat):
        verify(forged(encode(ENTRIES), FLAGS, b"\x08"))


def test_a_newer_version_is_refused_as_such() -> None:
    with pytest.raises(UnsupportedFormat, match=f"version {VERSION + 1}"):
        peek_header(forged(encode(ENTRIES), VERSION_AT, bytes([VERSION + 1])))


# Damage


def bit_flips(batch: bytes) -> Iterator[bytes]:
    for at in range(len(batch)):
        for bit in range(8):
            yield batch[:at] + bytes([batch[at] ^ 1 << bit]) + batch[at + 1 :]


@pytest.mark.parametrize("codec", Codec)
def test_every_flipped_bit_is_detected(codec: Codec) -> None:
    entries = [b"abc" * 10, b"", b"abc" * 10]
    batch = encode(entries, writer_id=1, sequence=2, timestamp=3, codec=codec, extensions={5: b"five"})
    assert peek_header(batch).codec == codec
    for damaged in bit_flips(batch):
        for read in (verify, decode):
            with pytest.raises(VarlogError):
                read(damaged)


def test_batches_are_verified_together_as_they_are_one_by_one() -> None:
    small, larger, several = encode([b"x"]), encode([bytes(5000)]), encode([b"a", b"b"], sequence=3)
    mixed: list[Buffer] = [small, several, memoryview(small), larger, encode([b"z" * 99], codec=Codec.ZSTD), small]
    assert verify_all(mixed) == [verify(each) for each in mixed]
    assert verify_all(()) == []
    damaged = bytearray(small)
    damaged[-9] ^= 1
    with pytest.raises(ChecksumMismatch):
        verify_all([small, bytes(damaged), small])


def test_damage_in_the_body_is_a_checksum_mismatch() -> None:
    batch = encode(ENTRIES)
    with pytest.raises(ChecksumMismatch):
        verify(batch[:-9] + b"?" + batch[-8:])


def test_a_batch_cut_short_or_with_more_behind_is_refused() -> None:
    batch = encode(ENTRIES)
    for size in range(len(batch)):
        with pytest.raises(MalformedBatch):
            verify(batch[:size])
        if size >= HEADER_BYTES:
            assert peek_header(batch[:size]).length == len(batch)
    with pytest.raises(MalformedBatch):
        verify(batch + bytes(8))


@pytest.mark.parametrize(
    "offsets",
    [[0, 9], [0, 17], [0, 2**31 - 1], [0, -8], [8, 8], [1, 8], [0, 8, 4], [0, 5, 4, 8], [0, -1, 8], [0, 0], [0, 8, 16]],
    ids=str,
)
def test_offsets_that_go_backwards_or_beyond_are_refused(offsets: list[int]) -> None:
    with pytest.raises(MalformedBatch):
        verify(with_offsets(offsets))


@pytest.mark.parametrize(
    ("at", "value"),
    [
        (0, b"VLRC"),
        (LENGTH, struct.pack("<I", 12)),
        (LENGTH, struct.pack("<I", 48)),
        (COUNT, struct.pack("<I", 1000)),
        (HEADER_LENGTH, struct.pack("<H", 48)),
        (HEADER_LENGTH, struct.pack("<H", 60)),
        (HEADER_LENGTH, struct.pack("<H", 0xFFF8)),
        (22, b"\1"),  # reserved
        (52, b"\1"),  # reserved
        (BODY_LENGTH, struct.pack("<I", 16)),
        (BODY_LENGTH, struct.pack("<I", 33)),
        (HEADER_BYTES + 12, b"\1"),  # padding of the offsets
        (HEADER_BYTES + 23, b"\1"),  # padding of the data
    ],
)
def test_a_field_that_contradicts_the_rest_is_refused(at: int, value: bytes) -> None:
    batch = encode([b"abc", b"def"])
    assert len(batch) == HEADER_BYTES + 24
    with pytest.raises(MalformedBatch):
        verify(forged(batch, at, value))


def test_only_contiguous_bytes_are_read() -> None:
    batch = encode(ENTRIES)
    with pytest.raises(InvalidArgument):
        verify(memoryview(batch + batch)[::2])
    with pytest.raises(InvalidArgument):
        decode(memoryview(batch).cast("I"))


@pytest.mark.parametrize("count", [1, 2, 3, 255, 256, 257, 1000])
def test_every_offset_counts_however_many_there_are(count: int) -> None:
    """Few offsets are looked at in another way than many."""
    entries = [b"12345678"] * count
    honest = encode(entries, writer_id=1)
    assert decode(honest).to_list() == entries
    assert decode(memoryview(honest)).header == verify(honest) == peek_header(honest)
    for index in {0, 1, count // 2, count - 1, count}:
        for value in (8 * index + 9, 8 * index - 9, -1, 2**31 - 1):
            at = HEADER_BYTES + 4 * index
            with pytest.raises(MalformedBatch):
                verify(forged(honest, at, struct.pack("<i", value)))
    if count % 2 == 0:
        with pytest.raises(MalformedBatch, match="padding"):
            verify(forged(honest, HEADER_BYTES + 4 * (count + 1), b"\1"))
    with pytest.raises(MalformedBatch, match="padding"):
        verify(sealed(encode([*entries[1:], b"1234567"])[:-1] + b"\1"))


def test_plain_batches_need_no_large_library() -> None:
    """A daemon or a command that handles small plain batches only starts without them."""
    program = (
        "import sys; from varlog.batch import decode, encode, verify\n"
        "for count in (1, 2, 100): assert decode(encode([b'x'] * count)).to_list() == [b'x'] * count\n"
        "assert not {'numpy', 'pyarrow', 'zstandard'} & set(sys.modules), 'imported'"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


# zstd


def compressed(frame: bytes, body_bytes: int, *, count: int = 1) -> bytes:
    """A batch around any bytes that claim to be its zstd frame."""
    stored = frame + bytes(-len(frame) % 8)
    batch = bytearray(encode([b""]))[:HEADER_BYTES] + stored
    batch[CODEC] = Codec.ZSTD
    struct.pack_into("<I", batch, LENGTH, len(batch))
    struct.pack_into("<I", batch, COUNT, count)
    struct.pack_into("<I", batch, BODY_LENGTH, body_bytes)
    return sealed(bytes(batch))


def body(entry: bytes) -> bytes:
    return struct.pack("<2i", 0, len(entry)) + entry + bytes(-len(entry) % 8)


def test_zstd_makes_a_batch_smaller_or_leaves_it_alone() -> None:
    text = [b"the same line again and again\n"] * 100
    small = encode(text, codec=Codec.ZSTD)
    assert peek_header(small).codec == Codec.ZSTD
    assert len(small) < len(encode(text)) // 4
    noise = [random.Random(1).randbytes(1000)]
    assert encode(noise, codec=Codec.ZSTD) == encode(noise)


@pytest.mark.parametrize("entry", [bytes(10_000), b"x" * 300_000, b"ab" * 200_000], ids=["zeros", "runs", "blocks"])
@pytest.mark.parametrize("checksum", [False, True])
def test_any_whole_zstd_frame_is_read(entry: bytes, checksum: bool) -> None:
    frame = zstandard.ZstdCompressor(level=1, write_checksum=checksum).compress(body(entry))
    assert decode(compressed(frame, len(body(entry)))).to_list() == [entry]


def zstd_frames() -> Iterator[tuple[str, bytes, int]]:
    plain = body(b"ab" * 200)
    frame = zstandard.ZstdCompressor().compress(plain)
    yield "cut", frame[:-3], len(plain)
    yield "header only", frame[:8], len(plain)
    yield "two frames", frame + frame, len(plain)
    yield "more behind", frame + bytes(8), len(plain)
    yield "padding not zero", frame + b"\1" * (-len(frame) % 8 or 8), len(plain)
    yield "smaller than stated", frame, len(plain) + 8
    yield "larger than stated", frame, len(plain) - 8
    yield "size not declared", zstandard.ZstdCompressor(write_content_size=False).compress(plain), len(plain)
    yield "skippable", struct.pack("<II", 0x184D2A50, 16) + bytes(16), 16
    yield "not zstd", b"not a zstd frame", 16
    yield "nothing", b"", 16
    yield "bomb", zstandard.ZstdCompressor().compress(bytes(limits.MAX_BATCH_BYTES * 2)), limits.MAX_BATCH_BYTES
    # Blocks of one repeated byte: four bytes of input each make 64 KiB, forty times what the frame declares.
    runs = (0xFFFF << 3 | 2).to_bytes(3, "little") + b"x"
    header = struct.pack("<IBI", 0xFD2FB528, 0xA0, 1 << 16)
    yield "runs beyond the stated size", header + runs * 40 + (1 << 3 | 3).to_bytes(3, "little") + b"x", 1 << 16


@pytest.mark.parametrize(("frame", "body_bytes"), [pytest.param(f, n, id=name) for name, f, n in zstd_frames()])
def test_a_bad_zstd_frame_is_refused(frame: bytes, body_bytes: int) -> None:
    for read in (verify, decode, lambda batch: decode(batch, verified=True)):
        with pytest.raises(MalformedBatch):
            read(compressed(frame, body_bytes))


def test_a_window_beyond_the_limit_is_refused() -> None:
    """A frame header may ask the reader for far more memory than its content needs."""
    entry = b"x" * 100
    content = struct.pack("<Q", len(body(entry)))
    block = (len(body(entry)) << 3 | 1).to_bytes(3, "little") + body(entry)
    for window_log, fits in ((25, True), (26, False)):
        frame = b"\x28\xb5\x2f\xfd" + bytes([0xC0, window_log - 10 << 3]) + content + block
        assert zstandard.get_frame_parameters(frame).window_size == 1 << window_log
        batch = compressed(frame, len(body(entry)))
        if fits:
            assert decode(batch).to_list() == [entry]
        else:
            with pytest.raises(MalformedBatch):
                verify(batch)


# Fuzz


def returns_or_refuses(data: bytes) -> None:
    """Every decoder either returns something sound or raises a typed error."""
    for read in (peek_header, verify, decode):
        try:
            result = read(data)
        except VarlogError:
            continue
        if isinstance(result, RecordBatch):
            result.to_arrow().validate(full=True)
            assert result.to_list() == [result[i] for i in range(len(result))]


@given(st.binary(max_size=300))
def test_arbitrary_bytes_are_refused(data: bytes) -> None:
    returns_or_refuses(data)
    with pytest.raises(VarlogError):
        verify(data)


@given(st.binary(min_size=52, max_size=300))
def test_arbitrary_bytes_behind_the_magic_and_a_fitting_checksum(data: bytes) -> None:
    whole = b"VLRB" + bytes(4) + data[: len(data) // 8 * 8]
    returns_or_refuses(sealed(whole))
    returns_or_refuses(forged(whole, LENGTH, struct.pack("<IB", len(whole), VERSION)))


@given(
    entries_lists,
    st.sampled_from(Codec),
    st.dictionaries(st.integers(1, 9), st.binary(max_size=9), max_size=2),
    st.lists(st.tuples(st.integers(8, 400), st.binary(min_size=1, max_size=8)), min_size=1, max_size=4),
)
@example([b"ab" * 20], Codec.ZSTD, {}, [(13, b"\0")])
def test_forged_fields_under_a_fitting_checksum(
    entries: list[bytes], codec: Codec, extensions: dict[int, bytes], patches: list[tuple[int, bytes]]
) -> None:
    batch = encode(entries, codec=codec, extensions=extensions)
    for at, value in patches:
        batch = forged(batch, at % len(batch), value)[: len(batch)]
    returns_or_refuses(sealed(batch))


@given(st.binary(max_size=200), st.integers(1, 10), st.integers(0, 64))
def test_arbitrary_bytes_as_a_zstd_frame(data: bytes, count: int, words: int) -> None:
    returns_or_refuses(compressed(data, words * 8, count=count))
    returns_or_refuses(compressed(b"\x28\xb5\x2f\xfd" + data, words * 8, count=count))


@given(entries=entries_lists, data=st.data(), codec=st.sampled_from(Codec))
def test_one_entry_is_taken_out_of_a_batch_that_is_verified(
    entries: list[bytes], data: st.DataObject, codec: Codec
) -> None:
    made = encode(entries, writer_id=7, sequence=8, codec=codec)
    number = data.draw(st.integers(0, len(entries) - 1))
    for held in (made, memoryview(made)):
        assert entry_of(held, number, len(entries)) == (decode(made).header, entries[number])
    with pytest.raises(MalformedBatch):
        entry_of(made, number, len(entries) + 1)
    at = data.draw(st.integers(0, len(made) - 1))
    with pytest.raises(VarlogError):
        entry_of(made[:at] + bytes([made[at] ^ 1]) + made[at + 1 :], number, len(entries))
