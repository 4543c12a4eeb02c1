"""The primary's view of its backups: what is sent when, and when a backup is given up."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.core.replica import LSID, OTHER, THIRD, batch_of
from varlog import batch, limits
from varlog.core.messages import Message, Replicate, ReplicateAck
from varlog.core.pending import Pending
from varlog.core.replication import GIVE_UP_AFTER, RESEND_AFTER, RESEND_BATCHES, Backups
from varlog.types import LLSN, Epoch, Sequence, StorageNodeID, WriterID

EPOCH = Epoch(2)


class Primary:
    """Two backups that have everything below LLSN 5, and what is sent to them: the batches, and the runs of them."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, int]] = []
        self.runs: list[tuple[str, list[int]]] = []
        self.pending: list[Pending] = []
        self.now = 0.0
        self.backups = Backups(LSID, EPOCH, (OTHER, THIRD), LLSN(5), self._send, self.now)

    def _send(self, address: str, message: Message) -> None:
        assert isinstance(message, Replicate)
        assert message.epoch == EPOCH
        llsns = list(range(message.llsn, message.llsn + len(message.batches)))
        assert message.prev_sequences == tuple(llsn - 1 for llsn in llsns)
        assert [batch.peek_header(content).sequence for content in message.batches] == llsns
        self.runs.append((address, llsns))
        self.sent += [(address, llsn) for llsn in llsns]

    def append(self, *llsns: int, size: int = 1) -> None:
        """Batches of one entry."""
        for llsn in llsns:
            data = batch_of(llsn, bytes(size))
            sequences = Sequence(llsn), Sequence(llsn - 1)
            self.pending.append(Pending(LLSN(llsn), 1, EPOCH, WriterID(1), *sequences, len(data), data))
            self.backups.replicate(self.pending[-1:], self.now)

    def replicate(self, *llsns: int, size: int = 1) -> None:
        """A turn in which they are appended."""
        self.append(*llsns, size=size)
        self.backups.flush()

    def acknowledge(self, snid: StorageNodeID, received: int, durable: int | None = None) -> None:
        ends = (LLSN(received), LLSN(received if durable is None else durable))
        self.backups.acknowledged(ReplicateAck(LSID, snid, EPOCH, True, *ends), self.now)

    def forget(self) -> None:
        """What was sent so far."""
        self.sent.clear()
        self.runs.clear()

    def tick(self, seconds: float) -> bool:
        """Whether a backup is given up."""
        self.now += seconds
        self.forget()
        return self.backups.tick(self.pending, self.now) is not None


def run(primary: Primary, seconds: float, each: Callable[[], None]) -> bool:
    """Let time pass in small steps; whether a backup is given up on the way."""
    for _ in range(round(seconds / 0.1)):
        each()
        if primary.tick(0.1):
            return True
    return False


def test_every_batch_goes_to_every_backup() -> None:
    primary = Primary()
    for llsn in (5, 6):
        primary.replicate(llsn)
    assert primary.sent == [("sn/2", 5), ("sn/3", 5), ("sn/2", 6), ("sn/3", 6)]


def test_batches_of_one_turn_go_as_one_run_when_it_ends() -> None:
    primary = Primary()
    primary.append(5, 6)
    primary.append(7)
    assert primary.runs == []
    primary.backups.flush()
    assert primary.runs == [("sn/2", [5, 6, 7]), ("sn/3", [5, 6, 7])]
    primary.forget()
    primary.backups.flush()
    assert primary.runs == [], "and only once"


def test_a_run_has_no_more_batches_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "REPLICATE_BATCHES", 3)
    primary = Primary()
    primary.replicate(*range(5, 13))
    assert primary.runs[::2] == [("sn/2", [5, 6, 7]), ("sn/2", [8, 9, 10]), ("sn/2", [11, 12])]
    assert primary.runs[1::2] == [("sn/3", llsns) for _, llsns in primary.runs[::2]]
    primary.acknowledge(OTHER, 13)
    primary.acknowledge(THIRD, 7)
    primary.tick(RESEND_AFTER + 0.01)
    assert primary.runs == [("sn/3", [7, 8, 9]), ("sn/3", [10, 11, 12])], "neither when it is sent again"


