"""Rules of the sequencer ordering broken on purpose, as `mutations` does it for the commit ordering."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Any

import pytest
from msgspec.structs import replace

from tests.sim.mutations import Mutation
from varlog.core import projecting, reconfiguring
from varlog.core.address import Address
from varlog.core.chaincopying import Copy
from varlog.core.chainpushing import Chains
from varlog.core.chainreplica import ChainReplica
from varlog.core.filling import NOBODY
from varlog.core.frontiers import Frontiers, Gap
from varlog.core.mending import Mending
from varlog.core.messages import ChainSeal, Peeked, Refusal, StoredLine, Tail, TopicInfo
from varlog.core.projection import Chain, Projection
from varlog.core.writeoncelog import Held
from varlog.types import GLSN

_EVERYTHING = GLSN(1 << 40)


def _written_again_in_a_later_epoch(patch: pytest.MonkeyPatch) -> None:
    """A client takes its positions along to the next epoch, where others may be given them."""

    def renew(self: Chains, projection: Projection, now: float) -> None:
        runs, self._runs = self._runs, {}
        self.is_troubled = self._seen > projection.epoch
        for run in runs.values():
            nodes = projection.chain(run.lsid).nodes
            self._start(run.kind, run.asker, run.lsid, nodes, list(run.items()), run.deadline, now)

    patch.setattr(Chains, "_renew", renew)


def _given_out_again(patch: pytest.MonkeyPatch) -> None:
    """A new sequencer starts where the one before it did."""
    build = reconfiguring._build

    def build_low(metadata: Any, topic: TopicInfo, *rest: Any) -> Projection:
        built = build(metadata, topic, *rest)
        return built if topic.projection is None else replace(built, start=topic.projection.start)

    patch.setattr(reconfiguring, "_build", build_low)


def _later_replica_wins(patch: pytest.MonkeyPatch) -> None:
    """What the head has already is written over in the replicas after it; what those have is believed."""
    sort_out = Chains._sort_out

    def sort_out_later(self: Chains, run: Any, refused: Seq[Refusal], now: float) -> bool:
        if run.stage == 0:
            return True
        run.stage = 0
        return sort_out(self, run, refused, now)

    patch.setattr(Chains, "_sort_out", sort_out_later)


def _returner_joins_at_the_head(patch: pytest.MonkeyPatch) -> None:
    """One that comes back keeps what the tail does not have, and stands before it."""
    build, reconcile, take = reconfiguring._build, Copy._reconcile, Copy._take

    def build_turned(*given: Any) -> Projection:
        built = build(*given)
        joined = given[5]
        chains = [Chain(c.lsid, (*joined.get(c.lsid, ()), *c.nodes)) for c in built.chains]
        return replace(built, chains=tuple(Chain(c.lsid, tuple(dict.fromkeys(c.nodes))) for c in chains))

    def keep(self: Copy, here: Seq[Held], there: Seq[Held]) -> None:
        free = [t for t in there if not any(h.glsn < t.glsn + t.count and t.glsn < h.glsn + h.count for h in here)]
        reconcile(self, [], free)

    def take_new(self: Copy, lines: Seq[StoredLine]) -> None:
        held = self.replica.log.held
        take(self, [line for line in lines if held(GLSN(line[0]), GLSN(line[0] + line[2])) is None])

    patch.setattr(reconfiguring, "_build", build_turned)
    patch.setattr(projecting, "check_order", lambda *_: None)
    patch.setattr(Copy, "_reconcile", keep)
    patch.setattr(Copy, "_take", take_new)


def _fill_above_peek(patch: pytest.MonkeyPatch) -> None:
    """What is to be filled is not held against what was given out."""
    on_reply = Mending.on_reply

    def believe(self: Mending, reply: Peeked | Tail, now: float) -> None:
        on_reply(self, replace(reply, glsn=_EVERYTHING) if isinstance(reply, Peeked) else reply, now)

    patch.setattr(Mending, "on_reply", believe)


def _impatient_without_rule_21(patch: pytest.MonkeyPatch) -> None:
    """Readers fill at once; a writer that met another epoch does not look what became of its positions."""
    renew = Chains._renew

    def forget(self: Chains, projection: Projection, now: float) -> None:
        for run in self._runs.values():
            if not run.asker.takes_junk:
                for id_, glsn in zip(run.ids, run.glsns, strict=True):
                    run.asker.on_lost(id_, GLSN(glsn))
                run.asker = NOBODY
        renew(self, projection, now)

    def at_once(self: Frontiers, gap: Gap, _now: float) -> bool:
        return gap.begin < self._until()

    patch.setattr(Chains, "_renew", forget)
    patch.setattr(Frontiers, "_is_due", at_once)


def _seal_does_not_cancel(patch: pytest.MonkeyPatch) -> None:
    """What was queued before a seal is neither counted by it nor cancelled, and answered afterwards."""
    seal = ChainReplica.seal

    def seal_only(self: ChainReplica, source: Address, message: ChainSeal) -> None:
        writes, end, before = self._writes, self.durable_end, self._seal
        self._writes = type(writes)()
        seal(self, source, message)
        self._writes = writes
        if self._seal is not None and self._seal is not before:
            self._seal = self._owed = self._seal._replace(end=end)

    patch.setattr(ChainReplica, "seal", seal_only)


MUTATIONS = (
    Mutation("positions written again in a later epoch", "given_out", _written_again_in_a_later_epoch, 1),
    Mutation("positions given out again in a later epoch", "real_time", _given_out_again, 1),
    Mutation("err_written of a later replica wins", "chains", _later_replica_wins, 1),
    Mutation("returner joins at the head without wiping", "chains", _returner_joins_at_the_head, 22),
    Mutation("fill above peek", "given_out", _fill_above_peek, 1),
    Mutation("fill without waiting, without rule 21", "exactly_once", _impatient_without_rule_21, 1),
    Mutation("seal does not cancel what is queued", "sealed", _seal_does_not_cancel, 2),
)
