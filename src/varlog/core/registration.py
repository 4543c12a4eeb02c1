"""Members of the cluster: nodes, topics and log streams are registered and removed, as conversations (M1, M2, B11).

A log stream is made on the nodes first and registered last, so that a registered log stream has all its replicas. A
manager that dies in the middle leaves a log stream in CREATING, which counts for nothing and is found later (M3, rule
13).

A node is registered first and given its secret then, so that of two who register it at once one is refused before it
hands out a secret that proves nothing. If that is as far as it goes, the node has no secret and is in no set; asking
again, or the manager's own watching, gives it another.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from collections.abc import Sequence as Seq
from contextlib import contextmanager

from varlog import errors, limits
from varlog.core.address import METADATA_REPOSITORY, Address, node_address, unnamed_address
from varlog.core.conversing import (
    Answer,
    Conversation,
    Conversing,
    Infos,
    Requests,
    find_node,
    find_stream,
    find_topic,
    one,
    succeeded,
)
from varlog.core.identity import generation_of, proof_of
from varlog.core.messages import (
    AbortStream,
    AddLogStream,
    AddNode,
    AddStream,
    AddTopic,
    AdoptIdentity,
    AttachArchive,
    CreateStream,
    CreateTopic,
    Decided,
    DeleteTopic,
    GetInfo,
    IdentityAdopted,
    Info,
    Message,
    NodeInfo,
    RegisterNode,
    RegisterStream,
    RemoveLogStream,
    RemoveNode,
    RemoveStream,
    RemoveTopic,
    RenewNode,
    ReplicaReply,
    SealStream,
    SetArchive,
    StreamInfo,
    UnregisterNode,
    UnregisterStream,
)
from varlog.core.operating import Operator, is_awaited
from varlog.core.placing import Place, place
from varlog.core.reconfiguring import Change, find_sequencer, reconfigure
from varlog.types import Epoch, LogStreamID, Ordering, StorageNodeID, StreamStatus, TopicID

DEFAULT_REPLICATION_FACTOR = 3
_SEAL_ATTEMPTS = 5
_REMOVALS_AT_ONCE = 64


class Registrar(Conversing):
    """Begins conversations. `new_secret` makes the secret of a node, which nobody can guess."""

    def __init__(self, new_request: Callable[[], int], infos: Infos, new_secret: Callable[[], str]) -> None:
        super().__init__(new_request, infos)
        self._new_secret = new_secret
        self._operator = Operator(new_request, infos)
        self.giving: set[StorageNodeID] = set()
        """Nodes that are being given a secret."""

    def begin(self, asked: Message) -> Conversation:
        """The conversation that does what an operator asks for."""
        match asked:
            case AddNode(_, address):
                return self.add_node(address)
            case RemoveNode(_, snid):
                return self.remove_node(snid)
            case AddTopic():
                return self.add_topic(asked)
            case RemoveTopic(_, name):
                return self.remove_topic(name)
            case AttachArchive(_, topic, uri):
                return self.attach_archive(topic, uri)
            case AddStream(_, topic, nodes):
                return self.add_stream(topic, nodes)
            case RemoveStream(_, lsid):
                return self.remove_stream(lsid)
            case _:
                return self._operator.begin(asked)

    # Nodes

    def add_node(self, address: str) -> Conversation:
        """M1: ask the node who it is, register it, and give it its secret (B11). One that has both is left alone."""
        to = unnamed_address(address)
        snid = one(Info, (yield [(to, GetInfo(self._request()))])).snid
        with self._giving(snid):
            info = one(Info, (yield [(to, GetInfo(self._request()))]))
            metadata = yield from self._metadata()
            node = next((node for node in metadata.nodes if node.snid == snid), None)
            if node is None:
                yield from self._register(info, info.address or address, to)
            elif node.address != (info.address or address) and (info.is_identified or snid in self._infos()):
                raise errors.AlreadyExists(f"storage node {snid} is registered already, at {node.address}")
            elif not info.is_identified:
                yield from self._renew(node, to)
        return snid

    def renew_node(self, snid: StorageNodeID) -> Conversation:
        """Give a node that has lost its disks a new secret, so that it can begin anew."""
        with self._giving(snid):
            node = find_node((yield from self._metadata()), snid)
            info = one(Info, (yield [(node_address(snid), GetInfo(self._request()))]))
            if not info.is_identified:
                yield from self._renew(node, node_address(snid))
        return snid

    def _register(self, info: Info, location: str, to: Address) -> Generator[Requests, Seq[Answer], None]:
        generation = generation_of(info.boot) + 1  # it may have been part of a cluster before
        volumes = tuple(volume.path for volume in info.volumes)
        secret = self._new_secret()
        proof = proof_of(info.snid, secret)
        yield from self._decide(RegisterNode(self._request(), info.snid, location, volumes, proof, generation))
        yield from self._give(to, info.snid, secret, generation)

    def _renew(self, node: NodeInfo, to: Address) -> Generator[Requests, Seq[Answer], None]:
        secret = self._new_secret()
        proof = proof_of(node.snid, secret)
        yield from self._decide(RenewNode(self._request(), node.snid, node.generation, proof))
        yield from self._give(to, node.snid, secret, node.generation + 1)

    def _give(
        self, to: Address, snid: StorageNodeID, secret: str, generation: int
    ) -> Generator[Requests, Seq[Answer], None]:
        one(IdentityAdopted, (yield [(to, AdoptIdentity(self._request(), snid, secret, generation))]))

    @contextmanager
    def _giving(self, snid: StorageNodeID) -> Iterator[None]:
        """One at a time, from the look at the node on: a secret that is given must be the one recorded last."""
        if snid in self.giving:
            raise errors.Busy(f"storage node {snid} is just being given its secret, by another request")
        self.giving.add(snid)
        try:
            yield
        finally:
            self.giving.discard(snid)

    def remove_node(self, snid: StorageNodeID) -> Conversation:
        """Only if it has nothing that the log is made of, and no log stream that has just gone on without it waits for
        it to come back."""
        metadata = yield from self._metadata()
        if not find_node(metadata, snid).is_draining:
            info = self._infos().get(snid)
            if awaited := [s.lsid for s in metadata.streams if is_awaited(metadata, s, snid, info)]:
                raise errors.Conflict(
                    f"storage node {snid} may come back with the replicas that log streams {awaited} lack; drain it "
                    "first, or wait until other nodes have them"
                )
        yield from self._decide(UnregisterNode(self._request(), snid))
        return snid

    # Topics

    def add_topic(self, asked: AddTopic) -> Conversation:
        metadata = yield from self._metadata()
        if not 1 <= asked.streams <= limits.MAX_LOG_STREAMS:
            raise errors.InvalidArgument(f"a topic has 1 to {limits.MAX_LOG_STREAMS} log streams, not {asked.streams}")
        factor = asked.replication_factor or min(DEFAULT_REPLICATION_FACTOR, max(1, len(metadata.nodes)))
        if factor > limits.MAX_REPLICAS:
            raise errors.InvalidArgument(f"a log stream has 1 to {limits.MAX_REPLICAS} replicas, not {factor}")
        if factor > len(metadata.nodes):
            raise errors.Conflict(
                f"{factor} replicas need as many storage nodes, and {len(metadata.nodes)} are registered; add some "
                "with varlog node add, or ask for fewer replicas"
            )
        is_sequenced = asked.ordering is Ordering.SEQUENCER
        least = asked.min_replicas or (1 if is_sequenced else min(2, factor))
        place(metadata, self._infos(), factor)  # rather no topic than one without a log stream
        if is_sequenced:  # or one without positions
            yield from find_sequencer(self._request, metadata)
        created = yield from self._decide(
            CreateTopic(self._request(), asked.name, factor, least, asked.first, asked.ordering, asked.block)
        )
        tpid = TopicID(created.value)
        for number in range(asked.streams):
            try:
                yield from self._add_stream(tpid, factor, ())
            except errors.VarlogError as error:
                if number:
                    made = f"topic {asked.name!r} was made, with {number} of {asked.streams} log streams"
                    raise errors.Unknown(f"{made}; add the others with varlog stream add: {error}") from error
                # Nobody can have appended to it: the same request may be made again.
                yield [(METADATA_REPOSITORY, DeleteTopic(self._request(), tpid))]
                raise
        if is_sequenced:  # its first projection (S8)
            yield from self._project(tpid, Change(failed=Epoch(0)), f"topic {asked.name!r}")
        return tpid

    def _project(self, tpid: TopicID, change: Change, made: str) -> Generator[Requests, Seq[Answer], None]:
        """Let positions go to what was made. It stays if that is not possible, and the manager tries again."""
        try:
            yield from reconfigure(self._request, tpid, change)
        except errors.VarlogError as error:
            raise errors.Unknown(f"{made} was made, and has no positions yet; do not make it again: {error}") from error

    def remove_topic(self, name: str) -> Conversation:
        metadata = yield from self._metadata()
        topic = find_topic(metadata, name)
        yield from self._decide(DeleteTopic(self._request(), topic.tpid))
        streams = [stream for stream in metadata.streams if stream.tpid == topic.tpid]
        for new_only in (False, True):
            some = [stream for stream in streams if bool(stream.replicas) is not new_only]
            hosts = [(snid, stream.lsid) for stream in some for snid in self._hosts(stream)]
            yield from self._remove_data(hosts, new_only=new_only)
        return topic.tpid

    def attach_archive(self, name: str, uri: str) -> Conversation:
        topic = find_topic((yield from self._metadata()), name)
        yield from self._decide(SetArchive(self._request(), topic.tpid, uri))
        return topic.tpid

    # Log streams

    def add_stream(self, name: str, nodes: tuple[StorageNodeID, ...]) -> Conversation:
        """M2, in a topic that exists."""
        metadata = yield from self._metadata()
        topic = find_topic(metadata, name)
        if nodes and len(nodes) != topic.replication_factor:
            raise errors.InvalidArgument(
                f"topic {name!r} has {topic.replication_factor} replicas of each log stream, not {len(nodes)}"
            )
        if len(set(nodes)) != len(nodes):
            raise errors.InvalidArgument("the replicas of a log stream are on different storage nodes")
        is_sequenced = topic.ordering is Ordering.SEQUENCER
        if is_sequenced:
            yield from find_sequencer(self._request, metadata, topic)
        lsid = yield from self._add_stream(topic.tpid, topic.replication_factor, nodes)
        if is_sequenced:  # positions go there from the next projection on
            yield from self._project(topic.tpid, Change(), f"log stream {lsid}")
        return lsid

    def _add_stream(self, tpid: TopicID, factor: int, nodes: tuple[StorageNodeID, ...]) -> Conversation:
        metadata = yield from self._metadata()
        places = place(metadata, self._infos(), factor, nodes)
        ordering = next((topic.ordering for topic in metadata.topics if topic.tpid == tpid), Ordering.COMMIT)
        if ordering is Ordering.SEQUENCER and not nodes:
            places = _turned(places, sum(stream.tpid == tpid for stream in metadata.streams))
        created = yield from self._decide(CreateStream(self._request(), tpid))
        lsid = LogStreamID(created.value)
        try:
            replies = yield [
                (node_address(snid), AddLogStream(self._request(), tpid, lsid, volume, ordering))
                for snid, volume in places
            ]
            for reply in replies:
                succeeded(reply, ReplicaReply)
            replicas, volumes = tuple(p.snid for p in places), tuple(p.volume for p in places)
            yield from self._decide(RegisterStream(self._request(), lsid, replicas, volumes))
        except errors.VarlogError:
            if not (yield from self._undo(lsid, places)):
                raise
        return lsid

    def _undo(self, lsid: LogStreamID, places: Seq[Place]) -> Generator[Requests, Seq[Answer], bool]:
        """Abort first: only what can never be registered any more is deleted (rule 13). True if it turns out to have
        been registered after all, by a request whose answer was lost."""
        (aborted,) = yield [(METADATA_REPOSITORY, AbortStream(self._request(), lsid))]
        code = aborted.code if isinstance(aborted, Decided) else None
        if code in {0, errors.UnknownLogStream.code}:
            yield from self._remove_data([(place.snid, lsid) for place in places], new_only=True)
        return code == errors.Conflict.code

    def remove_stream(self, lsid: LogStreamID) -> Conversation:
        """Seal and take out in one go; the manager itself may unseal it in between, then once more."""
        for attempt in range(_SEAL_ATTEMPTS):
            metadata = yield from self._metadata()
            stream = find_stream(metadata, lsid)
            topic = next(t for t in metadata.topics if t.tpid == stream.tpid)
            if topic.projection is not None and any(chain.lsid == lsid for chain in topic.projection.chains):
                raise errors.Conflict(
                    f"positions of topic {topic.name!r} lie in log stream {lsid}, and others will: where a sequencer "
                    "orders, log streams go only with their topic"
                )
            if stream.last_glsn > topic.trim:
                raise errors.Conflict(
                    f"log stream {lsid} holds entries up to {stream.last_glsn}; trim topic {topic.name!r} first"
                )
            try:
                if stream.status in (StreamStatus.RUNNING, StreamStatus.UNSEALING):
                    yield from self._decide(SealStream(self._request(), lsid, stream.epoch))
                yield from self._decide(UnregisterStream(self._request(), lsid))
            except errors.Conflict:
                if attempt == _SEAL_ATTEMPTS - 1:
                    raise
            else:
                hosts = [(snid, lsid) for snid in self._hosts(stream)]
                yield from self._remove_data(hosts, new_only=not stream.replicas)
                break
        return lsid

    def _hosts(self, stream: StreamInfo) -> Seq[StorageNodeID]:
        """Who has data of a log stream: its replicas, and whoever else says so, as a node does that was just drained,
        or all do of one that was never registered."""
        others = [
            snid
            for snid, info in self._infos().items()
            if any(replica.lsid == stream.lsid for replica in info.replicas)
        ]
        return [*stream.replicas, *(snid for snid in others if snid not in stream.replicas)]

    def _remove_data(
        self, replicas: Seq[tuple[StorageNodeID, LogStreamID]], *, new_only: bool = False
    ) -> Generator[Requests, Seq[Answer], None]:
        """Data of what is no more. Of a node that does not answer it stays, and is in nobody's way: no log stream gets
        its id again. Of what was never registered, only what was just made is deleted: what a node holds by that id
        otherwise is of a cluster whose metadata was lost, and may be all that is left of it."""
        for first in range(0, len(replicas), _REMOVALS_AT_ONCE):
            some = replicas[first : first + _REMOVALS_AT_ONCE]
            yield [(node_address(snid), RemoveLogStream(self._request(), lsid, new_only)) for snid, lsid in some]


def _turned(places: Seq[Place], by: int) -> list[Place]:
    """The same nodes, each log stream's chain beginning with another one: heads are spread (S11)."""
    ordered = sorted(places)
    turn = by % len(ordered)
    return [*ordered[turn:], *ordered[:turn]]
