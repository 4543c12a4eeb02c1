"""The metadata state: one sequence of entries, applied in order, and what an entry may never do."""

from __future__ import annotations

from contextlib import suppress

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.mutated import mutations
from varlog import limits
from varlog.core import metastate as m
from varlog.core.cuthistory import CutHistory
from varlog.core.metastate import AnyEntry, Checkpoint, Cut, MetadataState
from varlog.core.projection import Chain, Projection, Stripe
from varlog.errors import ConsistencyViolation, MalformedMetadata
from varlog.types import (
    GLSN,
    LLSN,
    CommitContext,
    Epoch,
    LogStreamID,
    Ordering,
    StorageNodeID,
    StreamStatus,
    TopicID,
    TransactionID,
    Version,
)

TOPIC, OTHER = TopicID(1), TopicID(2)
ONE, TWO, THREE = LogStreamID(1), LogStreamID(2), LogStreamID(3)
NODES = (StorageNodeID(1), StorageNodeID(2))


def apply(state: MetadataState, *entries: AnyEntry) -> MetadataState:
    for entry in entries:
        state.apply(Version(state.version + 1), entry)
    return state


def running(lsid: LogStreamID, tpid: TopicID) -> list[AnyEntry]:
    return [
        m.StreamCreating(lsid, tpid),
        m.StreamRegistered(lsid, NODES),
        m.StreamUnsealing(lsid, Epoch(2), NODES, NODES[1]),
        m.StreamRunning(lsid, Epoch(2)),
    ]


def cluster() -> MetadataState:
    """Two nodes; topic 1 with log streams 1 and 2, topic 2 with log stream 3, all running."""
    return apply(
        MetadataState(),
        m.NodeRegistered(NODES[1]),
        m.NodeRegistered(NODES[0]),
        m.TopicCreated(TOPIC, "orders", 2, 2),
        m.TopicCreated(OTHER, "audit", 2, 1),
        *running(ONE, TOPIC),
        *running(TWO, TOPIC),
        *running(THREE, OTHER),
    )


def projection(epoch: int, start: int, *nodes: int) -> Projection:
    """Log stream 1, ten positions at a time, on these nodes, or on both."""
    chain = Chain(ONE, tuple(map(StorageNodeID, nodes)) or NODES)
    return Projection(Epoch(epoch), "host:3", 7, GLSN(start), 0, (Stripe(GLSN(1), 10, (ONE,)),), (chain,))


def first_cut(time: int = 10) -> Cut:
    """Three entries of log stream 1 and one of log stream 2 in topic 1, two entries of log stream 3 in topic 2."""
    hwms = ((1, 0, 4), (2, 0, 2))
    return Cut(time, hwms, ((1, 2, 1, 1, 3), (2, 2, 1, 4, 1), (3, 2, 1, 1, 2)))


def test_a_cluster_is_registered_entry_by_entry() -> None:
    state = cluster()
    assert state.version == 16
    assert sorted(state.nodes) == [1, 2]
    assert (state.next_tpid, state.next_lsid) == (3, 4)
    stream = state.streams[TWO]
    assert (stream.status, stream.epoch, stream.replicas, stream.primary) == (StreamStatus.RUNNING, 2, NODES, 2)
    assert (stream.llsn_end, stream.last_glsn, stream.touched) == (1, 0, 12)


def test_a_topic_may_begin_later() -> None:
    state = apply(MetadataState(), m.TopicCreated(TOPIC, "restored", 2, 1, GLSN(101)), *running(ONE, TOPIC))
    assert (state.topics[TOPIC].hwm, state.topics[TOPIC].trim) == (100, 100)
    apply(state, Cut(5, ((1, 100, 102),), ((1, 2, 1, 101, 2),)))
    assert (state.topics[TOPIC].hwm, state.streams[ONE].llsn_end, state.streams[ONE].last_glsn) == (102, 3, 102)


def test_an_archive_is_attached_and_detached() -> None:
    state = apply(cluster(), m.ArchiveAttached(TOPIC, "/archive"))
    assert (state.topics[TOPIC].archive, state.topics[OTHER].archive) == ("/archive", "")
    assert Checkpoint.decode(Checkpoint(state, {}).encode()).state == state
    apply(state, m.ArchiveAttached(TOPIC, ""))
    assert state.topics[TOPIC].archive == ""


