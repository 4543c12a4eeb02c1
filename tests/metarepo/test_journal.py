"""The embedded journal: what it promises beyond the store's interface (rule 16).

What a crash may leave on its disk is in `test_journal_crash`.
"""

from __future__ import annotations

import errno
import queue
import random
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tests.metarepo.rigs import (
    CID,
    DIRECTORY,
    Inbox,
    JournalRig,
    commit,
    grant,
    leader_revision,
    look,
    open_journal,
    pump,
    unheard,
)
from varlog import limits
from varlog.core.store import (
    Committed,
    Compare,
    CompareFailed,
    KeyValue,
    Put,
    ReadResult,
    Txn,
    TxnOutcome,
    WatchEvents,
    WatchNotice,
)
from varlog.errors import (
    Busy,
    DirectoryLocked,
    DiskFull,
    NotWritable,
    OutcomeUnknown,
    StoreUnavailable,
    WrongIdentity,
)
from varlog.metarepo.journal import Journal, JournalGroup
from varlog.metarepo.journalfile import decode_mark
from varlog.sim.disk import SimDisk
from varlog.storage.files import OSFileSystem
from varlog.types import ClusterID


@pytest.fixture
def rig() -> JournalRig:
    return JournalRig()


def put(key: str, value: bytes, *compares: Compare) -> Txn:
    return Txn(compares, (Put(key, value),))


def taken(journal: Journal) -> JournalGroup:
    group = journal.take()
    assert group is not None
    return group


# Leadership and what survives


def test_rule16_every_start_raises_the_term(rig: JournalRig) -> None:
    revisions = []
    for term in range(1, 5):
        assert rig.journal.term == term
        revisions.append(leader_revision(rig.journal))
        found = commit(rig, put("a", b"", Compare("leader", revisions[-1])))
        assert isinstance(found, Committed)
        rig.restart()
    assert revisions == sorted(set(revisions))
    assert isinstance(commit(rig, put("a", b"", Compare("leader", revisions[-1]))), CompareFailed)


def test_keys_revisions_and_leases_survive_a_restart(rig: JournalRig) -> None:
    lease = grant(rig, 5)
    commit(rig, Txn(puts=(Put("a", b"1", lease), Put("b", b"2"))))
    commit(rig, Txn(puts=(Put("c", b"3"),), deletes=("b",)))
    before = look(rig)
    for _ in range(2):
        rig.restart()
        assert look(rig) == before
    rig.advance(4)
    assert look(rig) == before, "the lease's time begins anew with the process that counts it"
    rig.advance(2)
    assert look(rig).keys() == {"c"}
    assert grant(rig, 5) > lease


def test_a_revoked_lease_stays_revoked(rig: JournalRig) -> None:
    lease = grant(rig, 5)
    commit(rig, Txn(puts=(Put("a", b"1", lease),)))
    rig.journal.lease_revoke(lease, unheard)
    pump(rig.journal)
    rig.restart()
    assert look(rig) == {}
    rig.advance(20)
    assert grant(rig, 5) > lease


# Answers and the disk


def test_nothing_is_answered_or_told_before_it_is_synced(rig: JournalRig) -> None:
    journal = rig.journal
    start = leader_revision(journal)
    answers: list[str] = []
    told: Inbox[WatchNotice] = Inbox()
    journal.watch("", start, told)
    pump(journal)

    def heard(name: str) -> Callable[[object], None]:
        return lambda _: answers.append(name)

    journal.txn(put("a", b"1"), heard("put"))
    journal.txn(put("a", b"2", Compare("a", 0)), heard("failed compare"))
    journal.read(("a",), heard("read"))
    group = taken(journal)
    journal.write(group)
    assert answers == []
    journal.sync(group)
    assert (answers, told.items) == ([], [])
    journal.finish(group)
    assert answers == ["put", "failed compare", "read"]
    assert told.items == [WatchEvents(start + 1, (KeyValue("a", b"1", start + 1),), ())]


def read_mark(rig: JournalRig) -> int:
    file = rig.disk.open(f"{DIRECTORY}/synced")
    mark = decode_mark(file.pread(file.size(), 0))
    assert mark is not None
    return mark.synced


def test_rule16_a_mark_that_was_left_for_later_is_written_then(rig: JournalRig) -> None:
    journal = rig.journal
    journal.txn(put("a", b"1"), Inbox[TxnOutcome]())
    group = taken(journal)
    journal.write(group)
    journal.sync(group, mark=False)
    journal.finish(group)
    assert read_mark(rig) != group.end.offset
    journal.mark()
    assert read_mark(rig) == group.end.offset


