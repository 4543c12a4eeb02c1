"""A driver that is killed with SIGKILL, and the job run again: the archive is exact. Two of the steps; `make soak` goes
through all of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.pipeline.archives import check, wanted
from tests.pipeline.killing import COUNT, ROOT, SECONDS, Kill, check_killed, kill
from tests.spark.topics import Topic
from varlog.pipeline.archive import archive

pytestmark = pytest.mark.timeout(300)  # each starts a Spark of its own, or two


@pytest.fixture
def payloads(topic: Topic) -> list[bytes]:
    topic.write_numbers(COUNT)
    return topic.payloads(1, COUNT + 1)


def test_P1_killed_between_files_and_commit(
    spark: SparkSession, topic: Topic, payloads: list[bytes], tmp_path: Path
) -> None:
    uri = tmp_path / "it"
    kill(topic.path, topic.name, uri, Kill.WRITTEN)
    check_killed(topic, uri, Kill.WRITTEN, payloads)
    done = archive(topic.connection, wanted(uri, trim=True), lambda: spark)
    assert (done.positions, done.log_first) == (COUNT - 1000, COUNT + 1)
    check(topic, uri, payloads)


def test_P1_killed_between_commit_and_trim(topic: Topic, payloads: list[bytes], tmp_path: Path) -> None:
    """This one is gone on with by the command itself."""
    uri = tmp_path / "it"
    kill(topic.path, topic.name, uri, Kill.FIRST_COMMITTED)
    check_killed(topic, uri, Kill.FIRST_COMMITTED, payloads)
    with topic.log() as log:
        assert log.first() == 1
    command = [sys.executable, "-m", "varlog", "pipeline", "archive", str(uri), "--topic", topic.name]
    options = ["--trim", "--rows-per-file", "250", "--master", "local[2]", "--json"]
    ended = subprocess.run(
        [*command, *options],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        env=os.environ | {"VARLOG_CLUSTER": str(topic.path)},
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    *batches, summary = map(json.loads, ended.stdout.splitlines())
    assert [(batch["event"], batch["begin"], batch["end"]) for batch in batches] == [
        ("committed", 1001, 2001),
        ("committed", 2001, COUNT + 1),
    ]
    assert summary["event"] == "summary"
    assert (summary["positions"], summary["log_first"]) == (COUNT - 1000, COUNT + 1)
    check(topic, uri, payloads)
