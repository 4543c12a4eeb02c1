"""`varlog pipeline archive` as a command: what it says, and how it ends. Here it has nothing to do for Spark; with
Spark it is run by `test_archive_kills`, and by `spark-submit` in tests/spark/test_cluster.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.shell import Shell
from tests.spark.topics import Topic
from varlog.archive import Archive, write_range
from varlog.oneprocess import CID
from varlog.pipeline import archive as job
from varlog.spark.task import read_range


@pytest.fixture
def shell(topic: Topic, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> Shell:
    monkeypatch.setenv("VARLOG_CLUSTER", str(topic.path))
    return Shell(topic.path, capfdbinary)


@pytest.fixture
def place(topic: Topic, tmp_path: Path) -> str:
    """An archive of all that the topic has."""
    tail = topic.write([b"one", b"two"], [b"three"])
    uri = str(tmp_path / "it")
    with topic.log() as log:
        made = Archive.create(uri, cid=CID, topic=topic.name, tpid=log.topic.tpid, first=1)
    made.commit([write_range(uri, 1, tail + 1, read_range(topic.connection, 1, tail + 1))], 1)
    return uri


def test_what_it_says(shell: Shell, topic: Topic, place: str) -> None:
    done = shell.run("pipeline", "archive", place, "--topic", topic.name)
    assert done.err == ""
    first, second = done.text.splitlines()
    assert first.startswith(f"archived 0 positions of '{topic.name}' (0 rows, 0 files, 0 B) in ")
    assert second == f"the archive at {place} has 1 to 3"


def test_what_it_says_to_scripts(shell: Shell, topic: Topic, place: str) -> None:
    done = shell.run("pipeline", "archive", place, "--topic", topic.name, "--attach", "--trim", "--keep", "1", "--json")
    summary = done.record
    assert {key: summary[key] for key in ("event", "topic", "archive", "begin", "end", "positions", "log_first")} == {
        "event": "summary",
        "topic": topic.name,
        "archive": place,
        "begin": 1,
        "end": 4,
        "positions": 0,
        "log_first": 3,
    }
    assert topic.payloads(1, 4) == [b"one", b"two", b"three"]


def test_as_a_program_for_spark_submit(
    topic: Topic, place: str, shell: Shell, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert shell.cluster == topic.path
    for given in ([place, "--topic", topic.name], ["--", place, "--topic", topic.name]):
        assert job.main(given) == 0
        assert f"the archive at {place} has 1 to 3" in capfdbinary.readouterr().out.decode()


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        ((), 2, "requires an argument"),
        (("x", "--rows-per-file", "0"), 2, "rows-per-file"),
        (("x", "--keep", "-1"), 2, "keep"),
        (("x", "--every", "0"), 2, "every"),
        (("x", "--until", "0"), 2, "until"),
        (
            (
                "x",
                "--follow-up",
            ),
            2,
            "--follow-up",
        ),
        (("gopher://x", "--topic", "TOPIC"), 2, "use a path, or a URI"),
        (("a%41b", "--topic", "TOPIC"), 2, "no percent sign"),
        (("x", "--topic", "nobody's"), 1, "there is no topic"),
        (("x", "--topic", "TOPIC", "--trim"), 2, "has no archive attached"),
        (("x", "--cluster", "127.0.0.1:1", "--secret-file", "SECRET", "--timeout", "0.5"), 3, "127.0.0.1:1"),
        (("x", "--cluster", "nowhere"), 2, "nowhere"),
    ],
)
def test_how_it_ends_when_it_cannot_begin(
    arguments: tuple[str, ...],
    code: int,
    says: str,
    shell: Shell,
    topic: Topic,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    stand_ins = {"TOPIC": topic.name, "SECRET": str(topic.path / "secret")}
    given = [stand_ins.get(argument, argument) for argument in arguments]
    ended = shell.run("pipeline", "archive", *given, "--json")
    assert ended.code == code, ended.err
    assert says in ended.failure["message"]
    assert list(tmp_path.iterdir()) == []


def test_another_topic_s_archive(shell: Shell, topic: Topic, tmp_path: Path) -> None:
    Archive.create(str(tmp_path / "it"), cid=CID, topic="another", tpid=12345, first=1)
    ended = shell.run("pipeline", "archive", str(tmp_path / "it"), "--topic", topic.name, "--json")
    assert (ended.code, ended.failure["error"]) == (1, "WrongIdentity")


def test_help(shell: Shell) -> None:
    said = shell.run("pipeline", "archive", "--help").text
    for option in ("--follow", "--trim", "--keep", "--attach", "--detached", "--until", "--rows-per-file", "--master"):
        assert option in said
