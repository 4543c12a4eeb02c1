"""What the metadata repository may decide: a request and the present state in, an entry or a typed refusal out.

Each function answers one request. It returns the entry to be made, or an `Already` where the state is what the request
asks for, so that a request can be repeated safely after a lost answer. (Those that give out an id give out another
one; a log stream left in CREATING is aborted by whoever finds it.) A refusal changes nothing.
"""

from __future__ import annotations

from typing import NamedTuple

from varlog import errors, limits
from varlog.core import identity, registering
from varlog.core import metastate as m
from varlog.core.admissible import check_place, check_proof, check_room, check_set, check_volumes, load
from varlog.core.messages import (
    AbortStream,
    AnnounceNode,
    BeginTransaction,
    CreateStream,
    CreateTopic,
    DeleteTopic,
    EndTransaction,
    ForgetTransactions,
    HoldStream,
    LoseStream,
    Message,
    PlanStream,
    ProposeProjection,
    RegisterManager,
    RegisterNode,
    RegisterSequencer,
    RegisterStream,
    RenewNode,
    RunStream,
    SealStream,
    SetArchive,
    SetDraining,
    TrimTopic,
    UnregisterNode,
    UnregisterStream,
    UnsealStream,
)
from varlog.core.metastate import AnyEntry, MetadataState, Node, Stream
from varlog.core.projecting import names_stream, propose, register_sequencer
from varlog.core.projection import NEVER
from varlog.types import FIRST_EPOCH, MAX_ID, Epoch, LogStreamID, Ordering, StorageNodeID, StreamStatus


class Already(NamedTuple):
    """The state is as asked for; nothing is to be written."""


ALREADY = Already()

Decision = AnyEntry | Already


def decide(state: MetadataState, request: Message, now: float = 0.0) -> Decision:
    """The entry that grants a request, or a typed error."""
    match request:
        case SealStream():
            return seal(state, request)
        case UnsealStream():
            return unseal(state, request)
        case RunStream():
            return run(state, request)
        case CreateStream():
            return create_stream(state, request)
        case RegisterStream():
            return register_stream(state, request)
        case UnregisterStream():
            return unregister_stream(state, request)
        case AbortStream():
            return abort_stream(state, request)
        case PlanStream():
            return plan(state, request)
        case HoldStream():
            return hold(state, request)
        case LoseStream():
            return lose(state, request)
        case BeginTransaction():
            return registering.begin(state, request, now) or ALREADY
        case EndTransaction():
            return registering.end(state, request) or ALREADY
        case ForgetTransactions():
            return registering.forget(state, request) or ALREADY
        case _:
            return _decide_on_topic(state, request)


def _decide_on_topic(state: MetadataState, request: Message) -> Decision:
    match request:
        case TrimTopic():
            return trim(state, request)
        case CreateTopic():
            return create_topic(state, request)
        case ProposeProjection():
            return propose(state, request) or ALREADY
        case SetArchive():
            return set_archive(state, request)
        case DeleteTopic(_, tpid):
            return m.TopicDeleted(tpid) if tpid in state.topics else ALREADY
        case _:
            return _decide_on_member(state, request)


def _decide_on_member(state: MetadataState, request: Message) -> Decision:
    match request:
        case RegisterNode():
            return register_node(state, request)
        case AnnounceNode():
            return announce_node(state, request)
        case UnregisterNode():
            return unregister_node(state, request)
        case RenewNode():
            return renew_node(state, request)
        case SetDraining():
            return set_draining(state, request)
        case RegisterSequencer():
            return register_sequencer(state, request) or ALREADY
        case RegisterManager(_, address):
            check_place(address)
            return ALREADY if state.manager == address else m.ManagerRegistered(address)
        case _:
            raise errors.InvalidArgument(f"{type(request).__name__} is nothing to decide on")


def register_node(state: MetadataState, request: RegisterNode) -> Decision:
    """A node is registered once; where it is afterwards, it says itself. Whoever is told that it is so already may give
    the node its secret, so that is said only if the proof on record is the one in the request."""
    if not 1 <= request.snid <= MAX_ID:
        raise errors.InvalidArgument(f"a storage node's id goes from 1 to {MAX_ID}, not {request.snid}")
    check_place(request.address, request.volumes)
    generation = request.generation if request.proof else 0
    if request.proof:
        check_proof(request.proof, request.generation)
    node = state.nodes.get(request.snid)
    if node is None:
        if len(state.nodes) >= limits.MAX_NODES:
            raise errors.LimitExceeded(f"there are {limits.MAX_NODES} storage nodes already")
        return m.NodeRegistered(request.snid, request.address, request.volumes, request.proof, generation)
    if node.address != request.address:
        raise errors.AlreadyExists(f"storage node {request.snid} is registered already, at {node.address}")
    if request.proof and (node.proof, node.generation) != (request.proof, generation):
        raise errors.Conflict(f"storage node {request.snid} is registered already, not with this identity")
    return ALREADY


