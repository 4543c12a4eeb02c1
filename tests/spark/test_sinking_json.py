"""JSON that Arrow makes of columns is the JSON that Spark makes of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tests.spark.topics import Topic
from varlog import limits
from varlog.errors import InvalidArgument
from varlog.spark.sink_options import Chosen, How
from varlog.spark.sinking_json import objects
from varlog.spark.sinking_payloads import Payloads, pieces

TEXTS = ["plain", "", 'quote " and \\ backslash', "line\nend\r\ttab\b\f", "\x00\x01\x1f\x7f", "é€😀", "a,b:{}[]"]
VALUES = {
    "b": "true",
    "i": "-7",
    "l": "9223372036854775807L",
    "dec": "CAST('12.3400' AS DECIMAL(20, 4))",
    "dec38": "CAST('-0.000000000000000001' AS DECIMAL(38, 18))",
    "f": "CAST(0.1 AS FLOAT)",
    "d": "2.5e300D",
    "nan": "double('NaN')",
    "inf": "-double('Infinity')",
    "s": "string('x')",
    "bin": "X'00FF10'",
    "date": "DATE'2024-02-29'",
    "st": "named_struct('x', 1, 'none', CAST(NULL AS INT), 'in', named_struct('y', 'z'))",
    "arr": "array(1, NULL, 3)",
    "arrs": "array(named_struct('a', array('q\"', NULL)), NULL)",
    "map": "map('k', 1, 'quo\"te', NULL)",
    "maps": "map(1, array(map('a', DATE'2024-01-01')))",
    "empty": "CAST(array() AS ARRAY<INT>)",
    "nothing": "array(NULL)",
    "none": "CAST(NULL AS STRING)",
}


def test_the_json_of_rows_is_the_same_as_spark_s(spark: SparkSession) -> None:
    chosen = [f"{expression} AS `{name}`" for name, expression in VALUES.items()]
    frame = spark.range(3).selectExpr("id", *chosen, "IF(id = 1, NULL, named_struct('a', id)) AS `na\"me`")
    theirs = [json.loads(row[0]) for row in frame.selectExpr("to_json(struct(*))").collect()]
    for behind in (0, 1):

        def made(batches: Iterable[pa.RecordBatch], behind: int = behind) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                rows = batch.slice(behind)
                yield pa.record_batch([objects(rows.columns, rows.schema.names)], names=["made"])

        ours = frame.coalesce(1).mapInArrow(made, "made STRING").collect()
        assert [json.loads(row[0]) for row in ours] == theirs[behind:]


def test_what_is_empty_and_has_no_type_is_written_as_well(spark: SparkSession, topic: Topic) -> None:
    rows = spark.sql(
        "SELECT array() AS a, map() AS m, array(map()) AS am, NULL AS n, 1.0D AS d, array(struct(1 AS x)) AS s"
    )
    rows.write.format("varlog").options(**topic.options(json=True)).mode("append").save()
    assert topic.payloads(1, 2) == [b'{"a":[],"m":{},"am":[{}],"d":1,"s":[{"x":1}]}']


def test_texts_come_back_whatever_is_in_them() -> None:
    column = pa.array([*TEXTS, None])
    found = [json.loads(text) for text in objects([column, column], ["a", "b\n"]).to_pylist()]
    assert found == [*({"a": text, "b\n": text} for text in TEXTS), {}]


def test_times_have_microseconds_and_are_utc() -> None:
    moment = pa.array([1_704_164_645_678_901])
    zoned, plain = moment.view(pa.timestamp("us", "Europe/Berlin")), moment.view(pa.timestamp("us"))
    assert objects([zoned, plain], ["z", "p"]).to_pylist() == [
        '{"z":"2024-01-02T03:04:05.678901Z","p":"2024-01-02T03:04:05.678901"}'
    ]


def test_large_columns_are_cut_by_their_bytes() -> None:
    sizes = [0, limits.SPARK_SINK_BATCH_BYTES // 2, limits.SPARK_SINK_BATCH_BYTES // 2, 1, 3 << 20, 0, 5]
    column = pa.array([bytes(size) for size in sizes])
    for kind in (pa.binary(), pa.large_binary()):
        cut = list(pieces(column.cast(kind)))
        assert [[len(entry.as_py()) for entry in piece] for piece in cut] == [sizes[:3], [1], [3 << 20], [0, 5]]
        assert [len(piece) for piece in pieces(column.cast(kind).slice(3))] == [1, 1, 2]
    assert list(pieces(pa.array([], pa.binary()))) == []


def test_a_row_without_a_payload_is_refused_by_its_number() -> None:
    payloads = Payloads(Chosen((0,), ("payload",), How.BYTES))
    full = pa.record_batch([pa.array(["a", "b"])], names=["payload"])
    assert [piece.to_pylist() for piece in payloads.of(full)] == [[b"a", b"b"]]
    with pytest.raises(InvalidArgument, match=r"payload is null in row 3 of the task's"):
        list(payloads.of(pa.record_batch([pa.array(["c", None])], names=["payload"])))
