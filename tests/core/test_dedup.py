"""The deduplication table: what it says of a batch, and that it never says of a stored one that it did not happen."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.mutated import mutations
from varlog.core.dedup import DedupTable, Fate, Record
from varlog.errors import MalformedSnapshot
from varlog.types import GLSN, LLSN, CommitContext, Epoch, Sequence, Version, WriterID

ANNA, BERT, CARL = WriterID(11), WriterID(22), WriterID(33)
EPOCH = Epoch(2)
NOW = LLSN(1 << 40)
"""A horizon beyond anything that can have expired."""


def cut(begin: int, end: int, glsn: int, epoch: int = EPOCH) -> CommitContext:
    count = end - begin
    return CommitContext(
        Version(glsn), Epoch(epoch), GLSN(glsn + count - 1), GLSN(glsn - 1), LLSN(begin), GLSN(glsn), count, 0
    )


def fate(table: DedupTable, writer: WriterID, sequence: int, horizon: int = NOW) -> Fate:
    return table.fate(writer, Sequence(sequence), LLSN(horizon))[0]


def judge(table: DedupTable, writer: WriterID, sequence: int, prev: int, horizon: int = NOW) -> Fate:
    return table.judge(writer, Sequence(sequence), Sequence(prev), LLSN(horizon))[0]


def filled(table: DedupTable, *batches: tuple[WriterID, int]) -> DedupTable:
    """One entry per batch, all committed, LLSN and GLSN from 1 on."""
    for llsn, (writer, sequence) in enumerate(batches, 1):
        table.add(writer, Sequence(sequence), LLSN(llsn), 1)
    table.commit(cut(1, len(batches) + 1, 1))
    return table


def test_rule18_the_first_batch_of_a_writer_is_new_if_it_has_no_predecessor_here() -> None:
    table = DedupTable()
    assert judge(table, ANNA, 5, prev=0) is Fate.NEW
    assert judge(table, ANNA, 5, prev=4) is Fate.GAP


def test_rule18_a_duplicate_of_an_uncommitted_batch_is_pending() -> None:
    table = DedupTable()
    table.add(ANNA, Sequence(1), LLSN(1), 3)
    assert judge(table, ANNA, 1, prev=0) is Fate.PENDING
    assert judge(table, ANNA, 2, prev=1) is Fate.NEW


def test_rule18_a_duplicate_of_a_committed_batch_gets_the_original_answer() -> None:
    table = DedupTable()
    table.add(BERT, Sequence(9), LLSN(1), 2)
    table.add(ANNA, Sequence(4), LLSN(3), 3)
    table.commit(cut(1, 6, glsn=100))
    original = Record(ANNA, Sequence(4), LLSN(3), 3, EPOCH, GLSN(102))
    assert table.judge(ANNA, Sequence(4), Sequence(0), NOW) == (Fate.COMMITTED, original)
    assert table.fate(ANNA, Sequence(4), LLSN(0)) == (Fate.COMMITTED, original)


def test_rule18_a_batch_whose_predecessor_is_missing_is_a_gap() -> None:
    table = filled(DedupTable(), (ANNA, 1), (ANNA, 2))
    assert judge(table, ANNA, 4, prev=3) is Fate.GAP
    assert judge(table, ANNA, 4, prev=2) is Fate.NEW, "sequences in between may have gone to other log streams"
    table.add(ANNA, Sequence(4), LLSN(3), 1)
    assert judge(table, ANNA, 5, prev=2) is Fate.GAP, "what is pending counts"


def test_rule18_an_old_sequence_that_is_not_here_is_never_taken_late() -> None:
    table = filled(DedupTable(), (ANNA, 1), (ANNA, 5))
    assert fate(table, ANNA, 3) is Fate.DID_NOT_HAPPEN
    for prev in (0, 1, 5):
        assert judge(table, ANNA, 3, prev) is Fate.GAP


def test_rule18_a_seal_rolls_the_table_back() -> None:
    table = filled(DedupTable(), (ANNA, 1))
    table.add(ANNA, Sequence(2), LLSN(2), 1)
    table.add(BERT, Sequence(1), LLSN(3), 1)
    table.add(ANNA, Sequence(3), LLSN(4), 1)
    assert table.truncate(LLSN(3)) == 2
    assert fate(table, ANNA, 2) is Fate.PENDING
    assert fate(table, ANNA, 3) is Fate.DID_NOT_HAPPEN
    assert judge(table, BERT, 1, prev=0) is Fate.NEW
    assert judge(table, ANNA, 3, prev=2) is Fate.NEW
    assert table.truncate(LLSN(3)) == 0


def test_rule18_a_cut_commits_only_what_lies_below_its_end() -> None:
    table = DedupTable()
    table.add(ANNA, Sequence(1), LLSN(1), 2)
    table.add(ANNA, Sequence(2), LLSN(3), 2)
    table.commit(cut(1, 3, glsn=1))
    assert fate(table, ANNA, 1) is Fate.COMMITTED
    assert fate(table, ANNA, 2) is Fate.PENDING


def test_rule19_a_writer_keeps_its_last_sequences_and_the_older_ones_are_unknown() -> None:
    table = filled(DedupTable(per_writer=2), (ANNA, 1), (ANNA, 2), (ANNA, 3))
    assert fate(table, ANNA, 1, horizon=1) is Fate.EXPIRED
    assert judge(table, ANNA, 1, prev=0, horizon=1) is Fate.EXPIRED
    assert fate(table, ANNA, 2, horizon=1) is Fate.COMMITTED
    # First sent when entry 1 was committed already, so it is not what was there.
    assert fate(table, ANNA, 1, horizon=2) is Fate.DID_NOT_HAPPEN


def test_rule18_the_writer_silent_for_longest_by_log_position_is_forgotten() -> None:
    table = DedupTable(per_writer=4, total=3)
    for llsn, writer, sequence in ((1, ANNA, 1), (2, BERT, 1), (3, ANNA, 2)):
        table.add(writer, Sequence(sequence), LLSN(llsn), 1)
        assert not table.commit(cut(llsn, llsn + 1, llsn))
    table.add(CARL, Sequence(1), LLSN(4), 1)
    assert table.commit(cut(4, 5, 4)), "BERT's records expire"
    assert table.floor == 3
    assert fate(table, BERT, 1, horizon=2) is Fate.EXPIRED
    assert fate(table, BERT, 1, horizon=3) is Fate.DID_NOT_HAPPEN
    assert [fate(table, ANNA, 1), fate(table, ANNA, 2), fate(table, CARL, 1)] == [Fate.COMMITTED] * 3


def test_rule18_a_forgotten_writer_cannot_go_on_under_its_id() -> None:
    """Its next batch may repeat a forgotten one: it names a predecessor that is not known here any more."""
    table = filled(DedupTable(per_writer=4, total=1), (BERT, 1), (ANNA, 1))
    assert judge(table, BERT, 2, prev=1, horizon=3) is Fate.GAP
    assert judge(table, BERT, 2, prev=1, horizon=1) is Fate.EXPIRED


def test_rule19_a_writer_nobody_knows_may_have_been_forgotten() -> None:
    table = filled(DedupTable(per_writer=4, total=1), (BERT, 1), (ANNA, 1))
    assert judge(table, CARL, 1, prev=0, horizon=1) is Fate.EXPIRED
    assert judge(table, CARL, 1, prev=0, horizon=2) is Fate.NEW


def test_a_writer_that_is_alone_is_never_forgotten() -> None:
    table = filled(DedupTable(per_writer=8, total=2), *((ANNA, sequence) for sequence in range(1, 6)))
    assert table.size == 5
    assert fate(table, ANNA, 1) is Fate.COMMITTED


def test_rule18_a_snapshot_carries_the_whole_table() -> None:
    table = filled(DedupTable(per_writer=2, total=4), (CARL, 1), (ANNA, 1), (ANNA, 2), (ANNA, 3), (BERT, 1), (BERT, 2))
    table.add(CARL, Sequence(2), LLSN(7), 2)
    copy = DedupTable(per_writer=2, total=4)
    copy.add(ANNA, Sequence(99), LLSN(1), 1)
    copy.restore(table.snapshot())
    assert copy.snapshot() == table.snapshot()
    assert (copy.size, copy.floor) == (table.size, table.floor) == (5, 2)
    for one in (table, copy):
        one.commit(cut(7, 9, 7))
    assert copy.snapshot() == table.snapshot()


def a_snapshot() -> bytes:
    """Of writers with one batch and with several, some of them pending."""
    table = filled(DedupTable(per_writer=3, total=5), *((writer, n) for n in (1, 2, 3) for writer in (ANNA, BERT)))
    table.add(CARL, Sequence(1), LLSN(7), 2)
    table.add(ANNA, Sequence(4), LLSN(9), 1)
    return table.snapshot()


def restore_or_refuse(snapshot: bytes) -> bool:
    """Whether a table took it. One that did works from then on, one that did not is as it was."""
    table = filled(DedupTable(), (ANNA, 1))
    before = table.snapshot()
    try:
        table.restore(snapshot)
    except MalformedSnapshot:
        assert table.snapshot() == before
        return False
    again = DedupTable()
    again.restore(table.snapshot())
    assert again.snapshot() == table.snapshot()
    assert again.size == table.size
    for writer in (ANNA, BERT, CARL):
        judge(table, writer, 3, prev=2)
    table.add(CARL, Sequence(1 << 65), LLSN(1 << 66), 1)
    table.commit(cut(1, 1 << 65, 1))
    assert table.truncate(LLSN(0)) >= 1
    return True


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_no_table(snapshot: bytes) -> None:
    restore_or_refuse(snapshot)


@given(st.data())
def test_a_changed_snapshot_is_refused_or_is_another_table(data: st.DataObject) -> None:
    assert restore_or_refuse(a_snapshot())
    restore_or_refuse(data.draw(mutations(a_snapshot())))


numbers = st.integers(min_value=-1, max_value=3)
records = st.lists(st.tuples(*[numbers] * 5), max_size=3)


@given(
    st.tuples(
        numbers,
        st.lists(numbers, max_size=3),
        st.lists(st.tuples(numbers, records), max_size=3),
        st.lists(st.tuples(*[numbers] * 6), max_size=3),
    )
)
def test_what_has_the_form_of_a_table_may_still_be_none(form: object) -> None:
    restore_or_refuse(msgspec.msgpack.encode(form))


@pytest.mark.parametrize(
    "form",
    [
        (0, [1], [], []),
        (0, [1, 1], [(0, [(1, 1, 1, 2, 1)]), (0, [(2, 2, 1, 2, 2)])], []),
        (0, [1], [(0, [])], []),
        (0, [], [], [(1, 1, 1, 1, 0, 0), (1, 1, 2, 1, 0, 0)]),
        (-1, [], [], []),
        (0, [], [], [], 0),
        ("0", [], [], []),
    ],
)
def test_a_table_that_contradicts_itself_is_refused(form: object) -> None:
    assert not restore_or_refuse(msgspec.msgpack.encode(form))


class NaiveTable:
    """The table's text, sentence by sentence, in lists. `log` is everything ever committed, forgotten or not."""

    def __init__(self, per_writer: int, total: int) -> None:
        self.per_writer = per_writer
        self.total = total
        self.log: list[Record] = []
        self.known: list[Record] = []
        self.pending: list[Record] = []
        self.voided: set[tuple[WriterID, Sequence]] = set()
        self.floor = 0
        self.floor_of: dict[WriterID, int] = {}

    def add(self, writer: WriterID, sequence: Sequence, llsn: LLSN, count: int) -> None:
        self.pending.append(Record(writer, sequence, llsn, count, Epoch(0), GLSN(0)))
        self.voided.discard((writer, sequence))

    def commit(self, cc: CommitContext) -> None:
        for record in [r for r in self.pending if r.llsn < cc.llsn_end]:
            self.pending.remove(record)
            committed = record._replace(epoch=cc.epoch, glsn=GLSN(record.llsn - cc.llsn_begin + cc.glsn_begin))
            self.log.append(committed)
            self.known.append(committed)
            own = [r for r in self.known if r.writer_id == record.writer_id]
            if len(own) > self.per_writer:
                self.known.remove(own[0])
                self.floor_of[record.writer_id] = own[0].llsn + own[0].count
            writers = {r.writer_id for r in self.known}
            if len(self.known) > self.total and len(writers) > 1:
                self._forget_one_of(writers)

    def _forget_one_of(self, writers: set[WriterID]) -> None:
        last = {w: [r for r in self.known if r.writer_id == w][-1] for w in writers}
        silent = min(last.values(), key=lambda r: r.llsn)
        self.known = [r for r in self.known if r.writer_id != silent.writer_id]
        self.floor = max(self.floor, silent.llsn + silent.count)

    def truncate(self, llsn_end: LLSN) -> None:
        self.voided |= {(r.writer_id, r.sequence) for r in self.pending if r.llsn >= llsn_end}
        self.pending = [r for r in self.pending if r.llsn < llsn_end]

    def fate(self, writer: WriterID, sequence: Sequence, horizon: LLSN) -> tuple[Fate, Record | None]:
        for records, answer in ((self.pending, Fate.PENDING), (self.known, Fate.COMMITTED)):
            for record in records:
                if (record.writer_id, record.sequence) == (writer, sequence):
                    return answer, record
        own = [r.sequence for r in self.known if r.writer_id == writer]
        floor = max(self.floor, self.floor_of.get(writer, 0))
        may_be_forgotten = horizon < floor and (not own or sequence < own[0])
        return (Fate.EXPIRED if may_be_forgotten else Fate.DID_NOT_HAPPEN), None

    def judge(self, writer: WriterID, sequence: Sequence, prev: Sequence, horizon: LLSN) -> tuple[Fate, Record | None]:
        found = self.fate(writer, sequence, horizon)
        if found[0] is not Fate.DID_NOT_HAPPEN:
            return found
        last = max((r.sequence for r in [*self.known, *self.pending] if r.writer_id == writer), default=Sequence(0))
        return (Fate.NEW if prev == last < sequence else Fate.GAP), None


