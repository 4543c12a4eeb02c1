"""`varlog topic`, `stream`, `node` and `secret`, end to end."""

from __future__ import annotations

import os
import pty
import shlex
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.cli.shell import COMMAND, Dev, Shell
from tests.cli.test_append import read_terminal
from varlog.cli import manual, manual_cluster
from varlog.cli.manual import Page


def assert_documented(page: Page, record: Mapping[str, Any], *others: Page) -> None:
    """Scripts rely on the keys, so each of them is told of."""
    told = " ".join(known.examples for known in (page, *others))
    assert not [key for key in record if key not in told]


def test_a_topic_is_made_listed_described_and_removed(shell: Shell) -> None:
    made = shell.run("topic", "add", "orders", "--streams", "2", "--replicas", "2", "--json").record
    assert_documented(manual_cluster.TOPIC_ADD, made)
    assert made["topic"] == "orders"
    (listed,) = [record for record in shell.run("topic", "list", "--json").records if record["name"] == "orders"]
    assert_documented(manual_cluster.TOPIC_LIST, listed)
    expected = {"id": made["id"], "name": "orders", "first": 1, "high_watermark": 0, "log_streams": 2}
    expected |= {"replication_factor": 2, "min_replicas": 2, "archive": ""}
    assert listed == expected | {"ordering": "commit", "epoch": 0, "sequencer": "", "start": 0, "block": 0}
    described = shell.run("topic", "describe", "orders", "--json").record
    assert_documented(manual_cluster.TOPIC_DESCRIBE, described, manual_cluster.TOPIC_LIST)
    assert [stream["status"] for stream in described["streams"]] == ["RUNNING", "RUNNING"]
    assert "orders" in shell.run("topic", "list").text
    assert "RUNNING" in shell.run("topic", "describe", "orders").text

    again = shell.run("topic", "add", "orders", "--json").failure
    assert (again["error"], again["happened"]) == ("AlreadyExists", False)
    assert shell.run("topic", "remove", "orders", "--json").record == {"topic": "orders", "removed": True}
    assert shell.run("topic", "describe", "orders", "--json").failure["error"] == "UnknownTopic"
    assert shell.run("topic", "remove", "orders", "--json").failure["error"] == "UnknownTopic"


def test_a_topic_may_begin_at_a_later_position(shell: Shell) -> None:
    assert shell.run("topic", "add", "later", "--first", "1001").code == 0
    described = shell.run("topic", "describe", "later", "--json").record
    assert (described["first"], described["high_watermark"]) == (1001, 1000)
    assert shell.run("append", "--topic", "later", "x", "--json").record["glsn"] == 1001
    assert shell.run("topic", "remove", "later").code == 0
    assert shell.run("topic", "add", "wrong", "--first", "0").code == 2


def test_a_topic_that_a_sequencer_orders_is_made_listed_described_and_removed(shell: Shell) -> None:
    made = shell.run("topic", "add", "moves", "--ordering", "sequencer", "--streams", "2", "--block", "3", "--json")
    assert made.record["topic"] == "moves"
    for batch in ("abc", "def", "ghi"):
        assert shell.run("append", "--topic", "moves", *batch).code == 0
    (listed,) = [record for record in shell.run("topic", "list", "--json").records if record["name"] == "moves"]
    assert_documented(manual_cluster.TOPIC_LIST, listed)
    assert (listed["ordering"], listed["epoch"], listed["block"], listed["start"]) == ("sequencer", 1, 3, 1)
    assert (listed["high_watermark"], listed["min_replicas"]) == (9, 1)
    assert listed["sequencer"]
    described = shell.run("topic", "describe", "moves", "--json").record
    assert_documented(manual_cluster.TOPIC_DESCRIBE, described["streams"][0], manual_cluster.STREAM_LIST)
    for stream in described["streams"]:
        assert (stream["status"], stream["epoch"]) == ("CHAINED", 1)
        assert (stream["head"], stream["tail"]) == (stream["replicas"][0], stream["replicas"][-1])
    assert {stream["last_glsn"] for stream in described["streams"]} == {6, 9}
    listed_streams = shell.run("stream", "list", "--topic", "moves", "--json").records
    assert {stream["last_glsn"] for stream in listed_streams} == {6, 9}
    alone = [shell.run("stream", "describe", str(stream["id"]), "--json").record for stream in listed_streams]
    assert {stream["last_glsn"] for stream in alone} == {6, 9}
    told = shell.run("topic", "describe", "moves").text
    assert f"topic moves: sequencer at {listed['sequencer']}, epoch 1, from position 1 on" in told
    assert "3 at a time" in told
    assert " > ".join(map(str, described["streams"][0]["replicas"])) in told

    state = shell.run("status", "--json").record
    (sequencer,) = state["sequencers"]
    assert_documented(manual.STATUS, sequencer)
    assert sequencer == {"address": listed["sequencer"], "topics": ["moves"]}
    assert {stream["last_glsn"] for stream in state["streams"] if stream["topic"] == "moves"} == {6, 9}
    told = shell.run("status").text
    assert "topic moves: sequencer at " in told
    assert all(len(line) <= 80 for line in told.splitlines() if not line.startswith("the manager: "))
    assert shell.run("topic", "remove", "moves", "--json").record == {"topic": "moves", "removed": True}


