"""An application as a user submits it: reads a topic on the executors and prints, as JSON, what it found and where."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

import varlog


def where(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The executor that we are on, and where it has its modules from."""
    for _ in batches:
        yield pa.record_batch([[varlog.__file__], [sys.prefix]], names=["module", "prefix"])


def main() -> None:
    cluster, secret_file, topic = sys.argv[1:]
    spark = SparkSession.builder.appName("read the log").getOrCreate()
    log = (
        spark.read.format("varlog")
        .option("cluster", cluster)
        .option("secretFile", secret_file)
        .option("topic", topic)
        .option("minPartitions", 8)
        .load()
    )
    found = log.agg(
        f.count("*").alias("rows"),
        f.min("glsn").alias("first"),
        f.max("glsn").alias("last"),
        f.countDistinct("glsn").alias("positions"),
        f.sum(f.col("payload").cast("string").cast("long")).alias("sum"),
    ).first()
    places = spark.range(0, 16, 1, 8).mapInArrow(where, "module string, prefix string").distinct()
    assert found is not None
    json.dump({**found.asDict(), "places": [place.asDict() for place in places.collect()]}, sys.stdout)
    spark.stop()


if __name__ == "__main__":
    main()
