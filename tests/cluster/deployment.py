"""The deployment that docs/operations.md writes out, on this machine: three 'machines' of real processes.

A machine is an address of the loopback interface with all the well-known ports, and a directory that stands for its
root. `Deployment` gives each of them a copy of examples/deploy, in which nothing but addresses and the root is another,
and then does what the page says: the commands of its blocks with a remark `<!-- on ... -->` run in a shell, in the
order of the page, on the machines that the remark names. `systemctl` is played by `Unit`, which starts what a unit says
as systemd does: with a socket for the notification that it is ready, for which it waits. What commands print is held
against what the page shows.

What only root may do is left out: owners of files, and `User=` of units. scp copies from directory to directory.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from asyncio.subprocess import DEVNULL, PIPE, STDOUT
from collections.abc import Mapping, Sequence
from configparser import ConfigParser
from pathlib import Path
from typing import Final, Self

from tests.docs.sessions import Block, _commands, align, blocks_of
from tests.wire.certificates import LOOPBACK, Authority
from varlog import processes
from varlog.etcdserver import _END_WITH_PARENT, EtcdProgram, find

ROOT: Final = Path(__file__).resolve().parents[2]
FILES: Final = ROOT / "examples" / "deploy"
PAGE: Final = ROOT / "docs" / "operations.md"
UNITS: Final = ("etcd", "vmr", "vsn", "vms", "vsq")
RELEASES: Final = ("varlog-0.1.0", "varlog-0.2.0")
"""Those that the page speaks of; both are what is installed here."""
SECONDS: Final = 60.0
"""For one command."""
NUMBERS_VARY: Final = " numbers vary"

_WITHOUT_ROOT: Final = """
hostname() { echo HOSTNAME; }
chown() { :; }
scp() { cp -p "$@"; }
install() {
    local words=()
    while (($#)); do
        if [[ $1 == -o ]]; then shift 2; else words+=("$1"); shift; fi
    done
    command install "${words[@]}"
}
"""
_SYSTEMCTL: Final = re.compile(r"systemctl (daemon-reload|enable --now|start|stop|restart)((?: \w+)*)")
_ABSOLUTE: Final = re.compile(r"(?<![\w./}])/(?=(?:etc|opt|srv|usr|var)/)")
_REMOTE: Final = re.compile(r"10\.0\.0\.1(\d):/")


def read_unit(file: Path) -> ConfigParser:
    """A unit of systemd."""
    unit = ConfigParser(interpolation=None, delimiters=("=",), comment_prefixes=("#", ";"))
    unit.optionxform = str  # type: ignore[method-assign,assignment]
    unit.read_string(file.read_text())
    return unit


class Unit(processes.Daemon):
    """One unit of a machine, as its supervisor runs it."""

    def __init__(self, name: str, machine: Machine) -> None:
        super().__init__(f"{machine.name}-{name}", name, machine.root.parent, {})
        self._file = machine.root / "etc" / "systemd" / "system" / f"{name}.service"

    def _hold_ports(self) -> None:
        """They are in the config file."""

    async def _launch(self) -> str:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as ready:
            ready.bind(f"\0varlog-{os.getpid()}-{secrets.token_hex(8)}")
            self._process = self._run_unit(ready.getsockname().decode().replace("\0", "@"))
            told = asyncio.ensure_future(asyncio.get_running_loop().sock_recv(ready, 1024))
            ended = asyncio.ensure_future(self.ended())
            await asyncio.wait([told, ended], return_when=asyncio.FIRST_COMPLETED)
            said = told.result().decode() if told.done() else ""
            for waiting in (told, ended):
                waiting.cancel()
            await asyncio.gather(told, ended, return_exceptions=True)
        return said

    def _run_unit(self, notify: str) -> subprocess.Popen[bytes]:
        command = shlex.split(read_unit(self._file)["Service"]["ExecStart"])
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-I", "-c", _END_WITH_PARENT, str(os.getpid()), *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={"PATH": os.defpath, "NOTIFY_SOCKET": notify},
            )


class Machine:
    """See the module's text."""

    def __init__(self, number: int, root: Path, addresses: Mapping[str, str]) -> None:
        self.number = number
        self.name = f"node{number}"
        self.root = root
        self.addresses = {"127.0.0.1": addresses[f"10.0.0.1{number}"], **addresses}
        """What each address of the page is here."""
        self.units = {name: Unit(name, self) for name in UNITS}
        self._exports: list[str] = []

    def prepare(self, program: EtcdProgram) -> None:
        """What is there before the page's first command: the programs, and a checkout."""
        (self.root / "usr" / "bin").mkdir(parents=True)
        (self.root / "usr" / "bin" / "etcd").symlink_to(program.path)
        (self.root / "opt").mkdir()
        for release in RELEASES:
            (self.root / "opt" / release).symlink_to(sys.prefix)
        (self.root / "etc" / "systemd" / "system").mkdir(parents=True)
        (self.root / "etc" / "varlog").mkdir()
        shutil.copytree(FILES, self.root / "checkout" / "examples" / "deploy")
        for file in (self.root / "checkout").rglob("*.*"):
            if file.is_file():
                file.write_text(self.here(file.read_text()))
                if file.name == "vmr.toml" and not program.is_sound:
                    file.write_text(f"{file.read_text()}etcd_any_version = true\n")

    def here(self, text: str) -> str:
        """A text of the page as it has to be on this machine."""
        text = _REMOTE.sub(lambda found: f"{self.root.parent}/node{found[1]}/", text)
        for address, real in self.addresses.items():
            text = re.sub(rf"\b{re.escape(address)}\b", real, text)
        return _ABSOLUTE.sub(f"{self.root}/", text)

    def there(self, text: str) -> str:
        """What was printed here as the page shows it."""
        for address, real in self.addresses.items():
            if address != "127.0.0.1":
                text = re.sub(rf"\b{re.escape(real)}\b", address, text)
        return text.replace(f"{self.root}/", "/")

    async def session(self, text: str) -> list[str]:
        """A block of the page as it really goes."""
        lines: list[str] = []
        for command, _ in _commands(text):
            lines += [f"$ {line}" if number == 0 else line for number, line in enumerate(command.split("\n"))]
            if asked := _SYSTEMCTL.fullmatch(command):
                await self._systemctl(asked[1], asked[2].split())
            elif command.startswith("export "):
                self._exports.append(command)
            else:
                lines += await self._run(command)
        return lines

    async def _run(self, command: str) -> list[str]:
        script = "\n".join(
            (
                _WITHOUT_ROOT.replace("HOSTNAME", self.name),
                *map(self.here, self._exports),
                self.here(command),
            )
        )
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # where etcdctl is
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("VARLOG_", "ETCDCTL_"))}
        shell = await asyncio.create_subprocess_exec(
            "bash",
            "-c",
            script,
            cwd=self.root / "checkout",
            env={**environment, "PATH": path, "COLUMNS": "200"},
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=STDOUT,
        )
        try:
            async with asyncio.timeout(SECONDS):
                said, _ = await shell.communicate()
        except TimeoutError:
            raise AssertionError(f"{command} goes on and on") from None
        finally:
            if shell.returncode is None:
                shell.kill()
                await shell.wait()
        return self.there(said.decode()).splitlines()

    async def _systemctl(self, verb: str, names: Sequence[str]) -> None:
        units = [self.units[name] for name in names]
        if verb in {"stop", "restart"}:
            codes = await asyncio.gather(*(unit.stop() for unit in units))
            assert all(code in {0, -signal.SIGTERM} for code in codes), codes
        if verb in {"enable --now", "start", "restart"}:
            await asyncio.gather(*(unit.start() for unit in units))

    async def boot(self) -> None:
        """Start everything, in no order."""
        await asyncio.gather(*(unit.start() for unit in self.units.values()))

    async def lose_power(self) -> None:
        """Everything is gone before any of it is waited for."""
        for unit in self.units.values():
            unit.send(signal.SIGKILL)
        await asyncio.gather(*(unit.ended() for unit in self.units.values() if unit.was_started))


