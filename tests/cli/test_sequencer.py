"""`varlog sequencer`, end to end."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cli.shell import Shell


@pytest.fixture
def topic(shell: Shell) -> Iterator[str]:
    """One that a sequencer orders, with an entry in it."""
    assert shell.run("topic", "add", "moves", "--ordering", "sequencer").code == 0
    assert shell.run("append", "e4", "--topic", "moves").code == 0
    yield "moves"
    assert shell.run("topic", "remove", "moves", "--yes").code == 0


def test_S1_peek_tells_what_was_given_out(shell: Shell, topic: str) -> None:
    before = shell.run("sequencer", "peek", "--topic", topic, "--json").record["glsn"]
    shell.run("append", "e5", "--topic", topic)
    after = shell.run("sequencer", "peek", "--topic", topic)
    assert f"up to GLSN {before + 1} were given out" in after.text


def test_S5_a_position_that_was_not_given_out_is_not_filled(shell: Shell, topic: str) -> None:
    beyond = shell.run("sequencer", "peek", "--topic", topic, "--json").record["glsn"] + 1
    refused = shell.run("sequencer", "fill", str(beyond), "--topic", topic)
    assert refused.code != 0
    assert "given out" in refused.err
    assert shell.run("append", "still there", "--topic", topic, "--json").record["glsn"] == beyond


def test_S5_an_entry_is_not_filled_over(shell: Shell, topic: str) -> None:
    refused = shell.run("sequencer", "fill", "1", "--topic", topic)
    assert refused.code != 0
    assert shell.run("read", "1", "--topic", topic).text.strip() == "e4"


def test_S6_seal_begins_the_next_epoch_and_appends_go_on(shell: Shell, topic: str) -> None:
    first = shell.run("sequencer", "seal", "--topic", topic, "--json").record["epoch"]
    assert shell.run("sequencer", "seal", "--topic", topic, "--json").record["epoch"] > first
    assert shell.run("append", "after it", "--topic", topic).code == 0


def test_S2_the_list_says_who_orders_what(shell: Shell, topic: str) -> None:
    (listed,) = shell.run("sequencer", "list", "--json").records
    assert topic in listed["topics"]
    assert listed["sequencer"] in shell.run("sequencer", "list").text


@pytest.mark.parametrize("command", [("peek",), ("seal",), ("fill", "1")])
def test_topics_of_the_other_ordering_are_refused(shell: Shell, command: tuple[str, ...]) -> None:
    refused = shell.run("sequencer", *command)
    assert refused.code != 0
    assert "sequencer orders" in refused.err


def test_rule24_lines_are_cut_where_blocks_end(shell: Shell) -> None:
    assert shell.run("topic", "add", "small", "--ordering", "sequencer", "--block", "8").code == 0
    lines = b"".join(b"%d\n" % number for number in range(100))
    told = shell.feed(lines, "append", "--topic", "small").text
    assert "appended 100 entries" in told
    read = [record["data"] for record in shell.run("tail", "--topic", "small", "-n", "100", "--json").records]
    assert read == [str(number) for number in range(100)]
    assert shell.run("topic", "remove", "small", "--yes").code == 0
