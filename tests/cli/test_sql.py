"""`varlog sql`, end to end. All but the last tests share one Spark session, which the command finds running."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.cli.shell import COMMAND, Dev, Shell
from varlog.cli import manual

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ENTRIES = 50
SPARK_SECONDS = 100.0
"""For one that has to start Spark."""


@pytest.fixture
def filled(shell: Shell, topic: str) -> str:
    """A topic with the entries e1 to e50, and one that is no text."""
    assert shell.run("append", "--topic", topic, *(f"e{number}" for number in range(1, ENTRIES + 1))).code == 0
    assert shell.feed(b"\xff\x00", "append", "--topic", topic, "--file", "/dev/stdin").code == 0
    return topic


pytestmark = pytest.mark.usefixtures("spark")


def test_P1_entries_are_rows(shell: Shell, filled: str) -> None:
    told = shell.run("sql", "--topic", filled, "select glsn, payload from log where glsn between 9 and 11").text
    assert told == "glsn  payload\n   9  e9\n  10  e10\n  11  e11\n"
    (row,) = shell.run("sql", "--topic", filled, "--json", "select * from log where glsn = 51").records
    assert all(column in manual.SQL.about for column in row)
    assert (row["glsn"], row["llsn"], row["payload"]) == (51, 51, "0xff00")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", row["timestamp"])


def test_a_topic_is_a_table_of_its_name(shell: Shell, filled: str, topic: str) -> None:
    query = f"select count(*) as n, max(glsn) as last from `{filled}`"
    assert shell.run("sql", "--csv", query).text == "n,last\n51,51\n"
    joined = f"select count(*) as n from log join `{topic}` using (glsn)"
    assert shell.run("sql", "--topic", filled, "--json", joined).record == {"n": 51}
    names = [row["viewName"] for row in shell.run("sql", "--json", "show views").records]
    assert filled in names
    assert "log" in names


def test_no_more_is_read_than_the_bounds_of_a_query_allow(shell: Shell, filled: str, spark: SparkSession) -> None:
    """The views that it leaves in a session that is not its own tell what that was."""
    assert shell.run("sql", "--topic", filled, "--csv", "select glsn from log where glsn > 51").text == "glsn\n"
    few = "select payload from log where glsn in (3, 5)"
    assert shell.run("sql", "--topic", filled, "--csv", few).text == "payload\ne3\ne5\n"
    assert [row.glsn for row in spark.sql("select glsn from log").collect()] == [3, 4, 5]
    assert shell.run("sql", "--topic", filled, "--csv", "select count(*) as n from log").text == "n\n51\n"
    assert spark.sql("select * from log").count() == 51


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("select glsn from log where glsn <= 2 union all select glsn from log where glsn > 50", [1, 2, 51]),
        ("select count(*) from (select * from log where glsn <= 10) cross join log", [510]),
        ("select count(*) from log where glsn <= 10 and exists (select * from log where glsn = 51)", [10]),
        ("select (select max(glsn) from log) - count(*) from log where glsn = 7", [50]),
        (
            "with a as (select * from log) select count(*) from a where glsn < 3 union all select count(*) from a",
            [2, 51],
        ),
        ("select count(*) from log where timestamp <= now()", [51]),
        ("select count(*) from log where timestamp > now() - interval 1 hour and timestamp < now()", [51]),
    ],
)
def test_a_query_may_name_a_topic_several_times(shell: Shell, filled: str, query: str, expected: list[int]) -> None:
    told = shell.run("sql", "--topic", filled, "--csv", query).text
    assert [int(line) for line in told.splitlines()[1:]] == expected


def test_no_more_rows_than_the_limit(shell: Shell, filled: str) -> None:
    code, out, err = shell.run("sql", "--topic", filled, "--limit", "3", "select glsn from log")
    assert (code, out.decode().splitlines()) == (0, ["glsn", "   1", "   2", "   3"])
    assert err == "only the first 3 rows are shown; --limit shows more\n"
    assert shell.run("sql", "--topic", filled, "--limit", "51", "select glsn from log").err == ""
    assert shell.run("sql", "--limit", "0", "select 1").code == 2


@pytest.mark.parametrize(
    ("query", "complaint"),
    [
        ("selct 1", r"BadQuery: .*selct"),
        ("select nonsense from log", r"BadQuery: .*nonsense.*glsn"),
        ("select * from nowhere", r"BadQuery: there is no topic 'nowhere'; there are: .*log"),
        ("select 1 / 0", r"BadQuery: .*[Dd]ivision by zero"),
        ("", r"InvalidArgument: there is no query"),
    ],
)
def test_a_bad_query_is_told_in_one_line(shell: Shell, query: str, complaint: str) -> None:
    code, out, err = shell.run("sql", query)
    assert (code, out) == (2, b"")
    assert len(err.splitlines()) == 1
    assert re.match(f"varlog: {complaint}", err)
    assert "JVM" not in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    "statement",
    [
        "insert into `{topic}` select * from `{topic}`",
        "with a as (select payload from `{topic}`) insert into `{topic}` select * from a",
        "from `{topic}` insert into `{topic}` select payload where glsn > 50",
        "from log insert into `{topic}` select payload insert into `{topic}` select payload",
        "insert into identifier('`{topic}' || '`') select payload from log",
        "execute immediate 'insert into `{topic}` select payload from log'",
        "explain execute immediate 'insert into `{topic}` select payload from log'",
        "begin insert into `{topic}` select payload from log; end",
        "insert overwrite directory '{path}' using csv select glsn from log",
        "create table made as select 1",
        "create temporary view made as select 1",
        "create temporary view identifier('ma' || 'de') as select 1",
        "drop view log",
        "drop table `{topic}`",
        "delete from log",
        "cache table log",
        "set spark.sql.ansi.enabled = false",
        "call made()",
    ],
)
def test_what_is_no_query_is_refused_and_not_done(
    shell: Shell, filled: str, statement: str, tmp_path: Path, spark: SparkSession
) -> None:
    path = tmp_path / "written"
    code, out, err = shell.run("sql", "--topic", filled, statement.format(topic=filled, path=path))
    assert (code, out) == (2, b"")
    assert re.fullmatch(r"varlog: BadQuery: this is no query, .* nothing of it was done\n", err)
    assert shell.run("topic", "describe", filled, "--json").record["high_watermark"] == ENTRIES + 1
    assert not path.exists()
    assert not spark.catalog.tableExists("made")


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("show columns in log", "glsn"),
        ("describe log", "timestamp"),
        ("explain select * from log where glsn = 1", "Physical Plan"),
        ("values (1), (2)", "col1"),
        ("table log", "e50"),
        ("from log |> where glsn = 7 |> select payload", "e7"),
        ("select payload from identifier('log' || '') where glsn = 7", "e7"),
    ],
)
def test_whatever_only_asks_is_answered(shell: Shell, filled: str, query: str, told: str) -> None:
    assert told in shell.run("sql", "--topic", filled, query).text


def test_a_topic_that_is_not_there(shell: Shell) -> None:
    assert shell.run("sql", "--topic", "nowhere", "select * from log").err.startswith("varlog: UnknownTopic: ")
    assert shell.run("sql", "--csv", "--json", "select 1").failure["error"] == "InvalidArgument"


def test_without_spark_it_says_what_to_install(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    code, _, err = shell.run("sql", "select 1")
    assert code == 1
    assert "pip install 'varlog[spark]'" in err


def test_a_cluster_that_is_not_there(dev: Dev, bare: Shell) -> None:
    assert bare.run("sql", "select 1").code == 2
    assert bare.run("sql", "--cluster", "127.0.0.1:1", "--secret-file", str(dev.path / "secret"), "select 1").code == 3


def test_as_a_command_on_a_terminal_it_draws_a_table_says_no_more_and_leaves_nothing(
    shell: Shell, filled: str, tmp_path: Path
) -> None:
    directory = tmp_path / "a path with spaces"
    temporary = directory / "temporary"
    temporary.mkdir(parents=True)
    master, slave = os.openpty()
    with subprocess.Popen(
        [*COMMAND, "sql", "--topic", filled],
        stdin=subprocess.PIPE,
        stdout=slave,
        stderr=slave,
        cwd=directory,
        env={**shell.environment, "TMPDIR": str(temporary), "PYTHONWARNINGS": "default"},
    ) as process:
        os.close(slave)
        assert process.stdin is not None
        process.stdin.write(b"select log_stream, count(*) as entries\nfrom log group by log_stream;\n")
        process.stdin.close()
        told = b""
        while True:
            try:
                told += os.read(master, 65536)
            except OSError:  # the other end is closed
                break
        assert process.wait(SPARK_SECONDS) == 0
    os.close(master)
    text = re.sub(r"\x1b\[[?\d;]*[A-Za-z]", "", told.decode())
    words = re.findall(r"[\w.]+", text.replace("Spark is at work", ""))
    assert (words[:2], words[3:6], words[7:]) == (["log_stream", "entries"], ["51", "1", "row"], ["s"]), text
    assert "Spark is at work" in text
    assert [path.name for path in directory.iterdir()] == ["temporary"]
    assert not list(temporary.glob("varlog-*"))