class Deployment:
    """See the module's text. When a test fails inside of it, it prints the end of every log."""

    def __init__(self, directory: Path) -> None:
        self.path = directory
        self._lock, network = _own_network()
        addresses = {f"10.0.0.1{number}": f"{network}.{number}" for number in (1, 2, 3)}
        self.machines = [Machine(number, directory / f"node{number}", addresses) for number in (1, 2, 3)]
        authority = Authority()
        for machine in self.machines:
            machine.prepare(find())
            place = machine.root / "etc" / "varlog"
            issued = authority.issue(place, f"{network}.{machine.number}", LOOPBACK)  # by which all connect here
            shutil.move(issued.ca, place / "ca.pem")
        self.differences: list[str] = []
        """Where the page shows something else than there is."""
        self._page = PAGE.read_text()

    @property
    def cluster_file(self) -> Path:
        """By which clients find it."""
        return self.machines[0].root / "etc" / "varlog" / "cluster.toml"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, error: type[BaseException] | None, *_: object) -> None:
        for machine in self.machines:
            await machine.lose_power()
            if error is not None:
                for unit in machine.units.values():
                    print(f"\n--- {unit.name} said ---\n{unit.said()}")  # noqa: T201
        self._lock.close()

    async def follow(self, heading: str) -> None:
        """Do what the page says under that heading."""
        done = 0
        for block in self._blocks(heading):
            where, varies, _ = block.remark.removeprefix("on ").partition(NUMBERS_VARY)
            if where == "each machine":
                sessions = await asyncio.gather(*(machine.session(block.text) for machine in self.machines))
            elif where == "one machine after another":
                sessions = [await machine.session(block.text) for machine in self.machines]
            else:
                (machine,) = [machine for machine in self.machines if machine.name == where]
                sessions = [await machine.session(block.text)]
            for lines in sessions:
                self._compare(block, lines, numbers_vary=bool(varies))
            done += 1
        assert done, f"there is nothing to do under {heading!r}"

    def _blocks(self, heading: str) -> list[Block]:
        begin = self._page.index(f"### {heading}\n")
        end = self._page.find("\n##", begin + 1)
        return [
            block
            for block in blocks_of(self._page)
            if begin < block.begin < end and block.tag == "console" and block.remark.startswith("on ")
        ]

    def _compare(self, block: Block, lines: list[str], *, numbers_vary: bool) -> None:
        aligned = align(block.text.splitlines(), lines, numbers_vary=numbers_vary)
        if aligned is None:
            self.differences.append(f"shown:\n{block.text}\nreal:\n" + "\n".join(lines) + "\n")
        if os.environ.get("VARLOG_REWRITE_GOLDEN") == "1":
            page = PAGE.read_text()
            PAGE.write_text(page.replace(block.text, "\n".join([*(aligned or lines), ""])))


def _own_network() -> tuple[socket.socket, str]:
    """The beginning of loopback addresses that nobody else on this machine uses as long as the socket is open. They are
    as long as those on the page, so that tables stay in line."""
    while True:
        digits = random.SystemRandom()
        network = f"127.{digits.randrange(1, 10)}.{digits.randrange(10)}"
        lock = socket.socket()
        try:
            lock.bind((f"{network}.9", 9099))
        except OSError:
            lock.close()
            continue
        return lock, network
