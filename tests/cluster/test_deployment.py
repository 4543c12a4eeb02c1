"""The deployment that docs/operations.md writes out works as it says, with its very units, config files and commands.

It is started by the page's own commands, loses a whole machine and is upgraded one machine after another, and no append
of those who write all the time fails.
"""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

import varlog
from tests.cluster.deployment import FILES, PAGE, UNITS, Deployment, Machine, read_unit
from tests.cluster.waiting import until
from tests.docs.sessions import blocks_of
from tests.wire.certificates import LOOPBACK
from varlog.client.cluster import read_file
from varlog.daemon import commands
from varlog.daemon.config import load
from varlog.daemon.service import Exit
from varlog.etcdserver import find
from varlog.types import GLSN

DAEMONS = {"vmr": commands.VMR, "vms": commands.VMS, "vsn": commands.VSN, "vsq": commands.VSQ}
MACHINES = ("node1", "node2", "node3")
APPEND_SECONDS = 20.0


@pytest.mark.parametrize("name", DAEMONS)
@pytest.mark.parametrize("machine", MACHINES)
def test_units_say_what_the_daemons_take(name: str, machine: str) -> None:
    program, *arguments = shlex.split(read_unit(FILES / "units" / f"{name}.service")["Service"]["ExecStart"])
    assert program == f"/opt/varlog/bin/{name}"
    flags = vars(commands.parser(DAEMONS[name]).parse_args(arguments))
    assert flags.pop("config") == f"/etc/varlog/{name}.toml"
    load(DAEMONS[name].config, flags, str(FILES / machine / f"{name}.toml"))


@pytest.mark.parametrize("name", UNITS)
def test_units_let_daemons_end_and_come_back_as_they_mean_it(name: str) -> None:
    unit = read_unit(FILES / "units" / f"{name}.service")
    service = unit["Service"]
    assert (service["Type"], service["Restart"], unit["Unit"]["StartLimitIntervalSec"]) == ("notify", "on-failure", "0")
    if name in DAEMONS:
        assert service["RestartPreventExitStatus"] == f"{Exit.USAGE:d} {Exit.PROTECTED:d}"
    writes = {"etcd": "/var/lib/etcd", "vsn": "/srv/varlog/disk1"}
    assert (service["ProtectSystem"], service.get("ReadWritePaths")) == ("strict", writes.get(name))


def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    systemd = shutil.which("systemd-analyze")
    if systemd is not None:  # where there is none, the tests above have to do
        machine = Machine(1, tmp_path / "node1", {"10.0.0.11": "127.0.0.1"})
        machine.prepare(find())
        (machine.root / "opt" / "varlog").symlink_to("varlog-0.1.0")
        units = sorted((machine.root / "checkout" / "examples" / "deploy" / "units").iterdir())
        said = subprocess.run([systemd, "verify", *units], capture_output=True, text=True, timeout=60, check=False)
        assert not [line for line in said.stderr.splitlines() if any(unit.name in line for unit in units)]


def test_config_files_of_the_machines_differ_in_what_they_are_called() -> None:
    for file in (FILES / "node1").iterdir():
        for number in (2, 3):
            own = file.read_text().replace("name: node1", f"name: node{number}").replace("snid = 1", f"snid = {number}")
            own = re.sub(
                r"^(.*listen.*|.*advertise.*)$",
                lambda line, number=number: line[0].replace("10.0.0.11", f"10.0.0.1{number}"),  # type: ignore[misc]
                own,
                flags=re.MULTILINE,
            )
            assert (FILES / f"node{number}" / file.name).read_text() == own


def test_the_page_shows_the_files() -> None:
    shown = {block.text for block in blocks_of(PAGE.read_text())}
    units = [FILES / "units" / f"{name}.service" for name in ("etcd", "vsn")]
    for file in (*(FILES / "node1").iterdir(), FILES / "cluster.toml", *units):
        assert file.read_text() in shown, file.name
    read_file(FILES / "cluster.toml")


class Writers:
    """They append all the time. What is not acknowledged in time fails the test."""

    def __init__(self, log: varlog.Log) -> None:
        self._log = log
        self.acknowledged: dict[GLSN, bytes] = {}
        """By position."""

    async def write(self, name: str) -> None:
        number = 0
        while True:
            number += 1
            data = f"{name}/{number}".encode()
            result = await self._log.append(data, timeout=APPEND_SECONDS)
            assert result.glsn not in self.acknowledged
            self.acknowledged[result.glsn] = data

    async def get_on(self, count: int = 20) -> None:
        """Wait for so many more."""
        goal = len(self.acknowledged) + count

        async def are_there() -> bool:
            return len(self.acknowledged) >= goal

        await until(are_there)

    async def check(self) -> None:
        """Every acknowledged entry is where it was said to be, and none is there twice."""
        tail = await self._log.tail()
        found = {entry.glsn: entry.data async for entry in self._log.subscribe(1, end=tail + 1)}
        assert list(found) == list(range(1, tail + 1))
        assert {glsn: found[glsn] for glsn in self.acknowledged} == self.acknowledged
        assert len(set(found.values())) == len(found)


@asynccontextmanager
async def writing(cluster: Path) -> AsyncIterator[Writers]:
    """Two writers, until the block ends."""
    async with varlog.connect(cluster) as log:
        writers = Writers(log)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(writers.write(f"writer{number}")) for number in (1, 2)]
            try:
                await writers.get_on()
                yield writers
            finally:
                for task in tasks:
                    task.cancel()
        await writers.check()


async def forgotten_by(machine: Machine) -> None:
    """Wait until the `vmr` there knows of two of three, one of which leads."""

    def members() -> int:
        try:
            with urlopen(f"http://{machine.addresses[LOOPBACK]}:9192/healthz", timeout=10) as reply:
                return len(json.load(reply)["details"]["members"])
        except HTTPError:
            return 0

    async def are_two() -> bool:
        return await asyncio.to_thread(members) == 2

    await until(are_two)


def test_O3_three_machines_as_the_page_sets_them_up(tmp_path: Path) -> None:
    async def live() -> None:
        async with Deployment(tmp_path) as deployment:
            await deployment.follow("First start")
            await deployment.follow("Is all well?")
            async with writing(deployment.cluster_file) as writers:
                lost = deployment.machines[2]
                await lost.lose_power()
                await forgotten_by(deployment.machines[0])
                await writers.get_on()
                await deployment.follow("A machine fails")
                await lost.boot()
                await deployment.follow("Upgrading, one node after another")
                await writers.get_on()
            assert not deployment.differences, "\n".join(deployment.differences)

    asyncio.run(live())
