"""B11: the metadata repository listens to the node that has proven who it is, and to nobody else in its name."""

from __future__ import annotations

import pytest

from tests.core.repository import ONE, TOPIC, A, B, Repository, line
from tests.metarepo.rigs import SimRig
from varlog import errors
from varlog.core.admissions import ALIVE_SECONDS
from varlog.core.identity import boot_of, new_secret, proof_of
from varlog.core.messages import (
    AnnounceNode,
    Commit,
    Decided,
    RegisterNode,
    RenewNode,
    Report,
    RunStream,
    SealStream,
    Snapshot,
    UnregisterNode,
    UnsealStream,
)
from varlog.types import Epoch, StorageNodeID, Version

C = StorageNodeID(3)
FIRST, SECOND, THIRD = (new_secret(bytes([number]) * 32) for number in (1, 2, 3))
BOOT = boot_of(1, 1)
HERE, THERE = "connection/1", "connection/2"


class Cluster(Repository):
    """Log stream 1 has moved to nodes 1 and 3, of which 3 was registered with a proof."""

    def set_up(self) -> Cluster:
        super().set_up()
        self.ask(RegisterNode(self.request(), C, "c:1", (), proof_of(C, FIRST), 1))
        self.ask(SealStream(self.request(), ONE, Epoch(2)))
        self.ask(UnsealStream(self.request(), ONE, Epoch(3), (A, C), A))
        self.ask(RunStream(self.request(), ONE, Epoch(4)))
        self.sent.clear()
        return self

    def announce(
        self, secret: str = FIRST, successor: str = "", *, source: str = HERE, boot: int = BOOT, place: str = "c:1"
    ) -> Decided:
        next_proof = proof_of(C, successor) if successor else ""
        self.receive(AnnounceNode(self.request(), C, place, (), boot, secret, next_proof), source)
        self.rig.settle()
        return self.to(source, Decided)[-1]

    def says(self, end: int, *, source: str = HERE, boot: int = BOOT, ask: bool = True) -> None:
        seen = Version(self.version)
        report = Report(C, boot, next(self._seqs), seen, (line(ONE, end, epoch=4),), True, ask)
        self.receive(report, source)
        self.rig.settle()

    def others_say(self, end: int) -> None:
        self.report(A, line(ONE, end, epoch=4))
        self.rig.settle()


@pytest.fixture
def rig() -> SimRig:
    return SimRig()


@pytest.fixture
def cluster(rig: SimRig) -> Cluster:
    return Cluster(rig).set_up()


def test_B11_a_node_counts_once_it_has_shown_its_secret(cluster: Cluster) -> None:
    cluster.others_say(3)
    cluster.says(3)
    assert (cluster.tail, cluster.to(HERE, Snapshot)) == (0, [])
    assert cluster.announce().code == 0
    assert cluster.tail == 0, "what it said before does not count"
    cluster.says(3)
    assert cluster.tail == 2
    assert len(cluster.to(HERE, Snapshot)) == 1
    assert cluster.to(HERE, Commit)[-1].ranges == ((ONE, 4, 1, 1, 2),), "it is answered where it came from"


def test_B11_who_has_not_shown_the_secret_is_not_heard_whatever_it_says(cluster: Cluster) -> None:
    cluster.announce()
    cluster.others_say(3)
    cluster.says(3, source=THERE)
    cluster.says(3, boot=BOOT + 1)
    assert cluster.tail == 0
    assert cluster.to(THERE, Snapshot) == []


def test_B11_a_node_without_a_secret_or_with_a_wrong_one_is_told_so(cluster: Cluster) -> None:
    before = cluster.version
    for secret in ("", SECOND):
        refused = cluster.announce(secret, place="elsewhere:1")
        assert refused.code == errors.WrongIdentity.code
        assert refused.detail
    assert cluster.version == before
    assert cluster.core.state.nodes[C].address == "c:1"
    cluster.others_say(3)
    cluster.says(3)
    assert cluster.tail == 0


def test_B11_a_secret_that_was_changed_is_good_and_the_one_before_is_not(cluster: Cluster, rig: SimRig) -> None:
    assert cluster.announce(FIRST, SECOND).code == 0
    assert cluster.announce(SECOND).code == 0
    assert cluster.announce(FIRST, boot=BOOT + 1).code == errors.WrongIdentity.code
    cluster.others_say(2)
    cluster.says(2)
    assert cluster.tail == 1
    successor = Cluster(rig, rig.second)
    assert successor.announce(FIRST, boot=BOOT + 1).code == errors.WrongIdentity.code


def test_B11_to_announce_the_same_again_writes_nothing(cluster: Cluster) -> None:
    cluster.announce(FIRST, SECOND)
    before = cluster.version
    assert cluster.announce(FIRST, SECOND).code == 0
    assert cluster.version == before


def test_B11_a_second_process_is_refused_while_the_first_is_there(cluster: Cluster) -> None:
    """It was started from a copy that was made while the node ran, so its secret is good and its start is later."""
    cluster.announce()
    refused = cluster.announce(source=THERE, boot=BOOT + 1, place="copy:1")
    assert refused.code == errors.Busy.code
    assert "running already, at c:1" in refused.detail
    for seconds in (0.9, 0.9, 0.9):
        cluster.now += seconds
        cluster.says(1)
        assert cluster.announce(source=THERE, boot=BOOT + 1).code == errors.Busy.code
    assert cluster.core.state.nodes[C].boot == BOOT
    cluster.others_say(2)
    cluster.says(2)
    assert cluster.tail == 1


