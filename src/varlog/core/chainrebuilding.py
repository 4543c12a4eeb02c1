"""Rebuilding topics that a sequencer orders, when all metadata is lost: `rebuilding`, for the other ordering.

Where their positions lie is said by the projection alone, and storage nodes do not keep it: a replica knows what is
written at which position, and the epoch it has promised. So a projection is not made anew. It is taken from a backup,
if that has the last one there was; that it has is shown by the promises:

- A later projection has a greater epoch, and before it is proposed at least one replica of every log stream has
  promised that epoch. If no replica has promised a greater one than the backup's, there was none.
- If one has, there may have been one, or its proposer has died: nothing tells. Then the topic is not brought back.

Of the chains those members are left out that are gone for good, or have not promised the epoch: they were made anew
since. Everyone who is left has all that was acknowledged, and the next reconfiguration goes on above all they have.

What must always hold: every position that is not trimmed lies where it lay; no replica that is named lacks anything
that was acknowledged in the epoch, unless it is damaged and says so itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from msgspec.structs import replace

from varlog import errors
from varlog.core.metastate import MetadataState, Stream, Topic
from varlog.core.projection import Chain, Projection
from varlog.core.surveys import ReplicaSurvey
from varlog.types import GLSN, LogStreamID, Ordering, StorageNodeID, StreamStatus, TopicID

Replicas = Mapping[StorageNodeID, ReplicaSurvey]
"""Of one log stream, by node."""


class Returned(NamedTuple):
    """What became of one topic: what there is of it now, or why there is nothing."""

    tpid: TopicID
    topic: Topic | None
    streams: tuple[Stream, ...] = ()
    remark: str = ""
    is_lost: bool = False
    """Something may have been written to it, and it is not there."""


def bring_back(
    found: Mapping[LogStreamID, Replicas],
    known: MetadataState | None,
    surveyed: Collection[StorageNodeID],
    without: AbstractSet[StorageNodeID],
) -> list[Returned]:
    """Every topic that a sequencer orders and that a surveyed node has a replica of. `known` is of a backup, `without`
    are nodes that are gone for good."""
    of_topic: dict[TopicID, dict[LogStreamID, Replicas]] = {}
    for lsid, replicas in sorted(found.items()):
        tpids = sorted({replica.tpid for replica in replicas.values()})
        if len(tpids) > 1:
            raise errors.SurveysDisagree(f"log stream {lsid} is of topics {tpids} on different nodes")
        of_topic.setdefault(tpids[0], {})[lsid] = replicas
    returned = []
    for tpid, streams in sorted(of_topic.items()):
        before = known.topics.get(tpid) if known is not None else None
        try:
            if before is None:
                raise _NotThere("the storage nodes do not know where its positions lie, and no backup tells")
            returned.append(_Topic(before, streams, surveyed, without).back())
        except _NotThere as why:
            name = repr(before.name) if before is not None else str(tpid)
            is_lost = any(replica.epoch for replicas in streams.values() for replica in replicas.values())
            told = str(why) if is_lost else "nothing was ever written to it"
            remark = f"topic {name}, which a sequencer orders, is left out: {told}"
            returned.append(Returned(tpid, None, remark=remark, is_lost=is_lost))
    return returned


class _NotThere(Exception):
    """A topic cannot be brought back."""


class _Topic:
    """One topic as a backup knows it, and what is on disk of it."""

    def __init__(
        self,
        before: Topic,
        found: Mapping[LogStreamID, Replicas],
        surveyed: Collection[StorageNodeID],
        without: AbstractSet[StorageNodeID],
    ) -> None:
        self._before = before
        self._found = found
        self._surveyed = surveyed
        self._without = without

    def back(self) -> Returned:
        projection = self._projection()
        self._check_all_there(projection)
        chains = tuple(map(self._chain, projection.chains))
        replicas = [replica for chain in chains for replica in self._members(chain)]
        trim = max(self._before.trim, *(replica.trim_glsn for replica in replicas))
        last = max(trim, self._before.hwm, *(replica.last_glsn for replica in replicas))
        topic = replace(self._before, projection=replace(projection, chains=chains), trim=GLSN(trim), hwm=GLSN(last))
        return Returned(topic.tpid, topic, tuple(map(self._stream, chains)), self._remark(projection, chains))

    def _projection(self) -> Projection:
        """The last one there was."""
        before = self._before
        if before.ordering is not Ordering.SEQUENCER:
            raise errors.SurveysDisagree(f"topic {before.name!r} is ordered by commits in the backup, not on the nodes")
        promised = {
            replica.epoch: (snid, lsid)
            for lsid, replicas in self._found.items()
            for snid, replica in sorted(replicas.items())
        }
        epoch = max(promised)
        if epoch > before.epoch:
            snid, lsid = promised[epoch]
            raise _NotThere(
                f"storage node {snid} has promised epoch {epoch} for log stream {lsid}, and the backup ends with epoch "
                f"{before.epoch}; where positions lie may have changed since: a later backup is needed"
            )
        if before.projection is None:
            raise _NotThere("it had no projection yet")
        return before.projection

    def _check_all_there(self, projection: Projection) -> None:
        """Who is not surveyed may have promised a greater epoch, alone of all."""
        members = {snid for chain in projection.chains for snid in chain.nodes}
        if missing := sorted(members.difference(self._surveyed, self._without)):
            raise errors.SurveysIncomplete(
                f"not surveyed, though topic {self._before.name!r} was there last: storage nodes "
                f"{', '.join(map(str, missing))}; survey these nodes too, or say with --without that one is gone for "
                "good: what only it holds is lost then"
            )

    def _chain(self, chain: Chain) -> Chain:
        found = self._found.get(chain.lsid, {})
        epoch = self._before.epoch
        left = tuple(snid for snid in chain.nodes if snid in found and found[snid].epoch == epoch)
        if not left:
            raise _NotThere(f"no member of the chain of log stream {chain.lsid} is left")
        return Chain(chain.lsid, left)

    def _members(self, chain: Chain) -> Iterable[ReplicaSurvey]:
        return (self._found[chain.lsid][snid] for snid in chain.nodes)

    def _remark(self, projection: Projection, chains: Iterable[Chain]) -> str:
        gone = [
            f"that of log stream {new.lsid} on storage nodes {', '.join(map(str, sorted(left)))}"
            for old, new in zip(projection.chains, chains, strict=True)
            if (left := set(old.nodes).difference(new.nodes))
        ]
        told = f"topic {self._before.name!r}: replicas are not there that its chains had: {'; '.join(gone)}"
        return told if gone else ""

    def _stream(self, chain: Chain) -> Stream:
        volumes = {snid: self._found[chain.lsid][snid].volume for snid in chain.nodes}
        status, epoch = StreamStatus.CHAINED, self._before.epoch
        return Stream(chain.lsid, self._before.tpid, status, epoch, chain.nodes, chain.head, volumes=volumes)
