"""Metadata as a whole: out of a journal or an etcd into a file, and into another store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from tests.metarepo.etcds import own_prefix
from tests.metarepo.rigs import CID, pump
from varlog import errors
from varlog.core.messages import (
    BeginTransaction,
    CreateStream,
    CreateTopic,
    EndTransaction,
    Message,
    ProposeProjection,
    RegisterManager,
    RegisterNode,
    RegisterSequencer,
    RegisterStream,
)
from varlog.core.metarepo import SNAPSHOT_EVERY, MetadataRepository, Role
from varlog.core.metastate import Checkpoint, MetadataState, Node
from varlog.core.projection import Chain, Projection, Stripe
from varlog.core.store import LEADER_KEY, MEMBER_PREFIX, Put, Txn, entry_key
from varlog.etcdserver import EtcdCluster
from varlog.metarepo import backup, checkedfile, offline
from varlog.metarepo.backup import KIND, Backup
from varlog.metarepo.etcd.address import EtcdAddress, EtcdOptions
from varlog.metarepo.journal import Journal
from varlog.metarepo.offline import OfflineStore
from varlog.metarepo.stores import open_etcd
from varlog.storage.files import OSFileSystem
from varlog.types import GLSN, ClusterID, Epoch, LogStreamID, Ordering, StorageNodeID, Term, TopicID, TransactionID

FS = OSFileSystem()
TIME = 1_700_000_000


def decide(path: Path, topics: int, first: int = 1) -> MetadataState:
    """Let a metadata repository on that journal make so many topics; its state."""
    journal = Journal.open(FS, str(path), CID)
    repository = MetadataRepository(journal, lambda *_: None, lambda _: None)
    repository.campaign(0.0)
    pump(journal)
    repository.on_message("manager", RegisterManager(1, "manager:9093"), 0.0)
    for number in range(first, first + topics):
        repository.on_message("manager", CreateTopic(number, f"topic {number}", 3, 2), 0.0)
        pump(journal)
    assert repository.role is Role.LEADING
    journal.close()
    return repository.state


def load(path: Path) -> tuple[MetadataState, Term]:
    """What a metadata repository finds there, and its term."""
    journal = Journal.open(FS, str(path), CID)
    repository = MetadataRepository(journal, lambda *_: None, lambda _: None)
    repository.campaign(0.0)
    pump(journal)
    journal.close()
    return repository.state, repository.term


def transact(path: Path) -> MetadataState:
    """Let a metadata repository on that journal begin two transactions of topic 1, of which one commits; its state."""
    journal = Journal.open(FS, str(path), CID)
    repository = MetadataRepository(journal, lambda *_: None, lambda _: None)
    repository.campaign(0.0)
    pump(journal)
    for name in ("committed", "open"):
        repository.on_message("client", BeginTransaction(1, TopicID(1), name, "token", GLSN(0), 1000, 7), 3.0)
        pump(journal)
    txid = TransactionID(repository.state.version - 1)
    repository.on_message("client", EndTransaction(2, TopicID(1), txid, True, GLSN(5)), 4.0)
    pump(journal)
    journal.close()
    register = repository.state.registers[TopicID(1)]
    assert (list(register.names), [one.name for one in register.open.values()]) == (["committed"], ["open"])
    return repository.state


async def taken_from(path: Path) -> Backup:
    async with offline.opened(str(path), FS) as store:
        return await backup.take(store, TIME)


async def put_into(path: Path, taken: Backup, *, replace: bool = False) -> backup.Written:
    async with offline.opened(str(path), FS, CID, makes=True) as store:
        return await backup.put(store, backup.checkpoint_of(taken.keys), taken.term, replace=replace)


@pytest.mark.parametrize("topics", [3, SNAPSHOT_EVERY + 20], ids=["entries", "snapshot"])
def test_M4_what_is_restored_is_what_was_backed_up(topics: int, tmp_path: Path) -> None:
    state = decide(tmp_path / "old", topics)
    taken = asyncio.run(taken_from(tmp_path / "old"))
    checkedfile.write(FS, tmp_path / "file", KIND, taken)
    assert checkedfile.read(FS, tmp_path / "file", KIND, Backup) == taken
    written = asyncio.run(put_into(tmp_path / "new", taken))
    assert (written.version, written.topics) == (state.version, topics)
    found, term = load(tmp_path / "new")
    assert found == state
    assert term > written.term > taken.term
    assert decide(tmp_path / "new", 1, first=topics + 1).version == state.version + 1  # its manager is on record


@pytest.mark.parametrize("topics", [3, SNAPSHOT_EVERY + 20], ids=["entries", "snapshot"])
def test_transactions_are_backed_up_and_restored(topics: int, tmp_path: Path) -> None:
    decide(tmp_path / "old", topics)
    state = transact(tmp_path / "old")
    asyncio.run(put_into(tmp_path / "new", asyncio.run(taken_from(tmp_path / "old"))))
    assert load(tmp_path / "new")[0] == state


def test_S2_projections_and_sequencers_are_backed_up_and_restored(tmp_path: Path) -> None:
    state = decide_projection(tmp_path / "old")
    assert state.topics[TopicID(1)].epoch == 1
    assert state.sequencers == {"sequencer:9094": 7}
    taken = asyncio.run(taken_from(tmp_path / "old"))
    checkedfile.write(FS, tmp_path / "file", KIND, taken)
    asyncio.run(put_into(tmp_path / "new", checkedfile.read(FS, tmp_path / "file", KIND, Backup)))
    assert load(tmp_path / "new")[0] == state


def decide_projection(path: Path) -> MetadataState:
    """Let a metadata repository on that journal give a topic its first projection; its state."""
    journal = Journal.open(FS, str(path), CID)
    repository = MetadataRepository(journal, lambda *_: None, lambda _: None)
    repository.campaign(0.0)
    pump(journal)
    snid, lsid, tpid = StorageNodeID(1), LogStreamID(1), TopicID(1)
    stripes, chains = (Stripe(GLSN(1), 10, (lsid,)),), (Chain(lsid, (snid,)),)
    projection = Projection(Epoch(1), "sequencer:9094", 7, GLSN(1), 0, stripes, chains)
    asked: list[Message] = [RegisterManager(1, "manager:9093"), RegisterNode(2, snid)]
    asked += [RegisterSequencer(3, "sequencer:9094", 7), CreateStream(5, tpid), RegisterStream(6, lsid, (snid,))]
    asked.insert(3, CreateTopic(4, "orders", 1, 1, GLSN(1), Ordering.SEQUENCER, 10))
    for message in (*asked, ProposeProjection(7, tpid, Epoch(0), projection)):
        repository.on_message("manager", message, 0.0)
        pump(journal)
    journal.close()
    return repository.state


def test_a_backup_leaves_out_who_leads(tmp_path: Path) -> None:
    decide(tmp_path / "old", 3)
    taken = asyncio.run(taken_from(tmp_path / "old"))
    assert LEADER_KEY not in taken.keys
    assert (taken.cid, taken.time, taken.term) == (CID, TIME, Term(3))


def test_the_term_is_above_that_of_the_backup_and_of_the_store(tmp_path: Path) -> None:
    decide(tmp_path / "old", 3)
    taken = asyncio.run(taken_from(tmp_path / "old"))
    decide(tmp_path / "new", 1)
    _, term = load(tmp_path / "new")
    assert asyncio.run(put_into(tmp_path / "new", taken, replace=True)).term > term > taken.term
    assert asyncio.run(put_into(tmp_path / "third", taken)).term == taken.term + 1


def test_what_is_there_is_replaced_only_if_that_is_wanted(tmp_path: Path) -> None:
    state = decide(tmp_path / "old", 3)
    taken = asyncio.run(taken_from(tmp_path / "old"))
    present = decide(tmp_path / "new", SNAPSHOT_EVERY + 5)
    with pytest.raises(errors.StoreNotEmpty, match="--replace"):
        asyncio.run(put_into(tmp_path / "new", taken))
    assert load(tmp_path / "new")[0] == present
    asyncio.run(put_into(tmp_path / "new", taken, replace=True))
    assert load(tmp_path / "new")[0] == state


def test_a_store_that_is_in_use_is_left_alone(tmp_path: Path) -> None:
    decide(tmp_path / "old", 3)
    journal = Journal.open(FS, str(tmp_path / "old"), CID)
    with pytest.raises(errors.DirectoryLocked):
        asyncio.run(taken_from(tmp_path / "old"))
    journal.close()


def test_where_there_is_no_metadata_none_is_made(tmp_path: Path) -> None:
    with pytest.raises(errors.NotWritable, match="holds no journal"):
        asyncio.run(taken_from(tmp_path / "nothing"))
    assert not (tmp_path / "nothing").exists()
    Journal.open(FS, str(tmp_path / "empty"), CID).close()
    with pytest.raises(errors.BadBackup, match="there is no metadata"):
        asyncio.run(taken_from(tmp_path / "empty"))


def test_metadata_of_another_cluster_is_not_replaced(tmp_path: Path) -> None:
    decide(tmp_path / "old", 3)

    async def put() -> None:
        async with offline.opened(str(tmp_path / "old"), FS, ClusterID(CID + 1), makes=True):
            pytest.fail("it is of another cluster")

    with pytest.raises(errors.WrongIdentity):
        asyncio.run(put())


def _without(taken: Backup, key: str) -> Backup:
    return Backup(taken.cid, taken.term, taken.revision, taken.time, {k: v for k, v in taken.keys.items() if k != key})


def _with(taken: Backup, key: str, value: bytes) -> Backup:
    return Backup(taken.cid, taken.term, taken.revision, taken.time, taken.keys | {key: value})


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda taken: _without(taken, entry_key(2)), "version 2 of 4 is missing"),
        (lambda taken: _with(taken, entry_key(2), b"?"), "is no metadata"),
        (lambda taken: _with(taken, entry_key(9), b"?"), "holds a later one"),
        (lambda taken: _with(taken, "version", b"x"), "is no version"),
        (lambda taken: _with(taken, "version", b"5"), "version 5 of 5 is missing"),
        (lambda taken: _with(taken, "snapshot", b"?"), "is no metadata"),
    ],
)
def test_a_backup_that_makes_no_sense_is_refused(change: Callable[[Backup], Backup], told: str, tmp_path: Path) -> None:
    decide(tmp_path / "old", 3)
    taken = asyncio.run(taken_from(tmp_path / "old"))
    with pytest.raises(errors.BadBackup, match=told):
        backup.checkpoint_of(change(taken).keys)


def test_a_file_that_is_damaged_or_something_else_is_refused(tmp_path: Path) -> None:
    decide(tmp_path / "old", 3)
    file = tmp_path / "file"
    checkedfile.write(FS, file, KIND, asyncio.run(taken_from(tmp_path / "old")))
    whole = file.read_bytes()
    with pytest.raises(errors.AlreadyExists):
        checkedfile.write(FS, file, KIND, asyncio.run(taken_from(tmp_path / "old")))
    with pytest.raises(errors.BadBackup, match="is no node survey: it is a metadata backup"):
        checkedfile.read(FS, file, "node survey", Backup)
    for damaged in (
        whole[:-2],
        whole[:-20] + b"?" + whole[-19:],
        b"",
        b"{}\n",
        b"\xff" * 100,
        whole[whole.index(b"\n") :],
    ):
        file.write_bytes(damaged)
        with pytest.raises(errors.BadBackup):
            checkedfile.read(FS, file, KIND, Backup)
    file.write_bytes(whole.replace(b'"format":1', b'"format":2', 1))
    with pytest.raises(errors.UnsupportedFormat):
        checkedfile.read(FS, file, KIND, Backup)
    with pytest.raises(errors.BadBackup, match="cannot be read"):
        checkedfile.read(FS, tmp_path / "nothing", KIND, Backup)


# On etcd


def on_etcd(etcd: EtcdCluster) -> str:
    """An address whose keys are nobody else's."""
    return str(EtcdAddress(tuple(member.endpoint for member in etcd.members), own_prefix()))


