"""The subscription: every position once and in order, whatever the replicas answer, until its end or a trim."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from itertools import count

import pytest

from tests.core.sketch import TOPIC, metadata, stream
from varlog import errors, limits
from varlog.core.branches import Branch
from varlog.core.merging import Chunk
from varlog.core.messages import Message, Scan, ScanReply, StoredLine, StreamInfo
from varlog.core.routing import Routing
from varlog.core.subscribing import ASK_AGAIN, ASK_ANOTHER, READ_TIMEOUT, REFRESH_EVERY, Subscription
from varlog.types import GLSN, LogStreamID, StorageNodeID, StreamStatus


def stored(glsn: int, count: int) -> StoredLine:
    return (glsn, glsn, count, 2, 1, 0, b"")


class Bench:
    """A subscription, and lists of what it sent and delivered."""

    def __init__(
        self,
        *streams: StreamInfo,
        begin: int = 1,
        end: int | None = None,
        affinity: int = 0,
        reply_bytes: int = limits.SCAN_REPLY_BYTES,
    ) -> None:
        self.now = 0.0
        self.routing = Routing()
        self.sent: list[tuple[str, Scan]] = []
        self.delivered: list[tuple[int, int]] = []
        self.ends: list[errors.VarlogError | None] = []
        self.branches: list[Enum] = []
        requests = count(1)
        self.subscription = Subscription(
            TOPIC,
            GLSN(begin),
            None if end is None else GLSN(end),
            self.routing,
            lambda: next(requests),
            self._send,
            self._deliver,
            self.ends.append,
            self.branches.append,
            affinity=affinity,
            reply_bytes=reply_bytes,
        )
        self.on_delivery: Callable[[], None] = lambda: None
        self._version = 0
        if streams:
            self.learn(*streams)

    def _send(self, address: str, message: Message) -> None:
        assert isinstance(message, Scan)
        self.sent.append((address, message))

    def _deliver(self, chunk: Chunk) -> None:
        self.delivered.append((chunk.glsn, chunk.count))
        self.on_delivery()

    def learn(self, *streams: StreamInfo, hwm: int = 0) -> None:
        self._version += 1
        assert self.routing.update(metadata(self._version, *streams, hwm=hwm))
        self.subscription.on_metadata(self.now)

    def wants_metadata(self) -> bool:
        return self.subscription.wants_metadata

    def scan(self, lsid: int) -> tuple[str, Scan]:
        """The read under way on a log stream, and whom it was sent to."""
        return [(address, scan) for address, scan in self.sent if scan.lsid == lsid][-1]

    def asked(self, lsid: int) -> list[str]:
        """Who was asked for a log stream, in turn."""
        return [address for address, scan in self.sent if scan.lsid == lsid]

    def answer(self, lsid: int, *batches: StoredLine, complete_to: int, of: Scan | None = None) -> None:
        scan = self.scan(lsid)[1] if of is None else of
        reply = ScanReply(scan.request, scan.lsid, 0, batches, GLSN(complete_to))
        self.subscription.on_reply(reply, self.now)

    def refuse(self, lsid: int, error: type[errors.VarlogError], first: int = 0, of: Scan | None = None) -> None:
        scan = self.scan(lsid)[1] if of is None else of
        self.subscription.on_reply(ScanReply(scan.request, scan.lsid, error.code, first=GLSN(first)), self.now)

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.subscription.tick(self.now)


def test_one_read_is_under_way_on_every_log_stream() -> None:
    bench = Bench(stream(1, replicas=(1, 2)), stream(2, replicas=(3, 1)), begin=5)
    assert [(address, scan.lsid, scan.glsn_begin, scan.wait) for address, scan in bench.sent] == [
        ("sn/1", 1, 5, True),
        ("sn/3", 2, 5, True),
    ]
    bench.pass_time(0.1)
    assert len(bench.sent) == 2
    bench.answer(1, stored(5, 2), complete_to=6)
    assert bench.scan(1)[1].glsn_begin == 7
    assert len(bench.sent) == 3


def test_readers_spread_over_the_replicas() -> None:
    addresses = [Bench(stream(1, replicas=(4, 5, 6)), affinity=a).scan(1)[0] for a in range(4)]
    assert addresses == ["sn/4", "sn/5", "sn/6", "sn/4"]


def test_rule11_entries_are_delivered_in_order_over_all_log_streams() -> None:
    bench = Bench(stream(1), stream(2))
    bench.answer(2, stored(3, 1), complete_to=4)
    assert bench.delivered == []
    assert Branch.RULE11_MERGE_WAITED in bench.branches
    bench.answer(1, stored(1, 2), stored(4, 2), complete_to=5)
    assert bench.delivered == [(1, 2), (3, 1), (4, 2)]
    assert bench.subscription.next == 6


def test_an_answer_that_was_given_up_is_not_taken() -> None:
    bench = Bench(stream(1, replicas=(1,)))
    _, slow = bench.scan(1)
    bench.pass_time(READ_TIMEOUT + 0.1)
    bench.answer(1, stored(1, 1), complete_to=1)
    bench.subscription.on_reply(ScanReply(slow.request, slow.lsid, 0, (stored(1, 1),), GLSN(1)), bench.now)
    assert bench.delivered == [(1, 1)]


def test_an_answer_for_a_log_stream_nobody_asked_is_not_taken() -> None:
    bench = Bench(stream(1))
    bench.subscription.on_reply(ScanReply(1, LogStreamID(9), 0, (stored(1, 1),), GLSN(1)), bench.now)
    assert bench.delivered == []


@pytest.mark.parametrize("error", [errors.Corrupt, errors.UnknownLogStream, errors.NotYet, errors.Poisoned])
def test_a_replica_that_cannot_serve_is_left_for_the_next(error: type[errors.VarlogError]) -> None:
    bench = Bench(stream(1, replicas=(1, 2, 3)))
    asked = [bench.scan(1)[0]]
    for number in range(3):
        bench.refuse(1, error)
        assert len(bench.sent) == number + 1, "not at once: it may be just as useless"
        bench.pass_time(ASK_AGAIN)
        asked.append(bench.scan(1)[0])
    assert asked == ["sn/1", "sn/2", "sn/3", "sn/1"]
    bench.answer(1, stored(1, 1), complete_to=1)
    assert bench.delivered == [(1, 1)]
    assert bench.ends == []


def test_a_replica_that_is_alone_is_given_the_time_it_may_take() -> None:
    bench = Bench(stream(1, replicas=(1,)))
    bench.pass_time(READ_TIMEOUT)
    assert len(bench.sent) == 1
    bench.pass_time(0.1)
    assert bench.asked(1) == ["sn/1", "sn/1"]
    assert bench.scan(1)[1].glsn_begin == 1


def test_a_replica_that_serves_is_kept() -> None:
    bench = Bench(stream(1, replicas=(1, 2, 3)))
    for glsn in (1, 2, 3):
        bench.answer(1, stored(glsn, 1), complete_to=glsn)
    assert {address for address, _ in bench.sent} == {"sn/1"}


def test_L5_a_trimmed_position_ends_it_and_says_where_the_log_begins() -> None:
    bench = Bench(stream(1), begin=3)
    bench.refuse(1, errors.Trimmed, first=10)
    (end,) = bench.ends
    assert isinstance(end, errors.Trimmed)
    assert end.first == 10
    assert bench.subscription.ended
    bench.pass_time(1.0)
    bench.learn(stream(1), stream(2))
    assert len(bench.sent) == 1
    assert len(bench.ends) == 1


def test_L5_a_trim_below_the_next_position_does_not_matter() -> None:
    """The replica refused an older read of ours; meanwhile another log stream's entries have carried us past it."""
    bench = Bench(stream(1), stream(2))
    bench.answer(2, stored(1, 9), complete_to=9)
    assert bench.delivered == [(1, 9)]
    bench.refuse(1, errors.Trimmed, first=5)
    assert bench.ends == []
    bench.pass_time(READ_TIMEOUT / 2)
    assert bench.scan(1)[1].glsn_begin == 10


