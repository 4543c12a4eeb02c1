"""What a manager has heard: whose answer counts for which log stream, and who has been silent for how long."""

from __future__ import annotations

from tests.core.sketch import metadata, stream
from varlog import errors
from varlog.core.messages import ChainCopied, Info, ReplicaInfo, ReplicaReply, StreamInfo
from varlog.core.world import World
from varlog.manager.lookout import REFUSED_LATELY, Lookout
from varlog.types import GLSN, LLSN, Epoch, LogStreamID, ReplicaState, StorageNodeID, StreamStatus

ONE, TWO = StorageNodeID(1), StorageNodeID(2)
LSID, OTHER = LogStreamID(1), LogStreamID(2)
SEALED, RUNNING = ReplicaState.SEALED, ReplicaState.RUNNING


def ls(lsid: int = 1, status: StreamStatus = StreamStatus.RUNNING, *, epoch: int = 2, llsn_end: int = 5) -> StreamInfo:
    return stream(lsid, status, epoch=epoch, replicas=(1, 2), llsn_end=llsn_end)


def info(snid: StorageNodeID, request: int, *, epoch: int = 2, boot: int = 1) -> Info:
    replicas = tuple(
        ReplicaInfo(lsid, Epoch(epoch), RUNNING, LLSN(5), LLSN(5), True, suspect=TWO) for lsid in (LSID, OTHER)
    )
    return Info(request, snid, boot, replicas)


def reply(request: int, state: ReplicaState, epoch: int, code: int = 0) -> ReplicaReply:
    return ReplicaReply(request, LSID, code, ONE, Epoch(epoch), state, LLSN(6))


def look(lookout: Lookout, now: float = 0.0, *, is_connected: bool = True) -> World:
    world = lookout.world(now, lambda _: is_connected, frozenset())
    assert world is not None
    return world


def test_there_is_no_world_before_any_metadata() -> None:
    assert Lookout().world(0.0, lambda _: True, frozenset()) is None


def test_an_answer_counts_for_a_log_stream_that_has_not_changed_since() -> None:
    lookout = Lookout()
    assert lookout.on_metadata(metadata(1, ls(), ls(2)), 10, 0.0)
    assert lookout.on_info(info(ONE, 11), 0.1)
    assert not lookout.on_metadata(metadata(2, ls(llsn_end=9), ls(2)), 20, 0.2), "entries are no change"
    assert look(lookout).knows(ONE, LSID)
    assert lookout.on_metadata(metadata(3, ls(1, StreamStatus.SEALED, epoch=3), ls(2)), 30, 0.3)
    world = look(lookout)
    assert not world.knows(ONE, LSID)
    assert world.replica(ONE, LSID) is None
    assert world.recent(ONE, LSID) is not None, "which is good enough to tell it something"
    assert world.knows(ONE, OTHER)
    assert lookout.on_info(info(ONE, 31, epoch=3), 0.4)
    assert look(lookout).knows(ONE, LSID)


def test_what_a_replica_answers_counts_until_its_node_says_more() -> None:
    lookout = Lookout()
    lookout.on_metadata(metadata(1, ls(1, StreamStatus.SEALED, epoch=3), ls(2)), 10, 0.0)
    lookout.on_info(info(ONE, 11), 0.1)
    assert lookout.on_reply(reply(12, SEALED, 3))
    replica = look(lookout).replica(ONE, LSID)
    assert replica is not None
    assert (replica.state, replica.epoch, replica.committed_end, replica.suspect) == (SEALED, 3, 6, TWO)
    lookout.on_info(info(ONE, 13), 0.2)
    replica = look(lookout).replica(ONE, LSID)
    assert replica is not None
    assert replica.state is RUNNING
    lookout.on_metadata(metadata(2, ls(1, StreamStatus.UNSEALING, epoch=4), ls(2)), 20, 0.3)
    assert lookout.on_reply(reply(15, SEALED, 3))
    assert look(lookout).replica(ONE, LSID) is None, "it is of the time before"
    assert lookout.on_reply(reply(21, RUNNING, 4))
    replica = look(lookout).replica(ONE, LSID)
    assert replica is not None
    assert (replica.state, replica.suspect) == (RUNNING, 0)


def test_what_says_nothing_of_a_replica_is_not_taken_for_news_of_it() -> None:
    lookout = Lookout()
    lookout.on_metadata(metadata(1, ls(), ls(2)), 10, 0.0)
    assert not lookout.on_reply(reply(12, SEALED, 3)), "of a node that has not answered"
    lookout.on_info(info(ONE, 13), 0.1)
    assert not lookout.on_reply(reply(12, SEALED, 3)), "older than what the node says"
    assert not lookout.on_reply(reply(14, SEALED, 3, errors.StaleEpoch.code))
    assert not lookout.on_reply(reply(14, SEALED, 0)), "it was made or removed"


