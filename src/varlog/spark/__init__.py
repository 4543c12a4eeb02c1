"""The log on Spark: the data source `varlog`, and a session that knows it.

    import varlog.spark

    spark = varlog.spark.session()
    spark.read.format("varlog").option("cluster", "varlog-data").load().show()

Where things are: `source` is what Spark calls; `options` says what a query may ask for; `planning` makes partitions
of a range of the log, in a process of the driver; `task` reads one of them, in a process of an executor; `connections`
is how both reach the cluster; `columns` is how rows look; `java` and `starting` bring up a session. Importing this
package imports no Spark: the archive, which has the same columns, does without.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from varlog.spark.starting import session

__all__ = ["session"]


def __getattr__(name: str) -> Any:
    if name == "session":
        from varlog.spark.starting import session  # noqa: PLC0415  # Spark is large

        return session
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
