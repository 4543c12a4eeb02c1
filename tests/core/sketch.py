"""Sketches of what a client or manager knows: metadata, made of as little as a test has to say."""

from __future__ import annotations

from varlog.core.messages import Metadata, NodeInfo, StreamInfo, TopicInfo
from varlog.types import (
    GLSN,
    LLSN,
    Epoch,
    LogStreamID,
    StorageNodeID,
    StreamStatus,
    TopicID,
    Version,
)

TOPIC = TopicID(1)


def stream(
    lsid: int,
    status: StreamStatus = StreamStatus.RUNNING,
    *,
    epoch: int = 2,
    replicas: tuple[int, ...] = (1, 2, 3),
    primary: int | None = None,
    llsn_end: int = 1,
    last_glsn: int = 0,
    tpid: int = TOPIC,
    lost: tuple[int, int] = (0, 0),
) -> StreamInfo:
    return StreamInfo(
        LogStreamID(lsid),
        TopicID(tpid),
        Epoch(epoch),
        status,
        tuple(map(StorageNodeID, replicas)),
        StorageNodeID(replicas[0] if primary is None else primary),
        LLSN(llsn_end),
        GLSN(last_glsn),
        lost_begin=GLSN(lost[0]),
        lost_end=GLSN(lost[1]),
    )


def metadata(version: int, *streams: StreamInfo, hwm: int = 0, trim: int = 0) -> Metadata:
    nodes = [NodeInfo(snid) for snid in sorted({snid for s in streams for snid in s.replicas})]
    topics = tuple(
        TopicInfo(tpid, f"topic {tpid}", GLSN(hwm), GLSN(trim)) for tpid in sorted({s.tpid for s in streams})
    )
    return Metadata(
        0, Version(version), tuple(nodes), topics or (TopicInfo(TOPIC, "", GLSN(hwm), GLSN(trim)),), streams
    )
