"""Verification: what it finds in replicas on paper, and what it makes of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from tests.core.paperlog import EVERYTHING, PaperLog, paper
from varlog import errors, limits
from varlog.core.fingerprints import fingerprint
from varlog.core.messages import Info, Metadata, ReplicaInfo, StreamInfo, TopicInfo
from varlog.core.verifying import Answer, Finding, Question, Role, Verdict, Verification
from varlog.types import (
    GLSN,
    LLSN,
    Epoch,
    LogStreamID,
    ReplicaState,
    StorageNodeID,
    StreamStatus,
    TopicID,
    Version,
)

Places = Mapping[int, Mapping[int, PaperLog]]
"""The replicas, by log stream and node."""


class Bench:
    """A topic of replicas on paper, and a verification of it."""

    def __init__(self, places: Places, *, trim: int = 0, lost: tuple[int, int] = (0, 0)) -> None:
        self.places = places
        self.asked: list[Question] = []
        self.sets = {lsid: tuple(sorted(logs)) for lsid, logs in places.items()}
        self.ends = {lsid: max(log.end for log in logs.values()) for lsid, logs in places.items()}
        self.llsn_ends = {
            lsid: max((log.commits[-1].llsn_end for log in logs.values() if log.commits), default=LLSN(1))
            for lsid, logs in places.items()
        }
        self.trim = trim
        self.lost = lost
        self.silent: set[int] = set()
        self.corrupt: set[int] = set()
        self.before: Callable[[Question], None] = lambda _question: None

    def verify(self) -> Verification:
        streams = tuple(
            StreamInfo(
                LogStreamID(lsid), TopicID(1), Epoch(2), StreamStatus.RUNNING,
                tuple(map(StorageNodeID, self.sets[lsid])), StorageNodeID(next(iter(self.sets[lsid]), 0)),
                self.llsn_ends[lsid], GLSN(self.ends[lsid] - 1), lost_begin=GLSN(self.lost[0] if lsid == 1 else 0),
                lost_end=GLSN(self.lost[1] if lsid == 1 else 0),
            )
            for lsid in self.places
        )  # fmt: skip
        topic = TopicInfo(TopicID(1), "log", GLSN(max(self.ends.values()) - 1), GLSN(self.trim))
        infos = {snid: self._info(snid) for logs in self.places.values() for snid in logs if snid not in self.silent}
        metadata = Metadata(0, Version(9), (), (topic,), streams)
        verification = Verification(metadata, topic, infos, dict.fromkeys(self.silent, "nobody there"))
        conversation = verification.run()
        try:
            questions = next(conversation)
            while True:
                self.asked.extend(questions)
                questions = conversation.send([self._answer(question) for question in questions])
        except StopIteration:
            return verification

    def _info(self, snid: int) -> Info:
        replicas = tuple(
            ReplicaInfo(
                LogStreamID(lsid), Epoch(2), ReplicaState.RUNNING, LLSN(1), LLSN(1), snid not in self.corrupt,
                fault=errors.Corrupt.code if snid in self.corrupt else 0, local_hwm=GLSN(logs[snid].end - 1),
            )
            for lsid, logs in self.places.items()
            if snid in logs and logs[snid] is not ABSENT
        )  # fmt: skip
        return Info(0, StorageNodeID(snid), 1, replicas)

    def _answer(self, question: Question) -> Answer:
        snid, lsid, begin, end = question
        log = self.places[lsid][snid]
        try:
            self.before(question)
            if snid in self.silent:
                raise errors.Unreachable("nobody there")
            return fingerprint(log, GLSN(self.trim), begin, end).answer(1, lsid, snid)
        except errors.VarlogError as error:
            return error


ABSENT = PaperLog()


def log() -> PaperLog:
    return paper(*((1 + 3 * number, 2, 1) for number in range(20)))


def findings(verification: Verification) -> dict[int, Finding | None]:
    return {copy.snid: copy.finding for copy in verification.copies}


def test_equal_replicas_are_consistent() -> None:
    bench = Bench({1: {1: log(), 2: log(), 3: log()}})
    found = bench.verify()
    assert found.verdict is Verdict.CONSISTENT
    assert set(findings(found).values()) == {Finding.EQUAL}
    assert [(copy.role, copy.entries, copy.confirmed) for copy in found.copies] == [
        (Role.PRIMARY, 60, 60),
        (Role.BACKUP, 60, 60),
        (Role.BACKUP, 60, 60),
    ]
    assert (found.done, found.total) == (60, 60)
    assert len(bench.asked) == 3


def test_in_many_parts_it_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FINGERPRINT_BYTES", 5)
    bench = Bench({1: {1: log(), 2: log()}})
    found = bench.verify()
    assert (found.verdict, found.faults) == (Verdict.CONSISTENT, [])
    assert len(bench.asked) > 20
    assert found.density.judged == 61


def test_log_streams_fill_each_others_gaps() -> None:
    """O2: every position of the topic exactly once, whoever has it."""
    first, second = paper((1, 2), (6, 1)), paper((3, 1, 2), (7, 3))
    found = Bench({1: {1: first, 2: first}, 2: {2: second, 3: second}}).verify()
    assert found.verdict is Verdict.CONSISTENT
    assert (found.density.judged, found.density.missing, found.density.twice) == (10, [], [])


def test_a_gap_between_log_streams_is_found() -> None:
    first, second = paper((1, 2), (6, 1)), paper((3, 1), (5, 3))
    found = Bench({1: {1: first, 2: first}, 2: {2: second, 3: second}}).verify()
    assert found.verdict is Verdict.INCONSISTENT
    assert set(findings(found).values()) == {Finding.EQUAL}
    assert (found.density.missing, found.density.twice) == ([(4, 5)], [(6, 7)])


def test_what_was_declared_lost_is_not_asked_for() -> None:
    """What is left of the log stream is compared, what follows in others too; the gap between them was declared."""
    whole, rest, other = paper((1, 2), (3, 3)), paper((1, 2)), paper((6, 1), (7, 2))
    bench = Bench({1: {1: rest, 2: rest}, 2: {1: other, 2: other}}, lost=(3, 6))
    bench.ends[1], bench.llsn_ends[1] = whole.end, LLSN(6)
    found = bench.verify()
    assert (found.verdict, found.density.lost, found.faults) == (Verdict.CONSISTENT, 3, [])
    assert found.density.judged == 9
    assert set(findings(found).values()) == {Finding.EQUAL}


def test_a_log_stream_that_nobody_has_anything_of_and_was_declared_lost() -> None:
    bench = Bench({1: {1: ABSENT}, 2: {1: paper((4, 2)), 2: paper((4, 2))}}, lost=(1, 4))
    bench.ends[1], bench.sets[1] = 4, ()
    found = bench.verify()
    assert (found.verdict, found.density.lost, found.unread) == (Verdict.CONSISTENT, 3, {})


def test_the_one_that_differs_is_found_and_where(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two agree: the third is wrong, from the first differing batch on; the two are still compared to the end."""
    for size in (5, 1 << 20):
        monkeypatch.setattr(limits, "FINGERPRINT_BYTES", size)
        other = log()
        other.replace(25, b"rot")
        found = Bench({1: {1: log(), 2: log(), 3: other}}).verify()
        assert found.verdict is Verdict.INCONSISTENT
        assert findings(found) == {1: Finding.EQUAL, 2: Finding.EQUAL, 3: Finding.DIFFERS}
        glsn = other.lines[25][0]
        assert found.copies[2].detail == f"from GLSN {glsn} on it differs from node 1, 2"
        assert found.copies[0].confirmed == 60


