"""The next projection of a topic that a sequencer orders: who is kept, who joins, where positions go on, who wins."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.core.chainworld import BLOCK, FIRST, TOPIC, Client, World, entries
from varlog import errors
from varlog.core import reconfiguring
from varlog.core.address import node_address, sequencer_address
from varlog.core.messages import ChainSeal, Peek, ProposeProjection, StreamInfo
from varlog.core.projection import Chain, Stripe
from varlog.core.reconfiguring import Change
from varlog.types import GLSN, LLSN, Epoch, LogStreamID, Ordering, StorageNodeID, StreamStatus, Version

ONE, TWO, THREE = (StorageNodeID(snid) for snid in (1, 2, 3))
LS = LogStreamID(1)


def world(chains: dict[int, tuple[int, ...]] | None = None, **options: object) -> tuple[World, Client]:
    made = World(chains or {1: (1, 2, 3)}, **options)  # type: ignore[arg-type]
    return made, made.clients[0]


def reconfigured(made: World, client: Client, change: Change) -> int:
    """Hold the conversation to its end; the epoch it returns."""
    client.begin(change)
    made.pass_time(3.0)
    assert client.conversation is None
    assert isinstance(client.epoch, int)
    return client.epoch


def failure(made: World, client: Client, change: Change) -> errors.VarlogError:
    """Why it comes to nothing."""
    before = made.projection
    client.begin(change)
    made.pass_time(6.0)
    assert client.conversation is None
    assert made.projection == before
    assert client.error is not None
    return client.error


def nodes(made: World, lsid: int = 1) -> tuple[int, ...]:
    return made.projection.chain(LogStreamID(lsid)).nodes


def change_topic(made: World, **changes: object) -> None:
    (topic,) = made.metadata.topics
    version = Version(made.metadata.version + 1)
    made.metadata = replace(made.metadata, topics=(replace(topic, **changes),), version=version)


def test_S8_the_first_projection_is_a_reconfiguration() -> None:
    made, _ = world({1: (1, 2), 2: (2, 1)})
    projection = made.projection
    assert (projection.epoch, projection.sequencer, projection.boot, projection.start) == (1, FIRST, 1, 1)
    assert projection.stripes == (Stripe(GLSN(1), BLOCK, (LogStreamID(1), LogStreamID(2))),)
    assert projection.chains == (Chain(LogStreamID(1), (ONE, TWO)), Chain(LogStreamID(2), (TWO, ONE)))


def test_S6_every_replica_is_sealed_and_a_newer_projection_is_taken_without_a_seal() -> None:
    made, client = world()
    assert reconfigured(made, client, Change(Epoch(1))) == 2
    sealed = [address for address, message in made.taken if isinstance(message, ChainSeal)]
    assert sealed == [node_address(snid) for snid in (ONE, TWO, THREE)]
    made.taken.clear()
    assert reconfigured(made, client, Change(Epoch(1))) == 2
    assert not any(isinstance(message, ChainSeal | ProposeProjection) for _, message in made.taken)


def test_rule20_positions_go_on_after_all_that_any_kept_replica_has() -> None:
    made, client = world()
    client.append("everywhere")
    made.settle()
    client.append("head only", b"1", b"2")
    made.settle(syncs=False)
    made.nodes[1].sync()
    made.kill(node_address(THREE))
    reconfigured(made, client, Change(Epoch(1), suspects=frozenset({THREE})))
    assert made.projection.start == 4
    assert made.projection.time > 0
    assert nodes(made) == (1, 2)


def test_rule20_what_only_those_left_out_had_does_not_count() -> None:
    made, client = world()
    client.append("head only")
    made.settle(syncs=False)
    made.nodes[1].sync()
    made.settle(syncs=False)
    made.kill(node_address(TWO))
    reconfigured(made, client, Change(Epoch(1), suspects=frozenset({ONE, TWO})))
    assert nodes(made) == (3,)
    assert made.projection.start == 1
    assert client.positions() == {"head only": 1}
    assert entries(made.stored()) == {1: [b"head only"]}


def test_suspects_are_asked_if_nobody_else_is_left() -> None:
    made, client = world()
    reconfigured(made, client, Change(Epoch(1), suspects=frozenset({ONE, TWO, THREE})))
    assert nodes(made) == (1, 2, 3)


def test_a_log_stream_without_a_replica_that_answers_is_named() -> None:
    made, client = world({1: (1, 2), 2: (3, 1)})
    for snid in (ONE, TWO):
        made.kill(node_address(snid))
    error = failure(made, client, Change(Epoch(1)))
    assert isinstance(error, errors.Unreachable)
    assert "log stream 1 has no replica that can go on (node 1: " in str(error)


def test_S7_of_two_that_propose_at_once_one_wins_and_the_other_takes_its_projection() -> None:
    made, _ = world(clients=2)
    for other in made.clients:
        other.begin(Change(Epoch(1)))
    made.pass_time(3.0)
    assert {other.epoch for other in made.clients} == {made.projection.epoch}
    assert all(log.epoch == made.projection.epoch for node in made.nodes.values() for log in node.logs.values())


def test_rule22_an_epoch_that_was_sealed_and_never_proposed_is_passed() -> None:
    made, client = world()
    made.nodes[2].logs[LS].stage_epoch(Epoch(9))
    assert reconfigured(made, client, Change(Epoch(1))) == 10
    assert reconfigured(made, client, Change(Epoch(10), seen=Epoch(20))) == 21


def test_who_is_overtaken_too_often_gives_up_and_names_the_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconfiguring, "_ATTEMPTS", 1)
    made, client = world()
    made.nodes[2].logs[LS].stage_epoch(Epoch(9))
    error = failure(made, client, Change(Epoch(1)))
    assert isinstance(error, errors.Busy)
    assert f"topic {made.metadata.topics[0].name!r} is being reconfigured by others" in str(error)


def test_a_proposal_whose_answer_is_lost_is_looked_up() -> None:
    made, client = world()
    client.begin(Change(Epoch(1)))
    while not any(isinstance(message, ProposeProjection) for _, message in made.taken):
        for wire in [wire for wire, queue in made.wires.items() if queue]:
            made.deliver(*wire)
        for node in made.nodes.values():
            node.sync()
    made.wires["mr", client.address].clear()
    made.pass_time(2.0)
    assert client.epoch == made.projection.epoch == 2


def test_rule22_a_replica_that_lost_its_data_is_not_kept() -> None:
    made, client = world()
    client.append("a")
    made.settle()
    node = made.nodes[1]
    node.logs[LS] = type(node.logs[LS])()
    node.start()
    reconfigured(made, client, Change(Epoch(1)))
    assert nodes(made) == (2, 3)


# Joining and leaving


def test_rule22_who_joins_is_a_copy_of_the_tail_and_becomes_the_tail() -> None:
    made, client = world({1: (1, 2)}, spares=(3,))
    for number in range(10):
        client.append(number)
    made.settle()
    reconfigured(made, client, Change(joiners=((LS, THREE),)))
    assert nodes(made) == (1, 2, 3)
    assert made.nodes[3].content(1) == made.nodes[1].content(1)
    client.append("more")
    made.settle()
    assert client.positions()["more"] == 11
    assert len(made.stored()) == 11


def test_rule22_who_returns_is_wiped_of_what_never_happened() -> None:
    made, client = world(clients=2)
    client.append("lost")
    made.settle(syncs=False)
    made.nodes[1].sync()
    made.kill(node_address(ONE))
    made.kill(client.address)
    other = made.clients[1]
    reconfigured(made, other, Change(Epoch(1), suspects=frozenset({ONE})))
    other.append("kept")
    made.settle()
    made.revive(node_address(ONE))
    reconfigured(made, other, Change(joiners=((LS, ONE),)))
    assert nodes(made) == (2, 3, 1)
    assert entries(made.nodes[1].content(1)) == {1: [b"kept"]}


def test_rule22_a_proposer_that_comes_late_wipes_no_member() -> None:
    """It read the metadata before the one it would let join became a member, and goes above everybody's epoch."""
    made, client = world({1: (1, 2)}, spares=(3,), clients=2)
    client.append("a")
    made.settle()
    late = made.clients[1]
    late.begin(Change(seen=Epoch(20), joiners=((LS, THREE),)))
    seals: list[tuple[str, str]] = []
    while not seals:
        for wire in [wire for wire, queue in made.wires.items() if queue]:
            made.deliver(*wire)
        seals = [
            wire
            for wire, queue in made.wires.items()
            if wire[0] == late.address and isinstance(next(iter(queue), None), ChainSeal)
        ]
    on_their_way = {wire: made.wires.pop(wire) for wire in seals}
    reached = (node_address(ONE), node_address(TWO), node_address(THREE))
    made.clients.remove(late)  # it hangs
    assert {address for _, address in on_their_way} == set(reached)
    reconfigured(made, client, Change(suspects=frozenset({ONE}), joiners=((LS, THREE),)))
    client.append("b")
    made.settle()
    reconfigured(made, client, Change(made.projection.epoch, suspects=frozenset({TWO})))
    client.append("c")
    made.settle()
    assert nodes(made) == (3,)
    made.clients.append(late)
    made.wires.update(on_their_way)
    made.pass_time(3.0)
    assert set(client.positions()) == {"a", "b", "c"}
    assert list(entries(made.stored()).values()) == [[b"a"], [b"b"], [b"c"]]
    client.reconfigures = True
    client.append("d")
    made.pass_time(3.0)
    assert [b"d"] in entries(made.stored()).values(), "it goes on"


