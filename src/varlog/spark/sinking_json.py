"""Columns as JSON: one text per row, made for whole columns at a time and by Arrow, so no row is touched in Python.

What comes out is what Spark's `to_json` makes of the same value, and `from_json` reads back: fields that are null are
left out of an object, binary is base64, numbers that JSON does not know are texts ("NaN"). One thing is more exact:
times have microseconds, and those with a zone are always given in UTC. Numbers are the same, but may be written
otherwise: 1 for 1.0, 1e+20 for 1.0E20.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from varlog.errors import BadOption

if TYPE_CHECKING:
    from collections.abc import Sequence

_ESCAPED: Final = r'["\\\x00-\x1f]'
_CONTROL: Final = r"[\x00-\x1f]"
_SHORT: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\b": "\\b", "\f": "\\f"}
_NUMBERS: Final = {"nan": '"NaN"', "inf": '"Infinity"', "-inf": '"-Infinity"'}
"""As Arrow writes them, and as Spark reads them."""
_WHOLE: Final = (ByteType, ShortType, IntegerType, LongType)
_TIMES: Final = (DateType, TimestampType, TimestampNTZType)
_PLAIN: Final = (BooleanType, *_WHOLE, DecimalType, StringType, *_TIMES)
"""Whose texts are the same within quotes and without."""


def check_type(kind: DataType, name: str) -> None:
    """Whether there is JSON for a type of Spark's, and for all that is within it."""
    if isinstance(kind, StructType):
        if len(set(kind.names)) < len(kind.names):
            raise BadOption(f"column {name} has fields of the same name, which a JSON object cannot have")
        for field in kind:
            check_type(field.dataType, f"{name}.{field.name}")
    elif isinstance(kind, MapType):
        if not isinstance(kind.keyType, (*_PLAIN, NullType)):
            raise BadOption(f"column {name} has keys of type {_said(kind.keyType)}, which no JSON object can have")
        check_type(kind.valueType, name)
    elif isinstance(kind, ArrayType):
        check_type(kind.elementType, name)
    elif not isinstance(kind, (*_PLAIN, BinaryType, FloatType, DoubleType, NullType)):
        raise BadOption(f"column {name} is of type {_said(kind)}, for which there is no JSON; cast it to a STRING")


def _said(kind: DataType) -> str:
    return kind.simpleString().upper()


def objects(columns: Sequence[pa.Array], names: Sequence[str]) -> pa.Array:
    """One object per row, with a field for every column that is not null there."""
    empty = pa.scalar("")
    fields = [
        pc.binary_join_element_wise(pa.scalar(f",{_quoted(name)}:"), json_of(column), empty)
        for name, column in zip(names, columns, strict=True)
    ]
    joined = pc.binary_join_element_wise(*fields, empty, null_handling="replace", null_replacement="")
    return pc.binary_join_element_wise(pa.scalar("{"), pc.ascii_ltrim(joined, ","), pa.scalar("}"), empty)


def json_of(values: pa.Array) -> pa.Array:
    """The JSON of each value; null where it is null."""
    kind = values.type
    if pa.types.is_null(kind):
        return pa.nulls(len(values), pa.string())
    if pa.types.is_struct(kind):
        return _where(values, objects(values.flatten(), [field.name for field in kind]))
    if pa.types.is_map(kind):
        return _map(values)
    if _is_list(kind):
        return _bracketed(values, pc.fill_null(json_of(pc.list_flatten(values)), "null"), "[", "]")
    if pa.types.is_floating(kind):
        return _numbers(values)
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_decimal(kind):
        return values.cast(pa.string())
    return _text(values)


def _text(values: pa.Array) -> pa.Array:
    """As JSON texts, with quotes."""
    kind = values.type
    if _is_bytes(kind):
        values = pa.array([None if value is None else base64.b64encode(value) for value in values.to_pylist()])
        values = values.cast(pa.string())
    elif pa.types.is_timestamp(kind):
        naive = values.cast(pa.timestamp("us", kind.tz)).view(pa.int64()).view(pa.timestamp("us")).cast(pa.string())
        values = pc.replace_substring(naive, " ", "T", max_replacements=1)
        if kind.tz is not None:
            values = pc.binary_join_element_wise(values, pa.scalar("Z"), pa.scalar(""))
    else:
        values = _escaped(values.cast(pa.string()))
    return pc.binary_join_element_wise(pa.scalar('"'), values, pa.scalar('"'), pa.scalar(""))


def _escaped(values: pa.Array) -> pa.Array:
    if not pc.any(pc.match_substring_regex(values, _ESCAPED)).as_py():
        return values
    values = pc.replace_substring(pc.replace_substring(values, "\\", "\\\\"), '"', '\\"')
    if pc.any(pc.match_substring_regex(values, _CONTROL)).as_py():
        for code in range(0x20):
            values = pc.replace_substring(values, chr(code), _SHORT.get(chr(code), f"\\u{code:04x}"))
    return values


def _quoted(name: str) -> str:
    text: str = _text(pa.array([name]))[0].as_py()
    return text


def _numbers(values: pa.Array) -> pa.Array:
    texts = values.cast(pa.string())
    if pc.all(pc.is_finite(values)).as_py() is not False:
        return texts
    for arrow, spark in _NUMBERS.items():
        texts = pc.if_else(pc.equal(texts, arrow), spark, texts)
    return texts


def _map(values: pa.Array) -> pa.Array:
    entries = values.cast(pa.list_(pa.struct([("key", values.type.key_type), ("value", values.type.item_type)])))
    keys, items = pc.list_flatten(entries).flatten()
    fields = pc.binary_join_element_wise(
        _text(keys), pa.scalar(":"), pc.fill_null(json_of(items), "null"), pa.scalar("")
    )
    return _bracketed(entries, fields, "{", "}")


def _bracketed(values: pa.Array, texts: pa.Array, left: str, right: str) -> pa.Array:
    """Texts of the elements of lists, joined again to one per list."""
    lengths = pc.fill_null(pc.list_value_length(values), 0)
    offsets = np.zeros(len(values) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    joined = pc.binary_join(pa.ListArray.from_arrays(pa.array(offsets), texts), ",")
    return _where(values, pc.binary_join_element_wise(pa.scalar(left), joined, pa.scalar(right), pa.scalar("")))


def _where(values: pa.Array, texts: pa.Array) -> pa.Array:
    """The texts, null where the values are."""
    return pc.if_else(values.is_valid(), texts, None) if values.null_count else texts


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))