def test_an_ordering_that_is_none_and_blocks_of_a_topic_without_any_are_refused(shell: Shell) -> None:
    assert shell.run("topic", "add", "wrong", "--ordering", "alphabetical").code == 2
    refused = shell.run("topic", "add", "wrong", "--block", "3", "--json").failure
    assert (refused["error"], refused["happened"]) == ("InvalidArgument", False)
    assert "wrong" not in {record["name"] for record in shell.run("topic", "list", "--json").records}


def test_a_topic_that_is_made_takes_appends_at_once(shell: Shell, topic: str) -> None:
    assert shell.run("append", "--topic", topic, "x").code == 0


def test_on_a_terminal_nothing_is_destroyed_without_a_yes(shell: Shell, topic: str) -> None:
    for answer, code in ((b"\n", 1), (b"n\n", 1), (b"y\n", 0)):
        master, slave = os.openpty()
        with shell.spawn("topic", "remove", topic, stdin=slave, stdout=slave, stderr=slave) as process:
            os.close(slave)
            shown = b""
            while b"[y/N]" not in shown:
                shown += read_terminal(master)
            assert f"Delete topic {topic!r}".encode() in shown
            os.write(master, answer)
            while read_terminal(master):
                pass
            assert process.wait() == code
        os.close(master)
    assert shell.run("topic", "describe", topic).code == 1


@pytest.mark.parametrize("elsewhere", ["", ">/dev/null 2>&1"])
@pytest.mark.parametrize(("typed", "code"), [(b"n\n", 1), (b"\x04", 1), (b"\x03", 130)])
def test_who_is_at_a_terminal_is_asked_there_and_may_leave(
    shell: Shell, topic: str, elsewhere: str, typed: bytes, code: int
) -> None:
    """Whatever else goes elsewhere; with a no, with Ctrl-D, or with Ctrl-C, which is typed once."""
    process, master = pty.fork()
    if not process:
        command = f"exec {shlex.join(COMMAND)} topic remove {topic} {elsewhere}"
        os.execve("/bin/sh", ["sh", "-c", command], shell.environment)
    shown = b""
    while b"[y/N]" not in shown:
        shown += os.read(master, 65536)
    os.write(master, typed)
    while read_terminal(master):
        pass
    _, status = os.waitpid(process, 0)
    os.close(master)
    assert os.waitstatus_to_exitcode(status) == code
    assert shell.run("topic", "describe", topic).code == 0


def test_a_log_stream_is_added_listed_described_and_removed(shell: Shell, topic: str) -> None:
    nodes = [argument for snid in ("3", "1", "2") for argument in ("--node", snid)]
    added = shell.run("stream", "add", "--topic", topic, *nodes, "--json").record
    assert_documented(manual_cluster.STREAM_ADD, added)
    lsid = str(added["log_stream"])
    listed = shell.run("stream", "list", "--topic", topic, "--json").records
    assert len(listed) == 2
    assert_documented(manual_cluster.STREAM_LIST, listed[1])
    assert (listed[1]["topic"], listed[1]["replicas"]) == (topic, [3, 1, 2])
    assert len(shell.run("stream", "list", "--json").records) > len(listed)
    described = shell.run("stream", "describe", lsid, "--json").record
    assert_documented(manual_cluster.STREAM_DESCRIBE, described, manual_cluster.STREAM_LIST)
    assert_documented(manual_cluster.STREAM_DESCRIBE, described["replica_states"][0])
    assert [replica["node"] for replica in described["replica_states"]] == [3, 1, 2]
    assert all(replica["healthy"] and replica["state"] == "RUNNING" for replica in described["replica_states"])
    assert "RUNNING" in shell.run("stream", "describe", lsid).text

    assert shell.run("stream", "remove", lsid, "--json").record == {"log_stream": int(lsid), "removed": True}
    assert shell.run("stream", "describe", lsid, "--json").failure["error"] == "UnknownLogStream"
    assert shell.run("stream", "list", "--topic", "no-such", "--json").failure["error"] == "UnknownTopic"


def test_a_log_stream_with_entries_is_not_removed(shell: Shell, topic: str) -> None:
    shell.run("append", "--topic", topic, "x")
    (stream,) = shell.run("stream", "list", "--topic", topic, "--json").records
    code, _, err = shell.run("stream", "remove", str(stream["id"]))
    assert code == 1
    assert "trim" in err


