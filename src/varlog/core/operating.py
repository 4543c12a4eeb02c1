"""What operators do with log streams and nodes that are there already, as conversations: drain, replace, seal, unseal,
synchronise, move, declare lost.

Most of it is a wish that is written down in the metadata; the manager's own watching then does what it takes, for as
long as it takes, and also if this manager dies meanwhile. Everything that can be refused is checked before anything is
changed, against the metadata and the nodes that answer, and again by the metadata repository, which decides. What is as
asked for already is done, so every request may be repeated, and two operators at once get an order or a refusal.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping
from collections.abc import Sequence as Seq

from varlog import errors
from varlog.core.address import METADATA_REPOSITORY, node_address
from varlog.core.conversing import (
    Answer,
    Conversation,
    Conversing,
    Requests,
    find_node,
    find_registered_stream,
    one,
    succeeded,
    topic_of,
)
from varlog.core.losing import judge
from varlog.core.messages import (
    Decided,
    DeclareLost,
    DrainNode,
    GetInfo,
    HoldLogStream,
    HoldStream,
    Info,
    LoseStream,
    Message,
    Metadata,
    MoveReplica,
    PlanStream,
    ReplaceNode,
    ReplicaInfo,
    SealStream,
    SetDraining,
    StreamInfo,
    Sync,
    SyncLogStream,
    SyncReply,
)
from varlog.core.placing import check_willing
from varlog.types import LogStreamID, ReplicaState, StorageNodeID, StreamStatus

_SEAL_ATTEMPTS = 5
_PLANS_AT_ONCE = 64
_NOBODY = StorageNodeID(0)


class Operator(Conversing):
    """Begins conversations about what is registered."""

    def begin(self, asked: Message) -> Conversation:
        match asked:
            case DrainNode(_, snid, undo):
                return self.undrain_node(snid) if undo else self.drain_node(snid)
            case ReplaceNode(_, snid, by):
                return self.replace_node(snid, by)
            case HoldLogStream(_, lsid, seal):
                return self.seal_stream(lsid) if seal else self.unseal_stream(lsid)
            case SyncLogStream(_, lsid, target, source):
                return self.sync_stream(lsid, target, source)
            case MoveReplica(_, lsid, joining, leaving):
                return self.move_replica(lsid, joining, leaving)
            case DeclareLost():
                return self.declare_lost(asked)
            case _:
                raise errors.InvalidArgument(f"a manager is not asked for {type(asked).__name__}")

    # Nodes

    def drain_node(self, snid: StorageNodeID) -> Conversation:
        """Say that no replicas are wanted on a node; they go to others, or away where enough are left."""
        metadata = yield from self._metadata()
        if not find_node(metadata, snid).is_draining:
            self._check_drain(metadata, snid)
            yield from self._decide(SetDraining(self._request(), snid, True))
        return snid

    def undrain_node(self, snid: StorageNodeID) -> Conversation:
        find_node((yield from self._metadata()), snid)
        yield from self._decide(SetDraining(self._request(), snid, False))
        return snid

    def _check_drain(self, metadata: Metadata, snid: StorageNodeID) -> None:
        """Every log stream must be left with enough replicas that answer, or find a node for another one."""
        infos = self._infos()
        willing = {
            node.snid
            for node in metadata.nodes
            if node.snid != snid and not node.is_draining and node.snid in infos and infos[node.snid].is_identified
        }
        for stream in metadata.streams:
            least = topic_of(metadata, stream.tpid).min_replicas
            staying = willing.intersection(stream.replicas)
            if snid in stream.replicas and len(willing) < least and not stream.lost_end:
                raise errors.Conflict(
                    f"log stream {stream.lsid} needs {least} replicas and would be left with {len(staying)} that "
                    f"answer, and no other storage node could take one; add a node first"
                )

    def replace_node(self, snid: StorageNodeID, by: StorageNodeID) -> Conversation:
        """Give every replica of one node to another, also those it has lost its place for while it was away; then take
        no new ones to it."""
        metadata = yield from self._metadata()
        if snid == by:
            raise errors.InvalidArgument(f"storage node {snid} cannot take its own place")
        if not find_node(metadata, snid).is_draining:
            self._check_drain(metadata, snid)
        infos = self._infos()
        check_willing(metadata, infos, by)
        plans = [
            PlanStream(self._request(), stream.lsid, by, _leaver(stream, snid))
            for stream in metadata.streams
            if _replaces(metadata, stream, snid, by, infos.get(snid))
        ]
        for begin in range(0, len(plans), _PLANS_AT_ONCE):
            some = plans[begin : begin + _PLANS_AT_ONCE]
            for answer in (yield [(METADATA_REPOSITORY, plan) for plan in some]):
                succeeded(answer, Decided)
        yield from self._decide(SetDraining(self._request(), snid, True))
        return snid

    # Log streams

    def seal_stream(self, lsid: LogStreamID) -> Conversation:
        """Seal and keep so. The wish goes first: the manager's watching must not unseal it in between."""
        stream = find_registered_stream((yield from self._metadata()), lsid)
        _check_no_chain(stream, "it is sealed with its topic, by: varlog sequencer seal")
        yield from self._decide(HoldStream(self._request(), lsid, True))
        for attempt in range(_SEAL_ATTEMPTS):
            if stream.status is StreamStatus.SEALED:
                break
            try:
                yield from self._decide(SealStream(self._request(), lsid, stream.epoch))
                break
            except errors.Conflict:  # its epoch has changed since
                if attempt == _SEAL_ATTEMPTS - 1:
                    raise
            stream = find_registered_stream((yield from self._metadata()), lsid)
        return lsid

    def unseal_stream(self, lsid: LogStreamID) -> Conversation:
        """Let it run again; the manager's watching does the rest."""
        stream = find_registered_stream((yield from self._metadata()), lsid)
        _check_no_chain(stream, "it is never kept sealed")
        _check_not_lost(stream)
        if not stream.is_held:
            by_itself = ", and the manager lets it run again as soon as its replicas allow it"
            raise errors.Conflict(
                f"log stream {lsid} was not sealed by an operator: it is {stream.status.name}"
                + (by_itself if stream.status is not StreamStatus.RUNNING else "")
            )
        yield from self._decide(HoldStream(self._request(), lsid, False))
        return lsid

    def move_replica(self, lsid: LogStreamID, joining: StorageNodeID, leaving: StorageNodeID) -> Conversation:
        """Plan a replica more, one less, or one in place of another; neither gives a plan up."""
        metadata = yield from self._metadata()
        stream = find_registered_stream(metadata, lsid)
        if joining and joining not in stream.replicas:
            check_willing(metadata, self._infos(), joining)
        if joining or leaving:
            _check_not_held(stream)
        yield from self._decide(PlanStream(self._request(), lsid, joining, leaving))
        return lsid

    def sync_stream(self, lsid: LogStreamID, target: StorageNodeID, source: StorageNodeID) -> Conversation:
        """Have a replica copy what it lacks; returns how far it is, in percent (M9)."""
        metadata = yield from self._metadata()
        stream = find_registered_stream(metadata, lsid)
        _check_no_chain(stream, "who is to join its chain copies by itself; to have another one there, move a replica")
        for snid in filter(None, (target, source)):
            find_node(metadata, snid)
        if target == source:
            raise errors.InvalidArgument(f"storage node {target} cannot copy from itself")
        infos = self._infos()
        replica = _replica(infos, stream, target)
        if replica.epoch >= stream.epoch and replica.state is not ReplicaState.SEALING:
            return 100
        if not replica.healthy:
            raise errors.Conflict(
                f"the replica of log stream {lsid} on storage node {target} is damaged, and is never mended in place: "
                "the manager takes it out and makes it anew"
            )
        source = source or _source(infos, stream, target, replica)
        learner = target not in stream.replicas
        sync = Sync(self._request(), lsid, stream.epoch, source, learner)
        return _percent(one(SyncReply, (yield [(node_address(target), sync)])))

    def declare_lost(self, asked: DeclareLost) -> Conversation:
        """Record that a range has no copy any more. Every registered node is asked, whoever was in the set: one that
        left it long ago may have more than those who stayed."""
        metadata = yield from self._metadata()
        stream = find_registered_stream(metadata, asked.lsid)
        _check_no_chain(stream, "what no replica has there cannot be declared lost; remove the topic")
        if stream.status is not StreamStatus.SEALED:
            raise errors.Conflict(f"log stream {asked.lsid} is {stream.status.name}; seal it first")
        infos = yield from self._all_infos(metadata, asked.gone)
        begin, survivors = judge(stream, topic_of(metadata, stream.tpid).trim, infos)
        if stream.lost_end and begin >= stream.lost_begin:
            return stream.lost_begin
        if not asked.only_look:
            yield from self._decide(LoseStream(self._request(), stream.lsid, stream.epoch, begin, survivors))
        return begin

    def _all_infos(
        self, metadata: Metadata, gone: Collection[StorageNodeID]
    ) -> Generator[Requests, Seq[Answer], dict[StorageNodeID, Info]]:
        """What every node says now. Who does not answer must be named as gone, and who is named must not answer."""
        for snid in gone:
            find_node(metadata, snid)
        answers = yield [(node_address(node.snid), GetInfo(self._request())) for node in metadata.nodes]
        infos: dict[StorageNodeID, Info] = {}
        for node, answer in zip(metadata.nodes, answers, strict=True):
            if isinstance(answer, Info):
                infos[node.snid] = answer
                if node.snid in gone:
                    raise errors.Conflict(f"storage node {node.snid} is not gone: it answers")
            elif node.snid not in gone:
                raise errors.Conflict(
                    f"storage node {node.snid} does not answer, and may have what is missing; start it, or name it as "
                    "gone if it will never come back"
                )
        return infos


