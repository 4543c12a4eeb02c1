"""What counts of the storage nodes' reports, and the cut that follows from it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from varlog.core import metastate as m
from varlog.core.messages import ReportLine
from varlog.core.metastate import AnyEntry, Cut, MetadataState
from varlog.core.tally import NO_MORE, Tallies
from varlog.errors import ConsistencyViolation
from varlog.types import GLSN, Epoch, LogStreamID, StorageNodeID, TopicID, Version

A, B, C, OUTSIDER = map(StorageNodeID, (1, 2, 3, 4))
SET = (A, B, C)
ONE, TWO, OTHER_TOPIC = map(LogStreamID, (1, 2, 3))
TOPIC_OF = {ONE: TopicID(1), TWO: TopicID(1), OTHER_TOPIC: TopicID(2)}


def line(lsid: int, end: int, *, epoch: int = 2, version: int = 0, healthy: bool = True) -> ReportLine:
    return (lsid, epoch, version, 1, end, healthy)


class Repository:
    """The tallies with the state they belong to: three log streams on three nodes, in two topics, all running."""

    def __init__(self) -> None:
        self.state = MetadataState()
        self.tallies = Tallies()
        self.full: set[int] = set()
        for tpid in sorted(set(TOPIC_OF.values())):
            self.apply(m.TopicCreated(tpid, str(tpid), 3, 2))
        for lsid, tpid in TOPIC_OF.items():
            self.apply(m.StreamCreating(lsid, tpid))
            self.apply(m.StreamRegistered(lsid, SET))
            self.run(lsid, 2)

    def apply(self, entry: AnyEntry) -> None:
        self.state.apply(Version(self.state.version + 1), entry)

    def run(self, lsid: LogStreamID, epoch: int, replicas: tuple[StorageNodeID, ...] = SET) -> None:
        self.apply(m.StreamUnsealing(lsid, Epoch(epoch), replicas, replicas[0]))
        self.tallies.follow(self.state.streams[lsid])
        self.apply(m.StreamRunning(lsid, Epoch(epoch)))
        self.tallies.resume(lsid)

    def seal(self, lsid: LogStreamID, epoch: int) -> None:
        self.apply(m.StreamSealed(lsid, Epoch(epoch)))
        self.tallies.follow(self.state.streams[lsid])

    def report(self, snid: StorageNodeID, *lines: ReportLine) -> None:
        self.tallies.count(snid, lines)

    def all_report(self, *lines: ReportLine) -> None:
        for snid in SET:
            self.report(snid, *lines)

    def cut(self) -> Cut | None:
        """Make the cut, if there is one."""
        made = self.tallies.cut(self.state, 7, self.full)
        if made is not None:
            self.tallies.require_durable(made)
            self.apply(made)
        return made


@pytest.fixture
def repository() -> Repository:
    return Repository()


def test_O1_a_cut_takes_the_smallest_end_over_all_replicas(repository: Repository) -> None:
    repository.report(A, line(1, 9))
    repository.report(B, line(1, 5))
    assert repository.cut() is None, "C has said nothing"
    repository.report(C, line(1, 7))
    assert repository.cut() == Cut(7, ((1, 0, 4),), ((1, 2, 1, 1, 4),))
    repository.report(B, line(1, 9))
    assert repository.cut() == Cut(7, ((1, 4, 6),), ((1, 2, 5, 5, 2),))


def test_O1_glsns_are_dealt_in_lsid_order_and_per_topic(repository: Repository) -> None:
    repository.all_report(line(3, 4), line(2, 3), line(1, 2))
    assert repository.cut() == Cut(7, ((1, 0, 3), (2, 0, 3)), ((1, 2, 1, 1, 1), (2, 2, 1, 2, 2), (3, 2, 1, 1, 3)))


def test_nothing_is_cut_when_nothing_has_advanced(repository: Repository) -> None:
    assert repository.cut() is None
    repository.all_report(line(1, 3))
    assert repository.cut() is not None
    assert repository.cut() is None
    repository.all_report(line(1, 3))
    assert repository.cut() is None


def test_rule2_what_was_reported_in_another_epoch_does_not_count(repository: Repository) -> None:
    repository.all_report(line(1, 3, epoch=1))
    repository.report(A, line(1, 3))
    repository.report(B, line(1, 3))
    repository.report(C, line(1, 9, epoch=4))
    assert repository.cut() is None


def test_rule2_what_was_reported_before_an_unseal_does_not_count_after_it(repository: Repository) -> None:
    repository.all_report(line(1, 3))
    repository.seal(ONE, 3)
    assert repository.cut() is None, "a sealed log stream is in no cut"
    repository.run(ONE, 4)
    assert repository.cut() is None
    repository.all_report(line(1, 3))
    assert repository.cut() is None, "a delayed report of the old epoch"
    repository.all_report(line(1, 2, epoch=4))
    assert repository.cut() == Cut(7, ((1, 0, 1),), ((1, 4, 1, 1, 1),))


def test_rule3_who_is_outside_the_set_does_not_count(repository: Repository) -> None:
    repository.report(A, line(1, 3))
    repository.report(B, line(1, 3))
    repository.report(OUTSIDER, line(1, 3))
    assert repository.cut() is None
    repository.seal(ONE, 3)
    repository.run(ONE, 4, (A, B))
    for snid in (A, B):
        repository.report(snid, line(1, 3, epoch=4))
    repository.report(C, line(1, 2, epoch=4))
    assert repository.cut() == Cut(7, ((1, 0, 2),), ((1, 4, 1, 1, 2),))


def test_rule5_a_new_boot_voids_what_the_node_reported_before(repository: Repository) -> None:
    repository.all_report(line(1, 3), line(2, 3))
    repository.tallies.void(B)
    assert repository.cut() is None
    repository.report(B, line(1, 2))
    assert repository.cut() == Cut(7, ((1, 0, 1),), ((1, 2, 1, 1, 1),))


def test_rule5_an_end_that_shrinks_is_noticed_and_does_not_count(repository: Repository) -> None:
    repository.all_report(line(1, 5))
    repository.report(A, line(1, 3))
    assert repository.cut() is None


def test_M8_a_failed_replica_adds_nothing(repository: Repository) -> None:
    repository.all_report(line(1, 3))
    repository.report(A, line(1, 9))
    repository.report(B, line(1, 9))
    repository.report(C, line(1, 9, healthy=False))
    assert repository.cut() == Cut(7, ((1, 0, 2),), ((1, 2, 1, 1, 2),))


def test_reports_that_came_before_a_log_stream_ran_are_cut_when_it_does(repository: Repository) -> None:
    repository.seal(ONE, 3)
    repository.apply(m.StreamUnsealing(ONE, Epoch(4), SET, A))
    repository.tallies.follow(repository.state.streams[ONE])
    repository.all_report(line(1, 3, epoch=4))
    assert repository.cut() is None, "it is not counted before it runs"
    repository.apply(m.StreamRunning(ONE, Epoch(4)))
    repository.tallies.resume(ONE)
    assert repository.cut() == Cut(7, ((1, 0, 2),), ((1, 4, 1, 1, 2),))


def test_a_report_of_an_unknown_log_stream_is_ignored(repository: Repository) -> None:
    repository.all_report(line(77, 5))
    assert repository.cut() is None


def test_a_cut_of_what_is_not_durable_everywhere_is_a_violation(repository: Repository) -> None:
    repository.report(A, line(1, 3))
    repository.report(B, line(1, 3))
    repository.report(C, line(1, 2))
    with pytest.raises(ConsistencyViolation, match="COMMITTED_IS_DURABLE"):
        repository.tallies.require_durable(Cut(7, ((1, 0, 2),), ((1, 2, 1, 1, 2),)))
    with pytest.raises(ConsistencyViolation, match="COMMITTED_IS_DURABLE"):
        repository.tallies.require_durable(Cut(7, ((1, 0, 1),), ((1, 1, 1, 1, 1),)))


def test_rule4_up_to_which_version_every_replica_has_the_commits_on_disk(repository: Repository) -> None:
    tallies = repository.tallies
    for snid, version in ((A, 30), (B, 20), (C, 10)):
        repository.report(snid, line(1, 1, version=version))
    assert tallies.durable_version(ONE) == 10
    assert tallies.durable_version(LogStreamID(77)) > 1 << 63, "nobody asks for a cut of a log stream that is no more"
    repository.seal(ONE, 3)
    assert tallies.durable_version(ONE) == 10, "what is on disk does not depend on the epoch"
    repository.report(C, line(1, 1, epoch=1, version=40))
    assert tallies.durable_version(ONE) == 20
    tallies.void(A)
    assert tallies.durable_version(ONE) == 0


def test_rule4_a_log_stream_that_holds_too_many_cuts_gets_no_more(repository: Repository) -> None:
    repository.full.add(ONE)
    repository.all_report(line(1, 3), line(2, 3))
    assert repository.cut() == Cut(7, ((1, 0, 2),), ((2, 2, 1, 1, 2),))
    repository.full.clear()
    repository.all_report(line(1, 4))
    assert repository.cut() == Cut(7, ((1, 2, 5),), ((1, 2, 1, 3, 3),))


GROWTH = st.tuples(st.sampled_from((ONE, TWO, OTHER_TOPIC)), st.integers(0, 4), st.sampled_from((2, 2, 1, 4)))
REPORTS = st.lists(st.tuples(st.sampled_from((A, B, C, OUTSIDER)), st.lists(GROWTH, max_size=4)), max_size=30)
"""Who reports, and of each log stream how much more it has, and in which epoch; the log streams are in epoch 2."""


@given(REPORTS)
def test_O2_cuts_deal_every_position_once_and_only_what_is_durable_everywhere(
    reports: list[tuple[StorageNodeID, list[tuple[LogStreamID, int, int]]]],
) -> None:
    repository = Repository()
    ends = {(lsid, snid): 1 for lsid in TOPIC_OF for snid in (*SET, OUTSIDER)}
    dealt: dict[int, list[int]] = {1: [], 2: []}
    for snid, lines in reports:
        for lsid, growth, epoch in lines:
            end = ends[lsid, snid] + growth
            repository.report(snid, line(lsid, end, epoch=epoch))
            if epoch == 2:
                ends[lsid, snid] = end
        cut = repository.cut()
        for cut_lsid, _, _, glsn, count in cut.ranges if cut is not None else ():
            dealt[TOPIC_OF[LogStreamID(cut_lsid)]].extend(range(glsn, glsn + count))
        for lsid in TOPIC_OF:
            assert repository.state.streams[lsid].llsn_end == min(ends[lsid, s] for s in SET)
    for positions in dealt.values():
        assert positions == list(range(1, len(positions) + 1))


def test_a_set_that_changes_counts_its_own_and_begins_with_nothing(repository: Repository) -> None:
    repository.all_report(line(1, 5, version=3))
    assert repository.cut() is not None
    repository.seal(ONE, 3)
    repository.run(ONE, 4, (A, OUTSIDER))
    assert repository.tallies.members(ONE) == {A, OUTSIDER}
    repository.report(A, line(1, 8, epoch=4, version=3))
    repository.report(B, line(1, 8, epoch=4, version=3))
    assert repository.cut() is None, "the one that has joined has said nothing, and who has left does not count"
    repository.report(OUTSIDER, line(1, 7, epoch=4))
    assert repository.cut() == Cut(7, ((1, 4, 6),), ((1, 4, 5, 5, 2),))


def test_rule4_who_joins_has_nothing_on_disk_until_it_says_so(repository: Repository) -> None:
    repository.all_report(line(1, 5, version=3))
    assert repository.tallies.durable_version(ONE) == 3
    repository.seal(ONE, 3)
    repository.report(B, line(1, 5, epoch=2, version=9))
    assert repository.tallies.durable_version(ONE) == 3
    repository.run(ONE, 4, (A, B, OUTSIDER))
    assert repository.tallies.durable_version(ONE) == 0
    repository.report(OUTSIDER, line(1, 5, epoch=4, version=7))
    assert repository.tallies.durable_version(ONE) == 3
    repository.seal(ONE, 5)
    repository.run(ONE, 6, (B, OUTSIDER))
    assert repository.tallies.durable_version(ONE) == 7


def test_rule4_a_replica_made_anew_between_two_reports_has_nothing_on_disk(repository: Repository) -> None:
    for snid in SET:
        repository.tallies.count(snid, [line(ONE, 9, version=80)])
    assert repository.tallies.durable_version(ONE) == 80
    repository.tallies.count(C, [line(ONE, 1)])
    assert repository.tallies.durable_version(ONE) == 0
    repository.tallies.count(C, [line(ONE, 9, version=80)])
    assert repository.tallies.durable_version(ONE) == 0, "it counts for nothing until it restarts, or its epoch ends"


def test_rule4_of_a_log_stream_without_a_replica_nothing_is_kept(repository: Repository) -> None:
    repository.all_report(line(1, 5, version=3))
    assert repository.cut() is not None
    repository.seal(ONE, 3)
    repository.apply(m.StreamLost(ONE, GLSN(1), ()))
    repository.tallies.follow(repository.state.streams[ONE])
    assert repository.tallies.durable_version(ONE) == NO_MORE
    repository.all_report(line(1, 9, epoch=3))
    assert repository.cut() is None