def test_rule11_a_gap_makes_it_refresh_metadata_and_find_the_new_log_stream() -> None:
    bench = Bench(stream(1))
    assert not bench.wants_metadata()
    bench.answer(1, stored(3, 1), complete_to=3)
    assert bench.delivered == []
    assert bench.wants_metadata()
    assert Branch.RULE11_GAP_REFRESHED in bench.branches
    bench.learn(stream(1, last_glsn=3), stream(2, last_glsn=2), hwm=3)
    assert bench.scan(2)[1].glsn_begin == 1
    bench.answer(2, stored(1, 2), complete_to=3)
    assert bench.delivered == [(1, 2), (3, 1)]


def test_a_quiet_log_stream_does_not_hold_it_up() -> None:
    bench = Bench(stream(1), stream(2))
    bench.answer(1, stored(1, 4), complete_to=4)
    bench.learn(stream(1, last_glsn=4), stream(2, last_glsn=0), hwm=4)
    _, scan = bench.scan(2)
    assert scan.glsn_begin == 1, "the read under way goes on"
    bench.answer(2, complete_to=4)
    assert bench.scan(2)[1].glsn_begin == 5


def test_rule11_metadata_is_refreshed_now_and_then_while_a_log_stream_is_waited_for() -> None:
    bench = Bench(stream(1), stream(2))
    bench.answer(1, stored(2, 1), complete_to=2)
    bench.pass_time(REFRESH_EVERY)
    assert not bench.wants_metadata()
    bench.pass_time(0.1)
    assert bench.wants_metadata()


