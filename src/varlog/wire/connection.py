"""One connection: messages in, messages out.

`Connection` is asyncio's protocol object for one TCP connection, of either side. It begins with the hello; from then on
every message goes to its `Receiver`, and after all messages of one read `on_turn` is called, so that a receiver can
work on many at once.

What is sent is queued and handed to the kernel once per turn of the loop, as one piece or as one gathered write. This
is done on the socket itself while the transport has nothing queued: it saves the transport's own bookkeeping, and
`flush` can promise that the kernel has the bytes when it returns. What the kernel does not take goes to the transport.

Flow control. The transport holds what the peer does not take. Beyond `CONNECTION_BUFFER_HIGH` an *accepted* connection
reads no more requests until a quarter of it is left; beyond `CONNECTION_BUFFER_MAX` what is sent is dropped, on either
side. The dialing side never stops reading because of what it has to send: all that comes are answers it asked for, and
if both sides stopped at once neither would ever go on.

What must hold: whatever a peer does, it costs this connection at most; a peer that stops half-way is given up
(`PeerStalled`); the receiver is told of a connection only after the hello, and then exactly once that it ended.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from typing import Final, Protocol, cast

from varlog import limits
from varlog.batch import Buffer
from varlog.core.messages import Message
from varlog.errors import ConnectionLost, InvalidArgument, PeerStalled, ProtocolError, TlsMismatch, VarlogError
from varlog.wire import catalogue
from varlog.wire.endpoint import format_address
from varlog.wire.frames import BUDGET, FrameReader
from varlog.wire.hello import Handshake, Identity, PeerRefused, Refused, refusal
from varlog.wire.tls import is_tls

_EARLY_FLUSH: Final = 32 * limits.KIB
"""What is queued beyond this is not held until the end of the turn: the peer may as well begin with it. Otherwise many
small messages go from process to process as one lump, and only one process is at work at a time."""
_GATHER_FROM: Final = 64 * limits.KIB
_GATHER_MEAN: Final = 4 * limits.KIB
"""From this much on, and if the pieces have this size on average, they are gathered by the kernel instead of copied."""
_GATHER_MOST: Final = 1024
"""How many pieces the kernel gathers in one call."""
_HEARD_SECONDS: Final = 1.0
"""How long a peer that is refused may take to hear it."""
_KEEPALIVE: Final = ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3))

_ENCODERS = catalogue.ENCODERS


class Receiver(Protocol):
    """Whoever the messages are for. A `VarlogError` raised by it closes the connection it was raised for."""

    def on_connected(self, connection: Connection) -> None:
        """The hello is done; `connection.peer` says who is there."""

    def on_message(self, connection: Connection, message: Message) -> None:
        """A message has arrived."""

    def on_turn(self, connection: Connection) -> None:
        """All messages of one read have been handed over, or all before one that was refused."""

    def on_closed(self, connection: Connection, error: VarlogError | None) -> None:
        """The connection has ended; without an error if this side closed it in good order."""


class Owner(Protocol):
    """Whoever made the connection and keeps track of it."""

    def on_opened(self, connection: Connection) -> None:
        """It exists; its hello has not been said."""

    def on_established(self, connection: Connection) -> None:
        """Its hello is done; the receiver is told next."""

    def on_lost(self, connection: Connection) -> None:
        """It has ended; `connection.error` says why. The receiver is told next, if it was established."""


class Connection(asyncio.BufferedProtocol):
    """One connection; see the module. Made by `Server`, `dial` and `Link`."""

    def __init__(self, handshake: Handshake, receiver: Receiver, owner: Owner, *, accepted: bool) -> None:
        self.loop = asyncio.get_running_loop()
        self.peer: Identity
        self.remote = ""
        """The address of the other end."""
        self.closed = False
        """Nothing more is sent or received."""
        self.error: VarlogError | None = None
        """Why it was closed, if not in good order."""
        self._handshake: Handshake | None = handshake
        self._receiver = receiver
        self._owner = owner
        self._accepted = accepted
        self._reader = FrameReader()
        self._deliver = receiver.on_message
        self._transport: asyncio.Transport
        self._socket = -1
        self._pieces: list[Buffer] = []
        self._out = self._pieces.append
        self._queued = 0
        self._call_soon = self.loop.call_soon
        self._guarded = True
        """Sending needs a closer look: the hello is not done, the connection is closed, or the peer does not read."""
        self._backlogged = False
        self._reading = True
        self._borrowed = 0
        self._hurry: asyncio.TimerHandle | None = None
        self._asked = 0
        self._handed = 0
        self._watch: asyncio.TimerHandle | None = None
        self._taken_then: int | None = None
        self._received_then: tuple[int, int] | None = None
        self._settled: asyncio.Future[None] = self.loop.create_future()
        self._gone: asyncio.Future[None] = self.loop.create_future()

    # The owner's and the receiver's side

    def send(self, message: Message, *, held: bool = False) -> bool:
        """Queue a message; False if it was dropped, because the connection is closed or the peer takes too little. It
        is sent at the end of the loop's turn, or if it is `held` when the caller flushes.

        Bytes inside the message are sent from where they lie and must not change. A message that cannot be said in
        bytes, such as one with a number that is too large for its field, raises `InvalidArgument`.
        """
        if self._guarded and not self._may_send():
            return False
        queued = self._queued
        try:
            self._queued = size = queued + _ENCODERS[message.__class__](message, self._out)
        except (struct.error, OverflowError, UnicodeError) as error:
            raise InvalidArgument(f"a {type(message).__name__} cannot be sent: {error}") from error
        if not queued:
            if not held:
                self._call_soon(self.flush)
        elif size > _EARLY_FLUSH:
            self.flush()
        return True

    def flush(self) -> None:
        """Hand what is queued to the kernel, as far as it takes it: before this process does something that blocks."""
        size = self._queued
        if not size:
            return
        pieces = self._pieces
        self._queued = 0
        if size < _GATHER_FROM or size < _GATHER_MEAN * len(pieces):
            data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            pieces.clear()
            self._write(data)
        else:
            gathered = pieces.copy()
            pieces.clear()
            self._gather(gathered)

    def close(self, error: VarlogError | None = None) -> None:
        """Close after what is queued has been sent; with an error, the peer is told it first."""
        if self.closed:
            return
        self._end(error)
        if self._socket < 0:
            return
        if error is not None and self._backlogged:
            self._transport.abort()
            return
        if error is not None:
            self._queued += _ENCODERS[Refused](refusal(error), self._out)
        self.flush()
        self._transport.close()
        if self._transport.get_write_buffer_size():
            self._watch_nothing()
            self._watch = self.loop.call_later(limits.HELLO_SECONDS, self._transport.abort)

    @property
    def buffered(self) -> int:
        """How many bytes have been sent and not been taken by the kernel."""
        return self._queued + (self._transport.get_write_buffer_size() if self._socket >= 0 else 0)

    @property
    def held(self) -> int:
        """How many bytes of memory are held for what is being received."""
        return self._reader.held

    async def settled(self) -> None:
        """Wait until the hello is done or the connection has ended."""
        await asyncio.shield(self._settled)

    async def gone(self) -> None:
        """Wait until the connection has ended and everyone has been told."""
        await asyncio.shield(self._gone)

    def _may_send(self) -> bool:
        if self.closed or self._handshake is not None:
            return False
        return self.buffered <= limits.CONNECTION_BUFFER_MAX

    # Writing

    def _write(self, data: Buffer) -> None:
        self._handed += len(data)
        transport = self._transport
        if self._socket < 0:
            return
        if transport.get_write_buffer_size():
            transport.write(data)
            return
        try:
            taken = os.write(self._socket, data)
        except BlockingIOError:
            taken = 0
        except OSError:
            transport.abort()
            return
        if taken < len(data):
            transport.write(memoryview(data)[taken:])

    def _gather(self, pieces: list[Buffer]) -> None:
        for first in range(0, len(pieces), _GATHER_MOST):
            self._gather_some(pieces[first : first + _GATHER_MOST])

    def _gather_some(self, pieces: list[Buffer]) -> None:
        self._handed += sum(map(len, pieces))
        transport = self._transport
        if self._socket < 0:
            return
        if not transport.get_write_buffer_size():
            try:
                taken = os.writev(self._socket, pieces)
            except BlockingIOError:
                taken = 0
            except OSError:
                transport.abort()
                return
            pieces = _rest(pieces, taken)
        for piece in pieces:
            transport.write(piece)

    def pause_writing(self) -> None:
        self._backlogged = self._guarded = True
        self._read_or_not()
        self._watch_progress()

    def resume_writing(self) -> None:
        self._backlogged = False
        self._guarded = self.closed or self._handshake is not None
        self._read_or_not()

    # Reading

    def get_buffer(self, _sizehint: int) -> memoryview:
        return self._reader.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        if self.closed:
            return
        reader = self._reader
        try:
            if self._handshake is not None:
                self._advance_hello(nbytes)
            elif reader.advance(nbytes, self._deliver, self):
                self._receiver.on_turn(self)
        except PeerRefused as refused:
            self._shut(refused.error)
        except VarlogError as error:
            self.close(error)
            if self._handshake is None:
                self._receiver.on_turn(self)  # it may have had messages before the one that was wrong
        if reader.partial:
            if not self.closed:
                self._on_partial()
        elif self._borrowed:
            self._give_back()

    def _on_partial(self) -> None:
        wanted = self._reader.wanted
        if wanted:
            self._asked = wanted
            if BUDGET.take(self, wanted):
                self.on_granted()
            else:
                self._read_or_not()
        if self._watch is None:
            self._watch_progress()

    def on_granted(self) -> None:
        """The budget has memory for the large frame that is to be received."""
        size, self._asked = self._asked, 0
        if self.closed:
            BUDGET.give(self, size)
            return
        self._borrowed = size
        self._reader.begin_large()
        self._read_or_not()
        if BUDGET.is_wanted:
            self.on_wanted()

    def on_wanted(self) -> None:
        """Others wait for memory of the budget: who has some has to send quickly now, or gives it up."""
        if self._borrowed and self._hurry is None and not self.closed:
            self._hurry = self.loop.call_later(limits.HURRY_SECONDS, self._on_hurried, self._reader.received)

    def _on_hurried(self, received_then: int) -> None:
        self._hurry = None
        if self._reader.received - received_then >= limits.HURRY_BYTES:
            if BUDGET.is_wanted:
                self.on_wanted()
        elif self._borrowed and BUDGET.is_wanted:
            slow = f"{self.remote} sends a frame of {self._borrowed} bytes too slowly while others wait for the memory"
            self.close(PeerStalled(f"{slow}; send less at once"))

    def _give_back(self) -> None:
        BUDGET.give(self, self._borrowed)
        self._borrowed = 0

    def _read_or_not(self) -> None:
        wanted = not (self._asked or (self._backlogged and self._accepted))
        if self.closed or wanted == self._reading:
            return
        self._reading = wanted
        if wanted:
            self._received_then = None  # the time it was not read from does not count against the peer
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    # The hello, and the end

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self.closed:
            self._transport.abort()
            return
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
        self._socket = sock.fileno()
        self.remote = format_address(transport.get_extra_info("peername"))
        high = limits.CONNECTION_BUFFER_HIGH
        self._transport.set_write_buffer_limits(high, high // 4)
        self._watch = self.loop.call_later(limits.HELLO_SECONDS, self._on_hello_late)
        self._owner.on_opened(self)
        self._begin_hello()

    def _begin_hello(self) -> None:
        assert self._handshake is not None
        self._answer_hello(self._handshake.begin())

    def _answer_hello(self, message: Message | None) -> None:
        if message is not None:
            self._queued += _ENCODERS[message.__class__](message, self._out)
            self.flush()

    def _advance_hello(self, nbytes: int) -> None:
        """As long as the hello lasts, messages are its own. What follows it in the same read is the receiver's."""
        reader = self._reader
        begin = reader.buffer() if not reader.received else None
        try:
            reader.advance(nbytes, Connection._on_hello, self)
        except ProtocolError:
            if begin is None or not is_tls(begin[:nbytes]):
                raise
            self._refuse(TlsMismatch("the dialer speaks TLS, the server does not"))
        if self._handshake is None and not self.closed:
            reader.halted = False
            reader.open()
            if reader.advance(0, self._deliver, self):
                self._receiver.on_turn(self)

    def _on_hello(self, message: Message) -> None:
        handshake = self._handshake
        assert handshake is not None
        self._answer_hello(handshake.receive(message))
        if handshake.peer is None:
            return
        self.peer = handshake.peer
        self._handshake = None
        self._reader.halted = True
        self._guarded = False
        self._watch_nothing()
        self._owner.on_established(self)
        self._receiver.on_connected(self)
        if not self._settled.done():
            self._settled.set_result(None)

    def _on_hello_late(self) -> None:
        self.close(PeerStalled(f"{self.remote} did not finish its hello within {limits.HELLO_SECONDS} s"))

    def _refuse(self, error: VarlogError) -> None:
        """Say why this is no connection, and wait a little for the peer to close: closing first would reset it if there
        is more to read, and the peer might never learn why."""
        self._queued += _ENCODERS[Refused](refusal(error), self._out)
        self.flush()
        self._end(error)
        self._watch_nothing()
        self._watch = self.loop.call_later(_HEARD_SECONDS, self._transport.abort)
        if self._socket >= 0:
            self._transport.write_eof()

    def _shut(self, error: VarlogError) -> None:
        """The peer has closed and said why."""
        self._end(error)
        self._transport.abort()

    def _end(self, error: VarlogError | None) -> None:
        """Send and receive nothing more. Of the error only what it says is kept: where it was raised, the frame that
        was refused is held on to, and this connection, which would be held on to by it."""
        self.closed = self._guarded = self._reader.halted = True
        if error is not None:
            error.__traceback__ = error.__cause__ = error.__context__ = None
        self.error = error

    def abort(self) -> None:
        """End it at once, whatever is still to be sent or heard."""
        self._end(self.error)
        if self._socket >= 0:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.closed:
            self.closed = self._guarded = True
            self.error = ConnectionLost(f"the connection to {self.remote} was lost: {exc or 'closed by the peer'}")
        self._socket = -1
        self._pieces.clear()
        self._queued = 0
        self._reader.drop()
        self._watch_nothing()
        if self._hurry is not None:
            self._hurry.cancel()
        if self._borrowed:
            self._give_back()
        if self._asked and BUDGET.leave(self):
            self._asked = 0
        self._owner.on_lost(self)
        if self._handshake is None:
            self._receiver.on_closed(self, self.error)
        for waited in (self._settled, self._gone):
            if not waited.done():
                waited.set_result(None)

    # Peers that stop half-way

    def _watch_progress(self) -> None:
        """Remember how far things are, to see later whether they moved. Nothing is timed while all is well."""
        if self._watch is not None:
            return
        reader = self._reader
        self._taken_then = self._taken() if self._backlogged else None
        self._received_then = (reader.frames, reader.received) if reader.partial and self._reading else None
        if self._taken_then is not None or self._received_then is not None:
            self._watch = self.loop.call_later(limits.STALL_SECONDS, self._on_watch)

    def _on_watch(self) -> None:
        self._watch = None
        if self._stopped_taking():
            self.close(PeerStalled(f"{self.remote} takes nothing of the {self.buffered} bytes queued for it"))
        elif self._stopped_sending():
            self.close(PeerStalled(f"{self.remote} stopped in the middle of a frame"))
        else:
            self._watch_progress()

    def _stopped_taking(self) -> bool:
        then = self._taken_then
        return self._backlogged and then is not None and self._taken() - then < limits.STALL_BYTES

    def _stopped_sending(self) -> bool:
        reader = self._reader
        if self._received_then is None or not reader.partial:
            return False
        frames, received = self._received_then
        return reader.frames == frames and reader.received - received < limits.STALL_BYTES

    def _watch_nothing(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None

    def _taken(self) -> int:
        return self._handed - self._transport.get_write_buffer_size()


def _rest(pieces: list[Buffer], taken: int) -> list[Buffer]:
    """What is left of the pieces after so many bytes of them were taken."""
    for number, piece in enumerate(pieces):
        if taken < len(piece):
            return [memoryview(piece)[taken:], *pieces[number + 1 :]]
        taken -= len(piece)
    return []