def test_two_that_differ_accuse_each_other() -> None:
    other = log()
    other.replace(0, b"rot")
    found = Bench({1: {1: log(), 2: other}}).verify()
    assert findings(found) == {1: Finding.ALONE, 2: Finding.DIFFERS}
    assert "which of them is right cannot be told" in found.copies[1].detail
    assert found.copies[1].detail.startswith("from GLSN 1 on ")


def test_members_have_the_greater_say() -> None:
    """Two replicas outside the set that agree do not outvote the one that is in it."""
    other = log()
    other.replace(3, b"rot")
    bench = Bench({1: {1: log(), 2: other, 3: other}})
    bench.sets[1] = (1,)
    found = bench.verify()
    assert findings(found) == {1: Finding.ALONE, 2: Finding.DIFFERS, 3: Finding.DIFFERS}
    assert [copy.role for copy in found.copies] == [Role.PRIMARY, Role.OUTSIDE, Role.OUTSIDE]


def test_a_swapped_pair_differs() -> None:
    other = log()
    first, second = bytes(other.lines[4][-1]), bytes(other.lines[6][-1])
    other.replace(4, second)
    other.replace(6, first)
    found = Bench({1: {1: log(), 2: log(), 3: other}}).verify()
    assert found.copies[2].detail.startswith(f"from GLSN {other.lines[4][0]} on")