def announce_node(state: MetadataState, request: AnnounceNode) -> Decision:
    """Where a node is now, if it is the one it says it is (B11)."""
    node = state.nodes.get(request.snid)
    if node is None:
        raise errors.UnknownNode(f"storage node {request.snid} is not registered; add it with its address")
    check_place(request.address, request.volumes)
    who = identity.Recorded(node.generation, node.proof, node.next_proof, node.boot)
    if node.proof:
        if request.next_proof:
            check_proof(request.next_proof)
        who = identity.admit(request.snid, who, request.boot, request.secret, request.next_proof)
    before = (node.address, node.volumes, node.boot, node.proof, node.next_proof)
    if before == (request.address, request.volumes, who.boot, who.proof, who.next_proof):
        return ALREADY
    return m.NodeAnnounced(request.snid, request.address, request.volumes, who.boot, who.proof, who.next_proof)


def renew_node(state: MetadataState, request: RenewNode) -> Decision:
    """Another secret for a node whose volumes hold none any more. What it had counts for nothing from then on. So no
    log stream may be running, or about to run, with a set it is in; in that of one that is sealed it may stay, since a
    replica that is empty is not unsealed before it has everything again (rule 2)."""
    node = _node(state, request.snid)
    check_proof(request.proof, request.generation + 1)
    if (node.generation, node.proof) == (request.generation + 1, request.proof):
        return ALREADY
    if node.generation != request.generation:
        raise errors.Conflict(
            f"storage node {request.snid} has its identity number {node.generation}, not {request.generation}"
        )
    hosted = _hosted(state, request.snid)
    if running := [lsid for lsid in hosted if state.streams[lsid].status is not StreamStatus.SEALED]:
        raise errors.Conflict(
            f"storage node {request.snid} is in the replica sets of log streams {running}, which run; it must leave "
            "them first"
        )
    return m.NodeRenewed(request.snid, request.generation + 1, request.proof)


def set_draining(state: MetadataState, request: SetDraining) -> Decision:
    """A node is drained only if every log stream can do without it, with whom it has left or with others."""
    node = _node(state, request.snid)
    if node.is_draining == request.is_draining:
        return ALREADY
    if request.is_draining:
        staying = {snid for snid, n in state.nodes.items() if not n.is_draining and snid != request.snid}
        for stream in state.streams.values():
            if request.snid in stream.replicas and not stream.lost_begin:
                _check_can_leave(state, stream, request.snid, staying)
    return m.NodeDraining(request.snid, request.is_draining)


def _check_can_leave(state: MetadataState, stream: Stream, snid: StorageNodeID, staying: set[StorageNodeID]) -> None:
    least = state.topics[stream.tpid].min_replicas
    left = staying.intersection(stream.replicas)
    if len(left) >= least:
        return
    loads = load(state, staying)
    spare = [other for other in staying - left if loads[other] < limits.MAX_LOG_STREAMS_PER_NODE]
    if len(left) + len(spare) < least:
        raise errors.Conflict(
            f"storage node {snid} cannot be drained: log stream {stream.lsid} needs {least} replicas, would have "
            f"{len(left)}, and {len(spare)} other storage nodes could take one; add a storage node first"
        )


def unregister_node(state: MetadataState, request: UnregisterNode) -> Decision:
    """A node goes only when it has nothing that the log is made of."""
    if request.snid not in state.nodes:
        return ALREADY
    if hosted := _hosted(state, request.snid):
        raise errors.Conflict(f"storage node {request.snid} has replicas of log streams {hosted}; drain it first")
    if awaited := [stream.lsid for stream in state.streams.values() if stream.joining == request.snid]:
        raise errors.Conflict(
            f"storage node {request.snid} is about to get replicas of log streams {awaited}; end that first"
        )
    return m.NodeUnregistered(request.snid)


def _node(state: MetadataState, snid: StorageNodeID) -> Node:
    node = state.nodes.get(snid)
    if node is None:
        raise errors.UnknownNode(f"storage node {snid} is not registered")
    return node


def _hosted(state: MetadataState, snid: StorageNodeID) -> list[LogStreamID]:
    return [stream.lsid for stream in state.streams.values() if snid in stream.replicas]


def _stream(state: MetadataState, lsid: LogStreamID) -> Stream:
    stream = state.streams.get(lsid)
    if stream is None:
        raise errors.UnknownLogStream(f"there is no log stream {lsid}")
    return stream