def test_who_does_not_come_to_join_is_left_out() -> None:
    made, client = world({1: (1, 2)}, spares=(3,))
    made.kill(node_address(THREE))
    assert reconfigured(made, client, Change(joiners=((LS, THREE),))) == 2
    assert nodes(made) == (1, 2)


def test_who_leaves_is_left_out_of_that_log_stream_alone() -> None:
    made, client = world({1: (1, 2, 3), 2: (2, 3, 1)})
    reconfigured(made, client, Change(leavers=frozenset({(LS, ONE)})))
    assert nodes(made, 1) == (2, 3)
    assert nodes(made, 2) == (2, 3, 1)


def test_a_topic_that_asks_for_more_replicas_is_not_given_fewer() -> None:
    made, client = world()
    change_topic(made, min_replicas=2)
    made.kill(node_address(ONE))
    made.kill(node_address(TWO))
    error = failure(made, client, Change(Epoch(1)))
    assert isinstance(error, errors.Sealed)
    assert "log stream 1 has 1 of at least 2 replicas" in str(error)
    assert made.nodes[3].logs[LS].epoch == 1, "it is not sealed, and can be read"


def test_a_log_stream_that_cannot_go_on_costs_the_others_nothing() -> None:
    made, client = world({1: (1,), 2: (2, 3)})
    made.kill(node_address(ONE))
    error = failure(made, client, Change(Epoch(1), suspects=frozenset({ONE})))
    assert "log stream 1 has no replica that can go on (node 1: " in str(error)
    assert {made.nodes[snid].logs[LogStreamID(2)].epoch for snid in (2, 3)} == {1}