def test_a_replica_that_lacks_an_entry_differs_from_there_on() -> None:
    """It is whole by itself: what follows has moved up in its log stream."""
    other = paper(*((1 + 3 * number, 2, 1) for number in range(9)), (28, 2), *((31 + 3 * n, 2, 1) for n in range(10)))
    found = Bench({1: {1: log(), 2: log(), 3: other}}).verify()
    assert findings(found) == {1: Finding.EQUAL, 2: Finding.EQUAL, 3: Finding.DIFFERS}
    assert found.copies[2].detail.startswith("from GLSN 28 on")


def test_what_only_others_have_is_told_so() -> None:
    other = paper(*((1 + 3 * number, 2, 1) for number in range(9)), *((31 + 3 * n, 2, 1) for n in range(10)))
    found = Bench({1: {1: log(), 2: log(), 3: other}}).verify()
    assert found.copies[2].detail == "from GLSN 28 on it differs from node 1, 2, it has nothing there"


def test_rule15_a_damaged_replica_is_told_from_a_different_one() -> None:
    damaged = log()
    damaged.damaged = 30
    found = Bench({1: {1: log(), 2: damaged, 3: log()}}).verify()
    assert findings(found) == {1: Finding.EQUAL, 2: Finding.DAMAGED, 3: Finding.EQUAL}
    assert "a damaged batch in 1.seg at offset 64" in found.copies[1].detail
    assert found.verdict is Verdict.INCONSISTENT


def test_what_is_known_to_be_damaged_is_not_asked() -> None:
    bench = Bench({1: {1: log(), 2: log(), 3: log()}})
    bench.corrupt = {2}
    found = bench.verify()
    assert findings(found)[2] is Finding.DAMAGED
    assert {question.snid for question in bench.asked} == {1, 3}


def test_a_short_replica_is_compared_as_far_as_it_goes() -> None:
    """A member that lacks something leaves it open whether it is equal; one outside the set owes nothing."""
    short = paper(*((1 + 3 * number, 2, 1) for number in range(7)))
    bench = Bench({1: {1: log(), 2: log(), 3: short}})
    found = bench.verify()
    assert findings(found) == {1: Finding.EQUAL, 2: Finding.EQUAL, 3: Finding.BEHIND}
    assert (found.verdict, found.copies[2].confirmed) == (Verdict.INCOMPLETE, 21)
    bench.sets[1] = (1, 2)
    found = bench.verify()
    assert findings(found) == {1: Finding.EQUAL, 2: Finding.EQUAL, 3: Finding.EQUAL}
    assert found.verdict is Verdict.CONSISTENT
    assert found.copies[2].detail == "as far as it goes, to GLSN 21"
    short.replace(2, b"rot")
    assert bench.verify().verdict is Verdict.INCONSISTENT


