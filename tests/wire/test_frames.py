"""Cutting messages out of bytes, however these arrive and whatever they are."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Iterable

import msgspec
import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from tests.wire.made import CLASSES, DISGUISES, anything, frame, some
from tests.wire.peers import until
from varlog import limits
from varlog.core.messages import Append, GetMetadata, Message, Replicate, Report, ScanReply
from varlog.errors import ProtocolError
from varlog.types import LLSN, Epoch, LogStreamID, Sequence, StorageNodeID, Version
from varlog.wire import Ping, catalogue
from varlog.wire.frames import FrameReader, ReceiveBudget
from varlog.wire.hello import Hello, PeerRefused, Refused
from varlog.wire.hot import HEADER_BYTES

SMALL = HEADER_BYTES + limits.HELLO_BYTES
AFTER_HELLO = [cls for cls in CLASSES if catalogue.AFTER_HELLO[catalogue.NUMBERS[cls]] is not None]
LARGEST = max(codec.most for _, codec in catalogue.CODECS.values())


def opened() -> FrameReader:
    reader = FrameReader()
    reader.open()
    return reader


def feed(reader: FrameReader, data: bytes, sizes: Iterable[int] = ()) -> list[Message]:
    """Give the reader the bytes in reads of these sizes, then in reads as large as it takes."""
    found: list[Message] = []
    rest = memoryview(data)
    wanted = iter(sizes)
    while rest:
        room = reader.buffer()
        assert room, "there is always room for more"
        size = min(next(wanted, len(rest)), len(rest), len(room))
        room[:size] = rest[:size]
        rest = rest[size:]
        reader.advance(size, lambda _, message: found.append(message), None)
        if reader.wanted:
            reader.begin_large()
    return found


def append(size: int) -> Append:
    return Append(1, LogStreamID(2), Epoch(2), Sequence(0), LLSN(1), random.Random(size).randbytes(size))


@settings(max_examples=60)
@given(st.lists(anything(), max_size=8), st.lists(st.integers(1, 200), max_size=60))
def test_frames_are_found_however_they_are_cut(drawn: list[Message], sizes: list[int]) -> None:
    messages = [each for each in drawn if type(each) in AFTER_HELLO and not isinstance(each, Refused)]
    reader = opened()
    assert feed(reader, b"".join(map(catalogue.encode, messages)), sizes) == messages
    assert not reader.partial


def test_one_byte_at_a_time() -> None:
    messages = [Ping(1, b"abc"), GetMetadata(2), append(1000), Ping(3)]
    data = b"".join(map(catalogue.encode, messages))
    assert feed(opened(), data, [1] * len(data)) == messages


def test_many_frames_in_one_read() -> None:
    messages: list[Message] = [Ping(number) for number in range(10_000)]
    reader = opened()
    assert feed(reader, b"".join(map(catalogue.encode, messages))) == messages
    assert reader.frames == 1


@pytest.mark.parametrize("size", [limits.RECEIVE_BUFFER_BYTES + extra for extra in (-53, -52, -51, 0, 1)] + [3 << 20])
def test_large_frames_get_memory_of_their_own(size: int) -> None:
    messages = [Ping(1), append(size), Ping(2), append(size), append(10)]
    reader = opened()
    data = b"".join(map(catalogue.encode, messages))
    sizes = random.Random(size).choices([1, 7, 100, 5000, 70_000], k=200)
    assert feed(reader, data, sizes) == messages
    assert reader.held == limits.RECEIVE_BUFFER_BYTES


def test_memory_is_taken_only_after_it_was_asked_for() -> None:
    reader = opened()
    head = catalogue.encode(append(1 << 20))[:100]
    reader.buffer()[:100] = head
    assert not reader.advance(100, lambda *_: None, None)
    assert (reader.wanted, reader.held) == (40 + (1 << 20), limits.RECEIVE_BUFFER_BYTES)
    reader.begin_large()
    assert reader.held == limits.RECEIVE_BUFFER_BYTES + 40 + (1 << 20)
    assert len(reader.buffer()) == 40 + (1 << 20) - (100 - HEADER_BYTES)


@pytest.mark.parametrize("cls", AFTER_HELLO, ids=lambda cls: cls.__name__)
@pytest.mark.parametrize("excess", [1, 1 << 31])
def test_a_length_beyond_its_limit_is_refused_before_anything_is_taken(cls: type[Message], excess: int) -> None:
    number = catalogue.NUMBERS[cls]
    reader = opened()
    most = catalogue.CODECS[number][1].most
    with pytest.raises(ProtocolError, match=f"{cls.__name__} of {most + excess} bytes"):
        feed(reader, frame(number, b"", length=most + excess))
    assert reader.held == limits.RECEIVE_BUFFER_BYTES
    assert not reader.wanted


@pytest.mark.parametrize("cls", AFTER_HELLO, ids=lambda cls: cls.__name__)
def test_the_largest_length_is_not_refused(cls: type[Message]) -> None:
    number = catalogue.NUMBERS[cls]
    reader = opened()
    feed(reader, frame(number, b"", length=catalogue.CODECS[number][1].most))
    assert reader.partial


@pytest.mark.parametrize("cls", AFTER_HELLO, ids=lambda cls: cls.__name__)
def test_a_body_too_short_for_its_fields_is_refused(cls: type[Message]) -> None:
    number = catalogue.NUMBERS[cls]
    with pytest.raises(ProtocolError, match=cls.__name__):
        feed(opened(), frame(number, bytes(catalogue.CODECS[number][1].least - 1)))


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (frame(0, b""), "message type 0 has no place here"),
        (frame(7, b"x"), "message type 7 has no place here"),
        (frame(60_000, b"x"), "message type 60000 has no place here"),
        (frame(catalogue.NUMBERS[Ping], bytes(8), reserved=1), "are 0; here they are 1"),
        (catalogue.encode(Hello(1, 1, 1, 1, bytes(32))), "Hello has no place here"),
        (b"GET / HTTP/1.1\r\nHost: varlog\r\n\r\n", "bytes 10 and 11"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\x01", "bytes 10 and 11|no place"),
    ],
)
def test_what_is_no_frame_is_refused(data: bytes, complaint: str) -> None:
    with pytest.raises(ProtocolError, match=complaint):
        feed(opened(), data)


def test_before_the_hello_only_its_messages_are_taken_and_little_of_them() -> None:
    reader = FrameReader()
    assert reader.held == SMALL
    with pytest.raises(ProtocolError, match="Ping has no place here"):
        feed(reader, catalogue.encode(Ping(1)))
    with pytest.raises(ProtocolError, match="Hello of 1025 bytes"):
        feed(FrameReader(), frame(1, b"", length=limits.HELLO_BYTES + 1))
    assert feed(FrameReader(), catalogue.encode(Hello(1, 1, 1, 1, bytes(32)))) == [Hello(1, 1, 1, 1, bytes(32))]


def test_a_refusal_is_the_end() -> None:
    for reader in (FrameReader(), opened()):
        with pytest.raises(PeerRefused) as refused:
            feed(reader, catalogue.encode(Refused(100, "because")))
        assert repr(refused.value.error) == "ProtocolError('because')"


@pytest.mark.parametrize("code", [0, 48, 20, 9999], ids=["none", "Trimmed", "Corrupt", "unknown"])
def test_a_refusal_with_a_code_that_says_little_is_a_protocol_error(code: int) -> None:
    assert repr(PeerRefused(Refused(code, "because")).error) == "ProtocolError('because')"


@pytest.mark.parametrize(
    "body",
    [
        b"\xc1",
        b"\x90",
        msgspec.msgpack.encode({"request": 1}),
        msgspec.msgpack.encode(["1", 2, 3, 4, [], False, False]),
        msgspec.msgpack.encode([1, 2, 3, 4, [[1, 2, 3, 4, 5]], False, False]),
        msgspec.msgpack.encode([1, 2, 3, 4, [], False, False]) + b"\x01",
        b"\x97\x01\x02\x03\x04\x90\xc2\xdd\xff\xff\xff\xff",
        b"\x98\x01\x02\x03\x04\x90\xc2\xc2" + b"\x91" * 100_000,
    ],
    ids=["no msgpack", "no fields", "a map", "a string", "a short line", "trailing", "never-ending array", "too deep"],
)
def test_a_body_that_is_not_its_message_is_refused(body: bytes) -> None:
    with pytest.raises(ProtocolError, match="a malformed Report"):
        feed(opened(), frame(catalogue.NUMBERS[Report], body))


def test_a_large_body_that_is_not_its_message_is_refused() -> None:
    with pytest.raises(ProtocolError, match="is malformed"):
        feed(opened(), frame(catalogue.NUMBERS[Report], b"\xc1" * (1 << 20)))


@settings(max_examples=300)
@given(st.data())
def test_any_change_to_a_frame_is_taken_or_refused(data: st.DataObject) -> None:
    message = data.draw(anything())
    changed = bytearray(catalogue.encode(message))
    at = data.draw(st.integers(0, len(changed) - 1))
    changed[at : at + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=6))
    disguised = data.draw(st.sampled_from(DISGUISES))
    _taken_or_refused(disguised(bytes(changed)) + catalogue.encode(Ping(1)))


@settings(max_examples=300)
@given(st.binary(max_size=300))
@example(b"\xff" * 64)
@example(bytes(64))
def test_any_bytes_are_taken_or_refused(data: bytes) -> None:
    _taken_or_refused(data)


def _taken_or_refused(data: bytes) -> None:
    for reader, most in ((FrameReader(), SMALL), (opened(), limits.RECEIVE_BUFFER_BYTES)):
        with contextlib.suppress(ProtocolError, PeerRefused):
            assert all(isinstance(message, Message) for message in feed(reader, data))
        assert reader.held <= most + LARGEST


FOLLOWING = catalogue.encode(Ping(1, bytes(100))) * 60
"""A frame that is longer than it was, for a damaged length, swallows what comes after it."""


def _is_found(damaged: bytes, reader: FrameReader, sizes: Iterable[int] = ()) -> bool:
    """Whether nothing is made of a frame, nor of those after it: it is refused, or the end of it never comes."""
    try:
        return feed(reader, damaged + FOLLOWING, sizes) == [] and reader.partial
    except ProtocolError:
        return True


def _flipped(whole: bytes, bit: int) -> bytes:
    damaged = bytearray(whole)
    damaged[bit // 8] ^= 1 << bit % 8
    return bytes(damaged)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
@settings(max_examples=4, phases=[Phase.generate])
@given(data=st.data())
def test_one_damaged_bit_is_found_wherever_it_is(cls: type[Message], data: st.DataObject) -> None:
    """Each bit of the header and of a small body; as many of a longer one."""
    whole = catalogue.encode(data.draw(some(cls)))
    every = range(8 * len(whole))
    chosen = [*every[:640], *random.Random(0).sample(every[640:], min(200, len(every[640:])))]
    begin = opened if cls in AFTER_HELLO else FrameReader
    assert [bit for bit in chosen if not _is_found(_flipped(whole, bit), begin())] == []


LARGE_REPORT = Report(StorageNodeID(1), 2, 3, Version(4), ((1, 2, 3, 4, 5, True),) * 60_000, False, False)


@pytest.mark.parametrize(
    "message",
    [
        append(400_000),
        Replicate(LogStreamID(2), Epoch(2), LLSN(4), (Sequence(3),) * 2, (bytes(100), bytes(400_000))),
        ScanReply(1, LogStreamID(2), 0, ((1, 1, 1, 2, 3, 4, bytes(400_000)), (2, 2, 1, 2, 3, 4, b"abc"))),
        LARGE_REPORT,
    ],
    ids=lambda message: type(message).__name__,
)
def test_one_damaged_bit_is_found_in_a_large_frame(message: Message) -> None:
    whole = catalogue.encode(message)
    assert len(whole) > limits.RECEIVE_BUFFER_BYTES, "received into memory of its own"
    assert feed(opened(), whole) == [message]
    every = range(8 * len(whole))
    drawn = random.Random(0)
    for bit in (*every[:640], *drawn.sample(every, 100), *every[-64:]):
        sizes = drawn.choices([1, 11, 12, 13, 100, 200_000], k=4)
        assert _is_found(_flipped(whole, bit), opened(), sizes), f"bit {bit}"


@pytest.mark.parametrize("size", [10, 400_000])
def test_what_was_damaged_is_told_from_what_was_made_wrong(size: int) -> None:
    whole = catalogue.encode(append(size))
    with pytest.raises(ProtocolError, match=f"a frame of {size + 40} bytes was damaged on the way"):
        feed(opened(), _flipped(whole, 8 * len(whole) - 1))


class Waiting:
    """Somebody who needs memory of a budget."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.granted = asyncio.Event()
        self.wanted = 0

    def on_granted(self) -> None:
        self.granted.set()

    def on_wanted(self) -> None:
        self.wanted += 1


