"""Learners, sources that were trimmed, and how a replica finds that it needs a copy (rules 7, 12, 14)."""

from __future__ import annotations

import pytest

from tests.core.copies import Site, Sites, lacking_target, running_source, sealed_source
from tests.core.replica import LSID, TOPIC, cut
from varlog import errors, limits
from varlog.core.branches import Branch
from varlog.core.messages import Cuts, FetchCuts, FetchLog, LogPart, ReplicaReply, Scan, Snapshot, StreamEnd, SyncReply
from varlog.core.syncing import A_MOMENT, FOLLOW_AGAIN, RENEW_WITHIN
from varlog.types import GLSN, LLSN, CommitContext, Epoch, StreamStatus, Term, Version


@pytest.fixture
def sites() -> Sites:
    return Sites()


# Learners


def test_rule12_a_learner_copies_from_a_running_replica_and_follows_it(sites: Sites) -> None:
    source, target = running_source(sites), sites.target
    target.sync_from(1, 4, learner=True)
    sites.settle()
    assert target.state == "SEALING 4"
    assert target.ends[0] == 13
    target.sync_from(1, 4, learner=True)
    reply = sites.reply()
    assert (reply.is_complete, reply.source, reply.copied_end, reply.source_end) == (True, 1, 13, 13)
    source.store(7, epoch=4)
    source.commit(15, epoch=4)
    sites.pass_time(2 * FOLLOW_AGAIN)
    assert target.ends[0] == 15
    assert target.log() == source.log()
    assert Branch.RULE12_LEARNING in target.branches


def test_rule12_a_learner_that_is_sealed_joins(sites: Sites) -> None:
    source, target = running_source(sites), sites.target
    target.sync_from(1, 4, learner=True)
    sites.settle()
    source.store(7, epoch=4)
    source.commit(15, epoch=4)
    for site in (target, source):
        site.seal(5, 15)
    sites.settle()
    assert target.state == source.state == "SEALED 5"
    assert target.log() == source.log()
    assert target.replica.executor.info().source == 0
    assert Branch.RULE12_LEARNER_SEALED in target.branches
    for site in (target, source):
        site.unseal(6, 1, 2)
    sites.settle()
    assert target.state == source.state == "RUNNING 6"


def test_rule12_a_learner_that_lacks_nothing_is_sealed_at_once(sites: Sites) -> None:
    running_source(sites)
    target = sites.target
    target.sync_from(1, 4, learner=True)
    sites.settle()
    target.seal(5, 13)
    sites.settle()
    assert target.state == "SEALED 5"


def test_rule12_a_learner_of_a_log_that_grows_is_held_against_a_moment_ago(sites: Sites) -> None:
    """However fast it grows, and whenever somebody looks."""
    source, target = running_source(sites), sites.target
    target.sync_from(1, 4, learner=True)
    sites.settle()
    ends = []
    for n in range(7, 60):
        source.store(n, epoch=4)
        source.commit(2 * n + 1, epoch=4)
        ends.append((sites.now, LLSN(2 * n + 1)))
        sites.pass_time(0.01, every=0.01)
        info = target.replica.executor.info()
        assert info.source_end <= info.committed_end
    last, told = sites.now - FOLLOW_AGAIN, target.replica.executor.source_end
    assert told >= max(end for at, end in ends if at <= last - 2 * A_MOMENT)
    assert told <= max(end for at, end in ends if at <= last - A_MOMENT + FOLLOW_AGAIN)


def test_rule12_a_learner_that_does_not_keep_up_is_seen(sites: Sites, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "COPY_PART_BATCHES", 1)
    source, target = running_source(sites), sites.target
    target.sync_from(1, 4, learner=True)
    sites.settle()
    for n in range(7, 40):
        source.store(n, epoch=4)
        source.commit(2 * n + 1, epoch=4)
    for _ in range(2):
        sites.now += 2 * A_MOMENT
        target.now = sites.now
        target.node.tick(sites.now)
        for _ in range(4):
            sites.step()
    info = target.replica.executor.info()
    assert info.committed_end < info.source_end == 79


def test_rule12_following_is_no_hot_loop(sites: Sites) -> None:
    running_source(sites)
    sites.target.sync_from(1, 4, learner=True)
    sites.settle()
    before = sites.parts
    sites.pass_time(1.0, every=0.001)
    assert 10 <= sites.parts - before <= 1 / FOLLOW_AGAIN + 1


