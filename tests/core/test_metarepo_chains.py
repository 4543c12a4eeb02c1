"""The metadata repository and a sequencer's topics: proposals, a confirmed epoch, which node is told what."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.core.repository import ONE, TOPIC, TWO, A, B, Repository, line
from tests.metarepo.rigs import JournalRig, Rig, SimRig
from varlog import errors
from varlog.core.messages import (
    Commit,
    CreateStream,
    CreateTopic,
    Decided,
    GetMetadata,
    GetTail,
    Metadata,
    ProposeProjection,
    RegisterNode,
    RegisterSequencer,
    RegisterStream,
    SealStream,
    SequencerInfo,
    Snapshot,
    Tail,
    TrimTopic,
)
from varlog.core.metarepo import SNAPSHOT_EVERY
from varlog.core.projection import Chain, Projection, Stripe
from varlog.types import GLSN, Epoch, Ordering, StorageNodeID, StreamStatus, TopicID, Version

C = StorageNodeID(3)
FIRST = Projection(Epoch(1), "host:1", 7, GLSN(1), 0, (Stripe(GLSN(1), 10, (ONE,)),), (Chain(ONE, (A, B)),))
SECOND = replace(FIRST, epoch=Epoch(2), start=GLSN(31))


def propose(projection: Projection, base: int) -> ProposeProjection:
    return ProposeProjection(50, TOPIC, Epoch(base), projection)


class Chains(Repository):
    """Topic 1, which a sequencer orders, with log stream 1 on nodes 1 and 2; topic 2, ordered by commits, with log
    stream 2 on node 2; node 3 has nothing."""

    def set_up(self) -> Chains:
        for snid in (A, B, C):
            self.ask(RegisterNode(self.request(), snid))
        self.ask(RegisterSequencer(self.request(), "host:1", 7))
        self.ask(CreateTopic(self.request(), "orders", 2, 1, GLSN(1), Ordering.SEQUENCER, 10))
        self.ask(CreateTopic(self.request(), "audit", 1, 1))
        for lsid, tpid, replicas in ((ONE, TOPIC, (A, B)), (TWO, TopicID(2), (B,))):
            self.ask(CreateStream(self.request(), tpid))
            self.ask(RegisterStream(self.request(), lsid, replicas))
        for snid in (A, B, C):
            self.report(snid, full=True, ask=True)
        self.rig.settle()
        self.sent.clear()
        return self

    def tail_of(self, tpid: TopicID = TOPIC) -> Tail:
        self.receive(GetTail(9, tpid))
        self.rig.settle()
        return self.messages(Tail)[-1]

    def metadata(self) -> Metadata:
        self.receive(GetMetadata(8))
        return self.messages(Metadata)[-1]


@pytest.fixture
def rig() -> SimRig:
    return SimRig()


@pytest.fixture
def repository(rig: SimRig) -> Chains:
    return Chains(rig).set_up()


def test_rule20_the_tail_is_told_with_the_epoch_that_confirms_a_peek(repository: Chains) -> None:
    assert repository.tail_of() == Tail(9, 0, GLSN(0), GLSN(0), Epoch(0))
    assert repository.ask(propose(FIRST, 0)).value == 1
    assert repository.tail_of() == Tail(9, 0, GLSN(0), GLSN(0), Epoch(1))
    repository.ask(propose(SECOND, 1))
    assert repository.tail_of() == Tail(9, 0, GLSN(30), GLSN(0), Epoch(2))
    assert repository.tail_of(TopicID(2)).epoch == 0


def test_rule20_an_epoch_that_the_store_has_and_the_leader_has_not_heard_of_is_waited_for(
    repository: Chains, rig: SimRig
) -> None:
    """Its positions may have been written by now: the old epoch is confirmed to nobody."""
    repository.ask(propose(FIRST, 0))
    rig.sim.odds.unanswered = 1.0
    repository.receive(propose(SECOND, 1))
    rig.sim.odds.unanswered = 0.0
    rig.settle()
    repository.receive(GetTail(9, TOPIC))
    rig.settle()
    assert repository.messages(Tail) == []
    rig.advance(2.0)
    assert [tail.epoch for tail in repository.messages(Tail)] == [2]


def test_rule20_a_deposed_leader_confirms_no_epoch(repository: Chains, rig: SimRig) -> None:
    repository.ask(propose(FIRST, 0))
    other = Chains(rig, rig.second)
    other.ask(propose(SECOND, 1))
    assert repository.tail_of() == Tail(9, errors.NotLeader.code)


def test_S7_the_loser_of_two_proposals_is_refused_and_reads_the_winners(repository: Chains, rig: SimRig) -> None:
    repository.ask(propose(FIRST, 0))
    loser = replace(SECOND, chains=(Chain(ONE, (B,)),))
    repository.sent.clear()
    repository.receive(propose(SECOND, 1), "winner")
    repository.receive(propose(loser, 1), "loser")
    rig.settle()
    assert [d.code for d in repository.to("winner", Decided)] == [0]
    (refused,) = repository.to("loser", Decided)
    assert refused.code == errors.Conflict.code
    assert "in epoch 2, not 1" in refused.detail
    assert repository.metadata().topics[0].projection == SECOND


def test_S7_anybody_may_propose(repository: Chains) -> None:
    """Only a manager may ask for most changes; a client that met a failure asks for this one."""
    repository.core.on_message("some client", propose(FIRST, 0), repository.now)
    repository.core.on_message("a sequencer", RegisterSequencer(51, "host:2", 3), repository.now)
    repository.rig.settle()
    assert [d.code for d in repository.to("some client", Decided)] == [0]
    assert [d.code for d in repository.to("a sequencer", Decided)] == [0]


def test_a_repeated_proposal_is_answered_without_another_entry(repository: Chains) -> None:
    repository.ask(propose(FIRST, 0))
    version = repository.version
    again = repository.ask(propose(FIRST, 0))
    assert (again.code, again.value, again.version) == (0, 1, version)


@pytest.mark.parametrize("make", [SimRig, JournalRig])
def test_projections_and_sequencers_survive_a_restart(make: type[Rig]) -> None:
    rig = make()
    repository = Chains(rig).set_up()
    repository.ask(propose(FIRST, 0))
    repository.ask(TrimTopic(1, TOPIC, GLSN(12)))
    if isinstance(rig, JournalRig):
        rig.restart()
    again = Chains(rig)
    assert again.core.state == repository.core.state
    (topic, _), sequencers = again.metadata().topics, again.metadata().sequencers
    assert (topic.projection, topic.trim, sequencers) == (FIRST, 12, (SequencerInfo("host:1", 7),))


def test_projections_survive_snapshots(repository: Chains, rig: SimRig) -> None:
    for epoch in range(1, SNAPSHOT_EVERY + 5):
        repository.ask(propose(replace(FIRST, epoch=Epoch(epoch)), epoch - 1))
    assert list(rig.sim.keyspace.select_prefix("snapshot").kvs)
    again = Chains(rig)
    assert again.core.state == repository.core.state
    assert again.tail_of().epoch == SNAPSHOT_EVERY + 4


def test_no_cut_is_made_of_what_a_chain_reports(repository: Chains) -> None:
    repository.ask(propose(FIRST, 0))
    for snid in (A, B):
        repository.report(snid, line(ONE, 9, epoch=1))
    repository.rig.settle()
    assert repository.core.state.topics[TOPIC].hwm == 0
    assert repository.ask(SealStream(1, ONE, Epoch(1))).code == errors.WrongOrdering.code


def test_a_keep_alive_of_a_node_with_chains_is_answered(repository: Chains) -> None:
    """By this the node knows how long it may serve (S10)."""
    repository.ask(propose(FIRST, 0))
    repository.sent.clear()
    repository.report(A, line(ONE, 1, epoch=1), full=True)
    (answer,) = repository.to("sn/1", Commit)
    assert (answer.prev_version, answer.hwms, answer.ranges) == (answer.version, (), ())


def test_rule5_who_asks_is_told_of_its_chains(repository: Chains) -> None:
    repository.ask(propose(FIRST, 0))
    repository.sent.clear()
    repository.report(B, full=True, ask=True)
    (told,) = repository.to("sn/2", Snapshot)
    ends = {end.lsid: (end.status, end.epoch) for end in told.streams}
    assert ends == {ONE: (StreamStatus.CHAINED, 1), TWO: (StreamStatus.SEALED, 1)}


def test_rule14_a_trim_is_told_to_all_that_have_to_do_with_the_topic(repository: Chains) -> None:
    repository.ask(propose(FIRST, 0))
    repository.ask(TrimTopic(1, TOPIC, GLSN(12)))
    for address in ("sn/1", "sn/2"):
        assert repository.to(address, Commit)[-1].trims == ((TOPIC, 12),)
    assert repository.to("sn/3", Commit) == []


def test_rule14_who_joins_a_chain_is_told_what_is_trimmed_and_who_left_is_not(repository: Chains) -> None:
    repository.ask(propose(FIRST, 0))
    repository.ask(TrimTopic(1, TOPIC, GLSN(12)))
    repository.sent.clear()
    repository.ask(propose(replace(SECOND, chains=(Chain(ONE, (B, C)),)), 1))
    (told,) = repository.to("sn/3", Snapshot)
    assert told.topics == ((TOPIC, 30, 12),)
    assert repository.messages(Commit) == [], "nodes hear of an epoch from whoever seals them"
    repository.ask(TrimTopic(1, TOPIC, GLSN(20)))
    assert [repository.to(f"sn/{snid}", Commit) != [] for snid in (1, 2, 3)] == [False, True, True]
    (commit,) = repository.to("sn/3", Commit)
    assert commit.prev_version == told.version


def test_rule5_the_versions_a_node_is_told_form_one_chain(repository: Chains) -> None:
    """Node 2 has to do with both topics: of a projection it is told nothing, and misses nothing."""
    repository.report(B, full=True)
    before = repository.to("sn/2", Commit)[-1].version
    repository.ask(propose(FIRST, 0))
    repository.ask(TrimTopic(1, TOPIC, GLSN(0)))
    repository.ask(TrimTopic(1, TOPIC, GLSN(12)))
    told = repository.to("sn/2", Commit)[-1]
    assert (told.prev_version, told.version) == (before, Version(repository.version))
