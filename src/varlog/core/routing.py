"""A client's copy of the cluster's metadata, what it has met with lately, and the choices that follow from both.

The copy is of one version and only moves forward. It may be old; whoever acts on it is told so by the epoch in each
answer and asks for it to be renewed. Metadata says what should work, the blacklists what did not (M11): appends go to
log streams without trouble while there is one, reads to nodes that are well.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from collections.abc import Sequence as Seq

from varlog.core.blacklist import Blacklist
from varlog.core.messages import Metadata, StreamInfo, TopicInfo
from varlog.core.projection import Projection
from varlog.types import GLSN, LogStreamID, StorageNodeID, StreamStatus, TopicID, Version

_HOLDS_ENTRIES = (StreamStatus.RUNNING, StreamStatus.UNSEALING, StreamStatus.SEALED, StreamStatus.CHAINED)


class Routing:
    """See the module's text."""

    def __init__(self) -> None:
        self.version = Version(-1)
        self.nodes_avoided: Blacklist[StorageNodeID] = Blacklist()
        self.streams_avoided: Blacklist[LogStreamID] = Blacklist()
        self._topics: dict[TopicID, TopicInfo] = {}
        self._streams: dict[LogStreamID, StreamInfo] = {}
        self._of_topic: dict[TopicID, list[StreamInfo]] = {}
        self._open: dict[TopicID, list[StreamInfo]] = {}
        self._trims: dict[TopicID, GLSN] = {}

    def update(self, metadata: Metadata) -> bool:
        """Take over newer metadata; False if it is not newer."""
        if metadata.version <= self.version:
            return False
        before = self._streams
        self.version = metadata.version
        self._topics = {topic.tpid: topic for topic in metadata.topics}
        for topic in metadata.topics:
            self.note_trim(topic.tpid, topic.trim)
        self._streams = {stream.lsid: stream for stream in metadata.streams if stream.status in _HOLDS_ENTRIES}
        self._of_topic, self._open = {}, {}
        for _, stream in sorted(self._streams.items()):
            self._of_topic.setdefault(stream.tpid, []).append(stream)
            if takes_appends(stream):
                self._open.setdefault(stream.tpid, []).append(stream)
        if self.nodes_avoided:
            self.nodes_avoided.keep({node.snid for node in metadata.nodes})
        if self.streams_avoided:  # what went wrong in one epoch says nothing of the next
            same = (lsid for lsid, s in self._streams.items() if lsid in before and before[lsid].epoch == s.epoch)
            self.streams_avoided.keep(set(same))
        return True

    def topic(self, tpid: TopicID) -> TopicInfo | None:
        return self._topics.get(tpid)

    def projection(self, tpid: TopicID) -> Projection | None:
        """What is where in a topic that a sequencer orders; None of any other, or if that is not known."""
        topic = self._topics.get(tpid)
        return topic.projection if topic is not None else None

    def note_trim(self, tpid: TopicID, glsn: GLSN) -> None:
        """This client was told of a trim point; it may be newer than the metadata."""
        self._trims[tpid] = max(self.trim(tpid), glsn)

    def trim(self, tpid: TopicID) -> GLSN:
        """The last position known to be trimmed."""
        return self._trims.get(tpid, GLSN(0))

    def stream(self, lsid: LogStreamID) -> StreamInfo | None:
        return self._streams.get(lsid)

    def streams(self, tpid: TopicID) -> list[StreamInfo]:
        """The log streams whose entries make up a topic, by LSID."""
        return list(self._of_topic.get(tpid, ()))

    def trouble(self, stream: StreamInfo, now: float) -> int:
        """What speaks against appending to a log stream that runs. 0: nothing; 1: a backup failed lately, which every
        commit needs; 2: the log stream itself, or its primary."""
        nodes, streams = self.nodes_avoided, self.streams_avoided
        if not nodes and not streams:
            return 0
        if streams.avoids(stream.lsid, now) or nodes.avoids(stream.primary, now):
            return 2
        return int(any(nodes.avoids(snid, now) for snid in stream.replicas))

    def choose(self, tpid: TopicID, affinity: int, now: float) -> StreamInfo | None:
        """A log stream that takes appends, of those with the least trouble. Equal affinities choose alike while nothing
        changes, so that an appender stays where it is; different ones spread."""
        open_streams = self._open.get(tpid)
        if not open_streams:
            return None
        if self.nodes_avoided or self.streams_avoided:
            least = min(self.trouble(stream, now) for stream in open_streams)
            open_streams = [stream for stream in open_streams if self.trouble(stream, now) == least]
        return open_streams[affinity % len(open_streams)]

    def in_turn(
        self, replicas: Seq[StorageNodeID], turn: int, now: float, asked: Container[StorageNodeID] = ()
    ) -> Iterator[StorageNodeID]:
        """The replicas to ask, from the one whose turn it is on, without those that are `asked` already: first those
        that are well, then the others."""
        count = len(replicas)
        order = [snid for place in range(count) if (snid := replicas[(turn + place) % count]) not in asked]
        yield from (snid for snid in order if not self.nodes_avoided.avoids(snid, now))
        yield from (snid for snid in order if self.nodes_avoided.avoids(snid, now))


def takes_appends(stream: StreamInfo) -> bool:
    """Whether a log stream runs."""
    return stream.status == StreamStatus.RUNNING
