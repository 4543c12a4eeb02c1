"""The sink `varlog`: what Spark calls to write.

Spark makes a writer in the driver and sends it to the tasks; `write` runs there, and `commit` or `abort` in a process
of the driver. For a batch that is the same writer, so it has a name of its own. For a micro-batch it is another one,
which is told nothing but the number of the micro-batch: everything else the tasks know, from the properties that Spark
gives them, and they tell it. Where no task could, the run of a query is recognised by where its checkpoint is.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from varlog import errors
from varlog.spark.sink_options import Chosen, SinkOptions

if TYPE_CHECKING:
    import pyarrow as pa

    from varlog.core.messages import OpenTransaction
    from varlog.spark.sinking import Attempt, Share

PREFIX: Final = "spark/"
"""Of the names of transactions."""
_QUERY: Final = "sql.streaming.queryId"
_BATCH: Final = "streaming.sql.batchId"
_RUN: Final = "spark.jobGroup.id"


class Message(WriterCommitMessage):
    """What a task tells the driver."""

    def __init__(self, share: Share) -> None:
        self.share = share


class BatchWriter(DataSourceArrowWriter):
    """Of a DataFrame: it has a transaction for itself."""

    def __init__(self, options: SinkOptions, chosen: Chosen) -> None:
        self._options = options
        self._chosen = chosen
        self._name = f"{PREFIX}{uuid.uuid4()}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Message:
        from varlog.spark.sinking import Attempt  # noqa: PLC0415

        return _write(self._options, self._chosen, Attempt(self._name, self._name), iterator)

    def commit(self, messages: Sequence[Message | None]) -> None:  # type: ignore[override]
        _commit(self._options, messages)

    def abort(self, messages: Sequence[Message | None]) -> None:  # type: ignore[override]
        _abort(self._options, messages, lambda transaction: transaction.name == self._name)


class StreamWriter(DataSourceStreamArrowWriter):
    """Of a streaming query: each micro-batch has a transaction, under the name of the query and with its number."""

    def __init__(self, options: SinkOptions, chosen: Chosen) -> None:
        self._options = options
        self._chosen = chosen

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Message:
        return _write(self._options, self._chosen, self._attempt(), iterator)

    def commit(self, messages: Sequence[Message | None], batchId: int) -> None:  # type: ignore[override]  # noqa: ARG002, N803
        _commit(self._options, messages)

    def abort(self, messages: Sequence[Message | None], batchId: int) -> None:  # type: ignore[override]  # noqa: N803
        def is_ours(transaction: OpenTransaction) -> bool:
            is_same = transaction.number == batchId and transaction.name.startswith(PREFIX)
            return bool(self._mark) and is_same and transaction.token.endswith(self._mark)

        _abort(self._options, messages, is_ours)

    def _attempt(self) -> Attempt:
        from varlog.spark.sinking import Attempt  # noqa: PLC0415

        context = TaskContext.get()
        found = [context.getLocalProperty(name) if context is not None else None for name in (_QUERY, _BATCH, _RUN)]
        if None in found:
            raise errors.InvalidArgument(f"Spark does not say which micro-batch this is ({_QUERY}, {_BATCH}, {_RUN})")
        query, batch, run = map(str, found)
        return Attempt(PREFIX + query, run + self._mark, int(batch))

    @property
    def _mark(self) -> str:
        """Of every run on the same checkpoint, if it is known where that is."""
        place = self._options.checkpoint
        return "" if place is None else "@" + hashlib.sha256(place.encode()).hexdigest()[:16]


def _write(options: SinkOptions, chosen: Chosen, attempt: Attempt, rows: Iterator[pa.RecordBatch]) -> Message:
    from varlog.spark import sinking  # noqa: PLC0415
    from varlog.spark.sinking_payloads import Payloads  # noqa: PLC0415

    payloads = Payloads(chosen)
    return Message(sinking.write(options, attempt, (batch for some in rows for batch in payloads.of(some))))


def _commit(options: SinkOptions, messages: Sequence[Message | None]) -> None:
    from varlog.spark import sinking  # noqa: PLC0415

    if None in messages:
        raise errors.InvalidArgument("Spark commits a write of which not all tasks have ended")
    sinking.commit(options, [message.share for message in messages if message is not None])


def _abort(
    options: SinkOptions, messages: Sequence[Message | None], is_ours: Callable[[OpenTransaction], bool]
) -> None:
    from varlog.spark import sinking  # noqa: PLC0415

    sinking.abort(options, [message.share for message in messages if message is not None], is_ours)