def test_a_node_that_has_begun_anew_is_heard_though_it_counts_its_starts_from_one() -> None:
    lookout = Lookout()
    lookout.on_metadata(metadata(1, ls()), 10, 0.0)
    assert lookout.on_info(info(ONE, 11, boot=(1 << 32) + 7), 0.1)
    assert lookout.on_info(info(ONE, 12, boot=1), 0.2)
    assert not lookout.on_info(info(ONE, 11, boot=9), 0.3), "an answer to an earlier question"
    assert lookout.infos[ONE].boot == 1


def test_silence_is_counted_from_the_last_answer_or_from_when_a_node_was_first_known() -> None:
    lookout = Lookout()
    assert not lookout.on_info(info(ONE, 1), 0.0), "it is not registered"
    lookout.on_metadata(metadata(1, ls()), 10, 1.0)
    lookout.on_info(info(ONE, 11), 2.0)
    world = look(lookout, 3.5)
    assert [world.views[snid].silent for snid in (ONE, TWO)] == [1.5, 2.5]
    assert world.metadata_silent == 2.5
    lookout.excuse(1.0)
    world = look(lookout, 3.5)
    assert [world.views[snid].silent for snid in (ONE, TWO)] == [0.5, 1.5], "the manager did not listen"
    assert not look(lookout, 3.5, is_connected=False).views[ONE].is_connected
    lookout.on_metadata(metadata(2), 20, 4.0)
    assert not look(lookout, 4.0).views
    assert not lookout.infos


def test_it_is_known_whose_answers_are_still_out() -> None:
    lookout = Lookout()
    lookout.on_metadata(metadata(1, ls()), 10, 0.0)
    for snid in (ONE, TWO):
        lookout.on_asked(snid)
    lookout.on_info(info(ONE, 11), 0.1)
    assert (lookout.has_all_answers, lookout.silence(0.7)) == (False, 0.7)
    lookout.on_closed(TWO)
    assert (lookout.has_all_answers, lookout.silence(0.7)) == (True, 0.0)
    assert lookout.fresh_infos(1.0, 0.9).keys() == {ONE}
    assert not lookout.fresh_infos(1.0, 1.2)


def test_how_far_a_copy_is_counts_until_its_chain_changes() -> None:
    lookout = Lookout()
    lookout.on_metadata(metadata(1, ls(1, StreamStatus.CHAINED)), 10, 0.0)
    replica = ReplicaInfo(LSID, Epoch(2), SEALED, LLSN(5), LLSN(5), True, source=TWO)
    lookout.on_info(Info(11, ONE, 1, (replica,)), 0.1)
    assert not lookout.on_copied(ChainCopied(12, LSID, errors.StaleEpoch.code, ONE))
    assert not lookout.on_copied(ChainCopied(12, LSID, 0, StorageNodeID(9))), "nobody knows it"
    copied = ChainCopied(12, LSID, 0, ONE, copied=GLSN(4), source_end=GLSN(9))
    assert lookout.on_copied(copied)
    assert look(lookout).copied(ONE, LSID) == copied
    lookout.on_metadata(metadata(2, ls(1, StreamStatus.CHAINED, epoch=3)), 20, 0.2)
    lookout.on_info(Info(21, ONE, 1, (replica,)), 0.3)
    assert look(lookout).copied(ONE, LSID) is None


def refusal(code: int, detail: str = "") -> ReplicaReply:
    return ReplicaReply(12, LSID, code, ONE, Epoch(0), ReplicaState.SEALING, LLSN(0), detail=detail)


def test_a_node_that_makes_no_replica_is_seen_for_a_moment_and_one_that_is_busy_is_not() -> None:
    lookout = Lookout()
    lookout.on_metadata(metadata(1, ls()), 10, 0.0)
    lookout.on_info(Info(11, ONE, 1, ()), 0.1)
    assert not lookout.on_refused(refusal(errors.Busy.code), 0.2)
    assert not look(lookout, 0.3).refusals(LSID)
    assert lookout.on_refused(refusal(errors.DiskFull.code, "it is full"), 0.4)
    assert not lookout.on_refused(refusal(errors.DiskFull.code, "it is full"), 0.5), "that is no news"
    assert look(lookout, 0.6).refusals(LSID) == {ONE: "DiskFull: it is full"}
    assert not look(lookout, 0.5 + REFUSED_LATELY).refusals(LSID)
    assert lookout.on_refused(refusal(9999), 3.0)
    assert look(lookout, 3.1).refusals(LSID) == {ONE: "error 9999"}
    lookout.on_info(info(ONE, 13), 3.2)
    assert not look(lookout, 3.3).refusals(LSID), "it has one"
    assert lookout.on_refused(refusal(errors.AlreadyExists.code), 3.4)
    assert not look(lookout, 3.5).refusals(LSID), "the answer to a request that was made again"
