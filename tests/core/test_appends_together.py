"""Appends that arrive together are taken as if they had come one by one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.replica import LSID, ME, OTHER, PATH, Replica, batch_of
from varlog import limits
from varlog.core.dedup import DedupTable
from varlog.core.messages import Append, AppendReply, Message, Replicate
from varlog.core.storagenode import StorageNode
from varlog.errors import Busy, FateExpired, Sealed, SequenceGap
from varlog.types import LLSN, Epoch, LogStreamID, Sequence


class Primary:
    """A node with one replica, and what it was told so far."""

    def __init__(self) -> None:
        self.replica = Replica(dedup=DedupTable(per_writer=4, total=8)).run((ME, OTHER))
        self.node = StorageNode(ME, 1, self.replica.send, self.replica.branches.append)
        self.node.add(self.replica.executor)

    def settle(self) -> None:
        self.node.flush(0.0)
        self.node.stage()
        self.replica.sync()

    def commit(self) -> None:
        executor = self.replica.executor
        if executor.committed_end < executor.end:
            self.replica.commit(executor.committed_end, executor.end)

    def evidence(self) -> dict[str, Any]:
        """All that others or a restart could tell."""
        self.replica.sync()
        disk, executor = self.replica.disk, self.replica.executor
        sent: list[tuple[str, Message]] = self.replica.sent
        return {
            "sent": sorted(map(repr, sent)),
            "replicated": [message for _, message in sent if isinstance(message, Replicate)],
            "files": {name: disk.open(f"{PATH}/{name}").pread(1 << 20, 0) for name in disk.listdir(PATH)},
            "table": executor.dedup.snapshot(),
            "ends": (executor.committed_end, executor.durable_end, executor.end),
            "counted": (executor.batches, executor.entries, executor.bytes, executor.refused),
        }


APPENDS: st.SearchStrategy[dict[str, Any]] = st.builds(
    dict,
    writer=st.sampled_from([7, 7, 7, 8, 0]),
    sequence=st.sampled_from([1, 1, 1, 1, 1, 1, 0, 2]),  # how much more than the writer's last
    prev=st.sampled_from([0, 0, 0, 0, 0, 0, -1, 1]),
    epoch=st.sampled_from([2, 2, 2, 2, 2, 2, 0, 4]),
    lsid=st.sampled_from([LSID, LSID, LSID, LSID, LSID, 9]),
    horizon=st.sampled_from([1 << 40, 1 << 40, 1 << 40, 1]),
    damaged=st.sampled_from([False] * 9 + [True]),
    entries=st.integers(1, 3),
)


def messages_of(reads: list[tuple[list[dict[str, Any]], bool]]) -> list[list[Append]]:
    last, request, made = {7: 0, 8: 0, 0: 0}, 0, []
    for appends, _ in reads:
        read = []
        for a in appends:
            sequence = max(1, last[a["writer"]] + a["sequence"])
            prev = max(0, last[a["writer"]] + a["prev"])
            last[a["writer"]] = max(last[a["writer"]], sequence)
            data = batch_of(sequence, *[b"entry"] * a["entries"], writer=a["writer"])
            data = data[:-1] + b"!" if a["damaged"] else data
            request += 1
            ids = (request, LogStreamID(a["lsid"]), Epoch(a["epoch"]))
            read.append(Append(*ids, Sequence(prev), LLSN(a["horizon"]), data))
        made.append(read)
    return made


@given(st.lists(st.tuples(st.lists(APPENDS, min_size=1, max_size=12), st.booleans()), min_size=1, max_size=6))
def test_what_arrives_together_is_taken_as_one_by_one(reads: list[tuple[list[dict[str, Any]], bool]]) -> None:
    together, alone = Primary(), Primary()
    for messages, (_, commits) in zip(messages_of(reads), reads, strict=True):
        together.node.on_appends("client", messages, 0.0)
        for message in messages:
            alone.node.on_message("client", message, 0.0)
        for primary in (together, alone):
            primary.settle()
            if commits:
                primary.commit()
    assert together.evidence() == alone.evidence()


def test_of_what_is_too_much_the_beginning_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_UNCOMMITTED_BATCHES", 3)
    primary = Primary()
    messages = [Append(n, LSID, Epoch(2), Sequence(n - 1), LLSN(1), batch_of(n)) for n in range(1, 6)]
    primary.node.on_appends("client", messages, 0.0)
    primary.settle()
    assert primary.replica.executor.end == 4
    refused = primary.replica.messages(AppendReply)
    assert [(reply.request, reply.code) for reply in refused] == [(4, Busy.code), (5, SequenceGap.code)]


def append_of(sequence: int, *, writer: int = 7, epoch: int = 2, horizon: int = 1 << 40) -> Append:
    data = batch_of(sequence, writer=writer)
    return Append(sequence, LSID, Epoch(epoch), Sequence(sequence - 1), LLSN(horizon), data)


@pytest.mark.parametrize(
    ("second", "code"),
    [(append_of(2, writer=99, epoch=4), Sealed.code), (append_of(2, writer=99, horizon=1), FateExpired.code)],
    ids=["epoch", "horizon"],
)
def test_what_follows_a_new_one_may_still_not_be_taken(second: Append, code: int) -> None:
    primary = Primary()
    for writer in range(10, 20):  # more than the table keeps, so that it has a floor
        primary.node.on_appends("client", [append_of(1, writer=writer)], 0.0)
        primary.settle()
        primary.commit()
    primary.replica.sent.clear()
    primary.node.on_appends("client", [append_of(1, writer=99), second], 0.0)
    primary.settle()
    assert [(reply.request, reply.code) for reply in primary.replica.messages(AppendReply)] == [(2, code)]
