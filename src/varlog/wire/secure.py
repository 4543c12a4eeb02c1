"""A connection inside TLS.

`SecureConnection` is a `Connection` with a `Channel` between the socket and everything else: what is received is
decrypted before it is taken apart, what is sent is encrypted before it goes to the kernel, and the hello begins when
the handshake of TLS is done. Bytes, bounds, timers and flow control are those of every connection, and what is not
inside TLS does not pay for any of this.

A peer that is refused is told why in the only language that it understands: by an alert of TLS, or, if it does not
speak TLS, by `Refused` as it is. That a peer ends TLS in good order is not asked for, because every end of a connection
is taken for a loss.

What must hold: nothing leaves unencrypted but that refusal; and no more is held of what has arrived than one read.
"""

from __future__ import annotations

import ssl
from typing import Final

from varlog import limits
from varlog.batch import Buffer
from varlog.errors import TlsMismatch
from varlog.wire.connection import Connection, Owner, Receiver
from varlog.wire.hello import Handshake
from varlog.wire.tls import Channel, explain, is_tls

_READ_BYTES: Final = 64 * limits.KIB


class SecureConnection(Connection):
    """See the module's text."""

    def __init__(
        self, handshake: Handshake, receiver: Receiver, owner: Owner, channel: Channel, *, accepted: bool
    ) -> None:
        super().__init__(handshake, receiver, owner, accepted=accepted)
        self._channel = channel
        self._arrived = memoryview(bytearray(_READ_BYTES))
        self._heard = False
        self._secured = False
        self._in_the_clear = False
        """The peer does not speak TLS and is told so."""

    # From the socket

    def get_buffer(self, _sizehint: int) -> memoryview:
        return self._arrived

    def buffer_updated(self, nbytes: int) -> None:
        if self.closed:
            return
        arrived = self._arrived[:nbytes]
        if not self._heard:
            self._heard = True
            if not is_tls(arrived):
                self._in_the_clear = True
                self._refuse(self._mismatch())
                return
        self._channel.feed(arrived)
        if self._secured or self._shake():
            self._take()

    def _mismatch(self) -> TlsMismatch:
        if self._accepted:
            return TlsMismatch("the server speaks TLS, the dialer does not")
        return TlsMismatch(f"{self.remote} does not speak TLS")

    def _begin_hello(self) -> None:
        if self._secured:
            super()._begin_hello()
        else:
            self._shake()

    def _shake(self) -> bool:
        """Go on with the handshake of TLS; whether it is done."""
        try:
            self._secured = self._channel.shake()
        except ssl.SSLError as error:
            self._fail(error)
            return False
        self._emit()
        if self._secured:
            self._begin_hello()
        return self._secured

    def _take(self) -> None:
        """Take apart what has arrived, as long as it is wanted."""
        while self._reading and not self.closed:
            try:
                count, ended = self._channel.read(self._reader.buffer())
            except ssl.SSLError as error:
                self._fail(error)
                return
            self._emit()
            if count:
                super().buffer_updated(count)
            if ended:
                self._transport.close()
            if ended or not count:
                return

    def _fail(self, error: ssl.SSLError) -> None:
        """TLS goes no further. OpenSSL has left an alert for the peer, if it is the peer's fault."""
        self._emit()
        self._secured = False
        if not self.closed:
            self._refuse(explain(error, self.remote))

    def _read_or_not(self) -> None:
        was_reading = self._reading
        super()._read_or_not()
        if self._reading and not was_reading and self._channel.holds_more:
            self._call_soon(self._take)

    # To the socket

    def _write(self, data: Buffer) -> None:
        if self._in_the_clear:
            super()._write(data)
        elif self._secured:
            self._encrypt([data])

    def _gather(self, pieces: list[Buffer]) -> None:
        if self._secured:
            self._encrypt(pieces)

    def _encrypt(self, pieces: list[Buffer]) -> None:
        try:
            for piece in pieces:
                self._channel.write(piece)
        except ssl.SSLError:
            self._transport.abort()
        else:
            self._emit()

    def _emit(self) -> None:
        leaving = self._channel.leaving()
        if leaving:
            super()._write(leaving)

    # The end

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._arrived = memoryview(b"")

    @property
    def held(self) -> int:
        return super().held + len(self._arrived)
