"""What is staged together stands in the log as if it had been staged one by one."""

from __future__ import annotations

from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.replica import LSID, ME, TOPIC, batch_of
from varlog import batch
from varlog.core.dedup import DedupTable
from varlog.core.staging import Staging
from varlog.errors import ConsistencyViolation, InvalidArgument
from varlog.sim.disk import SimDisk
from varlog.storage.log import LogStreamStorage
from varlog.storage.options import StorageOptions
from varlog.types import GLSN, LLSN, ClusterID, CommitContext, Epoch, LogStreamIdentity, Sequence, Version, WriterID

PATH = "/log"
EPOCH = Epoch(2)
IDENTITY = LogStreamIdentity(ClusterID(1), ME, TOPIC, LSID)


class Staged:
    """A log on a disk of its own, its table, and what stages both."""

    def __init__(self, segment_bytes: int = 1 << 20) -> None:
        nonces = count(1)
        self.disk = SimDisk()
        options = StorageOptions(segment_bytes=segment_bytes, nonce=lambda: next(nonces))
        self.storage = LogStreamStorage.create(self.disk, PATH, IDENTITY, options)
        self.dedup = DedupTable()
        self.storage.snapshot_source = self.dedup.snapshot
        self.staging = Staging(self.storage, self.dedup)
        self.sequence = 0
        self.end = 1
        self.committed = 1

    def _new(self, entries: int, writer: int) -> tuple[Sequence, bytes, batch.BatchHeader]:
        self.sequence += 1
        data = batch_of(self.sequence, *[b"entry"] * entries, writer=writer)
        return Sequence(self.sequence - 1), data, batch.verify(data)

    def append(self, entries: int, writer: int = 7) -> None:
        self.run((entries, writer))

    def run(self, *batches: tuple[int, int]) -> None:
        prev_sequences, data, headers = zip(*[self._new(*each) for each in batches], strict=True)
        self.staging.run(LLSN(self.end), EPOCH, prev_sequences, data, headers)
        self.end += sum(entries for entries, _ in batches)

    def commit(self) -> None:
        begin, number = self.committed, self.end - self.committed
        if number:
            cc = CommitContext(
                Version(begin), EPOCH, GLSN(self.end - 1), GLSN(begin - 1), LLSN(begin), GLSN(begin), number, 0
            )
            self.dedup.commit(cc)
            self.staging.commit(cc)
            self.committed = self.end

    def files(self) -> dict[str, bytes]:
        """What is on disk once everything is written."""
        self.staging.flush()
        self.storage.close()
        return {name: self.disk.open(f"{PATH}/{name}").pread(1 << 20, 0) for name in self.disk.listdir(PATH)}

    def recovered(self) -> DedupTable:
        storage = LogStreamStorage.open(self.disk, PATH, IDENTITY)
        table = DedupTable()
        table.recover(storage.recovered.dedup_snapshot, storage.recovered.dedup_tail)
        return table


BATCHES = st.lists(st.tuples(st.integers(1, 3), st.sampled_from([7, 8])), min_size=1, max_size=12)


@given(st.lists(st.tuples(st.sampled_from(["append", "run", "commit"]), BATCHES), max_size=8), st.integers(300, 6000))
def test_a_log_is_the_same_however_its_batches_were_staged(
    steps: list[tuple[str, list[tuple[int, int]]]], segment_bytes: int
) -> None:
    together, alone = Staged(segment_bytes), Staged(segment_bytes)
    for kind, batches in steps:
        for entries, writer in batches:
            alone.append(entries, writer)
            alone.staging.flush()
        if kind == "run":
            together.run(*batches)
        else:
            for entries, writer in batches:
                together.append(entries, writer)
        if kind == "commit":
            together.commit()
            alone.commit()
    assert together.files() == alone.files()
    assert together.recovered().snapshot() == together.dedup.snapshot() == alone.dedup.snapshot()


def test_appended_batches_are_held_back_until_something_else_is_staged() -> None:
    staged = Staged()
    staged.append(1)
    staged.append(2)
    assert not staged.storage.staged
    staged.staging.seal(Epoch(3), LLSN(2))
    group = staged.storage.take()
    assert group is not None
    assert (group.last_llsn_end, group.epoch_records) == (2, [3])


def test_a_run_that_does_not_fit_or_follow_is_refused_and_changes_nothing() -> None:
    staged = Staged(segment_bytes=4000)
    data = batch_of(1, b"x" * 1000)
    header = batch.verify(data)
    stage, first = staged.storage.stage_batches, LLSN(1)
    for refused, run in (
        (InvalidArgument, (first, EPOCH, [0] * 4, [data] * 4, [header] * 4)),
        (InvalidArgument, (first, EPOCH, [0], [data + b"x"], [header])),
        (InvalidArgument, (first, EPOCH, [-1], [data], [header])),
        (InvalidArgument, (first, Epoch(1 << 64), [0], [data], [header])),
        (ConsistencyViolation, (LLSN(2), EPOCH, [0], [data], [header])),
    ):
        with pytest.raises(refused):
            stage(*run)
    stage(first, EPOCH, [0, 1], [data] * 2, [header] * 2)
    group = staged.storage.take()
    assert group is not None
    assert (group.last_llsn_end, group.last_epoch) == (3, EPOCH)


def test_a_table_takes_a_run_as_it_takes_batches() -> None:
    run = [batch.verify(batch_of(sequence, b"a", writer=writer)) for sequence, writer in ((1, 7), (2, 7), (1, 8))]
    one_by_one, at_once = DedupTable(), DedupTable()
    for llsn, header in enumerate(run, 5):
        one_by_one.add(WriterID(header.writer_id), Sequence(header.sequence), LLSN(llsn), 1)
    at_once.add_all(LLSN(5), run)
    assert at_once.snapshot() == one_by_one.snapshot()
    assert at_once.truncate(LLSN(5)) == 3