WRITERS = (ANNA, BERT, CARL)
LIMITS = {"per_writer": 3, "total": 5}
ADD = st.tuples(st.just("add"), st.sampled_from(WRITERS), st.integers(1, 3), st.integers(1, 2))
STEPS = st.lists(
    st.one_of(
        ADD,
        ADD,
        st.tuples(st.just("commit"), st.integers(2, 4)),
        st.tuples(st.just("truncate"), st.integers(0, 3)),
        st.tuples(st.just("restore")),
    ),
    min_size=20,
    max_size=60,
)


class Run:
    """The table and its model, driven by the same log."""

    def __init__(self) -> None:
        self.table = DedupTable(**LIMITS)
        self.model = NaiveTable(**LIMITS)
        self.sequences = dict.fromkeys(WRITERS, 0)
        self.end = 1

    def step(self, kind: str, *args: int) -> None:
        if kind == "add":
            self.add(*args)
        elif kind == "commit":
            self.commit(args[0])
        elif kind == "truncate":
            self.truncate(args[0])
        else:
            restored = DedupTable(**LIMITS)
            restored.restore(self.table.snapshot())
            self.table = restored

    def add(self, writer: int, count: int, skip: int) -> None:
        self.sequences[WriterID(writer)] += skip
        sequence = Sequence(self.sequences[WriterID(writer)])
        for one in (self.table, self.model):
            one.add(WriterID(writer), sequence, LLSN(self.end), count)
        self.end += count

    def commit(self, batches: int) -> None:
        cutting = self.model.pending[:batches]
        if cutting:
            begin, last = cutting[0].llsn, cutting[-1]
            cc = cut(begin, last.llsn + last.count, glsn=begin + 1000)
            self.table.commit(cc)
            self.model.commit(cc)

    def truncate(self, kept: int) -> None:
        """A seal point is a batch boundary at or above the committed end; its LLSNs are used again."""
        if kept < len(self.model.pending):
            self.end = self.model.pending[kept].llsn
        for one in (self.table, self.model):
            one.truncate(LLSN(self.end))