def _check_no_chain(stream: StreamInfo, instead: str) -> None:
    if stream.status is StreamStatus.CHAINED:
        raise errors.WrongOrdering(f"log stream {stream.lsid} is of a topic that a sequencer orders: {instead}")


def _check_not_lost(stream: StreamInfo) -> None:
    if stream.lost_end:
        raise errors.Conflict(
            f"log stream {stream.lsid} has lost GLSN {stream.lost_begin} to {stream.lost_end - 1} and stays sealed"
        )


def _check_not_held(stream: StreamInfo) -> None:
    """Its set changes only when it is unsealed."""
    _check_not_lost(stream)
    if stream.is_held:
        raise errors.Conflict(f"log stream {stream.lsid} is kept sealed by an operator; unseal it first")


def _replaces(
    metadata: Metadata, stream: StreamInfo, snid: StorageNodeID, by: StorageNodeID, info: Info | None
) -> bool:
    """Whether a node takes the place of another one in a log stream: the other has a replica in its set, or one is
    lacking there that the other has, or may have while it does not answer."""
    if not stream.replicas or stream.lost_end:
        return False
    if snid in stream.replicas:
        if by in stream.replicas:
            raise errors.Conflict(f"log stream {stream.lsid} has replicas on storage nodes {snid} and {by} both")
    elif not is_awaited(metadata, stream, snid, info) or by in stream.replicas:
        return False
    _check_not_held(stream)
    under_way = stream.joining or stream.leaving in stream.replicas
    if under_way and (stream.joining, stream.leaving) != (by, _leaver(stream, snid)):
        raise errors.Conflict(
            f"log stream {stream.lsid} is being changed already (joining: {stream.joining or 'nobody'}, leaving: "
            f"{stream.leaving or 'nobody'}); wait for that, or cancel it"
        )
    return True