def test_rule12_the_caller_is_told_when_a_copy_wants_to_go_on(sites: Sites) -> None:
    running_source(sites)
    target = sites.target
    assert target.node.syncing.due is None
    target.sync_from(1, 4, learner=True)
    sites.settle()
    assert target.node.syncing.due == FOLLOW_AGAIN


@pytest.mark.parametrize("state", ["RUNNING 2", "SEALED 3", "SEALING 2"])
def test_rule12_a_replica_that_missed_its_seal_learns(sites: Sites, state: str) -> None:
    """It was cut off, left out of the set, and comes back: the epoch it is told proves that its own has passed."""
    source, target = running_source(sites), sites.target
    target.run(2)
    target.store(1)
    target.commit(3)
    target.store(2, writer=99)
    if state == "SEALED 3":
        target.seal(3, 3)
    elif state == "SEALING 2":
        target.restart()
    target.write()
    assert target.state == state
    target.sync_from(1, 4, learner=True)
    sites.settle()
    assert target.state == "SEALING 4"
    assert target.log() == source.log()
    assert target.replica.answer(target.replica.append(9, epoch=2)) == ""


def test_rule2_a_learner_refuses_seals_that_came_before_what_it_copied(sites: Sites) -> None:
    """A delayed Seal of epoch 3 would end below what is committed here."""
    source, target = running_source(sites, 2), sites.target
    source.store(3, epoch=4)
    source.commit(7, epoch=4)
    target.sync_from(1, 1, learner=True)
    sites.settle()
    assert target.state == "SEALING 4", "the epoch of what it stores is promised by it"
    for _ in range(2):
        target.seal(3, 5)
        sites.settle()
        assert sites.of(ReplicaReply)[-1].code == errors.StaleEpoch.code
        assert target.ends[0] == 7
        target.restart()
    target.seal(5, 7)
    sites.settle()
    assert target.state == "SEALED 5"


def test_rule12_a_learner_ignores_cuts(sites: Sites) -> None:
    """They say nothing of what is durable here."""
    source, target = running_source(sites, 2), sites.target
    target.sync_from(1, 4, learner=True)
    sites.settle()
    source.store(3, epoch=4)
    source.commit(7, epoch=4)
    target.receive("mr", Cuts(LSID, (cut(5, 7, epoch=4, version=3),)))
    assert target.ends == (5, 5, 5)
    assert not target.replica.executor.needs_sync
    sites.pass_time(2 * FOLLOW_AGAIN)
    assert target.log() == source.log()


def test_rule8_what_a_given_up_copy_left_is_not_committed_before_it_is_durable(sites: Sites) -> None:
    source, target = sites.source, sites.target
    source.run(2)
    source.store(1)
    source.commit(3)
    target.sync_from(1, 2, learner=True)
    target.write()
    sites.pump()
    source.read()
    sites.pump()
    assert target.ends == (1, 1, 3)
    target.now += RENEW_WITHIN + 1
    target.node.tick(target.now)
    assert not target.replica.executor.is_copying
    target.receive("mr", Cuts(LSID, (cut(1, 3, version=1),)))
    assert target.ends == (1, 1, 3)


@pytest.mark.parametrize("steps", range(1, 8))
def test_rule12_a_seal_finds_a_learner_at_any_point(steps: int) -> None:
    sites = Sites()
    source, target = running_source(sites), sites.target
    target.sync_from(1, 4, learner=True)
    for _ in range(steps):
        sites.step()
    for site in (target, source):
        site.seal(5, 13)
    sites.pass_time(0.2)
    if target.state == "SEALING 5":
        target.sync_from(1, 5, learner=True)
        sites.pass_time(0.2)
    assert target.state == source.state == "SEALED 5"
    assert target.log() == source.log()


# Trimmed sources (rule 14)


def test_rule14_a_copy_starts_anew_where_the_log_of_its_source_begins(sites: Sites) -> None:
    source, target = running_source(sites, 20), sites.target
    source.replica.executor.trim(GLSN(25))
    source.write()
    target.sync_from(1, 4, learner=True)
    while Branch.RULE14_SYNC_STARTS_ANEW not in target.branches:
        sites.step()
    assert target.ends == (25, 25, 25), "where the commit begins that the trim point lies in"
    assert target.state == "SEALING 4"
    assert target.replica.executor.trim_glsn == 25
    sites.settle()
    assert target.log() == source.log()
    target.restart()
    assert target.log() == source.log()
    target.seal(5, 41)
    sites.settle()
    assert target.state == "SEALED 5"


