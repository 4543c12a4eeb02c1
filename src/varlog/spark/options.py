"""What a query can ask of the source, and the one place where options are read.

Names are Kafka's where the meaning is Kafka's; like all of Spark's option names they are taken in any spelling of upper
and lower case. A name that is not known, a value that is not allowed, or two options that contradict each other end the
query at once, with an error that says which, and what is allowed.

A position in the log is one number, the GLSN, whatever the number of log streams: so offsets are numbers, not one per
partition. Ends are exclusive.

Secrets are never options: `secretFile` names a file. Options are shown in query plans and on web pages.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, Literal, NamedTuple

from varlog.errors import BadOption, InvalidArgument
from varlog.spark.columns import COLUMNS
from varlog.wire.tls import TlsFiles

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
Position = int | Literal["earliest", "latest"]

READ_COMMITTED: Final = "read_committed"
READ_UNCOMMITTED: Final = "read_uncommitted"

MAX_POSITION: Final = (1 << 63) - 1
PAYLOAD_ONLY: Final = ("payload",)

OPTIONS: Final[Mapping[str, str]] = {
    "cluster": "a cluster file, the directory of one, or host:port[,host:port] of metadata repositories",
    "cid": "the cluster's id",
    "secretFile": "the file with the cluster's secret",
    "tlsCert": "the file with the certificate to show",
    "tlsKey": "the file with its private key",
    "tlsCa": "the file with the certificates of the cluster's CA",
    "topic": "the topic",
    "logStreams": "which log streams' entries are wanted",
    "columns": "which columns, in which order",
    "includeMetadata": "whether there are other columns than payload",
    "startingOffsets": "the first position",
    "startingTimestamp": "the time of the first entry",
    "endingOffsets": "the position behind the last one",
    "endingTimestamp": "the time behind the last entry",
    "maxOffsetsPerTrigger": "the most positions of a micro-batch",
    "maxBytesPerTrigger": "about the most bytes of a micro-batch",
    "minPartitions": "the least number of partitions",
    "maxRecordsPerPartition": "the most positions of a partition",
    "isolationLevel": "whether entries of transactions are read before they are committed",
    "failOnDataLoss": "whether a query ends when what it is to read is no longer there",
    "connectTimeoutMs": "how long to wait for the cluster to answer",
    "pollTimeoutMs": "how long a task waits for the next entries",
    "fetchOffset.numRetries": "how often what failed is tried again",
    "fetchOffset.retryIntervalMs": "how long to wait before",
}
TLS_OPTIONS: Final = ("tlsCert", "tlsKey", "tlsCa")
STREAMING_ONLY: Final = ("maxOffsetsPerTrigger", "maxBytesPerTrigger")
BATCH_ONLY: Final = ("endingOffsets", "endingTimestamp")


class Connection(NamedTuple):
    """How a process of Spark reaches the topic. It names a secret and does not hold it."""

    cluster: str | None = None
    topic: str | None = None
    cid: int | None = None
    secret_file: str | None = None
    timeout: float = 10.0
    """Of connecting, and of every question but reads."""
    poll_timeout: float = 120.0
    """How long a read waits for the next batch."""
    retries: int = 3
    retry_interval: float = 0.5
    tls: TlsFiles | None = None


class Start(NamedTuple):
    """Where a query begins or ends: at a position, or at the first entry that is not older than a time."""

    position: Position | None = None
    timestamp: int | None = None
    """In microseconds since 1970."""


class Options(NamedTuple):
    """All that a query asks for. `limits` of a micro-batch, and of partitions, are 0 where there is none."""

    connection: Connection
    columns: tuple[str, ...]
    log_streams: frozenset[int] | None
    start: Start
    end: Start
    max_offsets: int
    max_bytes: int
    min_partitions: int
    max_records: int
    uncommitted: bool
    """Entries of transactions are read whatever becomes of them."""
    fail_on_data_loss: bool
    nullable: frozenset[str] = frozenset()
    """Columns that the query's own schema would let be null. None ever is, but Spark wants them declared as it says."""