def test_nothing_is_refreshed_while_there_is_nothing_to_read() -> None:
    bench = Bench(stream(1), stream(2))
    bench.pass_time(REFRESH_EVERY + 0.1)
    assert not bench.wants_metadata()


def test_L6_a_new_log_stream_is_heard_of_although_the_known_one_is_silent() -> None:
    """Sealed, it would stay silent for as long as it is: no position beyond it is ever told of there."""
    bench = Bench(stream(1))
    bench.pass_time(REFRESH_EVERY / 2)
    bench.refuse(1, errors.NotYet)
    bench.pass_time(REFRESH_EVERY / 2)
    assert not bench.wants_metadata()
    bench.pass_time(0.1)
    assert bench.wants_metadata()
    bench.learn(stream(1), stream(2, last_glsn=2), hwm=2)
    bench.answer(2, stored(1, 2), complete_to=2)
    assert bench.delivered == [(1, 2)]


def test_L6_a_replica_that_does_not_answer_makes_it_refresh_metadata() -> None:
    bench = Bench(stream(1, replicas=(1,)))
    bench.pass_time(READ_TIMEOUT)
    assert not bench.wants_metadata()
    bench.pass_time(0.1)
    assert bench.wants_metadata()


def test_metadata_is_refreshed_once_in_a_while_however_many_answers_are_of_no_use() -> None:
    bench = Bench(stream(1))
    refreshed = 0
    for _ in range(100):
        bench.refuse(1, errors.NotYet)
        bench.pass_time(ASK_AGAIN)
        if bench.wants_metadata():
            refreshed += 1
            bench.learn(stream(1))
    assert len(bench.sent) == 101
    assert 1 < refreshed <= 100 * ASK_AGAIN / REFRESH_EVERY


def test_metadata_that_was_refreshed_answers_for_what_was_of_no_use_before() -> None:
    bench = Bench(stream(1))
    bench.refuse(1, errors.NotYet)
    bench.learn(stream(1))
    bench.pass_time(REFRESH_EVERY + 0.1)
    assert not bench.wants_metadata()


def test_it_ends_at_its_end_position() -> None:
    bench = Bench(stream(1), begin=2, end=5)
    bench.answer(1, stored(1, 3), stored(4, 3), stored(7, 1), complete_to=7)
    assert bench.delivered == [(2, 2), (4, 1)]
    assert bench.ends == [None]
    assert bench.subscription.ended
    bench.pass_time(1.0)
    assert len(bench.sent) == 1


