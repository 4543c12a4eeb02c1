"""Daemons that cannot start say why in one line and end with a code; those that are not wanted say so and go on."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.cluster.launch import NOBODY
from tests.cluster.processes import Daemon, StartFailed
from varlog.client.administering import admin
from varlog.client.cluster import CLUSTER_FILE, DEFAULT_TOPIC, ClusterFile, write_file
from varlog.core.identity import new_secret, proof_of
from varlog.core.proving import Held
from varlog.daemon.service import Exit
from varlog.storage.files import OSFileSystem
from varlog.storagenode.volumes import Volumes
from varlog.types import ClusterID, StorageNodeID
from varlog.wire.secret import Secret


class Place:
    """A directory with a secret and a volume, and the daemons started there."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.volume = directory / "volume"
        self._daemons: list[Daemon] = []
        self.volume.mkdir()
        (directory / "meta").mkdir()
        Secret.create(directory / "secret")

    def vsn(self, name: str = "vsn", **options: str) -> Daemon:
        given = {"volumes": str(self.volume), "snid": "1", "metadata_repository": "127.0.0.1:1"}
        return self._daemon(Daemon(name, "vsn", self.directory, self._common() | given | options))

    def vmr(self, **options: str) -> Daemon:
        return self._daemon(
            Daemon("vmr", "vmr", self.directory, self._common() | {"path": f"{self.directory}/meta"} | options)
        )

    def vms(self, **options: str) -> Daemon:
        return self._daemon(Daemon("vms", "vms", self.directory, self._common() | options))

    def _common(self) -> dict[str, str]:
        return {"secret_file": f"{self.directory}/secret"}

    def _daemon(self, daemon: Daemon) -> Daemon:
        self._daemons.append(daemon)
        return daemon

    async def close(self) -> None:
        for daemon in self._daemons:
            if daemon.was_started:
                await daemon.kill()


def run(directory: Path, test: Callable[[Place], Awaitable[None]]) -> None:
    async def whole() -> None:
        place = Place(directory)
        try:
            await test(place)
        finally:
            await place.close()

    asyncio.run(whole())


async def refusal(daemon: Daemon) -> tuple[int, str]:
    """How it ended instead of starting: the code, and the one line that says why."""
    with pytest.raises(StartFailed) as failed:
        await daemon.start()
    (line,) = failed.value.said.splitlines()
    return failed.value.code, line


@pytest.mark.parametrize("kind", ["missing", "file"])
def test_B1_a_volume_must_be_an_existing_directory(kind: str, tmp_path: Path) -> None:
    async def test(place: Place) -> None:
        wrong = tmp_path / "wrong"
        if kind == "file":
            wrong.touch()
        code, said = await refusal(place.vsn(volumes=str(wrong)))
        assert code == Exit.ENVIRONMENT
        assert "NotWritable" in said
        assert str(wrong) in said
        assert not wrong.is_dir()

    run(tmp_path, test)


def test_B1_a_volume_must_be_writable() -> None:
    async def test(place: Place) -> None:
        if os.geteuid() == 0:
            os.chown(place.directory / "secret", NOBODY, NOBODY)
        place.directory.chmod(0o755)
        place.volume.chmod(0o555)
        daemon = place.vsn()
        daemon.layer = ["--as-user"]
        code, said = await refusal(daemon)
        assert code == Exit.ENVIRONMENT
        assert "NotWritable" in said
        assert str(place.volume) in said

    with TemporaryDirectory() as name:  # everybody may look into it; into pytest's own only its owner may
        run(Path(name), test)


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    async def test(place: Place) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            address = f"127.0.0.1:{taken.getsockname()[1]}"
            for daemon in (place.vsn(listen=address), place.vmr(listen=address), place.vsn(http=address)):
                code, said = await refusal(daemon)
                assert code == Exit.ENVIRONMENT
                assert "is taken by another process" in said
                assert address in said

    run(tmp_path, test)


def test_a_volume_that_another_process_has(tmp_path: Path) -> None:
    async def test(place: Place) -> None:
        await place.vsn("first").start()
        code, said = await refusal(place.vsn("second"))
        assert code == Exit.ENVIRONMENT
        assert "DirectoryLocked" in said
        await place.vsn("third", snid="2").start()

    run(tmp_path, test)


def test_B5_error_if_exists(tmp_path: Path) -> None:
    async def test(place: Place) -> None:
        first = place.vsn()
        await first.start()
        assert await first.stop() == Exit.OK
        again = place.vsn()
        again.flags = ["--error-if-exists"]
        code, said = await refusal(again)
        assert code == Exit.ENVIRONMENT
        assert "AlreadyExists" in said

    run(tmp_path, test)


def test_B4_one_log_stream_on_two_volumes(tmp_path: Path) -> None:
    async def test(place: Place) -> None:
        for name in ("volume", "second"):
            (tmp_path / name / "cid=1" / "snid=1" / "lsid=5").mkdir(parents=True)
        daemon = place.vsn()
        daemon.flags = ["--volumes", f"{tmp_path}/second"]
        code, said = await refusal(daemon)
        assert code == Exit.PROTECTED
        assert "log stream 5 is on two volumes" in said

    run(tmp_path, test)


