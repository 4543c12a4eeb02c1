"""`varlog bench`, end to end: the figures are somebody else's matter, their shape is not."""

from __future__ import annotations

import asyncio
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

import varlog
from tests.cli.shell import Dev, Shell, ended
from tests.cli.test_administration import assert_documented
from varlog.cli import manual
from varlog.cli.bench import own_topic
from varlog.cli.options import Cluster

LONG = ("--seconds", "1000", "--in-flight", "1")
QUICK = ("--seconds", "0.2", "--size", "50", "--batch", "10", "--in-flight", "4")


def test_it_measures_and_leaves_nothing_behind(shell: Shell) -> None:
    before = shell.run("topic", "list", "--json").records
    result = shell.run("bench", *QUICK, "--streams", "2", "--json").record
    assert_documented(manual.BENCH, result)
    assert_documented(manual.BENCH, result["append"])
    assert (result["size"], result["batch"], result["in_flight"], result["streams"]) == (50, 10, 4, 2)
    append, read = result["append"], result["read"]
    assert append["entries"] == append["batches"] * 10 == read["entries"] > 0
    assert 0 < append["p50_ms"] <= append["p99_ms"] <= append["max_ms"]
    assert shell.run("topic", "list", "--json").records == before


def test_it_shows_a_table(shell: Shell) -> None:
    told = shell.run("bench", *QUICK).text.splitlines()
    assert told[0] == "50 bytes an entry, 10 to a batch, 4 in flight, log streams: 1"
    assert told[2].split()[:3] == ["entries", "seconds", "entries/s"]
    assert [line.split()[0] for line in told[3:]] == ["append", "read"]


def topics_of(shell: Shell) -> list[str]:
    return [topic["name"] for topic in shell.run("topic", "list", "--json").records]


def topic_made_by(process: subprocess.Popen[bytes], shell: Shell) -> str:
    """Wait for it."""
    while True:
        assert process.poll() is None
        for name in topics_of(shell):
            if name.startswith("bench-"):
                return name


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_told_to_stop_it_leaves_nothing_behind(shell: Shell, number: signal.Signals) -> None:
    before = topics_of(shell)
    with shell.spawn("bench", *LONG) as process:
        topic_made_by(process, shell)
        process.send_signal(number)
        assert ended(process) == (130, "")
    assert topics_of(shell) == before


def test_a_script_that_has_it_in_the_background_can_stop_it(shell: Shell) -> None:
    """A shell has what is in the background ignore Ctrl-C."""
    before, handler = topics_of(shell), signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with shell.spawn("bench", *LONG) as process:
            topic_made_by(process, shell)
            process.send_signal(signal.SIGTERM)
            assert ended(process) == (130, "")
    finally:
        signal.signal(signal.SIGINT, handler)
    assert topics_of(shell) == before


def test_told_to_stop_while_its_topic_is_made_it_leaves_nothing_behind(shell: Shell) -> None:
    async def interrupted() -> list[str]:
        async with varlog.admin(shell.cluster) as admin:

            async def topics() -> list[str]:
                return [topic.name for topic in (await admin.metadata()).topics if topic.name.startswith("bench-")]

            async def measure() -> None:
                async with own_topic(Cluster(cluster=str(shell.cluster)), streams=30):
                    raise AssertionError("it was to be interrupted before that")

            measuring = asyncio.ensure_future(measure())
            while not await topics():
                assert not measuring.done()
            measuring.cancel()
            with suppress(asyncio.CancelledError):
                await measuring
            return await topics()

    assert asyncio.run(interrupted()) == []


def test_a_topic_that_it_cannot_remove_is_named(bare: Shell, tmp_path: Path) -> None:
    dev = Dev(tmp_path / "varlog-data")
    with bare.spawn("bench", *LONG, "--timeout", "1", "--cluster", str(dev.path)) as process:
        name = topic_made_by(process, bare)
        dev.stop(signal.SIGKILL)
        code, told = ended(process)
    assert code == 1
    assert f"topic {name!r} may be left behind; varlog topic remove {name} removes it\n" in told


def test_what_the_cluster_refuses_leaves_nothing_to_remove(shell: Shell) -> None:
    done = shell.run("bench", *QUICK, "--streams", "100000")
    assert done.code == 2
    assert done.err.startswith("varlog: InvalidArgument: ")
    assert "left behind" not in done.err
