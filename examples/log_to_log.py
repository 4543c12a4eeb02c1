"""A pipeline from one topic to another, exactly once from end to end.

    varlog dev                                                       # in another terminal, in the same directory
    varlog topic add orders
    varlog topic add priced
    varlog append --topic orders '{"item": "tea", "quantity": 2}' '{"item": "coffee", "quantity": 1}'
    python examples/log_to_log.py --cluster varlog-data --checkpoint priced-checkpoint
    varlog read --topic priced

Orders come in as JSON. Each gets its price, from a table, and the position that it has among the orders, and goes out
as JSON, too:

    {"order":1,"item":"tea","quantity":2,"cents":500}

An order whose item has no price is left out. With `--follow` the pipeline goes on as orders come.

Kill it whenever you like, and start it again: every order is in the other topic once. Three things make that so.

- *What is read* of a micro-batch is a range of the log's one order, and Spark notes it before anything is done with it.
  Done again, it is the same range, and what is in it is decided: nothing else can ever be read there.
- *What is written* of a micro-batch is one transaction, which readers see as a whole or not at all.
- *Whether it was written* is known to the log itself. The transaction has the query's name and the micro-batch's
  number, so when Spark does not know any more that the micro-batch was done, and does it again, nothing is written.

The checkpoint is what makes two runs one query: with another one, everything is read and written again.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

import varlog.spark

ORDER = "item STRING, quantity INT"
PRICES = {"tea": 250, "coffee": 320, "cake": 410}
"""In cents."""


def priced(orders: DataFrame, prices: Mapping[str, int]) -> DataFrame:
    """What goes out of what comes in."""
    table = orders.sparkSession.createDataFrame(list(prices.items()), "item STRING, price INT")
    order = sql.from_json(sql.col("payload").cast("string"), ORDER)
    return (
        orders.select(sql.col("glsn").alias("order"), order.alias("of"))
        .select("order", "of.*")
        .join(sql.broadcast(table), "item")
        .select("order", "item", "quantity", (sql.col("quantity") * sql.col("price")).alias("cents"))
    )


def run(spark: SparkSession, cluster: str, source: str, target: str, checkpoint: str, *, follow: bool = False) -> None:
    """Do what there is to do, or go on for ever."""
    orders = (
        spark.readStream.format("varlog")
        .option("cluster", cluster)
        .option("topic", source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 100_000)
        .load()
    )
    writer = (
        priced(orders, PRICES)
        .writeStream.format("varlog")
        .option("cluster", cluster)
        .option("topic", target)
        .option("json", "true")
        .option("checkpointLocation", checkpoint)
    )
    query = (writer.trigger(processingTime="1 second") if follow else writer.trigger(availableNow=True)).start()
    query.awaitTermination()


def main(argv: Sequence[str] | None = None) -> None:
    """See the module's text."""
    parser = argparse.ArgumentParser(description="Orders in, priced orders out, exactly once.")
    parser.add_argument("--cluster", default="varlog-data", help="a cluster file, its directory, or host:port")
    parser.add_argument("--source", default="orders", help="the topic that orders are read from")
    parser.add_argument("--target", default="priced", help="the topic that priced orders are written to")
    parser.add_argument("--checkpoint", required=True, help="where Spark keeps how far it is")
    parser.add_argument("--follow", action="store_true", help="go on as orders come")
    given = parser.parse_args(argv)
    spark = varlog.spark.session("log to log")
    run(spark, given.cluster, given.source, given.target, given.checkpoint, follow=given.follow)


if __name__ == "__main__":
    main()