def _registered(state: MetadataState, lsid: LogStreamID) -> Stream:
    stream = _stream(state, lsid)
    if stream.epoch < FIRST_EPOCH and stream.status is not StreamStatus.CHAINED:
        raise errors.Conflict(f"log stream {lsid} is not registered: it is {stream.status.name}")
    return stream


def _committed(state: MetadataState, lsid: LogStreamID) -> Stream:
    """A registered log stream that cuts order."""
    topic = state.topics[_stream(state, lsid).tpid]
    if topic.ordering is not Ordering.COMMIT:
        raise errors.WrongOrdering(
            f"log stream {lsid} is of topic {topic.name!r}, which a sequencer orders: it is not sealed and unsealed by "
            "itself; propose a projection"
        )
    return _registered(state, lsid)


def seal(state: MetadataState, request: SealStream) -> Decision:
    """Seal a log stream in the epoch the requester saw; one sealed since is fine."""
    stream = _committed(state, request.lsid)
    if stream.status is StreamStatus.SEALED and stream.epoch in (request.epoch, request.epoch + 1):
        return ALREADY
    if stream.epoch != request.epoch:
        raise errors.Conflict(f"log stream {stream.lsid} is in epoch {stream.epoch}, not {request.epoch}")
    return m.StreamSealed(stream.lsid, Epoch(stream.epoch + 1))


def unseal(state: MetadataState, request: UnsealStream) -> Decision:
    """Decide the next epoch's set and primary. Any nodes may be named: that each of them is complete is theirs to say,
    for a replica takes its Unseal only if it has reached the seal point (rule 2), and cuts count nothing before all
    have."""
    stream = _committed(state, request.lsid)
    check_set(state, request.replicas)
    check_volumes(request.replicas, request.volumes)
    if request.primary not in request.replicas:
        raise errors.InvalidArgument(f"the primary {request.primary} is not among the replicas {request.replicas}")
    same = (stream.replicas, stream.primary) == (request.replicas, request.primary)
    if stream.epoch == request.epoch + 1 and stream.status is not StreamStatus.SEALED and same:
        return ALREADY
    if stream.status is not StreamStatus.SEALED or stream.epoch != request.epoch:
        raise errors.Conflict(f"log stream {stream.lsid} is {stream.status.name} in epoch {stream.epoch}")
    if stream.is_held:
        raise errors.Conflict(f"log stream {stream.lsid} is to stay sealed: {_why_held(stream)}")
    topic = state.topics[stream.tpid]
    if not topic.min_replicas <= len(request.replicas) <= topic.replication_factor:
        raise errors.InvalidArgument(
            f"log stream {stream.lsid} runs on {topic.min_replicas} to {topic.replication_factor} replicas, not "
            f"{len(request.replicas)}"
        )
    check_room(state, stream, set(request.replicas) - set(stream.replicas))
    epoch = Epoch(stream.epoch + 1)
    return m.StreamUnsealing(stream.lsid, epoch, request.replicas, request.primary, request.volumes)


def _why_held(stream: Stream) -> str:
    if stream.lost_begin:
        return f"its entries from {stream.lost_begin} on were declared lost"
    return "an operator sealed it; unseal it as one"


def plan(state: MetadataState, request: PlanStream) -> Decision:
    """What an operator wants of a log stream's set. It is done by the next unseals; a plan that is under way is not
    replaced by another, but it can be ended."""
    stream = _registered(state, request.lsid)
    joining, leaving = request.joining, request.leaving
    for snid in {joining, leaving} - {0}:
        _node(state, snid)
    if (stream.joining, stream.leaving) == (joining, leaving):
        return ALREADY
    if joining or leaving:
        if stream.joining or stream.leaving in stream.replicas:
            raise errors.Conflict(f"log stream {stream.lsid} is being changed already: {_planned(stream)}")
        if (not joining or joining in stream.replicas) and leaving not in stream.replicas:
            return ALREADY
        _check_plan(state, stream, joining, leaving)
    return m.StreamPlanned(stream.lsid, joining, leaving)


def _planned(stream: Stream) -> str:
    joins = [f"storage node {stream.joining} is to join"] if stream.joining else []
    leaves = [f"storage node {stream.leaving} is to leave"] if stream.leaving else []
    return ", ".join(joins + leaves)


