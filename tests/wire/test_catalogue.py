"""Every message has its number and comes out of the wire as it went in."""

from __future__ import annotations

import random
import struct
from collections import Counter
from collections.abc import Callable, Iterator

import msgspec
import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

import varlog.wire
from tests.wire.made import CLASSES, U64, frame, some
from varlog import errors, limits
from varlog.batch import Buffer
from varlog.core.messages import Append, AppendReplies, AppendReply, CreateTopic, Message, Replicate, ScanReply
from varlog.types import GLSN, LLSN, Epoch, LogStreamID, Ordering, Sequence
from varlog.wire import Ping, catalogue, hot
from varlog.wire.hello import Refused

HEADER = hot.HEADER_BYTES


def run(*batches: bytes | memoryview) -> Replicate:
    prev_sequences = tuple(map(Sequence, range(len(batches))))
    return Replicate(LogStreamID(1), Epoch(2), LLSN(3), prev_sequences, batches)


def kinds_of(cls: type[Message]) -> Iterator[type[Message]]:
    for child in cls.__subclasses__():
        if child.__module__.startswith("varlog."):
            yield child
            yield from kinds_of(child)


def decoded(frame: bytes) -> list[Message]:
    """The message in a frame, taken apart in both ways."""
    view = memoryview(frame)
    crc, size, number, zero = struct.unpack_from("<IIHH", frame)
    assert (crc, size, zero) == (crc32c(frame[4:]), len(frame) - HEADER, 0)
    codec = catalogue.CODECS[number][1]
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
    message = Append(1, LogStreamID(1), Epoch(2), Sequence(3), LLSN(4), content)
    catalogue.ENCODERS[Append](message, pieces.append)
    assert pieces[-1] is content