def test_B11_a_node_that_starts_again_is_not_kept_waiting_when_its_connection_has_ended(cluster: Cluster) -> None:
    cluster.announce()
    cluster.says(1)
    cluster.core.on_closed(THERE)
    assert cluster.announce(source=THERE, boot=BOOT + 1).code == errors.Busy.code
    cluster.core.on_closed(HERE)
    assert cluster.announce(source=THERE, boot=BOOT + 1).code == 0
    cluster.others_say(2)
    cluster.says(2)
    assert cluster.tail == 0, "what the one before sent last is not heard any more"
    cluster.says(2, source=THERE, boot=BOOT + 1)
    assert cluster.tail == 1


def test_B11_the_same_start_through_another_connection_is_the_same_process(cluster: Cluster) -> None:
    """The network broke between them, and only the node has noticed."""
    cluster.announce(FIRST, SECOND)
    cluster.announce(SECOND)
    cluster.says(1)
    assert cluster.announce(SECOND, source=THERE).code == 0
    cluster.others_say(2)
    cluster.says(2)
    assert cluster.tail == 0
    cluster.says(2, source=THERE)
    assert cluster.tail == 1


def test_B11_a_clock_that_is_set_back_keeps_nobody_out(cluster: Cluster) -> None:
    cluster.announce()
    cluster.says(1)
    cluster.now -= 3600.0
    assert cluster.announce(source=THERE, boot=BOOT + 1).code == 0


def test_B11_a_node_that_ended_without_a_word_is_waited_for_a_little(cluster: Cluster) -> None:
    cluster.announce()
    cluster.says(1)
    cluster.now += ALIVE_SECONDS
    assert cluster.announce(FIRST, SECOND, source=THERE, boot=BOOT + 1).code == 0
    assert cluster.announce(SECOND, source=THERE, boot=BOOT + 1).code == 0
    refused = cluster.announce(FIRST, source=HERE)
    assert refused.code == errors.WrongIdentity.code, "it wakes up, and another is in its place"


def test_rule5_a_new_leader_has_everybody_prove_themselves_again(cluster: Cluster, rig: SimRig) -> None:
    cluster.announce()
    successor = Cluster(rig, rig.second)
    successor.others_say(2)
    successor.says(2)
    assert successor.tail == 0
    before = successor.version
    assert successor.announce().code == 0
    assert successor.version == before, "it was on record"
    successor.says(2)
    assert successor.tail == 1


def test_B11_a_deposed_leader_turns_nobody_away_for_good(cluster: Cluster, rig: SimRig) -> None:
    """Its record is old, and a node that is told it is not itself stops."""
    successor = Cluster(rig, rig.second)
    successor.announce(FIRST, SECOND)
    successor.announce(SECOND, THIRD)
    refused = cluster.announce(SECOND, THIRD)
    assert refused.code == errors.NotLeader.code


def test_B11_a_refusal_that_the_store_cannot_confirm_is_not_made(cluster: Cluster, rig: SimRig) -> None:
    rig.sim.odds.refused = 1.0
    assert cluster.announce(SECOND).code == errors.NotLeader.code
    rig.sim.odds.refused = 0.0
    assert cluster.announce(SECOND).code == errors.WrongIdentity.code


def test_B11_a_node_that_has_lost_its_disks_begins_anew(cluster: Cluster) -> None:
    cluster.announce()
    cluster.says(1)
    cluster.core.on_closed(HERE)
    assert cluster.announce("", source=THERE, boot=1).code == errors.WrongIdentity.code
    assert cluster.ask(RenewNode(1, C, 1, proof_of(C, SECOND))).code == errors.Conflict.code
    cluster.ask(SealStream(1, ONE, Epoch(4)))
    cluster.ask(UnsealStream(1, ONE, Epoch(5), (A,), A))
    renewed = cluster.ask(RenewNode(1, C, 1, proof_of(C, SECOND)))
    assert (renewed.code, renewed.value) == (0, 2)
    assert cluster.announce(FIRST, source=HERE, boot=BOOT).code == errors.Conflict.code, "until the new one is seen"
    assert cluster.announce(SECOND, source=THERE, boot=boot_of(2, 1)).code == 0
    assert cluster.announce(FIRST, source=HERE, boot=BOOT + 1).code == errors.WrongIdentity.code


def test_B11_a_node_that_was_removed_is_not_heard(cluster: Cluster) -> None:
    cluster.announce()
    cluster.ask(SealStream(1, ONE, Epoch(4)))
    cluster.ask(UnsealStream(1, ONE, Epoch(5), (A,), A))
    assert cluster.ask(UnregisterNode(1, C)).code == 0
    assert cluster.announce().code == errors.UnknownNode.code
    registered = cluster.ask(RegisterNode(1, C, "c:1", (), proof_of(C, THIRD), 2))
    assert (registered.code, registered.value) == (0, 2)
    assert cluster.announce().code == errors.Conflict.code, "it waits for the secret of this registration"
    assert cluster.announce(THIRD, boot=boot_of(2, 1)).code == 0


def test_a_node_that_was_registered_without_a_proof_is_heard_as_it_is(cluster: Cluster) -> None:
    cluster.receive(AnnounceNode(1, B, "b:2", (), 5), THERE)
    cluster.rig.settle()
    assert cluster.to(THERE, Decided)[-1].code == 0
    assert cluster.core.state.nodes[B].address == "b:2"
    cluster.report(B, full=True, ask=True)
    assert len(cluster.to("sn/2", Snapshot)) == 1
    assert cluster.core.state.topics[TOPIC].hwm == 0
