"""What a leading metadata repository tells the storage nodes: who is told what, and up to where each has been told.

A node is told of every version that concerns a topic it has to do with, in one chain: each message names the version
before it. Who has not been given a snapshot yet is told nothing. Of a cut, every node is told the ranges of its own
replicas, and the high watermarks of their topics.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set

from varlog.core.address import Address, Send
from varlog.core.describing import snapshot
from varlog.core.messages import Commit, Range
from varlog.core.metastate import Cut, MetadataState, Stream
from varlog.types import LogStreamID, StorageNodeID, Term, TopicID, Version

Hwm = tuple[int, int, int]


def parts_of(
    cut: Cut, streams: Mapping[LogStreamID, Stream], hosts: Mapping[TopicID, Set[StorageNodeID]]
) -> Iterator[tuple[StorageNodeID, tuple[Hwm, ...], tuple[Range, ...]]]:
    """The nodes, first those that have clients waiting, and what each is told. `hosts` are the nodes of a topic."""
    if len(cut.ranges) == 1:
        stream = streams[LogStreamID(cut.ranges[0][0])]
        if hosts[stream.tpid] == set(stream.replicas):  # all are told all of it
            yield stream.primary, cut.hwms, cut.ranges
            for snid in stream.replicas:
                if snid != stream.primary:
                    yield snid, cut.hwms, cut.ranges
            return
    ranges_of: dict[tuple[StorageNodeID, ...], list[Range]] = {}
    primaries = set()
    for line in cut.ranges:
        stream = streams[LogStreamID(line[0])]
        ranges_of.setdefault(stream.replicas, []).append(line)
        primaries.add(stream.primary)
    hwms_of: dict[StorageNodeID, list[Hwm]] = {}
    for hwm in cut.hwms:
        for snid in hosts[TopicID(hwm[0])]:
            hwms_of.setdefault(snid, []).append(hwm)
    for snid in sorted(hwms_of, key=lambda snid: (snid not in primaries, snid)):
        ranges = [line for replicas, lines in ranges_of.items() if snid in replicas for line in lines]
        yield snid, tuple(hwms_of[snid]), tuple(ranges)


class Listener:
    """A storage node that reports."""

    __slots__ = ("address", "boot", "is_ahead", "seq", "told")

    def __init__(self, boot: int) -> None:
        self.boot = boot
        self.seq = 0
        self.address: Address = ""
        """Where its reports come from, and the answers go."""
        self.is_ahead = False
        """It knows of a later version or epoch, and the store is being asked about that."""
        self.told: Version | None = None
        """The version up to which the node has been sent everything; None before it was given a snapshot."""


class Audience:
    """See the module's text."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._term = Term(0)
        self._state = MetadataState()
        self._hosts: dict[TopicID, set[StorageNodeID]] = {}
        self.nodes: dict[StorageNodeID, Listener] = {}

    def begin(self, term: Term, state: MetadataState) -> None:
        """A leadership begins with this state, and nobody has been told anything of it."""
        self._term = term
        self._state = state
        self.nodes.clear()
        self.find_hosts()

    def find_hosts(self) -> None:
        """Log streams are gone."""
        self._hosts.clear()
        for stream in self._state.streams.values():
            self._hosts.setdefault(stream.tpid, set()).update(stream.replicas)

    def tell_state(
        self,
        node: Listener,
        streams: list[Stream],
        reported: Version,
        unknown: tuple[tuple[int, int, int], ...] = (),
    ) -> None:
        node.told = self._state.version
        self._send(node.address, snapshot(self._state, self._term, streams, reported, unknown))

    def follow_set(self, version: Version, stream: Stream, before: Set[int]) -> None:
        """A log stream's epoch, and with it perhaps its set, has changed. Who leaves is told, so that no watermark says
        anything of what it has from then on. Who has to do with the topic only now knows nothing of it, and is given
        the state as it is: what is told of other versions is only what they changed (rules 5, 10)."""
        hosts = self._hosts.get(stream.tpid, set())
        for snid in sorted(hosts):
            self._send_commit(snid, version, (), (), (_end(stream),), ())
        replicas = set(stream.replicas)
        for snid in sorted(replicas - hosts):
            self._introduce(snid)
        if before <= replicas:
            self._hosts[stream.tpid] = hosts | replicas
        else:
            self.find_hosts()

    def follow_chains(self, tpid: TopicID) -> None:
        """The chains of a topic that a sequencer orders have changed. Of an epoch nodes hear from whoever seals them
        (S6); but who has to do with the topic only now is given the state as it is, for what is trimmed (rule 5)."""
        before = self._hosts.get(tpid, set())
        self.find_hosts()
        for snid in sorted(self._hosts.get(tpid, set()) - before):
            self._introduce(snid)

    def _introduce(self, snid: StorageNodeID) -> None:
        node = self.nodes.get(snid)
        if node is not None and node.told is not None:
            self.tell_state(node, [s for s in self._state.streams.values() if snid in s.replicas], Version(0))

    def tell_epoch(self, version: Version, stream: Stream) -> None:
        for snid in sorted(self._hosts.get(stream.tpid, ())):
            self._send_commit(snid, version, (), (), (_end(stream),), ())

    def tell_trim(self, version: Version, tpid: TopicID) -> None:
        trims = ((int(tpid), int(self._state.topics[tpid].trim)),)
        for snid in sorted(self._hosts.get(tpid, ())):
            self._send_commit(snid, version, (), (), (), trims)

    def tell_cut(self, version: Version, cut: Cut) -> None:
        last: Commit | None = None
        for snid, hwms, ranges in parts_of(cut, self._state.streams, self._hosts):
            last = self._send_commit(snid, version, hwms, ranges, last=last)

    def _send_commit(
        self,
        snid: StorageNodeID,
        version: Version,
        hwms: tuple[Hwm, ...],
        ranges: tuple[Range, ...],
        epochs: tuple[tuple[int, int, int], ...] = (),
        trims: tuple[tuple[int, int], ...] = (),
        last: Commit | None = None,
    ) -> Commit | None:
        """Tell a node. Returns what was sent last: another node that is told the same gets the very same message, which
        is put into bytes once."""
        node = self.nodes.get(snid)
        if node is None or (told := node.told) is None:
            return last
        if last is None or last.prev_version != told or last.hwms != hwms or last.ranges != ranges:
            last = Commit(self._term, told, version, self._state.time, hwms, ranges, epochs, trims)
        node.told = version
        self._send(node.address, last)
        return last


def _end(stream: Stream) -> tuple[int, int, int]:
    return (int(stream.lsid), int(stream.epoch), int(stream.llsn_end))