def registered(volume: Path, cid: int = 1, snid: int = 1, seed: bytes = b"s") -> None:
    """Leave a volume as a node does that was registered."""
    volume.mkdir(exist_ok=True)
    volumes = Volumes.open(OSFileSystem(), ClusterID(cid), StorageNodeID(snid), [str(volume)])
    secret = new_secret(seed * 32)
    volumes.secrets.keep(Held(1, secret, proof_of(StorageNodeID(snid), secret)), None)
    volumes.close()


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ("renamed", "is the data of storage node 2 of cluster 1, not of storage node 1 of cluster 1"),
        ("swapped", "is of storage node 2 of cluster 1"),
        ("foreign", "is of storage node 1 of cluster 7"),
        ("different", "hold an identity of different times"),
    ],
)
def test_B11_a_data_directory_that_is_not_this_node_s(wrong: str, told: str, tmp_path: Path) -> None:
    async def test(place: Place) -> None:
        daemon = place.vsn()
        match wrong:
            case "renamed":
                registered(place.volume, snid=2)
                (place.volume / "cid=1" / "snid=2").rename(place.volume / "cid=1" / "snid=1")
            case "swapped":
                registered(place.volume, snid=2)
            case "foreign":
                registered(place.volume, cid=7)
            case _:
                registered(place.volume)
                registered(tmp_path / "second", seed=b"t")
                daemon.flags = ["--volumes", f"{tmp_path}/second"]
        code, said = await refusal(daemon)
        assert code == Exit.PROTECTED
        assert "WrongIdentity" in said
        assert told in said
        assert str(place.volume) in said
        assert new_secret(b"s" * 32) not in daemon.log.read_text()

    run(tmp_path, test)


def test_B11_a_copy_of_a_node_s_directory(tmp_path: Path) -> None:
    """It says what it is and ends, as soon as the metadata repository has told it so."""

    async def test(place: Place) -> None:
        vmr = place.vmr()
        await vmr.start()
        vms = place.vms(metadata_repository=vmr.address)
        await vms.start()
        node = place.vsn(metadata_repository=vmr.address)
        await node.start()
        cluster = ClusterFile((vmr.address,), 1, "secret", DEFAULT_TOPIC)
        write_file(tmp_path / CLUSTER_FILE, cluster)
        async with admin(tmp_path) as operator:
            await operator.add_node(node.address)
        await node.says("identity taken")
        assert await node.stop() == Exit.OK
        shutil.copytree(place.volume, tmp_path / "copy")
        await node.start()
        copied = place.vsn("copy", metadata_repository=vmr.address, volumes=f"{tmp_path}/copy")
        await copied.start()
        assert await copied.ended() == Exit.PROTECTED
        assert "WrongIdentity" in copied.said()
        assert "they are a copy" in copied.said()
        assert node.alive

    run(tmp_path, test)


@pytest.mark.parametrize("wrong", ["missing", "open", "short"])
def test_a_secret_that_is_none(wrong: str, tmp_path: Path) -> None:
    async def test(place: Place) -> None:
        secret = tmp_path / "secret"
        match wrong:
            case "missing":
                secret.unlink()
            case "open":
                secret.chmod(0o644)
            case _:
                secret.write_text("00ff")
        code, said = await refusal(place.vsn())
        assert code == Exit.ENVIRONMENT
        assert "SecretUnusable" in said
        assert str(secret) in said

    run(tmp_path, test)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [("secret", "secret"), ("cluster", "of cluster 2"), ("role", "METADATA_REPOSITORY")],
)
def test_a_node_of_another_cluster_is_refused_and_says_so(wrong: str, told: str, tmp_path: Path) -> None:
    async def test(place: Place) -> None:
        vmr = place.vmr()
        await vmr.start()
        sound = place.vsn("sound", metadata_repository=vmr.address, snid="9")
        await sound.start()
        stranger = place.vsn("stranger", metadata_repository=vmr.address)
        match wrong:
            case "secret":
                Secret.create(tmp_path / "other")
                stranger.options["secret_file"] = f"{tmp_path}/other"
            case "cluster":
                stranger.options["cluster"] = "2"
            case _:
                stranger.options["metadata_repository"] = sound.address
        await stranger.start()
        await stranger.says("no connection to")
        assert told in stranger.said()
        assert "is not registered" in sound.said(), "the one that belongs there got through"
        assert await stranger.stop() == Exit.OK
        secret = (tmp_path / "secret").read_text().strip()
        assert not [daemon.name for daemon in (vmr, sound, stranger) if secret in daemon.log.read_text()]

    run(tmp_path, test)


def test_a_daemon_stops_in_an_orderly_way_also_when_it_is_alone(tmp_path: Path) -> None:
    async def test(place: Place) -> None:
        daemon = place.vsn()
        await daemon.start()
        await daemon.says("no connection to 127.0.0.1:1")
        assert await daemon.stop() == Exit.OK

    run(tmp_path, test)