def test_entries_that_an_older_release_wrote_are_read() -> None:
    assert m.decode_entry(msgspec.msgpack.encode(["TopicCreated", 1, "orders", 3, 2])) == m.TopicCreated(
        TOPIC, "orders", 3, 2, GLSN(1)
    )
    topic = msgspec.convert([1, "orders", 3, 2, 40, 7], m.Topic)
    assert topic == m.Topic(TOPIC, "orders", 3, 2, GLSN(40), GLSN(7), "")


def test_a_registered_log_stream_begins_sealed_in_the_first_epoch() -> None:
    state = apply(MetadataState(), m.TopicCreated(TOPIC, "", 2, 1), *running(ONE, TOPIC)[:2])
    stream = state.streams[ONE]
    assert (stream.status, stream.epoch, stream.replicas) == (StreamStatus.SEALED, 1, NODES)


def test_rule13_ids_come_from_a_counter_and_are_not_used_again() -> None:
    state = apply(MetadataState(), m.TopicCreated(TOPIC, "", 2, 1), m.StreamCreating(ONE, TOPIC), m.StreamAborted(ONE))
    assert state.streams[ONE].status is StreamStatus.ABORTED
    assert state.next_lsid == 2


def test_O1_a_cut_turns_llsn_ranges_into_glsn_ranges() -> None:
    state = apply(cluster(), first_cut())
    ends = {s.lsid: (s.llsn_end, s.last_glsn, s.touched) for s in state.streams.values()}
    assert ends == {1: (4, 3, 17), 2: (2, 4, 17), 3: (3, 2, 17)}
    assert (state.topics[TOPIC].hwm, state.topics[OTHER].hwm) == (4, 2)
    assert state.time == 10
    apply(state, Cut(11, ((1, 4, 6),), ((2, 2, 2, 5, 2),)))
    assert state.streams[ONE].touched == 17
    assert (state.streams[TWO].llsn_end, state.streams[TWO].last_glsn, state.topics[TOPIC].hwm) == (4, 6, 6)


def test_rule2_seal_and_unseal_raise_the_epoch() -> None:
    state = apply(cluster(), m.StreamSealed(ONE, Epoch(3)))
    assert (state.streams[ONE].status, state.streams[ONE].epoch) == (StreamStatus.SEALED, 3)
    apply(state, m.StreamUnsealing(ONE, Epoch(4), (NODES[0],), NODES[0]))
    stream = state.streams[ONE]
    assert (stream.status, stream.epoch, stream.replicas, stream.primary) == (StreamStatus.UNSEALING, 4, (1,), 1)
    apply(state, m.StreamSealed(ONE, Epoch(5)))
    assert state.streams[ONE].status is StreamStatus.SEALED


def test_rule14_a_trim_point_only_grows() -> None:
    state = apply(cluster(), first_cut(), m.Trimmed(TOPIC, GLSN(3)), m.Trimmed(TOPIC, GLSN(2)))
    assert (state.topics[TOPIC].trim, state.topics[OTHER].trim) == (3, 0)


VIOLATIONS: dict[str, tuple[str, AnyEntry]] = {
    "a seal that is no epoch later": ("EPOCH_MONOTONE", m.StreamSealed(ONE, Epoch(2))),
    "a seal that skips an epoch": ("EPOCH_MONOTONE", m.StreamSealed(ONE, Epoch(4))),
    "an unseal of a running log stream": ("EPOCH_MONOTONE", m.StreamUnsealing(ONE, Epoch(3), NODES, NODES[0])),
    "running in an epoch that was not decided": ("EPOCH_MONOTONE", m.StreamRunning(ONE, Epoch(4))),
    "a cut that begins beyond the hwm": ("GLSN_DENSE", Cut(1, ((1, 1, 2),), ((1, 2, 1, 2, 1),))),
    "a cut that leaves a hole between ranges": ("GLSN_DENSE", Cut(1, ((1, 0, 3),), ((1, 2, 1, 1, 1), (2, 2, 1, 3, 1)))),
    "a cut that gives a position twice": ("GLSN_DENSE", Cut(1, ((1, 0, 1),), ((1, 2, 1, 1, 1), (2, 2, 1, 1, 1)))),
    "a cut that ends short of its hwm": ("GLSN_DENSE", Cut(1, ((1, 0, 3),), ((1, 2, 1, 1, 2),))),
    "a cut that skips entries of a log stream": ("EQUAL_PREFIXES", Cut(1, ((1, 0, 1),), ((1, 2, 2, 1, 1),))),
    "a cut of a passed epoch": ("NOTHING_AFTER_SEAL", Cut(1, ((1, 0, 1),), ((1, 1, 1, 1, 1),))),
}


