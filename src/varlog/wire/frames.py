"""Frames: cutting messages out of the stream of bytes.

A frame is a 12-byte header (checksum of all that follows it, length of the body, message type, 0; little-endian) and
the body. The checksum is there because TCP's own lets one error in some ten thousands pass, and a wrong number in a
commit could not be told from a right one. `FrameReader` owns the memory that the socket is read into, and is told how
much arrived; it does no I/O of its own.

Most frames are small: they are read many at a time into one buffer and taken apart in one loop, and whatever a message
keeps is copied out of it. A frame that does not fit into the buffer gets memory of its own size, into which the rest of
it is received directly; its message then refers to that memory.

What must hold: a length is checked against the bounds of its message type before any memory is taken for it; memory for
large frames is taken from a budget shared by the whole process (`ReceiveBudget`); any number of malformed, partial or
oversized frames costs no more than the buffer; and no message is made from a frame before its checksum was found right.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from struct import Struct
from typing import Any, Final, Protocol

from crc32c import crc32c

from varlog import limits
from varlog.core.messages import Message
from varlog.errors import ProtocolError
from varlog.wire import catalogue
from varlog.wire.hello import PeerRefused
from varlog.wire.hot import HEADER_BYTES, Decode

HEADER: Final = Struct("<III")
"""Checksum, length, and the type with the 0 above it: what is not 0 there makes an unknown type."""
assert HEADER.size == HEADER_BYTES
_CHECKED_FROM: Final = 4

_unpack_header = HEADER.unpack_from


class FrameReader:
    """Takes apart what one connection receives."""

    __slots__ = (
        "_adopt",
        "_begun",
        "_crc",
        "_end",
        "_filled",
        "_large",
        "_store",
        "_table",
        "frames",
        "halted",
        "partial",
        "received",
        "wanted",
    )

    def __init__(self) -> None:
        self._table = catalogue.BEFORE_HELLO
        self._store = memoryview(bytearray(HEADER_BYTES + limits.HELLO_BYTES))
        self._end = 0
        self._large: memoryview | None = None
        self._filled = 0
        self._adopt: Decode | None = None
        self._crc = self._begun = 0
        self.halted = False
        """Set by whoever handles a message, to be given no further one."""
        self.partial = False
        """Whether a frame has begun and is not complete."""
        self.wanted = 0
        """How much memory the frame that comes next needs (`begin_large`); nothing can be received until then."""
        self.received = 0
        """Bytes in all."""
        self.frames = 0
        """Grows whenever a read completed a frame."""

    def open(self) -> None:
        """The hello is done: all messages may come, and the buffer gets its full size."""
        store = memoryview(bytearray(limits.RECEIVE_BUFFER_BYTES))
        store[: self._end] = self._store[: self._end]
        self._store = store
        self._table = catalogue.AFTER_HELLO

    def drop(self) -> None:
        """Nothing more is received: give the memory back, whoever may still hold on to the connection."""
        self._store = memoryview(b"")
        self._large = None
        self._end = 0
        self.partial = False

    @property
    def held(self) -> int:
        """How many bytes of memory are held for this connection."""
        return len(self._store) + (0 if self._large is None else len(self._large))

    def buffer(self) -> memoryview:
        """Where the next bytes go."""
        if not self.partial:
            return self._store
        return self._store[self._end :] if self._large is None else self._large[self._filled :]

    def advance(self, nbytes: int, deliver: Callable[[Any, Message], None], receiver: Any) -> bool:
        """So many bytes have arrived: hand every message that is complete now to `deliver(receiver, message)`.

        Returns whether there was one. Raises `ProtocolError` on anything that is not a frame, and what `deliver`
        raises; in either case the reader is of no use any more.
        """
        self.received += nbytes
        if self._large is not None:
            return self._advance_large(nbytes, deliver, receiver)
        end = self._end + nbytes
        table, store, unpack = self._table, self._store, _unpack_header
        at, begin = 0, HEADER_BYTES
        while begin <= end:
            crc, length, kind = unpack(store, at)
            try:
                least, most, decode, _ = table[kind]  # None is a TypeError
            except (IndexError, TypeError):
                raise _misplaced(kind) from None
            if not least <= length <= most:
                raise _outside(kind, length, least, most)
            stop = begin + length
            if stop > end:
                if stop - at > len(store):
                    self.wanted = length
                break
            if crc32c(store[at + _CHECKED_FROM : stop]) != crc:
                raise _damaged(length)
            try:
                message = decode(store, begin, stop)
            except PeerRefused:
                raise
            except Exception as broken:
                raise _malformed(kind, broken) from broken
            at, begin = stop, stop + HEADER_BYTES
            deliver(receiver, message)
            if self.halted:
                break
        if at < end:
            if at:
                store[: end - at] = store[at:end]
            self._end = end - at
            self.partial = True
        else:
            self._end = 0
            self.partial = False
        if at:
            self.frames += 1
            return True
        return False

    def begin_large(self) -> None:
        """Take memory for the frame whose header has arrived; what came of its body moves there."""
        self._crc, length, kind = _unpack_header(self._store, 0)
        self._begun = crc32c(self._store[_CHECKED_FROM:HEADER_BYTES])
        entry = self._table[kind]
        assert entry is not None
        assert length == self.wanted, "asked for when its header arrived"
        self._filled = self._end - HEADER_BYTES
        self._large = memoryview(bytearray(length))
        self._large[: self._filled] = self._store[HEADER_BYTES : self._end]
        self._adopt = entry[3]
        self._end = 0
        self.wanted = 0

    def _advance_large(self, nbytes: int, deliver: Callable[[Any, Message], None], receiver: Any) -> bool:
        assert self._large is not None
        assert self._adopt is not None
        self._filled += nbytes
        if self._filled < len(self._large):
            return False
        if crc32c(self._large, self._begun) != self._crc:
            raise _damaged(self._filled)
        try:
            message = self._adopt(self._large.toreadonly(), 0, self._filled)
        except Exception as broken:
            raise ProtocolError(f"a frame of {self._filled} bytes is malformed: {broken}") from broken
        self._large = self._adopt = None
        self._filled = 0
        self.partial = False
        self.frames += 1
        deliver(receiver, message)
        return True


def _damaged(length: int) -> ProtocolError:
    return ProtocolError(f"a frame of {length} bytes was damaged on the way")


def _misplaced(kind: int) -> ProtocolError:
    if kind > 0xFFFF:
        return ProtocolError(f"bytes 10 and 11 of a frame's header are 0; here they are {kind >> 16}")
    return ProtocolError(f"{catalogue.name_of(kind)} has no place here")


def _outside(kind: int, length: int, least: int, most: int) -> ProtocolError:
    return ProtocolError(f"a {catalogue.name_of(kind)} of {length} bytes; it has {least} to {most}")


def _malformed(kind: int, broken: Exception) -> ProtocolError:
    return ProtocolError(f"a malformed {catalogue.name_of(kind)}: {broken}")


class Borrower(Protocol):
    """Whoever waits for memory of the budget."""

    loop: asyncio.AbstractEventLoop

    def on_granted(self) -> None:
        """What was asked for is there. Called in the borrower's own loop; it may have given up by then."""

    def on_wanted(self) -> None:
        """Others wait for memory, and this one has some. Called in the borrower's own loop."""


