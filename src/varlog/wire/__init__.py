"""The wire: messages of `varlog.core.messages` between processes, over TCP.

`Server` listens, `dial` connects once, `Link` stays connected; each hands messages to a `Receiver`. Frames are cut out
of the stream in `frames`, `catalogue` gives every message its number and its bytes, `hello` is how two processes make
sure of each other before anything else is said. docs/protocol.md describes the bytes for readers of any language.
"""

from __future__ import annotations

from varlog.wire.connection import Connection, Receiver
from varlog.wire.hello import Identity, Role
from varlog.wire.hot import Ping, Pong
from varlog.wire.link import Link, dial
from varlog.wire.secret import Secret
from varlog.wire.server import Server

__all__ = ["Connection", "Identity", "Link", "Ping", "Pong", "Receiver", "Role", "Secret", "Server", "dial"]