def is_awaited(metadata: Metadata, stream: StreamInfo, snid: StorageNodeID, info: Info | None) -> bool:
    """Whether a log stream lacks a replica that a node outside of its set has, or may have while it does not answer."""
    if not stream.replicas or stream.lost_end or snid in stream.replicas:
        return False
    if len(stream.replicas) >= topic_of(metadata, stream.tpid).replication_factor:
        return False
    return info is None or any(replica.lsid == stream.lsid for replica in info.replicas)


def _leaver(stream: StreamInfo, snid: StorageNodeID) -> StorageNodeID:
    return snid if snid in stream.replicas else _NOBODY


def _replica(infos: Mapping[StorageNodeID, Info], stream: StreamInfo, snid: StorageNodeID) -> ReplicaInfo:
    if snid not in infos:
        raise errors.Unreachable(f"storage node {snid} does not answer")
    for replica in infos[snid].replicas:
        if replica.lsid == stream.lsid:
            return replica
    raise errors.NoSuchReplica(f"storage node {snid} has no replica of log stream {stream.lsid}; move one there")


def _source(
    infos: Mapping[StorageNodeID, Info], stream: StreamInfo, target: StorageNodeID, replica: ReplicaInfo
) -> StorageNodeID:
    """The one it copies from already; else one of the set that is complete, the primary only if there is no other."""
    if replica.source:
        return replica.source
    is_member = target in stream.replicas
    wanted = {ReplicaState.SEALED} if is_member else {ReplicaState.SEALED, ReplicaState.RUNNING}
    found = [
        snid
        for snid in stream.replicas
        if snid != target
        for other in (infos[snid].replicas if snid in infos else ())
        if other.lsid == stream.lsid and other.healthy and other.epoch == stream.epoch and other.state in wanted
    ]
    if not found:
        why = "is sealed and complete" if is_member else "runs, or is sealed and complete"
        raise errors.NoSource(f"no replica of log stream {stream.lsid} {why}: there is none to copy from")
    return min(found, key=lambda snid: (snid == stream.primary, snid))


def _percent(reply: SyncReply) -> int:
    """A copy that has not begun yet, because cuts may still bring what is lacking, is at 0."""
    if reply.is_complete:
        return 100
    return min(99, 100 * max(0, reply.copied_end - 1) // max(1, reply.source_end - 1))