class ReceiveBudget:
    """The memory that one process gives to large frames which are being received.

    Asked for with `take`, given back with `give`. Who is refused waits in line, and is told when it has been given what
    it asked for; those who have some are told that it is wanted, so that nobody keeps others waiting by being slow.
    Connections of several event loops share it, hence the lock.
    """

    def __init__(self, total: int) -> None:
        self.free = total
        self._waiting: deque[tuple[Borrower, int]] = deque()
        self._holders: set[Borrower] = set()
        self._lock = threading.Lock()

    def take(self, borrower: Borrower, size: int) -> bool:
        """Whether the memory may be taken now; if not, `on_granted` tells when it has been."""
        with self._lock:
            if not self._waiting and size <= self.free:
                self.free -= size
                self._holders.add(borrower)
                return True
            self._waiting.append((borrower, size))
            for holder in self._holders:
                with suppress(RuntimeError):  # its loop is closed, and it is about to give the memory back
                    holder.loop.call_soon_threadsafe(holder.on_wanted)
            return False

    @property
    def is_wanted(self) -> bool:
        """Whether somebody waits."""
        return bool(self._waiting)

    def give(self, borrower: Borrower, size: int) -> None:
        """Memory that was taken is not needed any more, or is somebody else's business now."""
        with self._lock:
            self.free += size
            self._holders.discard(borrower)
            self._serve()

    def leave(self, borrower: Borrower) -> bool:
        """Wait no longer; False if it has been granted by now and `on_granted` is on its way."""
        with self._lock:
            left = deque(each for each in self._waiting if each[0] is not borrower)
            was_waiting = len(left) < len(self._waiting)
            self._waiting = left
            self._serve()
            return was_waiting

    def _serve(self) -> None:
        while self._waiting and self._waiting[0][1] <= self.free:
            borrower, size = self._waiting.popleft()
            self.free -= size
            try:
                borrower.loop.call_soon_threadsafe(borrower.on_granted)
            except RuntimeError:  # its loop is closed, and with it everything that could still be received there
                self.free += size
            else:
                self._holders.add(borrower)


BUDGET: Final = ReceiveBudget(limits.RECEIVE_BYTES_IN_ALL)