def asked(etcd: EtcdCluster, where: str, do: Callable[[OfflineStore], Coroutine[Any, Any, Any]]) -> Any:
    async def run() -> Any:
        async with offline.opened(where, FS, any_version=not etcd.program.is_sound) as store:
            return await do(store)

    return asyncio.run(run())


def test_M4_metadata_goes_from_a_journal_to_etcd_and_back(tmp_path: Path, etcd: EtcdCluster) -> None:
    decide(tmp_path / "old", SNAPSHOT_EVERY + 20)
    state = transact(tmp_path / "old")
    taken = asyncio.run(taken_from(tmp_path / "old"))
    where = on_etcd(etcd)
    checkpoint = backup.checkpoint_of(taken.keys)
    written = asked(etcd, where, lambda store: backup.put(store, checkpoint, taken.term))
    assert written.version == state.version
    with pytest.raises(errors.StoreNotEmpty):
        asked(etcd, where, lambda store: backup.put(store, checkpoint, taken.term))
    back = asked(etcd, where, lambda store: backup.take(store, TIME))
    assert (back.cid, back.term) == (None, written.term)
    asyncio.run(put_into(tmp_path / "new", back))
    assert load(tmp_path / "new")[0] == state


def test_a_metadata_repository_that_runs_on_etcd_is_noticed(tmp_path: Path, etcd: EtcdCluster) -> None:
    decide(tmp_path / "old", 3)
    taken = asyncio.run(taken_from(tmp_path / "old"))
    where, checkpoint = on_etcd(etcd), backup.checkpoint_of(taken.keys)

    async def put_while_it_runs() -> None:
        any_version = not etcd.program.is_sound
        member = await open_etcd(where, EtcdOptions(), any_version=any_version)
        done = asyncio.get_running_loop().create_future()
        member.txn(Txn((), (Put(f"{MEMBER_PREFIX}host:9092", b"{}"),)), done.set_result)
        await done
        try:
            async with offline.opened(where, FS, any_version=any_version) as store:
                await backup.put(store, checkpoint, taken.term)
        finally:
            await member.close()

    with pytest.raises(errors.StoreNotEmpty, match=r"a metadata repository runs on .* at host:9092"):
        asyncio.run(put_while_it_runs())


def test_metadata_that_etcd_cannot_take_is_refused(etcd: EtcdCluster) -> None:
    state = MetadataState()
    for number in range(1000):
        state.nodes[StorageNodeID(number)] = Node("host:9091", ("x" * 2000,))
    with pytest.raises(errors.LimitExceeded, match="takes values of"):
        asked(etcd, on_etcd(etcd), lambda store: backup.put(store, Checkpoint(state, {}), Term(1)))
