"""`varlog verify`: of replicas that are equal, and of one with a flipped bit."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from tests.cli.shell import Done, Shell
from tests.cli.test_administration import assert_documented
from tests.cli.test_append import read_terminal
from tests.storagenode.test_fingerprinting import flip
from varlog.cli import manual, manual_cluster
from varlog.processes import LocalCluster


def test_equal_replicas(shell: Shell, topic: str) -> None:
    shell.run("stream", "add", "--topic", topic)
    shell.feed(b"".join(b"%d\n" % number for number in range(50_000)), "append", "--topic", topic)
    found = shell.run("verify", topic, "--json").record
    assert_documented(manual.VERIFY, found)
    assert_documented(manual.VERIFY, found["replicas"][0])
    assert (found["topic"], found["verdict"], found["first"], found["last"]) == (topic, "consistent", 1, 50_000)
    assert (found["missing"], found["twice"], found["faults"], found["unread"]) == ([], [], [], [])
    assert len(found["replicas"]) == 6
    assert {replica["finding"] for replica in found["replicas"]} == {"equal"}
    assert found["entries"] == sum(replica["entries"] for replica in found["replicas"]) == 150_000
    told = shell.run("verify", topic).text
    assert "every position from GLSN 1 to 50000 is there exactly once\n" in told
    assert f"topic '{topic}' is consistent; 150000 entries were read in " in told.splitlines()[-1]


def test_a_trimmed_topic_and_an_empty_one(shell: Shell, topic: str) -> None:
    assert shell.run("verify", topic, "--json").record["verdict"] == "consistent"
    assert "there are no entries" in shell.run("verify", topic).text
    shell.run("append", "--topic", topic, "a", "b", "c")
    shell.run("trim", "--topic", topic, "--yes", "2")
    found = shell.run("verify", topic, "--json").record
    assert (found["verdict"], found["first"], found["last"], found["entries"]) == ("consistent", 3, 3, 3)


def test_all_topics(shell: Shell, topic: str) -> None:
    assert {topic, "log"} <= {found["topic"] for found in shell.run("verify", "--json").records}


def test_a_topic_that_is_not_there(shell: Shell) -> None:
    assert shell.run("verify", "no-such", "--json").failure["error"] == "UnknownTopic"


def test_on_a_terminal_there_is_a_bar(shell: Shell, topic: str) -> None:
    shell.feed(b"".join(b"%d\n" % number for number in range(20_000)), "append", "--topic", topic)
    master, slave = os.openpty()
    with shell.spawn("verify", topic, stdin=slave, stdout=slave, stderr=slave) as process:
        os.close(slave)
        shown = b""
        while more := read_terminal(master):
            shown += more
        assert process.wait() == 0
    os.close(master)
    assert b"comparing" in shown
    assert b"is consistent" in shown


def segment_of(path: Path) -> Path:
    (segment,) = path.glob("cid=*/snid=*/lsid=*/*.seg")
    return segment


def test_rule15_a_flipped_bit_is_found_and_a_silent_node_told(bare: Shell, tmp_path: Path) -> None:
    """Damage is a verdict of its own; who cannot be asked leaves it open."""

    async def live() -> tuple[Done, Done, Done]:
        async with LocalCluster(tmp_path / "varlog-data") as cluster:
            called = asyncio.to_thread
            assert (await called(bare.run, "append", "some content", "more")).code == 0
            await cluster.vms.kill()
            await cluster.nodes[0].kill()
            silent = await called(bare.run, "verify", "--json")
            flip(segment_of(tmp_path / "varlog-data" / "node-3"), b"some content")
            damaged = await called(bare.run, "verify", "--json")
            return silent, damaged, await called(bare.run, "verify")

    silent, damaged, for_people = asyncio.run(live())
    assert (silent.code, damaged.code, for_people.code) == (5, 4, 4)
    assert silent.out.count(b'"silent"') == 1
    assert b'"verdict":"incomplete"' in silent.out
    assert b'"verdict":"inconsistent"' in damaged.out
    assert b'"damaged"' in damaged.out
    assert b"topic 'log' is inconsistent" in for_people.out
    assert b"damage was found before" in for_people.out


def test_rule15_rot_that_is_found_is_repaired_from_another_replica(bare: Shell, tmp_path: Path) -> None:
    """Nobody has to do anything: the damaged replica is taken out of the set, made anew by a copy, and joins again."""

    async def live() -> list[Done]:
        async with LocalCluster(tmp_path / "varlog-data") as cluster:
            called = asyncio.to_thread
            assert (await called(bare.run, "append", "some content", "more")).code == 0
            flip(segment_of(tmp_path / "varlog-data" / "node-3"), b"some content")
            found = [await called(bare.run, "verify", "--json")]
            assert (await called(bare.run, "append", "and more")).code == 0
            is_well = False
            while not is_well or found[-1].code:
                is_well = (await called(bare.run, "doctor")).code == 0
                found.append(await called(bare.run, "verify", "--json"))
            assert all(daemon.alive for daemon in cluster.daemons)
            return found

    damaged, *_, repaired = asyncio.run(live())
    assert damaged.code == 4
    found = repaired.record
    assert (found["verdict"], found["entries"]) == ("consistent", 9)
    assert {replica["finding"] for replica in found["replicas"]} == {"equal"}
    assert {replica["role"] for replica in found["replicas"]} == {"primary", "backup"}


def test_rule15_a_node_is_scrubbed_and_tells_what_it_found(bare: Shell, tmp_path: Path) -> None:
    async def live() -> tuple[Done, Done, Done]:
        async with LocalCluster(tmp_path / "varlog-data"):
            called = asyncio.to_thread
            assert (await called(bare.run, "append", "some content", "more")).code == 0
            sound = await called(bare.run, "node", "scrub", "2", "--json")
            flip(segment_of(tmp_path / "varlog-data" / "node-2"), b"some content")
            damaged = await called(bare.run, "node", "scrub", "2", "--json")
            begun = await called(bare.run, "node", "scrub", "3", "--no-wait")
            return sound, damaged, begun

    sound, damaged, begun = asyncio.run(live())
    assert_documented(manual_cluster.NODE_SCRUB, sound.record)
    assert (sound.code, sound.record["done"], sound.record["damaged"]) == (0, True, [])
    assert sound.record["bytes"] > 0
    assert damaged.code == 4
    assert b'"damaged":[1]' in damaged.out
    assert begun.code == 0
    assert "storage node 3 " in begun.text


def test_a_node_that_is_not_there_is_not_scrubbed(shell: Shell) -> None:
    assert shell.run("node", "scrub", "77", "--json").failure["error"] == "UnknownNode"


def test_a_topic_that_a_sequencer_orders(shell: Shell) -> None:
    shell.run("topic", "add", "moves", "--ordering", "sequencer", "--streams", "2")
    shell.feed(b"".join(b"%099d\n" % number for number in range(6000)), "append", "--topic", "moves")
    found = shell.run("verify", "moves", "--json").record
    assert (found["verdict"], found["first"], found["missing"], found["twice"]) == ("consistent", 1, [], [])
    assert {(replica["role"], replica["finding"]) for replica in found["replicas"]} == {
        ("head", "equal"), ("middle", "equal"), ("tail", "equal"),
    }  # fmt: skip
    last = found["last"]
    assert last >= 6000, "with what was left out at the end of a block"
    assert found["entries"] == 3 * last
    assert f"every position from GLSN 1 to {last} is there exactly once\n" in shell.run("verify", "moves").text
    assert shell.run("topic", "remove", "moves", "--yes").code == 0
