"""`varlog dev`: a cluster in one process, from start to stop and again."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
from pathlib import Path

import pytest

from tests.cli.shell import Dev, Shell, ended, line_of
from tests.cli.test_administration import assert_documented
from varlog import limits
from varlog.cli import manual


def test_it_keeps_what_was_appended(bare: Shell, tmp_path: Path) -> None:
    path = tmp_path / "varlog-data"
    for number, stop in ((1, signal.SIGTERM), (2, signal.SIGINT)):
        dev = Dev(path, "--streams", "2")
        assert dev.about["cluster_file"] == str(path / "cluster.toml")
        assert (dev.about["topic"], dev.about["nodes"], dev.about["log_streams"]) == ("log", 3, 2)
        assert bare.run("append", f"run {number}", "--json").record["glsn"] == number
        assert dev.stop(stop) == (0, "")
    dev = Dev(path)
    assert bare.run("tail").text == "1  run 1\n2  run 2\n"
    assert dev.stop() == (0, "")


def test_S1_a_topic_is_made_with_the_ordering_that_was_asked_for(bare: Shell, tmp_path: Path) -> None:
    """And keeps it, whatever the next start asks for; what the sequencer has forgotten is found again."""
    path = tmp_path / "varlog-data"
    for number, ordering in ((1, "sequencer"), (2, "commit")):
        dev = Dev(path, "--ordering", ordering, "--streams", "2")
        assert (dev.about["topic"], dev.about["log_streams"]) == ("log", 2)
        assert bare.run("append", f"run {number}", "--json").record["glsn"] == number
        (topic,) = bare.run("topic", "list", "--json").records
        assert topic["ordering"] == "sequencer"
        assert dev.stop() == (0, "")


def test_it_tells_a_newcomer_what_to_do(bare: Shell) -> None:
    with bare.spawn("dev", "--port", "0", "--nodes", "1", "--topic", "mine", "--data", "here") as process:
        told = [line_of(process) for _ in range(12)]
        assert told[0] == "Varlog runs here: 1 storage node, topic 'mine', log streams: 1."
        assert re.fullmatch(r"  address       127\.0\.0\.1:\d+", told[2])
        assert "  cluster file  here/cluster.toml" in told
        for command in ("append --cluster here 'hello'", "tail --cluster here -f", "status --cluster here"):
            assert f"  varlog {command}" in told
        assert bare.run("append", "--cluster", "here", "hello").code == 0
        assert bare.run("append", "--cluster", "here", "--topic", "mine", "hello").text == "appended 1 entry: GLSN 2\n"
        process.send_signal(signal.SIGINT)
        assert ended(process) == (0, "stopping\n")


def test_it_has_no_more_nodes_than_one_process_can_start_in_time(bare: Shell, tmp_path: Path) -> None:
    most = limits.MAX_NODES_IN_ONE_PROCESS
    assert f"up to {most}" in " ".join(bare.run("dev", "--help").text.split())
    code, _, told = bare.run("dev", "--nodes", str(most + 1))
    assert code == 2
    assert told == f"varlog: InvalidArgument: nodes is {most + 1}, it must be a whole number from 1 to {most}\n"
    assert list(tmp_path.iterdir()) == []


def test_it_is_not_put_into_the_current_directory_by_an_empty_name(bare: Shell, tmp_path: Path) -> None:
    code, _, told = bare.run("dev", "--port", "0", "--data", "")
    assert (code, told) == (2, "varlog: InvalidArgument: --data is empty; name a directory, . is this one\n")
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_applied_to_what_is_there_is_said(bare: Shell, tmp_path: Path) -> None:
    assert Dev(tmp_path / "varlog-data", "--nodes", "2").stop() == (0, "")
    options = ("--nodes", "1", "--streams", "4", "--ordering", "sequencer")
    with bare.spawn("dev", "--port", "0", *options, cwd=tmp_path) as process:
        assert line_of(process) == "Varlog runs here: 2 storage nodes, topic 'log', log streams: 1."
        process.send_signal(signal.SIGINT)
        code, told = ended(process)
    assert code == 0
    assert told.splitlines() == [
        "--nodes 1 was not applied: there are 2 already",
        "--streams 4 was not applied: topic 'log' is there already, with 1; varlog stream add makes more",
        "--ordering sequencer was not applied: topic 'log' is there already, with commit; --topic makes another one",
        "stopping",
    ]


@pytest.mark.parametrize("ordering", ["commit", "sequencer"])
def test_B11_a_node_whose_directory_is_gone_is_given_what_it_had(bare: Shell, tmp_path: Path, ordering: str) -> None:
    path = tmp_path / "varlog-data"
    dev = Dev(path, "--ordering", ordering)
    assert bare.run("append", "kept").code == 0
    assert dev.stop() == (0, "")
    shutil.rmtree(path / "node-2")
    with bare.spawn("dev", "--port", "0", cwd=tmp_path) as process:
        assert line_of(process).startswith("Varlog runs here: 3 storage nodes")
        assert bare.run("tail").text.endswith("kept\n")
        process.send_signal(signal.SIGTERM)
        code, told = ended(process)
    assert (code, "node-2 was empty" in told) == (0, True)


def damaged(path: Path) -> Path:
    """The directory of a cluster of which one replica cannot be opened."""
    assert Dev(path).stop() == (0, "")
    (segment,) = path.glob("node-1/**/*.seg")
    with segment.open("r+b") as file:
        file.write(bytes(64))
    return path


def test_what_its_parts_complain_of_is_told_in_lines(bare: Shell, tmp_path: Path) -> None:
    with bare.spawn("dev", "--port", "0", "--data", str(damaged(tmp_path / "here"))) as process:
        assert line_of(process).startswith("Varlog runs here")
        process.send_signal(signal.SIGINT)
        code, said = ended(process)
    assert code == 0
    told = said.splitlines()
    assert told[0].startswith("a replica cannot be opened snid=1 lsid=1 ")
    assert told[1:] == ["stopping"]


def test_what_its_parts_complain_of_is_told_to_scripts_in_objects(tmp_path: Path) -> None:
    code, said = Dev(damaged(tmp_path / "here")).stop()
    assert code == 0
    (told,) = map(json.loads, said.splitlines())
    assert (told["level"], told["logger"]) == ("error", "varlog")
    assert told["event"].startswith("a replica cannot be opened snid=1 lsid=1 ")


def test_a_directory_without_any_replica_is_refused_at_once(bare: Shell, tmp_path: Path) -> None:
    assert Dev(tmp_path / "varlog-data", "--nodes", "1").stop() == (0, "")
    shutil.rmtree(tmp_path / "varlog-data" / "node-1")
    failure = bare.run("dev", "--port", "0", "--nodes", "1", "--json").failure
    assert failure["error"] == "WrongIdentity"
    assert "varlog-data/node-1 held all replicas of log stream 1" in failure["message"]


def test_O3_with_etcd_there_are_two_metadata_repositories_of_which_one_leads(bare: Shell, tmp_path: Path) -> None:
    path = tmp_path / "varlog-data"
    dev = Dev(path, "--etcd", "--nodes", "1")
    assert bare.run("append", "kept in etcd", "--json").record["glsn"] == 1
    state = bare.run("status", "--json").record
    assert_documented(manual.STATUS, state["repositories"][0])
    assert_documented(manual.STATUS, state["repositories"][0]["store"])
    roles = {it["address"]: it["role"] for it in state["repositories"]}
    assert sorted(roles.values()) == ["following", "leading"]
    assert ",".join(roles) == dev.about["address"]
    assert (roles[state["leader"]], state["term"], state["problems"]) == ("leading", 1, [])
    assert "metadata repository" in bare.run("status").text
    assert "2 of 2 metadata repositories answer" in bare.run("doctor").text
    assert dev.stop() == (0, "")
    code, _, err = bare.run("dev", "--data", str(path), "--port", "0")
    assert (code, "was made with an etcd; add --etcd" in err) == (2, True)
    dev = Dev(path, "--etcd", "--nodes", "1")
    assert bare.run("tail").text == "1  kept in etcd\n"
    assert dev.stop() == (0, "")


def test_a_directory_in_use_is_refused(bare: Shell, dev: Dev) -> None:
    code, out, err = bare.run("dev", "--data", str(dev.path), "--port", "0")
    assert (code, out) == (1, b"")
    assert err.startswith("varlog: DirectoryLocked: ")


def test_a_port_in_use_is_refused(bare: Shell) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        failure = bare.run("dev", "--port", str(port), "--json").failure
    assert failure["error"] == "CannotListen"
    assert f"127.0.0.1:{port} is taken" in failure["message"]


@pytest.mark.parametrize("name", ["file", "file/below"])
def test_a_place_that_cannot_be_a_directory_is_refused(bare: Shell, tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    code, out, err = bare.run("dev", "--port", "0", "--data", name)
    assert (code, out) == (1, b"")
    assert err.startswith("varlog: ")
    assert err.count("\n") == 1
    assert os.listdir(tmp_path) == ["file"]
