"""`varlog bench`, end to end: the figures are somebody else's matter, their shape is not."""

from __future__ import annotations

from tests.cli.shell import Shell
from tests.cli.test_administration import assert_documented
from varlog.cli import manual

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
