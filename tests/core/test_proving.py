"""B11: a node's side of proving who it is, against what the metadata repository decides; stopped at every point."""

from __future__ import annotations

from itertools import count

import pytest

from varlog import errors
from varlog.core import metastate as m
from varlog.core.decisions import Already, decide
from varlog.core.describing import decided
from varlog.core.identity import boot_of, new_secret, proof_of
from varlog.core.messages import AdoptIdentity, Decided, Message, RegisterNode, RenewNode
from varlog.core.metastate import MetadataState
from varlog.core.proving import Held, Keeper, Outcome, Prover
from varlog.types import StorageNodeID, Version

NODE = StorageNodeID(7)
SECRET, ANOTHER = new_secret(b"a" * 32), new_secret(b"b" * 32)


class Stopped(Exception):
    """The process has ended here."""


class Disk:
    """Keeps secrets as volumes do, on one volume. It can stop the process before or after it has written."""

    def __init__(self) -> None:
        self.held: Held | None = None
        self.next: Held | None = None
        self.kept: tuple[Held | None, Held | None] = (None, None)
        self.full = False
        self.stop_at = -1
        self._steps = count()

    def keep(self, held: Held | None, successor: Held | None) -> None:
        self._pass()
        if self.full:
            raise errors.DiskFull("no space left")
        self.held, self.next = self.kept = (held, successor)
        self._pass()

    def _pass(self) -> None:
        if next(self._steps) == self.stop_at:
            raise Stopped

    def copy(self) -> Disk:
        copied = Disk()
        copied.held, copied.next = copied.kept = self.kept
        return copied


class Cluster:
    """The metadata repository's decisions, and the node as often as it is started."""

    def __init__(self) -> None:
        self.state = MetadataState()
        self.randoms = (bytes([number]) * 32 for number in count(1))
        self._requests = count(1)
        self._starts = count(1)

    def ask(self, message: Message) -> Decided:
        request: int = message.request  # type: ignore[attr-defined]
        try:
            decision = decide(self.state, message)
        except errors.VarlogError as error:
            return Decided(request, error.code, self.state.version, detail=str(error))
        if isinstance(decision, Already):
            return decided(self.state, request, message, None)
        self.state.apply(Version(self.state.version + 1), decision)
        return decided(self.state, request, message, decision)

    def register(self) -> None:
        assert self.ask(RegisterNode(next(self._requests), NODE, "a:1", (), proof_of(NODE, SECRET), 1)).code == 0

    def start(self, disk: Keeper) -> Prover:
        """A start finds what the volumes hold, without what was only begun."""
        disk.next = None
        return Prover(NODE, next(self._starts), disk, lambda: next(self.randoms))

    def announce(self, prover: Prover) -> Outcome:
        """Until nothing follows from it; the last outcome."""
        while (outcome := self.announce_once(prover)) is Outcome.PROVEN:
            pass
        return outcome

    def announce_once(self, prover: Prover) -> Outcome:
        return prover.on_decided(self.ask(prover.announce(next(self._requests), "a:1", ("/v",))))

    @property
    def on_record(self) -> m.Node:
        return self.state.nodes[NODE]


def adopt(secret: str = SECRET, generation: int = 1, snid: StorageNodeID = NODE) -> AdoptIdentity:
    return AdoptIdentity(9, snid, secret, generation)


@pytest.fixture
def cluster() -> Cluster:
    made = Cluster()
    made.register()
    return made


@pytest.fixture
def disk(cluster: Cluster) -> Disk:
    """Of a node that has its secret, and has been started with it once."""
    made = Disk()
    prover = cluster.start(made)
    assert prover.adopt(adopt()).code == 0
    assert cluster.announce(prover) is Outcome.ADMITTED
    return made


def test_M1_a_node_that_is_not_registered_waits() -> None:
    cluster, disk = Cluster(), Disk()
    prover = cluster.start(disk)
    assert cluster.announce(prover) is Outcome.APART
    assert not prover.is_identified
    assert disk.held is None


def test_a_node_that_was_registered_without_a_secret_needs_none() -> None:
    cluster = Cluster()
    cluster.state.apply(Version(1), m.NodeRegistered(NODE))
    prover = cluster.start(Disk())
    assert cluster.announce(prover) is Outcome.ADMITTED
    assert prover.is_identified
    assert cluster.on_record == m.Node("a:1", ("/v",))


