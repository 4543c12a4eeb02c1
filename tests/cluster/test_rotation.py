"""Secrets and certificates are replaced while a real cluster inside TLS is under load: no append fails.

Every daemon has files of its own, as on machines of their own, and so have the clients. Each step reaches one process
after another, and connections are cut in between, so that everybody has to connect anew to peers that are a step ahead
or behind.
"""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

import varlog
from tests.cluster.cluster import CID, TOPIC, Cluster
from tests.cluster.load import Load
from tests.cluster.scenarios import live_through_on
from tests.cluster.waiting import until
from tests.wire.certificates import Authority, write
from varlog import errors
from varlog.sim.history import Kind, Outcome
from varlog.spark.connections import connections
from varlog.spark.options import Connection
from varlog.wire.secret import Secret, add, promote, retire
from varlog.wire.tls import TlsFiles

CLIENTS = "clients"


class Machines:
    """Whose files are where."""

    def __init__(self, cluster: Cluster, authority: Authority) -> None:
        self.cluster = cluster
        self.places = {
            CLIENTS: cluster.path,
            **{daemon.name: cluster.path / "etc" / daemon.name for daemon in cluster.daemons},
        }
        self.tls: dict[str, TlsFiles] = {}
        self._secret = (cluster.path / "secret").read_bytes()
        for name, place in self.places.items():
            place.mkdir(parents=True, exist_ok=True)
            write(place / "secret", self._secret, 0o600)
            self.tls[name] = authority.issue(place, "127.0.0.1")
        for daemon in cluster.daemons:
            files = dict(zip(("tls_cert", "tls_key", "tls_ca"), map(str, self.tls[daemon.name]), strict=True))
            daemon.options.update(files, secret_file=str(self.places[daemon.name] / "secret"))
        cluster.about = {"tls_cert": "node.pem", "tls_key": "node.key", "tls_ca": "node.ca.pem"}

    async def each(self, load: Load, rng: Random, change: Callable[[str], None]) -> None:
        """Change the files of one after another, with everybody connecting anew when half of them have theirs."""
        names = list(self.places)
        rng.shuffle(names)
        for number, name in enumerate(names):
            change(name)
            if number == len(names) // 2:
                await self.reconnect(load)
        await self.reconnect(load)

    async def reconnect(self, load: Load) -> None:
        for proxy in self.cluster.proxies.values():
            proxy.cut()
        await load.grows(10)

    def give_secret(self, step: Callable[[Path], Secret]) -> Callable[[str], None]:
        """Take a step with the file, in a place of its own; then it is given to everybody."""
        master = self.cluster.path / "etc" / "secret"
        write(master, self._secret, 0o600)
        step(master)
        self._secret = master.read_bytes()
        return lambda name: write(self.places[name] / "secret", self._secret, 0o600)

    def give_ca(self, *authorities: Authority) -> Callable[[str], None]:
        pem = b"".join(authority.pem for authority in authorities)
        return lambda name: write(self.tls[name].ca, pem)

    def give_certificates(self, authority: Authority) -> Callable[[str], None]:
        def give(name: str) -> None:
            fresh = self.places[name] / "fresh"
            fresh.mkdir()
            issued = authority.issue(fresh, "127.0.0.1")
            write(self.tls[name].key, Path(issued.key).read_bytes(), 0o600)
            write(self.tls[name].cert, Path(issued.cert).read_bytes())

        return give


async def all_have_told(cluster: Cluster, last: str) -> bool:
    """Every daemon has logged that it has read this."""
    return all(last in daemon.log.read_text(errors="replace") for daemon in cluster.daemons)


async def shows(*where: str) -> bool:
    """Whether the command `varlog` finds the cluster in order."""
    command = [sys.executable, "-m", "varlog", "topic", "list", "--json", *where]
    process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE)
    out, err = await process.communicate()
    assert not err, err.decode()
    return f'"{TOPIC}"'.encode() in out


async def refused(error: type[errors.VarlogError], cluster: Cluster, secret: Path, tls: TlsFiles | None) -> None:
    with pytest.raises(error):
        await varlog.connect(cluster.vmr.address, cid=CID, secret_file=secret, tls=tls, timeout=5)


def test_O3_secrets_and_certificates_are_replaced_under_load(tmp_path: Path) -> None:
    old, new = Authority(), Authority()
    cluster = Cluster(tmp_path / "cluster", nodes=2, streams=1, proxied=True)
    machines = Machines(cluster, old)
    write(tmp_path / "secret", (cluster.path / "secret").read_bytes(), 0o600)
    before = old.issue(tmp_path)
    write(before.ca, old.pem + new.pem)

    async def replace_all(cluster: Cluster, load: Load, rng: Random) -> None:
        for step in (add, promote, retire):
            await machines.each(load, rng, machines.give_secret(step))
        await machines.each(load, rng, machines.give_ca(old, new))
        await machines.each(load, rng, machines.give_certificates(new))
        await machines.each(load, rng, machines.give_ca(new))
        (fingerprint,) = Secret.load(cluster.path / "secret").fingerprints()
        await until(lambda: all_have_told(cluster, f"read anew, to prove with and to believe: {fingerprint} "))
        mine = machines.tls[CLIENTS]
        assert await shows("--cluster", str(cluster.path))
        assert await asyncio.to_thread(connections.ask, Connection(str(cluster.path)), varlog.Log.tail) > 0
        await asyncio.to_thread(connections.close)
        named = zip(("--tls-cert", "--tls-key", "--tls-ca"), map(str, mine), strict=True)
        there = ("--cluster", cluster.vmr.address, "--cid", str(CID), "--secret-file", str(cluster.path / "secret"))
        assert await shows(*there, *(word for pair in named for word in pair))
        await refused(errors.WrongSecret, cluster, tmp_path / "secret", mine)
        await refused(errors.WrongCertificate, cluster, cluster.path / "secret", before)
        await refused(errors.TlsMismatch, cluster, cluster.path / "secret", None)

    evidence = asyncio.run(live_through_on(cluster, replace_all))
    appends = evidence.history.of(Kind.APPEND)
    assert len(appends) > 100
    assert not [append for append in appends if append.outcome is not Outcome.OK], "none may fail"
