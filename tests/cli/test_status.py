"""`varlog status`: of a cluster that is well, and of one that is not."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

from tests.cli.shell import Done, Shell
from tests.cli.test_administration import assert_documented
from varlog.cli import manual
from varlog.processes import LocalCluster


def test_a_cluster_that_is_well(shell: Shell, topic: str) -> None:
    shell.run("append", "--topic", topic, "x", "y")
    state = shell.run("status", "--json").record
    assert_documented(manual.STATUS, state)
    assert_documented(manual.STATUS, state["nodes"][0])
    assert_documented(manual.STATUS, state["topics"][0], manual.TOPIC_LIST)
    assert_documented(manual.STATUS, state["streams"][0], manual.STREAM_LIST)
    assert (state["healthy"], state["problems"], state["doing"], state["manager_answers"]) == (True, [], [], True)
    assert [(node["id"], node["answers"]) for node in state["nodes"]] == [(1, True), (2, True), (3, True)]
    (known,) = [known for known in state["topics"] if known["name"] == topic]
    assert known["high_watermark"] == 2
    (stream,) = [stream for stream in state["streams"] if stream["topic"] == topic]
    assert (stream["status"], stream["behind"], stream["waiting"]) == ("RUNNING", 0, 0)
    told = shell.run("status").text
    assert told.startswith("all is well; ")
    assert told.endswith("the manager has nothing to do\n")
    assert all(len(line) <= 80 for line in told.splitlines())


def test_a_cluster_that_is_not(bare: Shell, tmp_path: Path) -> None:
    """A node and the manager are killed: it is told who does not answer, and an append says why it cannot be."""

    async def live() -> tuple[Done, Done, Done, Done]:
        async with LocalCluster(tmp_path / "varlog-data") as cluster:
            called = asyncio.to_thread
            assert (await called(bare.run, "append", "x")).code == 0
            await cluster.nodes[1].kill()
            failed = await called(bare.run, "append", "--json", "--timeout", "2", "y")
            degraded = await called(bare.run, "status", "--json")
            cluster.vms.send(signal.SIGKILL)
            await cluster.vms.ended()
            told = await called(bare.run, "status")
            refused = await called(bare.run, "topic", "add", "t", "--timeout", "0.5")
            return failed, degraded, told, refused

    failed, degraded, told, refused = asyncio.run(live())
    failure = failed.failure
    assert failed.code == 1
    assert "storage node 2" in failure["message"]
    state = degraded.record
    assert not state["healthy"]
    assert [node["answers"] for node in state["nodes"]] == [True, False, True]
    assert any("storage node 2 does not answer" in problem for problem in state["problems"])
    assert "log stream 1 takes no appends while node 2 is away" in state["problems"]
    assert told.text.startswith("not all is well; ")
    assert "the manager waits for nodes: 2" in told.text
    assert "the manager cannot be reached" in told.text
    assert refused.code == 1
    assert refused.err.startswith("varlog: Unreachable: ")
