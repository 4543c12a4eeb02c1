"""The merge of many log streams into one order: n + 1 after n, whatever arrives when."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from varlog.core.merging import Chunk, GlsnMerge
from varlog.core.messages import StoredLine
from varlog.types import GLSN, LogStreamID

A, B, C = LogStreamID(1), LogStreamID(2), LogStreamID(3)


def stored(glsn: int, count: int, mark: str = "") -> StoredLine:
    return (glsn, glsn, count, 2, 1, 0, mark.encode())


def merge(*lsids: LogStreamID, begin: int = 1) -> GlsnMerge:
    made = GlsnMerge(GLSN(begin))
    for lsid in lsids:
        made.add(lsid)
    return made


def is_gap(m: GlsnMerge) -> bool:
    return m.gap


def spans(chunks: list[Chunk]) -> list[tuple[int, int]]:
    return [(chunk.glsn, chunk.count) for chunk in chunks]


def test_rule11_entries_of_several_log_streams_come_in_one_order() -> None:
    m = merge(A, B)
    m.offer(A, (stored(1, 2), stored(5, 1)), GLSN(5))
    assert spans(m.poll()) == [(1, 2)], "3 and 4 are somewhere else"
    m.offer(B, (stored(3, 2), stored(6, 3)), GLSN(8))
    assert spans(m.poll()) == [(3, 2), (5, 1), (6, 3)]
    assert m.next == 9
    assert m.poll() == []


def test_rule11_the_merge_waits_while_a_log_stream_is_not_known_to_be_complete() -> None:
    m = merge(A, B)
    m.offer(A, (stored(2, 1),), GLSN(2))
    assert m.poll() == []
    assert not is_gap(m), "B may have 1"


def test_rule11_a_position_that_no_log_stream_has_is_a_gap() -> None:
    m = merge(A, B)
    m.offer(A, (stored(2, 1),), GLSN(2))
    m.offer(B, (), GLSN(2))
    assert m.poll() == []
    assert is_gap(m)
    m.add(C)
    assert not is_gap(m), "the log stream that was not heard of may have it"
    m.offer(C, (stored(1, 1),), GLSN(2))
    assert spans(m.poll()) == [(1, 1), (2, 1)]


def test_rule11_complete_log_streams_without_anything_more_are_a_gap_only_beyond_what_they_know() -> None:
    m = merge(A)
    m.offer(A, (stored(1, 3),), GLSN(3))
    assert spans(m.poll()) == [(1, 3)]
    assert not is_gap(m), "4 may be about to come"
    m.offer(A, (), GLSN(4))
    assert is_gap(m)


def test_a_merge_may_begin_in_the_middle_of_a_batch() -> None:
    m = merge(A, begin=12)
    m.offer(A, (stored(10, 5),), GLSN(14))
    (chunk,) = m.poll()
    assert (chunk.glsn, chunk.skip, chunk.count) == (12, 2, 3)
    assert chunk.stored == stored(10, 5)


def test_nothing_beyond_what_is_complete_is_delivered() -> None:
    m = merge(A)
    m.offer(A, (stored(1, 5),), GLSN(3))
    assert spans(m.poll()) == [(1, 3)]
    m.offer(A, (stored(1, 5),), GLSN(5))
    (rest,) = m.poll()
    assert (rest.glsn, rest.skip, rest.count) == (4, 3, 2)


def test_what_is_offered_again_is_not_delivered_again() -> None:
    m = merge(A)
    for _ in range(2):
        m.offer(A, (stored(1, 2, "xx"), stored(3, 1, "yyy")), GLSN(3))
    assert m.buffered_bytes(A) == len("xx" + "yyy")
    assert spans(m.poll()) == [(1, 2), (3, 1)]
    m.offer(A, (stored(1, 2), stored(3, 1)), GLSN(2))
    assert m.complete_to(A) == 3, "completeness never goes back"
    assert m.poll() == []


def test_a_log_stream_is_added_once() -> None:
    m = merge(A)
    m.offer(A, (stored(1, 1),), GLSN(1))
    m.add(A)
    assert spans(m.poll()) == [(1, 1)]


def test_metadata_speaks_for_a_quiet_log_stream() -> None:
    m = merge(A, B)
    m.offer(A, (stored(1, 2),), GLSN(2))
    m.poll()
    m.quiet(B, GLSN(0), GLSN(2))
    assert m.complete_to(B) == 2
    m.quiet(A, GLSN(2), GLSN(9))
    assert m.complete_to(A) == 9, "its last entry up to 9 is 2, which is here"


def test_metadata_does_not_speak_for_a_log_stream_that_has_more() -> None:
    m = merge(A)
    m.quiet(A, GLSN(3), GLSN(9))
    assert m.complete_to(A) == 0
    m.offer(A, (stored(1, 3),), GLSN(3))
    m.quiet(A, GLSN(3), GLSN(2))
    assert m.complete_to(A) == 3


@st.composite
def topics(draw: st.DrawFn) -> dict[LogStreamID, list[StoredLine]]:
    """A dense GLSN space, cut into batches and dealt to log streams."""
    counts = draw(st.lists(st.integers(1, 4), min_size=1, max_size=20))
    streams: dict[LogStreamID, list[StoredLine]] = {A: [], B: [], C: []}
    glsn = 1
    for count in counts:
        streams[draw(st.sampled_from((A, B, C)))].append(stored(glsn, count, str(glsn)))
        glsn += count
    return streams


def answer(batches: list[StoredLine], begin: int, hwm: int, most: int) -> tuple[tuple[StoredLine, ...], GLSN]:
    """What a replica of one log stream says to a read from `begin` on: whole batches, `most` of them at most."""
    found = [line for line in batches if line[0] + line[2] > begin and line[0] <= hwm]
    told = found[:most]
    if len(told) < len(found):
        return tuple(told), GLSN(told[-1][0] + told[-1][2] - 1)
    return tuple(told), GLSN(hwm)


READS = st.lists(
    st.tuples(st.sampled_from((A, B, C)), st.integers(0, 3), st.integers(1, 3), st.integers(0, 5)), max_size=30
)
"""Which log stream is read, how much of it is told again, how many batches are told, how much the log then grows."""


@given(topics(), st.integers(1, 60), READS)
def test_rule11_random_answers_are_delivered_densely_and_only_once(
    streams: dict[LogStreamID, list[StoredLine]], begin: int, reads: list[tuple[LogStreamID, int, int, int]]
) -> None:
    tail = max(line[0] + line[2] - 1 for batches in streams.values() for line in batches)
    begin = min(begin, tail)
    m = merge(*streams, begin=begin)
    delivered: list[Chunk] = []
    hwm = 1
    for lsid, overlap, most, growth in [*reads, (A, 0, 99, tail), (A, 0, 99, 0), (B, 0, 99, 0), (C, 0, 99, 0)]:
        asked = max(m.next, m.complete_to(lsid) + 1)
        m.offer(lsid, *answer(streams[lsid], max(1, asked - overlap), hwm, most))
        delivered += m.poll()
        assert not is_gap(m), "every log stream is known"
        hwm = min(tail, hwm + growth)
    assert delivered[0].glsn == begin
    assert delivered[-1].glsn + delivered[-1].count == tail + 1
    assert all(one.glsn + one.count == other.glsn for one, other in pairwise(delivered))
    for chunk in delivered:
        assert chunk.stored in streams[chunk.lsid]
        assert chunk.stored[0] + chunk.skip == chunk.glsn
        assert chunk.skip + chunk.count <= chunk.stored[2]


@given(topics(), st.data())
def test_rule11_a_log_stream_nobody_told_of_is_a_gap_and_never_skipped(
    streams: dict[LogStreamID, list[StoredLine]], data: st.DataObject
) -> None:
    hidden = data.draw(st.sampled_from([lsid for lsid, batches in streams.items() if batches]))
    tail = max(line[0] + line[2] - 1 for batches in streams.values() for line in batches)
    m = merge(*(lsid for lsid in streams if lsid != hidden))
    for lsid, batches in streams.items():
        if lsid != hidden:
            m.offer(lsid, *answer(batches, 1, tail, len(batches) + 1))
    delivered = m.poll()
    assert m.next == streams[hidden][0][0]
    assert is_gap(m)
    assert sum(chunk.count for chunk in delivered) == m.next - 1
    m.add(hidden)
    m.offer(hidden, *answer(streams[hidden], m.next, tail, len(streams[hidden])))
    m.poll()
    assert m.next == tail + 1


# What is lost


def lost(m: GlsnMerge) -> tuple[int, int] | None:
    return m.lost


def is_lost(m: GlsnMerge) -> bool:
    return m.is_lost


def test_what_is_lost_is_told_with_the_next_position_that_exists() -> None:
    m = merge(A, B)
    m.lose(B, GLSN(3), GLSN(8))
    m.offer(A, (stored(1, 1), stored(5, 1), stored(8, 2)), GLSN(9))
    assert spans(m.poll()) == [(1, 1)]
    assert lost(m) is None, "2 is B's, and not lost"
    assert not is_lost(m)
    m.offer(B, (stored(2, 2),), GLSN(4))
    assert spans(m.poll()) == [(2, 1)], "what was lost is not delivered, though somebody may have it yet"
    assert is_lost(m)
    assert lost(m) == (3, 5)
    again = merge(A, B, begin=5)
    again.lose(B, GLSN(3), GLSN(8))
    again.offer(A, (stored(5, 1), stored(8, 2)), GLSN(9))
    assert spans(again.poll()) == [(5, 1)]
    assert lost(again) == (6, 8)


def test_what_is_lost_is_told_only_when_it_is_known_where_the_log_goes_on() -> None:
    m = merge(A, B, begin=3)
    m.lose(B, GLSN(3), GLSN(8))
    assert lost(m) is None, "A may have 3"
    m.offer(A, (), GLSN(5))
    assert is_lost(m)
    assert lost(m) is None, "A may have 6"
    m.offer(A, (), GLSN(9))
    assert lost(m) == (3, 8)


def test_what_several_log_streams_have_lost_is_one_range() -> None:
    m = merge(A, B, C, begin=3)
    m.lose(B, GLSN(6), GLSN(11))
    m.lose(C, GLSN(2), GLSN(8))
    m.offer(A, (stored(14, 1),), GLSN(20))
    assert lost(m) is None, "B may have 3"
    m.offer(B, (), GLSN(5))
    assert lost(m) == (3, 11)


def test_a_log_stream_that_is_lost_holds_nobody_up_behind_what_it_had() -> None:
    m = merge(A, B, begin=8)
    m.lose(B, GLSN(3), GLSN(8))
    m.offer(A, (stored(8, 2),), GLSN(9))
    assert spans(m.poll()) == [(8, 2)]
    assert lost(m) is None
    m.offer(A, (stored(11, 2),), GLSN(12))
    assert m.poll() == []
    assert is_gap(m), "10 was never lost: there is a log stream that was not heard of"
    assert lost(m) is None


def test_what_was_read_before_the_loss_was_declared_is_delivered() -> None:
    m = merge(A, B)
    m.offer(B, (stored(2, 2),), GLSN(3))
    m.lose(B, GLSN(2), GLSN(8))
    m.offer(A, (stored(1, 1), stored(9, 1)), GLSN(9))
    assert spans(m.poll()) == [(1, 1), (2, 2)]
    assert lost(m) == (4, 8)


def test_a_log_stream_that_was_removed_is_not_waited_for() -> None:
    m = merge(A, B)
    m.offer(A, (stored(2, 1),), GLSN(2))
    assert not is_gap(m)
    m.remove(B)
    assert is_gap(m)
