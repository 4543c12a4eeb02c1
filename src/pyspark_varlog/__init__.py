"""Where Spark finds the data source by itself: it looks into every module whose name begins with `pyspark_`."""

from __future__ import annotations

from varlog.spark.source import VarlogDataSource as DefaultSource

__all__ = ["DefaultSource"]
