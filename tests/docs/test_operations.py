"""docs/operations.md tells operators of every option, exit code, metric, error and limit that there is."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.docs.sessions import blocks_of
from varlog import limits
from varlog.core.manager import REPLACE_AFTER
from varlog.core.world import CLOSED_DEAD_AFTER, DEAD_AFTER
from varlog.daemon.config import (
    ManagerConfig,
    MetadataRepositoryConfig,
    SequencerConfig,
    StorageNodeConfig,
    load,
    options,
)
from varlog.daemon.service import Exit
from varlog.errors import VarlogError
from varlog.etcdserver import EtcdCluster
from varlog.processes import LocalCluster

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "operations.md").read_text()
CONFIGS = (StorageNodeConfig, MetadataRepositoryConfig, ManagerConfig, SequencerConfig)
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines() if line.startswith("|")]


def programs_of(cell: str) -> set[str]:
    every = {config.program for config in CONFIGS}
    return every if cell == "all" else set(re.findall(r"\w+", cell))


def test_every_option_is_explained() -> None:
    taken: dict[str, set[str]] = {}
    for config in CONFIGS:
        for key in options(config):
            taken.setdefault(key, set()).add(config.program)
    told = {row[0].strip("`"): programs_of(row[1]) for row in ROWS if len(row) == 4 and row[0].startswith("`")}
    assert told == taken


def test_every_exit_code_says_what_to_do() -> None:
    told = {int(row[0]) for row in ROWS if row[0].isdigit()}
    assert told == set(Exit)
    assert f"RestartPreventExitStatus={Exit.USAGE:d} {Exit.PROTECTED:d}\n" in PAGE, "where a restart does not help"


def test_every_error_is_explained() -> None:
    told = {(name, int(code)) for name, code in re.findall(r"`([A-Z]\w+)` \((\d+)\)", PAGE)}
    assert told == {(kind.__name__, code) for code, kind in VarlogError.registry.items()}


def test_every_metric_is_explained(tmp_path: Path, etcd: EtcdCluster) -> None:
    async def exposed() -> dict[str, set[str]]:
        """Which programs have which metric."""
        found: dict[str, set[str]] = {}
        store, any_version = etcd.url("docs"), not etcd.program.is_sound
        (on_etcd,) = LocalCluster(tmp_path / "on-etcd", store=store, any_version=any_version).vmrs
        await on_etcd.start()
        async with LocalCluster(tmp_path, nodes=1) as cluster:
            for daemon in (on_etcd, *cluster.daemons):
                page = await asyncio.to_thread(_get, f"http://{daemon.http}/metrics")
                for name in re.findall(r"^# TYPE (varlog_\w+)", page, re.MULTILINE):
                    found.setdefault(name, set()).add(daemon.program)
        assert await on_etcd.stop() == 0
        return found

    rows = [row for row in ROWS if row[0].startswith("`varlog_")]
    told = {name: programs_of(row[1]) for row in rows for name in re.findall(r"varlog_\w+", row[0])}
    assert told == asyncio.run(exposed())


def _get(url: str) -> str:
    with urlopen(url, timeout=10) as reply:
        page: bytes = reply.read()
    return page.decode()


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("an entry", f"{limits.MAX_ENTRY_BYTES // limits.MIB} MiB"),
        ("a batch", f"{limits.MAX_BATCH_BYTES // limits.MIB} MiB, {limits.MAX_BATCH_ENTRIES:,} entries"),
        ("replicas of a log stream", f"{limits.MAX_REPLICAS}"),
        (
            "storage nodes, topics, log streams",
            f"{limits.MAX_NODES:,}, {limits.MAX_TOPICS:,}, {limits.MAX_LOG_STREAMS:,}",
        ),
        ("log streams on a node", f"{limits.MAX_LOG_STREAMS_PER_NODE:,}"),
        (
            "connections of a daemon",
            f"{limits.MAX_CONNECTIONS:,}, of which clients get {limits.MAX_CONNECTIONS - limits.RESERVED_CONNECTIONS}",
        ),
        ("a topic's name", f"{limits.MAX_TOPIC_NAME} characters"),
    ],
)
def test_limits_are_what_they_are(what: str, told: str) -> None:
    assert [what, told] in ROWS


def test_how_much_of_a_text_is_logged() -> None:
    assert f"of a text no more than {limits.MAX_LOGGED:,} characters" in " ".join(PAGE.split())


def test_how_long_a_node_is_waited_for() -> None:
    told = {row[0] for row in ROWS if len(row) == 2}
    assert f"{CLOSED_DEAD_AFTER:g} to {DEAD_AFTER:g} s of silence" in told
    assert f"{REPLACE_AFTER:g} s" in told


def test_config_files_are_accepted(tmp_path: Path) -> None:
    programs = {config.program: config for config in CONFIGS}
    found = 0
    for block in blocks_of(PAGE):
        named = re.match(r"# (?:\S*/)?(v[a-z]+)\d?\.toml\n", block.text) if block.tag == "toml" else None
        if named is not None:
            file = tmp_path / "daemon.toml"
            file.write_text(block.text)
            load(programs[named[1]], {}, str(file))
            found += 1
    assert found == 12