@given(STEPS, st.data())
def test_rule18_the_table_is_the_naive_one(steps: list[tuple[str, int]], data: st.DataObject) -> None:
    run = Run()
    for step in steps:
        run.step(*step)
    assert run.table.size == len(run.model.known) + len(run.model.pending)
    assert run.table.floor == run.model.floor
    for writer in WRITERS:
        for sequence in range(1, run.sequences[writer] + 3):
            horizon = LLSN(data.draw(st.integers(0, run.end)))
            prev = Sequence(data.draw(st.integers(0, run.sequences[writer])))
            asked = (writer, Sequence(sequence))
            assert run.table.fate(*asked, horizon) == run.model.fate(*asked, horizon)
            assert run.table.judge(*asked, prev, horizon) == run.model.judge(*asked, prev, horizon)


@given(STEPS, st.data())
def test_rule19_nothing_in_the_log_is_ever_called_new_or_not_happened(
    steps: list[tuple[str, int]], data: st.DataObject
) -> None:
    """An honest writer's horizon is at most where its batch landed: it knew no more when it first sent it."""
    run = Run()
    for step in steps:
        run.step(*step)
    for record in run.model.log:
        asked = (record.writer_id, record.sequence)
        horizon = LLSN(data.draw(st.integers(0, record.llsn)))
        for found, told in (
            run.table.fate(*asked, horizon),
            run.table.judge(*asked, Sequence(data.draw(st.integers(0, record.sequence))), horizon),
        ):
            assert found is Fate.EXPIRED or (found, told) == (Fate.COMMITTED, record)
    for record in run.model.pending:
        assert run.table.fate(record.writer_id, record.sequence, LLSN(0)) == (Fate.PENDING, record)
    for writer, sequence in run.model.voided:
        assert run.table.fate(writer, sequence, LLSN(0))[0] in {Fate.DID_NOT_HAPPEN, Fate.EXPIRED}


@given(STEPS)
def test_rule18_replicas_with_equal_logs_agree_to_the_byte(steps: list[tuple[str, int]]) -> None:
    """One of them was restored from its snapshots on the way, the other never."""
    restored, straight = Run(), Run()
    for step in steps:
        restored.step(*step)
        if step[0] != "restore":
            straight.step(*step)
    assert restored.table.snapshot() == straight.table.snapshot()