@pytest.mark.parametrize("case", VIOLATIONS)
def test_an_entry_that_breaks_an_invariant_stops_the_repository(case: str) -> None:
    invariant, entry = VIOLATIONS[case]
    with pytest.raises(ConsistencyViolation, match=invariant):
        apply(cluster(), entry)


@pytest.mark.parametrize("version", [0, 15, 16, 18])
def test_rule1_versions_are_applied_one_after_another(version: int) -> None:
    with pytest.raises(ConsistencyViolation, match="VERSIONS_CONTIGUOUS"):
        cluster().apply(Version(version), m.NodeRegistered(StorageNodeID(3)))


def test_rule6_no_cut_contains_an_epoch_after_its_seal() -> None:
    state = apply(cluster(), m.StreamSealed(ONE, Epoch(3)))
    with pytest.raises(ConsistencyViolation, match="NOTHING_AFTER_SEAL"):
        apply(state, Cut(1, ((1, 0, 1),), ((1, 2, 1, 1, 1),)))


def test_the_same_entries_give_the_same_state() -> None:
    state = apply(cluster(), first_cut(), m.StreamSealed(TWO, Epoch(3)), m.Trimmed(TOPIC, GLSN(1)))
    again = Checkpoint.decode(Checkpoint(state, {}).encode()).state
    assert again == state
    for one in (state, again):
        apply(one, m.StreamUnsealing(TWO, Epoch(4), NODES, NODES[0]))
    assert again == state


def test_every_kind_of_entry_survives_encoding() -> None:
    entries = [m.NodeRegistered(NODES[0]), m.TopicCreated(TOPIC, "a", 3, 2), *running(ONE, TOPIC), m.StreamAborted(TWO)]
    entries += [m.StreamSealed(ONE, Epoch(3)), m.Trimmed(TOPIC, GLSN(9)), first_cut(), m.ManagerRegistered("host:1")]
    entries += [m.StreamUnregistered(ONE), m.TopicDeleted(TOPIC), m.NodeUnregistered(NODES[0])]
    entries += [m.NodeAnnounced(NODES[0], "host:2", ("/v",), 1 << 32, "ab", "cd"), m.NodeRenewed(NODES[0], 2, "ef")]
    entries += [m.NodeDraining(NODES[0], True), m.StreamPlanned(ONE, NODES[1], NODES[0]), m.StreamHeld(ONE, True)]
    entries += [m.StreamLost(ONE, GLSN(3), NODES[:1]), m.ArchiveAttached(TOPIC, "s3://bucket/orders")]
    entries += [m.SequencerRegistered("host:3", 7, "host:4"), m.Projected(TOPIC, projection(1, 1))]
    entries += [m.TransactionBegun(TOPIC, "name", "token", 7, GLSN(3), 60_000, 1), m.TransactionsForgotten(TOPIC, "a")]
    entries += [m.TransactionEnded(TOPIC, TransactionID(9), True, GLSN(11))]
    assert [m.decode_entry(m.encode_entry(entry)) for entry in entries] == entries
    assert {type(entry) for entry in entries} == set(m.Entry.__subclasses__())


# Topics that a sequencer orders


def sequenced() -> MetadataState:
    """Two nodes, a sequencer, and topic 1 with log stream 1, which a sequencer orders and which begins at 5."""
    return apply(
        MetadataState(),
        m.NodeRegistered(NODES[0]),
        m.NodeRegistered(NODES[1]),
        m.SequencerRegistered("host:3", 7),
        m.TopicCreated(TOPIC, "orders", 2, 1, GLSN(5), Ordering.SEQUENCER, 10),
        m.StreamCreating(ONE, TOPIC),
        m.StreamRegistered(ONE, NODES, ("/a", "/b")),
    )


def test_S8_a_log_stream_that_a_sequencer_orders_has_no_epoch_before_its_first_projection() -> None:
    state = sequenced()
    stream, topic = state.streams[ONE], state.topics[TOPIC]
    assert (stream.status, stream.epoch, stream.replicas) == (StreamStatus.CHAINED, 0, NODES)
    assert (topic.epoch, topic.hwm, topic.trim) == (0, 4, 4)


def test_S2_a_projection_says_how_the_log_streams_are() -> None:
    state = apply(sequenced(), m.Projected(TOPIC, projection(1, 5)), m.Projected(TOPIC, projection(4, 31, 2)))
    stream, topic = state.streams[ONE], state.topics[TOPIC]
    assert (topic.epoch, topic.hwm, topic.trim) == (4, 30, 4)
    assert (stream.status, stream.epoch, stream.replicas, stream.primary) == (StreamStatus.CHAINED, 4, (2,), 2)
    assert stream.volumes == {NODES[1]: "/b"}


