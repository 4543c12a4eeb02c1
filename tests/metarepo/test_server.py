"""The metadata repository over real sockets: who may ask for what, what it outlives, what it shows."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec
import pytest

from tests.daemon.small import CID, Small, cluster, run, until
from varlog import errors, limits
from varlog.core.messages import (
    AddLogStream,
    AnnounceNode,
    Append,
    Commit,
    CreateStream,
    CreateTopic,
    Decided,
    DeleteTopic,
    FetchCuts,
    GetInfo,
    GetMetadata,
    GetTail,
    HoldStream,
    Leading,
    LoseStream,
    Message,
    Metadata,
    NotLeading,
    PlanStream,
    ProposeProjection,
    RegisterManager,
    RegisterNode,
    RegisterSequencer,
    RenewNode,
    Report,
    SealStream,
    SequencerInfo,
    SetArchive,
    SetDraining,
    Snapshot,
    Tail,
    TrimTopic,
    UnregisterNode,
)
from varlog.core.metarepo import Role as Lead
from varlog.core.projection import Chain, Projection, Stripe
from varlog.daemon.config import MetadataRepositoryConfig
from varlog.daemon.metrics import Metrics
from varlog.metarepo.daemon import declare, health
from varlog.metarepo.server import MetadataRepositoryServer
from varlog.sim.disk import SimDisk
from varlog.types import GLSN, LLSN, Epoch, LogStreamID, Sequence, StorageNodeID, Term, TopicID, Version
from varlog.wire import Ping, Pong, Role

TOPIC = TopicID(1)
LSID = LogStreamID(1)
PROJECTION = Projection(
    Epoch(1), "127.0.0.1:1", 7, GLSN(1), 0, (Stripe(GLSN(1), 10, (LSID,)),), (Chain(LSID, (StorageNodeID(1),)),)
)


def report(snid: int = 1, seq: int = 1, version: int = 0, boot: int = 1) -> Report:
    return Report(StorageNodeID(snid), boot, seq, Version(version), (), full=True, ask=True)


MISUSES: list[tuple[Role, Message]] = [
    (Role.CLIENT, CreateTopic(9, "mine", 1, 1)),
    (Role.CLIENT, DeleteTopic(9, TOPIC)),
    (Role.CLIENT, SetArchive(9, TOPIC, "/archive")),
    (Role.CLIENT, SealStream(9, LSID, Epoch(2))),
    (Role.CLIENT, RegisterNode(9, StorageNodeID(9), "127.0.0.1:1")),
    (Role.CLIENT, RenewNode(9, StorageNodeID(1), 1, "0" * 64)),
    (Role.CLIENT, SetDraining(9, StorageNodeID(1), True)),
    (Role.CLIENT, PlanStream(9, LSID, StorageNodeID(0), StorageNodeID(1))),
    (Role.CLIENT, HoldStream(9, LSID, True)),
    (Role.CLIENT, LoseStream(9, LSID, Epoch(3), GLSN(1))),
    (Role.CLIENT, report()),
    (Role.CLIENT, GetInfo(9)),
    (Role.CLIENT, Append(9, LSID, Epoch(2), Sequence(0), LLSN(1), b"")),
    (Role.STORAGE_NODE, TrimTopic(9, TOPIC, GLSN(1))),
    (Role.STORAGE_NODE, CreateStream(9, TOPIC)),
    (Role.STORAGE_NODE, RenewNode(9, StorageNodeID(2), 1, "0" * 64)),
    (Role.STORAGE_NODE, SealStream(9, LSID, Epoch(2))),
    (Role.STORAGE_NODE, Commit(Term(9), Version(0), Version(99), 0, (), ())),
    (Role.STORAGE_NODE, report(snid=3)),
    (Role.STORAGE_NODE, FetchCuts(StorageNodeID(3), LSID, Version(0))),
    (Role.STORAGE_NODE, AnnounceNode(9, StorageNodeID(3), "127.0.0.1:1", ())),
    (Role.STORAGE_NODE, AnnounceNode(9, StorageNodeID(2), "nowhere", ())),
    (Role.STORAGE_NODE, AnnounceNode(9, StorageNodeID(2), "", ())),
    (Role.STORAGE_NODE, AnnounceNode(9, StorageNodeID(2), "x" * 5_000_000, ())),
    (Role.STORAGE_NODE, ProposeProjection(9, TOPIC, Epoch(0), PROJECTION)),
    (Role.CLIENT, RegisterSequencer(9, "127.0.0.1:1", 1)),
    (Role.SEQUENCER, RegisterSequencer(9, "nowhere", 1)),
    (Role.SEQUENCER, ProposeProjection(9, TOPIC, Epoch(0), PROJECTION)),
    (Role.SEQUENCER, GetTail(9, TOPIC)),
    (Role.MANAGER, report(snid=0)),
    (Role.MANAGER, RegisterSequencer(9, "127.0.0.1:1", 1)),
    (Role.MANAGER, AddLogStream(9, TOPIC, LSID)),
    (Role.MANAGER, RegisterNode(9, StorageNodeID(9), "nowhere")),
    (Role.MANAGER, RegisterManager(9, "[::1")),
]


def test_M4_who_asks_for_what_it_may_not_is_closed_and_nobody_else_notices(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path) as small:
            bystander = await small.call_vmr()
            before = await bystander.ask(Metadata, GetMetadata)
            for role, message in MISUSES:
                bad = await small.call_vmr(role, 2)
                bad.connection.send(message)
                assert isinstance(await bad.ended, errors.ProtocolError), message
            after = await bystander.ask(Metadata, GetMetadata)
            assert msgspec.structs.replace(after, request=before.request) == before

    run(main())


def test_the_roles_that_have_no_business_here_are_not_let_in(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path, nodes=0, manager=False) as small:
            with pytest.raises(errors.WrongRole):
                await small.call_vmr(Role.METADATA_REPOSITORY)
            for role in (Role.CLIENT, Role.STORAGE_NODE, Role.MANAGER, Role.SEQUENCER):
                caller = await small.call_vmr(role, 5)
                assert (await caller.ask(Pong, Ping)).time > 0

    run(main())


def test_M4_all_who_are_connected_hear_who_leads_whenever_that_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also from one that does not lead itself, or who is connected to a leader that was deposed would stay with it."""

    async def main() -> None:
        async with cluster(tmp_path, nodes=0, manager=False) as small:
            caller = await small.call_vmr()
            await until(lambda: len(caller.standings) > 0)
            first = caller.standings[0]
            assert isinstance(first, Leading)
            for count, term in enumerate((7, 8), 2):
                monkeypatch.setattr(small.vmr.keeper, "standing", partial(NotLeading, Term(term), "127.0.0.1:1"))
                await until(partial(lambda count: len(caller.standings) == count, count))
            assert [said.term for said in caller.standings] == [first.term, 7, 8], "once each"
            monkeypatch.undo()

    run(main())


