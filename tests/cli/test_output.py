"""Tables, sizes and failures as they are printed."""

from __future__ import annotations

import os

import pytest

from tests.cli.shell import Shell
from tests.cli.test_append import read_terminal
from varlog import errors
from varlog.cli.failures import describe
from varlog.cli.output import Column, Output, size_of


def test_a_table_in_a_pipe_is_aligned_text(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    Output(json=False).table(("name", Column("count", right=True)), [("a", 1), ("longer", 1000)])
    assert capfdbinary.readouterr().out == b"name    count\na           1\nlonger   1000\n"


def test_a_table_on_a_terminal_is_drawn(shell: Shell, topic: str) -> None:
    master, slave = os.openpty()
    with shell.spawn("topic", "list", stdin=slave, stdout=slave, stderr=slave) as process:
        os.close(slave)
        shown = b""
        while chunk := read_terminal(master):
            shown += chunk
        assert process.wait() == 0
    os.close(master)
    assert topic in shown.decode()
    assert "───" in shown.decode()


def test_for_scripts_there_is_nothing_but_objects(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    output = Output(json=True)
    output.line("for people")
    output.note("for people")
    output.table(("name",), [("a",)])
    output.record({"key": "ü"})
    assert capfdbinary.readouterr() == ('{"key":"ü"}\n'.encode(), b"")


@pytest.mark.parametrize(
    ("count", "shown"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (123_456, "123 kB"), (1.5e9, "1.5 GB"), (2e18, "2000.0 PB")],
)
def test_sizes_are_for_people(count: float, shown: str) -> None:
    assert size_of(count) == shown


@pytest.mark.parametrize("kind", errors.VarlogError.registry.values(), ids=lambda kind: kind.__name__)
def test_every_error_is_one_line_with_its_name(kind: type[errors.VarlogError]) -> None:
    error = kind.__new__(kind)
    Exception.__init__(error, "what\nhappened")
    failure = describe(error)
    assert (failure.error, failure.code) == (kind.__name__, kind.code)
    assert failure.message.startswith("what happened")


def test_errors_of_the_operating_system_name_the_file() -> None:
    assert describe(FileNotFoundError(2, "No such file or directory", "there")).message == (
        "there: No such file or directory"
    )
    assert describe(OSError("odd")).message == "odd"
