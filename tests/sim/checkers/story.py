"""Hand-built evidence: a story in which everything is right, to be spoiled in one place by each test.

The good story has one topic, 1, with log stream 10 on nodes x and y and log stream 11 on node z. Its log is

    GLSN     1    2    3    4    5
    payload  a    b    c    d    e
    LSID     10   10   11   10   10     (b alone, d and e one batch)

a is trimmed. A writer w1 appended a, b and the batch d e, w2 appended c (and f, which was rejected, and g, whose fate
is unknown and which is not in the log). A reader read b, a subscriber got everything from 2 on, a peeker saw 0, 3, 5.
"""

from __future__ import annotations

import math
from dataclasses import replace

from varlog.batch.transactions import Verdict, VerdictKind
from varlog.sim.checkers import CHECKERS
from varlog.sim.evidence import (
    CommittedBatch,
    Durability,
    Evidence,
    Frames,
    LivenessPhase,
    ReplicaDump,
    Sighting,
    TopicState,
)
from varlog.sim.history import History, Kind, Operation, Outcome
from varlog.sim.ledger import Spoken
from varlog.types import GLSN, TransactionID

TOPIC = 1

EPOCH = 2


class Story:
    """Evidence in the making; times are given by hand."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self.replicas: list[ReplicaDump] = []
        self.topics: dict[int, TopicState] = {}
        self.frames = Frames()
        self.durability = Durability()
        self.decided: list[Sighting] = []
        self.liveness: LivenessPhase | None = None
        self.verdicts: list[Spoken] = []

    def add(self, client: str, kind: Kind, invoked: float, completed: float = math.inf, **fields: object) -> Operation:
        given = {"outcome": Outcome.PENDING if completed == math.inf else Outcome.OK, **fields}
        operation = Operation(len(self.operations) + 1, client, kind, TOPIC, invoked, completed, **given)  # type: ignore[arg-type]
        self.operations.append(operation)
        return operation

    def append(self, client: str, invoked: float, completed: float, glsn: int, *payloads: bytes) -> Operation:
        return self.add(client, Kind.APPEND, invoked, completed, glsn=glsn, payloads=payloads)

    def read(self, client: str, invoked: float, completed: float, glsn: int, payload: bytes) -> Operation:
        return self.add(client, Kind.READ, invoked, completed, position=glsn, payloads=(payload,))

    def tail(self, client: str, invoked: float, completed: float, glsn: int) -> Operation:
        return self.add(client, Kind.TAIL, invoked, completed, glsn=glsn)

    def deliver(self, parent: Operation, time: float, glsn: int, *payloads: bytes) -> Operation:
        return self.add(parent.client, Kind.DELIVERY, time, time, glsn=glsn, payloads=payloads, parent=parent.id)

    def pass_over(self, parent: Operation, time: float, glsn: int, end: int) -> Operation:
        return self.add(parent.client, Kind.PASS, time, time, glsn=glsn, end=end, parent=parent.id)

    def verdict(self, kind: VerdictKind, glsn: int, txid: int, after: int, invoked: float, *parts: int) -> Operation:
        """One is appended; each of the parts has one entry."""
        counted = tuple((part, 1) for part in parts)
        checked = GLSN(glsn - 1 if kind is VerdictKind.COMMIT else 0)
        verdict = Verdict(kind, TransactionID(txid), GLSN(after), counted, checked=checked)
        self.verdicts.append(Spoken(glsn, verdict))
        is_commit = kind is VerdictKind.COMMIT
        fields = {"glsn": glsn, "transaction": txid, "is_commit": is_commit}
        return self.add("x", Kind.VERDICT, invoked, invoked + 0.1, **fields)

    def replica(self, lsid: int, node: str, *batches: tuple[int, int, tuple[bytes, ...]], trim: int = 0) -> None:
        """Batches as (llsn, glsn, payloads)."""
        dump = [CommittedBatch(llsn, glsn, EPOCH, payloads) for llsn, glsn, payloads in batches]
        end = dump[-1].llsn + len(dump[-1].payloads) if dump else 1
        self.replicas.append(ReplicaDump(TOPIC, lsid, node, dump, end, trim))

    def change_replica(self, index: int, **changes: object) -> None:
        self.replicas[index] = replace(self.replicas[index], **changes)  # type: ignore[arg-type]

    def change_topic(self, **changes: object) -> None:
        self.topics[TOPIC] = replace(self.topics[TOPIC], **changes)  # type: ignore[arg-type]

    def evidence(self) -> Evidence:
        history = History(lambda: math.inf, self.operations)
        return Evidence(
            history,
            self.topics,
            self.replicas,
            self.frames,
            self.durability,
            self.decided,
            self.liveness,
            self.verdicts,
        )

    def complaints(self, checker: str) -> str:
        """What one checker says, in one string; empty if it is content."""
        return "\n".join(CHECKERS[checker](self.evidence()))

    def find(self, kind: Kind, number: int = 0) -> Operation:
        """An operation of the good story, to be spoiled."""
        return [op for op in self.operations if op.kind is kind][number]


def good_story() -> Story:
    story = Story()
    story.tail("p", 0.0, 0.5, 0)
    story.append("w1", 1.0, 2.0, 1, b"a").lsid = 10
    story.append("w1", 2.1, 3.0, 2, b"b").lsid = 10
    story.append("w2", 2.2, 3.1, 3, b"c").lsid = 11
    subscription = story.add("s", Kind.SUBSCRIBE, 1.5, position=2)
    story.deliver(subscription, 3.2, 2, b"b", b"c")
    story.tail("p", 3.2, 3.3, 3)
    story.add("w2", Kind.APPEND, 3.2, 3.4, payloads=(b"f",), outcome=Outcome.REJECTED)
    story.add("w2", Kind.APPEND, 3.5, 4.0, payloads=(b"g",), outcome=Outcome.UNKNOWN)
    story.add("t", Kind.TRIM, 4.0, 4.1, position=1)
    story.add("t", Kind.READ, 4.2, 4.3, position=1, outcome=Outcome.ERROR, error="Trimmed", first=2)
    story.read("r", 4.2, 4.3, 2, b"b")
    story.append("w1", 5.0, 6.0, 4, b"d", b"e").lsid = 10
    story.deliver(subscription, 6.1, 4, b"d", b"e")
    story.tail("p", 6.1, 6.2, 5)
    scan = story.add("r", Kind.SCAN, 6.2, 6.4, position=2, end=4)
    story.deliver(scan, 6.3, 2, b"b", b"c")
    story.replica(10, "x", (2, 2, (b"b",)), (3, 4, (b"d", b"e")), trim=1)
    story.replica(10, "y", (1, 1, (b"a",)), (2, 2, (b"b",)))
    story.replica(11, "z", (1, 3, (b"c",)), trim=1)
    story.topics[TOPIC] = TopicState(hwm=5, trim=1, ends={10: 5, 11: 2})
    for node in "xy":
        story.frames.saw(10, EPOCH, 1, 1, b"A", node)
        story.frames.saw(10, EPOCH, 2, 1, b"B", node)
    story.frames.saw(10, EPOCH, 3, 2, b"DE", "x")
    story.frames.saw(10, EPOCH + 2, 3, 1, b"G", "y")
    story.liveness = LivenessPhase(healed=4.5, ended=10.0, grace=1.0, writers=["w1"])
    return story


COMMITTED, FENCED, NEXT = 41, 42, 43
"""Transactions of the transactional story."""


def transactional_story() -> Story:
    """Three transactions of the name n, all from position 10 on:

        GLSN     11    12    13      14       15    16      17
        what     a 1   a 2   a late  COMMIT   b     ABORT   c
                 of 41 of 41 of 41   of 41    of 42 of 42   of 43

    The first, number 1, counts its parts 1 and 2 in, and not 3. The second, number 2, is fenced by the third, which is
    number 2 as well and is still open. A subscriber has seen 11 and 12 and passed over 13 to 16; there it waits.
    """
    story = Story()
    _begin(story, 1.0, COMMITTED, 10, 1)
    for glsn, part, payload in ((11, 1, b"a 1"), (12, 2, b"a 2"), (13, 3, b"a late")):
        _append(story, 2.0 + glsn / 100, COMMITTED, part, glsn, payload)
    story.verdict(VerdictKind.COMMIT, 14, COMMITTED, 10, 3.0, 1, 2)
    parts = ((1, 1), (2, 1))
    story.add("w", Kind.COMMIT, 2.9, 3.5, transaction=COMMITTED, parts=parts, glsn=14)
    subscription = story.add("s", Kind.SUBSCRIBE, 1.0, position=11)
    story.deliver(subscription, 3.4, 11, b"a 1", b"a 2")
    story.pass_over(subscription, 3.6, 13, 15)
    _begin(story, 4.0, FENCED, 14, 2)
    _append(story, 4.5, FENCED, 1, 15, b"b")
    story.verdict(VerdictKind.ABORT, 16, FENCED, 14, 5.0)
    _begin(story, 4.9, NEXT, 15, 2)
    story.add("w", Kind.COMMIT, 5.0, 5.5, transaction=FENCED, outcome=Outcome.ERROR, error="TransactionAborted")
    story.pass_over(subscription, 5.6, 15, 17)
    _append(story, 6.0, NEXT, 1, 17, b"c")
    story.add("w", Kind.BEGIN, 7.0, 7.1, name="n", number=1, outcome=Outcome.ERROR, error="AlreadyCommitted", glsn=14)
    return story


def _begin(story: Story, invoked: float, txid: int, after: int, number: int) -> None:
    story.add("w", Kind.BEGIN, invoked, invoked + 0.2, transaction=txid, glsn=after, name="n", number=number)


def _append(story: Story, invoked: float, txid: int, part: int, glsn: int, payload: bytes) -> None:
    fields = {"transaction": txid, "part": part, "glsn": glsn, "payloads": (payload,)}
    story.add("w", Kind.APPEND, invoked, invoked + 0.1, **fields)
