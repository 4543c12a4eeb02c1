"""What a query can ask of the source, and what it is told when it asks for something else."""

from __future__ import annotations

import pytest

from varlog.errors import BadOption
from varlog.spark.columns import COLUMNS
from varlog.spark.options import OPTIONS, Connection, Start, parse


def test_without_options_a_batch_is_everything_and_a_stream_is_what_comes() -> None:
    batch, stream = parse({}, streaming=False), parse({}, streaming=True)
    assert (batch.start, batch.end) == (Start(position="earliest"), Start(position="latest"))
    assert stream.start == Start(position="latest")
    assert batch.columns == COLUMNS
    assert batch.connection == Connection()
    assert batch.fail_on_data_loss
    assert batch.log_streams is None
    assert not batch.uncommitted


def test_names_are_taken_in_any_case() -> None:
    assert parse({"STARTINGOFFSETS": "7", "failondataloss": "FALSE"}, streaming=False).start == Start(position=7)


def test_what_options_say() -> None:
    options = parse(
        {
            "cluster": "a:1,b:2",
            "cid": "7",
            "secretFile": "/etc/secret",
            "topic": "orders",
            "logStreams": "3, 1",
            "columns": "payload, glsn",
            "startingOffsets": "5",
            "maxOffsetsPerTrigger": "10",
            "maxBytesPerTrigger": "20",
            "minPartitions": "4",
            "maxRecordsPerPartition": "100",
            "isolationLevel": "Read_Uncommitted",
            "failOnDataLoss": "false",
            "connectTimeoutMs": "1500",
            "pollTimeoutMs": "2500",
            "fetchOffset.numRetries": "0",
            "fetchOffset.retryIntervalMs": "10",
        },
        streaming=True,
    )
    assert options.connection == Connection("a:1,b:2", "orders", 7, "/etc/secret", 1.5, 2.5, 0, 0.01)
    assert options.log_streams == frozenset({1, 3})
    assert options.columns == ("payload", "glsn")
    assert (options.max_offsets, options.max_bytes, options.min_partitions, options.max_records) == (10, 20, 4, 100)
    assert not options.fail_on_data_loss
    assert options.uncommitted


@pytest.mark.parametrize(
    ("value", "microseconds"),
    [
        ("0", 0),
        ("1767225600000", 1_767_225_600_000_000),
        ("2026-01-01T00:00:00Z", 1_767_225_600_000_000),
        ("2026-01-01T01:00:00.000001+01:00", 1_767_225_600_000_001),
        ("2026-01-01", 1_767_225_600_000_000),
        ("1950-01-01", 0),
    ],
)
def test_a_time_is_milliseconds_as_for_kafka_or_as_people_write_it(value: str, microseconds: int) -> None:
    assert parse({"startingTimestamp": value}, streaming=False).start == Start(timestamp=microseconds)


def test_metadata_can_be_left_out() -> None:
    assert parse({"includeMetadata": "false"}, streaming=True).columns == ("payload",)
    assert parse({"includeMetadata": "true"}, streaming=True).columns == COLUMNS


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("startingOffsets", "first", "earliest, latest, or a position"),
        ("startingOffsets", "0", "earliest, latest, or a position"),
        ("startingOffsets", "-1", "earliest, latest, or a position"),
        ("startingOffsets", '{"t":{"0":1}}', "earliest, latest, or a position"),
        ("endingOffsets", str(1 << 63), "earliest, latest, or a position"),
        ("startingTimestamp", "yesterday", "milliseconds since 1970, or an ISO time"),
        ("endingTimestamp", "-5", "milliseconds since 1970, or an ISO time"),
        ("minPartitions", "0", "a whole number from 1 to"),
        ("minPartitions", "many", "a whole number from 1 to"),
        ("maxRecordsPerPartition", "1.5", "a whole number from 1 to"),
        ("failOnDataLoss", "yes", "true or false"),
        ("includeMetadata", "1", "true or false"),
        ("isolationLevel", "serializable", "read_committed or read_uncommitted"),
        ("logStreams", "1,two", "numbers of log streams"),
        ("logStreams", "0", "numbers of log streams"),
        ("columns", "glsn,key", "one or more of glsn, llsn, log_stream, timestamp, payload, each once"),
        ("columns", "glsn,glsn", "each once"),
        ("cid", "0", "a whole number from 1 to 4294967295"),
        ("topic", " ", "not an empty text"),
        ("connectTimeoutMs", "0", "a whole number from 1 to 86400000"),
        ("fetchOffset.numRetries", "-1", "a whole number from 0 to 1000"),
    ],
)
def test_an_error_names_the_option_the_value_and_what_is_allowed(name: str, value: str, allowed: str) -> None:
    with pytest.raises(BadOption) as raised:
        parse({name: value}, streaming=False)
    assert f"option {name} = {value!r}; allowed is" in str(raised.value)
    assert allowed in str(raised.value)


@pytest.mark.parametrize("name", ["maxOffsetsPerTrigger", "maxBytesPerTrigger"])
@pytest.mark.parametrize("value", ["0", "-1", "lots", ""])
def test_limits_of_micro_batches_are_numbers_above_zero(name: str, value: str) -> None:
    with pytest.raises(BadOption, match=name):
        parse({name: value}, streaming=True)


def test_an_unknown_name_is_refused_and_a_near_one_proposed() -> None:
    with pytest.raises(BadOption, match=r"no option startingOffset .*did you mean startingOffsets\?") as raised:
        parse({"startingOffset": "5"}, streaming=False)
    assert all(name in str(raised.value) for name in OPTIONS)
    with pytest.raises(BadOption, match=r"no option subscribe \(its value is 'log'\); did you mean topic\?"):
        parse({"subscribe": "log"}, streaming=True)
    with pytest.raises(BadOption, match=r"no option xyz \(its value is '1'\); there are cluster, "):
        parse({"xyz": "1"}, streaming=True)
    with pytest.raises(
        BadOption, match=r"no option pushdown \(its value is 'true'\): .* say startingOffsets and ending"
    ):
        parse({"pushdown": "true"}, streaming=False)


@pytest.mark.parametrize("name", ["endingOffsets", "endingTimestamp"])
def test_a_stream_refuses_what_is_for_batches(name: str) -> None:
    with pytest.raises(BadOption, match=f"{name} = '1' is for batch queries only"):
        parse({name: "1"}, streaming=True)


@pytest.mark.parametrize("name", ["maxOffsetsPerTrigger", "maxBytesPerTrigger"])
def test_a_batch_refuses_what_is_for_streams(name: str) -> None:
    with pytest.raises(BadOption, match=f"{name} = '1' is for streaming queries only"):
        parse({name: "1"}, streaming=False)


@pytest.mark.parametrize(
    "given",
    [
        {"startingOffsets": "1", "startingTimestamp": "1"},
        {"endingOffsets": "1", "endingTimestamp": "1"},
        {"columns": "glsn", "includeMetadata": "false"},
    ],
)
def test_options_that_contradict_each_other_are_refused(given: dict[str, str]) -> None:
    with pytest.raises(BadOption) as raised:
        parse(given, streaming=False)
    assert all(name in str(raised.value) for name in given)


def test_before_it_is_known_what_kind_of_query_it_is_values_are_checked_and_kinds_are_not() -> None:
    assert parse({"maxOffsetsPerTrigger": "5", "endingOffsets": "7"}, streaming=None).max_offsets == 5
    with pytest.raises(BadOption, match="maxOffsetsPerTrigger = '0'"):
        parse({"maxOffsetsPerTrigger": "0"}, streaming=None)