def parse(given: Mapping[str, str], *, streaming: bool | None) -> Options:
    """What options mean for a batch or a streaming query; with None, for either of them, as far as can be told."""
    check_names(given, OPTIONS)
    if streaming is not None:
        _check_kind(given, streaming=streaming)
    reading = Reading(given)
    return Options(
        connection=connection_of(reading),
        columns=_columns(reading),
        log_streams=reading.numbers("logStreams"),
        start=_start(reading, "startingOffsets", "startingTimestamp", LATEST if streaming else EARLIEST),
        end=_start(reading, "endingOffsets", "endingTimestamp", LATEST),
        max_offsets=reading.number("maxOffsetsPerTrigger", 0, least=1),
        max_bytes=reading.number("maxBytesPerTrigger", 0, least=1),
        min_partitions=reading.number("minPartitions", 0, least=1, most=1 << 20),
        max_records=reading.number("maxRecordsPerPartition", 0, least=1),
        uncommitted=_is_uncommitted(reading),
        fail_on_data_loss=reading.flag("failOnDataLoss", default=True),
    )


def check_schema(names: Sequence[str], columns: Sequence[str]) -> None:
    """A query may bring a schema of its own only if it is the one that there is."""
    if list(names) != list(columns):
        raise BadOption(
            f"a schema with the columns {', '.join(names)}; allowed are {', '.join(columns)}: "
            "leave the schema out, and choose by the option columns"
        )


_KNOWN: Final = {name.lower(): name for name in OPTIONS}
_CALLED_OTHERWISE: Final = {
    "kafka.bootstrap.servers": "cluster",
    "path": "cluster",
    "subscribe": "topic",
    "assign": "logStreams",
    "kafkaconsumer.polltimeoutms": "pollTimeoutMs",
    "kafka.isolation.level": "isolationLevel",
}
"""What people try who know Kafka's source, or those of files."""
_IMPOSSIBLE: Final = {
    "pushdown": "Spark takes what it hands down of one query's conditions for others of the same DataFrame; "
    "say startingOffsets and endingOffsets, or startingTimestamp and endingTimestamp"
}
"""What people look for, and why it cannot be had."""


def check_names(given: Mapping[str, str], known: Mapping[str, str]) -> None:
    """Whether all options are among those that are known, each with what it says."""
    names = {name.lower(): name for name in known}
    for name, value in given.items():
        if name.lower() in _IMPOSSIBLE:
            raise BadOption(f"there is no option {name} (its value is {value!r}): {_IMPOSSIBLE[name.lower()]}")
        if name.lower() not in names:
            other = _CALLED_OTHERWISE.get(name.lower(), "").lower()
            close = [other] if other in names else difflib.get_close_matches(name.lower(), names, n=1)
            hint = f"did you mean {names[close[0]]}? " if close else ""
            raise BadOption(f"there is no option {name} (its value is {value!r}); {hint}there are {', '.join(known)}")


def _check_kind(given: Mapping[str, str], *, streaming: bool) -> None:
    kind, other, refused = ("streaming", "batch", BATCH_ONLY) if streaming else ("batch", "streaming", STREAMING_ONLY)
    for name, value in given.items():
        if _KNOWN[name.lower()] in refused:
            raise BadOption(
                f"option {_KNOWN[name.lower()]} = {value!r} is for {other} queries only, and this is a {kind} query"
            )