def test_it_ends_at_its_end_position_also_on_a_batch_boundary() -> None:
    bench = Bench(stream(1), end=4)
    bench.answer(1, stored(1, 3), complete_to=3)
    assert bench.delivered == [(1, 3)]
    assert bench.ends == [None]


def test_a_read_after_what_is_buffered_begins_where_the_log_stream_is_complete() -> None:
    bench = Bench(stream(1), stream(2))
    bench.answer(1, stored(3, 1), complete_to=6)
    assert bench.scan(1)[1].glsn_begin == 7
    assert bench.delivered == []


def test_an_unknown_topic_is_waited_for() -> None:
    bench = Bench(stream(7, tpid=2))
    bench.pass_time(1.0)
    assert bench.sent == []
    assert bench.wants_metadata()


# Connections


def test_a_lost_connection_sends_its_reads_to_the_next_replica_at_once() -> None:
    bench = Bench(stream(1, replicas=(1, 2)), stream(2, replicas=(2, 3)))
    assert [address for address, _ in bench.sent] == ["sn/1", "sn/2"]
    bench.subscription.on_disconnected(StorageNodeID(2), bench.now)
    assert bench.scan(1)[0] == "sn/1"
    assert bench.scan(2)[0] == "sn/3"
    assert len(bench.sent) == 3
    bench.subscription.on_disconnected(StorageNodeID(2), bench.now)
    assert len(bench.sent) == 3, "nothing is asked of it any more"


def test_a_new_connection_is_asked_again_at_once() -> None:
    bench = Bench(stream(1))
    before = bench.scan(1)[1]
    bench.subscription.on_connected(StorageNodeID(1), bench.now)
    address, after = bench.scan(1)
    assert (address, after.glsn_begin) == ("sn/1", before.glsn_begin)
    assert after.request > before.request
    bench.subscription.on_connected(StorageNodeID(2), bench.now)
    assert len(bench.sent) == 2


# Replicas that hang


def hanging(bench: Bench) -> Scan:
    """The first replica of log stream 1 does not answer, and the next one is asked; what the first was asked."""
    first = bench.scan(1)[1]
    bench.pass_time(ASK_ANOTHER)
    assert bench.scan(1)[1] is not first
    return first


def test_a_replica_that_hangs_costs_a_reader_half_a_second() -> None:
    bench = Bench(stream(1, replicas=(1, 2, 3)))
    bench.pass_time(ASK_ANOTHER - 0.1)
    assert bench.asked(1) == ["sn/1"]
    bench.pass_time(0.1)
    address, scan = bench.scan(1)
    assert (address, scan.glsn_begin) == ("sn/2", 1)
    assert scan.max_bytes == 1, "the first may yet bring the same"
    bench.answer(1, stored(1, 4), complete_to=4)
    assert bench.delivered == [(1, 4)]
    address, scan = bench.scan(1)
    assert (address, scan.glsn_begin) == ("sn/2", 5), "who answers is asked from then on"
    assert scan.max_bytes == limits.SCAN_REPLY_BYTES


def test_two_replicas_that_hang_cost_a_reader_a_second() -> None:
    bench = Bench(stream(1, replicas=(1, 2, 3)))
    for _ in range(4):
        bench.pass_time(ASK_ANOTHER)
    assert bench.asked(1) == ["sn/1", "sn/2", "sn/3"], "none of them twice"
    bench.answer(1, stored(1, 4), complete_to=4)
    assert bench.delivered == [(1, 4)]


def test_L6_a_late_answer_is_used_and_nothing_is_delivered_twice() -> None:
    bench = Bench(stream(1, replicas=(1, 2, 3)))
    slow = hanging(bench)
    bench.answer(1, stored(1, 2), complete_to=2)
    next_read = bench.scan(1)[1]
    bench.answer(1, stored(1, 2), stored(3, 3), complete_to=5, of=slow)
    assert bench.delivered == [(1, 2), (3, 3)]
    bench.answer(1, stored(3, 3), stored(6, 1), complete_to=6, of=next_read)
    assert bench.delivered == [(1, 2), (3, 3), (6, 1)]
    bench.answer(1, stored(1, 9), complete_to=9, of=slow)
    assert bench.delivered == [(1, 2), (3, 3), (6, 1)], "it was answered before"


