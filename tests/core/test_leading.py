"""Who leads of several metadata repositories on one store: candidates against a simulated store, step by step."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from enum import Enum

import pytest

from tests.metarepo.rigs import SimRig
from varlog import errors, limits
from varlog.core.branches import Branch
from varlog.core.leading import LEASE_SECONDS, Candidate, MemberRecord, decode_member
from varlog.core.messages import Decided, Message, RegisterManager
from varlog.core.metarepo import MetadataRepository, Role
from varlog.core.store import LEADER_KEY, MEMBER_PREFIX, LeaderRecord, Put, Txn, decode_leader
from varlog.sim.store import SimStoreClient, StoreFaults

TICK = 0.1


class Member:
    """A metadata repository and its candidate; what happens to it while it is paused happens when it goes on."""

    def __init__(self, rig: SimRig, address: str) -> None:
        self._rig = rig
        self._held: list[Callable[[], None]] = []
        self.address = address
        self.is_paused = False
        self.is_dead = False
        self.answers: list[Message] = []
        self.turns: list[Role] = []
        self.branches: Counter[Enum] = Counter()
        self.client = SimStoreClient(rig.sim, self._schedule)
        self.core = MetadataRepository(self.client, self._send, self._observe)
        self.core.on_turn_of_role = lambda: self.turns.append(self.core.role)
        self.candidate = Candidate(self.client, self.core, address, self._observe)
        self.candidate.hears(3)

    def _observe(self, branch: Enum) -> None:
        self.branches[branch] += 1

    def _send(self, _address: str, message: Message) -> None:
        self.answers.append(message)

    def _schedule(self, delay: float, act: Callable[[], None]) -> None:
        def arrive() -> None:
            if self.is_paused:
                self._held.append(arrive)
            elif not self.is_dead:
                act()

        self._rig.timeline.schedule(delay, arrive)

    def tick(self) -> None:
        if not self.is_paused and not self.is_dead:
            now = self._rig.timeline.now
            self.core.tick(now)
            self.candidate.tick(now, now)

    def kill(self) -> None:
        self.is_dead = True
        self.client.close()

    def resume(self) -> None:
        self.is_paused = False
        held, self._held = self._held, []
        for act in held:
            act()

    @property
    def leads(self) -> bool:
        return self.core.role is Role.LEADING and not self.is_dead

    def register(self, address: str) -> None:
        """Ask for something that is written."""
        self.core.on_message("manager", RegisterManager(1, address), self._rig.timeline.now)


class Ensemble:
    def __init__(self, *addresses: str) -> None:
        self.rig = SimRig(StoreFaults(watch_delay=(0.0005, 0.002)))
        self.members = [Member(self.rig, address) for address in addresses]

    def run(self, seconds: float, until: Callable[[], bool] = lambda: False) -> float:
        """Let time pass, until something is so; how much has passed."""
        begun = self.rig.timeline.now
        while self.rig.timeline.now < begun + seconds and not until():
            for member in self.members:
                member.tick()
            self.rig.timeline.run(TICK)
        return self.rig.timeline.now - begun

    @property
    def leaders(self) -> list[Member]:
        return [member for member in self.members if member.leads]

    @property
    def leader(self) -> Member:
        (leader,) = self.leaders
        return leader

    @property
    def standby(self) -> Sequence[Member]:
        return [member for member in self.members if not member.leads]

    @property
    def record(self) -> LeaderRecord:
        kv = self.rig.sim.keyspace.get(LEADER_KEY)
        assert kv is not None
        return decode_leader(kv.value)


@pytest.fixture
def three() -> Ensemble:
    ensemble = Ensemble("a:1", "b:1", "c:1")
    ensemble.run(2.0)
    return ensemble


def test_M4_one_alone_leads_at_once_before_any_node_is_there() -> None:
    alone = Ensemble("a:1")
    alone.members[0].candidate.hears(0)
    assert alone.run(2.0, lambda: bool(alone.leaders)) <= 0.3
    assert alone.record == LeaderRecord(alone.leader.core.term, alone.record.lease, "a:1")


def test_M4_one_of_several_leads_and_all_know_who(three: Ensemble) -> None:
    for member in three.members:
        assert member.candidate.leader == three.record
        assert member.candidate.leader.address == three.leader.address
        assert member.candidate.silence <= 1
        assert member.candidate.members == {address: MemberRecord(address, 3) for address in ("a:1", "b:1", "c:1")}


def test_an_idle_cluster_writes_nothing_and_nobody_takes_turns(three: Ensemble) -> None:
    revision, leader = three.rig.sim.keyspace.revision, three.leader
    three.run(60.0)
    assert three.rig.sim.keyspace.revision == revision
    assert three.leaders == [leader]
    assert leader.turns == [Role.LEADING]


def test_M4_a_killed_leader_is_replaced_after_a_second(three: Ensemble) -> None:
    dead, term = three.leader, three.record.term
    dead.kill()
    three.run(0.6)
    assert three.leaders == []
    assert three.run(5.0, lambda: bool(three.leaders)) + 0.6 <= 1.9
    assert three.record.address != dead.address
    assert three.record.term > term


def test_M4_a_leader_that_is_stopped_is_replaced_at_once(three: Ensemble) -> None:
    stopped, done = three.leader, []
    stopped.candidate.resign(lambda: done.append(True))
    assert stopped.turns == [Role.LEADING, Role.FOLLOWING]
    assert three.run(5.0, lambda: bool(three.leaders)) <= 0.5
    assert done == [True]
    assert stopped.address not in three.leader.candidate.members
    three.run(20.0)
    assert stopped.core.role is Role.FOLLOWING, "it does not come back"


def test_who_has_no_lease_yet_is_stopped_at_once() -> None:
    member = Ensemble("a:1").members[0]
    done: list[bool] = []
    member.candidate.resign(lambda: done.append(True))
    assert done == [True]


# What can be under way


def test_M4_a_leader_paused_while_its_write_is_decided_finds_out_that_it_happened_and_that_it_leads_no_more(
    three: Ensemble,
) -> None:
    paused = three.leader
    paused.register("m:1")
    paused.is_paused = True
    three.run(15.0)
    (successor,) = [member for member in three.leaders if member is not paused]
    assert successor.core.state.manager == "m:1", "it landed before the term was raised"
    successor.register("m:2")
    three.run(0.5)
    paused.resume()
    assert paused.answers[0] == Decided(1, 0, paused.core.state.version), "it was done, and that stays true"
    three.run(1.0)
    assert three.leaders == [successor]
    assert successor.core.state.manager == "m:2"


def test_M4_a_paused_leader_can_do_nothing_but_find_out(three: Ensemble) -> None:
    paused = three.leader
    paused.is_paused = True
    three.run(15.0)
    revision = three.rig.sim.keyspace.revision
    paused.is_paused = False  # it goes on before anything that came meanwhile is handed to it
    paused.register("m:1")
    three.rig.settle()
    assert paused.core.role is Role.FOLLOWING
    assert [answer.code for answer in paused.answers if isinstance(answer, Decided)] == [errors.NotLeader.code]
    assert three.rig.sim.keyspace.revision == revision
    paused.resume()
    three.run(10.0)
    assert len(three.leaders) == 1
    assert paused.candidate.leader == three.record


def test_M4_a_leader_that_only_listens_sees_that_another_leads(three: Ensemble) -> None:
    paused = three.leader
    paused.is_paused = True
    three.run(15.0)
    paused.resume()
    three.run(0.5)
    assert paused.core.role is Role.FOLLOWING
    assert len(three.leaders) == 1


def test_M4_a_write_under_way_while_its_leader_resigns_is_read_by_the_next(three: Ensemble) -> None:
    resigning = three.leader
    resigning.register("m:1")
    resigning.candidate.resign(lambda: None)
    assert [answer.code for answer in resigning.answers if isinstance(answer, Decided)] == [errors.NotLeader.code]
    three.run(3.0)
    assert three.leader.core.state.manager == "m:1", "what was refused is asked for again, and is so already"


def test_M4_a_leader_that_lost_its_lease_resigns_and_leads_again_if_nobody_else_does() -> None:
    alone = Ensemble("a:1")
    alone.run(1.0)
    member, before = alone.leader, alone.record
    member.is_paused = True
    alone.run(LEASE_SECONDS + 5.0)
    member.resume()
    alone.run(1.0)
    assert member.branches[Branch.M4_LEASE_LOST] == 1
    assert member.turns == [Role.LEADING, Role.FOLLOWING, Role.LEADING]
    assert (alone.record.term, alone.record.address) == (before.term + 1, "a:1")
    assert alone.record.lease != before.lease


def test_M4_a_campaign_that_was_won_unknowingly_is_made_again() -> None:
    alone = Ensemble("a:1")
    (member,) = alone.members
    member.tick()
    alone.rig.sim.odds.unanswered = 1.0
    alone.rig.timeline.run(0.05)
    alone.rig.sim.odds.unanswered = 0.0
    alone.run(10.0, lambda: bool(alone.leaders))
    assert alone.leaders == [member]
    named = alone.rig.sim.keyspace.get(LEADER_KEY)
    assert named is not None
    assert decode_leader(named.value).term == member.core.term


@pytest.mark.parametrize("seed", range(20))
def test_M4_two_that_campaign_at_once_come_to_one_leader_also_on_a_bad_store(seed: int) -> None:
    bad = Ensemble("a:1", "b:1")
    bad.rig.sim._rng.seed(seed)
    bad.rig.sim.odds = StoreFaults(refused=0.1, lost=0.1, unanswered=0.1, late=0.1)
    for _ in range(5):
        bad.run(4.0)
        for member in bad.members:
            member.client.misjudges = True
    bad.rig.sim.odds = StoreFaults()
    bad.run(10.0)
    leader = bad.leader
    revision = bad.rig.sim.keyspace.revision
    bad.run(20.0)
    assert bad.leaders == [leader]
    assert bad.rig.sim.keyspace.revision == revision, "all is at rest"
    assert leader.candidate.members == {address: MemberRecord(address, 3) for address in ("a:1", "b:1")}


def test_M4_a_late_judgement_deposes_nobody(three: Ensemble) -> None:
    """A standby finds the leader silent; before it acts on that, another one does."""
    first, second = three.standby
    kv = three.rig.sim.keyspace.get(LEADER_KEY)
    assert kv is not None
    three.leader.kill()
    second.is_paused = True
    three.run(5.0)
    assert three.leaders == [first]
    second.core.campaign(0.0, instead_of=kv.revision)
    second.resume()
    three.run(3.0)
    assert three.leaders == [first]
    assert first.turns == [Role.LEADING]


# Who hears the nodes


def test_M4_a_leader_that_hears_fewer_nodes_than_another_yields_after_a_second(three: Ensemble) -> None:
    deaf = three.leader
    deaf.candidate.hears(0)
    three.run(0.8)
    assert three.leaders == [deaf]
    three.run(1.5)
    assert deaf.branches[Branch.M4_YIELDED] == 1
    assert three.leader is not deaf
    three.run(10.0)
    assert len(three.leader.turns) == 1, "nobody yields again"


def test_M4_a_node_that_is_gone_for_everybody_is_no_reason_to_yield(three: Ensemble) -> None:
    leader = three.leader
    for member in (leader, *three.standby):
        member.candidate.hears(2)
        three.run(0.3)
    three.run(10.0)
    assert leader.turns == [Role.LEADING]


def test_M4_two_that_hear_different_halves_of_the_nodes_do_not_take_turns() -> None:
    halves = Ensemble("a:1", "b:1")
    halves.run(1.0)
    leader = halves.leader
    for hears in ((2, 2), (1, 2), (2, 1), (2, 2), (1, 2), (2, 2)) * 5:
        for member, count in zip(halves.members, hears, strict=True):
            member.candidate.hears(count)
        halves.run(0.6)
    assert halves.leaders == [leader]
    assert leader.turns == [Role.LEADING]


def test_M4_of_two_standbys_the_one_that_hears_more_leads_next(three: Ensemble) -> None:
    less, more = three.standby
    less.candidate.hears(1)
    more.candidate.hears(2)
    three.run(1.0)
    three.leader.kill()
    three.run(2.0)
    assert three.leaders == [more], "the dead leader heard more than both, and is not waited for"
    three.run(10.0)
    assert less.branches[Branch.M4_HELD_BACK] + more.branches[Branch.M4_CAMPAIGNED] >= 1


def test_M4_one_that_hears_more_and_has_ended_is_waited_for_no_longer_than_the_leader(three: Ensemble) -> None:
    less, gone = three.standby
    less.candidate.hears(1)
    three.run(1.0)
    three.leader.kill()
    gone.kill()
    assert three.run(10.0, lambda: less.leads) <= 2.5
    assert less.leads
    assert less.branches[Branch.M4_HELD_BACK] > 0


def test_M4_nobody_yields_to_a_dead_machine_for_the_node_that_died_with_it(three: Ensemble) -> None:
    leader, (other, gone) = three.leader, three.standby
    gone.kill()
    for member in (leader, other):
        member.candidate.hears(2)
    three.run(2 * LEASE_SECONDS)
    assert leader.leads
    assert leader.turns == [Role.LEADING]


def test_M4_a_standby_leads_though_a_dead_machine_had_heard_more(three: Ensemble) -> None:
    leader, (other, gone) = three.leader, three.standby
    gone.kill()
    leader.kill()
    other.candidate.hears(1)
    assert three.run(10.0, lambda: other.leads) <= 2.5


# The store


def test_M4_a_leader_cut_off_from_the_store_is_replaced_and_finds_out_when_it_is_back(three: Ensemble) -> None:
    cut_off = three.leader
    cut_off.client.connected = False
    three.run(8.0)
    (other,) = [member for member in three.leaders if member is not cut_off]
    cut_off.client.connected = True
    three.run(2.0)
    assert three.leaders == [other]


def test_M4_a_leader_that_the_store_does_not_answer_leads_no_longer_than_its_lease(three: Ensemble) -> None:
    """Nodes that hear nobody else would take its answers for proof that they are heard of."""
    cut_off = three.leader
    cut_off.client.connected = False
    led_for = three.run(60.0, until=lambda: not cut_off.leads)
    assert LEASE_SECONDS - 1 < led_for < LEASE_SECONDS + 1, "the store may be away for a moment"
    assert cut_off.branches[Branch.M4_LEASE_UNCERTAIN] == 1
    three.run(60.0)
    (leader,) = three.leaders
    assert leader is not cut_off


def test_M4_a_lease_counts_from_when_it_was_asked_for(three: Ensemble) -> None:
    """An answer says that the lease lived when it was asked for, and nothing of the time on the way."""
    leader = three.leader
    for late in three.standby:
        late.kill()
    kept_at = leader.candidate._kept_at
    assert leader.candidate._renew_at > kept_at
    asked = three.rig.timeline.now
    three.run(1.0)
    assert asked - 1.0 < kept_at < leader.candidate._kept_at <= three.rig.timeline.now


def test_M4_a_store_that_was_away_finds_one_leader_again(three: Ensemble) -> None:
    three.rig.sim.available = False
    three.run(20.0)
    three.rig.sim.available = True
    three.run(4.0)
    assert len(three.leaders) == 1
    assert {member.candidate.leader for member in three.members} == {three.record}


def test_a_watch_that_comes_too_late_is_begun_anew(three: Ensemble, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "WATCH_HISTORY_REVISIONS", 3)
    leader = three.leader
    late = Member(three.rig, "d:1")
    three.members.append(late)
    late.tick()
    three.rig.timeline.run(0.0012)  # what it has read is under way
    for number in range(10):
        leader.register(f"m:{number}")
        three.rig.timeline.run(0.1)
    three.run(2.0)
    assert late.candidate.leader == three.record
    leader.kill()
    three.run(3.0)
    assert late.candidate.leader == three.record
    assert three.record.address != leader.address


def test_an_old_write_of_its_own_that_comes_late_is_written_over(three: Ensemble) -> None:
    member = three.leader
    key = MEMBER_PREFIX + member.address
    kv = three.rig.sim.keyspace.get(key)
    assert kv is not None
    three.rig.sim.txn(Txn(puts=(Put(key, b'{"address":"%s","hears":1}' % member.address.encode(), kv.lease),)))
    three.run(1.0)
    now = three.rig.sim.keyspace.get(key)
    assert now is not None
    assert decode_member(now.value) == MemberRecord(member.address, 3)


def test_a_member_that_cannot_be_read_has_no_say(three: Ensemble) -> None:
    three.rig.sim.txn(Txn(puts=(Put(MEMBER_PREFIX + "x", b"\xff"),)))
    three.run(3.0)
    assert len(three.leaders) == 1
    assert set(three.leader.candidate.members) == {"a:1", "b:1", "c:1"}


def test_a_leader_whose_lease_is_gone_has_been_silent_for_ever(three: Ensemble) -> None:
    leader, (held_back, awaited) = three.leader, three.standby
    held_back.candidate.hears(1)
    three.run(0.5)
    awaited.is_paused = True
    leader.kill()
    three.rig.sim.lease_revoke(three.record.lease)
    three.run(0.5)
    assert held_back.candidate.silence == math.inf
