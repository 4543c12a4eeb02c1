"""How far a job is: a bar on a terminal, lines elsewhere, nothing for scripts."""

from __future__ import annotations

import io
import sys
import threading
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from varlog.cli.output import Output
from varlog.pipeline import progress

SECONDS = 60.0


class Terminal(io.StringIO):
    """Standard error that somebody looks at."""

    def isatty(self) -> bool:
        return True


def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    with progress.shown(Output(json=False), "archiving 'log'", 10) as show:
        show(5, "2 files")
    assert "archiving 'log'" in terminal.getvalue()
    assert "50%" in terminal.getvalue()
    assert "2 files" in terminal.getvalue()


def test_lines_elsewhere(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with progress.shown(Output(json=False), "archiving 'log'", 10) as show:
        show(1, "")
    assert capsys.readouterr() == ("", ""), "not at every step"
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    with progress.shown(Output(json=False), "archiving 'log'", 10) as show:
        for done in (0, 5, 10):
            show(done, f"{done} files")
    said = capsys.readouterr()
    assert said.out == ""
    first, second, third = said.err.splitlines()
    assert first == "archiving 'log': 0%, 0 files"
    assert second.startswith("archiving 'log': 50%, 0.0 s left, 5 files")
    assert third == "archiving 'log': 100%, 10 files"


def test_nothing_for_scripts(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    with progress.shown(Output(json=True), "archiving 'log'", 10) as show:
        show(5, "")
    with progress.shown(Output(json=False), "nothing to do", 0) as show:
        show(5, "")
    assert capsys.readouterr() == ("", "")


def test_tasks_are_told_of_while_they_run(spark: SparkSession, tmp_path: Path) -> None:
    """The second task ends when the first one has been told of."""
    told: list[int] = []
    go_on = tmp_path / "go on"

    def tell(done: int) -> None:
        told.append(done)
        go_on.touch()

    name = str(go_on)

    def work(number: int) -> int:
        if number:
            while not Path(name).exists():
                threading.Event().wait(0.01)
        return number

    with progress.tasks_told(spark, tell):
        assert spark.sparkContext.parallelize(range(2), 2).map(work).collect() == [0, 1]
    assert told[0] == 1
    assert spark.sparkContext.getLocalProperty("spark.jobGroup.id") is None
