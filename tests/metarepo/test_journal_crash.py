"""What a crash or a decaying disk may do to the journal, and what must come of it (rules 15 and 16).

A torn tail is cut: nobody was told of it. Damage below what was synced is reported, and nothing is touched. Neither is
ever mistaken for the other, and no damage is ever taken for data.
"""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.metarepo.rigs import (
    CID,
    DIRECTORY,
    JournalRig,
    commit,
    grant,
    leader_revision,
    look,
    open_journal,
    pump,
    unheard,
)
from varlog.core.keyspace import Change, Keyspace
from varlog.core.store import Committed, KeyValue, Put, Txn
from varlog.errors import JournalCorrupt, UnsupportedFormat
from varlog.metarepo import journalfile
from varlog.metarepo.journal import Journal
from varlog.sim.crash import crash_states
from varlog.sim.disk import SimDisk
from varlog.sim.medium import Image

JOURNAL = f"{DIRECTORY}/journal"
MARK = f"{DIRECTORY}/synced"

State = dict[str, KeyValue]


def put(key: str, value: bytes) -> Txn:
    return Txn(puts=(Put(key, value),))


def written(disk: SimDisk) -> int:
    """Where the journal's last frame ends."""
    return len(disk.image().files[JOURNAL].data)


def some_history() -> JournalRig:
    """A snapshot with keys and a lease in it, and a few changes after it."""
    rig = JournalRig()
    lease = grant(rig, 50)
    commit(rig, Txn(puts=(Put("a", b"1"), Put("leased", b"2", lease))))
    rig.restart()
    commit(rig, Txn(puts=(Put("b", b"3"),), deletes=("a",)))
    commit(rig, put("c", b"4" * 30))
    return rig


def opened(image: Image) -> tuple[State, Journal]:
    rig = JournalRig(SimDisk.from_image(image))
    return look(rig), rig.journal


# Crashes


def record_a_life(disk: SimDisk, states: dict[int, State], compact_bytes: int) -> None:
    """Two starts, groups of one and of several; notes say what was answered when."""
    model: State = {}
    for life in range(2):
        journal = open_journal(disk, compact_bytes=compact_bytes)
        at = leader_revision(journal)
        states[at] = model
        disk.note(("term", journal.term))
        disk.note(("revision", at))
        for size in (1, 3, 1, 2):
            for _ in range(size):
                at += 1
                key = f"k{at % 5}"
                model = model | {key: KeyValue(key, b"%03d" % at * 200, at)}
                states[at] = model
                journal.txn(put(key, model[key].value), lambda o: disk.note(("revision", revision_of(o))))
            pump(journal)
        if life == 0:
            disk.kill()


def revision_of(outcome: object) -> int:
    assert isinstance(outcome, Committed)
    return outcome.revision


@pytest.mark.parametrize("compact_bytes", [300, 3000, 100_000], ids=["always anew", "sometimes anew", "never anew"])
def test_every_crash_state_opens_with_all_that_was_answered_and_nothing_invented(compact_bytes: int) -> None:
    disk = SimDisk()
    disk.start_recording()
    states: dict[int, State] = {0: {}}
    record_a_life(disk, states, compact_bytes)
    found = Counter[int]()
    for crash in crash_states(disk.recorded()):
        notes = [note for note in crash.notes if isinstance(note, tuple)]
        answered = max((value for kind, value in notes if kind == "revision"), default=0)
        term = max((value for kind, value in notes if kind == "term"), default=0)
        state, journal = opened(crash.image)
        revision = leader_revision(journal) - 1
        assert revision >= answered, crash.how
        assert state == states[revision], crash.how
        assert journal.term > term, crash.how
        found[revision] += 1
    assert found.total() > 60
    if compact_bytes == 100_000:
        assert found.keys() == states.keys(), "a group that is not synced may be there in part"


def test_a_crash_while_recovering_from_a_crash_loses_nothing() -> None:
    """Every crash state of a start that finds a torn tail, a left-over file and a mark."""
    rig = some_history()
    before = look(rig)
    rig.journal.txn(put("torn", bytes(2000)), unheard)
    group = rig.journal.take()
    assert group is not None
    rig.journal.write(group)
    rig.disk.kill()
    rig.disk.open(JOURNAL).truncate(written(rig.disk) - 1000)
    rig.disk.create(f"{JOURNAL}.new").pwritev([b"left over"], 0)
    disk = SimDisk.from_image(rig.disk.image())
    disk.start_recording()
    assert look(JournalRig(disk)) == before
    states = list(crash_states(disk.recorded()))
    for crash in states:
        assert opened(crash.image)[0] == before, crash.how
    assert len(states) >= 10


def test_the_later_half_of_an_unsynced_group_is_a_torn_tail() -> None:
    """Of two frames in one write the second alone reached the disk: nobody was told of either."""
    rig = some_history()
    before = look(rig)
    end = written(rig.disk)
    rig.journal.txn(put("x", bytes(100)), unheard)
    rig.journal.txn(put("y", bytes(100)), unheard)
    group = rig.journal.take()
    assert group is not None
    rig.journal.write(group)
    rig.disk.open(JOURNAL).pwritev([bytes(len(group.frames[0]))], end)
    rig.disk.kill()
    assert look(JournalRig(rig.disk)) == before


# Damage


def opened_or_refused(disk: SimDisk) -> State | JournalCorrupt:
    try:
        return look(JournalRig(disk))
    except JournalCorrupt as e:
        return e


