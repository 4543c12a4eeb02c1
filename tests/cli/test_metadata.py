"""`varlog metadata` on the files of a small cluster that was stopped: what it says, and what it refuses."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import varlog
from tests.cli.shell import Dev, Shell
from tests.metarepo.test_backup import on_etcd
from varlog.cli.failures import Exit
from varlog.etcdserver import EtcdCluster
from varlog.storage.files import OSFileSystem
from varlog.storagenode.volumes import Volumes
from varlog.types import ClusterID, StorageNodeID

ENTRIES = 30


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a cluster that was stopped in good order."""
    path = tmp_path_factory.mktemp("stopped") / "varlog-data"
    asyncio.run(append(path, ENTRIES))
    return path


async def append(path: Path, entries: int, ordering: str = "commit") -> int:
    """Let a cluster run there for so many appends; the last position."""
    async with varlog.embedded(path, ordering=ordering) as log:
        results = [await log.append(f"entry {number}".encode()) for number in range(entries)]
    return results[-1].glsn


@pytest.fixture
def data(stopped: Path, tmp_path: Path) -> Path:
    """A copy of it, without the space that its files have in store."""
    subprocess.run(["cp", "-r", "--sparse=always", stopped, tmp_path / "data"], check=True)
    return tmp_path / "data"


def surveyed(bare: Shell, data: Path) -> list[str]:
    """The surveys of its nodes."""
    files = []
    for volume in sorted(data.glob("node-*")):
        files.append(str(data / f"{volume.name}.survey"))
        record = bare.run("metadata", "survey", str(volume), "--out", files[-1], "--json").record
        assert (record["file"], record["log_streams"], record["uncommitted"]) == (files[-1], 1, [])
    return files


def test_a_backup_is_restored(bare: Shell, data: Path) -> None:
    metadata, file, other = str(data / "metadata"), str(data / "file"), str(data / "other")
    said = bare.run("metadata", "backup", metadata, file).text
    assert re.fullmatch(rf"wrote {file} \(\d.*B\): version \d+, topics 1, log streams 1, storage nodes 3\n", said)
    header, body = map(json.loads, Path(file).read_text().splitlines())
    assert (header["varlog"], header["format"], body["cid"]) == ("metadata backup", 1, 1)
    record = bare.run("metadata", "restore", file, other, "--json").record
    assert (record["store"], record["cluster"], record["topics"], record["storage_nodes"]) == (other, 1, 1, 3)
    shutil.rmtree(metadata)
    shutil.copytree(other, metadata)
    assert asyncio.run(append(data, 1)) == ENTRIES + 1


def test_metadata_is_copied_to_another_store(bare: Shell, data: Path, etcd: EtcdCluster) -> None:
    metadata, where = str(data / "metadata"), on_etcd(etcd)
    options = () if etcd.program.is_sound else ("--etcd-any-version",)
    said = bare.run("metadata", "copy", metadata, where, *options).text
    assert f"start every vmr with {where} from now on, and none with {metadata}" in said
    shutil.rmtree(metadata)
    assert bare.run("metadata", "copy", where, metadata, *options, "--json").record["storage_nodes"] == 3
    assert asyncio.run(append(data, 1)) == ENTRIES + 1
    assert bare.run("metadata", "copy", where, metadata, *options, "--json").failure["error"] == "StoreNotEmpty"


def test_metadata_is_rebuilt(bare: Shell, data: Path) -> None:
    metadata, wanted = str(data / "metadata"), ("metadata", "rebuild", *surveyed(bare, data), str(data / "metadata"))
    shutil.rmtree(metadata)
    said = bare.run(*wanted, "--dry-run").text
    assert said.splitlines()[1].split() == ["topic-1", "1", "1", str(ENTRIES)]
    assert said.splitlines()[-1] == "nothing was written"
    assert not Path(metadata).exists()
    said = bare.run(*wanted, "--topic", "1=log").text
    assert said.splitlines()[1].split() == ["log", "1", "1", str(ENTRIES)]
    assert re.search(r"holds version \d+, topics 1, log streams 1, storage nodes 3", said.splitlines()[-1])
    assert asyncio.run(append(data, 1)) == ENTRIES + 1


def test_a_backup_gives_the_names(bare: Shell, data: Path) -> None:
    metadata, file = str(data / "metadata"), str(data / "file")
    bare.run("metadata", "backup", metadata, file)
    wanted = ("metadata", "rebuild", *surveyed(bare, data), metadata, "--backup", file, "--json")
    assert bare.run(*wanted).failure["error"] == "StoreNotEmpty"
    assert bare.run(*wanted, "--replace").record["topics"][0]["name"] == "log"


async def entries_of(path: Path) -> list[bytes]:
    """All that a cluster has there, after which it goes on."""
    async with varlog.embedded(path, ordering="sequencer") as log:
        last = await log.tail()
        assert (await log.append(b"after")).glsn > last
        return [bytes(entry.data) async for batch in log.scan(1, last + 1) for entry in batch]


