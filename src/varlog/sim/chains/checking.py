"""The properties that a run of the sequencer ordering must have.

Those that any log must have are judged by the checkers of the commit ordering, with what the tails of the chains hold
in place of what is committed, and junk as something that everybody has to agree on. What is added here:

- *chains*: what a member of a chain holds, the one before it holds too, and the same (rule 22); and nobody holds what
  its writer was told never happened;
- *dense*: up to the greatest tail that anybody was told, everything is written or junk (rule 24);
- *tails*: a tail is no less than what was known before, and no more than was given out;
- *unwritten*: nobody is told that nothing is written where somebody saw something before (S4);
- *times*: along the positions, times do not decrease.

What the witness saw comes with these: *given_out*, *sealed* and *one_projection*.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

from varlog import batch, errors
from varlog.sim.chains.witness import Witness
from varlog.sim.checkers import (
    OF_TRANSACTIONS,
    agreement,
    contiguous_subscriptions,
    exactly_once,
    liveness,
    real_time,
    trim,
)
from varlog.sim.evidence import CommittedBatch, Evidence, KnownBefore, ReplicaDump, payloads_of
from varlog.sim.history import Kind, Outcome
from varlog.sim.runner import Violation
from varlog.storage.writeonce import WriteOnceStorage
from varlog.types import GLSN


class HeldBatch(NamedTuple):
    """A batch that a replica holds."""

    glsn: int
    time: int
    epoch: int
    payloads: tuple[bytes, ...]
    is_junk: bool

    @property
    def end(self) -> int:
        return self.glsn + len(self.payloads)


@dataclass(frozen=True)
class Member:
    """What one member of a chain holds at the end."""

    lsid: int
    node: str
    trim: int
    batches: Sequence[HeldBatch]


@dataclass(frozen=True)
class ChainEvidence:
    """What is known of a run when it is over."""

    evidence: Evidence
    """With the tails as replicas."""
    chains: Sequence[Sequence[Member]]
    """Head first."""
    witness: Witness


def held_by(storage: WriteOnceStorage) -> tuple[list[HeldBatch], errors.Corrupt | None]:
    """All that a replica holds, and what is wrong with the rest if something is."""
    found: list[HeldBatch] = []
    at = GLSN(storage.trim + 1)
    while at < storage.end:
        try:
            stored = storage.read(at, 1 << 20)
        except errors.Corrupt as error:
            return found, error
        if not stored:
            break
        for one in stored:
            record = batch.decode(one.batch)
            is_junk = bool(record.flags & batch.BatchFlag.JUNK)
            found.append(HeldBatch(one.glsn, one.time, one.epoch, tuple(payloads_of(record, one.glsn)), is_junk))
        at = GLSN(found[-1].end)
    return found, None


def as_replica(topic: int, tail: Member) -> ReplicaDump:
    """The tail of a chain, as a replica that has committed all it has."""
    batches = [CommittedBatch(b.glsn, b.glsn, b.epoch, b.payloads) for b in tail.batches]
    end = tail.batches[-1].end if tail.batches else 1
    return ReplicaDump(topic, tail.lsid, tail.node, batches, end, tail.trim)


def prefix_end(tails: Sequence[Member], trim: int) -> int:
    """The last position up to which everything is written or junk."""
    held = {glsn for tail in tails for b in tail.batches for glsn in range(b.glsn, b.end)}
    at = trim + 1
    while at in held:
        at += 1
    return at - 1


def check_all(known: ChainEvidence) -> list[Violation]:
    """Every violation, with the name of the checker that found it."""
    of_any_log = [(name, words) for name, check in _OF_ANY_LOG.items() for words in check(known.evidence)]
    of_chains = [(name, words) for name, check in OF_CHAINS.items() for words in check(known)]
    return [*known.witness.violations, *of_any_log, *of_chains]


def _check_chains(known: ChainEvidence) -> Iterator[str]:
    rejected = {
        payload: op
        for op in known.evidence.history.of(Kind.APPEND)
        if op.outcome is Outcome.REJECTED
        for payload in op.payloads
    }
    for chain in known.chains:
        for member in chain:
            for one in member.batches:
                for payload in one.payloads:
                    if payload in rejected:
                        yield f"{member.node} holds at {one.glsn} what never happened: {rejected[payload]}"
        for before, after in pairwise(chain):
            held = {one.glsn: one for one in before.batches}
            for one in after.batches:
                other = held.get(one.glsn)
                if one.glsn > before.trim and (other is None or other[:2] + other[3:] != one[:2] + one[3:]):
                    what = "nothing" if other is None else f"{other.payloads[0][:40]!r} of {len(other.payloads)}"
                    yield (
                        f"log stream {one.glsn}: {after.node} holds {one.payloads[0][:40]!r} of {len(one.payloads)} at "
                        f"{one.glsn}, and {before.node}, before it in the chain of log stream {after.lsid}, {what}"
                    )


def _check_dense(known: ChainEvidence) -> Iterator[str]:
    tails = [op for op in known.evidence.history.of(Kind.TAIL) if op.outcome is Outcome.OK]
    if not tails:
        return
    greatest = max(tails, key=lambda op: op.glsn)
    end = prefix_end([chain[-1] for chain in known.chains if chain], known.evidence.trim(greatest.topic))
    if end < greatest.glsn:
        yield f"{greatest}, but the log is written without a hole only up to {end}"


def _check_tails(known: ChainEvidence) -> Iterator[str]:
    history = known.evidence.history
    told = {topic: KnownBefore(history, topic) for topic in known.evidence.topics}
    for tail in history.of(Kind.TAIL):
        if tail.outcome is not Outcome.OK or tail.topic not in told:
            continue
        before = told[tail.topic].at(tail.invoked)
        if before is not None and tail.glsn < before[0]:
            yield f"{tail} is below {before[0]}, known before it began: {before[1]}"
        if tail.glsn > known.witness.granted:
            yield f"{tail} is above {known.witness.granted}, the last position that was ever given out"


def _check_unwritten(known: ChainEvidence) -> Iterator[str]:
    history = known.evidence.history
    unwritten = [op for op in history.of(Kind.READ) if op.error == errors.Unwritten.__name__]
    if not unwritten:
        return
    seen: dict[int, float] = {}
    tails: list[tuple[float, int]] = []
    for op in history.operations:
        if op.outcome is not Outcome.OK:
            continue
        if op.kind is Kind.TAIL:
            tails.append((op.completed, op.glsn))
        elif op.kind in (Kind.APPEND, Kind.READ, Kind.DELIVERY):
            first = op.position if op.kind is Kind.READ else op.glsn
            for glsn in range(first, first + len(op.payloads)):
                seen[glsn] = min(seen.get(glsn, op.completed), op.completed)
    for read in unwritten:
        if seen.get(read.position, read.invoked) < read.invoked:
            yield f"{read} was told that nothing is written there, and somebody had seen something"
        if any(completed < read.invoked and read.position <= glsn for completed, glsn in tails):
            yield f"{read} was told that nothing is written there, and a tail had been beyond it"


def _check_times(known: ChainEvidence) -> Iterator[str]:
    held = sorted(one for chain in known.chains if chain for one in chain[-1].batches if not one.is_junk)
    for before, after in pairwise(held):
        if after.time < before.time:
            yield f"time {after.time} at {after.glsn}, after {before.time} at {before.glsn}"


_OF_ANY_LOG: Final[Mapping[str, Callable[[Evidence], list[str]]]] = {
    "agreement": agreement.check,
    "real_time": real_time.check,
    "exactly_once": exactly_once.check,
    "contiguous_subscriptions": contiguous_subscriptions.check,
    "trim": trim.check,
    "liveness": liveness.check,
    **{module.__name__.rpartition(".")[2]: module.check for module in OF_TRANSACTIONS},
}
OF_CHAINS: Final[Mapping[str, Callable[[ChainEvidence], Iterator[str]]]] = {
    "chains": _check_chains,
    "dense": _check_dense,
    "tails": _check_tails,
    "unwritten": _check_unwritten,
    "times": _check_times,
}