def test_S7_a_client_proposes_a_projection_and_a_sequencer_registers(tmp_path: Path) -> None:
    """Neither asks a manager; what is refused is told with its error, and the connection goes on."""

    async def main() -> None:
        async with cluster(tmp_path, nodes=1) as small:
            sequencer, client = await small.call_vmr(Role.SEQUENCER), await small.call_vmr()
            granted = await sequencer.ask(Decided, lambda asked: RegisterSequencer(asked, "127.0.0.1:1", 7))
            assert granted.code == 0
            refused = await client.ask(Decided, lambda asked: ProposeProjection(asked, TOPIC, Epoch(0), PROJECTION))
            assert refused.code == errors.WrongOrdering.code
            assert "ordered by commits" in refused.detail
            assert (await client.ask(Metadata, GetMetadata)).sequencers == (SequencerInfo("127.0.0.1:1", 7),)

    run(main())


TOO_MUCH: list[Callable[[int], Message]] = [
    lambda request: RegisterNode(request, StorageNodeID(0), "127.0.0.1:1"),
    lambda request: RegisterNode(request, StorageNodeID(-1), "127.0.0.1:1"),
    lambda request: RegisterNode(request, StorageNodeID(1 << 32), "127.0.0.1:1"),
    lambda request: RegisterNode(request, StorageNodeID(9), "h" * 301 + ":1"),
    lambda request: RegisterNode(request, StorageNodeID(9), "127.0.0.1:1", ("/v",) * 257),
    lambda request: RegisterNode(request, StorageNodeID(9), "127.0.0.1:1", ("/" + "v" * 4096,)),
    lambda request: RegisterManager(request, "h" * 301 + ":1"),
    lambda request: CreateTopic(request, "x" * 256, 1, 1),
    lambda request: CreateTopic(request, "x", 1 << 60, 1),
]


