"""The metadata repository's state as others are told it."""

from __future__ import annotations

from varlog.core.messages import Metadata, NodeInfo, StreamInfo, TopicInfo
from varlog.core.metastate import MetadataState, Stream


def describe(state: MetadataState, request: int) -> Metadata:
    """The present state, all of one version."""
    nodes = tuple(NodeInfo(snid, node.address, node.volumes) for snid, node in sorted(state.nodes.items()))
    topics = tuple(
        TopicInfo(t.tpid, t.name, t.hwm, t.trim, t.replication_factor, t.min_replicas) for t in state.topics.values()
    )
    streams = tuple(map(_stream_info, state.streams.values()))
    return Metadata(request, state.version, nodes, topics, streams, state.manager)


def _stream_info(s: Stream) -> StreamInfo:
    volumes = tuple(s.volumes.get(snid, "") for snid in s.replicas)
    return StreamInfo(s.lsid, s.tpid, s.epoch, s.status, s.replicas, s.primary, s.llsn_end, s.last_glsn, volumes)