@pytest.mark.parametrize("ending", ["closed", "killed"])
def test_rule15_a_flipped_bit_anywhere_is_reported_or_harmless(ending: str) -> None:
    rig = some_history()
    before = look(rig)
    if ending == "closed":
        rig.journal.close()
    image = rig.disk.image()
    end = written(rig.disk)
    reported = 0
    for path, file in image.files.items():
        for offset in range(len(file.data) + (64 if path == JOURNAL else 0)):
            for bit in range(8):
                disk = SimDisk.from_image(image)
                disk.flip_bit(path, offset, bit)
                damaged = disk.image()
                found = opened_or_refused(disk)
                if isinstance(found, JournalCorrupt):
                    assert path == found.segment == JOURNAL
                    assert found.offset <= offset < end
                    assert disk.image() == damaged, "what is corrupt is left as it is"
                    reported += 1
                else:
                    assert found == before
                    assert path == MARK or offset >= end
    assert reported == end * 8


def test_a_file_that_became_shorter_is_reported() -> None:
    rig = some_history()
    rig.journal.close()
    image = rig.disk.image()
    for size in range(written(rig.disk)):
        disk = SimDisk.from_image(image)
        disk.open(JOURNAL).truncate(size)
        with pytest.raises(JournalCorrupt):
            open_journal(disk)


def test_rule15_marks_in_later_frames_prove_corruption_without_the_mark_file() -> None:
    """The mark file is never waited for. Without it a later frame still knows how far the file was synced."""
    rig = some_history()
    before_last = written(rig.disk)
    commit(rig, put("last", b"5"))
    image = rig.disk.image()
    for offset in range(before_last):
        disk = SimDisk.from_image(image)
        disk.open(MARK).truncate(0)
        disk.flip_bit(JOURNAL, offset)
        with pytest.raises(JournalCorrupt):
            open_journal(disk)


def test_a_clean_end_leaves_a_mark_that_outlives_the_power() -> None:
    rig = JournalRig()
    commit(rig, put("a", b"1"))
    rig.journal.close()
    rig.disk.start_recording()
    for crash in crash_states(rig.disk.recorded()):
        disk = SimDisk.from_image(crash.image)
        disk.flip_bit(JOURNAL, written(disk) - 1)
        with pytest.raises(JournalCorrupt):
            open_journal(disk)


def test_rule15_a_frame_that_does_not_follow_the_one_before_it_is_not_taken() -> None:
    """Whole, of this file, at its place, and still not what was written after the frame before it."""
    buffers, at = journalfile.new_file(CID, 1, Keyspace().contents())
    body = journalfile.encode_change(Change(puts=(Put("a", b"1"),)))
    first, then = journalfile.change_frame(at, body, 1, 0)
    second, _ = journalfile.change_frame(then, body, 2, 0)
    stranger, _ = journalfile.change_frame(then._replace(chain=then.chain ^ 1), body, 2, 0)

    def revision(*frames: bytes) -> int:
        return journalfile.load(b"".join((*buffers, *frames)), None, CID, JOURNAL).keyspace.revision

    assert revision(first, second) == 2
    assert revision(first, stranger) == 1


def test_a_missing_journal_is_not_taken_for_a_new_one() -> None:
    rig = some_history()
    rig.journal.close()
    rig.disk.unlink(JOURNAL)
    with pytest.raises(JournalCorrupt):
        open_journal(rig.disk)


def test_a_file_of_another_time_beside_the_journal_changes_nothing() -> None:
    """An old journal's bytes, put where this one's free space is, are not its frames."""
    old = some_history()
    rig = JournalRig(SimDisk.from_image(old.disk.image()))
    commit(rig, put("new", b"6"))
    before = look(rig)
    end = written(rig.disk)
    data = old.disk.image().files[JOURNAL].data
    rig.disk.open(JOURNAL).pwritev([data[64:]], end)
    rig.restart()
    assert look(rig) == before


def test_values_that_look_like_frames_are_values() -> None:
    rig = some_history()
    frames = rig.disk.image().files[JOURNAL].data
    commit(rig, put("image", frames))
    before = look(rig)
    rig.restart()
    assert look(rig) == before


def test_a_newer_format_is_refused_and_untouched(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as newer:
        newer.setattr(journalfile, "FORMAT", journalfile.FORMAT + 1)
        rig = some_history()
    rig.journal.close()
    before = rig.disk.image()
    with pytest.raises(UnsupportedFormat):
        open_journal(rig.disk)
    assert rig.disk.image() == before


DATA = some_history().disk.image().files[JOURNAL].data
NONCE = int.from_bytes(DATA[16:24], "little")
SPLICE = st.tuples(st.integers(0, len(DATA)), st.integers(0, 80), st.binary(max_size=80))


@given(
    data=st.binary(max_size=300), mark=st.one_of(st.none(), st.builds(journalfile.Mark, st.integers(), st.integers()))
)
def test_any_bytes_at_all_give_a_typed_error(data: bytes, mark: journalfile.Mark | None) -> None:
    with pytest.raises(JournalCorrupt):
        journalfile.load(data, mark, CID, JOURNAL)
    journalfile.decode_mark(data)


@given(splices=st.lists(SPLICE, min_size=1, max_size=3))
def test_any_damage_is_reported_or_ends_at_a_state_there_was(splices: list[tuple[int, int, bytes]]) -> None:
    data = DATA
    for offset, length, other in splices:
        data = data[:offset] + other + data[offset + length :]
    mark = journalfile.Mark(NONCE, len(DATA))
    try:
        loaded = journalfile.load(data, mark, CID, JOURNAL).keyspace
    except JournalCorrupt:
        assert data[: len(DATA)] != DATA
    else:
        assert data[: len(DATA)] == DATA
        assert loaded.contents() == journalfile.load(DATA, mark, CID, JOURNAL).keyspace.contents()