def test_who_cannot_be_asked_leaves_it_open() -> None:
    bench = Bench({1: {1: log(), 2: log(), 3: log()}})
    bench.silent = {3}
    found = bench.verify()
    assert (found.verdict, found.copies[2].detail) == (Verdict.INCOMPLETE, "nobody there")
    assert findings(found) == {1: Finding.EQUAL, 2: Finding.EQUAL, 3: Finding.SILENT}


def test_who_falls_silent_on_the_way_leaves_it_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FINGERPRINT_BYTES", 20)
    bench = Bench({1: {1: log(), 2: log()}})
    bench.before = lambda question: bench.silent.add(2) if question.begin > 30 else None
    found = bench.verify()
    assert findings(found) == {1: Finding.ALONE, 2: Finding.SILENT}
    assert found.verdict is Verdict.INCOMPLETE


def test_nobody_at_all() -> None:
    """What lies beyond the last that could be read is not judged, also of the other log streams."""
    first, second = paper((1, 2), (6, 1)), paper((3, 1, 2), (7, 3))
    bench = Bench({1: {1: first}, 2: {2: second}})
    bench.silent = {1}
    found = bench.verify()
    assert found.verdict is Verdict.INCOMPLETE
    assert found.unread == {1: 1}
    assert (found.density.judged, found.density.missing) == (1, [])


def test_a_member_without_a_replica() -> None:
    found = Bench({1: {1: log(), 2: log(), 3: ABSENT}}).verify()
    assert findings(found)[3] is Finding.MISSING
    assert found.verdict is Verdict.INCOMPLETE


def test_a_replica_that_is_taken_away_meanwhile() -> None:
    bench = Bench({1: {1: log(), 2: log(), 3: log()}})

    def taken(question: Question) -> None:
        if question.snid == 3:
            raise errors.UnknownLogStream("not here")

    bench.before = taken
    assert findings(bench.verify())[3] is Finding.MISSING


def test_a_single_replica_is_read_through_though_there_is_nothing_to_compare_it_with() -> None:
    bench = Bench({1: {1: log()}})
    found = bench.verify()
    assert (found.verdict, findings(found)) == (Verdict.CONSISTENT, {1: Finding.ALONE})
    bench.places[1][1].damaged = 5
    assert bench.verify().verdict is Verdict.INCONSISTENT


@pytest.mark.parametrize("at", [5, 20, 60])
def test_the_log_may_be_trimmed_meanwhile(monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    monkeypatch.setattr(limits, "FINGERPRINT_BYTES", 20)
    bench = Bench({1: {1: log(), 2: log(), 3: log()}})

    def trim(question: Question) -> None:
        if question.snid == 2 and question.begin > 1:
            for replica in bench.places[1].values():
                replica.trimmed = at

    bench.before = trim
    found = bench.verify()
    assert found.verdict is Verdict.CONSISTENT
    assert (found.faults, found.density.missing) == ([], [])


def test_an_end_that_is_not_the_metadata_repository_s_is_a_fault() -> None:
    bench = Bench({1: {1: log(), 2: log()}})
    bench.llsn_ends[1] = LLSN(99)
    found = bench.verify()
    assert found.faults == ["log stream 1 ends at LLSN 60, the metadata repository says 98"]


def test_an_empty_topic_is_consistent() -> None:
    bench = Bench({1: {1: paper(), 2: paper()}})
    bench.ends[1] = 1
    found = bench.verify()
    assert (found.verdict, bench.asked) == (Verdict.CONSISTENT, [])


def test_nothing_is_asked_beyond_the_end_that_was_listed() -> None:
    """Appends go on meanwhile."""
    bench = Bench({1: {1: log(), 2: log()}})
    bench.ends[1], bench.llsn_ends[1] = 31, LLSN(31)
    found = bench.verify()
    assert found.verdict is Verdict.CONSISTENT
    assert max(question.end for question in bench.asked) == 31 < EVERYTHING