def test_suspects_are_asked_if_too_few_others_are_left() -> None:
    made, client = world()
    change_topic(made, min_replicas=2)
    made.kill(node_address(ONE))
    reconfigured(made, client, Change(Epoch(1), suspects=frozenset({ONE, TWO})))
    assert nodes(made) == (2, 3)


# Sequencers


def test_without_a_sequencer_nothing_is_sealed() -> None:
    made, client = world()
    made.kill(sequencer_address(FIRST))
    error = failure(made, client, Change(Epoch(1), sequencers=frozenset({FIRST})))
    assert isinstance(error, errors.Unreachable)
    assert "no sequencer answers (vsq1:1); start one with `vsq start`" in str(error)
    assert all(log.epoch == 1 for node in made.nodes.values() for log in node.logs.values())


def test_S1_the_present_sequencer_stays_unless_it_was_started_again() -> None:
    made, client = world()
    made.start_sequencer("vsq2:1", 5)
    made.settle()
    reconfigured(made, client, Change(Epoch(1)))
    assert (made.projection.sequencer, made.projection.boot) == (FIRST, 1)
    made.start_sequencer(FIRST, 2)
    reconfigured(made, client, Change(Epoch(2), sequencers=frozenset({FIRST})))
    assert (made.projection.sequencer, made.projection.boot) == ("vsq2:1", 5)
    made.kill(sequencer_address("vsq2:1"))
    reconfigured(made, client, Change(Epoch(3), sequencers=frozenset({"vsq2:1"})))
    assert (made.projection.sequencer, made.projection.boot) == (FIRST, 2)


