"""`varlog pipeline materialize`: the table of latest values is what a fold over the log gives, wherever the job was
stopped, killed, or begun anew."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import ClassVar

import pytest
from pyspark.sql import SparkSession

from tests.cli.shell import Shell
from tests.pipeline.materializing import COUNT, KEYS, PER_BATCH, Kill, kill, latest, table_of, wanted, write
from tests.spark.topics import Topic
from varlog import errors
from varlog.cli.output import Output
from varlog.pipeline import materialize as job
from varlog.pipeline.materialize import Materializer, Step, Steps, json_path, materialize
from varlog.pipeline.materialize_table import CHECKPOINT
from varlog.spark.connections import pin

SETTING = "spark.sql.streaming.stateStore.providerClass"

pytestmark = pytest.mark.timeout(300)  # one of them starts a Spark of its own


def test_P1_the_table_has_the_latest_value_of_every_key(
    spark: SparkSession, topic: Topic, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Micro-batch by micro-batch; then, without its checkpoint, all of it again, by a job that follows."""
    uri = tmp_path / "it"
    before = spark.conf.get(SETTING)
    entries = write(topic)
    done = materialize(topic.connection, wanted(uri), lambda: spark)
    assert (done.entries, done.ignored, done.batches, done.end) == (COUNT, COUNT // 100, 3, COUNT + 1)
    assert (done.keys, done.files) == (KEYS, 2)
    assert table_of(uri) == latest(entries)
    assert spark.conf.get(SETTING) == before, "the session is as it was"

    version = done.version
    shutil.rmtree(uri / CHECKPOINT)
    again = wanted(uri, positions_per_batch=10 * COUNT, follow=True, every=0.1)
    following = Materializer(pin(topic.connection), again, lambda: spark, Output(json=True), Ends())
    Ends.job = following
    following.run()
    done = following.summary
    assert (done.entries, done.batches, done.version) == (COUNT, 1, version), "the table had all of it"
    assert table_of(uri) == latest(entries)
    told = [json.loads(line) for line in capfd.readouterr().out.splitlines() if line.startswith("{")]
    assert [(event["event"], event["begin"], event["end"], event["keys"]) for event in told] == [
        ("committed", 1, COUNT + 1, KEYS)
    ]


class Ends(Steps):
    """Stops a job that follows after its first micro-batch."""

    job: ClassVar[Materializer]

    def reached(self, step: Step) -> None:
        if step is Step.COMMITTED:
            self.job.stop()


def test_P1_killed_when_the_table_has_what_spark_does_not_know(
    spark: SparkSession, topic: Topic, tmp_path: Path
) -> None:
    uri = tmp_path / "it"
    entries = write(topic)
    kill(topic.path, topic.name, uri, Kill.COMMITTED)
    assert table_of(uri) == latest(entries[: 2 * PER_BATCH])
    entries += write(topic, 100, seed=2)
    done = materialize(topic.connection, wanted(uri), lambda: spark)
    assert (done.batches, done.end) == (3, COUNT + 101), "the second one again, and then the rest"
    assert table_of(uri) == latest(entries)


@pytest.fixture
def shell(topic: Topic, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> Shell:
    monkeypatch.setenv("VARLOG_CLUSTER", str(topic.path))
    return Shell(topic.path, capfdbinary)


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("x",), 2, "--key"),
        (("x", "--key", "a..b"), 2, "allowed are names with dots"),
        (("x", "--key", "a", "--value", "b[*]"), 2, "--value 'b[*]'"),
        (("x", "--key", "a", "--parts", "0"), 2, "parts"),
        (("x", "--key", "a", "--parts", "257"), 2, "allowed are 1 to 256"),
        (("x", "--key", "a", "--topic", "nobody's"), 1, "there is no topic"),
        (("x", "--key", "a", "--cluster", "nowhere"), 2, "nowhere"),
    ],
)
def test_how_it_ends_when_it_cannot_begin(
    arguments: tuple[str, ...], code: int, says: str, shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ended = shell.run("pipeline", "materialize", *arguments, "--json")
    assert ended.code == code, ended.err
    assert says in ended.failure["message"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("id", "$['id']"),
        ("$.customer.id", "$['customer']['id']"),
        ("items[0].the sku[12]", "$['items'][0]['the sku'][12]"),
        ("über.ns:a-b", "$['über']['ns:a-b']"),
    ],
)
def test_paths(path: str, meant: str) -> None:
    assert json_path("--key", path) == meant


@pytest.mark.parametrize("path", ["", ".", "a.", ".a", "a[", "a[x]", "a[-1]", "[0]", "a'b", "a[*].b", "*", "$", " a"])
def test_paths_that_mean_nothing(path: str) -> None:
    with pytest.raises(errors.InvalidArgument, match=r"customer\.id"):
        json_path("--key", path)


def test_what_it_says(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    summary = job.Summary("orders", "/tables/it", 1201, 50, 2048, 2, 3, 3, 1200, 12, 90, 0, 2.0)
    job.tell(Output(json=False), summary)
    said = capfdbinary.readouterr().out.decode().splitlines()
    assert said == [
        "read 1,200 entries of 'orders', which changed 90 keys, in 2.0 s, 600 entries/s",
        "12 entries have no key, and were passed over",
        "the table at /tables/it has 50 keys (2 files, 2.0 kB), version 3",
    ]
    job.tell(Output(json=True), summary)
    assert json.loads(capfdbinary.readouterr().out)["event"] == "summary"


def test_as_a_program_for_spark_submit(shell: Shell, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert shell.cluster.exists()
    assert job.main(["--", "x", "--key", "a..b"]) == 2
    assert "customer.id" in capfdbinary.readouterr().err.decode()
