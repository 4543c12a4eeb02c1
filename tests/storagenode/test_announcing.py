"""B11 over real sockets: a node proves who it is whenever it connects; a copy, a stranger and an empty disk are told
from it."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from tests.daemon.small import Small, cluster, run, until
from varlog import errors
from varlog.core.identity import boot_of, new_secret
from varlog.core.messages import AddNode, AdoptIdentity, AnnounceNode, Decided, IdentityAdopted, RemoveNode
from varlog.core.metastate import Node
from varlog.storagenode.daemon import health
from varlog.storagenode.identity import IDENTITY_NAME
from varlog.storagenode.server import StorageNodeServer
from varlog.types import StorageNodeID
from varlog.wire import Role

SECRET = new_secret(b"s" * 32)


def identity_file(small: Small, number: int) -> Path:
    return Path(small.volumes(number)[0]) / "cid=3" / f"snid={number}" / IDENTITY_NAME


def recorded(small: Small, number: int) -> Node:
    return small.vmr.repository.state.nodes[StorageNodeID(number)]


async def settled(small: Small, number: int) -> None:
    """The node has changed its secret, and the metadata repository knows."""
    boot = small.nodes[number].node.boot

    def is_settled() -> bool:
        return (recorded(small, number).boot, recorded(small, number).next_proof) == (boot, "")

    await until(is_settled)


async def lose_disk(small: Small, number: int) -> StorageNodeServer:
    """The node starts again at its address, with nothing on its disk."""
    address = small.nodes[number].address
    await small.stop_node(number)
    shutil.rmtree(Path(small.volumes(number)[0]) / "cid=3")
    return await small.start_node(number, listen=address)


def test_B11_a_node_is_given_a_secret_and_changes_it_at_every_start(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path, nodes=1, streams=0) as small:
            await settled(small, 1)
            seen = {identity_file(small, 1).read_bytes()}
            assert (await small.info(1)).is_identified
            for starts in (2, 3):
                await small.stop_node(1)
                await small.start_node(1)
                await settled(small, 1)
                assert (await small.info(1)).boot == boot_of(1, starts)
                seen.add(identity_file(small, 1).read_bytes())
            assert len(seen) == 3
            await small.restart_vmr()
            await until(lambda: small.nodes[1].is_connected and small.managers[0].is_connected)
            await small.add_topic()
            assert (await small.append(b"x")).code == 0
            assert identity_file(small, 1).read_bytes() in seen, "a reconnect changes nothing"

    run(main())


def test_B11_a_copy_does_not_take_part_while_the_node_runs_nor_the_node_once_the_copy_does(tmp_path: Path) -> None:
    async def main() -> None:
        async with Small(tmp_path) as small:
            await small.start()
            await settled(small, 1)
            await asyncio.to_thread(shutil.copytree, small.volumes(1)[0], tmp_path / "copy")
            original = small.nodes[1]
            copied = await small.start_node(1, volumes=[str(tmp_path / "copy")])
            await until(lambda: bool(copied.announcing.refusal))
            assert "is running already" in copied.announcing.refusal
            assert original.address in copied.announcing.refusal
            assert health(copied).status == "refused"
            assert health(original).status == "ok"
            await small.running()
            small.nodes[1] = original  # perhaps the primary
            assert (await small.append(b"x")).code == 0
            small.nodes[1] = copied
            assert recorded(small, 1).address == original.address
            await original.stop()
            await settled(small, 1)
            assert recorded(small, 1).address == copied.address
            await until(lambda: health(copied).status == "ok")
            assert small.failures == []
            late = await small.start_node(4, snid=1, volumes=small.volumes(1))
            await until(lambda: bool(small.failures))
            (failure,) = small.failures
            assert isinstance(failure, errors.WrongIdentity)
            assert "copy" in str(failure)
            assert not late.is_connected

    run(main())


def test_B11_an_older_copy_stops_at_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with Small(tmp_path) as small:
            await small.start(streams=0)
            await settled(small, 2)
            await small.stop_node(2)
            await asyncio.to_thread(shutil.copytree, small.volumes(2)[0], tmp_path / "copy")
            await small.start_node(2)
            await settled(small, 2)
            await small.stop_node(2)
            await small.start_node(2, volumes=[str(tmp_path / "copy")])
            await until(lambda: bool(small.failures))
            assert isinstance(small.failures[0], errors.WrongIdentity)

    run(main())


def test_B11_a_node_that_comes_with_an_empty_disk_is_not_heard_and_says_so(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path, nodes=2, streams=0) as small:
            await settled(small, 2)
            await small.stop_manager(small.managers[0])  # which would give it another secret
            node = await lose_disk(small, 2)
            await until(lambda: bool(node.announcing.refusal))
            assert "hold no secret" in node.announcing.refusal
            info = await small.info(2)
            assert (info.is_identified, info.boot) == (False, 1)
            await small.start_manager()
            await until(lambda: recorded(small, 2).generation == 2)
            await until(lambda: node.announcing.is_identified)
            assert node.node.boot == boot_of(2, 1)
            await settled(small, 2)
            assert not node.announcing.refusal
            await small.add_topic()

    run(main())


def test_B11_a_lost_disk_comes_back_as_a_learner(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path) as small:
            assert (await small.append(b"a", b"b")).code == 0
            await lose_disk(small, 3)
            await until(lambda: recorded(small, 3).generation == 2)

            def is_back() -> bool:
                (stream,) = small.streams()
                replica = small.nodes[3].replicas.get(stream.lsid)
                return 3 in stream.replicas and replica is not None and replica.executor.committed_end == 3

            await until(is_back)
            await small.running(beyond=2)
            assert (await small.append(b"c", sequence=2)).code == 0

    run(main())


def test_M1_a_node_that_was_removed_and_added_again_has_another_secret(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path, nodes=2, streams=0) as small:
            await settled(small, 2)
            node = small.nodes[2]
            await small.manage(lambda request: RemoveNode(request, StorageNodeID(2)))
            await small.stop_node(2)
            node = await small.start_node(2)
            await until(lambda: node.is_connected)
            await small.manage(lambda request: AddNode(request, node.address))
            await settled(small, 2)
            assert (node.node.boot, recorded(small, 2).generation) == (boot_of(2, 2), 2)
            await small.add_topic()

    run(main())


def test_B11_only_a_manager_gives_a_node_its_identity(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path, nodes=1, streams=0) as small:
            await settled(small, 1)
            before = identity_file(small, 1).read_bytes()
            given = AdoptIdentity(1, StorageNodeID(1), SECRET, 9)
            for role in (Role.CLIENT, Role.STORAGE_NODE):
                caller = await small.call_node(1, role, 7)
                caller.connection.send(given)
                assert isinstance(await caller.ended, errors.ProtocolError)
            manager = await small.call_node(1, Role.MANAGER)
            for snid, generation in ((2, 9), (1, 1)):
                reply = await manager.ask(
                    IdentityAdopted,
                    lambda request, snid=snid, generation=generation: AdoptIdentity(  # type: ignore[misc]
                        request, StorageNodeID(snid), SECRET, generation
                    ),
                )
                assert reply.code == errors.WrongIdentity.code
            assert identity_file(small, 1).read_bytes() == before

    run(main())


def test_B11_a_process_that_speaks_in_a_node_s_name_gets_nothing_that_is_meant_for_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path) as small:
            await settled(small, 1)
            stranger = await small.call_vmr(Role.STORAGE_NODE, 1)
            refused = await stranger.ask(
                Decided,
                lambda request: AnnounceNode(request, StorageNodeID(1), "127.0.0.1:1", (), boot_of(1, 9), SECRET),
            )
            assert refused.code in {errors.Busy.code, errors.WrongIdentity.code}
            assert (await small.append(b"x", b"y")).code == 0
            assert stranger.heard == []
            assert recorded(small, 1).address == small.nodes[1].address

    run(main())


def test_no_secret_is_in_the_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def main() -> None:
        async with cluster(tmp_path, nodes=1, streams=0) as small:
            await settled(small, 1)
            secrets.add(identity_file(small, 1).read_text().split('"held":[1,"')[1][:64])
            await small.stop_node(1)
            await small.start_node(1)
            await settled(small, 1)
            secrets.add(identity_file(small, 1).read_text().split('"held":[1,"')[1][:64])

    secrets: set[str] = set()
    run(main())
    said = capsys.readouterr()
    assert len(secrets) == 2
    assert not [secret for secret in secrets if secret in said.out + said.err]