def test_M11_who_did_not_answer_when_another_did_is_avoided_by_everybody() -> None:
    bench = Bench(stream(1, replicas=(1, 2)), stream(2, replicas=(1, 3)))
    bench.pass_time(ASK_ANOTHER)
    assert (bench.asked(1), bench.asked(2)) == (["sn/1", "sn/2"], ["sn/1", "sn/3"])
    bench.answer(1, stored(1, 1), complete_to=1)
    bench.answer(2, stored(2, 1), complete_to=2)
    assert not bench.routing.nodes_avoided.avoids(StorageNodeID(1), bench.now), "it may answer any moment"
    bench.pass_time(ASK_ANOTHER)
    assert bench.routing.nodes_avoided.avoids(StorageNodeID(1), bench.now)
    bench.pass_time(0.1)
    assert bench.wants_metadata(), "it may be no replica any more"
    for _ in range(3):
        bench.pass_time(ASK_ANOTHER)
    assert bench.asked(1).count("sn/1") == 1, "it is not even asked beside others"


def test_M11_who_did_not_answer_a_read_that_is_over_has_failed() -> None:
    bench = Bench(stream(1, replicas=(1, 2)), stream(2, replicas=(1, 3)), end=2)
    bench.pass_time(ASK_ANOTHER)
    bench.answer(2, complete_to=1)
    bench.answer(1, stored(1, 1), complete_to=1)
    assert bench.ends == [None]
    assert bench.routing.nodes_avoided.avoids(StorageNodeID(1), bench.now)


def test_M11_who_answers_a_little_later_has_not_failed() -> None:
    bench = Bench(stream(1, replicas=(1, 2)), stream(2, replicas=(1, 3)))
    slow = [bench.scan(1)[1], bench.scan(2)[1]]
    bench.pass_time(ASK_ANOTHER)
    bench.answer(1, stored(1, 1), complete_to=1)
    bench.answer(2, stored(2, 1), complete_to=2)
    bench.answer(1, stored(1, 1), complete_to=1, of=slow[0])
    bench.refuse(2, errors.NotYet, of=slow[1])
    bench.pass_time(ASK_ANOTHER + 0.1)
    assert not bench.routing.nodes_avoided


@pytest.mark.parametrize("event", ["on_connected", "on_disconnected"])
def test_M11_a_new_connection_owes_no_old_answers(event: str) -> None:
    bench = Bench(stream(1, replicas=(1, 2)), stream(2, replicas=(1, 3)))
    bench.pass_time(ASK_ANOTHER)
    bench.answer(1, stored(1, 1), complete_to=1)
    bench.answer(2, stored(2, 1), complete_to=2)
    getattr(bench.subscription, event)(StorageNodeID(1), bench.now)
    bench.pass_time(ASK_ANOTHER)
    assert not bench.routing.nodes_avoided
    assert (bench.asked(1)[2:], bench.asked(2)[2:]) == (["sn/2", "sn/1"], ["sn/3", "sn/1"])


def test_M11_a_node_that_is_avoided_is_asked_only_if_nobody_else_is_there() -> None:
    bench = Bench()
    bench.routing.nodes_avoided.unusable(StorageNodeID(1), bench.now)
    bench.learn(stream(1, replicas=(1, 2)), stream(2, replicas=(1,)))
    assert (bench.asked(1), bench.asked(2)) == (["sn/2"], ["sn/1"])
    bench.refuse(1, errors.Corrupt)
    bench.pass_time(ASK_AGAIN)
    assert bench.asked(1) == ["sn/2", "sn/2"]


