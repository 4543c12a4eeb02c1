"""The bytes: what was encoded is decoded, one changed bit is noticed, and no input raises anything unexpected."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from varlog import batch
from varlog.errors import UnsupportedFormat
from varlog.storage import format as fmt
from varlog.storage.format import Context, Footer, FrameKind, Mark, Members, TrimRecord
from varlog.storage.index import SegmentIndex
from varlog.types import (
    GLSN,
    LLSN,
    ClusterID,
    CommitContext,
    Epoch,
    LogStreamID,
    LogStreamIdentity,
    Ordering,
    StorageNodeID,
    TopicID,
    Version,
)

u32 = st.integers(0, (1 << 32) - 1)
u64 = st.integers(0, (1 << 64) - 1)
identities = st.builds(
    LogStreamIdentity, u32.map(ClusterID), u32.map(StorageNodeID), u32.map(TopicID), u32.map(LogStreamID)
)
llsns, glsns, epochs, versions = u64.map(LLSN), u64.map(GLSN), u64.map(Epoch), u64.map(Version)
commits = st.builds(CommitContext, versions, epochs, glsns, glsns, llsns, glsns, u64, u64)
members = st.builds(Members, st.lists(u32.map(StorageNodeID), max_size=7).map(tuple), u32.map(StorageNodeID))
orderings = st.sampled_from(Ordering)
nobody = st.just(Members())


def contexts(of: st.SearchStrategy[Members]) -> st.SearchStrategy[Context]:
    return st.builds(Context, llsns, llsns, versions, glsns, glsns, epochs, of)


footers = st.builds(
    Footer, identities, orderings, u64, llsns, u64, u64, u64, u32, llsns, llsns, llsns, contexts(nobody)
)
trims = st.builds(TrimRecord, identities, llsns, glsns, versions, epochs, glsns, llsns, u64, st.binary(max_size=100))
marks = st.builds(Mark, u64, u64)

DECODERS: list[Callable[[bytes], object]] = [
    fmt.decode_segment_header,
    fmt.decode_footer,
    fmt.decode_trim,
    fmt.decode_mark,
    fmt.decode_base,
    fmt.decode_commit,
    fmt.decode_members,
    fmt.decode_context,
    fmt.decode_index,
    fmt.decode_positions,
    lambda data: fmt.decode_frame_header(memoryview(data), 0, 0),
]


@given(st.binary(max_size=400))
def test_any_bytes_are_decoded_or_refused(data: bytes) -> None:
    for decode in DECODERS:
        decode(data)


def sealed(magic: bytes, rest: bytes) -> bytes:
    """Bytes whose checksum holds, whatever they say."""
    return magic + crc32c(rest).to_bytes(4, "little") + rest


@given(st.sampled_from([b"VLSG", b"VLSF", b"VLLW", b"VLSY"]), st.binary(min_size=24, max_size=200), st.integers(0, 2))
def test_any_bytes_with_a_good_checksum_are_decoded_or_refused(magic: bytes, rest: bytes, version: int) -> None:
    data = sealed(magic, version.to_bytes(4, "little") + rest[4:])
    for decode in DECODERS[:4]:
        try:
            decode(data)
        except UnsupportedFormat:
            assert version > fmt.FORMAT


@given(identities, orderings, u64, llsns, u64, u64)
def test_segment_headers(
    identity: LogStreamIdentity, ordering: Ordering, seq: int, first_llsn: LLSN, nonce: int, prev_nonce: int
) -> None:
    data = fmt.encode_segment_header(identity, ordering, seq, first_llsn, nonce, prev_nonce)
    assert len(data) == fmt.SEGMENT_HEADER_BYTES
    found = fmt.decode_segment_header(data)
    assert found is not None
    assert found[:6] == (identity, ordering, seq, first_llsn, nonce, prev_nonce)


@given(footers)
def test_footers(footer: Footer) -> None:
    data = fmt.encode_footer(footer)
    assert len(data) == fmt.FOOTER_BYTES
    assert fmt.decode_footer(data) == footer


@given(trims)
def test_trim_records(record: TrimRecord) -> None:
    assert fmt.decode_trim(fmt.encode_trim(record)) == record


@given(marks)
def test_marks(mark: Mark) -> None:
    data = fmt.encode_mark(mark)
    assert len(data) == fmt.MARK_BYTES
    assert fmt.decode_mark(data) == mark


@given(commits)
def test_commits(cc: CommitContext) -> None:
    assert fmt.decode_commit(fmt.encode_commit(cc)) == cc


@given(members)
def test_members(one: Members) -> None:
    data = fmt.encode_members(one)
    assert len(data) % 8 == 0
    assert fmt.decode_members(data) == one


@given(contexts(members), st.binary(max_size=100))
def test_contexts(context: Context, snapshot: bytes) -> None:
    data = fmt.encode_context(context, snapshot)
    assert len(data) % 8 == 0
    assert fmt.decode_context(data) == (context, snapshot)


@given(st.lists(st.tuples(u64, u32, u32), max_size=9), st.lists(commits, max_size=5))
def test_indexes(batches: list[tuple[int, int, int]], ccs: list[CommitContext]) -> None:
    index = SegmentIndex()
    for llsn, offset, size in batches:
        index.add_batch(LLSN(llsn), offset, size)
    for cc in ccs:
        index.add_commit(cc)
    data = index.encode()
    assert len(data) % 8 == 0
    found = SegmentIndex.decode(data)
    assert found is not None
    assert [found.run(i, LLSN(0), 0)[0] for i in range(len(found))] == batches
    assert [found.commit(i) for i in range(found.commits)] == ccs


def test_indexes_keep_their_form() -> None:
    """What was written by one release is read by all later ones."""
    data = fmt.encode_index(array("Q", [5]), array("I", [64]), array("I", [128]), array("Q", range(8)))
    counts = "01000000000000000100000000000000"
    commit = "".join(f"{i:02x}00000000000000" for i in range(8))
    assert data.hex() == counts + "0500000000000000" + commit + "40000000" + "80000000"


@given(st.lists(st.tuples(u64, u64, u32, u32, u32, u32), max_size=20))
def test_positions(rows: list[tuple[int, ...]]) -> None:
    columns = [array(code, [row[i] for row in rows]) for i, code in enumerate(fmt.POSITION_COLUMNS)]
    data = fmt.encode_positions(columns, len(rows))
    assert len(data) % 8 == 0
    assert fmt.decode_positions(data) == columns


def test_the_layout_of_positions_is_as_documented() -> None:
    data = fmt.encode_positions([array(code, [i + 1]) for i, code in enumerate(fmt.POSITION_COLUMNS)], 1)
    assert data.hex() == (
        "01000000000000000000000000000000" + "0100000000000000" + "0200000000000000" + "03000000" + "04000000"
        "05000000" + "06000000"
    )


BATCH = batch.encode([b"one"])
CHECK = fmt.batch_check(BATCH)
SAMPLES: dict[str, tuple[bytes, Callable[[Any], object]]] = {
    "segment header": (
        fmt.encode_segment_header(LogStreamIdentity._make((1, 2, 3, 4)), Ordering.SEQUENCER, 5, LLSN(6), 7, 8),
        fmt.decode_segment_header,
    ),
    "footer": (
        fmt.encode_footer(
            Footer(
                LogStreamIdentity._make((1, 2, 3, 4)), Ordering.COMMIT, 5, LLSN(6), 7, 8, 9, 10, LLSN(1), LLSN(2),
                LLSN(3),
                Context(LLSN(1), LLSN(2), Version(3), GLSN(4), GLSN(5), Epoch(6), Members()),
            )
        ),
        fmt.decode_footer,
    ),
    "trim record": (
        fmt.encode_trim(
            TrimRecord(
                LogStreamIdentity._make((1, 2, 3, 4)), LLSN(5), GLSN(6), Version(7), Epoch(8), GLSN(9), LLSN(1), 2,
                b"table",
            )
        ),
        fmt.decode_trim,
    ),
    "mark": (fmt.encode_mark(Mark(3, 4096)), fmt.decode_mark),
    "frame header": (
        fmt.encode_frame_header(4096, 1, FrameKind.BATCH, 80, 2, 3, 4, 5, 6, 7, 8)[0],
        lambda data: fmt.decode_frame_header(memoryview(data), 0, 4096),
    ),
    "batch in its frame": (
        fmt.encode_frame_header(4096, 1, FrameKind.BATCH, len(BATCH), 1, CHECK, 4, 5, 6, 7, 8)[0] + BATCH,
        lambda data: fmt.batch_of_frame(data, 4096, (1, CHECK, 5, 7, 8)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", SAMPLES)
def test_any_flipped_bit_is_noticed(what: str) -> None:
    data, decode = SAMPLES[what]
    assert decode(data) is not None
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        assert decode(bytes(damaged)) is None
    for length in range(len(data)):
        assert decode(data[:length]) is None


@given(u32, u32, st.sampled_from(FrameKind), st.integers(0, 1 << 20), u32, u32, u32, u64, u64, u64, u64)
def test_a_frame_header_stands_at_its_offset_only(
    offset: int, prev: int, kind: FrameKind, words: int, count: int, check: int, synced: int, llsn: int, epoch: int,
    prev_sequence: int, nonce: int,
) -> None:  # fmt: skip
    length = 8 * words
    data, crc = fmt.encode_frame_header(
        offset, prev, kind, length, count, check, synced, llsn, epoch, prev_sequence, nonce
    )  # fmt: skip
    view = memoryview(b"before: " + data + b"after")
    assert fmt.decode_frame_header(view, 8, offset) == (
        crc, prev, kind, length, count, check, synced, llsn, epoch, prev_sequence, nonce
    )  # fmt: skip
    assert fmt.decode_frame_header(view, 8, offset ^ 8) is None
    assert fmt.decode_frame_header(view, 8, offset ^ (1 << 31)) is None


def test_a_batch_is_bound_to_its_frame() -> None:
    """Another batch, whole in itself, is not the one the frame was made for."""
    one, other = batch.encode([b"one"]), batch.encode([b"two"])
    assert len(one) == len(other)
    encoded, _ = fmt.encode_frame_header(0, 0, FrameKind.BATCH, len(one), 1, fmt.batch_check(one), 0, 1, 1, 0, 1)
    header = fmt.decode_frame_header(memoryview(encoded), 0, 0)
    assert header is not None
    assert fmt.is_body_whole(header, memoryview(one))
    assert not fmt.is_body_whole(header, memoryview(other))
    assert not fmt.is_body_whole(header, memoryview(one[:-8]))
    expected = (1, fmt.batch_check(one), 1, 0, 1)
    assert fmt.batch_of_frame(encoded + one, 0, expected) == (1, memoryview(one))
    assert fmt.batch_of_frame(encoded + other, 0, expected) is None
    assert fmt.batch_of_frame(encoded + one, 8, expected) is None
    for number in range(len(expected)):
        changed = (*expected[:number], expected[number] + 1, *expected[number + 1 :])
        assert fmt.batch_of_frame(encoded + one, 0, changed) is None
    for bit in range(8 * len(one)):
        damaged = bytearray(one)
        damaged[bit // 8] ^= 1 << bit % 8
        assert not fmt.is_body_whole(header, memoryview(damaged))
