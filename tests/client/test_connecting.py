"""Connecting: which cluster is meant, and what is said when it cannot be reached or does not let one in."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import varlog
from tests.client.rig import run, until
from tests.client.stage import CID, Stage
from varlog import errors
from varlog.client.cluster import CLUSTER_FILE, ClusterFile, find, read_file, write_file
from varlog.core.messages import GetTail
from varlog.wire import Identity, Role, Secret, Server, catalogue
from varlog.wire.endpoint import format_address
from varlog.wire.hello import refusal

# Which cluster


def test_a_cluster_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    told = ClusterFile(("127.0.0.1:9092", "[::1]:9092"), 7, 'a "quoted" secret', "orders\n")
    write_file(tmp_path / CLUSTER_FILE, told)
    assert read_file(tmp_path / CLUSTER_FILE) == told


def test_a_cluster_is_named_by_file_directory_or_addresses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Secret.create(tmp_path / "secret")
    write_file(tmp_path / CLUSTER_FILE, ClusterFile(("127.0.0.1:9092",), 7, topic="orders"))
    monkeypatch.delenv("VARLOG_CLUSTER", raising=False)
    for named in (tmp_path, str(tmp_path), tmp_path / CLUSTER_FILE):
        cluster = find(named)
        assert (cluster.addresses, cluster.cid, cluster.topic) == (("127.0.0.1:9092",), 7, "orders")
    assert find(tmp_path, cid=8).cid == 8
    cluster = find("a:1, b:2", secret_file=tmp_path / "secret")
    assert (cluster.addresses, cluster.cid, cluster.topic) == (("a:1", "b:2"), 1, "log")
    monkeypatch.setenv("VARLOG_CLUSTER", str(tmp_path))
    assert find().cid == 7
    monkeypatch.delenv("VARLOG_CLUSTER")
    tmp_path.rename(tmp_path.with_name("varlog-data"))
    monkeypatch.chdir(tmp_path.parent)
    assert find().cid == 7


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("metadata_repositories = []", "at least one"),
        ("metadata_repositories = ['nonsense']", "not an address"),
        ("metadata_repositories = 7", "array"),
        ("cluster = 1", "metadata_repositories"),
        ("metadata_repositories = ['a:1']\ncolour = 'red'", "colour"),
        ("metadata_repositories = ['a:1']\ncluster = 0", "cluster id"),
        ("metadata_repositories = ['a:1']\ntls_cert = 'cert.pem'", "together or not at all"),
        ("not toml", "cluster.toml"),
    ],
)
def test_a_bad_cluster_file_is_refused(tmp_path: Path, text: str, error: str) -> None:
    Secret.create(tmp_path / "secret")
    (tmp_path / CLUSTER_FILE).write_text(text)
    with pytest.raises((errors.BadConfig, errors.InvalidArgument), match=error):
        find(tmp_path)


def test_what_names_no_cluster_is_refused(tmp_path: Path) -> None:
    with pytest.raises(errors.BadConfig, match="varlog dev"):
        find(tmp_path)
    with pytest.raises(errors.BadConfig, match="neither"):
        find(tmp_path / "missing")
    with pytest.raises(errors.SecretUnusable, match="secret file"):
        find("127.0.0.1:9092")
    with pytest.raises(errors.SecretUnusable):
        find("127.0.0.1:9092", secret_file=tmp_path / "missing")


# Who is not let in


def test_another_cluster_another_secret_another_role_are_told_at_once(tmp_path: Path) -> None:
    async def main() -> None:
        other = tmp_path / "other"
        Secret.create(other)
        loop = asyncio.get_running_loop()
        async with await Stage.start(tmp_path) as stage:
            address, secret = stage.repositories[0].address, tmp_path / "secret"
            node = stage.nodes[next(iter(stage.nodes))].address
            begun = loop.time()
            with pytest.raises(errors.WrongCluster, match="cluster 8"):
                await varlog.connect(tmp_path, cid=8)
            with pytest.raises(errors.WrongSecret):
                await varlog.connect(address, cid=CID, secret_file=other)
            with pytest.raises(errors.WrongRole):
                await varlog.connect(node, cid=CID, secret_file=secret)
            with pytest.raises(errors.WrongCluster):
                await varlog.admin(tmp_path, cid=8)
            assert loop.time() - begun < 5, "no deadline was waited for"

    run(main())


def test_another_protocol_is_told_at_once(tmp_path: Path) -> None:
    async def main() -> None:
        Secret.create(tmp_path / "secret")

        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(8)
            writer.write(catalogue.encode(refusal(errors.UnsupportedProtocol("this side speaks version 9"))))
            writer.close()

        server = await asyncio.start_server(talk, "127.0.0.1", 0)
        address = format_address(server.sockets[0].getsockname())
        with pytest.raises(errors.UnsupportedProtocol, match="version 9"):
            await varlog.connect(address, secret_file=tmp_path / "secret")
        server.close()
        await server.wait_closed()

    run(main())


def test_a_cluster_nobody_serves_is_told_with_its_addresses_and_the_reason(tmp_path: Path) -> None:
    async def main() -> None:
        Secret.create(tmp_path / "secret")
        addresses = "127.0.0.1:1,127.0.0.1:2"
        with pytest.raises(errors.Unreachable, match=r"127\.0\.0\.1:1: .*127\.0\.0\.1:2: ") as caught:
            await varlog.connect(addresses, secret_file=tmp_path / "secret", timeout=0.2)
        assert caught.value.retriable

    run(main())


def test_a_silent_cluster_is_told_in_time(tmp_path: Path) -> None:
    async def main() -> None:
        async with await Stage.start(tmp_path) as stage:
            stage.repositories[0].silent = True
            with pytest.raises(errors.Unreachable, match="connected, but silent"):
                await varlog.connect(tmp_path, timeout=0.3)

    run(main())


# Several metadata repositories


def test_O3_the_repository_that_leads_is_asked_and_the_next_one_when_it_is_gone(tmp_path: Path) -> None:
    async def main() -> None:
        async with await Stage.start(tmp_path, repositories=3) as stage:
            await stage.repositories[0].stop()
            stage.elect(2)
            async with varlog.connect(tmp_path) as log:
                assert (await log.append(b"x")).glsn == 1
                assert await log.tail() == 1
                await stage.repositories[0].restart()
                await stage.repositories[2].stop()
                asking = asyncio.ensure_future(log.tail())
                await until(lambda: log._session.asking.leader is None)
                stage.elect(0)
                assert await asking == 1
                assert not stage.repositories[1].heard, "it never led"

    run(main())


def test_O3_a_question_goes_to_the_new_leader_while_the_old_one_is_silent(tmp_path: Path) -> None:
    async def main() -> None:
        async with await Stage.start(tmp_path, repositories=2) as stage, varlog.connect(tmp_path) as log:
            await until(lambda: all(repository.connections for repository in stage.repositories))
            stage.repositories[0].silent = True
            asking = asyncio.ensure_future(log.tail())
            await until(lambda: bool(stage.repositories[0].of(GetTail)))
            stage.elect(1)
            assert await asking == 0

    run(main())


def test_a_cluster_without_a_leader_is_told_with_where_one_is_said_to_be(tmp_path: Path) -> None:
    async def main() -> None:
        async with await Stage.start(tmp_path, repositories=2) as stage:
            stage.elect(1)
            first, second = (repository.address for repository in stage.repositories)
            await stage.repositories[1].stop()
            with pytest.raises(
                errors.Unreachable, match=f"{first}: does not lead.*{second}: .* said to be at {second}"
            ):
                await varlog.connect(tmp_path, timeout=0.3)

    run(main())


def test_a_cluster_that_starts_while_one_connects_is_waited_for(tmp_path: Path) -> None:
    async def main() -> None:
        async with await Stage.start(tmp_path) as stage:
            await stage.repositories[0].stop()
            connecting = asyncio.ensure_future(_connected(tmp_path))
            await until(lambda: len(asyncio.all_tasks()) > 2)
            await stage.repositories[0].restart()
            log = await connecting
            assert await log.tail() == 0
            await log.close()

    run(main())


async def _connected(path: Path) -> varlog.Log:
    return await varlog.connect(path)


def test_both_ways_to_connect(tmp_path: Path) -> None:
    async def main() -> None:
        async with await Stage.start(tmp_path):
            async with varlog.connect(tmp_path) as log:
                assert await log.tail() == 0
            async with await varlog.connect(tmp_path) as log:
                assert await log.tail() == 0
            log = await varlog.connect(tmp_path)
            await log.close()
            await log.close()

    run(main())


# A node that is not the one it should be


def test_a_stranger_at_a_nodes_address_is_not_talked_to(tmp_path: Path) -> None:
    async def main() -> None:
        async with await Stage.start(tmp_path) as stage, varlog.connect(tmp_path) as log:
            (node,) = stage.nodes.values()
            await node.stop()
            impostor = await Server.start(
                node.address,
                Identity(CID, Role.STORAGE_NODE, 9),
                frozenset(Role),
                Secret.load(tmp_path / "secret"),
                node,
            )
            with pytest.raises(errors.Unreachable, match="storage node 1 is expected"):
                await log.append(b"x", timeout=1.0)
            await impostor.close()
            await node.restart()
            assert (await log.append(b"y")).glsn == 1

    run(main())