def _check_plan(state: MetadataState, stream: Stream, joining: StorageNodeID, leaving: StorageNodeID) -> None:
    what = f"log stream {stream.lsid}"
    if stream.lost_begin:
        raise errors.Conflict(f"{what} is to stay as it is: {_why_held(stream)}")
    if joining in stream.replicas:
        raise errors.Conflict(f"storage node {joining} has a replica of {what} already")
    if leaving and leaving not in stream.replicas:
        raise errors.Conflict(f"storage node {leaving} has no replica of {what}")
    if joining and state.nodes[joining].is_draining:
        raise errors.Conflict(f"storage node {joining} is being drained")
    topic = state.topics[stream.tpid]
    if joining and not leaving and len(stream.replicas) >= topic.replication_factor:
        raise errors.Conflict(
            f"{what} has {len(stream.replicas)} replicas, as its topic wants; say which one is to leave"
        )
    if leaving and not joining and len(stream.replicas) <= topic.min_replicas:
        raise errors.Conflict(
            f"{what} has {len(stream.replicas)} replicas and needs {topic.min_replicas}; say which node is to join"
        )
    check_room(state, stream, {joining} - {0})


def hold(state: MetadataState, request: HoldStream) -> Decision:
    """Let a log stream stay sealed once it is, or not."""
    stream = _committed(state, request.lsid)
    if stream.is_held == request.is_held:
        return ALREADY
    if stream.lost_begin:
        raise errors.Conflict(f"log stream {stream.lsid} is to stay sealed: {_why_held(stream)}")
    return m.StreamHeld(stream.lsid, request.is_held)


def lose(state: MetadataState, request: LoseStream) -> Decision:
    """Record what nobody has any more. What is declared lost can become more, never less."""
    stream = _committed(state, request.lsid)
    if request.replicas:
        check_set(state, request.replicas)
    if stream.status is not StreamStatus.SEALED or stream.epoch != request.epoch:
        raise errors.Conflict(f"log stream {stream.lsid} is {stream.status.name} in epoch {stream.epoch}")
    if (stream.lost_begin, stream.replicas) == (request.glsn_begin, request.replicas):
        return ALREADY
    if not 1 <= request.glsn_begin <= stream.last_glsn:
        raise errors.InvalidArgument(
            f"log stream {stream.lsid} has entries up to {stream.last_glsn}: none from {request.glsn_begin} on are lost"
        )
    if stream.lost_begin and request.glsn_begin > stream.lost_begin:
        raise errors.Conflict(f"of log stream {stream.lsid} what it had from {stream.lost_begin} on is lost already")
    return m.StreamLost(stream.lsid, request.glsn_begin, request.replicas)


def run(state: MetadataState, request: RunStream) -> Decision:
    """Let cuts count a log stream all of whose replicas run."""
    stream = _committed(state, request.lsid)
    if stream.epoch != request.epoch or stream.status is StreamStatus.SEALED:
        raise errors.Conflict(f"log stream {stream.lsid} is {stream.status.name} in epoch {stream.epoch}")
    return ALREADY if stream.status is StreamStatus.RUNNING else m.StreamRunning(stream.lsid, stream.epoch)


def trim(state: MetadataState, request: TrimTopic) -> Decision:
    """Trim points only grow, and never pass the tail (rule 14). Where that is, if a sequencer orders the topic, is for
    the client to find out."""
    topic = state.topics.get(request.tpid)
    if topic is None:
        raise errors.UnknownTopic(f"there is no topic {request.tpid}")
    most = topic.hwm if topic.projection is None else NEVER - 2
    if request.glsn > most:
        raise errors.InvalidArgument(f"cannot trim to {request.glsn}: the tail of topic {topic.name!r} is {topic.hwm}")
    if request.glsn <= topic.trim:
        return ALREADY
    registering.check_trim(state, topic.tpid, request.glsn)
    return m.Trimmed(topic.tpid, request.glsn)


def create_topic(state: MetadataState, request: CreateTopic) -> Decision:
    if not 1 <= len(request.name) <= limits.MAX_TOPIC_NAME or not request.name.isprintable():
        raise errors.InvalidArgument(f"a topic's name has 1 to {limits.MAX_TOPIC_NAME} printable characters")
    for topic in state.topics.values():
        if topic.name == request.name:
            raise errors.AlreadyExists(f"topic {request.name!r} exists already")
    if len(state.topics) >= limits.MAX_TOPICS:
        raise errors.LimitExceeded(f"there are {limits.MAX_TOPICS} topics already")
    if not 1 <= request.min_replicas <= request.replication_factor <= limits.MAX_REPLICAS:
        raise errors.InvalidArgument(
            f"1 <= min_replicas <= replication factor <= {limits.MAX_REPLICAS} does not hold for "
            f"{request.min_replicas} and {request.replication_factor}"
        )
    if not 1 <= request.first <= limits.MAX_FIRST_GLSN:
        raise errors.InvalidArgument(f"a topic's first position is 1 to {limits.MAX_FIRST_GLSN}, not {request.first}")
    block = _block(request)
    factor, least = request.replication_factor, request.min_replicas
    return m.TopicCreated(state.next_tpid, request.name, factor, least, request.first, request.ordering, block)