def test_a_run_has_no_more_bytes_than_it_may_and_a_larger_batch_goes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "REPLICATE_BYTES", 3 * len(batch_of(5, b"x")))
    primary = Primary()
    primary.replicate(5, 6, 7, 8)
    primary.replicate(9)
    primary.replicate(10, size=1000)
    assert primary.runs[::2] == [("sn/2", [5, 6, 7]), ("sn/2", [8]), ("sn/2", [9]), ("sn/2", [10])]
    primary.replicate(11, 12)
    primary.acknowledge(OTHER, 13)
    primary.tick(RESEND_AFTER + 0.01)
    assert primary.runs == [("sn/3", llsns) for llsns in ([5, 6, 7], [8, 9], [10], [11, 12])]


def test_what_is_overdue_is_sent_again_from_where_the_backup_is() -> None:
    primary = Primary()
    for llsn in (5, 6, 7):
        primary.replicate(llsn)
    primary.acknowledge(OTHER, 8)
    primary.acknowledge(THIRD, 6)
    assert not primary.tick(RESEND_AFTER)
    assert primary.sent == []
    assert not primary.tick(0.01)
    assert primary.sent == [("sn/3", 6), ("sn/3", 7)]
    assert not primary.tick(0.01)
    assert primary.sent == [], "not again at once"


def test_a_long_backlog_is_sent_again_in_parts() -> None:
    primary = Primary()
    for llsn in range(5, 6 + RESEND_BATCHES):
        primary.replicate(llsn)
    primary.acknowledge(OTHER, 6 + RESEND_BATCHES)
    primary.tick(RESEND_AFTER + 0.01)
    assert [llsn for _, llsn in primary.sent] == list(range(5, 5 + RESEND_BATCHES))


def test_M7_a_backup_is_given_up_when_it_is_silent_although_something_is_outstanding() -> None:
    primary = Primary()
    assert not primary.tick(GIVE_UP_AFTER * 10), "nothing is outstanding"
    primary.replicate(5)
    assert not primary.tick(GIVE_UP_AFTER)
    assert primary.tick(0.01)


def test_M7_received_is_not_enough() -> None:
    """A backup whose disk hangs goes on answering what it is sent again."""
    primary = Primary()
    primary.replicate(5)
    primary.acknowledge(OTHER, 6)
    assert run(primary, GIVE_UP_AFTER + 0.3, lambda: primary.acknowledge(THIRD, 6, durable=5))


def test_M7_a_backup_that_makes_progress_is_not_given_up() -> None:
    primary = Primary()
    for llsn in range(5, 40):
        primary.replicate(llsn)
    primary.acknowledge(OTHER, 40)
    ends = iter(range(6, 40))
    assert not run(primary, GIVE_UP_AFTER * 3, lambda: primary.acknowledge(THIRD, next(ends)))


def test_M7_a_cut_is_as_good_as_the_answer_that_was_lost() -> None:
    primary = Primary()
    primary.replicate(5)
    primary.backups.committed(LLSN(6))
    primary.pending.clear()
    assert not primary.tick(GIVE_UP_AFTER * 2)
    assert primary.sent == []
    primary.replicate(6)
    assert not primary.tick(GIVE_UP_AFTER), "the waiting starts with the next batch"
    assert primary.tick(0.01)


def test_M7_a_cut_says_nothing_of_what_is_beyond_it() -> None:
    primary = Primary()
    for llsn in (5, 6):
        primary.replicate(llsn)
    primary.backups.committed(LLSN(6))
    primary.tick(RESEND_AFTER + 0.01)
    assert primary.sent == [("sn/2", 6), ("sn/3", 6)]
    assert primary.tick(GIVE_UP_AFTER)


def test_an_answer_of_somebody_else_says_nothing() -> None:
    primary = Primary()
    primary.replicate(5)
    primary.acknowledge(StorageNodeID(9), 6)
    assert primary.tick(GIVE_UP_AFTER + 0.01)


def test_rule5_a_new_connection_is_sent_what_the_backup_lacks_at_once() -> None:
    primary = Primary()
    for llsn in (5, 6, 7):
        primary.replicate(llsn)
    primary.acknowledge(OTHER, 6)
    primary.acknowledge(THIRD, 8)
    primary.forget()
    primary.backups.connected(OTHER, primary.pending, primary.now)
    assert primary.sent == [("sn/2", 6), ("sn/2", 7)]
    primary.forget()
    primary.backups.connected(THIRD, primary.pending, primary.now)
    assert primary.sent == [], "it has everything"


def test_M7_a_backup_that_only_lets_itself_be_connected_to_is_given_up() -> None:
    primary = Primary()
    primary.replicate(5)
    primary.acknowledge(THIRD, 6)
    assert run(primary, GIVE_UP_AFTER + 0.5, lambda: primary.backups.connected(OTHER, primary.pending, primary.now))