@pytest.mark.parametrize("glsn", range(1, 42, 3))
def test_rule14_any_trim_point_gives_the_same_log(glsn: int) -> None:
    sites = Sites()
    source, target = sites.source, sites.target
    source.run(2)
    for n in range(1, 21):
        source.store(n, writer=n % 4 + 1)
        if n % 3 == 0:
            source.commit(2 * n + 1, skip=n % 2)
    source.commit(41)
    source.replica.executor.trim(GLSN(glsn))
    source.replica.storage.flush_commits()
    source.write()
    target.sync_from(1, 2, learner=True)
    sites.settle()
    target.replica.executor.trim(GLSN(glsn))  # which it was told with the base, if it was given one
    assert target.log() == source.log()


def test_rule14_a_source_that_trims_meanwhile(sites: Sites, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "COPY_PART_BATCHES", 2)
    source, target = running_source(sites, 20), sites.target
    target.sync_from(1, 4, learner=True)
    for _ in range(5):
        sites.step()
    assert 1 < target.ends[0] < 25
    source.replica.executor.trim(GLSN(30))
    source.write()
    sites.settle()
    assert target.log() == source.log()


def test_rule14_a_replica_that_starts_anew_goes_on_without_being_asked_again(sites: Sites) -> None:
    """Else a source that is trimmed again meanwhile is never caught up with."""
    source, target = running_source(sites, 20), sites.target
    source.replica.executor.trim(GLSN(20))
    source.write()
    target.sync_from(1, 4, learner=True)
    sites.settle()
    assert Branch.RULE14_SYNC_STARTS_ANEW in target.branches
    assert target.log() == source.log()
    assert target.replica.executor.info().source == 1
    sites.of(SyncReply)
    target.sync_from(3, 4, learner=True)
    assert sites.reply().code == errors.AlreadySync.code
    sites.pass_time(RENEW_WITHIN - 0.5)
    assert target.replica.executor.info().source == 1
    sites.pass_time(1.0)
    assert target.replica.executor.info().source == 0, "it was last asked about before it started anew"


def test_rule14_a_replica_of_the_set_that_starts_anew_is_sealed_before_it_goes_on(sites: Sites) -> None:
    """Where it ends is not in what it begins with."""
    seal_point = sealed_source(sites, 20)
    sites.source.replica.executor.trim(GLSN(20))
    sites.source.write()
    target = lacking_target(sites, seal_point)
    target.sync_from(1, 3)
    sites.settle()
    assert Branch.RULE14_SYNC_STARTS_ANEW in target.branches
    assert target.state == "SEALING 3"
    assert target.replica.executor.info().source == 0
    target.seal(3, seal_point)
    sites.settle()
    target.replica.executor.needs_sync = True
    target.sync_from(1, 3)
    sites.settle()
    assert target.state == "SEALED 3"
    assert target.log() == sites.source.log()


def test_rule14_a_source_that_is_wholly_trimmed(sites: Sites) -> None:
    source, target = running_source(sites, 6), sites.target
    source.replica.executor.trim(GLSN(12))
    source.write()
    target.sync_from(1, 4, learner=True)
    sites.settle()
    assert target.ends == (13, 13, 13)
    assert target.log() == source.log()
    source.store(7, epoch=4)
    source.commit(15, epoch=4)
    sites.pass_time(2 * FOLLOW_AGAIN)
    assert target.log() == source.log()


def test_rule14_what_is_promised_is_kept(sites: Sites) -> None:
    source, target = running_source(sites, 6), sites.target
    source.replica.executor.trim(GLSN(12))
    source.write()
    target.seal(9, 13)
    target.write()
    target.sync_from(1, 9, learner=True)
    sites.settle()
    assert target.state == "SEALING 9"
    target.restart()
    assert target.state == "SEALING 9"


