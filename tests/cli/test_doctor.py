"""`varlog doctor`: of a cluster that is well, and of ones in which somebody was killed."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

from tests.cli.shell import Done, Shell
from tests.cli.test_administration import assert_documented
from tests.cli.test_append import read_terminal
from tests.cluster.waiting import until
from varlog.cli import manual
from varlog.cli.doctor import grouped
from varlog.core.findings import Severity, finding
from varlog.processes import LocalCluster


def test_a_cluster_that_is_well(shell: Shell) -> None:
    report = shell.run("doctor", "--json").record
    assert_documented(manual.DOCTOR, report)
    assert (report["healthy"], report["findings"]) == (True, [])
    assert (report["nodes"], report["nodes_answering"]) == (3, 3)
    assert report["streams"] == report["streams_running"]
    told = shell.run("doctor").text
    assert told.startswith("all is well\n3 of 3 storage nodes answer, ")


def test_what_somebody_asked_for_is_noted_and_is_no_fault(shell: Shell, topic: str) -> None:
    (stream,) = shell.run("stream", "list", "--topic", topic, "--json").records
    assert shell.run("stream", "seal", str(stream["id"])).code == 0
    found = records(shell.run("doctor", "--json"))
    assert found["stream-held"]["severity"] == "urgent", "nobody can append to its topic"
    assert shell.run("stream", "add", "--topic", topic).code == 0
    done = shell.run("doctor", "--json")
    assert done.code == 0
    (found,) = done.record["findings"]
    assert_documented(manual.DOCTOR, found)
    assert (found["kind"], found["severity"]) == ("stream-held", "note")
    assert found["subject"] == f"log stream {stream['id']}"
    told = shell.run("doctor").text
    assert told.startswith("all is well; 1 note\n")
    assert f"you:     to let it run again: varlog stream unseal {stream['id']}\n" in told


def records(done: Done) -> dict[str, Any]:
    """Its findings, by their kinds."""
    assert done.code == 4, done.err
    return {found["kind"]: found for found in json.loads(done.out)["findings"]}


def test_a_dead_node_a_dead_manager_and_a_dead_metadata_repository(bare: Shell, tmp_path: Path) -> None:
    """Each is told, with what is done about it and by whom, down to the point where nobody can be asked any more."""

    async def live() -> list[Done]:
        async with LocalCluster(tmp_path / "varlog-data") as cluster:
            told = []
            await cluster.nodes[1].kill()
            assert (await asyncio.to_thread(bare.run, "append", "x")).code == 0, "it goes on without"
            told.append(await asyncio.to_thread(bare.run, "doctor", "--json"))
            await cluster.vms.kill()
            told.append(await asyncio.to_thread(bare.run, "doctor", "--json"))
            told.append(await asyncio.to_thread(bare.run, "doctor"))
            await cluster.vmr.kill()
            told.append(await asyncio.to_thread(bare.run, "doctor", "--json", "--timeout", "1"))
            return told

    managed, unmanaged, for_people, blind = asyncio.run(live())
    found = records(managed)
    assert found["node-silent"]["subject"] == "node 2"
    assert "Connection refused" in found["node-silent"]["what"], "as it is met from here"
    assert found["stream-short"]["doing"]
    found = records(unmanaged)
    assert "nothing is repaired" in found["manager-unreachable"]["what"]
    assert found["node-silent"]["subject"] == "node 2"
    assert not any(one["doing"] for one in found.values()), "nobody does anything"
    assert not any(one["seconds"] for one in found.values()), "or has seen since when it is so"
    assert found["node-silent"]["what"].startswith("does not answer: ")
    assert for_people.code == 4
    assert b"degraded: manager\n  what:    cannot be asked (" in for_people.out
    (found_blind,) = records(blind).values()
    assert (found_blind["kind"], found_blind["severity"]) == ("metadata-unreachable", "urgent")
    assert "vmr" in found_blind["person"]


def test_on_a_terminal_it_keeps_to_its_width(shell: Shell) -> None:
    master, slave = os.openpty()
    with shell.spawn("doctor", stdin=slave, stdout=slave, stderr=slave) as process:
        os.close(slave)
        shown = b""
        while more := read_terminal(master):
            shown += more
        assert process.wait() == 0
    os.close(master)
    assert b"all is well" in shown


def test_who_is_not_let_in_has_found_nothing(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("0" * 64 + "\n")
    (tmp_path / "secret").chmod(0o600)
    wrong = shell.run("doctor", "--secret-file", str(tmp_path / "secret"))
    assert wrong.code == 3
    assert wrong.err.startswith("varlog: WrongSecret: ")


def test_findings_that_say_the_same_are_told_once() -> None:
    same = [
        finding("stream-short", Severity.DEGRADED, f"log stream {lsid}", "has 2 of 3 replicas", seconds=float(lsid))
        for lsid in range(1, 20)
    ]
    other = finding("stream-short", Severity.DEGRADED, "log stream 99", "has 1 of 3 replicas")
    (subjects, longest), (single, _) = grouped([*same, other])
    assert subjects == "log streams 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12 and 7 more"
    assert longest.seconds == 19.0
    assert single == "log stream 99"


def test_a_topic_without_its_sequencer_and_a_chain_without_its_last_member(bare: Shell, tmp_path: Path) -> None:
    async def live() -> list[Done]:
        async with LocalCluster(tmp_path / "varlog-data", nodes=1, ordering="sequencer") as cluster:
            told = [await asyncio.to_thread(bare.run, "doctor")]
            await cluster.sequencers[0].kill()
            await cluster.nodes[0].kill()

            async def is_missed() -> bool:
                told[1:] = [await asyncio.to_thread(bare.run, "doctor", "--json")]
                return b"chain-broken" in told[1].out

            await until(is_missed)
            return told

    well, ill = asyncio.run(live())
    assert well.text.startswith("all is well\n1 of 1 storage nodes answer, 1 of 1 log streams run; ")
    found = records(ill)
    assert found["sequencer-silent"]["severity"] == "urgent"
    assert (
        "it orders topic 'log', and no other one is there: nothing can be appended" in found["sequencer-silent"]["what"]
    )
    assert "vsq start" in found["sequencer-silent"]["person"]
    assert found["chain-broken"]["what"].startswith("takes no appends: node 1 does not answer")
    assert found["chain-broken"]["person"] == "start node 1 again, with its data"
