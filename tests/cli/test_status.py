"""`varlog status`: of a cluster that is well, of one that is not, and of one that is watched."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path

from tests.cli.shell import Done, Shell, ended, line_of
from tests.cli.test_administration import assert_documented
from tests.cli.test_append import read_terminal
from varlog.cli import manual, manual_cluster
from varlog.cli.output import duration_of
from varlog.cli.status import CopyState, copy_sentence
from varlog.processes import LocalCluster


def test_a_cluster_that_is_well(shell: Shell, topic: str) -> None:
    shell.run("append", "--topic", topic, "x", "y")
    state = shell.run("status", "--json").record
    assert_documented(manual.STATUS, state)
    assert_documented(manual.STATUS, state["nodes"][0])
    assert_documented(manual.STATUS, state["topics"][0], manual_cluster.TOPIC_LIST)
    assert_documented(manual.STATUS, state["streams"][0], manual_cluster.STREAM_LIST)
    assert (state["healthy"], state["problems"], state["manager_answers"]) == (True, [], True)
    assert [(node["id"], node["answers"], node["state"]) for node in state["nodes"]] == [
        (snid, True, "ok") for snid in (1, 2, 3)
    ]
    (known,) = [known for known in state["topics"] if known["name"] == topic]
    assert known["high_watermark"] == 2
    (stream,) = [stream for stream in state["streams"] if stream["topic"] == topic]
    assert (stream["status"], stream["behind"], stream["waiting"]) == ("RUNNING", 0, 0)
    assert (stream["wanted"], len(stream["replicas"]), stream["copies"]) == (3, 3, [])
    told = shell.run("status").text
    assert told.startswith("all is well; ")
    assert all(len(line) <= 80 for line in told.splitlines() if not line.startswith("the manager: "))


def test_a_cluster_that_is_not(bare: Shell, tmp_path: Path) -> None:
    """A node and the manager are killed: it is told who does not answer, while appends go on."""

    async def live() -> tuple[Done, Done, Done, Done, Done]:
        async with LocalCluster(tmp_path / "varlog-data") as cluster:
            called = asyncio.to_thread
            assert (await called(bare.run, "append", "x")).code == 0
            await cluster.nodes[1].kill()
            appended = await called(bare.run, "append", "--json", "y")
            degraded = await called(bare.run, "status", "--json")
            listed = await called(bare.run, "node", "list", "--json")
            cluster.vms.send(signal.SIGKILL)
            await cluster.vms.ended()
            told = await called(bare.run, "status")
            refused = await called(bare.run, "topic", "add", "t", "--timeout", "0.5")
            return appended, degraded, listed, told, refused

    appended, degraded, listed, told, refused = asyncio.run(live())
    assert appended.record["replicas"] == 2
    state = degraded.record
    assert not state["healthy"]
    assert [node["answers"] for node in state["nodes"]] == [True, False, True]
    assert state["nodes"][1]["state"] == "does not answer"
    assert [node["state"] for node in listed.records] == ["ok", "does not answer", "ok"]
    assert any(problem.startswith("node 2: has not answered for ") for problem in state["problems"])
    assert any(problem.startswith("log stream 1: has 2 of 3 replicas") for problem in state["problems"])
    assert state["doing"]
    assert told.text.startswith("not all is well; ")
    assert "! manager: cannot be asked " in told.text
    assert told.text.endswith("the manager does not answer: varlog doctor\n")
    assert refused.code == 1
    assert refused.err.startswith("varlog: Unreachable: ")


def test_without_a_terminal_it_is_printed_again_and_again(shell: Shell) -> None:
    with shell.spawn("status", "--watch", "0.05", "--json") as process:
        for _ in range(3):
            assert json.loads(line_of(process))["version"] > 0
        process.send_signal(signal.SIGINT)
        assert ended(process)[0] == 130
    with shell.spawn("status", "--watch", "0.05") as process:
        lines = [line_of(process)]
        while sum(line.startswith("all is well") for line in lines) < 2:
            lines.append(line_of(process))
        process.send_signal(signal.SIGINT)
        assert ended(process)[0] == 130


def test_on_a_terminal_it_fills_the_screen_and_gives_it_back(shell: Shell) -> None:
    enter, leave, hide, show = b"\x1b[?1049h", b"\x1b[?1049l", b"\x1b[?25l", b"\x1b[?25h"
    master, slave = os.openpty()
    with shell.spawn("status", "--watch", "0.1", stdin=slave, stdout=slave, stderr=slave) as process:
        os.close(slave)
        shown = b""
        while shown.count(b"all is well") < 3:
            shown += read_terminal(master)
        assert enter in shown
        assert hide in shown
        assert leave not in shown
        process.send_signal(signal.SIGINT)
        while more := read_terminal(master):
            shown += more
        assert process.wait() == 130
    os.close(master)
    assert shown.rindex(leave) > shown.rindex(enter)
    assert shown.rindex(show) > shown.rindex(hide)
    assert b"RUNNING" in shown
    assert b"Traceback" not in shown


def test_a_watch_that_makes_no_sense_is_refused(shell: Shell) -> None:
    for wrong in ("-1", "1e9"):
        assert shell.run("status", f"--watch={wrong}").code == 2


def test_a_cluster_that_goes_away_while_it_is_watched_is_said_to_be_gone(bare: Shell, tmp_path: Path) -> None:
    async def live() -> list[dict[str, object]]:
        async with LocalCluster(tmp_path / "varlog-data", nodes=1) as cluster:
            with bare.spawn("status", "--watch", "0.05", "--json", "--timeout", "1", cwd=tmp_path) as process:
                seen = [json.loads(await asyncio.to_thread(line_of, process))]
                await cluster.vmr.kill()
                while "error" not in seen[-1]:
                    seen.append(json.loads(await asyncio.to_thread(line_of, process)))
                await cluster.vmr.start()
                while "error" in seen[-1]:
                    seen.append(json.loads(await asyncio.to_thread(line_of, process)))
                return [*seen, {"alive": process.poll() is None}]

    bare.cluster = tmp_path / "varlog-data"
    *_, last, alive = asyncio.run(live())
    assert "nodes" in last
    assert alive["alive"]


def test_what_is_copied_is_told_with_how_far_it_is() -> None:
    assert copy_sentence(CopyState(2, 1, 5, 20)) == "node 2 copies from node 1: 5 of 20 entries (25 %)"
    assert copy_sentence(CopyState(2, 1, 0, 0)).endswith("(100 %)")


def test_times_are_told_as_people_tell_them() -> None:
    times = (0.04, 3.21, 42.0, 60.0, 3599.0, 7500.0, 273_600.0)
    assert [duration_of(seconds) for seconds in times] == [
        "0.0 s", "3.2 s", "42 s", "1 min", "59 min", "2 h 5 min", "3 d 4 h"
    ]  # fmt: skip