def test_rule14_a_base_of_what_is_here_already_is_ignored(sites: Sites) -> None:
    """An answer that was long on its way must not throw away what was copied since."""
    running_source(sites, 6)
    target = sites.target
    target.sync_from(1, 4, learner=True)
    sites.settle()
    reached = target.ends
    target.node.tick(FOLLOW_AGAIN)
    (fetch,) = [m for _, m in target.sent if isinstance(m, FetchLog)]
    target.receive("sn/1", LogPart(fetch.request, LSID, errors.Trimmed.code, LLSN(13), LLSN(5), base=b"old"))
    assert target.node.syncing.restarts == []
    sites.settle()
    assert target.ends == reached


# Needing a copy


def behind(sites: Sites) -> Site:
    """Node 2 SEALING in epoch 3 at 1 of 13, knowing nothing else."""
    target = sites.target
    target.seal(3, 13)
    sites.settle()
    sites.of(FetchCuts)
    return target


@pytest.mark.parametrize(
    "cuts", [(), (cut(3, 5),), (cut(1, 3, epoch=4),), (cut(1, 3),)], ids=["none", "later", "epoch", "no frames"]
)
def test_rule7_cuts_that_complete_nothing_show_that_a_copy_is_needed(
    sites: Sites, cuts: tuple[CommitContext, ...]
) -> None:
    target = behind(sites)
    target.receive("mr", Cuts(LSID, cuts, LLSN(13)))
    info = target.replica.executor.info()
    assert (info.needs_sync, info.healthy) == (True, True)


def test_rule7_who_knows_less_than_is_missing_does_not_show_that_a_copy_is_needed(sites: Sites) -> None:
    """A metadata repository that leads no more has not heard of the cut, and the replica has all of it on its disk: for
    a copy, that would be thrown away first."""
    target = sites.target
    target.run(2)
    target.store(1, 2)
    target.seal(3, 5)
    sites.settle()
    for end in (1, 4):
        target.receive("mr", Cuts(LSID, (), LLSN(end)))
        assert not target.replica.executor.needs_sync
    sites.of(FetchCuts)
    sites.pass_time(2.0)
    assert len(sites.of(FetchCuts)) >= 3, "it goes on asking"
    target.receive("mr", Cuts(LSID, (cut(1, 3), cut(3, 5)), LLSN(5)))
    assert target.state == "SEALED 3"
    assert target.ends == (5, 5, 5)


def test_a_replica_outside_the_set_asks_for_cuts_rarely(sites: Sites) -> None:
    target = behind(sites)
    sites.pass_time(2.0)
    assert len(sites.of(FetchCuts)) >= 3
    target.receive("mr", Cuts(LSID, (), LLSN(13)))
    sites.pass_time(20.0, every=0.1)
    assert len(sites.of(FetchCuts)) <= 4


def test_cuts_that_come_after_all_make_the_copy_unnecessary(sites: Sites) -> None:
    """What one metadata repository did not have must not be believed for ever."""
    target = sites.target
    target.run(2)
    target.store(1, 2)
    target.seal(3, 5)
    sites.settle()
    target.receive("mr", Cuts(LSID, (), LLSN(5)))
    assert target.replica.executor.needs_sync
    assert target.ends == (1, 5, 5), "nothing is dropped yet"
    target.receive("mr", Cuts(LSID, (cut(1, 3), cut(3, 5)), LLSN(5)))
    assert target.state == "SEALED 3"
    assert not target.replica.executor.needs_sync


def test_no_cuts_are_fetched_while_copying(sites: Sites) -> None:
    running_source(sites)
    target = sites.target
    target.receive("mr", Snapshot(Term(1), Version(50), Version(0), (), (listed(4, 99),)))
    sites.settle()
    sites.of(FetchCuts)
    target.sync_from(1, 4, learner=True)
    sites.pass_time(3.0)
    assert not sites.of(FetchCuts)


def listed(epoch: int, end: int) -> StreamEnd:
    return StreamEnd(LSID, TOPIC, Epoch(epoch), StreamStatus.RUNNING, LLSN(end), GLSN(end - 1), Version(1))


def test_a_reader_who_waits_is_answered_when_the_copy_has_come(sites: Sites) -> None:
    end = sealed_source(sites)
    target = lacking_target(sites, end)
    target.receive("reader", Scan(5, LSID, GLSN(12), 1 << 20, True))
    target.sync_from(1, 3)
    sites.settle()
    assert [plan.scan.request for plan in target.node.reads] == [5]