def test_B11_from_registration_to_the_second_secret(cluster: Cluster) -> None:
    disk = Disk()
    prover = cluster.start(disk)
    assert cluster.announce(prover) is Outcome.APART
    assert (prover.is_identified, prover.boot) == (False, boot_of(0, 1))
    assert prover.adopt(adopt()).code == 0
    assert (prover.is_identified, prover.boot) == (True, boot_of(1, 1))
    assert cluster.announce_once(prover) is Outcome.PROVEN
    assert cluster.announce_once(prover) is Outcome.ADMITTED
    assert disk.held is not None
    assert disk.held.secret != SECRET
    assert (cluster.on_record.proof, cluster.on_record.next_proof) == (proof_of(NODE, disk.held.secret), "")
    assert cluster.on_record.boot == prover.boot


def test_B11_a_reconnect_shows_the_same_secret_again(cluster: Cluster, disk: Disk) -> None:
    prover = cluster.start(disk)
    assert cluster.announce(prover) is Outcome.ADMITTED
    version, held = cluster.state.version, disk.held
    for _ in range(3):
        assert cluster.announce_once(prover) is Outcome.ADMITTED
    assert (cluster.state.version, disk.held) == (version, held), "it is changed once in a start"


def test_B11_of_two_copies_the_one_that_is_started_first_is_the_node(cluster: Cluster, disk: Disk) -> None:
    copied = disk.copy()
    assert cluster.announce(cluster.start(disk)) is Outcome.ADMITTED
    with pytest.raises(errors.WrongIdentity, match="copy"):
        cluster.announce(cluster.start(copied))
    before = disk.copy()
    assert cluster.announce(cluster.start(before)) is Outcome.ADMITTED, "nothing but a move to another place"
    with pytest.raises(errors.WrongIdentity):
        cluster.announce(cluster.start(disk))


def test_B11_a_copy_that_was_made_while_the_secret_changed_is_refused(cluster: Cluster, disk: Disk) -> None:
    prover = cluster.start(disk)
    cluster.announce_once(prover)
    copied = disk.copy()
    assert cluster.announce(prover) is Outcome.ADMITTED
    assert copied.held == disk.held, "it had been changed before it was shown"
    other = cluster.start(disk)
    other.announce(99, "a:1", ())
    midway = disk.copy()
    assert cluster.announce(other) is Outcome.ADMITTED
    with pytest.raises(errors.WrongIdentity):
        cluster.announce(cluster.start(midway))


def test_B11_lost_disks_begin_anew_with_another_secret(cluster: Cluster, disk: Disk) -> None:
    empty = Disk()
    prover = cluster.start(empty)
    assert cluster.announce(prover) is Outcome.APART
    assert not prover.is_identified
    assert cluster.ask(RenewNode(1, NODE, 1, proof_of(NODE, ANOTHER))).value == 2
    assert prover.adopt(adopt(ANOTHER, 2)).code == 0
    assert cluster.announce(prover) is Outcome.ADMITTED
    assert prover.boot == boot_of(2, 2)
    with pytest.raises(errors.WrongIdentity):
        cluster.announce(cluster.start(disk))


def test_B11_who_was_renewed_meanwhile_waits_for_the_secret(cluster: Cluster) -> None:
    """The first secret came so late that another one had been recorded."""
    disk = Disk()
    prover = cluster.start(disk)
    assert cluster.ask(RenewNode(1, NODE, 1, proof_of(NODE, ANOTHER))).code == 0
    assert prover.adopt(adopt()).code == 0
    assert cluster.announce(prover) is Outcome.APART
    identified = [prover.is_identified]
    assert prover.adopt(adopt(ANOTHER, 2)).code == 0
    identified.append(prover.is_identified)
    assert identified == [False, True]
    assert cluster.announce(prover) is Outcome.ADMITTED


REFUSED: list[tuple[AdoptIdentity, type[errors.VarlogError]]] = [
    (adopt(snid=StorageNodeID(8), generation=2), errors.WrongIdentity),
    (adopt(ANOTHER, 1), errors.WrongIdentity),
    (adopt(ANOTHER, 0), errors.InvalidArgument),
    (adopt(ANOTHER, 1 << 31), errors.InvalidArgument),
    (adopt("secret", 2), errors.InvalidArgument),
]


@pytest.mark.parametrize(("message", "error"), REFUSED)
def test_B11_what_is_not_its_next_identity_is_refused(
    message: AdoptIdentity, error: type[errors.VarlogError], cluster: Cluster, disk: Disk
) -> None:
    prover = cluster.start(disk)
    before = (disk.held, disk.next, prover.boot)
    reply = prover.adopt(message)
    assert reply.code == error.code
    assert reply.detail
    assert message.secret not in reply.detail
    assert (disk.held, disk.next, prover.boot) == before
    assert cluster.announce(prover) is Outcome.ADMITTED