def test_a_sequencers_topic_is_rebuilt_from_a_backup_that_has_its_projection(bare: Shell, tmp_path: Path) -> None:
    """And from nothing less: storage nodes do not know where its positions lie."""
    data, other = tmp_path / "data", str(tmp_path / "other")
    asyncio.run(append(data, ENTRIES, "sequencer"))
    metadata, file = str(data / "metadata"), str(data / "file")
    bare.run("metadata", "backup", metadata, file)
    wanted = ("metadata", "rebuild", *surveyed(bare, data), other, "--json")
    failure = bare.run(*wanted).failure
    assert failure["error"] == "SurveysIncomplete"
    assert "no backup tells" in failure["message"]
    left_out = bare.run(*wanted, "--declare-lost", "--dry-run").record
    assert (left_out["topics"], len(left_out["remarks"])) == ([], 1)

    told = bare.run(*wanted, "--backup", file).record
    assert [(topic["name"], topic["last"]) for topic in told["topics"]] == [("log", ENTRIES)]
    shutil.rmtree(metadata)
    shutil.copytree(other, metadata)
    assert asyncio.run(entries_of(data)) == [f"entry {number}".encode() for number in range(ENTRIES)]

    for survey in data.glob("*.survey"):
        survey.unlink()
    late = ("metadata", "rebuild", *surveyed(bare, data), other, "--backup", file, "--replace", "--json")
    failure = bare.run(*late).failure
    assert failure["error"] == "SurveysIncomplete", "the sequencer was another one: there has been a reconfiguration"
    assert "a later backup is needed" in failure["message"]


def test_a_survey_that_is_missing_is_asked_for(bare: Shell, data: Path) -> None:
    files, other = surveyed(bare, data), str(data / "other")
    failure = bare.run("metadata", "rebuild", *files[:2], other, "--json").failure
    assert (failure["error"], failure["code"]) == ("SurveysIncomplete", 173)
    assert "storage node 3" in failure["message"]
    assert bare.run("metadata", "rebuild", *files[:2], other, "--without", "3", "--json").record["written"]
    assert bare.run("metadata", "rebuild", files[0], *files, other, "--json").failure["error"] == "SurveysDisagree"


def test_a_survey_changes_nothing_and_tells_no_secret(bare: Shell, data: Path) -> None:
    before = {path: path.read_bytes() for path in data.glob("node-*/**/*") if path.is_file()}
    files = surveyed(bare, data)
    assert {path: path.read_bytes() for path in data.glob("node-*/**/*") if path.is_file()} == before
    identity = json.loads((data / "node-1/cid=1/snid=1/identity").read_text())
    text = Path(files[0]).read_text()
    assert identity["held"][1] not in text
    assert json.loads(text.splitlines()[1])["generation"] == identity["held"][0]


def test_a_node_that_runs_is_not_surveyed(bare: Shell, data: Path) -> None:
    volumes = Volumes.open(OSFileSystem(), ClusterID(1), StorageNodeID(1), [str(data / "node-1")])
    failure = bare.run("metadata", "survey", str(data / "node-1"), "--out", str(data / "file"), "--json").failure
    volumes.close()
    assert failure["error"] == "DirectoryLocked"


def test_what_runs_is_backed_up_only_from_an_etcd(bare: Shell, dev: Dev, tmp_path: Path) -> None:
    failure = bare.run("metadata", "backup", str(dev.path / "metadata"), str(tmp_path / "file"), "--json").failure
    assert failure["error"] == "DirectoryLocked"
    assert "stop vmr first; of an etcd" in failure["message"]


def test_a_damaged_replica_is_surveyed_as_far_as_it_is_sound(bare: Shell, data: Path) -> None:
    (segment,) = data.glob("node-1/cid=1/snid=1/lsid=1/*.seg")
    damaged = bytearray(segment.read_bytes())
    damaged[200] ^= 1
    segment.write_bytes(damaged)
    files = []
    for volume in sorted(data.glob("node-*")):
        files.append(str(data / f"{volume.name}.survey"))
        assert bare.run("metadata", "survey", str(volume), "--out", files[-1]).code == 0
    record = bare.run("metadata", "rebuild", *files, str(data / "other"), "--json").record
    assert record["topics"][0]["last"] == ENTRIES
    assert len(record["remarks"]) == 1
    assert "the replica on storage node 1 is damaged" in record["remarks"][0]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("backup", "nothing", "file"), "NotWritable"),
        (("restore", "nothing", "store"), "BadBackup"),
        (("survey", "nothing", "--out", "file"), "NotWritable"),
        (("survey", ".", "--out", "file"), "NoSuchReplica"),
        (("rebuild", "store"), "InvalidArgument"),
        (("rebuild", "nothing", "store"), "BadBackup"),
        (("backup", "etcd://host", "file"), "InvalidArgument"),
        (("copy", "nothing", "other", "--etcd-user", "me"), "NotWritable"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else value,
)
def test_what_cannot_be_done_is_said(bare: Shell, arguments: tuple[str, ...], error: str) -> None:
    assert bare.run("metadata", *arguments, "--json").failure["error"] == error
    assert not any(bare.cluster.iterdir())


def test_an_etcd_that_is_not_there_cannot_be_reached(bare: Shell) -> None:
    done = bare.run("metadata", "backup", "etcd://127.0.0.1:1/varlog", "file", "--json")
    assert (done.code, done.failure["error"]) == (Exit.UNREACHABLE, "StoreUnavailable")


@pytest.mark.parametrize("name", ["log", "=log", "x=log", "1="])
def test_a_topic_is_named_by_its_number(bare: Shell, data: Path, name: str) -> None:
    wanted = ("metadata", "rebuild", *surveyed(bare, data), str(data / "other"), "--topic", name, "--json")
    assert bare.run(*wanted).failure["error"] == "InvalidArgument"