def _block(request: CreateTopic) -> int:
    """How many consecutive positions of a topic lie in one log stream."""
    if request.ordering is Ordering.COMMIT:
        if request.block:
            raise errors.InvalidArgument("only the positions of a topic that a sequencer orders are dealt in blocks")
        return 0
    block = request.block or limits.STRIPE_BLOCK
    if not 1 <= block <= limits.MAX_STRIPE_BLOCK:
        raise errors.InvalidArgument(f"a block has 1 to {limits.MAX_STRIPE_BLOCK} positions, not {block}")
    return block


def set_archive(state: MetadataState, request: SetArchive) -> Decision:
    """Every client is told the place, so it must mean the same to all of them, and hold nothing secret."""
    topic = state.topics.get(request.tpid)
    if topic is None:
        raise errors.UnknownTopic(f"there is no topic {request.tpid}")
    uri = request.uri
    if len(uri) > limits.MAX_ARCHIVE_URI or (uri and not uri.isprintable()):
        raise errors.InvalidArgument(
            f"the place of an archive has at most {limits.MAX_ARCHIVE_URI} printable characters"
        )
    scheme, has_scheme, rest = uri.partition("://")
    if uri and not has_scheme and not uri.startswith("/"):
        raise errors.InvalidArgument(f"an archive is at an absolute path or a URI, not {uri!r}")
    if has_scheme and ":" in rest.partition("/")[0].rpartition("@")[0]:
        raise errors.InvalidArgument(
            f"the place of an archive must not hold a password, and {scheme}://... does; leave it to the environment"
        )
    return ALREADY if topic.archive == uri else m.ArchiveAttached(topic.tpid, uri)


def create_stream(state: MetadataState, request: CreateStream) -> Decision:
    if request.tpid not in state.topics:
        raise errors.UnknownTopic(f"there is no topic {request.tpid}")
    if len(state.streams) >= limits.MAX_LOG_STREAMS:
        raise errors.LimitExceeded(f"there are {limits.MAX_LOG_STREAMS} log streams already")
    return m.StreamCreating(state.next_lsid, request.tpid)


def register_stream(state: MetadataState, request: RegisterStream) -> Decision:
    stream = _stream(state, request.lsid)
    check_set(state, request.replicas)
    if stream.status is not StreamStatus.CREATING:
        if stream.replicas == request.replicas and stream.status is not StreamStatus.ABORTED:
            return ALREADY
        raise errors.Conflict(f"log stream {stream.lsid} is {stream.status.name} already")
    check_volumes(request.replicas, request.volumes)
    for snid in request.replicas:
        if state.nodes[snid].is_draining:
            raise errors.Conflict(f"storage node {snid} is being drained")
    wanted = state.topics[stream.tpid].replication_factor
    if len(request.replicas) != wanted:
        raise errors.InvalidArgument(f"log stream {stream.lsid} has {wanted} replicas, not {len(request.replicas)}")
    check_room(state, stream, request.replicas)
    return m.StreamRegistered(stream.lsid, request.replicas, request.volumes)


def unregister_stream(state: MetadataState, request: UnregisterStream) -> Decision:
    """A log stream goes only when no reader can miss it: every entry of it is trimmed, and no append is under way."""
    stream = state.streams.get(request.lsid)
    if stream is None:
        return ALREADY
    if stream.status in (StreamStatus.RUNNING, StreamStatus.UNSEALING):
        raise errors.Conflict(f"log stream {stream.lsid} takes appends; seal it first")
    topic = state.topics[stream.tpid]
    if names_stream(topic, stream.lsid):
        raise errors.Conflict(f"positions of topic {topic.name!r} lie in log stream {stream.lsid}")
    if stream.last_glsn > topic.trim:
        raise errors.Conflict(f"log stream {stream.lsid} holds entries up to {stream.last_glsn}; trim the topic first")
    return m.StreamUnregistered(stream.lsid)


def abort_stream(state: MetadataState, request: AbortStream) -> Decision:
    stream = _stream(state, request.lsid)
    if stream.status is StreamStatus.ABORTED:
        return ALREADY
    if stream.status is not StreamStatus.CREATING:
        raise errors.Conflict(f"log stream {stream.lsid} was registered; it cannot be aborted")
    return m.StreamAborted(stream.lsid)
