"""Sketches of a topic that a sequencer orders: its projection, and what is written at the tails of its chains."""

from __future__ import annotations

from collections.abc import Mapping

from tests.core.sketch import TOPIC
from varlog.core.messages import ChainPart, ChainRead, Digest, GetDigest, Metadata, NodeInfo, StoredLine, TopicInfo
from varlog.core.projection import Chain, Projection, Stripe, check
from varlog.types import GLSN, Epoch, LogStreamID, Ordering, StorageNodeID, Version

SEQUENCER = "127.0.0.1:9100"


def projection(
    chains: Mapping[int, tuple[int, ...]],
    *,
    epoch: int = 1,
    block: int = 4,
    start: int = 1,
    stripes: tuple[tuple[int, tuple[int, ...]], ...] | None = None,
) -> Projection:
    """Log streams with their chains; `stripes` as (begin, log streams), or one over all of them."""
    made = Projection(
        Epoch(epoch),
        SEQUENCER,
        7,
        GLSN(start),
        0,
        tuple(
            Stripe(GLSN(begin), block, tuple(map(LogStreamID, lsids))) for begin, lsids in stripes or ((1, (*chains,)),)
        ),
        tuple(Chain(LogStreamID(lsid), tuple(map(StorageNodeID, nodes))) for lsid, nodes in chains.items()),
    )
    check(made)
    return made


def metadata(version: int, projected: Projection | None, *, trim: int = 0) -> Metadata:
    nodes = {snid for chain in projected.chains for snid in chain.nodes} if projected is not None else set()
    topic = TopicInfo(TOPIC, "topic", GLSN(0), GLSN(trim), 3, 1, "", Ordering.SEQUENCER, 4, projected)
    return Metadata(0, Version(version), tuple(NodeInfo(snid) for snid in sorted(nodes)), (topic,), ())


def line(glsn: int, count: int = 1, *, epoch: int = 1, time: int = 5, data: bytes = b"x") -> StoredLine:
    return (glsn, glsn, count, epoch, 0, time, data)


class Tail:
    """What is written at the tail of a chain."""

    def __init__(self) -> None:
        self.lines: dict[int, StoredLine] = {}
        self.writes = 0
        self.trim = 0

    def write(self, glsn: int, count: int = 1, data: bytes = b"x") -> None:
        assert all(n not in self._covered() for n in range(glsn, glsn + count)), "written twice"
        self.lines[glsn] = line(glsn, count, data=data)
        self.writes += 1

    def _covered(self) -> set[int]:
        return {n for glsn, found in self.lines.items() for n in range(glsn, glsn + found[2])}

    @property
    def end(self) -> int:
        return max((glsn + found[2] for glsn, found in self.lines.items()), default=0)

    def answers(self, read: ChainRead) -> bool:
        """Whether a read is answered now."""
        return not read.wait or read.seen != self.writes or read.glsn in self._covered()

    def part(self, read: ChainRead) -> ChainPart:
        found: list[StoredLine] = []
        size = 0
        for _, stored in sorted(self.lines.items()):
            if stored[0] + stored[2] > read.glsn and (not found or size < read.max_bytes):
                found.append(stored)
                size += len(stored[6])
        return ChainPart(read.request, read.lsid, 0, read.epoch, tuple(found), GLSN(self.end), self.writes)

    def digest(self, asked: GetDigest) -> Digest:
        assert asked.runs
        runs: list[tuple[int, int]] = []
        for glsn, stored in sorted(self.lines.items()):
            if glsn + stored[2] <= asked.glsn:
                continue
            if runs and sum(runs[-1]) == glsn:
                runs[-1] = (runs[-1][0], runs[-1][1] + stored[2])
            else:
                runs.append((glsn, stored[2]))
        lines = tuple((begin, count, 0, 0) for begin, count in runs)
        end = GLSN(self.end)
        return Digest(asked.request, asked.lsid, 0, asked.epoch, lines, end, end, GLSN(self.trim))