def test_B11_an_identity_may_be_given_again(cluster: Cluster, disk: Disk) -> None:
    """Its answer may be lost; by then the node has changed its secret already."""
    prover = cluster.start(disk)
    assert prover.adopt(adopt()).code == 0
    assert prover.adopt(adopt(ANOTHER, 2)).code == 0
    assert prover.adopt(adopt()).code == errors.WrongIdentity.code, "it comes too late"
    assert disk.held is not None
    assert disk.held.generation == 2


@pytest.mark.parametrize("step", range(4))
def test_B11_a_node_may_stop_anywhere_while_it_changes_its_secret(step: int, cluster: Cluster, disk: Disk) -> None:
    """Before and after each of the two writes; the metadata repository has answered what it was asked before."""
    prover = cluster.start(disk)
    disk = disk.copy()
    prover = cluster.start(disk)
    disk.stop_at = step
    with pytest.raises(Stopped):
        cluster.announce(prover)
    after = disk.copy()
    assert cluster.announce(cluster.start(after)) is Outcome.ADMITTED


@pytest.mark.parametrize("heard", [False, True])
@pytest.mark.parametrize("asked", [1, 2])
def test_B11_a_node_may_stop_before_it_hears_the_answer(asked: int, heard: bool, cluster: Cluster, disk: Disk) -> None:
    prover = cluster.start(disk)
    if asked == 2:
        assert cluster.announce_once(prover) is Outcome.PROVEN
    message = prover.announce(77, "a:1", ("/v",))
    if heard:
        assert cluster.ask(message).code == 0
    assert cluster.announce(cluster.start(disk.copy())) is Outcome.ADMITTED


@pytest.mark.parametrize("step", range(4))
def test_B11_a_node_may_stop_anywhere_while_it_is_given_its_secret(step: int, cluster: Cluster) -> None:
    disk = Disk()
    disk.stop_at = step
    prover = cluster.start(disk)
    with pytest.raises(Stopped):
        prover.adopt(adopt())
    after = disk.copy()
    again = cluster.start(after)
    if after.held is None:
        assert cluster.announce(again) is Outcome.APART
        assert again.adopt(adopt()).code == 0
    assert cluster.announce(again) is Outcome.ADMITTED


def test_B11_a_full_disk_keeps_its_secret(cluster: Cluster, disk: Disk) -> None:
    prover = cluster.start(disk)
    disk.full = True
    assert cluster.announce(prover) is Outcome.ADMITTED
    disk.full = False
    assert cluster.announce(prover) is Outcome.ADMITTED
    assert cluster.announce(cluster.start(disk)) is Outcome.ADMITTED


def test_B11_a_disk_that_fills_up_while_the_secret_changes_keeps_both(cluster: Cluster, disk: Disk) -> None:
    prover = cluster.start(disk)
    message = prover.announce(77, "a:1", ("/v",))
    disk.full = True
    assert prover.on_decided(cluster.ask(message)) is Outcome.ADMITTED
    assert cluster.announce_once(prover) is Outcome.ADMITTED
    assert cluster.announce(cluster.start(disk.copy())) is Outcome.ADMITTED


def test_B11_an_identity_that_cannot_be_kept_is_not_taken(cluster: Cluster) -> None:
    disk = Disk()
    disk.full = True
    prover = cluster.start(disk)
    reply = prover.adopt(adopt())
    assert (reply.code, disk.held) == (errors.DiskFull.code, None)
    assert not prover.is_identified


def test_an_answer_to_another_question_says_nothing(cluster: Cluster, disk: Disk) -> None:
    prover = cluster.start(disk)
    message = prover.announce(77, "a:1", ("/v",))
    assert prover.on_decided(Decided(5, errors.WrongIdentity.code, Version(1))) is Outcome.APART
    assert prover.on_decided(cluster.ask(message)) is Outcome.PROVEN


def test_who_is_not_listened_to_tries_again(cluster: Cluster, disk: Disk) -> None:
    prover = cluster.start(disk)
    for code in (errors.Busy.code, errors.NotLeader.code):
        prover.announce(77, "a:1", ("/v",))
        assert prover.on_decided(Decided(77, code, Version(1))) is Outcome.LATER
        assert prover.is_identified
    assert cluster.announce(prover) is Outcome.ADMITTED


def test_no_secret_is_shown_by_accident(cluster: Cluster, disk: Disk) -> None:
    prover = cluster.start(disk)
    said = [disk.held, adopt(), prover.announce(77, "a:1", ("/v",))]
    assert disk.held is not None
    for secret in (SECRET, disk.held.secret):
        assert not [shown for shown in said if secret in repr(shown)]
