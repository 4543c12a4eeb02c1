"""What batches say of transactions: marks and verdicts, there and back, and whatever else the bytes may be."""

from __future__ import annotations

import contextlib

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from varlog import batch, errors, limits
from varlog.batch import BatchFlag
from varlog.batch.transactions import (
    MARK_TAG,
    Mark,
    Verdict,
    VerdictKind,
    decode_verdict,
    encode_mark,
    encode_verdict,
    mark_of,
)
from varlog.types import GLSN, TransactionID

U64 = st.integers(0, 2**64 - 1)
IDS = st.integers(1, 2**64 - 1).map(TransactionID)
MARKS = st.builds(Mark, IDS, U64.map(GLSN), U64, st.integers(0, 2**32 - 1))
PARTS = st.dictionaries(U64, U64, max_size=20).map(lambda found: tuple(sorted(found.items())))
AFTERS = st.integers(0, 2**62).map(GLSN)
COMMITS = st.builds(
    lambda txid, after, parts, more: Verdict(VerdictKind.COMMIT, txid, after, parts, "", GLSN(after + more)),
    IDS,
    AFTERS,
    PARTS,
    st.integers(1, 2**62),
)
OTHERS = st.builds(
    lambda kind, txid, after, reason: Verdict(kind, txid, after, (), reason),
    st.sampled_from([VerdictKind.ABORT, VerdictKind.EXPIRE]),
    IDS,
    AFTERS,
    st.text(max_size=100),
)


@given(MARKS)
def test_a_mark_comes_back_from_a_batch_as_it_was(mark: Mark) -> None:
    packed = batch.encode([b"entry"], flags=BatchFlag.TRANSACTION, extensions={MARK_TAG: encode_mark(mark)})
    opened = batch.decode(packed)
    assert mark_of(opened.extensions) == mark
    assert opened.flags == BatchFlag.TRANSACTION
    assert opened.to_list() == [b"entry"]


@given(COMMITS | OTHERS)
def test_a_verdict_comes_back_as_it_was(verdict: Verdict) -> None:
    assert decode_verdict(encode_verdict(verdict)) == verdict


@given(st.binary(max_size=120))
def test_whatever_the_bytes_are_a_verdict_is_read_or_refused(entry: bytes) -> None:
    try:
        verdict = decode_verdict(entry)
    except errors.MalformedBatch:
        return
    assert verdict.txid > 0


@given(COMMITS, st.data())
def test_a_verdict_that_is_cut_off_or_changed_is_read_or_refused(verdict: Verdict, data: st.DataObject) -> None:
    entry = bytearray(encode_verdict(verdict))
    at = data.draw(st.integers(0, len(entry) - 1))
    entry[at] ^= data.draw(st.integers(1, 255))
    for changed in (bytes(entry), bytes(entry[:at])):
        with contextlib.suppress(errors.MalformedBatch):
            assert decode_verdict(changed).txid > 0


def test_a_long_reason_is_cut_between_characters() -> None:
    verdict = Verdict(VerdictKind.ABORT, TransactionID(1), GLSN(0), (), "ä" * limits.MAX_DETAIL)
    assert decode_verdict(encode_verdict(verdict)).reason == "ä" * (limits.MAX_DETAIL // 2)


def test_a_reason_that_is_no_text_is_written_as_it_can_be() -> None:
    verdict = Verdict(VerdictKind.ABORT, TransactionID(1), GLSN(0), (), "cannot parse caf\udce9.csv")
    assert decode_verdict(encode_verdict(verdict)).reason == r"cannot parse caf\udce9.csv"


@pytest.mark.parametrize(
    "verdict",
    [
        Verdict(VerdictKind.COMMIT, TransactionID(1), GLSN(9), ((1, 1),), "", GLSN(8)),
        Verdict(VerdictKind.COMMIT, TransactionID(1), GLSN(9), ((2, 1), (1, 1)), "", GLSN(10)),
        Verdict(VerdictKind.COMMIT, TransactionID(0), GLSN(9), (), "", GLSN(10)),
        Verdict(VerdictKind.ABORT, TransactionID(1), GLSN(9), (), "", GLSN(10)),
        Verdict(VerdictKind.EXPIRE, TransactionID(1), GLSN(9), ((1, 1),)),
    ],
)
def test_a_verdict_that_contradicts_itself_is_refused(verdict: Verdict) -> None:
    with pytest.raises(errors.MalformedBatch):
        decode_verdict(encode_verdict(verdict))


def test_what_does_not_fit_is_refused() -> None:
    parts = tuple((part, 1) for part in range(limits.MAX_TRANSACTION_PARTS + 1))
    with pytest.raises(errors.InvalidArgument, match="parts"):
        encode_verdict(Verdict(VerdictKind.COMMIT, TransactionID(1), GLSN(0), parts))
    with pytest.raises(errors.InvalidArgument):
        encode_verdict(Verdict(VerdictKind.COMMIT, TransactionID(1), GLSN(0), ((1 << 64, 1),)))
    with pytest.raises(errors.InvalidArgument):
        encode_mark(Mark(TransactionID(-1), GLSN(0), 0, 0))


def test_a_batch_with_the_flag_needs_a_mark() -> None:
    unmarked = batch.decode(batch.encode([b""], flags=BatchFlag.TRANSACTION))
    with pytest.raises(errors.MalformedBatch, match="mark"):
        mark_of(unmarked.extensions)


@given(MARKS, st.lists(st.binary(max_size=20), min_size=1, max_size=300), st.data())
def test_a_marked_batch_is_checked_as_any_other_whichever_way_it_goes(
    mark: Mark, entries: list[bytes], data: st.DataObject
) -> None:
    extensions = {MARK_TAG: encode_mark(mark)}
    packed = batch.encode(entries, writer_id=7, sequence=8, flags=BatchFlag.TRANSACTION, extensions=extensions)
    for opened in (batch.decode(packed), batch.decode(packed, verified=True)):
        assert opened.to_list() == entries
        assert opened.extensions == extensions
        assert opened.header == batch.verify(packed) == batch.peek_header(packed)
    damaged = bytearray(packed)
    damaged[data.draw(st.integers(0, len(packed) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(errors.VarlogError):
        batch.verify(bytes(damaged))


@pytest.mark.parametrize("at", [56, 58, 92, 95])
def test_a_mark_of_another_form_goes_the_long_way(at: int) -> None:
    """Its tag, its length and its padding, with a checksum that holds."""
    mark = encode_mark(Mark(TransactionID(1), GLSN(2), 3, 4))
    packed = bytearray(batch.encode([b"entry"], flags=BatchFlag.TRANSACTION, extensions={MARK_TAG: mark}))
    packed[at] ^= 2
    packed[4:8] = crc32c(bytes(packed[8:])).to_bytes(4, "little")
    with pytest.raises(errors.MalformedBatch):
        mark_of(batch.decode(bytes(packed)).extensions)


@given(MARKS, st.binary(max_size=40), st.integers(0, 2**64 - 1))
def test_one_entry_with_a_mark_is_the_same_bytes_however_it_is_made(mark: Mark, entry: bytes, writer: int) -> None:
    extension = batch.encode_extensions({MARK_TAG: encode_mark(mark)}, batch.HEADER_BYTES)
    slowly = batch.encode(
        [entry], writer_id=writer, sequence=3, timestamp=4, flags=BatchFlag.TRANSACTION, extensions=extension
    )
    assert batch.encode_marked_single(entry, writer, 3, 4, extension) == slowly
    assert batch.encode_marked_single(entry, -1, 3, 4, extension) is None
    assert batch.encode_marked_single(entry, writer, 3, 4, b"") is None