def test_M1_what_is_registered_is_bounded(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path, nodes=0, manager=False) as small:
            for build in TOO_MUCH:
                decided = await small.decide(build)
                assert decided.code == errors.InvalidArgument.code, build(0)
                assert 0 < len(decided.detail) <= limits.MAX_DETAIL
            assert small.vmr.repository.state.version == 1, "that a manager registered"

    run(main())


def test_M1_a_node_is_asked_for_reports_only_once_it_is_registered(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path, nodes=0, manager=False) as small:
            node = await small.call_vmr(Role.STORAGE_NODE, 5)
            node.connection.send(report(5, seq=1))
            refused = await node.ask(
                Decided, lambda request: AnnounceNode(request, StorageNodeID(5), "127.0.0.1:5", ())
            )
            assert refused.code == errors.UnknownNode.code
            assert not node.heard, "what it reports is not even answered"
            await small.decide(lambda request: RegisterNode(request, StorageNodeID(5), "127.0.0.1:5", ("/v",)))
            node.connection.send(report(5, seq=2))
            await until(lambda: bool(node.heard))
            assert isinstance(node.heard[0], Snapshot)

            def moved(request: int) -> AnnounceNode:
                return AnnounceNode(request, StorageNodeID(5), "127.0.0.1:6", ("/v", "/w"))

            assert (await node.ask(Decided, moved)).code == 0
            (known,) = (await small.metadata()).nodes
            assert (known.address, known.volumes) == ("127.0.0.1:6", ("/v", "/w"))
            version = small.vmr.repository.state.version
            await node.ask(
                Decided, lambda request: AnnounceNode(request, StorageNodeID(5), "127.0.0.1:6", ("/v", "/w"))
            )
            assert small.vmr.repository.state.version == version, "saying it again decides nothing"

    run(main())


def test_rule5_a_node_that_is_ahead_is_looked_into_once_however_often_it_says_so(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path, nodes=0, manager=False) as small:
            await small.decide(lambda request: RegisterNode(request, StorageNodeID(5), "127.0.0.1:5"))
            node = await small.call_vmr(Role.STORAGE_NODE, 5)
            for seq in range(1, 2 * limits.MAX_STAGED_REQUESTS):
                node.connection.send(report(5, seq, version=1 << 40))
            await until(lambda: bool(node.heard))
            snapshot = node.heard[0]
            assert isinstance(snapshot, Snapshot)
            assert snapshot.reported_version > snapshot.version, "the node must stop"
            assert len((await small.metadata()).nodes) == 1

    run(main())


def test_O2_a_node_that_connects_twice_is_answered_where_it_reports(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path, nodes=0, manager=False) as small:
            await small.decide(lambda request: RegisterNode(request, StorageNodeID(5), "127.0.0.1:5"))
            old = await small.call_vmr(Role.STORAGE_NODE, 5)
            new = await small.call_vmr(Role.STORAGE_NODE, 5)
            for seq, caller in enumerate((old, new, old), 1):
                caller.heard.clear()
                caller.connection.send(report(5, seq=seq))
                await until(lambda caller=caller: bool(caller.heard))  # type: ignore[misc]
            assert len(new.heard) == 1

    run(main())


def test_O2_what_was_decided_is_there_after_a_restart(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path) as small:
            assert (await small.append(b"x", b"y")).glsn == 1
            await small.decide(lambda request: CreateTopic(request, "other", 2, 1))
            before = await small.metadata()
            term = small.vmr.repository.term
            await small.restart_vmr()
            after = await small.metadata()
            assert after == before
            assert small.vmr.repository.term > term
            client = await small.call_vmr()
            tail = await client.ask(Tail, lambda request: GetTail(request, TOPIC))
            assert (tail.code, tail.hwm) == (0, 2)
            await until(lambda: all(node.is_connected for node in small.nodes.values()))
            assert (await small.append(b"z", sequence=2)).glsn == 3, "and the log streams never stopped"

    run(main())


def test_L5_a_client_may_trim_and_ask_for_the_tail(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path) as small:
            await small.append(b"x", b"y", b"z")
            client = await small.call_vmr()
            trimmed = await client.ask(Decided, lambda request: TrimTopic(request, TOPIC, GLSN(2)))
            assert (trimmed.code, trimmed.value) == (0, 2)
            tail = await client.ask(Tail, lambda request: GetTail(request, TOPIC))
            assert (tail.hwm, tail.trim) == (3, 2)
            beyond = await client.ask(Decided, lambda request: TrimTopic(request, TOPIC, GLSN(9)))
            assert beyond.code == errors.InvalidArgument.code
            unknown = await client.ask(Tail, lambda request: GetTail(request, TopicID(77)))
            assert unknown.code == errors.UnknownTopic.code
            nobodys = await client.ask(Decided, lambda request: TrimTopic(request, TopicID(77), GLSN(1)))
            assert nobodys.code == errors.UnknownTopic.code

    run(main())


