"""The tables of docs/protocol.md, made from the code: from the catalogue, the packed layouts, the errors, and the texts
that stand with the fields of messages."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum
from types import ModuleType
from typing import NamedTuple

from varlog import types
from varlog.batch import transactions as marking
from varlog.core import projection
from varlog.core.messages import (
    AppendReplies,
    ChainPart,
    ChainWrite,
    ChainWritten,
    Granted,
    LogPart,
    Message,
    Next,
    Replicate,
    ScanReply,
    chains,
    data,
    metadata,
    operating,
    ordering,
    replicas,
    transactions,
)
from varlog.errors import VarlogError
from varlog.wire import catalogue, chained, hello, hot

WIDTHS = {"B": ("u8", 1), "H": ("u16", 2), "I": ("u32", 4), "Q": ("u64", 8), "?": ("bool", 1)}
FIXED: dict[type[Message], list[str]] = {
    AppendReplies: ["lsid", "epoch", "replicas", "synced", "shift", "answers"],
    ScanReply: ["request", "lsid", "code", "complete_to", "first", "batches", "detail_bytes"],
    Replicate: ["lsid", "epoch", "llsn", "batches"],
    LogPart: [
        "request",
        "lsid",
        "code",
        "committed_end",
        "llsn",
        "batches",
        "commits",
        "base_bytes",
        "detail_bytes",
    ],
    Next: ["request", "tpid", "epoch", "batches"],
    Granted: ["request", "code", "epoch", "time", "batches", "skips", "detail_bytes"],
    ChainWrite: ["request", "lsid", "epoch", "batches"],
    ChainWritten: ["request", "lsid", "code", "epoch", "synced", "refusals", "detail_bytes"],
    ChainPart: ["request", "lsid", "code", "epoch", "end", "seen", "first", "batches", "detail_bytes"],
}
"""The fixed parts that end with how much follows them; the text beside the tables says what does."""
STORED = ["glsn", "llsn", "count", "epoch", "version", "time", "length"]
REFUSED = ["batch", "code", "glsn", "time", "length"]
MARK = ["txid", "after", "part", "expiry", "reserved"]
VERDICT = ["kind", *["reserved"] * 7, "txid", "after", "checked", "count", "reserved"]
GROUPS = {
    0: "The hello, and whether anyone is there",
    16: "Client and storage node",
    21: "Client and sequencer",
    24: "Storage nodes among themselves",
    28: "Client and the replicas of a chain",
    32: "Storage node and metadata repository",
    48: "Manager or client, and storage node",
    64: "Anyone and the metadata repository",
    96: "Operators and the manager",
    112: "The sequencer ordering",
    122: "Transactions",
}


class Field(NamedTuple):
    name: str
    type: str
    default: str
    text: str


class Kind(NamedTuple):
    """A class that goes over the wire, as its source describes it."""

    name: str
    text: str
    fields: list[Field]
    is_message: bool


def kinds_of(module: ModuleType) -> Iterator[Kind]:
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, ast.ClassDef) and node.name != "Message" and node.bases:
            base = ast.unparse(node.bases[0])
            if base in {"Message", "msgspec.Struct", "NamedTuple"}:
                yield Kind(node.name, ast.get_docstring(node) or "", list(fields_of(node)), base == "Message")


def fields_of(node: ast.ClassDef) -> Iterator[Field]:
    for at, part in enumerate(node.body):
        if isinstance(part, ast.AnnAssign):
            after = node.body[at + 1] if at + 1 < len(node.body) else None
            text = ""
            if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
                text = " ".join(str(after.value.value).split())
            yield Field(ast.unparse(part.target), type_of(part.annotation), default_of(part.value), text)


def type_of(annotation: ast.expr) -> str:
    match annotation:
        case ast.Subscript(ast.Name("tuple"), ast.Tuple([element, ast.Constant(value)])) if value is ...:
            return f"array of {type_of(element)}"
        case ast.Subscript(ast.Name("tuple"), ast.Tuple(elements)):
            return f"[{', '.join(map(type_of, elements))}]"
        case ast.BinOp(left, ast.BitOr(), _):
            return type_of(left)
        case _:
            name = ast.unparse(annotation)
            return {"Natural": "int", "Nonce": "bytes (32)", "ProofBytes": "bytes (32)"}.get(name, name)


def default_of(value: ast.expr | None) -> str:
    match value:
        case None:
            return ""
        case ast.Call(_, [argument]):
            return default_of(argument)
        case ast.Call() | ast.Tuple():
            return "its defaults" if isinstance(value, ast.Call) else "empty"
        case ast.Constant("" | b""):
            return "empty"
        case _:
            return ast.unparse(value).lower()


MODULES = (types, ordering, replicas, data, projection, metadata, operating, chains, transactions, hello, hot)
KINDS = {kind.name: kind for module in MODULES for kind in kinds_of(module)}


def table(heading: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = [heading, ["---"] * len(heading), *rows]
    return "".join("|" + "|".join(f" {cell} " if cell != "" else " " for cell in line) + "|\n" for line in lines)


def fields_table(kind: Kind) -> str:
    """A table if there is something to say of the fields, a line if there is not."""
    if any(field.default or field.text for field in kind.fields):
        rows = [(f"`{field.name}`", field.type, field.default, field.text) for field in kind.fields]
        return table(("Field", "Type", "Default", ""), rows)
    told = ", ".join(f"`{field.name}` {field.type}" for field in kind.fields)
    return f"Fields: {told or 'none'}.\n"


def described(heading: str, kind: Kind) -> str:
    return "\n".join(part for part in (heading + "\n", kind.text and kind.text + "\n", fields_table(kind)) if part)


def every_message() -> str:
    sections = []
    for number, (cls, _) in sorted(catalogue.CODECS.items()):
        sections += [f"### {GROUPS[first]}\n" for first in GROUPS if first == group_of(number) != group_of(number - 1)]
        packed_too = "\nPacked: see [Bodies](#bodies).\n" if cls in hot.LAYOUTS else ""
        sections.append(described(f"#### {number} {cls.__name__}", KINDS[cls.__name__]) + packed_too)
    return "\n".join(sections)


def group_of(number: int) -> int:
    known = [each for each in catalogue.CODECS if each <= number]
    return max(first for first in GROUPS if first <= max(known, default=-1)) if known else -1


def parts() -> str:
    mentioned = " ".join(field.type for kind in KINDS.values() for field in kind.fields)
    inside = [kind for kind in KINDS.values() if not kind.is_message and kind.name in mentioned]
    texts = [described(f"#### {kind.name}", kind) for kind in inside]
    enums: list[type[IntEnum]] = [types.ReplicaState, types.StreamStatus, types.Ordering, hello.Role]
    return "\n".join([*texts, *(f"#### {enum.__name__}\n\n{values(enum)}" for enum in enums)])


def values(enum: type[IntEnum]) -> str:
    return table(("Value", "Name"), [(member.value, member.name) for member in enum])


def errors() -> str:
    rows = []
    for code, cls in sorted(VarlogError.registry.items()):
        text = " ".join((cls.__doc__ or "").split())
        rows.append((code, f"`{cls.__name__}`", "yes" if cls.retriable else "", text))
    return table(("Code", "Name", "Again", "When"), rows)


def packed() -> str:
    sections = []
    for cls, layout in hot.LAYOUTS.items():
        kind = KINDS[cls.__name__]
        names = FIXED.get(cls) or [field.name for field in kind.fields]
        rows = list(offsets(layout, names))
        if len(names) > len(layout):
            rows.append((sum(WIDTHS[letter][1] for letter in layout), "bytes", f"`{names[len(layout)]}`"))
        sections.append(
            f"`{cls.__name__}`, type {catalogue.NUMBERS[cls]}:\n\n" + table(("Offset", "Type", "Field"), rows)
        )
    return "\n".join(sections)


def stored() -> str:
    return table(("Offset", "Type", "Field"), list(offsets(hot.STORED.format[1:], STORED)))


def refused() -> str:
    return table(("Offset", "Type", "Field"), list(offsets(chained.REFUSED.format[1:], REFUSED)))


def mark() -> str:
    return table(("Offset", "Type", "Field"), list(offsets(marking._MARK.format[1:], MARK)))


def verdict() -> str:
    layout = marking._VERDICT.format[1:].replace("7x", "BBBBBBB")
    return table(("Offset", "Type", "Field"), [row for row in offsets(layout, VERDICT) if row[2] != "`reserved`"])


def offsets(layout: str, names: Sequence[str]) -> Iterator[tuple[int, str, str]]:
    at = 0
    for letter, name in zip(layout, names, strict=False):
        kind, width = WIDTHS[letter]
        yield at, kind, f"`{name}`"
        at += width


GENERATED: dict[str, Callable[[], str]] = {
    "packed": packed,
    "stored": stored,
    "refused": refused,
    "mark": mark,
    "verdict": verdict,
    "errors": errors,
    "messages": every_message,
    "parts": parts,
}
"""By the marker they stand behind in the document."""


def messages_named(names: Sequence[str]) -> set[type[Message]]:
    by_name = {cls.__name__: cls for cls in catalogue.NUMBERS}
    return {by_name[name] for name in names}
