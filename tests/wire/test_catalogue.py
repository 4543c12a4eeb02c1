"""Every message has its number and comes out of the wire as it went in."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import varlog.wire
from tests.wire.made import CLASSES, U64, some
from varlog import errors, limits
from varlog.batch import Buffer
from varlog.core.messages import Append, CreateTopic, Message, Replicate, ScanReply
from varlog.types import LLSN, Epoch, LogStreamID, Sequence
from varlog.wire import Ping, catalogue, hot
from varlog.wire.hello import Refused

HEADER = 8


def kinds_of(cls: type[Message]) -> Iterator[type[Message]]:
    for child in cls.__subclasses__():
        if child.__module__.startswith("varlog."):
            yield child
            yield from kinds_of(child)


def decoded(frame: bytes) -> list[Message]:
    """The message in a frame, taken apart in both ways."""
    view = memoryview(frame)
    codec = catalogue.CODECS[int.from_bytes(frame[4:6], "little")][1]
    assert int.from_bytes(frame[:4], "little") == len(frame) - HEADER
    assert frame[6:8] == b"\0\0"
    assert codec.least <= len(frame) - HEADER <= codec.most
    return [codec.decode(view, HEADER, len(frame)), codec.adopt(view, HEADER, len(frame))]


def test_every_message_has_exactly_one_number() -> None:
    assert varlog.wire is not None, "whoever defines messages is imported"
    times = Counter(cls for cls, _ in catalogue.CODECS.values())
    assert {cls: times[cls] for cls in kinds_of(Message)} == dict.fromkeys(kinds_of(Message), 1)
    assert len(times) == len(list(kinds_of(Message)))


def test_numbers_fit_their_field() -> None:
    assert all(0 < number < 1 << 16 for number in catalogue.CODECS)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
@settings(max_examples=25)
@given(data=st.data())
def test_a_message_comes_out_as_it_went_in(cls: type[Message], data: st.DataObject) -> None:
    message = data.draw(some(cls))
    pieces: list[Buffer] = []
    size = catalogue.ENCODERS[cls](message, pieces.append)
    frame = b"".join(pieces)
    assert len(frame) == size
    assert decoded(frame) == [message, message]


def test_batches_may_be_any_buffer() -> None:
    for size in (10, hot.JOIN_BYTES + 1):
        content = bytes(size)
        sent = Append(1, LogStreamID(2), Epoch(3), Sequence(4), LLSN(5), memoryview(content))
        assert decoded(catalogue.encode(sent)) == [sent, sent]


def test_a_large_batch_is_sent_from_where_it_lies() -> None:
    content = bytes(hot.JOIN_BYTES + 1)
    pieces: list[Buffer] = []
    message = Replicate(LogStreamID(1), Epoch(2), LLSN(3), Sequence(4), content)
    catalogue.ENCODERS[Replicate](message, pieces.append)
    assert pieces[-1] is content


def test_a_small_message_owns_its_bytes_and_a_large_one_refers_to_its_frame() -> None:
    frame = bytearray(catalogue.encode(Append(1, LogStreamID(2), Epoch(3), Sequence(4), LLSN(5), b"aaaa")))
    view = memoryview(frame)
    codec = catalogue.CODECS[catalogue.NUMBERS[Append]][1]
    copied, adopted = codec.decode(view, HEADER, len(view)), codec.adopt(view, HEADER, len(view))
    frame[-1:] = b"b"
    assert isinstance(copied, Append)
    assert isinstance(adopted, Append)
    assert (bytes(copied.batch), bytes(adopted.batch)) == (b"aaaa", b"aaab")


def line(batch: bytes) -> tuple[int, int, int, int, int, int, bytes]:
    return (1, 1, 1, 2, 3, 4, batch)


@pytest.mark.parametrize(
    ("message", "error"),
    [
        (Ping(1, bytes(limits.MAX_PING_BYTES + 1)), errors.BatchTooLarge),
        (
            Append(1, LogStreamID(1), Epoch(2), Sequence(0), LLSN(1), bytes(limits.MAX_BATCH_BYTES + 1)),
            errors.BatchTooLarge,
        ),
        (
            Replicate(LogStreamID(1), Epoch(2), LLSN(1), Sequence(0), bytes(limits.MAX_BATCH_BYTES + 1)),
            errors.BatchTooLarge,
        ),
        (ScanReply(1, LogStreamID(1), 0, (line(bytes(hot.MAX_SCAN_REPLY)),)), errors.InvalidArgument),
        (CreateTopic(1, "x" * limits.MAX_CONTROL_BYTES, 3, 2), errors.InvalidArgument),
        (Refused(1, "x" * limits.HELLO_BYTES), errors.InvalidArgument),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_larger_than_its_limit_is_not_sent(message: Message, error: type[errors.VarlogError]) -> None:
    pieces: list[Buffer] = []
    with pytest.raises(error, match=r"at most|hold"):
        catalogue.ENCODERS[type(message)](message, pieces.append)
    assert not pieces


def test_the_largest_batch_fits() -> None:
    batch = bytes(limits.MAX_BATCH_BYTES)
    append = Append(1, LogStreamID(1), Epoch(2), Sequence(0), LLSN(1), batch)
    replicate = Replicate(LogStreamID(1), Epoch(2), LLSN(1), Sequence(0), batch)
    many_small = [line(bytes(48))] * (limits.SCAN_REPLY_BYTES // 48)
    scanned = ScanReply(1, LogStreamID(1), 0, (*many_small, line(batch)))
    for message in (append, replicate, scanned):
        frame = catalogue.encode(message)
        assert len(frame) - HEADER <= catalogue.CODECS[catalogue.NUMBERS[type(message)]][1].most


def test_a_number_beyond_its_field_is_not_sent() -> None:
    pieces: list[Buffer] = []
    for request in (-1, U64 + 1):
        with pytest.raises(struct.error, match=r"format requires|out of range|too large"):
            catalogue.ENCODERS[Ping](Ping(request), pieces.append)
    assert not pieces


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda body: body[:-1], "reaches beyond the end"),
        (lambda body: body + b"x", "1 bytes follow"),
        (lambda body: body[:34] + b"\xff\xff\xff\xff" + body[38:], "do not fit"),
    ],
    ids=["cut short", "too long", "more batches than bytes"],
)
def test_batches_fill_a_reply_exactly(change, complaint: str) -> None:  # type: ignore[no-untyped-def]
    reply = ScanReply(1, LogStreamID(1), 0, (line(b"abc"), line(b"defg")))
    body = change(catalogue.encode(reply)[HEADER:])
    codec = catalogue.CODECS[catalogue.NUMBERS[ScanReply]][1]
    with pytest.raises(errors.ProtocolError, match=complaint):
        codec.decode(memoryview(body), 0, len(body))


def test_fields_may_be_added_at_the_end() -> None:
    codec = catalogue.CODECS[catalogue.NUMBERS[CreateTopic]][1]
    body = msgspec.msgpack.encode([1, "name", 3, 2, "of a later version", [1, {}]])
    assert codec.decode(memoryview(body), 0, len(body)) == CreateTopic(1, "name", 3, 2)
