"""The bytes of the metadata journal: how they are made, and what may be believed of them when read back.

A journal file is a header of 64 bytes, one snapshot frame, and change frames up to the end of what was written; the
rest is preallocated and zero. A frame is 40 bytes of header and a body of msgpack, padded with zeros to 8:

    magic u32 | crc u32 | previous crc u32 | body length u32 | body crc u32 | kind u32 | revision u64 | synced u64

All little-endian. `crc` is over what follows it in the frame header, seeded with the file's nonce and the frame's
offset, so that bytes copied from elsewhere, an older file's remains among them, never pass for a frame. `previous crc`
chains a frame to the one before it (the first one to the file header), `body crc` covers body and padding, `revision`
is the keyspace's after the frame, `synced` says up to where this file had been synced when the frame was laid out.

A file gets its name only after header and snapshot are synced, so those are never torn. A change frame may be. The
first bad frame, at X, is *corruption* if anything proves that the file was once synced beyond X: the header (which
says where the snapshot ends), the `synced` of any intact frame header from X on, or the mark: a small file
beside the journal, written soon after every sync but never waited for, any surviving version of which is true.
Corruption is reported and nothing is touched. Without such proof X is the *torn tail* of a write that was never
acknowledged.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple

import msgspec
from crc32c import crc32c

from varlog.core.keyspace import Change, Contents, Keyspace
from varlog.errors import JournalCorrupt, UnsupportedFormat, WrongIdentity
from varlog.tuples import new_tuple
from varlog.types import ClusterID

FORMAT: Final = 1

_FILE_MAGIC: Final = b"varlogMJ"
_FRAME_MAGIC: Final = b"\xc5MJ\xa7"
_MARK_MAGIC: Final = b"\xc5MS\xa7"
_SNAPSHOT: Final = 1
_CHANGE: Final = 2

_FILE_HEADER = Struct("<8sIIQQ28xI")
_FRAME_START = Struct("<4sI")
_FRAME_REST = Struct("<IIIIQQ")
_SEED = Struct("<QQ")
_MARK = Struct("<QQ")
_MARK_START = Struct("<4sI")
_FRAME_BYTES: Final = _FRAME_START.size + _FRAME_REST.size
_MARK_BYTES: Final = _MARK_START.size + _MARK.size
_ALIGNMENT: Final = 8

_encode = msgspec.msgpack.Encoder().encode
_decode_change = msgspec.msgpack.Decoder(Change).decode
_decode_contents = msgspec.msgpack.Decoder(Contents).decode

encode_change = _encode
"""The body of a change frame."""


class Position(NamedTuple):
    """Where the next frame of a file goes, and what it is chained to."""

    nonce: int
    offset: int
    chain: int


class Mark(NamedTuple):
    """The file of this nonce was synced up to here."""

    nonce: int
    synced: int


class _Frame(NamedTuple):
    crc: int
    previous: int
    length: int
    body_crc: int
    kind: int
    revision: int
    synced: int


def _padded(length: int) -> int:
    return (length + _ALIGNMENT - 1) & -_ALIGNMENT


def _frame(at: Position, kind: int, body: bytes, revision: int, synced: int) -> tuple[bytes, Position]:
    length = len(body)
    padded = _padded(length)
    if padded != length:
        body += bytes(padded - length)
    rest = _FRAME_REST.pack(at.chain, length, crc32c(body), kind, revision, synced)
    crc = crc32c(rest, crc32c(_SEED.pack(at.nonce, at.offset)))
    frame = b"".join((_FRAME_START.pack(_FRAME_MAGIC, crc), rest, body))
    return frame, new_tuple(Position, (at.nonce, at.offset + len(frame), crc))


def change_frame(at: Position, body: bytes, revision: int, synced: int) -> tuple[bytes, Position]:
    """A frame for an encoded change, and where the next one goes."""
    return _frame(at, _CHANGE, body, revision, synced)


def new_file(cid: ClusterID, nonce: int, contents: Contents) -> tuple[list[bytes], Position]:
    """The bytes a new file begins with, and where its first change goes."""
    body = _encode(contents)
    snapshot_end = _FILE_HEADER.size + _FRAME_BYTES + _padded(len(body))
    header = _FILE_HEADER.pack(_FILE_MAGIC, FORMAT, cid, nonce, snapshot_end, 0)[:-4]
    crc = crc32c(header)
    start = Position(nonce, _FILE_HEADER.size, crc)
    frame, end = _frame(start, _SNAPSHOT, body, contents.revision, 0)
    return [header, crc.to_bytes(4, "little"), frame], end


def encode_mark(mark: Mark) -> bytes:
    body = _MARK.pack(mark.nonce, mark.synced)
    return _MARK_START.pack(_MARK_MAGIC, crc32c(body)) + body


def decode_mark(data: bytes) -> Mark | None:
    """The mark, or None if it is not whole. It is never waited for, so that is no fault."""
    if len(data) < _MARK_BYTES:
        return None
    magic, crc = _MARK_START.unpack_from(data)
    body = data[_MARK_START.size : _MARK_BYTES]
    if magic != _MARK_MAGIC or crc != crc32c(body):
        return None
    return Mark(*_MARK.unpack(body))


class Loaded(NamedTuple):
    """What a journal file holds."""

    keyspace: Keyspace
    torn: bool
    """Something stood behind the last whole frame: a write that was never acknowledged, and is left out."""


def load(data: bytes, mark: Mark | None, cid: ClusterID, path: str) -> Loaded:
    """The state a journal file holds. Raises JournalCorrupt, WrongIdentity or UnsupportedFormat."""
    start, synced = _load_header(data, cid, path)
    if mark is not None and mark.nonce == start.nonce:
        synced = max(synced, mark.synced)
    keyspace: Keyspace | None = None
    end = start.offset
    for offset, frame in _frames(data, start):
        end = offset + _FRAME_BYTES + _padded(frame.length)
        keyspace = _replay(keyspace, frame, data[offset + _FRAME_BYTES : offset + _FRAME_BYTES + frame.length])
        if keyspace is None or keyspace.revision != frame.revision:
            raise JournalCorrupt("a frame does not follow from the one before it", segment=path, offset=offset)
    synced = max([synced, *(frame.synced for frame in _stray_headers(data, start.nonce, end))])
    if synced > end or keyspace is None:
        raise JournalCorrupt("a damaged frame", segment=path, offset=end)
    return Loaded(keyspace, data.count(0, end) < len(data) - end)


def cluster_of(data: bytes, path: str) -> ClusterID:
    """Whose journal a file is. Raises as `load`."""
    return ClusterID(_header(data, path)[0])


def _header(data: bytes, path: str) -> tuple[int, int, int, int]:
    if len(data) < _FILE_HEADER.size:
        raise JournalCorrupt("a damaged header", segment=path, offset=0)
    magic, version, owner, nonce, snapshot_end, crc = _FILE_HEADER.unpack_from(data)
    if magic != _FILE_MAGIC or crc != crc32c(data[: _FILE_HEADER.size - 4]):
        raise JournalCorrupt("a damaged header", segment=path, offset=0)
    if version > FORMAT:
        raise UnsupportedFormat(f"{path} has format {version}; this version knows up to {FORMAT}")
    return owner, nonce, snapshot_end, crc


def _load_header(data: bytes, cid: ClusterID, path: str) -> tuple[Position, int]:
    owner, nonce, snapshot_end, crc = _header(data, path)
    if owner != cid:
        raise WrongIdentity(f"{path} is of cluster {owner}, not {cid}")
    return Position(nonce, _FILE_HEADER.size, crc), snapshot_end


def _header_at(data: bytes, nonce: int, offset: int) -> _Frame | None:
    """The frame header at an offset, if it is one: intact, of this file, and at its own place."""
    if offset + _FRAME_BYTES > len(data):
        return None
    magic, crc = _FRAME_START.unpack_from(data, offset)
    rest = data[offset + _FRAME_START.size : offset + _FRAME_BYTES]
    if magic != _FRAME_MAGIC or crc != crc32c(rest, crc32c(_SEED.pack(nonce, offset))):
        return None
    return _Frame(crc, *_FRAME_REST.unpack(rest))


def _frames(data: bytes, at: Position) -> Iterator[tuple[int, _Frame]]:
    """The unbroken chain of whole frames from a position on."""
    _, offset, chain = at
    while (frame := _header_at(data, at.nonce, offset)) is not None and frame.previous == chain:
        body = offset + _FRAME_BYTES
        end = body + _padded(frame.length)
        if end > len(data) or crc32c(data[body:end]) != frame.body_crc:
            return
        yield offset, frame
        offset, chain = end, frame.crc


def _stray_headers(data: bytes, nonce: int, offset: int) -> Iterator[_Frame]:
    """Intact frame headers anywhere from an offset on."""
    while (offset := data.find(_FRAME_MAGIC, offset)) >= 0:
        if offset % _ALIGNMENT == 0 and (frame := _header_at(data, nonce, offset)) is not None:
            yield frame
        offset += 1


def _replay(keyspace: Keyspace | None, frame: _Frame, body: bytes) -> Keyspace | None:
    """The state after a frame; None if the frame cannot come here."""
    try:
        if keyspace is None:
            return Keyspace(_decode_contents(body)) if frame.kind == _SNAPSHOT else None
        if frame.kind != _CHANGE:
            return None
        keyspace.apply(_decode_change(body))
    except (msgspec.DecodeError, KeyError):
        return None
    return keyspace