class Reading:
    """The values of options, read one by one."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._values = {name.lower(): value for name, value in given.items()}

    def text(self, name: str) -> str | None:
        value = self._values.get(name.lower())
        if value is not None and not value.strip():
            raise refused(name, value, "not an empty text; leave the option out")
        return value

    def both(self, name: str, other: str) -> bool:
        return name.lower() in self._values and other.lower() in self._values

    def number(self, name: str, default: int, *, least: int = 0, most: int = MAX_POSITION) -> int:
        value = self.text(name)
        if value is None:
            return default
        number = _whole(value)
        if number is None or not least <= number <= most:
            raise refused(name, value, f"a whole number from {least} to {most}")
        return number

    def flag(self, name: str, *, default: bool) -> bool:
        value = self.text(name)
        if value is None:
            return default
        if value.lower() not in ("true", "false"):
            raise refused(name, value, "true or false")
        return value.lower() == "true"

    def words(self, name: str) -> tuple[str, ...] | None:
        value = self.text(name)
        return None if value is None else tuple(word.strip() for word in value.split(","))

    def numbers(self, name: str) -> frozenset[int] | None:
        words = self.words(name)
        if words is None:
            return None
        numbers = [_whole(word) for word in words]
        if any(number is None or not 0 < number < 1 << 32 for number in numbers):
            raise refused(name, ",".join(words), "numbers of log streams with commas between them: 1,3")
        return frozenset(number for number in numbers if number is not None)


def connection_of(reading: Reading) -> Connection:
    """How the cluster and the topic are reached."""
    standard = Connection()
    return Connection(
        cluster=reading.text("cluster"),
        topic=reading.text("topic"),
        cid=reading.number("cid", 0, least=1, most=(1 << 32) - 1) or None,
        secret_file=reading.text("secretFile"),
        timeout=reading.number("connectTimeoutMs", int(standard.timeout * 1000), least=1, most=86_400_000) / 1000,
        poll_timeout=reading.number("pollTimeoutMs", int(standard.poll_timeout * 1000), least=1, most=86_400_000)
        / 1000,
        retries=reading.number("fetchOffset.numRetries", standard.retries, most=1000),
        retry_interval=reading.number(
            "fetchOffset.retryIntervalMs", int(standard.retry_interval * 1000), most=86_400_000
        )
        / 1000,
        tls=_tls(reading),
    )


def _tls(reading: Reading) -> TlsFiles | None:
    try:
        return TlsFiles.of(*map(reading.text, TLS_OPTIONS))
    except InvalidArgument:
        raise BadOption(f"{', '.join(TLS_OPTIONS)}: these options are given together or not at all") from None


def _is_uncommitted(reading: Reading) -> bool:
    value = reading.text("isolationLevel") or READ_COMMITTED
    if value.lower() not in {READ_COMMITTED, READ_UNCOMMITTED}:
        raise refused("isolationLevel", value, f"{READ_COMMITTED} or {READ_UNCOMMITTED}")
    return value.lower() == READ_UNCOMMITTED


def _columns(reading: Reading) -> tuple[str, ...]:
    include_metadata = reading.flag("includeMetadata", default=True)
    wanted = reading.words("columns")
    if wanted is None:
        return COLUMNS if include_metadata else PAYLOAD_ONLY
    if reading.both("columns", "includeMetadata"):
        raise BadOption(
            f"option columns = {','.join(wanted)!r} says which columns there are; leave out includeMetadata"
        )
    if len(set(wanted)) < len(wanted) or not set(wanted) <= set(COLUMNS):
        raise refused("columns", ",".join(wanted), f"one or more of {', '.join(COLUMNS)}, each once")
    return wanted


def _start(reading: Reading, offsets: str, timestamp: str, default: Literal["earliest", "latest"]) -> Start:
    if reading.both(offsets, timestamp):
        raise BadOption(f"options {offsets} and {timestamp} are both given; say one of them")
    time = reading.text(timestamp)
    if time is not None:
        return Start(timestamp=_microseconds(timestamp, time))
    value = reading.text(offsets)
    if value is None:
        return Start(position=default)
    if value in (EARLIEST, LATEST):
        return Start(position=EARLIEST if value == EARLIEST else LATEST)
    number = _whole(value)
    if number is None or not 0 < number <= MAX_POSITION:
        raise refused(offsets, value, f"{EARLIEST}, {LATEST}, or a position (GLSN) from 1 on")
    return Start(position=number)


def _microseconds(name: str, value: str) -> int:
    """Kafka's milliseconds, or a time as people write it."""
    milliseconds = _whole(value)
    if milliseconds is not None and 0 <= milliseconds < MAX_POSITION // 1000:
        return milliseconds * 1000
    try:
        time = datetime.fromisoformat(value)
    except ValueError:
        raise refused(
            name, value, "milliseconds since 1970, or an ISO time such as 2026-01-31T12:00:00+00:00"
        ) from None
    if time.tzinfo is None:
        time = time.replace(tzinfo=UTC)
    since = time - datetime(1970, 1, 1, tzinfo=UTC)
    return max(0, (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds)


def _whole(text: str) -> int | None:
    text = text.strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None


def refused(name: str, value: str, allowed: str) -> BadOption:
    """The error that says what would have been allowed."""
    return BadOption(f"option {name} = {value!r}; allowed is {allowed}")
