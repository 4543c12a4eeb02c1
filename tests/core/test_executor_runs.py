"""What travels together: the batches of one turn, from the primary to its backups, and the answers of one cut, to a
client."""

from __future__ import annotations

import pytest

from tests.core.replica import LSID, ME, OTHER, THIRD, Replica, batch_of
from varlog import batch, limits
from varlog.core.messages import Append, AppendReplies, AppendReply, Replicate, ReplicateAck, Report
from varlog.core.storagenode import StorageNode
from varlog.errors import ConsistencyViolation
from varlog.types import GLSN, LLSN, Epoch, Sequence

BACKUP = ((OTHER, ME), OTHER)
"""A set of which this replica is the backup."""


def append_of(sequence: int) -> Append:
    return Append(sequence, LSID, Epoch(2), Sequence(sequence - 1), LLSN(1), batch_of(sequence))


# The primary


def test_O1_what_is_appended_in_one_turn_goes_to_the_backups_as_one_run() -> None:
    replica = Replica().run((ME, OTHER, THIRD))
    replica.append_together(1, 2, 3)
    sent = [(address, message) for address, message in replica.sent if isinstance(message, Replicate)]
    assert [(address, m.llsn, m.prev_sequences) for address, m in sent] == [
        ("sn/2", 1, (0, 1, 2)),
        ("sn/3", 1, (0, 1, 2)),
    ]
    assert [m.batches for _, m in sent] == [tuple(batch_of(sequence) for sequence in (1, 2, 3))] * 2
    replica.executor.flush()
    assert len(replica.sent) == 2, "and once"


def test_O1_what_a_turn_appends_goes_to_the_backups_at_its_end_and_before_the_report() -> None:
    replica = Replica().run((ME, OTHER))
    node = StorageNode(ME, 1, replica.send, replica.branches.append)
    node.add(replica.executor)
    for sequence in (1, 2):
        node.on_message("client", append_of(sequence), 0.0)
    assert replica.sent == []
    node.flush(0.0)
    assert [(address, type(sent)) for address, sent in replica.sent] == [("sn/2", Replicate), ("mr", Report)]
    assert replica.messages(Replicate)[0].batches == (batch_of(1), batch_of(2))
    node.flush(0.0)
    assert len(replica.messages(Replicate)) == 1


def test_what_was_appended_to_a_removed_replica_goes_nowhere() -> None:
    replica = Replica().run((ME, OTHER))
    node = StorageNode(ME, 1, replica.send, replica.branches.append)
    node.add(replica.executor)
    node.on_message("client", append_of(1), 0.0)
    node.remove(LSID)
    node.flush(0.0)
    assert replica.messages(Replicate) == []


def test_what_awaits_its_turn_when_the_replica_is_sealed_is_not_sent_any_more() -> None:
    replica = Replica().run((ME, OTHER))
    replica.executor.append("client", append_of(1), batch.verify(batch_of(1)), replica.now)
    replica.seal(3, 1)
    replica.executor.flush()
    assert replica.messages(Replicate) == []


# A backup


def test_what_comes_alone_is_told_from_what_does_not() -> None:
    replica = Replica().run(*BACKUP)
    seen = [replica.executor.is_alone]
    replica.replicate_run(1, (1, b"a"))
    seen.append(replica.executor.is_alone)
    replica.replicate_run(2, (2, b"b"))
    seen.append(replica.executor.is_alone)  # the one before is not committed
    replica.sync()
    assert replica.commit(1, 3)
    replica.replicate_run(3, (3, b"c"))
    seen.append(replica.executor.is_alone)
    replica.sync()
    assert replica.commit(3, 4)
    seen.append(replica.executor.is_alone)  # also when it is committed
    replica.replicate_run(4, (4, b"d"), (5, b"e"))
    seen.append(replica.executor.is_alone)  # two have come together
    assert seen == [False, True, False, True, True, False]


def test_O1_a_run_of_batches_is_taken_as_a_whole() -> None:
    replica = Replica().run(*BACKUP)
    replica.replicate_run(1, (1, b"a", b"b"), (2, b"c"), (3, b"d", b"e", b"f"))
    assert replica.ends == (1, 1, 7)
    assert replica.sent == [], "it is acknowledged when it is durable"
    replica.sync()
    replica.tick(0.1)
    assert replica.sent == [("sn/2", ReplicateAck(LSID, ME, Epoch(2), True, LLSN(7), LLSN(7)))]
    assert replica.commit(1, 7)
    replica.sync()
    stored = replica.storage.read(GLSN(1), GLSN(7), 1 << 20)
    assert [(one.llsn, batch.decode(one.batch).to_list()) for one in stored] == [
        (1, [b"a", b"b"]),
        (3, [b"c"]),
        (4, [b"d", b"e", b"f"]),
    ]


