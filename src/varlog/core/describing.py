"""The metadata repository's state as others are told it."""

from __future__ import annotations

from collections.abc import Iterable

from varlog.core import metastate as m
from varlog.core.messages import (
    Decided,
    Message,
    Metadata,
    NodeInfo,
    ProposeProjection,
    RegisterNode,
    RenewNode,
    RunStream,
    SealStream,
    SequencerInfo,
    Snapshot,
    StreamEnd,
    StreamInfo,
    TopicInfo,
    TrimTopic,
    UnsealStream,
)
from varlog.core.metastate import AnyEntry, MetadataState, Stream
from varlog.types import GLSN, LLSN, Term, Version


def describe(state: MetadataState, request: int) -> Metadata:
    """The present state, all of one version."""
    nodes = tuple(
        NodeInfo(snid, node.address, node.volumes, node.is_draining, node.generation)
        for snid, node in sorted(state.nodes.items())
    )
    topics = tuple(
        TopicInfo(
            t.tpid,
            t.name,
            t.hwm,
            t.trim,
            t.replication_factor,
            t.min_replicas,
            t.archive,
            t.ordering,
            t.block,
            t.projection,
        )
        for t in state.topics.values()
    )
    streams = tuple(map(_stream_info, state.streams.values()))
    sequencers = tuple(SequencerInfo(address, boot) for address, boot in state.sequencers.items())
    return Metadata(request, state.version, nodes, topics, streams, state.manager, state.next_lsid, sequencers)


def _stream_info(s: Stream) -> StreamInfo:
    return StreamInfo(
        s.lsid,
        s.tpid,
        s.epoch,
        s.status,
        s.replicas,
        s.primary,
        s.llsn_end,
        s.last_glsn,
        tuple(s.volumes.get(snid, "") for snid in s.replicas),
        s.is_held,
        s.joining,
        s.leaving,
        s.lost_begin,
        GLSN(s.last_glsn + 1) if s.lost_begin else GLSN(0),
        s.skipped,
    )


def snapshot(
    state: MetadataState,
    term: Term,
    streams: Iterable[Stream],
    reported: Version,
    unknown: tuple[tuple[int, int, int], ...] = (),
) -> Snapshot:
    """What a storage node has to know of these log streams and their topics (rules 4, 5), and what it has reported that
    is not known here."""
    ends = tuple(StreamEnd(s.lsid, s.tpid, s.epoch, s.status, s.llsn_end, s.last_glsn, s.touched) for s in streams)
    topics = [state.topics[tpid] for tpid in sorted({end.tpid for end in ends})]
    watermarks = tuple((int(topic.tpid), int(topic.hwm), int(topic.trim)) for topic in topics)
    known = state.known_version(reported)
    return Snapshot(term, state.version, reported, watermarks, ends, unknown, known)


def decided(state: MetadataState, request: int, message: Message, entry: AnyEntry | None) -> Decided:
    """The answer to a request that was granted, by an entry or because the state is as it asks for."""
    value, llsn_end = 0, LLSN(0)
    match entry or message:
        case m.TopicCreated(tpid):
            value = tpid
        case m.StreamCreating(lsid):
            value = lsid
        case m.NodeRegistered(snid) | m.NodeRenewed(snid) | RegisterNode(_, snid) | RenewNode(_, snid):
            value = state.nodes[snid].generation
        case m.Projected(tpid) | ProposeProjection(_, tpid):
            value = state.topics[tpid].epoch
        case m.Trimmed(tpid) | TrimTopic(_, tpid):
            value = state.topics[tpid].trim
        case m.StreamSealed(lsid) | SealStream(_, lsid) | UnsealStream(_, lsid) | RunStream(_, lsid):
            value, llsn_end = state.streams[lsid].epoch, state.streams[lsid].llsn_end
        case m.StreamUnsealing(lsid) | m.StreamRunning(lsid):
            value, llsn_end = state.streams[lsid].epoch, state.streams[lsid].llsn_end
        case _:
            pass  # nothing but the version to tell
    return Decided(request, 0, state.version, value, llsn_end)