def test_requests_that_came_in_meanwhile_share_the_next_sync(rig: JournalRig) -> None:
    journal = rig.journal
    start = leader_revision(journal)
    outcomes: Inbox[TxnOutcome] = Inbox()
    journal.txn(put("a", b"0"), outcomes)
    first = taken(journal)
    for i in range(1, 20):
        journal.txn(put("a", b"%d" % i, Compare("a", start + i)), outcomes)
    assert journal.take() is None, "one group at a time"
    journal.write(first)
    journal.sync(first)
    journal.finish(first)
    assert len(outcomes.items) == 1
    before = rig.disk.operations
    pump(journal)
    assert rig.disk.operations - before == 3, "one write, one sync, one mark"
    assert [type(outcome) for outcome in outcomes.items] == [Committed] * 20


def test_reads_and_failed_compares_cost_no_sync(rig: JournalRig) -> None:
    before = rig.disk.operations
    look(rig)
    assert isinstance(commit(rig, put("a", b"", Compare("b", 5))), CompareFailed)
    assert commit(rig, Txn(deletes=("a",))) == Committed(leader_revision(rig.journal))
    assert rig.disk.operations == before


def test_wake_is_called_when_there_is_work_and_nobody_at_it(rig: JournalRig) -> None:
    journal = rig.journal
    wakes: list[int] = []
    journal.wake = lambda: wakes.append(1)
    journal.txn(put("a", b"1"), unheard)
    journal.txn(put("a", b"2"), unheard)
    assert len(wakes) == 1
    group = taken(journal)
    journal.read(("a",), unheard)
    assert len(wakes) == 1
    journal.write(group)
    journal.sync(group)
    journal.finish(group)
    pump(journal)
    journal.read(("a",), unheard)
    assert len(wakes) == 2