def test_O1_of_a_run_that_overlaps_what_a_backup_has_only_the_rest_is_stored() -> None:
    replica = Replica().run(*BACKUP)
    replica.replicate_run(1, (1, b"a", b"b"), (2, b"c"))
    replica.sync()
    replica.replicate_run(1, (1, b"a", b"b"), (2, b"c"), (3, b"d"), (4, b"e"))
    assert replica.ends == (1, 4, 6)
    assert replica.executor.batches == 4, "nothing is stored twice"
    (ack,) = replica.messages(ReplicateAck)
    assert (ack.accepted, ack.received_end, ack.durable_end) == (True, 6, 4)


def test_O1_of_a_run_that_begins_with_what_is_committed_the_rest_is_stored() -> None:
    replica = Replica().run(*BACKUP)
    replica.replicate_run(1, (1, b"a", b"b"), (2, b"c"))
    replica.sync()
    replica.commit(1, 4)
    replica.replicate_run(1, (1, b"a", b"b"), (2, b"c"), (3, b"d"))
    assert replica.ends == (4, 4, 5)
    assert [ack.received_end for ack in replica.messages(ReplicateAck)] == [5]


def test_O1_a_run_that_begins_beyond_the_end_of_a_backup_is_not_stored() -> None:
    replica = Replica().run(*BACKUP)
    replica.replicate(1, 1, b"a", b"b")
    replica.replicate_run(4, (3, b"d"), (4, b"e"))
    assert replica.ends == (1, 1, 3)
    (ack,) = replica.messages(ReplicateAck)
    assert (ack.accepted, ack.received_end) == (True, 3), "it says from where it is to be sent again"


def test_another_batch_where_a_run_overlaps_is_a_violation() -> None:
    replica = Replica().run(*BACKUP)
    replica.replicate_run(1, (1, b"a"), (2, b"b"))
    with pytest.raises(ConsistencyViolation, match="ONE_CONTENT"):
        replica.replicate_run(1, (1, b"a"), (5, b"b"), (6, b"c"))
    assert replica.ends == (1, 1, 3)


@pytest.mark.parametrize("limit", ["batches", "bytes"])
def test_of_a_run_that_is_too_much_a_backup_stores_the_beginning(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if limit == "batches":
        monkeypatch.setattr(limits, "MAX_UNCOMMITTED_BATCHES", 3)
    else:
        monkeypatch.setattr(limits, "MAX_UNCOMMITTED_BYTES", 3 * len(batch_of(1)))
    replica = Replica().run(*BACKUP)
    run = [(sequence, b"%d" % sequence) for sequence in range(1, 6)]
    replica.replicate_run(1, *run)
    assert replica.ends == (1, 1, 4)
    replica.sync()
    replica.replicate_run(1, *run)
    assert replica.ends == (1, 4, 4)
    assert [ack.received_end for ack in replica.messages(ReplicateAck)] == [4]
    replica.commit(1, 4)
    replica.replicate_run(4, *run[3:])
    assert replica.ends == (4, 4, 6), "and the rest when there is room"


# Clients


def test_O1_one_cut_answers_each_client_with_one_message() -> None:
    replica = Replica().run()
    first = replica.append_together(1, 2, client="first")
    second = replica.append_together(1, 2, 3, client="second", writer=8)
    alone = replica.append_together(1, client="alone", writer=9)
    replica.sync()
    assert replica.commit(1, 7, glsn=11)
    assert replica.sent == [
        ("first", AppendReplies(LSID, Epoch(2), 1, True, 10, tuple(first), (1, 2), (1, 1))),
        ("second", AppendReplies(LSID, Epoch(2), 1, True, 10, tuple(second), (3, 4, 5), (1, 1, 1))),
        ("alone", AppendReply(alone[0], LSID, 0, Epoch(2), GLSN(16), LLSN(6), 1, 1, True)),
    ]
    assert [replica.answer(request) for request in (*first, *second, *alone)] == [f"GLSN {n}" for n in range(11, 17)]


def test_O1_answers_that_come_together_say_what_each_would_say() -> None:
    replica = Replica().run((ME, OTHER))
    requests = [replica.append(1, b"a", b"b"), replica.append(2), replica.append(3, b"c", b"d", b"e")]
    replica.sync()
    replica.commit(1, 7, glsn=31)
    (replies,) = replica.messages(AppendReplies)
    assert list(replies.each()) == [
        AppendReply(requests[0], LSID, 0, Epoch(2), GLSN(31), LLSN(1), 2, 2, True),
        AppendReply(requests[1], LSID, 0, Epoch(2), GLSN(33), LLSN(3), 1, 2, True),
        AppendReply(requests[2], LSID, 0, Epoch(2), GLSN(34), LLSN(4), 3, 2, True),
    ]
