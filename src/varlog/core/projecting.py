"""What the metadata repository decides on a topic that a sequencer orders: its next projection, and who can be one.

Any client may propose a projection (S7), so nothing in it is taken on trust. It replaces the one it was made from and
no other: who was overtaken is refused, and takes the winner's (S7). It names log streams of the topic, registered nodes
and a registered sequencer. Positions stay where they are and are not given out twice (`projection.check_follows`); a
chain loses members, or gains some at its tail (rule 22).

Like those of `decisions` these functions return the entry to be made, or None where the state is as asked for.
"""

from __future__ import annotations

from varlog import errors, limits
from varlog.core import metastate as m
from varlog.core.admissible import check_place, check_room, check_set
from varlog.core.messages import ProposeProjection, RegisterSequencer
from varlog.core.metastate import MetadataState, Stream, Topic
from varlog.core.projection import Chain, check, check_follows
from varlog.types import LogStreamID, Ordering, StreamStatus, TopicID


def sequenced(state: MetadataState, tpid: TopicID) -> Topic:
    """A topic that a sequencer orders."""
    topic = state.topics.get(tpid)
    if topic is None:
        raise errors.UnknownTopic(f"there is no topic {tpid}")
    if topic.ordering is not Ordering.SEQUENCER:
        raise errors.WrongOrdering(f"topic {topic.name!r} is ordered by commits: it has no projection")
    return topic


def propose(state: MetadataState, request: ProposeProjection) -> m.Projected | None:
    """See the module's text."""
    topic, projection = sequenced(state, request.tpid), request.projection
    if topic.projection == projection:
        return None
    check(projection)
    if topic.epoch != request.base:
        raise errors.Conflict(
            f"topic {topic.name!r} is in epoch {topic.epoch}, not {request.base}: another one was faster; renew the "
            "projection"
        )
    check_follows(projection, topic.projection, topic.trim)
    if projection.sequencer not in state.sequencers:
        raise errors.InvalidArgument(f"no sequencer at {projection.sequencer} is registered; start it with vsq start")
    for chain in projection.chains:
        _check_chain(state, topic, chain)
    return m.Projected(topic.tpid, projection)


def _check_chain(state: MetadataState, topic: Topic, chain: Chain) -> None:
    stream = state.streams.get(chain.lsid)
    if stream is None or stream.tpid != topic.tpid or stream.status is not StreamStatus.CHAINED:
        raise errors.UnknownLogStream(f"log stream {chain.lsid} is not registered for topic {topic.name!r}")
    check_set(state, chain.nodes)
    if len(chain.nodes) < topic.min_replicas:
        raise errors.Conflict(
            f"log stream {chain.lsid} would have {len(chain.nodes)} replicas and needs {topic.min_replicas}; bring a "
            "storage node back, or add one"
        )
    check_order(stream, chain)
    check_room(state, stream, set(chain.nodes).difference(stream.replicas))


def check_order(stream: Stream, chain: Chain) -> None:
    """Who stays in a chain stays in its order, and who joins comes after them: so each has all that the next one has
    (rule 22)."""
    kept = tuple(snid for snid in stream.replicas if snid in chain.nodes)
    if not kept or chain.nodes[: len(kept)] != kept:
        raise errors.InvalidArgument(
            f"log stream {chain.lsid}: the chain {stream.replicas} can lose members and gain some at its tail, which "
            f"does not make it {chain.nodes}"
        )


def register_sequencer(state: MetadataState, request: RegisterSequencer) -> m.SequencerRegistered | None:
    """Whoever says it is one. If there are too many, the one that registered longest ago of those that no topic has."""
    address, boot = request.address, request.boot
    check_place(address)
    if not address or boot < 1:
        raise errors.InvalidArgument("a sequencer registers with its address and the number of its start, from 1 on")
    if state.sequencers.get(address) == boot:
        return None
    forgotten = ""
    if address not in state.sequencers and len(state.sequencers) >= limits.MAX_SEQUENCERS:
        needed = {topic.projection.sequencer for topic in state.topics.values() if topic.projection is not None}
        forgotten = next((one for one in state.sequencers if one not in needed), "")
        if not forgotten:
            raise errors.LimitExceeded(f"there are {limits.MAX_SEQUENCERS} sequencers already, and all have topics")
    return m.SequencerRegistered(address, boot, forgotten)


def names_stream(topic: Topic, lsid: LogStreamID) -> bool:
    """Whether positions of a topic lie in a log stream."""
    return topic.projection is not None and any(chain.lsid == lsid for chain in topic.projection.chains)