def test_the_batches_of_a_large_run_are_sent_from_where_they_lie() -> None:
    contents = tuple(bytes(hot.RUN_BYTES // 2 + 1) for _ in range(2))
    pieces: list[Buffer] = []
    size = catalogue.ENCODERS[Replicate](run(*contents), pieces.append)
    assert pieces[-2:] == list(contents)
    assert all(piece is content for piece, content in zip(pieces[-2:], contents, strict=True))
    assert size == sum(map(len, pieces))


def in_pieces(message: Message) -> list[Buffer]:
    pieces: list[Buffer] = []
    assert catalogue.ENCODERS[type(message)](message, pieces.append) == sum(map(len, pieces))
    return pieces


@pytest.mark.parametrize("size", [0, 1, hot.JOIN_BYTES, hot.JOIN_BYTES + 1, hot.RUN_BYTES + 1])
def test_a_frame_in_pieces_has_the_bytes_of_one_that_is_joined(size: int) -> None:
    """Whether its batches are copied or not: what is sent is the layout, and the checksum of all of it."""
    content, small = random.Random(size).randbytes(size), b"abc"
    append = Append(1, LogStreamID(2), Epoch(3), Sequence(4), LLSN(5), content)
    fixed = struct.pack("<5Q", 1, 2, 3, 4, 5)
    assert b"".join(in_pieces(append)) == frame(16, fixed + content)
    assert len(in_pieces(append)) == 1 + (size > hot.JOIN_BYTES)

    replicate = run(small, content, memoryview(content), b"")
    fixed = struct.pack("<3QI4Q4I", 1, 2, 3, 4, 0, 1, 2, 3, 3, size, size, 0)
    assert b"".join(in_pieces(replicate)) == frame(24, fixed + small + content + content)
    assert len(in_pieces(replicate)) == (1 if 2 * size + 3 <= hot.RUN_BYTES else 5)

    reply = ScanReply(1, LogStreamID(2), 3, (line(content), line(b""), line(small)), GLSN(4), GLSN(5), "why")
    lines = b"".join(struct.pack("<QQIQQQI", 1, 1, 1, 2, 3, 4, length) for length in (size, 0, 3))
    fixed = struct.pack("<QQHQQIH", 1, 2, 3, 4, 5, 3, 3)
    assert b"".join(in_pieces(reply)) == frame(19, fixed + lines + b"why" + content + small)


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
        (run(bytes(limits.MAX_BATCH_BYTES + 1)), errors.BatchTooLarge),
        (run(bytes(limits.MAX_BATCH_BYTES), b"x"), errors.BatchTooLarge),
        (run(*[b""] * (limits.REPLICATE_BATCHES + 1)), errors.BatchTooLarge),
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


def test_the_largest_messages_fit() -> None:
    batch = bytes(limits.MAX_BATCH_BYTES)
    append = Append(1, LogStreamID(1), Epoch(2), Sequence(0), LLSN(1), batch)
    fewest, most = (
        run(batch),
        run(*[bytes(limits.MAX_BATCH_BYTES // limits.REPLICATE_BATCHES)] * limits.REPLICATE_BATCHES),
    )
    column = (1,) * limits.MAX_UNCOMMITTED_BATCHES
    replies = AppendReplies(LogStreamID(1), Epoch(2), 3, True, 4, column, column, column)
    many_small = [line(bytes(48))] * (limits.SCAN_REPLY_BYTES // 48)
    scanned = ScanReply(1, LogStreamID(1), 0, (*many_small, line(batch)))
    for message in (append, fewest, most, replies, scanned):
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
        (lambda body: body[:-1], "end at byte 147 of 146"),
        (lambda body: body + b"x", "end at byte 147 of 148"),
        (lambda body: told(4, 40 + 44, body), "end at byte 148 of 147"),
        (lambda body: told((1 << 32) - 1, 40 + 48 + 44, body), "end at byte"),
        (lambda body: told(1, 34, body), "end at byte"),
        (lambda body: told(3, 34, body), "3 batches do not fit into the 147 bytes"),
        (lambda body: told((1 << 32) - 1, 34, body), "do not fit"),
        (lambda body: body[:38] + b"\xff\xff" + body[40:], "do not fit"),
        (lambda body: body[:135], "2 batches do not fit into the 135 bytes"),
    ],
)
def test_batches_fill_a_reply_exactly(change: Callable[[bytes], bytes], complaint: str) -> None:
    """Its fixed part has 40 bytes, the fields of each batch 48."""
    reply = ScanReply(1, LogStreamID(1), 0, (line(b"abc"), line(b"defg")), detail="why?")
    body = change(catalogue.encode(reply)[HEADER:])
    codec = catalogue.CODECS[catalogue.NUMBERS[ScanReply]][1]
    for decode in (codec.decode, codec.adopt):
        with pytest.raises(errors.ProtocolError, match=complaint):
            decode(memoryview(body), 0, len(body))


def test_the_answers_of_one_message_are_those_it_was_made_of() -> None:
    sent = AppendReplies(LogStreamID(1), Epoch(2), 3, True, 90, (7, 5), (10, 14), (4, 1))
    for message in decoded(catalogue.encode(sent)):
        assert isinstance(message, AppendReplies)
        assert list(message.each()) == [
            AppendReply(7, LogStreamID(1), 0, Epoch(2), GLSN(100), LLSN(10), 4, 3, True),
            AppendReply(5, LogStreamID(1), 0, Epoch(2), GLSN(104), LLSN(14), 1, 3, True),
        ]


RUN_COUNT, REPLIES_COUNT = struct.calcsize("<QQQ"), struct.calcsize("<QQB?Q")
"""Where in the bodies of these messages it stands how long their columns are."""


def first_time(message: Message) -> bytes:
    """Encoded by a codec that has never encoded anything."""
    pieces: list[Buffer] = []
    hot.replicate(catalogue.NUMBERS[Replicate]).encode(message, pieces.append)
    return b"".join(pieces)


def told(number: int, at: int, body: bytes) -> bytes:
    return body[:at] + struct.pack("<I", number) + body[at + 4 :]


def length(number: int, of: int, body: bytes) -> bytes:
    """Another length of one of two batches."""
    return told(number, RUN_COUNT + 4 + 2 * 8 + 4 * of, body)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda body: body[:-1], "end at byte 59 of 58"),
        (lambda body: body + b"x", "end at byte 59 of 60"),
        (lambda body: length(4, 0, body), "end at byte 60 of 59"),
        (lambda body: length(3, 1, body), "end at byte 58 of 59"),
        (lambda body: length((1 << 32) - 1, 0, body), "end at byte"),
        (lambda body: told(0, RUN_COUNT, body), "0 batches"),
        (lambda body: told(1, RUN_COUNT, body), "end at byte"),
        (lambda body: told(3, RUN_COUNT, body), "3 batches in 59 bytes"),
        (lambda body: told((1 << 32) - 1, RUN_COUNT, body), "4294967295 batches"),
        (lambda body: body[: RUN_COUNT + 4 + 11], "2 batches in 39 bytes"),
        (lambda body: told(limits.REPLICATE_BATCHES + 1, RUN_COUNT, body) + bytes(100_000), "1025 batches"),
    ],
)
def test_batches_fill_a_run_exactly(change: Callable[[bytes], bytes], complaint: str) -> None:
    body = change(catalogue.encode(run(b"abc", b"defg"))[HEADER:])
    codec = catalogue.CODECS[catalogue.NUMBERS[Replicate]][1]
    for decode in (codec.decode, codec.adopt):
        with pytest.raises(errors.ProtocolError, match=complaint):
            decode(memoryview(body), 0, len(body))


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda body: body[:-1], "2 acknowledgements in 69 bytes"),
        (lambda body: body + b"x", "2 acknowledgements in 71 bytes"),
        (lambda body: told(1, REPLIES_COUNT, body), "1 acknowledgements in 70 bytes"),
        (lambda body: told(3, REPLIES_COUNT, body), "3 acknowledgements in 70 bytes"),
        (lambda body: told((1 << 32) - 1, REPLIES_COUNT, body), "4294967295 acknowledgements"),
    ],
)
def test_answers_fill_their_message_exactly(change: Callable[[bytes], bytes], complaint: str) -> None:
    sent = AppendReplies(LogStreamID(1), Epoch(2), 3, True, 90, (7, 5), (10, 14), (4, 1))
    body = change(catalogue.encode(sent)[HEADER:])
    codec = catalogue.CODECS[catalogue.NUMBERS[AppendReplies]][1]
    with pytest.raises(errors.ProtocolError, match=complaint):
        codec.decode(memoryview(body), 0, len(body))


