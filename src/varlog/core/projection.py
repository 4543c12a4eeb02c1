"""The projection of a topic that a sequencer orders (S2): which position lies where, under one epoch.

Positions are striped over log streams in *blocks*: so many consecutive positions for one log stream, as many for the
next. A change of the log streams begins a new *stripe*, from the position on at which the sequencer of that epoch
starts; what lies before stays where it is. Each log stream has a *chain* of storage nodes, from head to tail. Chains
are given per log stream (S11 b); nodes that form one replica group (S11 a) share their chains' members, each in an
order of its own, so that heads are spread.

The sequencer is named with its boot: one that was started again has forgotten what it gave out, and is another one.

What must always hold: stripes ascend and reach from the first position on; every log stream of a stripe has a chain;
a chain has no node twice; a grant, and so a batch, lies within one block (rule 24).
"""

from __future__ import annotations

from typing import Final

import msgspec

from varlog import errors, limits
from varlog.types import GLSN, Epoch, LogStreamID, StorageNodeID

NEVER: Final = GLSN((1 << 63) - 1)
"""Beyond every position."""
MAX_EPOCH: Final = Epoch(1 << 62)


class Stripe(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """From `begin` on, up to the next stripe, blocks of positions go to these log streams in turn."""

    begin: GLSN
    block: int
    lsids: tuple[LogStreamID, ...]


class Chain(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The replicas of a log stream, head first."""

    lsid: LogStreamID
    nodes: tuple[StorageNodeID, ...]

    @property
    def head(self) -> StorageNodeID:
        return self.nodes[0]

    @property
    def tail(self) -> StorageNodeID:
        return self.nodes[-1]


class Projection(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """See the module's text."""

    epoch: Epoch
    sequencer: str
    """Where it listens,"""
    boot: int
    """and which start of it is meant."""
    start: GLSN
    """The first position it gives out in this epoch. What an earlier epoch gave out from here on never happened."""
    time: int
    """No position it gives out has an earlier time, in microseconds."""
    stripes: tuple[Stripe, ...]
    chains: tuple[Chain, ...]

    def chain(self, lsid: LogStreamID) -> Chain:
        for chain in self.chains:
            if chain.lsid == lsid:
                return chain
        raise errors.UnknownLogStream(f"log stream {lsid} has no chain in epoch {self.epoch}")

    def stream_of(self, glsn: GLSN) -> LogStreamID:
        """The log stream a position belongs to."""
        stripe, _ = self._stripe(glsn)
        return stripe.lsids[(glsn - stripe.begin) // stripe.block % len(stripe.lsids)]

    def block_end(self, glsn: GLSN) -> GLSN:
        """The end of the block a position lies in."""
        stripe, end = self._stripe(glsn)
        return GLSN(min(end, glsn + stripe.block - (glsn - stripe.begin) % stripe.block))

    def own_from(self, lsid: LogStreamID, glsn: GLSN) -> GLSN:
        """The first position at or above `glsn` that belongs to a log stream; NEVER if there is none."""
        for number, stripe in enumerate(self.stripes):
            end = self.stripes[number + 1].begin if number + 1 < len(self.stripes) else NEVER
            if end <= glsn or lsid not in stripe.lsids:
                continue
            at: int = max(glsn, stripe.begin)
            width = stripe.block * len(stripe.lsids)
            into = (at - stripe.begin) % width - stripe.lsids.index(lsid) * stripe.block
            if not 0 <= into < stripe.block:
                at += -into if into < 0 else width - into
            if at < end:
                return GLSN(at)
        return NEVER

    def _stripe(self, glsn: GLSN) -> tuple[Stripe, GLSN]:
        """The stripe a position lies in, and its end."""
        end = NEVER
        for stripe in reversed(self.stripes):
            if stripe.begin <= glsn:
                return stripe, end
            end = stripe.begin
        raise errors.InvalidArgument(f"position {glsn} lies before the first stripe")


def check(projection: Projection) -> None:
    """Refuse what could not be one, whoever proposes it."""
    stripes, chains = projection.stripes, projection.chains
    if not (1 <= projection.epoch <= MAX_EPOCH and 1 <= projection.start < NEVER and stripes and chains):
        raise errors.InvalidArgument("a projection has an epoch and a start from 1 on, stripes and chains")
    if not 1 <= len(projection.sequencer) <= limits.MAX_ADDRESS or projection.boot < 0:
        raise errors.InvalidArgument("a projection names the address of a sequencer and which start of it is meant")
    if not 0 <= projection.time < NEVER:
        raise errors.InvalidArgument(f"a projection's time is in microseconds, not {projection.time}")
    if len(stripes) > limits.MAX_STRIPES:
        raise errors.LimitExceeded(f"a projection has at most {limits.MAX_STRIPES} stripes; trim the topic first")
    begins = [stripe.begin for stripe in stripes]
    if begins != sorted(set(begins)) or begins[0] < 1 or begins[-1] > projection.start:
        raise errors.InvalidArgument(f"stripes begin at {begins}: not in order, or beyond the start {projection.start}")
    known = {chain.lsid for chain in chains}
    if len(known) != len(chains):
        raise errors.InvalidArgument("a log stream has two chains")
    if unused := known.difference(*(stripe.lsids for stripe in stripes)):
        raise errors.InvalidArgument(f"log streams {sorted(unused)} have chains, and no stripe names them")
    for stripe in stripes:
        if not 1 <= stripe.block <= limits.MAX_STRIPE_BLOCK:
            raise errors.InvalidArgument(f"a stripe's block has 1 to {limits.MAX_STRIPE_BLOCK} positions")
        if not stripe.lsids or len(set(stripe.lsids)) != len(stripe.lsids) or not known.issuperset(stripe.lsids):
            raise errors.InvalidArgument(f"the stripe from {stripe.begin} on names log streams twice, or without chain")
    for chain in chains:
        if not 1 <= len(chain.nodes) <= limits.MAX_REPLICAS or len(set(chain.nodes)) != len(chain.nodes):
            raise errors.InvalidArgument(
                f"log stream {chain.lsid}: a chain has 1 to {limits.MAX_REPLICAS} different nodes, not {chain.nodes}"
            )


def check_follows(projection: Projection, before: Projection | None, trim: GLSN) -> None:
    """Refuse one that would lead astray: what was written stays where it is, until it is trimmed, and no position is
    given out twice."""
    start, begin = projection.start, projection.stripes[0].begin
    if start <= trim:
        raise errors.Conflict(f"positions up to {trim} are trimmed by now; the next one is not {start}")
    if before is None:
        if begin > trim + 1:
            raise errors.InvalidArgument(f"the topic begins at {trim + 1}, its first stripe only at {begin}")
        return
    if projection.epoch <= before.epoch:
        raise errors.InvalidArgument(f"epoch {projection.epoch} does not follow epoch {before.epoch}")
    if start < before.start or projection.time < before.time:
        raise errors.InvalidArgument(
            f"a start at {start}, time {projection.time}, lies before that of epoch {before.epoch}: {before.start}, "
            f"time {before.time}"
        )
    if begin > max(trim + 1, before.stripes[0].begin):
        raise errors.InvalidArgument(f"what lies before the stripe from {begin} on is not trimmed: {trim} is")
    written = [stripe for stripe in before.stripes if stripe.begin < start]
    kept = [stripe for stripe in projection.stripes if stripe.begin < start]
    if kept != written[len(written) - len(kept) :]:
        raise errors.InvalidArgument(f"the stripes below {start} are not those of epoch {before.epoch}")