def test_memory_beyond_the_budget_is_waited_for_in_line() -> None:
    async def main() -> None:
        budget = ReceiveBudget(100)
        first, second, third, fourth = Waiting(), Waiting(), Waiting(), Waiting()
        assert budget.take(first, 60)
        assert not budget.take(second, 70)
        assert not budget.take(third, 10), "a small one does not overtake the one that has waited longer"
        assert not budget.take(fourth, 30)
        budget.give(first, 60)
        await asyncio.gather(*(each.granted.wait() for each in (second, third)))
        assert not fourth.granted.is_set()
        assert budget.free == 20
        budget.give(third, 10)
        await fourth.granted.wait()
        assert not first.granted.is_set()

    asyncio.run(main())


def test_who_waits_no_longer_is_not_waited_for() -> None:
    async def main() -> None:
        budget = ReceiveBudget(100)
        first, second, third = Waiting(), Waiting(), Waiting()
        assert budget.take(first, 60)
        assert not budget.take(second, 70)
        assert not budget.take(third, 40)
        assert budget.leave(second)
        await third.granted.wait()
        assert not budget.leave(third), "it has been granted"
        assert (budget.free, second.granted.is_set()) == (0, False)

    asyncio.run(main())


def test_a_closed_loop_takes_nothing_with_it() -> None:
    async def ask(budget: ReceiveBudget, size: int) -> tuple[Waiting, bool]:
        asking = Waiting()
        return asking, budget.take(asking, size)

    budget = ReceiveBudget(100)
    holder, is_granted = asyncio.run(ask(budget, 90))
    assert is_granted
    _, is_granted = asyncio.run(ask(budget, 70))
    assert not is_granted
    budget.give(holder, 90)
    assert budget.free == 100


def test_who_has_memory_that_others_wait_for_is_told() -> None:
    async def main() -> None:
        budget = ReceiveBudget(100)
        first, second, third, fourth = Waiting(), Waiting(), Waiting(), Waiting()
        assert budget.take(first, 50)
        assert budget.take(second, 50)
        budget.give(second, 50)
        wanted = [budget.is_wanted]
        assert not budget.take(third, 60)
        wanted.append(budget.is_wanted)
        await until(lambda: first.wanted > 0)
        assert [each.wanted for each in (first, second, third)] == [1, 0, 0]
        budget.give(first, 50)
        wanted.append(budget.is_wanted)
        assert wanted == [False, True, False]
        assert not budget.take(fourth, 60)
        await until(lambda: third.wanted > 0)
        assert [each.wanted for each in (first, second, third, fourth)] == [1, 0, 1, 0]

    asyncio.run(main())