def test_a_node_that_answers_is_not_avoided_any_more() -> None:
    bench = Bench()
    bench.routing.nodes_avoided.unusable(StorageNodeID(1), bench.now)
    bench.learn(stream(1, replicas=(1,)))
    bench.answer(1, stored(1, 1), complete_to=1)
    assert not bench.routing.nodes_avoided


def test_a_refusal_leaves_the_other_replica_that_was_asked_its_time() -> None:
    bench = Bench(stream(1, replicas=(1, 2, 3)))
    first = hanging(bench)
    second = bench.scan(1)[1]
    bench.refuse(1, errors.NotYet, of=first)
    bench.pass_time(ASK_AGAIN)
    assert bench.asked(1) == ["sn/1", "sn/2"]
    bench.answer(1, stored(1, 1), complete_to=1, of=second)
    assert bench.delivered == [(1, 1)]
    assert bench.scan(1)[0] == "sn/2"


def test_while_it_is_paused_nobody_else_is_asked() -> None:
    bench = Bench(stream(1, replicas=(1, 2, 3)))
    bench.subscription.pause()
    bench.pass_time(ASK_ANOTHER)
    assert bench.asked(1) == ["sn/1"]


# Sets that change


def test_L6_a_replica_that_left_the_set_is_asked_nothing_more() -> None:
    bench = Bench(stream(1, replicas=(1, 2)))
    bench.answer(1, stored(1, 2), complete_to=2)
    before = bench.scan(1)[1]
    bench.learn(stream(1, epoch=4, replicas=(2, 3)), hwm=2)
    address, scan = bench.scan(1)
    assert (address, scan.glsn_begin) == ("sn/2", 3)
    bench.answer(1, stored(3, 1), complete_to=3, of=before)
    assert bench.delivered == [(1, 2)], "what it says now is not asked for"
    bench.answer(1, stored(3, 2), complete_to=4)
    assert bench.delivered == [(1, 2), (3, 2)]


def test_a_replica_that_stays_in_the_set_goes_on() -> None:
    bench = Bench(stream(1, replicas=(1, 2)))
    bench.learn(stream(1, epoch=4, replicas=(3, 1)))
    assert bench.asked(1) == ["sn/1"]
    bench.answer(1, stored(1, 2), complete_to=2)
    assert bench.asked(1) == ["sn/1", "sn/1"]


def test_L6_all_replicas_move_elsewhere() -> None:
    bench = Bench(stream(1, replicas=(1, 2)))
    bench.learn(stream(1, epoch=4, replicas=(3, 4)))
    assert bench.asked(1) == ["sn/1", "sn/3"]


def test_a_log_stream_that_was_removed_is_read_no_more() -> None:
    bench = Bench(stream(1), stream(2))
    bench.answer(1, stored(1, 2), complete_to=2)
    bench.learn(stream(1, last_glsn=2), hwm=2)
    bench.pass_time(READ_TIMEOUT + 0.1)
    assert bench.asked(2) == ["sn/1"]
    bench.answer(1, stored(3, 1), complete_to=3)
    assert bench.delivered == [(1, 2), (3, 1)]


# What is lost


def lost_end(bench: Bench) -> tuple[int, int] | None:
    """What it was told to be lost."""
    for error in bench.ends:
        assert isinstance(error, errors.Lost)
        return error.begin, error.end
    return None


def test_what_every_copy_is_gone_of_ends_it_and_says_where_the_log_goes_on() -> None:
    gone = stream(2, StreamStatus.SEALED, epoch=3, last_glsn=7, lost=(3, 8))
    bench = Bench(stream(1, last_glsn=9), gone)
    bench.answer(1, stored(1, 1), stored(5, 1), stored(8, 2), complete_to=9)
    assert bench.ends == [], "2 is not lost"
    bench.answer(2, stored(2, 1), complete_to=2)
    assert bench.delivered == [(1, 1), (2, 1)]
    assert lost_end(bench) == (3, 5)
    again = Bench(stream(1, last_glsn=9), gone, begin=5)
    again.answer(1, stored(5, 1), stored(8, 2), complete_to=9)
    assert again.delivered == [(5, 1)]
    assert lost_end(again) == (6, 8)
    behind = Bench(stream(1, last_glsn=9), gone, begin=8)
    assert behind.asked(2) == [], "it has nothing to tell any more"
    behind.answer(1, stored(8, 2), complete_to=9)
    assert behind.delivered == [(8, 2)]
    assert behind.ends == []


