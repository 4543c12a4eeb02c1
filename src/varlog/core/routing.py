"""A client's copy of the cluster's metadata, and the choice of a log stream.

The copy is of one version and only moves forward. It may be old; whoever acts on it is told so by the epoch in each
answer and asks for it to be renewed.
"""

from __future__ import annotations

from varlog.core.messages import Metadata, StreamInfo, TopicInfo
from varlog.types import GLSN, LogStreamID, StreamStatus, TopicID, Version

_TAKES_APPENDS = (StreamStatus.RUNNING, StreamStatus.UNSEALING)
_HOLDS_ENTRIES = (StreamStatus.RUNNING, StreamStatus.UNSEALING, StreamStatus.SEALED)


class Routing:
    """See the module's text."""

    def __init__(self) -> None:
        self.version = Version(-1)
        self._topics: dict[TopicID, TopicInfo] = {}
        self._streams: dict[LogStreamID, StreamInfo] = {}
        self._trims: dict[TopicID, GLSN] = {}

    def update(self, metadata: Metadata) -> bool:
        """Take over newer metadata; False if it is not newer."""
        if metadata.version <= self.version:
            return False
        self.version = metadata.version
        self._topics = {topic.tpid: topic for topic in metadata.topics}
        self._streams = {stream.lsid: stream for stream in metadata.streams if stream.status in _HOLDS_ENTRIES}
        return True

    def topic(self, tpid: TopicID) -> TopicInfo | None:
        return self._topics.get(tpid)

    def note_trim(self, tpid: TopicID, glsn: GLSN) -> None:
        """This client was told of a trim point; it may be newer than the metadata."""
        self._trims[tpid] = max(self.trim(tpid), glsn)

    def trim(self, tpid: TopicID) -> GLSN:
        """The last position known to be trimmed."""
        topic = self._topics.get(tpid)
        return max(topic.trim if topic is not None else GLSN(0), self._trims.get(tpid, GLSN(0)))

    def stream(self, lsid: LogStreamID) -> StreamInfo | None:
        return self._streams.get(lsid)

    def streams(self, tpid: TopicID) -> list[StreamInfo]:
        """The log streams whose entries make up a topic, by LSID."""
        return sorted((s for s in self._streams.values() if s.tpid == tpid), key=lambda s: s.lsid)

    def choose(self, tpid: TopicID, affinity: int) -> StreamInfo | None:
        """A log stream that takes appends. Equal affinities choose alike while nothing changes, so that an appender
        stays where it is; different ones spread."""
        open_streams = [stream for stream in self.streams(tpid) if takes_appends(stream)]
        return open_streams[affinity % len(open_streams)] if open_streams else None


def takes_appends(stream: StreamInfo) -> bool:
    """Whether a log stream is, or is about to be, running."""
    return stream.status in _TAKES_APPENDS
