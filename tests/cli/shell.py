"""What the tests of the command line share: a running `varlog dev`, and two ways to call commands.

`Shell.run` calls a command in the test's own process, which is quick; `Shell.spawn` starts it as a process, for what
needs one: pipes, signals, terminals.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from varlog.cli import main

SECONDS: Final = 60.0
COMMAND: Final = (sys.executable, "-m", "varlog")
_BOUND: Final = """
import sys
from varlog.cli import main
from varlog.daemon.child import end_with
end_with({parent})
sys.exit(main())
"""
"""The same, and it ends with the test's own process, however that ends."""


class Done(NamedTuple):
    """How a command ended."""

    code: int
    out: bytes
    err: str

    @property
    def text(self) -> str:
        """What it printed, for commands that succeed."""
        assert self.code == 0, self.err
        return self.out.decode()

    @property
    def records(self) -> list[Any]:
        """Its JSON objects."""
        return [json.loads(line) for line in self.text.splitlines()]

    @property
    def record(self) -> Any:
        (record,) = self.records
        return record

    @property
    def failure(self) -> Any:
        """The JSON object on standard error."""
        assert self.code != 0
        assert self.out == b""
        return json.loads(self.err)


class Shell:
    """Calls commands on one cluster."""

    def __init__(self, cluster: Path, captured: pytest.CaptureFixture[bytes]) -> None:
        self.cluster = cluster
        self._captured = captured

    def run(self, *arguments: str) -> Done:
        """Call a command in this process."""
        self._captured.readouterr()
        code = main(list(arguments))
        out, err = self._captured.readouterr()
        return Done(code, out, err.decode())

    def feed(self, given: bytes, *arguments: str) -> Done:
        """Call a command with that on its standard input."""
        done = subprocess.run(
            [*COMMAND, *arguments], input=given, capture_output=True, check=False, env=self.environment, timeout=SECONDS
        )
        return Done(done.returncode, done.stdout, done.stderr.decode())

    @contextmanager
    def spawn(self, *arguments: str, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
        """Start a command with pipes at all ends; it is killed at last if it has not ended."""
        pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE) | options
        with subprocess.Popen([*_bound_command(), *arguments], env=self.environment, **pipes) as process:
            try:
                yield process
            finally:
                process.kill()

    @property
    def environment(self) -> dict[str, str]:
        return os.environ | {"VARLOG_CLUSTER": str(self.cluster)}


def _bound_command() -> tuple[str, ...]:
    return sys.executable, "-c", _BOUND.format(parent=os.getpid())


def line_of(process: subprocess.Popen[bytes]) -> str:
    """The next line that a process prints."""
    assert process.stdout is not None
    return process.stdout.readline().decode().rstrip("\n")


def ended(process: subprocess.Popen[bytes]) -> tuple[int, str]:
    """The exit code of a process, and what it said on standard error."""
    assert process.stderr is not None
    code = process.wait(SECONDS)
    return code, process.stderr.read().decode()


class Dev:
    """`varlog dev` as a process."""

    def __init__(self, path: Path, *arguments: str) -> None:
        self.path = path
        self._process = subprocess.Popen(
            [*_bound_command(), "dev", "--data", str(path), "--port", "0", "--json", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        line = line_of(self._process)
        self.about: dict[str, Any] = json.loads(line) if line else {}
        """What it said when it was ready."""

    def stop(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, str]:
        """Tell it to stop; its exit code and standard error."""
        self._process.send_signal(number)
        try:
            return ended(self._process)
        finally:
            self._process.kill()
            self._process.communicate()
