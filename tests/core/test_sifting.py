"""What is told to who asks for verdicts only: those, and the positions of all the rest."""

from __future__ import annotations

from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from tests.core.chains import CLIENT, Member
from tests.core.chains import LSID as CHAINED
from tests.core.paperverdicts import Batch, abort, commit, mark
from tests.core.replica import LSID, ME, Replica
from tests.core.sketch import TOPIC, metadata, stream
from varlog.core.branches import ignore
from varlog.core.merging import Chunk
from varlog.core.messages import ChainPart, ChainRead, Message, Scan, ScanReply, StoredLine
from varlog.core.routing import Routing
from varlog.core.sifting import MOST_POSITIONS, sifted
from varlog.core.storagenode import ReadPlan, StorageNode
from varlog.core.subscribing import Subscription
from varlog.types import GLSN, Epoch, LogStreamID


def told(*batches: Batch) -> list[tuple[int, int, int]]:
    """Position, count, and size of the batch."""
    return [(line[0], line[2], len(line[6])) for line in sifted(each.line for each in batches)]


def test_verdicts_are_told_whole_and_the_rest_by_its_positions() -> None:
    verdict = Batch(6, verdict=abort(7, 1))
    found = sifted(each.line for each in (Batch(1, 2), Batch(3, 3, mark(7, 1)), verdict, Batch(7), Batch(9)))
    assert [(line[0], line[2]) for line in found] == [(1, 5), (6, 1), (7, 1), (9, 1)]
    assert found[1] == verdict.line
    assert [len(line[6]) for line in found if line[0] != 6] == [0, 0, 0]


def test_verdicts_that_follow_each_other_stay_apart() -> None:
    assert [line[:2] for line in told(Batch(1, verdict=abort(7, 0)), Batch(2, verdict=commit(8, 0, 0)))] == [
        (1, 1),
        (2, 1),
    ]


def test_a_line_for_several_has_the_time_of_the_last() -> None:
    (line,) = sifted(each.line for each in (Batch(1, time=5), Batch(2, time=9)))
    assert line[5] == 9


def test_no_line_has_more_positions_than_can_be_sent() -> None:
    half: StoredLine = (1, 1, MOST_POSITIONS // 2, 2, 1, 0, b"")
    lines = [(half[0] + i * half[2], *half[1:]) for i in range(3)]
    assert [line[2] for line in sifted(lines)] == [half[2], half[2], half[2]]


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 3), st.booleans()), max_size=12))
def test_sifting_leaves_out_no_position_and_adds_none(pieces: list[tuple[int, int, bool]]) -> None:
    batches, at = [], 1
    for gap, entries, is_verdict in pieces:
        batches.append(Batch(at + gap, verdict=abort(1, 0)) if is_verdict else Batch(at + gap, entries))
        at = batches[-1].end
    lines = [each.line for each in batches]
    once = sifted(lines)
    positions = [glsn for line in once for glsn in range(line[0], line[0] + line[2])]
    assert positions == [glsn for each in batches for glsn in range(each.glsn, each.end)]
    assert [line for line in once if line[6]] == [each.line for each in batches if each.verdict is not None]
    assert sifted(once) == once


LOG = [Batch(1, 2), Batch(3, 1, mark(7, 2)), Batch(4, verdict=abort(7, 2)), Batch(5)]
TOLD = [(1, 3, b""), (4, 1, LOG[2].line[6]), (5, 1, b"")]


def parts(lines: tuple[StoredLine, ...]) -> list[tuple[int, int, bytes]]:
    return [(line[0], line[2], bytes(line[6])) for line in lines]


def test_a_storage_node_sifts_what_it_has_read() -> None:
    replica = Replica().run()
    node = StorageNode(ME, 5, replica.send, ignore)
    for wanted in (True, False):
        scan = Scan(1, LSID, GLSN(1), 1 << 20, False, wanted)
        plan = ReadPlan("reader", scan, replica.executor, GLSN(6), GLSN(5))
        node.finish_scan(plan, [each.line for each in LOG])
    sifted_reply, whole = replica.messages(ScanReply)
    assert (parts(sifted_reply.batches), sifted_reply.complete_to) == (TOLD, 5)
    assert parts(whole.batches) == parts(tuple(each.line for each in LOG))


def test_a_replica_of_a_chain_sifts_what_it_has_read() -> None:
    member = Member()
    member.seal(1)
    member.write_all([(each.glsn, bytes(each.line[6])) for each in LOG], time=5)
    member.sync()
    member.sent.clear()
    question = ChainRead(9, CHAINED, Epoch(1), GLSN(1), 1 << 20, verdicts=True)
    assert not member.replica.is_readable(question), "it goes the long way"
    member.receive(CLIENT, question)
    member.read_plans()
    part = member.answer(ChainPart, 9)
    assert (parts(part.batches), part.end) == (TOLD, 6)


def test_rule11_log_streams_that_were_sifted_are_merged_like_any_others() -> None:
    """And what is held of one that is ahead is bounded, though its lines hold next to nothing."""
    routing, sent, delivered = Routing(), list[Scan](), list[Chunk]()
    requests = count(1)

    def send(_: str, message: Message) -> None:
        assert isinstance(message, Scan)
        sent.append(message)

    subscription = Subscription(
        TOPIC, GLSN(1), None, routing, lambda: next(requests), send, delivered.append, lambda _: None, ignore,
        reply_bytes=1000, verdicts=True,
    )  # fmt: skip
    routing.update(metadata(1, stream(1), stream(2)))
    subscription.on_metadata(0.0)
    assert [scan.verdicts for scan in sent] == [True, True]

    def answer(lsid: int, *batches: Batch) -> None:
        scan = [scan for scan in sent if scan.lsid == lsid][-1]
        lines = tuple(sifted(each.line for each in batches))
        last = batches[-1].end - 1
        subscription.on_reply(ScanReply(scan.request, LogStreamID(lsid), 0, lines, GLSN(last)), 0.0)

    answer(1, *[Batch(glsn) for glsn in range(2, 12, 2)])
    assert len(sent) == 2, "five lines are enough while the other log stream says nothing"
    answer(2, *[Batch(glsn, verdict=abort(7, 0)) if glsn == 5 else Batch(glsn) for glsn in range(1, 12, 2)])
    assert [(chunk.glsn, bool(chunk.stored[6])) for chunk in delivered] == [(g, g == 5) for g in range(1, 12)]
    assert len(sent) == 4