@pytest.mark.parametrize(
    "command",
    [
        ("topic", "add", "bad\udcff"),
        ("stream", "list", "--topic", "bad\udcff"),
        ("append", "--topic", "bad\udcff", "x"),
        ("append", "--transaction", "bad\udcff", "x"),
        ("txn", "forget", "bad\udcff"),
    ],
)
def test_a_name_that_is_not_utf8_is_a_mistake_of_the_command_line(shell: Shell, command: tuple[str, ...]) -> None:
    done = shell.run(*command, "--json")
    assert (done.code, done.failure["error"]) == (2, "InvalidArgument")
    assert r"'bad\udcff' is not UTF-8" in done.failure["message"]


@pytest.mark.parametrize(("replicas", "code", "told"), [("8", 2, "1 to 7 replicas"), ("5", 1, "varlog node add")])
def test_more_replicas_than_there_can_be_are_refused(shell: Shell, replicas: str, code: int, told: str) -> None:
    done = shell.run("topic", "add", "wide", "--replicas", replicas)
    assert (done.code, told in done.err) == (code, True)


def test_what_was_given_up_while_it_was_made_is_not_shown(shell: Shell, topic: str) -> None:
    twice = shell.run("stream", "add", "--topic", topic, "--node", "1", "--node", "1", "--node", "2")
    assert twice.code == 2
    assert len(shell.run("stream", "list", "--topic", topic, "--json").records) == 1
    assert shell.run("topic", "describe", topic, "--json").record["log_streams"] == 1


def test_nodes_are_listed_and_described(shell: Shell, dev: Dev) -> None:
    listed = shell.run("node", "list", "--json").records
    assert_documented(manual_cluster.NODE_LIST, listed[0])
    assert [node["id"] for node in listed] == [1, 2, 3]
    assert str(dev.path) in listed[0]["volumes"][0]
    assert {node["state"] for node in listed} == {"ok"}
    described = shell.run("node", "describe", "2", "--json").record
    assert_documented(manual_cluster.NODE_DESCRIBE, described)
    assert (described["id"], described["address"]) == (2, listed[1]["address"])
    assert described["volumes"][0]["free_bytes"] > 0
    assert shell.run("node", "list").text.count("127.0.0.1:") == 3
    assert "RUNNING" in shell.run("node", "describe", "2").text
    assert shell.run("node", "describe", "9", "--json").failure["error"] == "UnknownNode"


def test_a_node_in_use_is_not_removed_and_nobody_is_not_added(shell: Shell) -> None:
    assert shell.run("node", "remove", "1", "--json").failure["error"] == "Conflict"
    assert shell.run("node", "remove", "9", "--json").failure["error"] == "UnknownNode"
    code, _, err = shell.run("node", "add", "127.0.0.1:1")
    assert code == 1, "the cluster itself can be reached"
    assert "127.0.0.1:1" in err
    (again,) = [node for node in shell.run("node", "list", "--json").records if node["id"] == 1]
    added = shell.run("node", "add", again["address"], "--json").record
    assert_documented(manual_cluster.NODE_ADD, added)
    assert added == {"node": 1, "address": again["address"]}


def test_a_secret_is_made_once_and_for_its_owner_alone(bare: Shell, tmp_path: Path) -> None:
    path = tmp_path / "secret"
    made = bare.run("secret", "new", str(path), "--json").record
    assert_documented(manual.SECRET_NEW, made)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    content = path.read_bytes()
    code, out, err = bare.run("secret", "new", str(path))
    assert (code, out) == (1, b"")
    assert err.startswith("varlog: AlreadyExists: ")
    assert path.read_bytes() == content
    assert content.strip().decode() not in bare.run("secret", "new", str(tmp_path / "other")).text


def test_a_secret_is_replaced_in_three_steps(bare: Shell, tmp_path: Path) -> None:
    path = str(tmp_path / "secret")
    bare.run("secret", "new", path)
    shown = bare.run("secret", "show", path, "--json").record
    assert_documented(manual.SECRET_SHOW, shown)
    old = shown["proves"]
    added = bare.run("secret", "add", path, "--json").record
    assert_documented(manual.SECRET_ADD, added)
    new = added["believes"][1]
    assert (added["proves"], added["believes"]) == (old, [old, new])
    promoted = bare.run("secret", "promote", path, "--json").record
    assert_documented(manual.SECRET_PROMOTE, promoted)
    assert (promoted["proves"], promoted["believes"]) == (new, [new, old])
    retired = bare.run("secret", "retire", path, "--json").record
    assert_documented(manual.SECRET_RETIRE, retired)
    assert (retired["proves"], retired["believes"]) == (new, [new])
    again = bare.run("secret", "promote", path)
    assert again.code == 1
    assert again.err.startswith("varlog: Conflict: ")
    digits = (tmp_path / "secret").read_text().strip()
    assert digits not in "".join(bare.run("secret", step, path).text for step in ("show", "add", "promote", "retire"))
