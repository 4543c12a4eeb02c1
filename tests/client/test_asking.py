"""Questions with one answer: asked again where that is harmless, and never where it is not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

import varlog
from tests.client.rig import run, until
from tests.client.stage import CID, Puppet, Stage
from varlog import errors
from varlog.client.cluster import find
from varlog.core.messages import (
    AddTopic,
    Decided,
    DrainNode,
    GetMetadata,
    GetTail,
    Managed,
    Message,
    Metadata,
    Tail,
    TrimTopic,
)
from varlog.types import StorageNodeID, Version
from varlog.wire import Connection, Identity, Role, Secret


def test_a_repository_that_leads_no_more_makes_the_one_that_does_be_asked(tmp_path: Path) -> None:
    async def main() -> None:
        async with await Stage.start(tmp_path, repositories=2) as stage, varlog.connect(tmp_path) as log:

            def refuse(connection: Connection, message: GetTail) -> None:
                connection.send(Tail(message.request, errors.NotLeader.code))

            await until(lambda: all(repository.connections for repository in stage.repositories))
            stage.repositories[0].answers[GetTail] = refuse
            asking = asyncio.ensure_future(log.tail())
            await until(lambda: bool(stage.repositories[0].of(GetTail)))
            stage.elect(1)
            assert await asking == 0

    run(main())


@pytest.mark.parametrize("error", [errors.Busy, errors.StoreUnavailable])
def test_a_repository_that_cannot_now_is_asked_again(tmp_path: Path, error: type[errors.VarlogError]) -> None:
    async def main() -> None:
        async with await Stage.start(tmp_path) as stage, varlog.connect(tmp_path) as log:
            stage.write(1, [b"a"])
            (repository,) = stage.repositories
            refusals = [error, error]

            def refuse_at_first(connection: Connection, message: TrimTopic) -> None:
                if refusals:
                    connection.send(Decided(message.request, refusals.pop().code, Version(1)))
                else:
                    stage._on_trim(connection, message)

            repository.answers[TrimTopic] = refuse_at_first
            assert await log.trim(1) == 1
            assert len(repository.of(TrimTopic)) == 3

    run(main())


def test_a_refusal_is_raised_with_what_the_peer_says(tmp_path: Path) -> None:
    async def main() -> None:
        async with await Stage.start(tmp_path) as stage, varlog.connect(tmp_path) as log:

            def refuse(connection: Connection, message: TrimTopic) -> None:
                code = errors.InvalidArgument.code
                connection.send(Decided(message.request, code, Version(1), detail="beyond the tail"))

            stage.repositories[0].answers[TrimTopic] = refuse
            with pytest.raises(errors.InvalidArgument, match="beyond the tail"):
                await log.trim(9)

    run(main())


def test_silence_ends_at_the_deadline_and_says_what_is_known(tmp_path: Path) -> None:
    async def main() -> None:
        async with await Stage.start(tmp_path) as stage, varlog.connect(tmp_path) as log:
            (repository,) = stage.repositories
            repository.silent = True
            with pytest.raises(errors.DeadlineExceeded, match=f"{repository.address} did not answer GetTail") as read:
                await log.tail(timeout=0.2)
            assert read.value.happened is False
            with pytest.raises(errors.Unknown, match=r"TrimTopic .* may have been done") as changed:
                await log.trim(1, timeout=0.2)
            assert changed.value.happened is None
            with pytest.raises(errors.Unreachable, match="connected, but silent"):
                await log.refresh(timeout=0.2)
            await repository.stop()
            await until(lambda: not log._session.repositories[0].connected)
            with pytest.raises(errors.Unreachable, match="check that the process runs"):
                await log.tail(timeout=0.4)

    run(main())


# The manager


async def with_manager(stage: Stage, path: Path, answer: Callable[[Connection, AddTopic], None]) -> Puppet:
    manager = Puppet({AddTopic: answer})
    await manager.start(Identity(CID, Role.MANAGER), Secret.load(path / "secret"))

    def answer_metadata(connection: Connection, message: Message) -> None:
        known = stage.metadata(message.request)  # type: ignore[attr-defined]
        fields = {name: getattr(known, name) for name in known.__struct_fields__}
        connection.send(Metadata(**(fields | {"manager": manager.address})))

    stage.repositories[0].answers[GetMetadata] = answer_metadata
    return manager


def test_a_request_to_the_manager_is_sent_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with await Stage.start(tmp_path) as stage:
            manager = await with_manager(stage, tmp_path, lambda connection, _: connection.close())
            async with varlog.admin(tmp_path) as admin:
                with pytest.raises(errors.ConnectionLost, match=r"AddTopic .* may have been done") as caught:
                    await admin.add_topic("orders")
                assert caught.value.happened is None
                manager.silent = True
                with pytest.raises(errors.Unknown, match="may have been done"):
                    await admin.add_topic("orders", timeout=0.3)
                assert len(manager.of(AddTopic)) == 2
                await manager.stop()
                link = admin._session.manager()
                assert link is not None
                await until(lambda: not link.connected)
                with pytest.raises(errors.Unreachable) as unsent:
                    await admin.add_topic("orders", timeout=0.4)
                assert unsent.value.happened is False
            await manager.stop()

    run(main())


def test_a_manager_that_refuses_is_quoted(tmp_path: Path) -> None:
    async def main() -> None:
        async with await Stage.start(tmp_path) as stage:

            def refuse(connection: Connection, message: AddTopic) -> None:
                connection.send(Managed(message.request, errors.LimitExceeded.code, "no more than 3 topics"))

            manager = await with_manager(stage, tmp_path, refuse)
            async with varlog.admin(tmp_path) as admin:
                with pytest.raises(errors.LimitExceeded, match="no more than 3 topics"):
                    await admin.add_topic("orders")
            await manager.stop()

    run(main())


def test_a_question_that_cannot_be_said_in_bytes_harms_no_other_one(tmp_path: Path) -> None:
    async def main() -> None:
        async with await Stage.start(tmp_path) as stage:
            manager = await with_manager(stage, tmp_path, lambda connection, _: connection.close())
            async with varlog.admin(tmp_path) as admin:
                await admin.manager()
                asking, link, deadline = admin._session.asking, admin._session.manager(), admin._deadline(None)
                assert link is not None

                def drain(request: int) -> Message:
                    return DrainNode(request, StorageNodeID(1 << 70))

                for _ in range(2):
                    with pytest.raises(errors.InvalidArgument, match="DrainNode cannot be sent"):
                        await asking.ask(drain, deadline, of=link)  # the second time, when it is connected again
                    with pytest.raises(errors.ConnectionLost):
                        await admin.add_topic("orders")
                assert (len(manager.of(AddTopic)), asking.outstanding) == (2, 0)
            await manager.stop()

    run(main())


def test_no_manager_is_told(tmp_path: Path) -> None:
    async def main() -> None:
        async with await Stage.start(tmp_path), varlog.admin(tmp_path, timeout=0.5) as admin:
            with pytest.raises(errors.Unreachable, match="vms start"):
                await admin.add_topic("orders")
            with pytest.raises(errors.UnknownNode):
                await admin.node(9)
            assert find(tmp_path).cid == CID
            assert (await admin.node(StorageNodeID(1))).snid == 1

    run(main())