def test_requests_waiting_are_bounded(rig: JournalRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_STAGED_REQUESTS", 3)
    for _ in range(3):
        rig.journal.txn(put("a", b"1"), unheard)
    with pytest.raises(Busy):
        rig.journal.txn(put("b", b"2"), unheard)
    pump(rig.journal)
    assert look(rig).keys() == {"a"}


def test_a_thread_may_do_the_writing(tmp_path: Path) -> None:
    """As in production: the owner stages and answers, another thread waits for the disk."""
    journal = Journal.open(OSFileSystem(), str(tmp_path / "meta"), CID)
    to_write: queue.Queue[JournalGroup | None] = queue.Queue()
    written: queue.Queue[JournalGroup] = queue.Queue()

    def writer() -> None:
        while (group := to_write.get()) is not None:
            journal.write(group)
            journal.sync(group)
            written.put(group)

    def work() -> None:
        if (group := journal.take()) is not None:
            to_write.put(group)

    thread = threading.Thread(target=writer)
    thread.start()
    outcomes: Inbox[TxnOutcome] = Inbox()
    journal.wake = work
    for i in range(200):
        journal.txn(put(f"k{i % 10}", b"%d" % i), outcomes)
    while len(outcomes.items) < 200:
        journal.finish(written.get(timeout=60))
        work()
    to_write.put(None)
    thread.join()
    assert outcomes.items == [Committed(2 + i) for i in range(200)]
    journal.close()


# Faults of the disk


@pytest.mark.parametrize("fault", ["write", "sync"])
def test_rule16_a_failed_write_or_fsync_stops_the_journal_for_good(rig: JournalRig, fault: str) -> None:
    commit(rig, put("a", b"1"))
    outcomes: Inbox[TxnOutcome] = Inbox()
    rig.journal.txn(put("a", b"2"), outcomes)
    rig.journal.txn(put("a", b"3", Compare("a", 0)), outcomes)
    (rig.disk.fail_writes if fault == "write" else rig.disk.fail_syncs)()
    group = taken(rig.journal)
    rig.journal.txn(put("b", b"4"), outcomes)
    rig.journal.write(group)
    rig.journal.sync(group)
    rig.journal.finish(group)
    pump(rig.journal)
    assert [type(outcome) for outcome in outcomes.items] == [OutcomeUnknown, StoreUnavailable, StoreUnavailable]
    assert isinstance(rig.journal.failed, OSError)

    rig.disk.heal()
    before = rig.disk.operations
    later: Inbox[object] = Inbox()
    rig.journal.txn(put("c", b"5"), later)
    rig.journal.read(("a",), later)
    rig.journal.lease_grant(5, later)
    rig.advance(10)
    assert [type(outcome) for outcome in later.items] == [StoreUnavailable] * 3
    assert rig.disk.operations == before, "a failed fsync is never tried again"


@pytest.mark.parametrize("seed", range(20))
def test_what_a_restart_shows_after_a_failed_fsync_is_on_the_disk(seed: int) -> None:
    """The page cache shows what the failed sync lost; told once, it must not be gone after a power loss."""
    rig = JournalRig()
    rng = random.Random(seed)
    commit(rig, put("a", b"1"))
    rig.disk.fail_syncs(rng=rng)
    assert isinstance(commit(rig, put("a", b"2")), OutcomeUnknown)
    if seed % 2:
        rig.disk.evict()
    rig.restart()
    shown = look(rig)
    rig.disk.power_loss(rng)
    rig.restart()
    assert look(rig) == shown


def test_a_start_on_a_full_disk_says_so_and_loses_nothing(rig: JournalRig) -> None:
    commit(rig, put("a", b"1"))
    rig.journal.close()
    before = rig.disk.image()
    refused = 0
    for free in range(0, 6000, 100):
        disk = SimDisk.from_image(before)
        disk.set_free_bytes(free)
        try:
            open_journal(disk)
        except DiskFull:
            refused += 1
            assert disk.image() == before
        disk.heal()
        disk.kill()
        assert look(JournalRig(disk))["a"].value == b"1"
    assert 40 < refused < 60


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_any_operation_may_fail_and_nothing_acknowledged_is_lost(error: int) -> None:
    """Open, write, compact and open again on a disk whose n-th operation fails, for every n there is."""
    number = 0
    reached = True
    while reached:
        number += 1
        disk = SimDisk()
        disk.fail_operation(number, error)
        outcomes: Inbox[TxnOutcome] = Inbox()
        for _ in range(2):
            with suppress(DiskFull if error == errno.ENOSPC else StoreUnavailable):
                journal = open_journal(disk, compact_bytes=300)
                for i in range(4):
                    journal.txn(put(f"k{len(outcomes.items)}", bytes(100 + i)), outcomes)
                    pump(journal)
            disk.kill()
        reached = disk.operations >= number
        disk.heal()
        kept = look(JournalRig(disk))
        for i, outcome in enumerate(outcomes.items):
            if isinstance(outcome, Committed):
                assert kept[f"k{i}"].revision == outcome.revision
            elif isinstance(outcome, StoreUnavailable):
                assert f"k{i}" not in kept
    assert number > 40


# Growth


def test_a_file_that_grew_is_written_anew_and_stays_bounded(rig: JournalRig) -> None:
    start = leader_revision(rig.journal)
    rig.journal.watch("", start, told := Inbox[WatchNotice]())
    bytes_written = 0
    for i in range(3000):
        at = commit(rig, Txn(puts=(Put("version", b"%d" % i), Put(f"cut/{i % 20}", bytes(50)))))
        assert at == Committed(start + 1 + i)
        assert rig.disk.open(f"{DIRECTORY}/journal").size() <= 4 * 4096
        bytes_written += 150
    assert bytes_written > 20 * 4 * 4096
    assert len(told.items) == 3000
    before = look(rig)
    assert len(before) == 21
    rig.restart()
    assert look(rig) == before
    assert rig.disk.listdir(DIRECTORY) == ["journal", "lock", "synced"]


def test_a_large_state_is_not_written_anew_for_every_small_change(rig: JournalRig) -> None:
    commit(rig, put("large", bytes(1_000_000)))
    headers = set()
    for i in range(1000):
        commit(rig, put("small", b"%d" % i))
        headers.add(rig.disk.open(f"{DIRECTORY}/journal").pread(64, 0))
    assert len(headers) == 1


# Who may open what


def test_two_processes_do_not_share_a_directory(tmp_path: Path) -> None:
    path = str(tmp_path / "meta")
    journal = Journal.open(OSFileSystem(), path, CID)
    with pytest.raises(DirectoryLocked):
        Journal.open(OSFileSystem(), path, CID)
    assert journal.term == 1
    journal.close()
    again = Journal.open(OSFileSystem(), path, CID)
    assert again.term == 2
    again.close()


def test_a_directory_of_another_cluster_is_refused_and_untouched(rig: JournalRig) -> None:
    rig.journal.close()
    before = rig.disk.image()
    with pytest.raises(WrongIdentity):
        open_journal(rig.disk, cid=ClusterID(8))
    assert rig.disk.image() == before
    assert open_journal(rig.disk).term == 2


def test_what_is_no_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(NotWritable):
        Journal.open(OSFileSystem(), str(tmp_path / "file"), CID)
    with pytest.raises(NotWritable):
        Journal.open(OSFileSystem(), str(tmp_path / "file" / "below"), CID)


def test_a_closed_journal_refuses_everything(rig: JournalRig) -> None:
    outcomes: Inbox[object] = Inbox()
    rig.journal.txn(put("a", b"1"), outcomes)
    rig.journal.close()
    rig.journal.read(("a",), outcomes)
    pump(rig.journal)
    assert [type(outcome) for outcome in outcomes.items] == [StoreUnavailable, StoreUnavailable]
    rig.restart()
    assert look(rig) == {}


def test_it_works_on_real_files(tmp_path: Path) -> None:
    path = str(tmp_path / "some" / "where" / "meta")
    outcomes: Inbox[TxnOutcome] = Inbox()
    for term in (1, 2, 3):
        journal = Journal.open(OSFileSystem(), path, CID)
        assert journal.term == term
        journal.txn(put(f"of term {term}", b"x"), outcomes)
        found: Inbox[object] = Inbox()
        journal.read_prefix("of term", found)
        pump(journal)
        assert isinstance(found.one, ReadResult)
        assert len(found.one.kvs) == term
        journal.close()
    assert outcomes.items == [Committed(2), Committed(4), Committed(6)]
