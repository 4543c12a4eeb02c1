"""What a query can ask of the sink, what its rows have to look like, and what it is told otherwise."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DateType,
    DayTimeIntervalType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    VariantType,
    YearMonthIntervalType,
)

from varlog.errors import BadOption
from varlog.spark.options import Connection
from varlog.spark.sink_options import SINK_OPTIONS, How, SinkOptions, choose, parse_sink

PAGE = Path(__file__).resolve().parents[2] / "docs" / "spark.md"


INT, BYTES = IntegerType(), BinaryType()
OBJECT = StructType([StructField("x", INT)])


def rows(**columns: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


def test_without_options_the_column_payload_is_written() -> None:
    options = parse_sink({}, streaming=False)
    assert options == SinkOptions(Connection(), "payload", False, None, 600.0, 120.0, None)
    assert choose(rows(glsn=LongType(), payload=BYTES), options) == ((1,), ("payload",), How.BYTES)
    assert choose(rows(Payload=StringType()), options) == ((0,), ("Payload",), How.BYTES), "names as Spark takes them"


def test_what_options_say() -> None:
    options = parse_sink(
        {"TOPIC": "out", "cluster": "a:1", "payload": "x", "transactionTimeout": "7", "deliveryTimeoutMs": "1500"},
        streaming=False,
    )
    assert options == SinkOptions(Connection("a:1", "out"), "x", False, None, 7.0, 1.5, None)


def test_a_streaming_query_shows_spark_s_own_options() -> None:
    options = parse_sink({"checkpointlocation": "/some/where", "queryname": "q"}, streaming=True)
    assert options.checkpoint == "/some/where"
    with pytest.raises(BadOption, match="there is no option checkpointLocation"):
        parse_sink({"checkpointLocation": "/some/where"}, streaming=False)


@pytest.mark.parametrize(
    ("given", "chosen"),
    [
        ({"json": "true"}, ((0, 1, 2), ("a", "b", "c"), How.OBJECTS)),
        ({"json": "true", "columns": "c, a"}, ((2, 0), ("c", "a"), How.OBJECTS)),
        ({"json": "true", "payload": "c"}, ((2,), ("c",), How.VALUES)),
    ],
)
def test_json_is_made_of_all_columns_or_some_or_one(given: dict[str, str], chosen: tuple[object, ...]) -> None:
    assert choose(rows(a=INT, b=DateType(), c=OBJECT), parse_sink(given, streaming=False)) == chosen


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"topics": "t"}, "there is no option topics (its value is 't'); did you mean topic?"),
        ({"path": "/x"}, "there is no option path (its value is '/x'); did you mean cluster?"),
        ({"startingOffsets": "1"}, "option startingOffsets = '1' is for reading only"),
        ({"maxOffsetsPerTrigger": "1"}, "option maxOffsetsPerTrigger = '1' is for reading only"),
        ({"json": "yes"}, "option json = 'yes'; allowed is true or false"),
        ({"columns": "a"}, "option columns = 'a' is for JSON objects"),
        ({"columns": "a", "payload": "b", "json": "true"}, "options payload and columns are both given"),
        ({"columns": "a,a", "json": "true"}, "option columns = 'a,a'; allowed is names of columns, each once"),
        ({"transactionTimeout": "0"}, "option transactionTimeout = '0'; allowed is a whole number from 1 to 86400"),
        ({"transactionTimeout": "86401"}, "allowed is a whole number from 1 to 86400"),
        ({"deliveryTimeoutMs": "soon"}, "option deliveryTimeoutMs = 'soon'"),
        ({"payload": " "}, "option payload = ' '; allowed is not an empty text"),
    ],
)
def test_what_is_refused_is_named_with_what_is_allowed(given: dict[str, str], said: str) -> None:
    with pytest.raises(BadOption, match=re.escape(said)):
        parse_sink(given, streaming=False)


@pytest.mark.parametrize(
    ("schema", "given", "said"),
    [
        (
            {"value": BYTES},
            {},
            "option payload = 'payload': there is no such column; the rows have value. Say payload =",
        ),
        ({"payload": LongType()}, {}, "option payload = 'payload': the column is BIGINT; allowed is BINARY or STRING"),
        ({"payload": OBJECT}, {}, "the column is STRUCT<X:INT>; allowed is BINARY or STRING, or any other with"),
        (
            {"a": INT},
            {"json": "true", "columns": "a,b"},
            "option columns = 'b': there is no such column; the rows have a",
        ),
        ({"a": INT, "A": INT}, {"json": "true", "payload": "x"}, "there is no such column; the rows have a, A"),
        ({"pay": BYTES, "PAY": BYTES}, {"payload": "Pay"}, "option payload = 'Pay': 2 columns have this name"),
        (
            {"a": DayTimeIntervalType()},
            {"json": "true"},
            "column a is of type INTERVAL DAY TO SECOND, for which there is no JSON; cast it to a STRING",
        ),
        (
            {"a": MapType(BYTES, INT)},
            {"json": "true"},
            "column a has keys of type BINARY, which no JSON object can have",
        ),
        ({"a": YearMonthIntervalType()}, {"json": "true"}, "column a is of type INTERVAL YEAR TO MONTH, for which"),
        ({"a": VariantType()}, {"json": "true"}, "column a is of type VARIANT, for which there is no JSON"),
        (
            {"a": ArrayType(MapType(StringType(), StructType([StructField("v", VariantType())])))},
            {"json": "true", "payload": "a"},
            "column a.v is of type VARIANT",
        ),
        (
            {"a": INT},
            {"json": "true", "columns": "a,A"},
            "option columns = 'a,A'; allowed is names of columns, each once",
        ),
    ],
)
def test_rows_that_cannot_be_written_are_refused(schema: dict[str, DataType], given: dict[str, str], said: str) -> None:
    with pytest.raises(BadOption, match=re.escape(said)):
        choose(rows(**schema), parse_sink(given, streaming=False))


def test_rows_without_columns_are_refused() -> None:
    with pytest.raises(BadOption, match="the rows have no columns"):
        choose(StructType(), parse_sink({"json": "true"}, streaming=False))


def test_the_page_has_every_option() -> None:
    part = PAGE.read_text().split("## Writing")[1].split("\n## ")[0]
    assert sorted(re.findall(r"^\| `([\w.]+)` \|", part, re.MULTILINE)) == sorted(SINK_OPTIONS)
