"""One cluster for all tests of the command line, and a topic of its own for each test that wants one."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from tests.cli.shell import Dev, Shell

_numbers = count(1)


@pytest.fixture(scope="session")
def dev(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dev]:
    cluster = Dev(tmp_path_factory.mktemp("dev") / "varlog-data")
    yield cluster
    assert cluster.stop() == (0, "")


@pytest.fixture
def shell(dev: Dev, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> Shell:
    monkeypatch.setenv("VARLOG_CLUSTER", str(dev.path))
    return Shell(dev.path, capfdbinary)


@pytest.fixture
def topic(shell: Shell) -> Iterator[str]:
    name = f"topic-{next(_numbers)}"
    assert shell.run("topic", "add", name).code == 0
    yield name
    shell.run("topic", "remove", name)


@pytest.fixture
def bare(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> Shell:
    """A shell in an empty directory, where no cluster is."""
    monkeypatch.delenv("VARLOG_CLUSTER", raising=False)
    monkeypatch.chdir(tmp_path)
    return Shell(tmp_path, capfdbinary)
