"""Rows of a query, as a table for people, as JSON objects, or as CSV.

A query may have columns of any type and rows of any size. Payloads are bytes: they are shown as text if they are UTF-8,
else as `0x...`, or as hex or base64 throughout if that is asked for. Times are ISO 8601, in UTC. What JSON and CSV say
is exact; a table is for looking at: characters that would move the cursor are shown as escapes, and a cell that is very
long is cut.
"""

from __future__ import annotations

import base64
import csv
import io
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, date, datetime, time, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

import msgspec

from varlog.cli.output import Column, Output
from varlog.cli.payloads import text_of
from varlog.errors import BadQuery

if TYPE_CHECKING:
    import pyarrow as pa

WIDEST: Final = 120
"""Characters of a cell that a table shows."""


class Bytes(StrEnum):
    """How bytes are shown."""

    TEXT = "text"
    HEX = "hex"
    BASE64 = "base64"


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "0x" + data.hex()


_SHOWN: Final[dict[Bytes, Callable[[bytes], str]]] = {
    Bytes.TEXT: _text,
    Bytes.HEX: bytes.hex,
    Bytes.BASE64: lambda data: base64.b64encode(data).decode(),
}
_encoder: Final = msgspec.json.Encoder(decimal_format="number", enc_hook=str)


def print_table(table: pa.Table, form: Bytes, output: Output) -> None:
    """Columns with titles; numbers stand to the right."""
    heads = [Column(_on_one_line(name), right=_is_number(table.schema.field(i))) for i, name in _names(table)]
    output.table(heads, ([_cell(value) for value in row] for row in _rows(table, form)))


def print_json(table: pa.Table, form: Bytes, output: Output) -> None:
    """One object to a row, by the names of the columns."""
    names = [name for _, name in _names(table)]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise BadQuery(f"two columns are named {twice[0]!r}: tell them apart with AS")
    for row in _rows(table, form):
        output.write(_encoder.encode(dict(zip(names, row, strict=True))) + b"\n")


def print_csv(table: pa.Table, form: Bytes, output: Output) -> None:
    """A line with the names of the columns, then one to a row; what is not known is empty."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow([name for _, name in _names(table)])
    for row in _rows(table, form):
        writer.writerow(["" if value is None else _flat(value) for value in row])
        if buffer.tell() > io.DEFAULT_BUFFER_SIZE:
            output.write(buffer.getvalue().encode("utf-8", "replace"))
            buffer.seek(0)
            buffer.truncate()
    output.write(buffer.getvalue().encode("utf-8", "replace"))


def _names(table: pa.Table) -> Iterator[tuple[int, str]]:
    return enumerate(table.schema.names)


def _rows(table: pa.Table, form: Bytes) -> Iterator[Sequence[Any]]:
    """By column and not by name: a query may give the same name twice."""
    for batch in table.to_batches():
        yield from zip(
            *([_plain(value, form) for value in column.to_pylist()] for column in batch.columns), strict=True
        )


def _plain(value: Any, form: Bytes) -> Any:
    """The value as JSON can say it."""
    match value:
        case bytes():
            return _SHOWN[form](value)
        case datetime():
            utc = value if value.tzinfo is None else value.astimezone(UTC)
            return utc.isoformat(timespec="microseconds").replace("+00:00", "Z")
        case date() | time():
            return value.isoformat()
        case timedelta():
            return str(value)
        case dict():
            return {key: _plain(part, form) for key, part in value.items()}
        case list() | tuple():
            return [_plain(part, form) for part in value]
        case _:
            return value


def _flat(value: Any) -> str:
    """The value without its structure: as text."""
    if isinstance(value, str):
        return value
    return _encoder.encode(value).decode()


def _cell(value: Any) -> str:
    text = "NULL" if value is None else _on_one_line(_flat(value))
    return text if len(text) <= WIDEST else text[: WIDEST - 1] + "…"


def _on_one_line(text: str) -> str:
    return text_of(text.encode("utf-8", "replace"), keep="")


def _is_number(field: pa.Field) -> bool:
    import pyarrow as pa  # noqa: PLC0415  # Spark has loaded it by now

    kind = field.type
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))