@pytest.mark.parametrize("columns", [((), ()), ((1,), ()), ((), (1,))])
def test_columns_of_different_lengths_are_not_sent(columns: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    llsns, counts = ((1, 2, *more) for more in columns)
    unequal = AppendReplies(LogStreamID(1), Epoch(2), 3, True, 90, (1, 2, 3), llsns, counts)
    lacking = Replicate(LogStreamID(1), Epoch(2), LLSN(3), (Sequence(0),), (b"abc", b"defg"))
    pieces: list[Buffer] = []
    for message in (unequal, lacking):
        with pytest.raises(struct.error, match="pack expected"):
            catalogue.ENCODERS[type(message)](message, pieces.append)
    assert not pieces


@given(st.lists(some(Replicate), min_size=1, max_size=4), st.lists(st.integers(min_value=0), min_size=1, max_size=20))
def test_the_frame_of_a_run_is_never_taken_for_that_of_another(runs: list[Message], order: list[int]) -> None:
    """Whatever goes to however many backups in whatever order; some differ in little."""
    runs += [msgspec.structs.replace(message, epoch=message.epoch ^ 1) for message in runs]  # type: ignore[attr-defined]
    for at in order:
        sent = runs[at % len(runs)]
        frame = catalogue.encode(sent)
        assert frame == first_time(sent)
        assert decoded(frame) == [sent, sent]


def test_a_run_that_is_gone_does_not_lend_its_bytes_to_the_next() -> None:
    """However the memory of one is used again for the other."""
    for number in range(1000):
        sent = run(b"%d" % number)
        assert decoded(catalogue.encode(sent)) == [sent, sent]


def test_fields_may_be_added_at_the_end() -> None:
    codec = catalogue.CODECS[catalogue.NUMBERS[CreateTopic]][1]
    body = msgspec.msgpack.encode([1, "name", 3, 2, 5, 1, 64, "of a later version", [1, {}]])
    sent = CreateTopic(1, "name", 3, 2, GLSN(5), Ordering.SEQUENCER, 64)
    assert codec.decode(memoryview(body), 0, len(body)) == sent
    body = msgspec.msgpack.encode([1, "name", 3, 2])
    assert codec.decode(memoryview(body), 0, len(body)) == CreateTopic(1, "name", 3, 2, GLSN(1)), "by an older sender"
