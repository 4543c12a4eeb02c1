"""The parts that one replica copies from another: what fits into one, and that nothing else is taken for one."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest

from varlog import errors, limits
from varlog.batch import Buffer
from varlog.core.messages import LogPart
from varlog.types import GLSN, LLSN, CommitContext, Epoch, LogStreamID, Sequence, Version
from varlog.wire import catalogue, hot

CC = CommitContext(Version(1), Epoch(2), GLSN(9), GLSN(3), LLSN(4), GLSN(5), 2, 6)
CODEC = catalogue.CODECS[catalogue.NUMBERS[LogPart]][1]
BATCHES, COMMITS, BASE, DETAIL = 34, 38, 42, 46
"""Where the fixed part says how many there are, and how many bytes."""


def part(*batches: bytes, commits: int = 0, base: bytes = b"", detail: str = "") -> LogPart:
    n = len(batches)
    columns = ((Epoch(2),) * n, (Sequence(7),) * n, batches)
    return LogPart(3, LogStreamID(1), 0, LLSN(9), LLSN(4), *columns, (CC,) * commits, base, detail)


@pytest.mark.parametrize(
    "sent",
    [
        part(),
        part(b"abc", b"", commits=2),
        part(base=b"what came before", detail="trimmed"),
        part(commits=1, detail="ä"),
    ],
    ids=["empty", "batches", "base", "detail"],
)
def test_a_part_comes_out_as_it_went_in(sent: LogPart) -> None:
    body = catalogue.encode(sent)[hot.HEADER_BYTES :]
    for decode in (CODEC.decode, CODEC.adopt):
        assert decode(memoryview(body), 0, len(body)) == sent


@pytest.mark.parametrize(
    "sent",
    [
        part(*[b""] * (limits.COPY_PART_BATCHES + 1)),
        part(commits=limits.COPY_PART_BATCHES + 1),
        part(bytes(hot.MAX_COPIED_BYTES), *[bytes(limits.KIB)] * 100),
        part(base=bytes(hot.MAX_COPIED_BYTES + limits.MIB)),
    ],
    ids=["batches", "commits", "bytes", "base"],
)
def test_what_is_larger_than_a_part_is_not_sent(sent: LogPart) -> None:
    pieces: list[Buffer] = []
    with pytest.raises(errors.BatchTooLarge, match="at most"):
        catalogue.ENCODERS[LogPart](sent, pieces.append)
    assert not pieces


def test_the_largest_parts_fit() -> None:
    most = limits.COPY_PART_BATCHES
    small = bytes(limits.COPY_PART_BYTES // most)
    for sent in (
        part(*[small] * (most - 1), bytes(limits.MAX_BATCH_BYTES), commits=most),
        part(base=bytes(limits.COPY_BASE_BYTES)),
    ):
        assert len(catalogue.encode(sent)) - hot.HEADER_BYTES <= CODEC.most


def test_columns_of_different_lengths_are_not_sent() -> None:
    sent = LogPart(3, LogStreamID(1), 0, LLSN(9), LLSN(4), (Epoch(2),), (), (b"abc",))
    with pytest.raises(struct.error):
        catalogue.encode(sent)


def told(number: int, at: int, body: bytes) -> bytes:
    return body[:at] + struct.pack("<I", number) + body[at + 4 :]


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda body: body[:-1], "end at byte 167 of 166"),
        (lambda body: body + b"x", "end at byte 167 of 168"),
        (lambda body: told(1, BATCHES, body), "end at byte"),
        (lambda body: told(9, BATCHES, body), "9 batches and 1 commits do not fit into the 167 bytes"),
        (lambda body: told((1 << 32) - 1, BATCHES, body), "4294967295 batches"),
        (lambda body: told(limits.COPY_PART_BATCHES + 1, BATCHES, body) + bytes(100_000), "513 batches"),
        (lambda body: told(limits.COPY_PART_BATCHES + 1, COMMITS, body) + bytes(100_000), "513 commits"),
        (lambda body: told((1 << 32) - 1, COMMITS, body), "4294967295 commits"),
        (lambda body: told(0, COMMITS, body), "end at byte"),
        (lambda body: told((1 << 32) - 1, BASE, body), "do not fit"),
        (lambda body: told(10, BASE, body), "do not fit"),
        (lambda body: body[:DETAIL] + b"\xff\xff" + body[DETAIL + 2 :], "do not fit"),
        (lambda body: told(4, 48 + 32, body), "end at byte 168 of 167"),
    ],
)
def test_batches_fill_a_part_exactly(change: Callable[[bytes], bytes], complaint: str) -> None:
    """Its fixed part has 48 bytes, the columns 20 for each batch, a commit 64."""
    body = change(catalogue.encode(part(b"abc", b"defg", commits=1, base=b"xy", detail="why?.."))[hot.HEADER_BYTES :])
    for decode in (CODEC.decode, CODEC.adopt):
        with pytest.raises(errors.ProtocolError, match=complaint):
            decode(memoryview(body), 0, len(body))
