"""Appends and fills on a topic that a sequencer orders: down the chain, through failures, exactly once."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from tests.core.chainworld import BLOCK, FIRST, TOPIC, Client, World, entries
from varlog import batch, errors, limits
from varlog.core.address import node_address, sequencer_address
from varlog.core.appending import Committed, Rejected, Undecided
from varlog.core.content import Fill
from varlog.core.filling import Filled
from varlog.core.messages import ChainWrite, Next
from varlog.core.reconfiguring import Change
from varlog.core.trouble import Trouble
from varlog.types import GLSN, Epoch, LogStreamID, StorageNodeID

HEAD, MIDDLE, TAIL = (node_address(StorageNodeID(snid)) for snid in (1, 2, 3))
CHAIN = {1: (1, 2, 3)}


def world(**options: object) -> tuple[World, Client]:
    made = World(CHAIN, **options)  # type: ignore[arg-type]
    return made, made.clients[0]


def writes(made: World) -> list[tuple[str, tuple[int, ...]]]:
    return [(address, message.glsns) for address, message in made.taken if isinstance(message, ChainWrite)]


def filled(made: World, client: Client, glsn: int, count: int = 1, epoch: int = 0) -> list[object]:
    """Fill, and what is said of it."""
    told: list[object] = []
    epoch = epoch or made.projection.epoch
    client.chains.fill(GLSN(glsn), count, Epoch(epoch), made.now + 100, told.append, made.now)
    made.settle()
    return told


# Appends


def test_S3_a_batch_goes_down_the_chain_and_is_acknowledged_by_the_tail() -> None:
    made, client = world()
    client.append("a", b"one", b"two")
    client.append("b")
    made.settle()
    assert writes(made) == [(HEAD, (1, 3)), (MIDDLE, (1, 3)), (TAIL, (1, 3))]
    assert client.outcomes == {
        "a": Committed(GLSN(1), 2, 1, LogStreamID(1), Epoch(1), 3, True),  # type: ignore[arg-type]
        "b": Committed(GLSN(3), 1, 3, LogStreamID(1), Epoch(1), 3, True),  # type: ignore[arg-type]
    }
    assert entries(made.stored()) == {1: [b"one", b"two"], 3: [b"b"]}


def test_L1_positions_are_asked_for_once_for_all_that_wait_and_never_before() -> None:
    made, client = world()
    for number in range(3):
        client.append(number)
    client.flush()
    client.append("late")
    client.flush()
    assert not client.is_stirred
    made.settle()
    asked = [message.counts for _, message in made.taken if isinstance(message, Next)]
    assert asked == [(1, 1, 1), (1,)]
    assert client.positions() == {0: 1, 1: 2, 2: 3, "late": 4}


def test_rule24_a_batch_lies_in_one_block_and_what_was_skipped_for_it_is_filled_at_once() -> None:
    made = World({1: (1, 2), 2: (2, 1)})
    client = made.clients[0]
    client.append("a", b"1", b"2", b"3")
    client.append("b", b"1", b"2")
    made.settle()
    assert client.positions() == {"a": 1, "b": 1 + BLOCK}
    assert entries(made.stored(1)) == {1: [b"1", b"2", b"3"], BLOCK: []}
    assert entries(made.stored(2)) == {1 + BLOCK: [b"1", b"2"]}
    with pytest.raises(errors.BatchTooLarge, match=f"at most {BLOCK}"):
        client.append("c", *[b"x"] * (BLOCK + 1))


def test_many_go_in_messages_of_bounded_size() -> None:
    made, client = world()
    data = bytes(limits.CHAIN_WRITE_BYTES // 3)
    for number in range(4):
        client.append(number, data)
    made.settle()
    assert [glsns for address, glsns in writes(made) if address == HEAD] == [(1, 2), (3, 4)]
    assert client.positions() == {0: 1, 1: 2, 2: 3, 3: 4}


def test_a_batch_that_is_compressed_or_a_fill_is_appended_like_any_other() -> None:
    made, client = world()
    client.writer.append("fill", Fill(3), made.now + 1, made.now)
    client.writer.append("zstd", [bytes(1000)], made.now + 1, made.now, batch.Codec.ZSTD)
    made.settle()
    assert entries(made.stored()) == {1: [], 4: [bytes(1000)]}


def test_a_lane_is_on_one_log_stream_at_a_time() -> None:
    made = World({1: (1, 2), 2: (2, 1)})
    client = made.clients[0]
    for number in range(2 * BLOCK + 1):
        client.append(number, lane=7)
    client.append("other")
    made.settle(syncs=False)
    heads = (HEAD, MIDDLE)
    assert {glsns for address, glsns in writes(made) if address in heads} == {tuple(range(1, BLOCK + 1)), (10,)}
    made.settle()
    assert client.positions().pop("other") == 2 * BLOCK + 2
    assert sorted(client.positions().values()) == list(range(1, 2 * BLOCK + 3))
    assert client.writer.outstanding == 0


def test_what_waits_in_its_lane_in_vain_is_rejected_and_filled() -> None:
    made = World({1: (1, 2), 2: (2, 1)})
    client = made.clients[0]
    for number in range(BLOCK):
        client.append(number, lane=7)
    client.append("late", timeout=1.0, lane=7)
    made.settle(syncs=False)
    made.tick(1.1)
    assert client.outcomes == {"late": Rejected(errors.DeadlineExceeded.code)}
    made.settle()
    assert entries(made.stored(2)) == {BLOCK + 1: []}
    assert client.writer.outstanding == 0


def test_what_waits_in_its_lane_when_the_epoch_ends_keeps_its_place() -> None:
    made = World({1: (1, 2), 2: (2, 1)})
    client = made.clients[0]
    for number in range(3 * BLOCK):
        client.append(number, lane=7)
    made.settle(syncs=False)
    made.kill(HEAD)
    client.reconfigures = True
    made.pass_time(1.0)
    assert list(client.positions()) == list(range(3 * BLOCK))
    assert list(client.positions().values()) == sorted(client.positions().values())


def test_what_follows_in_a_lane_comes_behind_what_lost_its_position() -> None:
    made = World({1: (1, 2), 2: (2, 1)}, clients=2)
    client = made.clients[0]
    for number in range(3 * BLOCK):
        client.append(number, lane=7)
    client.flush()
    made.deliver(client.address, sequencer_address(FIRST))
    assert filled(made, made.clients[1], 1, BLOCK) == [Filled(())]
    client.append("asked for meanwhile", lane=7)
    made.settle()
    assert list(client.positions()) == [*range(3 * BLOCK), "asked for meanwhile"]
    assert list(client.positions().values()) == sorted(client.positions().values())
    stored = sorted((*made.stored(1), *made.stored(2)))
    assert stored == [1, *range(1 + BLOCK, stored[-1] + 1)], "what was given back is filled"


# Somebody else was there


def test_rule21_what_another_filled_is_appended_again_with_the_same_bytes() -> None:
    made, client = world(clients=2)
    client.append("slow", b"1", b"2", b"3")
    client.flush()
    made.deliver(client.address, sequencer_address(FIRST))
    assert filled(made, made.clients[1], 2) == [Filled(())]
    made.settle()
    assert entries(made.stored()) == {1: [], 2: [], 3: [], 4: [], 5: [b"1", b"2", b"3"]}
    assert client.positions() == {"slow": 5}


def test_S5_a_fill_that_comes_late_completes_what_the_head_has() -> None:
    made, client = world(clients=2)
    client.append("a", b"1", b"2")
    made.settle(syncs=False)
    made.nodes[1].sync()
    made.down.add(client.address)
    assert made.nodes[1].content(1)
    assert not made.nodes[3].content(1)
    (told,) = filled(made, made.clients[1], 2, 2)
    assert isinstance(told, Filled)
    assert [(glsn, header.sequence) for glsn, header in told.found] == [(1, 1)]
    assert entries(made.stored()) == {1: [b"1", b"2"], 3: []}
    assert filled(made, made.clients[1], 1, 3) == [Filled(told.found + filled(made, made.clients[1], 3)[0].found)]  # type: ignore[attr-defined]


def test_rule22_a_value_that_differs_further_down_stops_the_client() -> None:
    made, client = world(clients=2)
    client.append("a")
    made.settle(syncs=False)
    made.nodes[1].sync()
    other = batch.encode([b"other"], writer_id=9, sequence=9)
    made.nodes[2].receive("stranger", ChainWrite(1, LogStreamID(1), Epoch(1), (1,), (0,), (other,)))
    made.settle()
    assert client.outcomes == {"a": Undecided()}
    with pytest.raises(errors.ConsistencyViolation, match="node 2 has at 1"):
        client.append("b")
    (told,) = filled(made, made.clients[1], 1)
    assert isinstance(told, errors.ConsistencyViolation)


# Failures


def test_S7_a_dead_head_is_complained_of_and_what_nobody_has_is_appended_again() -> None:
    made, client = world()
    client.append("before")
    made.settle()
    made.kill(HEAD)
    client.append("after")
    made.pass_time(0.15)
    assert not client.troubles
    made.pass_time(0.2)
    assert client.troubles[0] == Trouble(Epoch(1), frozenset({StorageNodeID(1)}))
    client.append("meanwhile")  # which is not given a position that it could not be written at
    client.begin(Change(Epoch(1), suspects=frozenset({StorageNodeID(1)})))
    made.settle()
    assert made.projection.chains[0].nodes == (2, 3)
    assert entries(made.stored()) == {1: [b"before"], 2: [b"after"], 3: [b"meanwhile"]}
    assert client.positions() == {"before": 1, "after": 2, "meanwhile": 3}


@pytest.mark.parametrize("dead", [1, 2, 3])
def test_S7_what_a_kept_replica_has_is_completed_where_it_is(dead: int) -> None:
    made, client = world()
    client.append("a")
    made.settle(syncs=False)
    for snid in (1, 2):
        made.nodes[snid].sync()
        made.settle(syncs=False)
    made.kill(node_address(StorageNodeID(dead)))
    client.append("b")
    client.reconfigures = True
    made.pass_time(1.0)
    assert client.positions() == {"a": 1, "b": 2}
    assert entries(made.stored()) == {1: [b"a"], 2: [b"b"]}
    assert len(made.projection.chains[0].nodes) == 2


def test_rule21_what_only_the_dead_head_had_is_written_once_although_it_comes_back() -> None:
    made, client = world(clients=2)
    client.append("a")
    made.settle(syncs=False)
    made.nodes[1].sync()
    made.kill(HEAD)
    made.clients[1].append("b")  # so that the position before it is below the next start
    client.reconfigures = True
    made.pass_time(1.0)
    made.revive(HEAD)
    made.pass_time(1.0)
    assert Counter(value for found in entries(made.stored()).values() for value in found) == {b"a": 1, b"b": 1}


def test_S7_two_of_three_may_die() -> None:
    made, client = world()
    client.reconfigures = True
    for number, address in enumerate((TAIL, HEAD)):
        client.append(number)
        made.settle()
        made.kill(address)
        client.append(f"after {number}")
        made.pass_time(1.0)
    assert made.projection.chains[0].nodes == (2,)
    assert list(client.positions().values()) == [1, 2, 3, 4]


def test_a_node_that_is_silent_for_a_second_is_complained_of() -> None:
    made, client = world()
    client.append("a")
    client.flush()
    made.deliver(client.address, sequencer_address(FIRST))
    made.deliver(sequencer_address(FIRST), client.address)
    for _ in range(19):
        made.tick(0.05)
    assert not client.troubles
    made.tick(0.1)
    assert client.troubles == [Trouble(Epoch(1), frozenset({StorageNodeID(1)}))]
    made.settle()
    assert client.positions() == {"a": 1}


def test_what_a_lost_connection_swallowed_is_sent_again_and_written_once() -> None:
    made, client = world()
    client.append("a")
    made.settle(syncs=False)
    made.nodes[1].sync()
    made.wires[HEAD, client.address].clear()
    client.on_up(HEAD)
    made.settle()
    assert client.positions() == {"a": 1}
    assert not client.troubles


def test_S1_another_sequencer_takes_over_where_the_log_ends() -> None:
    made, client = world()
    made.start_sequencer("vsq2:1", 1)
    made.settle()
    client.reconfigures = True
    client.append("a")
    made.settle()
    made.kill(sequencer_address(FIRST))
    client.append("b")
    made.pass_time(1.0)
    assert made.projection.sequencer == "vsq2:1"
    assert client.positions() == {"a": 1, "b": 2}


def test_a_sequencer_that_was_started_again_is_another_one() -> None:
    made, client = world()
    client.reconfigures = True
    client.append("a")
    made.settle()
    made.kill(sequencer_address(FIRST))
    made.revive(sequencer_address(FIRST), boot=2)
    client.append("b")
    made.pass_time(1.0)
    assert (made.projection.epoch, made.projection.boot) == (2, 2)
    assert client.positions() == {"a": 1, "b": 2}


def test_S8_a_client_of_an_old_epoch_renews_and_goes_on() -> None:
    made, client = world(clients=2)
    client.append("a")
    made.settle()
    made.clients[1].begin(Change(Epoch(1)))
    made.settle()
    client.append("b")
    made.settle()
    assert client.positions() == {"a": 1, "b": 2}
    assert not client.troubles


def test_rule22_a_proposer_that_died_after_the_seal_is_overtaken() -> None:
    made, client = world()
    for node in made.nodes.values():
        node.logs[LogStreamID(1)].stage_epoch(Epoch(7))
        node.sync()
    client.append("a")
    client.reconfigures = True
    made.pass_time(1.0)
    assert client.troubles[0] == Trouble(Epoch(1), seen=Epoch(7))
    assert made.projection.epoch == 8
    assert client.positions() == {"a": 1}


def test_a_batch_that_reaches_beyond_the_new_start_never_happened() -> None:
    made, client = world(clients=2)
    client.append("a", b"1", b"2", b"3")
    client.flush()
    made.deliver(client.address, sequencer_address(FIRST))
    made.deliver(sequencer_address(FIRST), client.address)
    made.wires[client.address, HEAD].clear()
    assert filled(made, made.clients[1], 1) == [Filled(())]
    made.clients[1].begin(Change(Epoch(1)))
    made.settle()
    client.look(anyway=True)
    made.settle()
    assert made.projection.start == 2
    assert entries(made.stored()) == {1: [], 2: [b"1", b"2", b"3"]}


def test_what_is_granted_too_late_is_filled_as_far_as_the_log_went_on_beyond_it() -> None:
    made, client = world(clients=2)
    client.append("a", b"1", b"2")
    client.flush()
    made.deliver(client.address, sequencer_address(FIRST))
    late = made.wires.pop((sequencer_address(FIRST), client.address))
    made.clients[1].append("b")
    made.settle()
    made.clients[1].begin(Change(Epoch(1)))
    made.settle()
    client.look(anyway=True)
    made.settle()
    assert client.positions() == {"a": 5}
    for granted in late:
        client.receive(granted)
    made.settle()
    assert entries(made.stored()) == {1: [], 3: [b"b"], 4: [], 5: [b"1", b"2"]}


# Deadlines


def test_what_has_no_position_in_time_is_rejected_and_its_position_filled_when_it_comes() -> None:
    made, client = world()
    client.append("a", timeout=1.0)
    client.flush()
    made.tick(1.1)
    assert client.outcomes == {"a": Rejected(errors.DeadlineExceeded.code)}
    made.settle()
    assert entries(made.stored()) == {1: []}
    assert client.writer.outstanding == 0


def test_what_was_never_sent_is_rejected_in_time_and_never_sent() -> None:
    made, client = world()
    made.down.add(HEAD)
    client.append("a", timeout=1.0)
    client.append("b", timeout=100.0)
    made.pass_time(1.2)
    assert client.outcomes == {"a": Rejected(errors.DeadlineExceeded.code)}
    made.revive(HEAD)
    made.settle()
    assert entries(made.stored()) == {1: [], 2: [b"b"]}


def test_what_was_sent_and_not_decided_in_time_is_unknown() -> None:
    made, client = world()
    client.append("a", timeout=1.0)
    client.append("b", timeout=2.0)
    made.settle(syncs=False)
    made.tick(1.1)
    assert client.outcomes == {"a": Undecided()}
    made.settle()
    assert client.positions() == {"b": 2}
    assert entries(made.stored()) == {1: [b"a"], 2: [b"b"]}
    assert client.writer.outstanding == client.chains.outstanding == 0


def test_a_position_that_was_trimmed_meanwhile_leaves_its_append_unknown() -> None:
    made, client = world()
    client.append("a")
    client.flush()
    made.deliver(client.address, sequencer_address(FIRST))
    for node in made.nodes.values():
        node.node.chains.trim(TOPIC, GLSN(1))
    made.settle()
    assert client.outcomes == {"a": Undecided()}


def test_more_than_may_wait_is_refused() -> None:
    made, client = world()
    made.down.add(sequencer_address(FIRST))
    for number in range(limits.MAX_QUEUED_APPENDS):
        client.append(number)
    with pytest.raises(errors.Busy, match="slow down"):
        client.append("one more")


def test_what_is_abandoned_is_told_to_its_caller_alone() -> None:
    made, client = world()
    client.append("a")
    made.settle(syncs=False)
    client.append("b")
    assert client.writer.abandon() == [("a", True), ("b", False)]
    made.settle()
    assert not client.outcomes


# Fills


def test_S5_a_fill_reaches_over_blocks_and_is_the_same_whoever_makes_it() -> None:
    made = World({1: (1, 2), 2: (2, 1)}, clients=2)
    for client in made.clients:
        assert filled(made, client, 3, 4) in ([Filled(())], [Filled(())])
    assert entries(made.stored(1)) == {3: []}
    assert entries(made.stored(2)) == {5: []}


def test_a_fill_is_justified_in_one_epoch_and_in_a_later_one_only_below_its_start() -> None:
    made, client = world()
    client.append("a")
    made.settle()
    client.begin(Change(Epoch(1)))
    made.settle()
    assert made.projection.epoch == 2
    (told,) = filled(made, client, 2, epoch=1)
    assert isinstance(told, errors.Unwritten)
    (told,) = filled(made, client, 1, epoch=1)
    assert isinstance(told, Filled)
    assert entries(made.stored()) == {1: [b"a"]}


def test_a_fill_under_way_goes_on_in_the_next_epoch() -> None:
    made, client = world(clients=2)
    made.clients[1].append("b", b"1", b"2")
    made.settle()
    told: list[object] = []
    client.chains.fill(GLSN(3), 2, Epoch(1), made.now + 100, told.append, made.now)
    made.settle(syncs=False)
    made.nodes[1].sync()
    made.kill(MIDDLE)
    client.reconfigures = True
    made.pass_time(1.0)
    assert told == [Filled(())] or isinstance(told[0], Filled)
    assert entries(made.stored()) == {1: [b"1", b"2"], 3: []}


def test_what_is_trimmed_cannot_be_filled() -> None:
    made, client = world()
    client.routing.note_trim(TOPIC, GLSN(5))
    (told,) = filled(made, client, 4)
    assert isinstance(told, errors.Trimmed)
    assert told.first == 6


# Everything at once


@pytest.mark.parametrize("seed", range(40))
def test_appends_happen_once_whatever_dies(seed: int) -> None:
    dice = random.Random(seed)
    made = World({1: (1, 2, 3), 2: (2, 3, 1)}, clients=2)
    made.start_sequencer("vsq2:1", 1)
    made.settle()
    numbers = iter(range(10_000))
    boots = iter(range(2, 10_000))
    begun: dict[int, int] = {}
    for client in made.clients:
        client.reconfigures = True
    dead: list[str] = []
    for _ in range(1200):
        match dice.randrange(60):
            case 0 | 1 | 2 | 3:
                number = next(numbers)
                entries_ = [b"%d.%d" % (number, entry) for entry in range(dice.randint(1, BLOCK))]
                begun[number] = len(entries_)
                client = dice.choice(made.clients)
                client.append(number, *entries_, lane=int(client is made.clients[0]))
            case 4 if len(dead) < 2 and dice.random() < 0.3:
                dead.append(dice.choice([address for address in made.by_address if address not in dead]))
                made.kill(dead[-1])
            case 6 if dead and dice.random() < 0.2:
                made.revive(dead.pop(0))
            case 5 if dice.random() < 0.3:
                address = sequencer_address(dice.choice([FIRST, "vsq2:1"]))
                made.kill(address)
                made.revive(address, boot=next(boots))
            case _:
                made.step(dice)
    for address in dead:
        made.revive(address)
    for _ in range(200):
        made.pass_time(0.1)
        if all(not client.writer.outstanding for client in made.clients):
            break
    _check_once(made, begun)


def _check_once(made: World, begun: dict[int, int]) -> None:
    stored = {**entries(made.stored(1)), **entries(made.stored(2))}
    found: dict[int, int] = {}
    for glsn, values in stored.items():
        if values:
            number = int(values[0].split(b".")[0])
            assert values == [b"%d.%d" % (number, entry) for entry in range(begun[number])]
            assert number not in found, "twice"
            found[number] = glsn
    committed = {id_: glsn for client in made.clients for id_, glsn in client.positions().items()}
    assert committed == {number: found[number] for number in begun}, "all of them, and where they were said to be"
    for client in made.clients:
        assert client.chains.violation is None
    in_order = sorted(made.clients[0].positions().items(), key=lambda found: str(found[0]).zfill(5))
    assert [glsn for _, glsn in in_order] == sorted(glsn for _, glsn in in_order), "a lane is kept in order"
