"""Who is told what when a cut commits batches: every client one message, however many of its appends are in the cut."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Seq

from varlog.core.address import Address
from varlog.core.messages import AppendReplies, AppendReply
from varlog.core.pending import Pending
from varlog.types import GLSN, LLSN, CommitContext, LogStreamID


def acknowledgements(
    lsid: LogStreamID, batches: Seq[Pending], cc: CommitContext, replicas: int, synced: bool
) -> Iterator[tuple[Address, AppendReply | AppendReplies]]:
    """The answers to those who wait for the batches of a cut."""
    if len(batches) == 1:
        (batch,) = batches
        for source, request in batch.waiters:
            llsn, count = batch.llsn, batch.count
            yield source, AppendReply(request, lsid, 0, cc.epoch, cc.glsn_begin, llsn, count, replicas, synced)
        return
    waiting: dict[Address, list[tuple[int, LLSN, int]]] = {}
    for batch in batches:
        for source, request in batch.waiters:
            answer = (request, batch.llsn, batch.count)
            if source in waiting:
                waiting[source].append(answer)
            else:
                waiting[source] = [answer]
    shift = cc.glsn_begin - cc.llsn_begin
    for source, answers in waiting.items():
        if len(answers) == 1:
            ((request, llsn, count),) = answers
            yield source, AppendReply(request, lsid, 0, cc.epoch, GLSN(llsn + shift), llsn, count, replicas, synced)
        else:
            columns = tuple(zip(*answers, strict=True))
            yield source, AppendReplies(lsid, cc.epoch, replicas, synced, shift, *columns)