def test_a_lost_log_stream_that_nobody_has_anything_of_is_not_waited_for() -> None:
    gone = stream(2, StreamStatus.SEALED, epoch=3, replicas=(), primary=0, last_glsn=7, lost=(3, 8))
    bench = Bench(stream(1, last_glsn=9), gone)
    assert bench.asked(2) == []
    bench.answer(1, stored(1, 1), stored(5, 1), complete_to=5)
    assert lost_end(bench) == (2, 5)


def test_a_loss_that_is_declared_while_it_waits_ends_it() -> None:
    bench = Bench(stream(1), stream(2))
    bench.answer(1, stored(3, 1), complete_to=4)
    bench.learn(stream(1), stream(2, StreamStatus.SEALED, epoch=3, last_glsn=2, lost=(1, 3)), hwm=4)
    assert lost_end(bench) == (1, 3)


def test_a_read_of_what_is_lost_reads_on_to_say_where_the_log_goes_on() -> None:
    gone = stream(2, StreamStatus.SEALED, epoch=3, last_glsn=7, lost=(3, 8))
    bench = Bench(stream(1, last_glsn=9), gone, begin=4, end=5)
    bench.answer(1, complete_to=5)
    assert lost_end(bench) is None
    assert bench.scan(1)[1].glsn_begin == 6
    bench.answer(1, stored(7, 1), complete_to=7)
    assert lost_end(bench) == (4, 7)


def test_what_is_trimmed_is_not_lost() -> None:
    bench = Bench(begin=4)
    bench.routing.note_trim(TOPIC, GLSN(6))
    bench.learn(stream(1), stream(2, StreamStatus.SEALED, epoch=3, last_glsn=7, lost=(3, 8)))
    (end,) = bench.ends
    assert isinstance(end, errors.Trimmed)
    assert end.first == 7


# Ends


def test_only_log_streams_that_may_have_it_are_asked_and_nothing_beyond_the_end() -> None:
    bench = Bench(begin=3, end=6)
    bench.learn(stream(1, last_glsn=5), stream(2, last_glsn=9), stream(3, last_glsn=2), hwm=9)
    assert bench.asked(3) == [], "its last is before the beginning"
    bench.answer(2, stored(4, 1), stored(6, 4), complete_to=9)
    assert len(bench.asked(2)) == 1, "it has told all that is wanted"
    bench.answer(1, stored(3, 1), complete_to=3)
    bench.answer(1, stored(5, 1), complete_to=5)
    assert bench.delivered == [(3, 1), (4, 1), (5, 1)]
    assert bench.ends == [None]


# Pausing


def test_a_paused_subscription_neither_delivers_nor_reads_on() -> None:
    bench = Bench(stream(1))
    bench.subscription.pause()
    bench.answer(1, stored(1, 3), complete_to=3)
    bench.pass_time(1.0)
    assert bench.delivered == []
    assert len(bench.sent) == 1
    assert bench.subscription.outstanding == 0
    bench.subscription.resume(bench.now)
    assert bench.delivered == [(1, 3)]
    assert bench.scan(1)[1].glsn_begin == 4
    assert bench.subscription.outstanding == 1


def test_pausing_while_something_is_delivered_stops_reading() -> None:
    bench = Bench(stream(1))
    bench.on_delivery = bench.subscription.pause
    bench.answer(1, stored(1, 3), stored(4, 1), complete_to=4)
    assert bench.delivered == [(1, 3), (4, 1)], "what one reply brought comes whole"
    assert len(bench.sent) == 1


def test_a_read_brings_as_much_as_it_was_told() -> None:
    bench = Bench(stream(1), reply_bytes=1)
    assert bench.scan(1)[1].max_bytes == 1