def test_a_removed_node_is_told_nothing_more(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path, nodes=0, manager=False) as small:
            register = lambda request: RegisterNode(request, StorageNodeID(5), "127.0.0.1:5")  # noqa: E731
            await small.decide(register)
            node = await small.call_vmr(Role.STORAGE_NODE, 5)
            node.connection.send(report(5, seq=1))
            await until(lambda: len(node.heard) == 1)
            await small.decide(lambda request: UnregisterNode(request, StorageNodeID(5)))
            node.connection.send(report(5, seq=2))
            await node.ask(Metadata, GetMetadata)
            assert len(node.heard) == 1
            await small.decide(register)
            node.connection.send(report(5, seq=3))
            await until(lambda: len(node.heard) == 2)
            assert isinstance(node.heard[1], Snapshot), "and after it has come back, from the beginning"

    run(main())


def test_rule16_a_journal_that_fails_ends_it_at_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with Small(tmp_path) as small:
            disk = SimDisk()
            disk.mkdir(str(tmp_path / "metadata"))
            await small.start_vmr(fs=disk)
            bystander = await small.call_vmr()
            manager = await small.call_vmr(Role.MANAGER)
            await manager.ask(Decided, lambda request: RegisterManager(request, "127.0.0.1:1"))
            disk.fail_syncs()
            for request in (1, 2):
                manager.connection.send(CreateTopic(request, f"topic {request}", 1, 1))
            await manager.ended
            await bystander.ended
            assert [type(failure) for failure in small.failures] == [errors.JournalFailed]
            assert not [said for said in manager.heard if isinstance(said, Decided) and said.code == 0]

    run(main())


def test_a_disk_that_fails_at_the_start_is_told_instead_of_serving(tmp_path: Path) -> None:
    async def main() -> None:
        async with Small(tmp_path) as small:
            disk = SimDisk()
            disk.mkdir(str(tmp_path / "metadata"))
            config = MetadataRepositoryConfig(
                cluster=CID,
                secret_file=str(small.secret_file),
                path=str(tmp_path / "metadata"),
                listen="127.0.0.1:0",
                http=None,
            )
            for number in range(1, 16):
                disk.fail_operation(disk.operations + number, 5)
                try:
                    server = await MetadataRepositoryServer.start(config, disk, small.failures.append)
                except errors.VarlogError:
                    disk.heal()
                    continue
                disk.heal()
                assert server.repository.role is Lead.LEADING
                await server.stop()

    run(main())


def test_a_path_that_is_taken_or_missing(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path, nodes=0, manager=False) as small:
            with pytest.raises(errors.DirectoryLocked):
                await small.start_vmr()
            await small.stop_vmr()
            (tmp_path / "metadata").rename(tmp_path / "elsewhere")
            with pytest.raises(errors.NotWritable, match="existing directory"):
                await small.start_vmr()
            assert not (tmp_path / "metadata").exists(), "nothing is begun anew"

    run(main())


def test_the_health_and_the_metrics_of_a_metadata_repository(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path, streams=2) as small:
            await small.append(b"x", b"y")
            told = health(small.vmr)
            assert told.status == "ok"
            version = int(small.vmr.repository.state.version)
            store = told.details.pop("store")
            assert store["name"] == f"journal in {tmp_path / 'metadata'}"
            assert told.details == {
                "address": small.vmr.address,
                "role": "leading",
                "term": int(small.vmr.repository.term),
                "leader": small.vmr.address,
                "leader_silent_seconds": 0.0,
                "lag_seconds": 0.0,
                "version": version,
                "storage_nodes": 3,
                "storage_nodes_connected": 3,
                "members": {},
                "topics": 1,
                "log_streams": 2,
            }
            metrics = Metrics("vmr", CID)
            declare(metrics, small.vmr)
            lines = (await metrics.render()).decode().splitlines()
            for line in (
                f"varlog_metadata_version_total {version}.0",
                'varlog_topic_hwm{topic="log"} 2.0',
                'varlog_stream_status{log_stream="1"} 3.0',
                "varlog_metadata_leads 1.0",
                "varlog_unreadable_metrics 0.0",
            ):
                assert line in lines
            assert any(line.startswith("varlog_journal_syncs_total ") for line in lines)

    run(main())
