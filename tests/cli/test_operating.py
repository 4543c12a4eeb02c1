"""`varlog node drain`, `undrain`, `replace` and `varlog stream seal`, `unseal`, `sync`, `move`, `declare-lost`."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.shell import Dev, Done, Shell
from tests.cli.test_administration import assert_documented
from tests.cli.test_append import read_terminal
from varlog.cli import manual_cluster
from varlog.processes import LocalCluster


@pytest.fixture
def four(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> Iterator[Shell]:
    """A shell at a cluster of four nodes, of which one has no replica of the one log stream; it holds 50 entries."""
    cluster = Dev(tmp_path / "varlog-data", "--nodes", "4")
    monkeypatch.setenv("VARLOG_CLUSTER", str(cluster.path))
    shell = Shell(cluster.path, capfdbinary)
    assert shell.run("append", *(f"e{number}" for number in range(1, 51))).code == 0
    yield shell
    assert cluster.stop() == (0, "")


def stream_of(shell: Shell, lsid: int = 1) -> Any:
    (stream,) = [record for record in shell.run("stream", "list", "--json").records if record["id"] == lsid]
    return stream


def spare_of(shell: Shell) -> int:
    """The node that has no replica."""
    return ({1, 2, 3, 4} - set(stream_of(shell)["replicas"])).pop()


def assert_whole(shell: Shell) -> None:
    assert shell.run("subscribe", "--to", "50", "--format", "raw").text.split() == [f"e{n}" for n in range(1, 51)]


def on_terminal(shell: Shell, *arguments: str) -> tuple[int, str]:
    """The exit code of a command that is run on a terminal, and all that is shown there."""
    master, slave = os.openpty()
    with shell.spawn(*arguments, stdin=slave, stdout=slave, stderr=slave) as process:
        os.close(slave)
        shown = b""
        while more := read_terminal(master):
            shown += more
        code = process.wait()
    os.close(master)
    return code, shown.decode()


def test_a_node_is_drained_and_taken_back(four: Shell) -> None:
    leaver, spare = stream_of(four)["replicas"][0], spare_of(four)
    done = four.run("node", "drain", str(leaver), "--json").record
    assert_documented(manual_cluster.NODE_DRAIN, done)
    assert done == {"node": leaver, "draining": True, "replicas": 0}
    assert leaver not in stream_of(four)["replicas"]
    assert spare in stream_of(four)["replicas"]
    assert_whole(four)
    (listed,) = [node for node in four.run("node", "list", "--json").records if node["id"] == leaver]
    assert_documented(manual_cluster.NODE_LIST, listed)
    assert (listed["draining"], listed["replicas"]) == (True, 0)
    assert four.run("node", "list").text.count("  drained\n") == 1
    described = four.run("node", "describe", str(leaver), "--json").record
    assert_documented(manual_cluster.NODE_DESCRIBE, described)
    assert (described["draining"], described["identified"]) == (True, True)
    assert ", being drained\n" in four.run("node", "describe", str(leaver)).text
    assert f"varlog node remove {leaver}" in four.run("node", "drain", str(leaver)).text, "to ask twice is no mistake"

    undone = four.run("node", "undrain", str(leaver), "--json").record
    assert_documented(manual_cluster.NODE_UNDRAIN, undone)
    assert undone == {"node": leaver, "draining": False, "replicas": 0}
    assert "drained\n" not in four.run("node", "list").text
    assert four.run("node", "drain", str(leaver)).code == 0
    assert four.run("node", "remove", str(leaver)).code == 0


def test_a_drain_is_shown_on_a_terminal(four: Shell) -> None:
    leaver = stream_of(four)["replicas"][0]
    code, shown = on_terminal(four, "node", "drain", str(leaver))
    assert code == 0
    assert f"draining node {leaver}" in shown
    assert "━" in shown, "a bar"
    assert f"storage node {leaver} is drained; take it out with: varlog node remove {leaver}" in shown


def test_who_stops_waiting_does_not_stop_the_manager(four: Shell) -> None:
    leaver = stream_of(four)["replicas"][0]
    begun = four.run("node", "drain", str(leaver), "--no-wait", "--json").record
    assert (begun["node"], begun["draining"]) == (leaver, True)
    assert four.run("node", "drain", str(leaver)).code == 0
    assert leaver not in stream_of(four)["replicas"]


def test_a_node_takes_the_place_of_another(four: Shell) -> None:
    leaver, spare = str(stream_of(four)["replicas"][1]), str(spare_of(four))
    done = four.run("node", "replace", leaver, "--by", spare, "--json").record
    assert_documented(manual_cluster.NODE_REPLACE, done)
    assert done == {"node": int(leaver), "by": int(spare), "replicas": 0}
    assert spare in map(str, stream_of(four)["replicas"])
    assert_whole(four)
    assert f"varlog node remove {leaver}" in four.run("node", "replace", leaver, "--by", spare).text
    assert four.run("node", "remove", leaver).code == 0


def test_a_replacement_that_cannot_be_is_refused(four: Shell) -> None:
    first, second, _ = map(str, stream_of(four)["replicas"])
    for arguments, error, code in (
        ((first, "--by", second), "Conflict", 1),
        ((first, "--by", first), "InvalidArgument", 2),
        ((first, "--by", "9"), "UnknownNode", 1),
        (("9", "--by", first), "UnknownNode", 1),
    ):
        done = four.run("node", "replace", *arguments, "--json")
        assert (done.code, done.failure["error"], done.failure["happened"]) == (code, error, False)
    assert not any(node["draining"] for node in four.run("node", "list", "--json").records)


def test_a_replica_is_moved(four: Shell) -> None:
    leaver, spare = str(stream_of(four)["replicas"][0]), str(spare_of(four))
    done = four.run("stream", "move", "1", "--from", leaver, "--to", spare, "--json").record
    assert_documented(manual_cluster.STREAM_MOVE, done)
    assert set(done["replicas"]) == {1, 2, 3, 4} - {int(leaver)}
    assert (done["joining"], done["leaving"]) == (0, 0)
    assert_whole(four)
    assert four.run("stream", "move", "1", "--from", spare, "--to", spare, "--json").failure["error"] == "Conflict"
    assert four.run("stream", "move", "1", "--to", leaver, "--json").failure["error"] == "Conflict"
    assert four.run("stream", "move", "9", "--to", leaver, "--json").failure["error"] == "UnknownLogStream"
    told = four.run("stream", "move", "1", "--cancel").text
    assert told == f"log stream 1 is on nodes {', '.join(map(str, stream_of(four)['replicas']))}\n"
    for nothing in ((), ("--cancel", "--to", "4")):
        assert four.run("stream", "move", "1", *nothing).code == 2


def test_a_log_stream_is_sealed_and_unsealed(shell: Shell, topic: str) -> None:
    shell.run("append", "--topic", topic, "x")
    (stream,) = shell.run("stream", "list", "--topic", topic, "--json").records
    lsid = str(stream["id"])
    sealed = shell.run("stream", "seal", lsid, "--json").record
    assert_documented(manual_cluster.STREAM_SEAL, sealed)
    assert sealed == {"log_stream": int(lsid), "status": "SEALED", "held": True, "last_glsn": 1}
    assert shell.run("stream", "seal", lsid).text.startswith(f"log stream {lsid} is sealed at GLSN 1 and stays so")
    assert "kept sealed" in shell.run("stream", "list", "--topic", topic).text
    (listed,) = shell.run("stream", "list", "--topic", topic, "--json").records
    assert_documented(manual_cluster.STREAM_LIST, listed)
    assert listed["held"]
    assert shell.run("append", "--topic", topic, "--timeout", "0.5", "y").code == 1
    assert shell.run("read", "1", "--topic", topic).text == "x\n"
    running = shell.run("stream", "unseal", lsid, "--json").record
    assert_documented(manual_cluster.STREAM_UNSEAL, running)
    assert (running["status"], running["held"]) == ("RUNNING", False)
    assert shell.run("append", "--topic", topic, "y").code == 0
    code, out, err = shell.run("stream", "unseal", lsid)
    assert (code, out) == (1, b"")
    assert err == f"varlog: Conflict: log stream {lsid} was not sealed by an operator: it is RUNNING\n"
    for verb in ("seal", "unseal", "declare-lost"):
        assert shell.run("stream", verb, "999", "--json").failure["error"] == "UnknownLogStream"


def test_a_replica_is_synchronised(shell: Shell, topic: str) -> None:
    (stream,) = shell.run("stream", "list", "--topic", topic, "--json").records
    lsid = str(stream["id"])
    done = shell.run("stream", "sync", lsid, "--to", "2", "--json").record
    assert_documented(manual_cluster.STREAM_SYNC, done)
    assert done == {"log_stream": int(lsid), "node": 2, "percent": 100}
    assert shell.run("stream", "sync", lsid, "--to", "2").text.endswith("lacks nothing\n")
    to_itself = shell.run("stream", "sync", lsid, "--to", "2", "--from", "2", "--json")
    assert (to_itself.code, to_itself.failure["error"]) == (2, "InvalidArgument")
    assert shell.run("stream", "sync", lsid, "--to", "9", "--json").failure["error"] == "UnknownNode"


def test_a_drain_below_min_replicas_is_refused(shell: Shell) -> None:
    name = "two-of-three"
    assert shell.run("topic", "add", name, "--replicas", "3", "--min-replicas", "3").code == 0
    code, out, err = shell.run("node", "drain", "1")
    assert (code, out) == (1, b"")
    assert err.startswith("varlog: Conflict: log stream ")
    assert "needs 3 replicas" in err
    shell.run("topic", "remove", name)
    assert shell.run("node", "drain", "9", "--json").failure["error"] == "UnknownNode"
    assert shell.run("node", "undrain", "9", "--json").failure["error"] == "UnknownNode"


def test_what_nobody_has_any_more_is_declared_lost_after_a_yes(bare: Shell, tmp_path: Path) -> None:
    """The only replica of a topic is on a node that is killed."""

    async def live() -> dict[str, Done]:
        async with LocalCluster(tmp_path / "varlog-data") as cluster:

            async def call(*arguments: str) -> Done:
                return await asyncio.to_thread(bare.run, *arguments)

            done = {"added": await call("topic", "add", "scratch", "--replicas", "1", "--json")}
            await call("append", "--topic", "scratch", "a", "b", "c")
            (stream,) = (await call("stream", "list", "--topic", "scratch", "--json")).records
            lsid, only = str(stream["id"]), stream["replicas"][0]
            done["runs"] = await call("stream", "declare-lost", lsid, "--yes", "--json")
            await cluster.nodes[only - 1].kill()
            while (await call("stream", "list", "--topic", "scratch", "--json")).record["status"] != "SEALED":
                pass
            done["silent"] = await call("stream", "declare-lost", lsid, "--yes", "--json")
            gone = ("--gone", str(only))
            done["unsure"] = await call("stream", "declare-lost", lsid, *gone)
            done["before"] = await call("stream", "list", "--topic", "scratch", "--json")
            done["lost"] = await call("stream", "declare-lost", lsid, *gone, "--yes", "--json")
            done["listed"] = await call("stream", "list", "--topic", "scratch")
            done["read"] = await call("read", "2", "--topic", "scratch", "--json")
            return done

    done = asyncio.run(live())
    assert "seal it first" in done["runs"].failure["message"]
    assert "does not answer, and may have what is missing" in done["silent"].failure["message"]
    assert done["unsure"].code == 2
    assert "GLSN 1 to 3 would be lost for good; say --yes if that is meant" in done["unsure"].err
    assert done["before"].record["lost_end"] == 0
    assert_documented(manual_cluster.STREAM_DECLARE_LOST, done["lost"].record)
    assert (done["lost"].record["lost_begin"], done["lost"].record["lost_end"]) == (1, 4)
    assert "GLSN 1 to 3 lost" in done["listed"].text
    assert done["read"].failure["error"] == "Lost"


def test_an_interrupted_wait_says_that_it_goes_on(four: Shell) -> None:
    """A log stream that is kept sealed cannot leave the node, so the drain waits."""
    leaver = stream_of(four)["replicas"][0]
    four.run("stream", "seal", "1")
    master, slave = os.openpty()
    with four.spawn("node", "drain", str(leaver), stdin=slave, stdout=slave, stderr=slave) as process:
        os.close(slave)
        shown = b""
        while b"log stream 1" not in shown:
            shown += read_terminal(master)
        process.send_signal(signal.SIGINT)
        while more := read_terminal(master):
            shown += more
        assert process.wait() == 130
    os.close(master)
    assert f"draining node {leaver}: the manager goes on with it" in shown.decode()
    late = four.run("node", "drain", str(leaver), "--timeout", "0.5", "--json").failure
    assert late["error"] == "DeadlineExceeded"
    assert "log stream 1 is not done yet; the manager goes on with it" in late["message"]
    four.run("stream", "unseal", "1")
    assert four.run("node", "drain", str(leaver)).code == 0
