"""Metadata made anew of surveys: what comes back, what is listed, what is refused."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.pasts import BYTES, NODES, TOPIC, Past, node
from varlog.core.metastate import Checkpoint, MetadataState, Node, Stream, Topic
from varlog.core.rebuilding import VERSIONS_SKIPPED, Wishes, loose_of, rebuild
from varlog.core.register import Attempt, Register
from varlog.core.surveys import NodeSurvey
from varlog.errors import InvalidArgument, SurveysDisagree, SurveysIncomplete
from varlog.types import GLSN, Epoch, LogStreamID, StorageNodeID, StreamStatus, TopicID, TransactionID, Version

NAMED = Wishes({TOPIC: "log"})
LOST = NAMED._replace(declare_lost=True)
LS1, LS2 = LogStreamID(1), LogStreamID(2)


@pytest.fixture
def past() -> Past:
    """Two log streams, three cuts, ten positions."""
    past = Past(1, 2)
    past.cut({1: 2, 2: 1})
    past.cut({1: 1, 2: 3})
    past.cut({1: 2, 2: 1})
    return past


def test_all_that_is_on_disk_is_there_again(past: Past) -> None:
    rebuilt = rebuild(past.surveys(), NAMED)
    state = rebuilt.checkpoint.state
    (told,) = rebuilt.topics
    assert (told.name, told.first, told.last, told.lost, told.uncertain) == ("log", 1, 10, (), 0)
    assert (rebuilt.loose, rebuilt.remarks, rebuilt.checkpoint.held) == ([], [], {})
    assert state.version == past.version + VERSIONS_SKIPPED
    assert state.time == 1000 * past.version
    topic = state.topics[TOPIC]
    assert (topic.hwm, topic.trim, topic.replication_factor, topic.min_replicas) == (10, 0, 3, 2)
    assert [(s.llsn_end, s.last_glsn) for s in state.streams.values()] == [(6, 9), (6, 10)]
    for stream in state.streams.values():
        assert (stream.status, stream.epoch, stream.replicas) == (StreamStatus.SEALED, 3, NODES)
    assert state.nodes[StorageNodeID(2)] == Node("", ("/volume",), generation=1, proof=f"{2:064x}", boot=(1 << 32) + 5)
    assert state.next_lsid > 2
    assert state.next_tpid > 1
    assert Checkpoint.decode(rebuilt.checkpoint.encode()).state == state


def test_rule2_the_epoch_is_above_every_promise_and_odd(past: Past) -> None:
    surveys = [
        node(snid, past.replica(1, epoch=epoch), past.replica(2, epoch=4)) for snid, epoch in ((1, 2), (2, 5), (3, 4))
    ]
    streams = rebuild(surveys, NAMED).checkpoint.state.streams
    assert (streams[LS1].epoch, streams[LS2].epoch) == (7, 5)


def test_rule8_a_replica_that_is_behind_is_given_the_commit_contexts_of_another(past: Past) -> None:
    behind = node(1, past.replica(1, until=11), past.replica(2))
    whole = [node(snid, past.replica(1), past.replica(2)) for snid in (2, 3)]
    rebuilt = rebuild([behind, *whole], NAMED)
    assert rebuilt.checkpoint.state.streams[LS1].llsn_end == 6
    assert rebuilt.checkpoint.held == {LS1: past.commits[1][1:]}
    assert rebuilt.loose == []


def test_what_has_no_commit_context_is_listed_and_not_brought_back(past: Past) -> None:
    surveys = [node(snid, past.replica(1, extra=snid), past.replica(2)) for snid in NODES]
    rebuilt = rebuild(surveys, NAMED)
    assert [(o.node, o.log_stream, o.llsn_begin, o.llsn_end, o.batches, o.bytes) for o in rebuilt.loose] == [
        (snid, 1, 6, 6 + snid, snid, snid * BYTES) for snid in NODES
    ]
    (told,) = rebuilt.topics
    assert (told.last, told.uncertain) == (10, 1)  # a cut takes what all replicas have
    assert loose_of(surveys[1]) == [rebuilt.loose[1]]


def test_positions_that_may_have_been_given_are_not_given_again_if_they_are_declared_lost(past: Past) -> None:
    rebuilt = rebuild(past.surveys(extra=2), LOST)
    (told,) = rebuilt.topics
    assert (told.last, told.lost, told.uncertain) == (14, ((11, 15),), 0)
    stream = max(rebuilt.checkpoint.state.streams.values(), key=lambda stream: stream.lsid)
    assert (stream.replicas, stream.is_held, stream.lost_begin, stream.last_glsn) == ((), True, 11, 14)
    assert rebuilt.checkpoint.state.topics[TOPIC].hwm == 14


@pytest.mark.parametrize("told", [1000, 2])
def test_a_hole_is_refused_unless_it_is_declared_lost(past: Past, told: int) -> None:
    """The last cut gave positions to both log streams, and of one of them its commit context is on no disk."""
    surveys = [node(snid, past.replica(1, until=12, told=told), past.replica(2, told=told)) for snid in NODES]
    with pytest.raises(SurveysIncomplete, match="topic 'log': positions 8 to 9 were given"):
        rebuild(surveys, NAMED)
    rebuilt = rebuild(surveys, LOST)
    assert (rebuilt.topics[0].lost, rebuilt.topics[0].last) == (((8, 10),), 10)
    assert rebuilt.checkpoint.state.streams[LS1].last_glsn == 4
    (lost,) = rebuilt.checkpoint.state.streams.keys() - {LS1, LS2}
    assert lost > LS2 + 1  # nothing that a disk may have of a log stream that nobody told of is taken for it
    assert rebuilt.checkpoint.state.streams[lost].lost_begin == 8
    assert rebuilt.checkpoint.state.next_lsid > lost


def test_holes_are_found_by_counting_where_commit_contexts_are_not_told(past: Past) -> None:
    past.cut({2: 1})
    past.cut({2: 1})
    past.cut({2: 1})
    surveys = [node(snid, past.replica(1, until=11, told=1), past.replica(2, told=1)) for snid in NODES]
    with pytest.raises(SurveysIncomplete, match="1 to 12"):
        rebuild(surveys, NAMED)
    assert rebuild(past.surveys(told=1), NAMED).topics[0].last == 13
    rebuilt = rebuild(surveys, LOST)
    assert (rebuilt.topics[0].lost, rebuilt.topics[0].last) == (((1, 13),), 13)  # three are missing, and none beyond
    more = [node(snid, past.replica(1, until=11, told=1, extra=2), past.replica(2, told=1)) for snid in NODES]
    assert rebuild(more, LOST).topics[0].last == 15


def test_what_is_trimmed_is_not_missed(past: Past) -> None:
    rebuilt = rebuild(past.surveys(trim=5, told=1), NAMED)
    assert (rebuilt.topics[0].first, rebuilt.topics[0].last) == (6, 10)
    assert rebuilt.checkpoint.state.topics[TOPIC].trim == 5


def test_a_trim_that_reached_some_counts_for_all(past: Past) -> None:
    surveys = [node(1, past.replica(1, trim=5), past.replica(2)), *past.surveys()[1:]]
    assert rebuild(surveys, NAMED).checkpoint.state.topics[TOPIC].trim == 5
    short = [node(snid, past.replica(1, trim=5, told=1), past.replica(2, told=1)) for snid in NODES]
    with pytest.raises(SurveysIncomplete, match="positions 6 to 9 were given"):
        rebuild(short, NAMED)


def test_a_log_stream_that_never_ran_is_left_out(past: Past) -> None:
    past.commits[9] = []
    surveys = [node(snid, past.replica(1), past.replica(2), past.replica(9, epoch=0)) for snid in NODES]
    rebuilt = rebuild(surveys, NAMED)
    assert list(rebuilt.checkpoint.state.streams) == [1, 2]
    assert rebuilt.remarks == ["log stream 9 never ran, and is left out"]
    assert rebuilt.checkpoint.state.next_lsid > 9


def test_every_node_is_needed_that_a_log_stream_ran_on(past: Past) -> None:
    surveys = past.surveys()[:2]
    with pytest.raises(SurveysIncomplete, match=r"storage node 3, log streams 1, 2; .*--without"):
        rebuild(surveys, NAMED)
    rebuilt = rebuild(surveys, NAMED._replace(without={StorageNodeID(3)}))
    assert rebuilt.checkpoint.state.streams[LS1].replicas == (1, 2)
    assert rebuilt.checkpoint.state.nodes.keys() == {1, 2}
    assert rebuilt.checkpoint.state.topics[TOPIC].replication_factor == 3


@pytest.mark.parametrize("before", [(), (3, 4)])
def test_every_node_is_needed_that_a_log_stream_ran_on_though_a_learner_has_promised_more(
    past: Past, before: tuple[int, ...]
) -> None:
    """Node 3 only copies, or ran the log streams long ago, and it alone was told of the seal that lets it join."""
    ran = [node(s, *(past.replica(lsid, on=(1, 2)) for lsid in (1, 2))) for s in (1, 2)]
    copies = [past.replica(lsid, epoch=3, until=12, on=before or (3,)) for lsid in (1, 2)]
    learner = node(3, *(msgspec.structs.replace(replica, replicas=before) for replica in copies))
    gone = {StorageNodeID(4)}
    with pytest.raises(SurveysIncomplete, match=r"though log streams ran there: storage node 1, log streams 1, 2"):
        rebuild([ran[1], learner], NAMED._replace(without=gone))
    rebuilt = rebuild([*ran, learner], NAMED._replace(without=gone if before else frozenset()))
    assert rebuilt.checkpoint.state.streams[LS1].llsn_end == 6
    assert rebuilt.checkpoint.state.streams[LS1].epoch == 5
    assert rebuilt.checkpoint.state.topics[TOPIC].replication_factor == 2


def test_a_log_stream_that_nobody_here_ever_ran_is_not_taken_for_whole(past: Past) -> None:
    copies = [msgspec.structs.replace(past.replica(lsid, epoch=3), replicas=()) for lsid in (1, 2)]
    with pytest.raises(SurveysIncomplete, match=r"no node that was surveyed ever ran log streams 1, 2, .*--without"):
        rebuild([node(3, *copies)], NAMED)
    rebuilt = rebuild([node(3, *copies)], NAMED._replace(without={StorageNodeID(1)}))
    assert rebuilt.checkpoint.state.streams[LS1].replicas == (3,)
    known = MetadataState(streams={lsid: _told(lsid, 3, (3,)) for lsid in (LS1, LS2)})
    known.topics = {TOPIC: Topic(TOPIC, "log", 1, 1)}
    assert rebuild([node(3, *copies)], Wishes(known=known)).topics[0].last == 10
    known.streams = {lsid: _told(lsid, 3, (1, 3)) for lsid in (LS1, LS2)}
    with pytest.raises(SurveysIncomplete, match="storage node 1, log streams 1, 2"):
        rebuild([node(3, *copies)], Wishes(known=known))


def _told(lsid: LogStreamID, epoch: int, on: tuple[int, ...]) -> Stream:
    """What a backup tells of a log stream."""
    replicas = tuple(map(StorageNodeID, on))
    return Stream(lsid, TOPIC, StreamStatus.SEALED, Epoch(epoch), replicas, replicas[0])


def test_who_was_left_out_of_the_set_is_not_asked_for(past: Past) -> None:
    """Node 3 ran the log streams in an earlier epoch only; nodes 1 and 2 have gone on without it."""
    surveys = [node(s, *(past.replica(lsid, epoch=4, on=(1, 2)) for lsid in (1, 2))) for s in (1, 2)]
    old = node(3, past.replica(1, until=11), past.replica(2, until=11))
    assert rebuild(surveys, NAMED).checkpoint.state.streams[LS1].replicas == (1, 2)
    rebuilt = rebuild([*surveys, old], NAMED)
    assert rebuilt.checkpoint.state.streams[LS1].replicas == (1, 2)
    assert rebuilt.loose == []


def test_a_missing_or_damaged_replica_is_told_of(past: Past) -> None:
    surveys = [node(1, past.replica(2)), node(2, past.replica(1, damage="a damaged frame"), past.replica(2))]
    rebuilt = rebuild([*surveys, past.surveys()[2]], NAMED)
    assert [remark.split(":")[0] for remark in rebuilt.remarks] == [
        "log stream 1",
        "log stream 1 ran on storage nodes 1 too, which have no replica of it",
    ]
    assert rebuilt.checkpoint.state.streams[LS1].replicas == (2, 3)


def _other_cut(past: Past) -> list[NodeSurvey]:
    other = Past(1, 2)
    other.cut({1: 3})
    return [node(1, other.replica(1), past.replica(2)), *past.surveys()[1:]]


def _overlapping_batches(past: Past) -> list[NodeSurvey]:
    replica = past.replica(1)
    shifted = [cc._replace(llsn_begin=cc.llsn_begin + 1) for cc in replica.commits]  # type: ignore[arg-type]
    return [node(1, msgspec.structs.replace(replica, commits=tuple(shifted)), past.replica(2)), *past.surveys()[1:]]


def _position_twice(past: Past) -> list[NodeSurvey]:
    other = Past(1, 2)
    other.version = 20
    other.cut({2: 3})
    return [node(snid, past.replica(1), other.replica(2)) for snid in NODES]


def _cut_told_differently(past: Past) -> list[NodeSurvey]:
    other = Past(1, 2)
    other.cut({1: 2, 2: 2})
    return [node(snid, past.replica(1), other.replica(2)) for snid in NODES]


def _other_topic(past: Past) -> list[NodeSurvey]:
    stray = msgspec.structs.replace(past.replica(1), tpid=TopicID(2))
    return [node(1, stray, past.replica(2)), *past.surveys()[1:]]


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (_other_cut, "log stream 1: storage nodes 1 and 2 have different commit contexts from LLSN 1 on"),
        (_overlapping_batches, "have different commit contexts"),
        (_position_twice, "log streams 1 and 2 both have position 1"),
        (_cut_told_differently, "tell different things of version 11"),
        (_other_topic, "log stream 1 is of topics 1, 2"),
        (lambda past: [*past.surveys(), past.surveys()[0]], "storage node 1 was surveyed twice"),
        (lambda past: [*past.surveys()[:2], node(3, cid=8)], "different clusters"),
    ],
)
def test_nodes_that_disagree_are_refused(past: Past, made: Callable[[Past], list[NodeSurvey]], told: str) -> None:
    with pytest.raises(SurveysDisagree, match=told):
        rebuild(made(past), LOST)


def test_a_backup_tells_what_nodes_do_not_know(past: Past) -> None:
    known = MetadataState(version=Version(5_000_000), next_lsid=LogStreamID(70), next_tpid=TopicID(8))
    known.topics[TOPIC] = Topic(TOPIC, "orders", 5, 3, GLSN(2), archive="/archive")
    known.topics[TopicID(7)] = Topic(TopicID(7), "gone", 1, 1)
    known.nodes[StorageNodeID(1)] = Node("host:9091", ("/old",))
    rebuilt = rebuild(past.surveys(), Wishes(known=known))
    state = rebuilt.checkpoint.state
    topic = state.topics[TOPIC]
    assert (topic.name, topic.replication_factor, topic.min_replicas, topic.archive) == ("orders", 5, 3, "/archive")
    assert (topic.hwm, state.nodes[StorageNodeID(1)].address) == (10, "host:9091")
    assert rebuilt.remarks == ["topic 'gone' is in the backup, and no storage node holds anything of it: left out"]
    assert (state.version, state.next_lsid > 70, state.next_tpid > 8) == (5_000_000 + VERSIONS_SKIPPED, True, True)


def test_a_backup_tells_what_was_committed_under_the_names_of_transactions(past: Past) -> None:
    known = MetadataState(version=Version(20))
    register, nothing = Register(), Register()
    for txid, name in ((15, "committed"), (16, "open")):
        register.begin(Attempt(TransactionID(txid), name, "token", 5, GLSN(3), 1000, 0))
    register.end(TransactionID(15), True, GLSN(4))
    known.topics[TOPIC] = Topic(TOPIC, "log", 3, 2)
    known.registers = {TOPIC: register, TopicID(7): nothing}
    assert rebuild(past.surveys(), Wishes()).checkpoint.state.registers == {}
    rebuilt = rebuild(past.surveys(), Wishes(known=known))
    assert rebuilt.checkpoint.state.registers == {TOPIC: register}
    (remark,) = rebuilt.remarks
    assert remark.startswith("topic 'log': what was committed under the names of transactions is known up to the")


def test_rule14_a_transaction_that_a_backup_calls_open_has_ended_if_the_log_is_trimmed_beyond(past: Past) -> None:
    known = MetadataState(version=Version(20))
    known.topics[TOPIC] = Topic(TOPIC, "log", 3, 2)
    known.registers[TOPIC] = Register()
    for txid, after in ((15, 3), (16, 4)):
        known.registers[TOPIC].begin(Attempt(TransactionID(txid), "n", "token", 5, GLSN(after), 1000, 0))
    rebuilt = rebuild(past.surveys(trim=4), Wishes(known=known)).checkpoint.state
    assert rebuilt.topics[TOPIC].trim == 4
    assert list(rebuilt.registers[TOPIC].open) == [16]


def test_O1_nothing_that_a_backup_knows_of_is_passed_over(past: Past) -> None:
    """Log stream 2 had moved to nodes 4 and 5 when the backup was made; what node 1 to 3 have of it is older."""
    known = MetadataState(version=Version(20))
    known.topics[TOPIC] = Topic(TOPIC, "log", 3, 2, GLSN(12))
    moved = tuple(map(StorageNodeID, (4, 5)))
    known.streams[LS2] = Stream(LS2, TOPIC, StreamStatus.RUNNING, Epoch(8), moved, moved[0])
    known.streams[LogStreamID(9)] = Stream(LogStreamID(9), TOPIC, StreamStatus.RUNNING, Epoch(2), moved[:1], moved[0])
    wishes = Wishes(known=known)
    with pytest.raises(SurveysIncomplete, match=r"storage node 4, log streams 2, 9; storage node 5, log streams 2;"):
        rebuild(past.surveys(), wishes)
    wishes = wishes._replace(without=frozenset(moved))
    with pytest.raises(SurveysIncomplete, match="positions 11 to 12 were given"):
        rebuild(past.surveys(), wishes)
    rebuilt = rebuild(past.surveys(), wishes._replace(declare_lost=True))
    state = rebuilt.checkpoint.state
    assert (state.streams[LS1].epoch, state.streams[LS2].epoch, state.topics[TOPIC].hwm) == (3, 9, 12)
    assert "log stream 9 is in the backup, and no storage node has a replica of it: left out" in rebuilt.remarks


def test_topics_are_named_as_wanted_or_by_their_number(past: Past) -> None:
    assert rebuild(past.surveys(), Wishes()).topics[0].name == "topic-1"
    with pytest.raises(InvalidArgument, match="no storage node holds anything of topic 2"):
        rebuild(past.surveys(), Wishes({TopicID(2): "log"}))


@st.composite
def pasts(draw: st.DrawFn) -> tuple[Past, list[NodeSurvey]]:
    """Any cuts, and disks that have synced any number of commit contexts; they tell of all of these, or of the last."""
    lsids = range(1, draw(st.integers(1, 4)) + 1)
    past = Past(*lsids)
    for _ in range(draw(st.integers(0, 8))):
        counts = {lsid: draw(st.integers(0, 3)) for lsid in lsids}
        if any(counts.values()):
            past.cut({lsid: count for lsid, count in counts.items() if count})
    told, extra, synced = draw(st.sampled_from([1, 2, 1000])), draw(st.integers(0, 2)), st.integers(10, past.version)
    surveys = [
        node(snid, *(past.replica(lsid, until=draw(synced), told=told, extra=extra) for lsid in lsids))
        for snid in NODES
    ]
    return past, surveys


@given(pasts())
def test_O1_whatever_the_disks_have_no_position_changes_its_entry(given_past: tuple[Past, list[NodeSurvey]]) -> None:
    """Every commit context on some disk holds, and what is not accounted for is lost or beyond all that was given."""
    past, surveys = given_past
    rebuilt = rebuild(surveys, LOST)
    state = rebuilt.checkpoint.state
    synced = {cc for survey in surveys for replica in survey.replicas for cc in replica.commits}
    (topic,) = rebuilt.topics
    lost = {position for begin, end in topic.lost for position in range(begin, end)}
    there: set[int] = set()
    for lsid, commits in past.commits.items():
        stream = state.streams[LogStreamID(lsid)]
        kept = [cc for cc in commits if cc.llsn_end <= stream.llsn_end]
        assert {cc for cc in commits if cc in synced} <= set(kept)
        assert stream.last_glsn == (kept[-1].glsn_end - 1 if kept else 0)
        there |= {position for cc in kept for position in range(cc.glsn_begin, cc.glsn_end)}
        held = rebuilt.checkpoint.held.get(LogStreamID(lsid), [])
        assert held == kept[len(kept) - len(held) :]
    assert there | lost >= set(range(1, topic.last + 1))
    assert topic.last >= past.hwm
    assert state.topics[TOPIC].hwm == topic.last
