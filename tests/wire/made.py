"""Messages made at random, of any class: from the types of their fields, as far as the wire can carry them.

And frames that are wrong, but have the right checksum.
"""

from __future__ import annotations

import struct
import types
import typing
from collections.abc import Callable
from enum import Enum
from typing import Annotated, Any, NewType, Union, get_args, get_origin, get_type_hints

import msgspec
from hypothesis import strategies as st

from varlog import limits
from varlog.core.messages import (
    Append,
    AppendReplies,
    AppendReply,
    ChainPart,
    ChainRead,
    ChainWrite,
    ChainWritten,
    FetchLog,
    Granted,
    LogPart,
    Message,
    Next,
    Replicate,
    Scan,
    ScanReply,
)
from varlog.wire import Ping, catalogue, hot

U16, U32, U64 = (1 << 16) - 1, (1 << 32) - 1, (1 << 64) - 1
STORED_LINE = st.tuples(*(st.integers(0, most) for most in (U64, U64, U32, U64, U64, U64)), st.binary(max_size=300))
REFUSAL = st.tuples(*(st.integers(0, most) for most in (U32, U16, U64, U64)), st.binary(max_size=300))
NARROW: dict[tuple[type[Message], str], st.SearchStrategy[Any]] = {
    (AppendReply, "code"): st.integers(0, U16),
    (AppendReply, "count"): st.integers(0, U32),
    (AppendReply, "replicas"): st.integers(0, 255),
    (AppendReplies, "replicas"): st.integers(0, 255),
    (Scan, "max_bytes"): st.integers(0, U32),
    (ScanReply, "code"): st.integers(0, U16),
    (ScanReply, "batches"): st.lists(STORED_LINE, max_size=5).map(tuple),
    (FetchLog, "max_bytes"): st.integers(0, U32),
    (LogPart, "code"): st.integers(0, U16),
    (Next, "counts"): st.lists(st.integers(0, U32), min_size=1, max_size=5).map(tuple),
    (Granted, "code"): st.integers(0, U16),
    (Granted, "skipped"): st.lists(st.tuples(st.integers(0, U64), st.integers(0, U32)), max_size=3).map(tuple),
    (ChainWritten, "code"): st.integers(0, U16),
    (ChainWritten, "refused"): st.lists(REFUSAL, max_size=5).map(tuple),
    (ChainRead, "max_bytes"): st.integers(0, U32),
    (ChainPart, "code"): st.integers(0, U16),
    (ChainPart, "batches"): st.lists(STORED_LINE, max_size=5).map(tuple),
    (Append, "batch"): st.binary(max_size=40_000),
    (Ping, "payload"): st.binary(max_size=limits.MAX_PING_BYTES),
}
"""Fields that are narrower on the wire than their type says, or have to be drawn by hand."""

VIEWS: st.SearchStrategy[Any] = st.binary(max_size=300).map(memoryview)
COLUMNS: dict[type[Message], dict[str, st.SearchStrategy[Any]]] = {
    AppendReplies: {
        "requests": st.integers(0, U64),
        "llsns": st.integers(0, U64),
        "counts": st.integers(0, U32),
    },
    Replicate: {
        "prev_sequences": st.integers(0, U64),
        "batches": st.one_of(st.binary(max_size=40_000), VIEWS),
    },
    ChainWrite: {
        "glsns": st.integers(0, U64),
        "times": st.integers(0, U64),
        "batches": st.one_of(st.binary(max_size=40_000), VIEWS),
    },
    LogPart: {
        "epochs": st.integers(0, U64),
        "prev_sequences": st.integers(0, U64),
        "batches": VIEWS,
    },
}
"""Fields that are as long as each other, and never empty: what an item of each is."""

CLASSES = [cls for cls, _ in catalogue.CODECS.values()]


def frame(number: int, body: bytes, *, length: int | None = None, reserved: int = 0) -> bytes:
    """Whatever it says, with the checksum of what it says."""
    return hot.sealed(struct.pack("<IHH", len(body) if length is None else length, number, reserved) + body)


def resealed(changed: bytes) -> bytes:
    """A frame that was changed, with the checksum of what it is now."""
    return hot.sealed(changed[4:])


def fitted(changed: bytes) -> bytes:
    """The same with the right length as well: whether it is its message, only the decoder can tell."""
    return hot.sealed(struct.pack("<I", max(0, len(changed) - hot.HEADER_BYTES)) + changed[8:])


DISGUISES: list[Callable[[bytes], bytes]] = [bytes, resealed, fitted]
"""How a changed frame may arrive: from plainly damaged to made so by someone who knows how."""


def some(cls: type[Message]) -> st.SearchStrategy[Message]:
    """Any message of the class."""
    return _struct(cls)


def anything() -> st.SearchStrategy[Message]:
    """Any message at all."""
    return st.sampled_from(CLASSES).flatmap(some)


def _struct(cls: Any) -> st.SearchStrategy[Any]:
    hints = get_type_hints(cls, include_extras=True)
    columns = COLUMNS.get(cls, {})
    names = [field.name for field in msgspec.structs.fields(cls) if field.name not in columns]
    fields = {name: NARROW[cls, name] if (cls, name) in NARROW else of_type(hints[name]) for name in names}
    rows = st.lists(st.tuples(*columns.values()), min_size=1, max_size=6)
    return st.builds(
        lambda drawn, rows: cls(**drawn, **dict(zip(columns, zip(*rows, strict=True), strict=False))),
        st.fixed_dictionaries(fields),
        rows if columns else st.just([]),
    )


def of_type(wanted: Any) -> st.SearchStrategy[Any]:
    """Values of a type, as far as messages use types."""
    if isinstance(wanted, NewType):
        return of_type(wanted.__supertype__)
    origin, arguments = get_origin(wanted), get_args(wanted)
    if origin is Annotated:
        return _constrained(arguments[0], arguments[1])
    if origin in {Union, types.UnionType}:
        return st.one_of([of_type(each) for each in arguments])
    if origin is tuple and arguments[-1] is Ellipsis:
        return st.lists(of_type(arguments[0]), max_size=4).map(tuple)
    if origin is tuple:
        return st.tuples(*(of_type(each) for each in arguments))
    if origin is dict:
        return st.dictionaries(of_type(arguments[0]), of_type(arguments[1]), max_size=4)
    return _of_class(wanted)


def _of_class(wanted: Any) -> st.SearchStrategy[Any]:
    simple: dict[Any, st.SearchStrategy[Any]] = {
        bool: st.booleans(),
        int: st.integers(0, U64),
        float: st.floats(allow_nan=False),
        str: st.text(max_size=20),
        bytes: st.binary(max_size=100),
        memoryview: st.binary(max_size=100).map(memoryview),
        type(None): st.none(),
    }
    if wanted in simple:
        return simple[wanted]
    if issubclass(wanted, Enum):
        return st.sampled_from(wanted)
    if issubclass(wanted, msgspec.Struct):
        return _struct(wanted)
    assert issubclass(wanted, tuple), f"draw {wanted} by hand"
    hints = typing.get_type_hints(wanted)
    return st.tuples(*(of_type(hint) for hint in hints.values())).map(lambda drawn: wanted(*drawn))


def _constrained(wanted: Any, meta: msgspec.Meta) -> st.SearchStrategy[Any]:
    if wanted is bytes:
        return st.binary(min_size=meta.min_length or 0, max_size=meta.max_length)
    assert (wanted, meta.ge) == (int, 0), f"draw {wanted} by hand"
    return st.integers(0, U64 if meta.le is None else int(meta.le))