def test_a_sequencer_that_answers_is_not_left_because_others_do_not() -> None:
    made, client = world()
    reconfigured(made, client, Change(Epoch(1)))
    asked = [address for address, message in made.taken if isinstance(message, Peek)]
    assert asked == [sequencer_address(FIRST)]


# Stripes


def _register(made: World, lsid: int, *snids: int) -> None:
    for node in made.nodes.values():
        node.logs[LogStreamID(lsid)] = type(node.logs[LS])()
        node.start()
    stream = StreamInfo(
        LogStreamID(lsid), TOPIC, Epoch(0), StreamStatus.CHAINED, tuple(map(StorageNodeID, snids)),
        StorageNodeID(snids[0]), LLSN(1), GLSN(0),
    )  # fmt: skip
    version = Version(made.metadata.version + 1)
    made.metadata = replace(made.metadata, streams=(*made.metadata.streams, stream), version=version)


def test_S11_a_log_stream_that_was_added_gets_positions_from_the_start_on() -> None:
    made, client = world()
    for number in range(3):
        client.append(number)
    made.settle()
    _register(made, 2, 3, 1)
    reconfigured(made, client, Change())
    assert made.projection.stripes == (
        Stripe(GLSN(1), BLOCK, (LS,)),
        Stripe(GLSN(4), BLOCK, (LS, LogStreamID(2))),
    )
    assert nodes(made, 2) == (3, 1)
    for number in range(3, 3 + 2 * BLOCK):
        client.append(number)
    made.settle()
    assert len(made.stored(1)) == 3 + BLOCK
    assert len(made.stored(2)) == BLOCK


def test_a_stripe_in_which_nothing_was_written_is_replaced_and_one_that_is_trimmed_goes() -> None:
    made, client = world()
    _register(made, 2, 3, 1)
    reconfigured(made, client, Change())
    assert [stripe.begin for stripe in made.projection.stripes] == [1]
    for number in range(3):
        client.append(number)
    made.settle()
    _register(made, 3, 1)
    reconfigured(made, client, Change())
    assert [stripe.begin for stripe in made.projection.stripes] == [1, 4]
    change_topic(made, trim=GLSN(3))
    reconfigured(made, client, Change())
    assert [stripe.begin for stripe in made.projection.stripes] == [4]


def test_positions_go_on_after_what_is_trimmed() -> None:
    made, client = world()
    change_topic(made, trim=GLSN(99))
    reconfigured(made, client, Change())
    assert made.projection.start == 100


# What cannot be


def test_a_topic_of_the_other_ordering_or_none_at_all_is_refused() -> None:
    made, client = world()
    change_topic(made, ordering=Ordering.COMMIT)
    assert isinstance(failure(made, client, Change()), errors.WrongOrdering)
    made.metadata = replace(made.metadata, topics=(replace(made.metadata.topics[0], tpid=TOPIC + 1),))
    assert isinstance(failure(made, client, Change()), errors.UnknownTopic)


def test_a_topic_without_a_log_stream_says_so() -> None:
    made, client = world()
    made.metadata = replace(made.metadata, streams=())
    change_topic(made, projection=None)
    client.begin(Change())
    made.pass_time(1.0)
    assert isinstance(client.error, errors.UnknownLogStream)
    assert "varlog stream add" in str(client.error)
