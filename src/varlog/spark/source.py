"""The data source `varlog`: what Spark calls to read, and where it gets the writers of `sink`.

Spark makes the source and its readers anew in several processes and sends them from one to another, so they hold
options and nothing else. What they do is in `planning`, in a process of the driver, and in `task`, on executors.

Nothing that is large is imported before it is needed: Spark imports every `pyspark_...` module to look for sources, and
one that cannot be imported would disable all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, DataSourceStreamReader
    from pyspark.sql.types import StructType

    import varlog
    from varlog.spark.options import Options
    from varlog.spark.planning import Range
    from varlog.spark.sink_options import Chosen, SinkOptions

NAME: Final = "varlog"


class VarlogDataSource(DataSource):
    """The log as a table and as a stream, to read and to write."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        from varlog.spark.columns import spark_schema  # noqa: PLC0415
        from varlog.spark.options import parse  # noqa: PLC0415

        return spark_schema(parse(self.options, streaming=None).columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        return Reader(self._parsed(schema, streaming=False))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  # Spark's name
        from varlog.errors import BadOption  # noqa: PLC0415
        from varlog.spark.streaming import RefusedReader, StreamReader  # noqa: PLC0415

        try:
            return StreamReader(self._parsed(schema, streaming=True))
        except BadOption as error:
            return RefusedReader(error)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        from varlog.spark.sink import BatchWriter  # noqa: PLC0415

        return BatchWriter(*self._writing(schema, overwrite, streaming=False))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        from varlog.spark.sink import StreamWriter  # noqa: PLC0415

        return StreamWriter(*self._writing(schema, overwrite, streaming=True))

    def _writing(self, schema: StructType, overwrite: bool, *, streaming: bool) -> tuple[SinkOptions, Chosen]:
        from varlog.spark.connections import pin  # noqa: PLC0415
        from varlog.spark.sink_options import choose, parse_sink, refuse_overwriting  # noqa: PLC0415

        if overwrite:
            refuse_overwriting(streaming=streaming)
        options = parse_sink(self.options, streaming=streaming)
        return options._replace(connection=pin(options.connection)), choose(schema, options)

    def _parsed(self, schema: StructType, *, streaming: bool) -> Options:
        from varlog.spark.connections import pin  # noqa: PLC0415
        from varlog.spark.options import check_schema, parse  # noqa: PLC0415

        options = parse(self.options, streaming=streaming)
        check_schema(schema.names, options.columns)
        nullable = frozenset(field.name for field in schema if field.nullable)
        return options._replace(connection=pin(options.connection), nullable=nullable)


class Partition(InputPartition):
    """What one task reads."""

    def __init__(self, range_: Range) -> None:
        super().__init__(range_)


def read_partition(options: Options, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """In a task: the rows of a partition. Spark makes one of its own, without a value, where there is none."""
    from varlog.spark.columns import declared  # noqa: PLC0415
    from varlog.spark.task import read_range  # noqa: PLC0415

    if partition.value is None:
        return iter(())
    begin, end, affinity = partition.value
    rows = read_range(
        options.connection,
        begin,
        end,
        affinity,
        columns=options.columns,
        log_streams=options.log_streams,
        uncommitted=options.uncommitted,
        fail_on_data_loss=options.fail_on_data_loss,
    )
    return declared(rows, options.columns, options.nullable)


class Reader(DataSourceReader):
    """A batch query."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        from varlog.spark.connections import connections  # noqa: PLC0415

        return [Partition(found) for found in connections.ask(self._options.connection, self._plan)]

    async def _plan(self, log: varlog.Log) -> list[Range]:
        from varlog.spark import planning  # noqa: PLC0415

        planning.check_log_streams(log, self._options)
        extent = await planning.extent_of(log)
        begin, end = await planning.range_of(log, extent, self._options)
        return await planning.partitions_of(log, extent, begin, end, self._options) if begin < end else []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(self._options, partition)