@pytest.mark.parametrize("epoch", [3, 4])
def test_S7_the_epoch_of_a_projection_only_grows(epoch: int) -> None:
    state = apply(sequenced(), m.Projected(TOPIC, projection(4, 5)))
    with pytest.raises(ConsistencyViolation, match="EPOCH_MONOTONE"):
        apply(state, m.Projected(TOPIC, projection(epoch, 5)))


def test_a_trim_beyond_the_last_reconfiguration_tells_how_far_the_topic_is() -> None:
    state = apply(sequenced(), m.Projected(TOPIC, projection(1, 5)), m.Trimmed(TOPIC, GLSN(40)))
    assert (state.topics[TOPIC].hwm, state.topics[TOPIC].trim) == (40, 40)
    apply(state, m.Projected(TOPIC, projection(2, 41)))
    assert state.topics[TOPIC].hwm == 40


def test_who_registered_last_as_a_sequencer_is_last() -> None:
    state = apply(sequenced(), m.SequencerRegistered("host:4", 1), m.SequencerRegistered("host:3", 8))
    assert list(state.sequencers.items()) == [("host:4", 1), ("host:3", 8)]
    apply(state, m.SequencerRegistered("host:5", 2, "host:4"))
    assert list(state.sequencers.items()) == [("host:3", 8), ("host:5", 2)]


def test_a_checkpoint_keeps_projections_and_sequencers() -> None:
    state = apply(sequenced(), m.Projected(TOPIC, projection(1, 5)))
    again = Checkpoint.decode(Checkpoint(state, {}).encode()).state
    assert again == state
    assert list(again.sequencers) == list(state.sequencers)


def test_what_was_written_before_there_were_sequencers_is_still_read() -> None:
    """As entries and checkpoints were then: shorter."""
    created = msgspec.msgpack.encode(["TopicCreated", 1, "orders", 2, 1, 5])
    assert m.decode_entry(created) == m.TopicCreated(TOPIC, "orders", 2, 1, GLSN(5))
    told = msgspec.msgpack.decode(Checkpoint(cluster(), {}).encode())
    del told[0]["sequencers"]
    told[0]["topics"] = {tpid: topic[:7] for tpid, topic in told[0]["topics"].items()}
    again = Checkpoint.decode(msgspec.msgpack.encode(told)).state
    assert again == cluster()
    assert again.topics[TOPIC].ordering is Ordering.COMMIT


# The cuts a replica may still ask for


def history() -> CutHistory:
    made = CutHistory(cluster().streams, {})
    made.add(Version(5), first_cut(time=50))
    made.add(Version(7), Cut(70, ((1, 4, 6),), ((2, 2, 2, 5, 2),)))
    made.add(Version(9), Cut(90, ((1, 6, 7), (2, 2, 3)), ((1, 2, 4, 7, 1), (3, 2, 3, 3, 1))))
    return made


def context(version: int, hwm: int, prev: int, llsn: int, glsn: int, count: int, time: int) -> CommitContext:
    return CommitContext(Version(version), Epoch(2), GLSN(hwm), GLSN(prev), LLSN(llsn), GLSN(glsn), count, time)


OF_ONE = [
    context(5, hwm=4, prev=0, llsn=1, glsn=1, count=3, time=50),
    context(9, hwm=7, prev=6, llsn=4, glsn=7, count=1, time=90),
]


def versions(kept: CutHistory, lsid: LogStreamID) -> list[int]:
    return [cc.version for cc in kept.of_stream(lsid, Version(0), 10)]


def test_O2_the_commits_of_a_log_stream_after_a_version_are_told() -> None:
    assert history().of_stream(ONE, Version(0), 10) == OF_ONE
    assert history().of_stream(ONE, Version(4), 10) == OF_ONE
    assert history().of_stream(ONE, Version(5), 10) == OF_ONE[1:]
    assert history().of_stream(ONE, Version(9), 10) == []
    assert history().of_stream(ONE, Version(0), 1) == OF_ONE[:1]
    assert history().of_stream(LogStreamID(8), Version(0), 10) == []


def test_O2_a_commit_carries_the_high_watermarks_of_its_own_topic() -> None:
    assert history().of_stream(THREE, Version(0), 10) == [
        context(5, hwm=2, prev=0, llsn=1, glsn=1, count=2, time=50),
        context(9, hwm=3, prev=2, llsn=3, glsn=3, count=1, time=90),
    ]


