"""A Spark Declarative Pipeline on the log: tables are described, Spark finds out what to compute, and in which order.

The topic has orders as JSON, `{"item": "tea", "cents": 250}`. `orders` is a streaming table: every run adds what has
been appended since the last one, and nothing twice. `sales` is a materialized view: what was sold, of which item.

    varlog dev                                   # in another terminal, in the same directory
    varlog append '{"item": "tea", "cents": 250}' '{"item": "coffee", "cents": 320}'
    export VARLOG_CLUSTER=$PWD/varlog-data
    cd examples/declarative
    spark-pipelines run --remote 'local[2]' --conf spark.sql.catalogImplementation=hive

It needs `pip install 'varlog[spark]' 'pyspark[pipelines]'`. The tables are in `spark-warehouse`, as Parquet, and what
Spark knows of them is in `metastore_db`, where the next run finds it. Of all these places Spark itself wants paths
without spaces.
"""

from __future__ import annotations

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

spark = SparkSession.active()


@dp.table
def orders() -> DataFrame:
    """One row for each entry of the log, with its place in the order of all."""
    order = f.from_json(f.col("payload").cast("string"), "item string, cents bigint")
    log = spark.readStream.format("varlog").option("startingOffsets", "earliest").load()
    return log.select("glsn", "timestamp", order.alias("order")).select("glsn", "timestamp", "order.*")


@dp.materialized_view
def sales() -> DataFrame:
    """What was sold."""
    sold = spark.read.table("orders").groupBy("item")
    return sold.agg(f.count("*").alias("orders"), f.sum("cents").alias("cents"), f.max("glsn").alias("last_glsn"))
