"""The packed messages of the sequencer ordering: what fits into one, and that nothing else is taken for one."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest

from varlog import errors, limits
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
)
from varlog.types import GLSN, Epoch, LogStreamID, TopicID
from varlog.wire import catalogue, chained, hot

HEADER = hot.HEADER_BYTES
TOPIC, LOG, EPOCH = TopicID(2), LogStreamID(2), Epoch(3)
ONE = (1,)


def asking(*counts: int) -> Next:
    return Next(1, TOPIC, EPOCH, counts)


def granting(glsns: tuple[int, ...] = (), skipped: tuple[tuple[int, int], ...] = (), detail: str = "") -> Granted:
    return Granted(1, 0, EPOCH, glsns, 9, skipped, detail)


def writing(*batches: bytes | memoryview) -> ChainWrite:
    n = len(batches)
    return ChainWrite(1, LOG, EPOCH, tuple(range(10, 10 + n)), (9,) * n, batches)


def refusing(*batches: bytes, detail: str = "") -> ChainWritten:
    refused: tuple[Refusal, ...] = tuple([(at, 56, 10 + at, 9, batch) for at, batch in enumerate(batches)])
    return ChainWritten(1, LOG, 0, EPOCH, True, refused, detail)


def telling(*batches: bytes, detail: str = "") -> ChainPart:
    lines = tuple([(10 + at, 10 + at, 1, 3, 0, 9, batch) for at, batch in enumerate(batches)])
    return ChainPart(1, LOG, 0, EPOCH, lines, GLSN(20), 7, GLSN(0), detail)


def codec_of(cls: type[Message]) -> hot.Codec:
    return catalogue.CODECS[catalogue.NUMBERS[cls]][1]


def body_of(message: Message) -> bytes:
    return catalogue.encode(message)[HEADER:]


@pytest.mark.parametrize(
    "sent",
    [
        asking(1),
        asking(5, 1, 1 << 20),
        granting((4,)),
        granting((4, 9)),
        granting((4, 9), ((7, 2),)),
        granting((4,), ((2, 2), (8, 1)), "ä"),
        granting(detail="why"),
        writing(b"abc"),
        writing(memoryview(b"abc"), b"", b"defg"),
        writing(bytes(hot.RUN_BYTES + 1), b"x"),
        refusing(),
        refusing(detail="why"),
        refusing(b"abc", b"", detail="ä"),
        ChainRead(1, LOG, EPOCH, GLSN(4), 5, True, 6),
        ChainRead(1, LOG, EPOCH, GLSN(4), 5, True, 6, True),
        telling(),
        telling(b"abc", b"", detail="why"),
        telling(bytes(hot.RUN_BYTES + 1)),
    ],
    ids=lambda sent: type(sent).__name__,
)
def test_a_message_comes_out_as_it_went_in(sent: Message) -> None:
    codec, body = codec_of(type(sent)), body_of(sent)
    assert codec.least <= len(body) <= codec.most
    for decode in (codec.decode, codec.adopt):
        assert decode(memoryview(body), 0, len(body)) == sent


def test_the_bytes_are_the_layout() -> None:
    fixed = struct.pack("<QQQIQQQQII", 1, 2, 3, 2, 10, 11, 9, 9, 3, 4)
    assert body_of(writing(b"abc", b"defg")) == fixed + b"abcdefg"
    fixed = struct.pack("<QHQQIIHQQQI", 1, 0, 3, 9, 2, 1, 2, 4, 9, 7, 2)
    assert body_of(granting((4, 9), ((7, 2),), "no")) == fixed + b"no"
    fixed = struct.pack("<QQHQ?IHIHQQI", 1, 2, 0, 3, True, 1, 2, 0, 56, 10, 9, 3)
    assert body_of(refusing(b"abc", detail="no")) == fixed + b"noabc"


@pytest.mark.parametrize("make", [writing, telling, refusing])
def test_large_batches_are_sent_from_where_they_lie(make: Callable[..., Message]) -> None:
    contents = [bytes(hot.RUN_BYTES // 2 + 1) for _ in range(2)]
    sent, pieces = make(*contents), list[Buffer]()
    assert catalogue.ENCODERS[type(sent)](sent, pieces.append) == sum(map(len, pieces))
    assert all(piece is content for piece, content in zip(pieces[-2:], contents, strict=True))


@pytest.mark.parametrize(
    ("make", "field"),
    [(writing, lambda message: message.batches[0]), (telling, lambda message: message.batches[0][6])],
)
def test_what_is_decoded_owns_its_bytes_and_what_is_adopted_refers(
    make: Callable[..., Message], field: Callable[[Any], bytes]
) -> None:
    body = bytearray(body_of(make(bytes(4000))))
    codec = codec_of(type(make(b"")))
    copied, adopted = codec.decode(memoryview(body), 0, len(body)), codec.adopt(memoryview(body), 0, len(body))
    body[-1] = 7
    assert (field(copied)[-1], field(adopted)[-1]) == (0, 7)


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        (asking(), errors.InvalidArgument),
        (asking(*[1] * (limits.MAX_GRANTS + 1)), errors.InvalidArgument),
        (granting(tuple([1] * (limits.MAX_GRANTS + 1))), errors.InvalidArgument),
        (granting((1,), tuple([(1, 1)] * (limits.MAX_GRANTS + 1))), errors.InvalidArgument),
        (writing(bytes(limits.MAX_BATCH_BYTES), b"x"), errors.BatchTooLarge),
        (writing(*[b""] * (limits.CHAIN_WRITE_BATCHES + 1)), errors.BatchTooLarge),
        (refusing(*[b""] * (limits.CHAIN_WRITE_BATCHES + 1)), errors.InvalidArgument),
        (refusing(bytes(chained.MAX_CHAIN_ANSWER)), errors.InvalidArgument),
        (telling(bytes(chained.MAX_CHAIN_ANSWER)), errors.InvalidArgument),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_larger_than_its_limit_is_not_sent(sent: Message, error: type[errors.VarlogError]) -> None:
    pieces: list[Buffer] = []
    with pytest.raises(error, match="at most"):
        catalogue.ENCODERS[type(sent)](sent, pieces.append)
    assert not pieces


def test_the_largest_fit() -> None:
    most, batch = limits.CHAIN_WRITE_BATCHES, bytes(limits.MAX_BATCH_BYTES)
    small = bytes(limits.SCAN_REPLY_BYTES // most)
    grants = tuple(range(limits.MAX_GRANTS))
    for sent in (
        asking(*grants),
        granting(grants, tuple([(1, 1)] * limits.MAX_GRANTS), "x" * hot.MAX_DETAIL_BYTES),
        writing(batch),
        writing(*[bytes(limits.MAX_BATCH_BYTES // most)] * most),
        refusing(*[small] * (most - 1), batch),
        telling(*[small] * (most - 1), batch),
    ):
        assert len(body_of(sent)) <= codec_of(type(sent)).most


def test_columns_of_different_lengths_are_not_sent() -> None:
    for glsns, times in (((1, 2), ONE), (ONE, (1, 2)), (ONE, ONE)):
        with pytest.raises(struct.error, match="pack expected"):
            catalogue.encode(ChainWrite(1, LOG, EPOCH, glsns, times, (b"abc", b"defg")))


def told(number: int, at: int, body: bytes) -> bytes:
    return body[:at] + struct.pack("<I", number) + body[at + 4 :]


HUGE = (1 << 32) - 1
WRITE, ASK, GRANT, REFUSE, TELL = 24, 24, 26, 27, 50
"""Where in their bodies it stands how many there are."""


@pytest.mark.parametrize(
    ("sent", "change", "complaint"),
    [
        (writing(b"abc", b"defg"), lambda body: body[:-1], "end at byte"),
        (writing(b"abc", b"defg"), lambda body: body + b"x", "end at byte"),
        (writing(b"abc", b"defg"), lambda body: told(0, WRITE, body), "0 batches"),
        (writing(b"abc", b"defg"), lambda body: told(1, WRITE, body), "end at byte"),
        (writing(b"abc", b"defg"), lambda body: told(HUGE, WRITE, body), "4294967295 batches"),
        (writing(b"abc", b"defg"), lambda body: told(1025, WRITE, body) + bytes(100_000), "1025 batches"),
        (writing(b"abc", b"defg"), lambda body: told(HUGE, WRITE + 4 + 32, body), "end at byte"),
        (writing(b"abc"), lambda body: body[: WRITE + 4 + 10], "1 batches in"),
        (asking(1, 2), lambda body: body[:-1], "2 batches in"),
        (asking(1, 2), lambda body: body + b"x", "2 batches in"),
        (asking(1, 2), lambda body: told(0, ASK, body), "0 batches in"),
        (asking(1, 2), lambda body: told(HUGE, ASK, body), "4294967295 batches in"),
        (granting((1, 2), ((3, 4),)), lambda body: body[:-1], "2 positions and 1 skipped"),
        (granting((1, 2), ((3, 4),)), lambda body: body + b"x", "2 positions and 1 skipped"),
        (granting((1, 2), ((3, 4),)), lambda body: told(HUGE, GRANT, body), "4294967295 positions"),
        (granting((1, 2), ((3, 4),)), lambda body: told(HUGE, GRANT + 4, body), "4294967295 skipped"),
        (granting((1,)), lambda body: told(0, GRANT, body), "0 positions"),
        (refusing(b"abc", b"de"), lambda body: body[:-1], "end at byte"),
        (refusing(b"abc", b"de"), lambda body: body + b"x", "end at byte"),
        (refusing(b"abc", b"de"), lambda body: told(HUGE, REFUSE, body), "4294967295 refused"),
        (refusing(b"abc", b"de"), lambda body: told(1025, REFUSE, body) + bytes(100_000), "1025 refused"),
        (refusing(), lambda body: body + b"x", "end at byte"),
        (refusing(), lambda body: told(1, REFUSE, body), "1 refused"),
        (telling(b"abc", b"de"), lambda body: body[:-1], "end at byte"),
        (telling(b"abc", b"de"), lambda body: body + b"x", "end at byte"),
        (telling(b"abc", b"de"), lambda body: told(1, TELL, body), "end at byte"),
        (telling(b"abc", b"de"), lambda body: told(HUGE, TELL, body), "do not fit"),
    ],
)
def test_a_body_is_filled_exactly(sent: Message, change: Callable[[bytes], bytes], complaint: str) -> None:
    body, codec = change(body_of(sent)), codec_of(type(sent))
    for decode in (codec.decode, codec.adopt):
        with pytest.raises(errors.ProtocolError, match=complaint):
            decode(memoryview(body), 0, len(body))