def test_rule4_what_is_not_on_every_disk_is_kept_by_log_stream() -> None:
    kept = history()
    durable = {ONE: Version(5), TWO: Version(9), THREE: Version(0)}
    assert kept.fold(lambda lsid: durable[LogStreamID(lsid)]) == 1, "of version 7 nobody lacks anything"
    assert [versions(kept, lsid) for lsid in (ONE, TWO, THREE)] == [[9], [], [5, 9]]
    assert kept.of_stream(ONE, Version(0), 10) == OF_ONE[1:]
    kept.add(Version(11), Cut(110, ((1, 7, 8),), ((1, 2, 5, 8, 1),)))
    assert versions(kept, ONE) == [9, 11]
    assert [cc.version for cc in kept.of_stream(ONE, Version(9), 10)] == [11]
    durable = dict.fromkeys((ONE, THREE), Version(11))
    kept.fold(lambda lsid: durable[LogStreamID(lsid)])
    assert kept.held == {}


def test_rule4_the_history_of_a_log_stream_is_bounded() -> None:
    held = [OF_ONE[0]] * (limits.MAX_CUTS_HELD - 1)
    kept = CutHistory(cluster().streams, {ONE: held})
    assert kept.full() == set()
    held.append(OF_ONE[1])
    assert kept.full() == {ONE}


def test_rule4_the_history_of_all_log_streams_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_CUTS_HELD_IN_ALL", 4)
    kept = CutHistory(cluster().streams, {ONE: OF_ONE, TWO: OF_ONE[:1]})
    assert kept.full() == set()
    kept.held[TWO] = OF_ONE
    assert kept.full() == {ONE, TWO}, "of log stream 3 nothing is held"
    kept.prune(lambda lsid: Version(5 if lsid == ONE else 0))
    assert kept.full() == set()


def test_a_checkpoint_carries_the_state_and_the_cuts_that_are_held() -> None:
    saved = Checkpoint(apply(cluster(), first_cut()), {ONE: OF_ONE})
    assert Checkpoint.decode(saved.encode()) == saved


def decode_or_refuse(data: bytes) -> None:
    for decode in (Checkpoint.decode, m.decode_entry):
        with suppress(MalformedMetadata):
            decode(data)


def saved_bytes() -> list[bytes]:
    """A checkpoint, and an entry of each kind that has more than numbers in it."""
    saved = Checkpoint(apply(cluster(), first_cut()), {ONE: OF_ONE})
    entries: list[AnyEntry] = [m.TopicCreated(TOPIC, "orders", 2, 2), m.StreamRegistered(ONE, NODES), first_cut()]
    return [saved.encode(), *map(m.encode_entry, entries)]


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_no_checkpoint_and_no_entry(data: bytes) -> None:
    decode_or_refuse(data)


@given(st.data())
def test_a_changed_checkpoint_or_entry_raises_nothing_but_a_typed_error(data: st.DataObject) -> None:
    for valid in saved_bytes():
        decode_or_refuse(data.draw(mutations(valid)))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        m.encode_entry(m.TopicCreated(TOPIC, "orders", 2, 2)).replace(b"orders", b"order\xff"),
        b"\x94" + Checkpoint(MetadataState(), {}).encode()[1:] + b"\x91" * 100_000 + b"\x00" * 2,
        msgspec.msgpack.encode(["NoSuchEntry", 1]),
    ],
)
def test_malformed_metadata_is_refused_as_such(data: bytes) -> None:
    for decode in (Checkpoint.decode, m.decode_entry):
        with pytest.raises(MalformedMetadata):
            decode(data)


# What is taken out


def test_a_deleted_topic_takes_its_log_streams_with_it_and_their_ids_are_not_given_again() -> None:
    state = cluster()
    before = state.next_tpid, state.next_lsid
    apply(state, m.TopicDeleted(TOPIC))
    assert TOPIC not in state.topics
    assert {stream.tpid for stream in state.streams.values()} == {TopicID(2)}
    assert (state.next_tpid, state.next_lsid) == before


def test_the_cuts_of_an_unregistered_log_stream_are_asked_for_in_vain() -> None:
    state = cluster()
    made = CutHistory(state.streams, {})
    made.add(Version(5), first_cut(time=50))
    apply(state, m.StreamUnregistered(ONE))
    assert made.of_stream(ONE, Version(0), 9) == []
    assert len(made.of_stream(TWO, Version(0), 9)) == 1
