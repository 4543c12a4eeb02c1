"""What a query can ask of the sink, and what its rows have to look like for it.

As with the source, a name that is not known or a value that is not allowed ends the query at once, and so does a column
that is missing or has the wrong type: before anything is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn

from varlog import limits
from varlog.errors import BadOption
from varlog.spark.options import OPTIONS as SOURCE_OPTIONS
from varlog.spark.options import TLS_OPTIONS, Connection, Reading, check_names, connection_of, refused

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

PAYLOAD: Final = "payload"
CHECKPOINT: Final = "checkpointLocation"
_SPARKS: Final = (CHECKPOINT, "queryName")
"""Spark's own options of a streaming query, which it shows to the sink."""
_AS_THE_SOURCE: Final = ("cluster", "cid", "secretFile", *TLS_OPTIONS, "topic", "connectTimeoutMs")

SINK_OPTIONS: Final[Mapping[str, str]] = {
    **{name: SOURCE_OPTIONS[name] for name in _AS_THE_SOURCE},
    PAYLOAD: "the column that is written",
    "json": "whether rows are written as JSON",
    "columns": "which columns a row's JSON object has",
    "transactionTimeout": "after how many seconds a transaction that is not committed expires",
    "deliveryTimeoutMs": "how long to wait until rows are in the log, and for the commit",
}
DELIVERY_SECONDS: Final = 120.0
_MOST_MILLISECONDS: Final = 86_400_000


class How(Enum):
    """What becomes of the columns."""

    BYTES = "as they are"
    VALUES = "each value as JSON"
    OBJECTS = "all of a row as one JSON object"


class SinkOptions(NamedTuple):
    """All that a query asks for."""

    connection: Connection
    column: str | None
    """The one that is written; None: JSON objects of several."""
    is_json: bool
    columns: tuple[str, ...] | None
    """Those of the objects, if not all."""
    expires: float
    """Seconds."""
    delivery: float
    checkpoint: str | None
    """Where a streaming query keeps its state, if that was said as an option."""


def parse_sink(given: Mapping[str, str], *, streaming: bool) -> SinkOptions:
    """What options mean."""
    sparks = {name.lower() for name in _SPARKS} if streaming else set()
    elsewhere = {name.lower(): name for name in SOURCE_OPTIONS.keys() - SINK_OPTIONS.keys()}
    for name, value in given.items():
        if name.lower() in elsewhere:
            raise BadOption(f"option {elsewhere[name.lower()]} = {value!r} is for reading only, and this writes")
    check_names({name: value for name, value in given.items() if name.lower() not in sparks}, SINK_OPTIONS)
    reading = Reading(given)
    is_json = reading.flag("json", default=False)
    columns = reading.words("columns")
    payload = reading.text(PAYLOAD)
    if columns is not None and not is_json:
        raise BadOption(f"option columns = {','.join(columns)!r} is for JSON objects; say json = true, or payload")
    if columns is not None and payload is not None:
        raise BadOption(f"options {PAYLOAD} and columns are both given; say one of them")
    if columns is not None and (len(set(columns)) < len(columns) or not all(columns)):
        raise refused("columns", ",".join(columns), "names of columns, each once")
    return SinkOptions(
        connection=connection_of(reading),
        column=payload if is_json else payload or PAYLOAD,
        is_json=is_json,
        columns=columns,
        expires=float(
            reading.number(
                "transactionTimeout", limits.SPARK_SINK_SECONDS, least=1, most=int(limits.MAX_TRANSACTION_SECONDS)
            )
        ),
        delivery=reading.number("deliveryTimeoutMs", int(DELIVERY_SECONDS * 1000), least=1, most=_MOST_MILLISECONDS)
        / 1000,
        checkpoint=reading.text(CHECKPOINT),
    )


def refuse_overwriting(*, streaming: bool) -> NoReturn:
    """A query that would replace what is there."""
    mode, said = ("outputMode", "complete") if streaming else ("mode", "overwrite")
    raise BadOption(f'{mode}("{said}") would replace what is there, and a log is only appended to: {mode}("append")')


class Chosen(NamedTuple):
    """Which columns of the rows are written, by their places, and under which names."""

    places: tuple[int, ...]
    names: tuple[str, ...]
    how: How


def choose(schema: StructType, options: SinkOptions) -> Chosen:
    """What is written of rows of a schema; `BadOption` if they cannot be written so."""
    if options.column is None:
        wanted = schema.names if options.columns is None else options.columns
        if not wanted:
            raise BadOption("the rows have no columns, so there is nothing to be written")
        places = tuple(_place(schema, name, "columns") for name in wanted)
        if len(set(places)) < len(places):
            raise refused("columns", ",".join(wanted), "names of columns, each once, whatever their case")
        return _named(schema, places, How.OBJECTS)
    place = _place(schema, options.column, PAYLOAD)
    if options.is_json:
        return _named(schema, (place,), How.VALUES)
    kind = schema[place].dataType.typeName()
    if kind not in ("binary", "string"):
        raise BadOption(
            f"option {PAYLOAD} = {options.column!r}: the column is {schema[place].dataType.simpleString().upper()}; "
            "allowed is BINARY or STRING, or any other with json = true"
        )
    return _named(schema, (place,), How.BYTES)


def _named(schema: StructType, places: tuple[int, ...], how: How) -> Chosen:
    if how is not How.BYTES:
        from varlog.spark.sinking_json import check_type  # noqa: PLC0415

        for place in places:
            check_type(schema[place].dataType, schema.names[place])
    return Chosen(places, tuple(schema.names[place] for place in places), how)


def _place(schema: StructType, name: str, option: str) -> int:
    """Of a column, by its name, for which Spark does not tell upper from lower case."""
    found = [place for place, other in enumerate(schema.names) if other == name]
    found = found or [place for place, other in enumerate(schema.names) if other.lower() == name.lower()]
    if len(found) == 1:
        return found[0]
    has = ", ".join(schema.names) or "no columns"
    if found:
        raise BadOption(f"option {option} = {name!r}: {len(found)} columns have this name; the rows have {has}")
    raise BadOption(
        f"option {option} = {name!r}: there is no such column; the rows have {has}. Say payload = one of them, or "
        "json = true for all of them"
    )
