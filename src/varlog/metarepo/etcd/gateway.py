"""What is said to etcd's HTTP gateway, and what its answers mean. Bytes in, bytes out.

The gateway is etcd's own gRPC interface in JSON: keys and values in base64, 64-bit numbers as strings, what is 0 or
empty left out. Errors come as gRPC's codes with etcd's words, and the words decide: `nothing_happened` knows those that
are said before a request goes to the members, or when all of them refuse it alike. Of all others a write's outcome is
unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from varlog.core.store import (
    Committed,
    CompareFailed,
    KeyValue,
    LeaseID,
    ReadResult,
    Txn,
    WatchEvents,
)

LEASE_NOT_FOUND: Final = "etcdserver: requested lease not found"
COMPACTED: Final = "etcdserver: mvcc: required revision has been compacted"
_AUTHENTICATE: Final = {"etcdserver: invalid auth token", "etcdserver: revision of auth store is old"}
_TOO_MUCH: Final = {"etcdserver: mvcc: database space exceeded", "etcdserver: request is too large"}
_ELSEWHERE: Final = {"raft proposal dropped", "etcdserver: no leader", "etcdserver: too many requests"}
"""Nothing happened, and another member may do better: this one is cut off from the rest, or behind."""
_NOT_PERMITTED: Final = {
    "etcdserver: permission denied",
    "etcdserver: user name is empty",
    "etcdserver: user name not found",
    "etcdserver: authentication failed, invalid user ID or password",
    "etcdserver: authentication is not enabled",
}


class EtcdRefusal(Exception):
    """etcd answered, and with an error."""

    def __init__(self, words: str) -> None:
        super().__init__(words)
        self.words = words
        self.wants_token = words in _AUTHENTICATE
        self.elsewhere = words in _ELSEWHERE
        self.too_much = words in _TOO_MUCH
        self.not_permitted = words in _NOT_PERMITTED
        self.nothing_happened = self.wants_token or self.elsewhere or self.too_much or self.not_permitted


class _Header(msgspec.Struct):
    cluster_id: int = 0
    member_id: int = 0
    revision: int = 0


class _KeyValue(msgspec.Struct):
    key: bytes
    value: bytes = b""
    mod_revision: int = 0
    lease: int = 0


class _Range(msgspec.Struct):
    header: _Header
    kvs: list[_KeyValue] = []
    more: bool = False


class _Response(msgspec.Struct):
    response_range: _Range | None = None


class _Txn(msgspec.Struct):
    header: _Header
    succeeded: bool = False
    responses: list[_Response] = []


class Granted(msgspec.Struct):
    """A lease. Without a time to live it is not there."""

    id: int = msgspec.field(name="ID", default=0)
    ttl: int = msgspec.field(name="TTL", default=0)
    granted: int = msgspec.field(name="grantedTTL", default=0)


class _KeptAlive(msgspec.Struct):
    result: Granted


class Status(msgspec.Struct):
    """How a member is."""

    header: _Header
    version: str
    database_bytes: int = msgspec.field(name="dbSize", default=0)
    used_bytes: int = msgspec.field(name="dbSizeInUse", default=0)
    leader: int = 0
    """The id of the member that leads; 0 if this one knows of none."""

    @property
    def leads(self) -> bool:
        return self.leader == self.header.member_id


class _Token(msgspec.Struct):
    token: str


class WatchedEvent(msgspec.Struct):
    kv: _KeyValue
    type: str = "PUT"


class Watched(msgspec.Struct):
    """One message of a watch."""

    created: bool = False
    canceled: bool = False
    compact_revision: int = 0
    cancel_reason: str = ""
    fragment: bool = False
    """The last transaction told of here goes on in the next message."""
    events: list[WatchedEvent] = []


class _StreamError(msgspec.Struct):
    message: str = ""


class _WatchMessage(msgspec.Struct):
    result: Watched | None = None
    error: _StreamError | None = None


class _Failure(msgspec.Struct):
    message: str = ""
    error: str = ""


MALFORMED: Final = (msgspec.MsgspecError, UnicodeDecodeError)
"""What decoding raises if something else than etcd answers."""

_encode = msgspec.json.Encoder().encode
_txn = msgspec.json.Decoder(_Txn, strict=False).decode
_range = msgspec.json.Decoder(_Range, strict=False).decode
_granted = msgspec.json.Decoder(Granted, strict=False).decode
_kept_alive = msgspec.json.Decoder(_KeptAlive, strict=False).decode
_watch_message = msgspec.json.Decoder(_WatchMessage, strict=False).decode
_failure = msgspec.json.Decoder(_Failure, strict=False).decode
decode_status = msgspec.json.Decoder(Status, strict=False).decode
decode_granted = _granted


class Page(NamedTuple):
    """A part of a read. The next one begins at `after`, at the same revision; None if there is no more."""

    revision: int
    kvs: list[KeyValue]
    after: bytes | None


class Keys:
    """The keys of one cluster among all of an etcd."""

    def __init__(self, prefix: str) -> None:
        self._prefix = f"{prefix}/".encode()

    def name(self, key: str) -> bytes:
        return self._prefix + key.encode()

    def span(self, prefix: str) -> tuple[bytes, bytes]:
        """The first key under a prefix, and the first behind all of them."""
        start = self.name(prefix)
        return start, start[:-1] + bytes([start[-1] + 1])  # neither UTF-8 nor the slash ends in 0xFF

    def key(self, name: bytes) -> str:
        return name[len(self._prefix) :].decode()

    def known(self, kv: _KeyValue) -> KeyValue:
        return KeyValue(self.key(kv.key), kv.value, kv.mod_revision, LeaseID(kv.lease))

    # Transactions

    def txn(self, txn: Txn) -> bytes:
        """If a compare fails, what was compared with is read, at that same revision."""
        compares = [
            {"key": self.name(key), "target": "MOD", "result": "EQUAL", "mod_revision": revision}
            for key, revision in txn.compares
        ]
        writes: list[dict[str, Any]] = []
        for key, value, lease in txn.puts:
            put: dict[str, Any] = {"key": self.name(key), "value": value}
            if lease:
                put["lease"] = lease
            writes.append({"request_put": put})
        writes += [{"request_delete_range": {"key": self.name(key)}} for key in txn.deletes]
        return _encode({"compare": compares, "success": writes, "failure": self._gets([c.key for c in txn.compares])})

    def txn_outcome(self, answer: bytes) -> Committed | CompareFailed:
        told = _txn(answer)
        if told.succeeded:
            return Committed(told.header.revision)
        return CompareFailed(told.header.revision, self._found(told))

    # Reads

    def read(self, keys: Sequence[str]) -> bytes:
        """As a transaction, so that all are read at one revision."""
        return _encode({"success": self._gets(sorted(set(keys)))})

    def read_outcome(self, answer: bytes) -> ReadResult:
        told = _txn(answer)
        return ReadResult(told.header.revision, self._found(told))

    def page(self, start: bytes, end: bytes, revision: int, limit: int) -> bytes:
        request = {"key": start, "range_end": end, "revision": revision, "limit": limit}
        return _encode(request)

    def page_outcome(self, answer: bytes, revision: int) -> Page:
        told = _range(answer)
        kvs = [self.known(kv) for kv in told.kvs]
        after = told.kvs[-1].key + b"\0" if told.more and told.kvs else None
        return Page(revision or told.header.revision, kvs, after)

    def _gets(self, keys: Iterable[str]) -> list[dict[str, Any]]:
        return [{"request_range": {"key": self.name(key)}} for key in dict.fromkeys(keys)]

    def _found(self, told: _Txn) -> dict[str, KeyValue]:
        found = [self.known(kv) for one in told.responses if one.response_range for kv in one.response_range.kvs]
        return {kv.key: kv for kv in found}

    # Watches

    def watch(self, prefix: str, told: int) -> bytes:
        """Everything after revision `told`.

        It is asked for from `told` itself on, and what was told is dropped: etcd takes a watch that begins where its
        history was cut, but deletions of that very revision may be missing there.
        """
        start, end = self.span(prefix)
        request = {"key": start, "range_end": end, "start_revision": max(told, 1), "fragment": True}
        return _encode({"create_request": request})

    def changes(self, events: Sequence[WatchedEvent]) -> list[WatchEvents]:
        """Events in the order of their revisions, those of one transaction together."""
        puts: dict[int, list[KeyValue]] = {}
        deletes: dict[int, list[str]] = {}
        for event in events:
            revision = event.kv.mod_revision
            kept, gone = puts.setdefault(revision, []), deletes.setdefault(revision, [])
            if event.type == "DELETE":
                gone.append(self.key(event.kv.key))
            else:
                kept.append(self.known(event.kv))
        return [WatchEvents(revision, tuple(kept), tuple(deletes[revision])) for revision, kept in puts.items()]


def watch_message(line: bytes) -> Watched:
    """Raises EtcdRefusal if the stream ends with an error."""
    message = _watch_message(line)
    if message.result is None:
        raise EtcdRefusal(message.error.message if message.error else "the watch ended")
    return message.result


def refusal(answer: bytes, status: int) -> EtcdRefusal:
    try:
        told = _failure(answer)
    except MALFORMED:
        told = _Failure()
    nothing = f"HTTP status {status}" + ("; see its --enable-grpc-gateway" if status == 404 else "")
    return EtcdRefusal(told.message or told.error or nothing)


def encode(request: dict[str, int | str]) -> bytes:
    return _encode(request)


def decode_kept_alive(answer: bytes) -> Granted:
    return _kept_alive(answer).result


def decode_token(answer: bytes) -> str:
    return msgspec.json.decode(answer, type=_Token).token
