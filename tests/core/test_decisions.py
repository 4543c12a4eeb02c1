"""What the metadata repository grants and what it refuses: typed errors, nothing changed, requests that may repeat."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import pytest

from varlog import errors, limits
from varlog.core import metastate as m
from varlog.core.decisions import ALREADY, Already, decide
from varlog.core.describing import describe
from varlog.core.identity import new_secret, proof_of
from varlog.core.messages import (
    AbortStream,
    AnnounceNode,
    CreateStream,
    CreateTopic,
    DeleteTopic,
    GetMetadata,
    HoldStream,
    LoseStream,
    Message,
    PlanStream,
    RegisterManager,
    RegisterNode,
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
from varlog.core.metastate import AnyEntry, Cut, MetadataState, Stream, Topic
from varlog.types import GLSN, Epoch, LogStreamID, StorageNodeID, StreamStatus, TopicID, Version

TOPIC = TopicID(1)
SECRET = new_secret(b"s" * 32)
PROOF = proof_of(StorageNodeID(6), SECRET)
OTHER_PROOF = proof_of(StorageNodeID(6), new_secret(b"t" * 32))
CREATING, SEALED, UNSEALING, RUNNING, ABORTED, SMALL, HELD, LOST, PLANNED, NOBODY = map(LogStreamID, range(1, 11))
SET = tuple(map(StorageNodeID, (1, 2, 3)))


def nodes(*snids: int) -> tuple[StorageNodeID, ...]:
    return tuple(map(StorageNodeID, snids))


def cluster() -> MetadataState:
    """Six nodes, of which 5 is being drained and 6 has a secret; a topic with nine entries; a log stream of it in each
    status, one that runs on two nodes, one that an operator holds, one of which entries are lost, and one that is to
    move."""
    state = MetadataState()
    entries: list[AnyEntry] = [m.NodeRegistered(StorageNodeID(snid)) for snid in (1, 2, 3, 4, 5)]
    entries += [m.NodeDraining(StorageNodeID(5), True), m.NodeRegistered(StorageNodeID(6), "f:1", (), PROOF, 1)]
    entries.append(m.TopicCreated(TOPIC, "orders", 3, 2))
    entries += [m.StreamCreating(LogStreamID(lsid), TOPIC) for lsid in range(1, NOBODY)]
    entries += [m.StreamRegistered(lsid, SET) for lsid in (SEALED, UNSEALING, RUNNING, SMALL, HELD, LOST, PLANNED)]
    entries += [m.StreamUnsealing(lsid, Epoch(2), SET, SET[0]) for lsid in (UNSEALING, RUNNING, HELD, LOST, PLANNED)]
    entries.append(m.StreamUnsealing(SMALL, Epoch(2), SET[:2], SET[0]))
    entries += [m.StreamRunning(lsid, Epoch(2)) for lsid in (RUNNING, SMALL, HELD, LOST, PLANNED)]
    entries.append(m.StreamAborted(ABORTED))
    entries.append(Cut(7, ((1, 0, 9),), ((int(RUNNING), 2, 1, 1, 5), (int(LOST), 2, 1, 6, 4))))
    entries += [m.StreamSealed(HELD, Epoch(3)), m.StreamHeld(HELD, True)]
    entries += [m.StreamSealed(LOST, Epoch(3)), m.StreamLost(LOST, GLSN(8), SET[:1]), planned(PLANNED, 4, 1)]
    for entry in entries:
        state.apply(Version(state.version + 1), entry)
    return state


def seal(lsid: LogStreamID, epoch: int) -> SealStream:
    return SealStream(1, lsid, Epoch(epoch))


def unseal(
    lsid: LogStreamID, epoch: int, replicas: Sequence[int] = SET, primary: int = 1, volumes: tuple[str, ...] = ()
) -> UnsealStream:
    return UnsealStream(1, lsid, Epoch(epoch), nodes(*replicas), StorageNodeID(primary), volumes)


def plan(lsid: LogStreamID, joining: int = 0, leaving: int = 0) -> PlanStream:
    return PlanStream(1, lsid, StorageNodeID(joining), StorageNodeID(leaving))


def planned(lsid: LogStreamID, joining: int = 0, leaving: int = 0) -> m.StreamPlanned:
    return m.StreamPlanned(lsid, StorageNodeID(joining), StorageNodeID(leaving))


def lose(lsid: LogStreamID, epoch: int, glsn: int, *replicas: int) -> LoseStream:
    return LoseStream(1, lsid, Epoch(epoch), GLSN(glsn), nodes(*replicas))


def run(lsid: LogStreamID, epoch: int) -> RunStream:
    return RunStream(1, lsid, Epoch(epoch))


def register(lsid: LogStreamID, *replicas: int) -> RegisterStream:
    return RegisterStream(1, lsid, nodes(*replicas))


def trim(glsn: int, tpid: int = TOPIC) -> TrimTopic:
    return TrimTopic(1, TopicID(tpid), GLSN(glsn))


GRANTED: dict[str, tuple[Message, AnyEntry]] = {
    "a new node": (RegisterNode(1, StorageNodeID(9)), m.NodeRegistered(StorageNodeID(9))),
    "a new topic": (CreateTopic(1, "audit", 3, 2), m.TopicCreated(TopicID(2), "audit", 3, 2)),
    "a new topic that begins later": (
        CreateTopic(1, "audit", 3, 2, GLSN(41)),
        m.TopicCreated(TopicID(2), "audit", 3, 2, GLSN(41)),
    ),
    "a new log stream": (CreateStream(1, TOPIC), m.StreamCreating(NOBODY, TOPIC)),
    "the registration of one being created": (
        register(CREATING, 3, 1, 4),
        m.StreamRegistered(CREATING, nodes(3, 1, 4)),
    ),
    "the end of one being created": (AbortStream(1, CREATING), m.StreamAborted(CREATING)),
    "the seal of a running one": (seal(RUNNING, 2), m.StreamSealed(RUNNING, Epoch(3))),
    "the seal of an unsealing one": (seal(UNSEALING, 2), m.StreamSealed(UNSEALING, Epoch(3))),
    "an unseal": (unseal(SEALED, 1, (1, 2, 3), 3), m.StreamUnsealing(SEALED, Epoch(2), SET, StorageNodeID(3))),
    "an unseal with fewer": (unseal(SEALED, 1, (1, 3), 3), m.StreamUnsealing(SEALED, Epoch(2), nodes(1, 3), SET[2])),
    "an unseal with a node that joins": (
        unseal(SEALED, 1, (1, 4, 3), 4, ("/a", "", "/c")),
        m.StreamUnsealing(SEALED, Epoch(2), nodes(1, 4, 3), StorageNodeID(4), ("/a", "", "/c")),
    ),
    "an unseal with others altogether": (
        unseal(SEALED, 1, (4, 6), 4),
        m.StreamUnsealing(SEALED, Epoch(2), nodes(4, 6), StorageNodeID(4)),
    ),
    "an unseal with one that is being drained, if it must be": (
        unseal(SEALED, 1, (1, 5), 1),
        m.StreamUnsealing(SEALED, Epoch(2), nodes(1, 5), StorageNodeID(1)),
    ),
    "that a replica moves": (plan(RUNNING, 4, 2), planned(RUNNING, 4, 2)),
    "that a replica moves of one that is sealed": (plan(SEALED, 4, 2), planned(SEALED, 4, 2)),
    "that a replica moves of one that is held": (plan(HELD, 4, 2), planned(HELD, 4, 2)),
    "that one more joins": (plan(SMALL, 3), planned(SMALL, 3)),
    "that one of enough leaves": (plan(RUNNING, 0, 2), planned(RUNNING, 0, 2)),
    "the end of a plan": (plan(PLANNED), planned(PLANNED)),
    "that one stays sealed": (HoldStream(1, RUNNING, True), m.StreamHeld(RUNNING, True)),
    "that one need not stay sealed": (HoldStream(1, HELD, False), m.StreamHeld(HELD, False)),
    "that more entries are lost, and with them every replica": (lose(LOST, 3, 6), m.StreamLost(LOST, GLSN(6), ())),
    "that a node is drained": (SetDraining(1, StorageNodeID(1), True), m.NodeDraining(StorageNodeID(1), True)),
    "that a node is not drained": (SetDraining(1, StorageNodeID(5), False), m.NodeDraining(StorageNodeID(5), False)),
    "a new node with a secret": (
        RegisterNode(1, StorageNodeID(9), "a:1", ("/v",), PROOF, 3),
        m.NodeRegistered(StorageNodeID(9), "a:1", ("/v",), PROOF, 3),
    ),
    "a node that shows its secret": (
        AnnounceNode(1, StorageNodeID(6), "f:2", ("/v",), 1 << 32 | 7, SECRET, OTHER_PROOF),
        m.NodeAnnounced(StorageNodeID(6), "f:2", ("/v",), 1 << 32 | 7, PROOF, OTHER_PROOF),
    ),
    "another secret for a node": (
        RenewNode(1, StorageNodeID(6), 1, OTHER_PROOF),
        m.NodeRenewed(StorageNodeID(6), 2, OTHER_PROOF),
    ),
    "that cuts count it again": (run(UNSEALING, 2), m.StreamRunning(UNSEALING, Epoch(2))),
    "a trim": (trim(4), m.Trimmed(TOPIC, GLSN(4))),
    "a trim of everything": (trim(9), m.Trimmed(TOPIC, GLSN(9))),
    "another address of a node": (AnnounceNode(1, SET[0], "b:1", ("/v",)), m.NodeAnnounced(SET[0], "b:1", ("/v",))),
    "that a node without replicas goes": (UnregisterNode(1, StorageNodeID(6)), m.NodeUnregistered(StorageNodeID(6))),
    "the manager's address": (RegisterManager(1, "c:1"), m.ManagerRegistered("c:1")),
    "an archive": (SetArchive(1, TOPIC, "/srv/archive"), m.ArchiveAttached(TOPIC, "/srv/archive")),
    "an archive in an object store": (
        SetArchive(1, TOPIC, "s3://key@bucket/a:b@c"),
        m.ArchiveAttached(TOPIC, "s3://key@bucket/a:b@c"),
    ),
    "the end of a topic": (DeleteTopic(1, TOPIC), m.TopicDeleted(TOPIC)),
    "the end of a sealed log stream without entries": (UnregisterStream(1, SEALED), m.StreamUnregistered(SEALED)),
    "the end of one that was never registered": (UnregisterStream(1, ABORTED), m.StreamUnregistered(ABORTED)),
}

ALREADY_SO: dict[str, Message] = {
    "a known node": RegisterNode(1, StorageNodeID(1)),
    "a seal that happened": seal(SEALED, 0),
    "a seal of one that is sealed": seal(SEALED, 1),
    "an unseal that happened": unseal(UNSEALING, 1),
    "an unseal that happened and runs": unseal(RUNNING, 1),
    "one that runs already": run(RUNNING, 2),
    "the same registration": register(SEALED, 1, 2, 3),
    "the same registration of one that runs": register(RUNNING, 1, 2, 3),
    "one that was aborted": AbortStream(1, ABORTED),
    "a trim of nothing": trim(0),
    "the address a node has": AnnounceNode(1, StorageNodeID(1), "", ()),
    "that an unknown node goes": UnregisterNode(1, StorageNodeID(9)),
    "the address the manager has": RegisterManager(1, ""),
    "no archive where there is none": SetArchive(1, TOPIC, ""),
    "the end of a topic that is gone": DeleteTopic(1, TopicID(7)),
    "the end of a log stream that is gone": UnregisterStream(1, NOBODY),
    "a move that is planned": plan(PLANNED, 4, 1),
    "a move that is done": plan(SMALL, 1, 3),
    "a replica that is there": plan(RUNNING, 3),
    "a replica that is not there": plan(RUNNING, 0, 4),
    "no plan": plan(RUNNING),
    "one that is held": HoldStream(1, HELD, True),
    "one that is not held": HoldStream(1, RUNNING, False),
    "one that is lost is held": HoldStream(1, LOST, True),
    "what was declared lost": lose(LOST, 3, 8, 1),
    "a node that is drained": SetDraining(1, StorageNodeID(5), True),
    "a node that is not drained": SetDraining(1, StorageNodeID(1), False),
    "a known node with the same secret": RegisterNode(1, StorageNodeID(6), "f:1", (), PROOF, 1),
    "the seal of one that is held": seal(HELD, 2),
}

REFUSED: dict[str, tuple[Message, type[errors.VarlogError]]] = {
    "a topic of the same name": (CreateTopic(1, "orders", 3, 2), errors.AlreadyExists),
    "a topic without a name": (CreateTopic(1, "", 3, 2), errors.InvalidArgument),
    "a topic with too long a name": (CreateTopic(1, "a" * (limits.MAX_TOPIC_NAME + 1), 3, 2), errors.InvalidArgument),
    "a topic without replicas": (CreateTopic(1, "a", 0, 0), errors.InvalidArgument),
    "a topic with too many replicas": (CreateTopic(1, "a", limits.MAX_REPLICAS + 1, 2), errors.InvalidArgument),
    "more needed replicas than there are": (CreateTopic(1, "a", 2, 3), errors.InvalidArgument),
    "an archive of a topic that is not there": (SetArchive(1, TopicID(7), "/a"), errors.UnknownTopic),
    "an archive wherever one stands": (SetArchive(1, TOPIC, "archive"), errors.InvalidArgument),
    "an archive with a password": (SetArchive(1, TOPIC, "s3://key:secret@bucket/a"), errors.InvalidArgument),
    "an archive in two lines": (SetArchive(1, TOPIC, "/a\nb"), errors.InvalidArgument),
    "an archive too far away": (SetArchive(1, TOPIC, "/" * (limits.MAX_ARCHIVE_URI + 1)), errors.InvalidArgument),
    "no needed replicas": (CreateTopic(1, "a", 2, 0), errors.InvalidArgument),
    "a topic before the first position": (CreateTopic(1, "a", 2, 1, GLSN(0)), errors.InvalidArgument),
    "a topic too far on": (CreateTopic(1, "a", 2, 1, GLSN(limits.MAX_FIRST_GLSN + 1)), errors.InvalidArgument),
    "a log stream of no topic": (CreateStream(1, TopicID(7)), errors.UnknownTopic),
    "registering what was never created": (register(NOBODY, 1), errors.UnknownLogStream),
    "registering without replicas": (register(CREATING), errors.InvalidArgument),
    "registering one node twice": (register(CREATING, 1, 1), errors.InvalidArgument),
    "registering too many replicas": (register(CREATING, *range(1, limits.MAX_REPLICAS + 2)), errors.InvalidArgument),
    "registering on an unknown node": (register(CREATING, 1, 2, 9), errors.UnknownNode),
    "registering too few replicas": (register(CREATING, 1, 2), errors.InvalidArgument),
    "registering again elsewhere": (register(SEALED, 1, 2, 4), errors.Conflict),
    "registering what was aborted": (register(ABORTED, 1, 2, 3), errors.Conflict),
    "aborting what was registered": (AbortStream(1, SEALED), errors.Conflict),
    "aborting what is not there": (AbortStream(1, NOBODY), errors.UnknownLogStream),
    "sealing what is not there": (seal(NOBODY, 2), errors.UnknownLogStream),
    "sealing what is not registered": (seal(CREATING, 0), errors.Conflict),
    "sealing what was aborted": (seal(ABORTED, 0), errors.Conflict),
    "sealing a passed epoch": (seal(RUNNING, 0), errors.Conflict),
    "sealing the epoch before an unseal": (seal(UNSEALING, 1), errors.Conflict),
    "sealing an epoch to come": (seal(RUNNING, 4), errors.Conflict),
    "unsealing what is not there": (unseal(NOBODY, 1), errors.UnknownLogStream),
    "unsealing what is not registered": (unseal(CREATING, 0), errors.Conflict),
    "unsealing what runs": (unseal(RUNNING, 2), errors.Conflict),
    "unsealing a passed epoch": (unseal(SEALED, 0), errors.Conflict),
    "unsealing an epoch to come": (unseal(SEALED, 3), errors.Conflict),
    "unsealing with another primary meanwhile": (unseal(UNSEALING, 1, (1, 2, 3), 2), errors.Conflict),
    "unsealing with another set meanwhile": (unseal(UNSEALING, 1, (1, 2), 1), errors.Conflict),
    "a primary outside the set": (unseal(SEALED, 1, (1, 2), 3), errors.InvalidArgument),
    "an empty set": (unseal(SEALED, 1, (), 1), errors.InvalidArgument),
    "a set with a node twice": (unseal(SEALED, 1, (1, 1), 1), errors.InvalidArgument),
    "a set with an unknown node": (unseal(SEALED, 1, (1, 9), 1), errors.UnknownNode),
    "a set larger than the topic wants": (unseal(SEALED, 1, (1, 2, 3, 4), 1), errors.InvalidArgument),
    "volumes of fewer than the set": (unseal(SEALED, 1, volumes=("/a", "/b")), errors.InvalidArgument),
    "unsealing what an operator holds": (unseal(HELD, 3), errors.Conflict),
    "unsealing what was declared lost": (unseal(LOST, 3), errors.Conflict),
    "a set smaller than the topic needs": (unseal(SEALED, 1, (1,), 1), errors.InvalidArgument),
    "running what is sealed": (run(SEALED, 1), errors.Conflict),
    "running another epoch": (run(UNSEALING, 4), errors.Conflict),
    "running what is not registered": (run(CREATING, 0), errors.Conflict),
    "running what is not there": (run(NOBODY, 2), errors.UnknownLogStream),
    "trimming beyond the tail": (trim(10), errors.InvalidArgument),
    "trimming no topic": (trim(1, tpid=7), errors.UnknownTopic),
    "a known node at another address": (RegisterNode(1, StorageNodeID(1), "b:1"), errors.AlreadyExists),
    "the address of an unknown node": (AnnounceNode(1, StorageNodeID(9), "b:1", ()), errors.UnknownNode),
    "that a node with replicas goes": (UnregisterNode(1, StorageNodeID(1)), errors.Conflict),
    "the end of a log stream that runs": (UnregisterStream(1, RUNNING), errors.Conflict),
    "the end of a log stream that will run": (UnregisterStream(1, UNSEALING), errors.Conflict),
    "a move of what is not there": (plan(NOBODY, 4, 1), errors.UnknownLogStream),
    "a move of what is not registered": (plan(CREATING, 4, 1), errors.Conflict),
    "a move of what was aborted": (plan(ABORTED, 4, 1), errors.Conflict),
    "a move of what is lost": (plan(LOST, 4, 1), errors.Conflict),
    "a move to an unknown node": (plan(RUNNING, 9, 1), errors.UnknownNode),
    "a move from an unknown node": (plan(RUNNING, 4, 9), errors.UnknownNode),
    "a move to a node that has a replica": (plan(RUNNING, 2, 1), errors.Conflict),
    "a move to the same node": (plan(RUNNING, 1, 1), errors.Conflict),
    "a move from a node that has no replica": (plan(RUNNING, 4, 6), errors.Conflict),
    "a move to a node that is being drained": (plan(RUNNING, 5, 1), errors.Conflict),
    "one more than the topic wants": (plan(RUNNING, 4), errors.Conflict),
    "one fewer than the topic needs": (plan(SMALL, 0, 1), errors.Conflict),
    "another plan than the one under way": (plan(PLANNED, 4, 2), errors.Conflict),
    "holding what is not there": (HoldStream(1, NOBODY, True), errors.UnknownLogStream),
    "holding what is not registered": (HoldStream(1, CREATING, True), errors.Conflict),
    "letting go of what was declared lost": (HoldStream(1, LOST, False), errors.Conflict),
    "losing what is not there": (lose(NOBODY, 1, 1), errors.UnknownLogStream),
    "losing what runs": (lose(RUNNING, 2, 1), errors.Conflict),
    "losing in a passed epoch": (lose(LOST, 1, 7), errors.Conflict),
    "losing what nobody wrote": (lose(SEALED, 1, 1), errors.InvalidArgument),
    "losing less than was lost": (lose(LOST, 3, 9, 1), errors.Conflict),
    "losing position zero": (lose(LOST, 3, 0, 1), errors.InvalidArgument),
    "an unknown node that has what is left": (lose(LOST, 3, 7, 9), errors.UnknownNode),
    "draining an unknown node": (SetDraining(1, StorageNodeID(9), True), errors.UnknownNode),
    "registering on a node that is being drained": (register(CREATING, 1, 2, 5), errors.Conflict),
    "that a node goes that is to have a replica": (UnregisterNode(1, StorageNodeID(4)), errors.Conflict),
    "a known node with another secret": (
        RegisterNode(1, StorageNodeID(6), "f:1", (), OTHER_PROOF, 1),
        errors.Conflict,
    ),
    "a secret for a known node without one": (
        RegisterNode(1, StorageNodeID(1), "", (), PROOF, 1),
        errors.Conflict,
    ),
    "a proof that is none": (RegisterNode(1, StorageNodeID(9), "", (), "secret", 1), errors.InvalidArgument),
    "a proof of no generation": (RegisterNode(1, StorageNodeID(9), "", (), PROOF, 0), errors.InvalidArgument),
    "another secret for an unknown node": (RenewNode(1, StorageNodeID(9), 1, PROOF), errors.UnknownNode),
    "another secret for a node of another generation": (
        RenewNode(1, StorageNodeID(6), 2, OTHER_PROOF),
        errors.Conflict,
    ),
    "another secret for a node with a replica that runs": (RenewNode(1, SET[0], 0, OTHER_PROOF), errors.Conflict),
    "another secret that is none": (RenewNode(1, StorageNodeID(6), 1, ""), errors.InvalidArgument),
    "a node that shows no secret": (AnnounceNode(1, StorageNodeID(6), "f:2", ()), errors.WrongIdentity),
    "what is no request for a decision": (GetMetadata(1), errors.InvalidArgument),
}


@pytest.mark.parametrize("case", GRANTED)
def test_a_request_is_granted_by_one_entry(case: str) -> None:
    request, entry = GRANTED[case]
    state = cluster()
    assert decide(state, request) == entry
    assert state == cluster(), "deciding changes nothing"
    state.apply(Version(state.version + 1), entry)


@pytest.mark.parametrize("case", [case for case in GRANTED if not case.startswith(("a new topic", "a new log stream"))])
def test_a_granted_request_may_be_repeated(case: str) -> None:
    """An answer may be lost. (A topic is told by its name; a log stream that nobody registers is aborted.)"""
    request, entry = GRANTED[case]
    state = cluster()
    state.apply(Version(state.version + 1), entry)
    assert decide(state, request) is ALREADY


@pytest.mark.parametrize("case", ALREADY_SO)
def test_what_is_already_so_needs_no_entry(case: str) -> None:
    assert decide(cluster(), ALREADY_SO[case]) is ALREADY


@pytest.mark.parametrize("case", REFUSED)
def test_a_refusal_is_typed_and_changes_nothing(case: str) -> None:
    request, error = REFUSED[case]
    state = cluster()
    with pytest.raises(errors.VarlogError) as refusal:
        decide(state, request)
    assert type(refusal.value) is error
    assert str(refusal.value)
    assert state == cluster()


def test_rule13_what_was_registered_is_never_aborted_and_what_was_aborted_never_registered() -> None:
    for lsid in (SEALED, UNSEALING, RUNNING):
        with pytest.raises(errors.Conflict):
            decide(cluster(), AbortStream(1, lsid))
    with pytest.raises(errors.Conflict):
        decide(cluster(), register(ABORTED, 1))


def test_rule2_the_epoch_is_odd_when_sealed_and_even_when_not() -> None:
    state = cluster()
    for _ in range(3):
        epoch = state.streams[RUNNING].epoch
        for request in (seal(RUNNING, epoch), unseal(RUNNING, epoch + 1), run(RUNNING, epoch + 2)):
            entry = decide(state, request)
            assert not isinstance(entry, Already)
            state.apply(Version(state.version + 1), entry)
            stream = state.streams[RUNNING]
            assert (stream.epoch % 2 == 1) == (stream.status is StreamStatus.SEALED)
    assert state.streams[RUNNING].epoch == 8


def test_rule14_a_trim_point_grows_up_to_the_tail() -> None:
    state = cluster()
    state.apply(Version(state.version + 1), m.Trimmed(TOPIC, GLSN(3)))
    assert decide(state, trim(3)) is ALREADY
    assert decide(state, trim(2)) is ALREADY
    assert decide(state, trim(4)) == m.Trimmed(TOPIC, GLSN(4))
    with pytest.raises(errors.InvalidArgument, match=f"the tail of topic {state.topics[TOPIC].name!r} is 9"):
        decide(state, trim(10))


# Limits: the states are filled by hand, an entry each would take too long


def test_the_number_of_topics_is_limited() -> None:
    state = cluster()
    for tpid in range(2, limits.MAX_TOPICS + 1):
        state.topics[TopicID(tpid)] = Topic(TopicID(tpid), str(tpid), 1, 1)
    with pytest.raises(errors.LimitExceeded):
        decide(state, CreateTopic(1, "one more", 1, 1))


def test_the_number_of_log_streams_is_limited() -> None:
    state = cluster()
    for lsid in range(6, limits.MAX_LOG_STREAMS + 1):
        state.streams[LogStreamID(lsid)] = Stream(LogStreamID(lsid), TOPIC)
    with pytest.raises(errors.LimitExceeded):
        decide(state, CreateStream(1, TOPIC))


def test_the_number_of_log_streams_per_node_is_limited() -> None:
    state = cluster()
    on_one = copy.copy(state.streams[SEALED])
    on_one.replicas = nodes(4)
    for lsid in range(6, 5 + limits.MAX_LOG_STREAMS_PER_NODE):
        state.streams[LogStreamID(lsid)] = on_one
    assert decide(state, register(CREATING, 1, 2, 4)) == m.StreamRegistered(CREATING, nodes(1, 2, 4))
    state.streams[LogStreamID(9999)] = on_one
    with pytest.raises(errors.LimitExceeded, match="storage node 4"):
        decide(state, register(CREATING, 1, 2, 4))
    assert decide(state, register(CREATING, 1, 2, 3)) == m.StreamRegistered(CREATING, nodes(1, 2, 3))


def test_a_log_stream_that_holds_entries_goes_only_after_they_are_trimmed() -> None:
    state = cluster()
    state.apply(Version(state.version + 1), m.StreamSealed(RUNNING, Epoch(3)))
    with pytest.raises(errors.Conflict, match="trim"):
        decide(state, UnregisterStream(1, RUNNING))
    state.apply(Version(state.version + 1), m.Trimmed(TOPIC, GLSN(5)))
    assert decide(state, UnregisterStream(1, RUNNING)) == m.StreamUnregistered(RUNNING)


# Replica sets


def grant(state: MetadataState, request: Message) -> None:
    entry = decide(state, request)
    assert not isinstance(entry, Already)
    state.apply(Version(state.version + 1), entry)


def test_B11_a_node_is_renewed_only_while_nothing_runs_with_it() -> None:
    """A replica of a log stream that is sealed may be empty: it is not unsealed before it has everything again."""
    state = cluster()
    lsids = [lsid for lsid, stream in state.streams.items() if SET[0] in stream.replicas]
    for lsid in lsids:
        stream = state.streams[lsid]
        if stream.status is not StreamStatus.SEALED:
            with pytest.raises(errors.Conflict, match=str(lsid)):
                decide(state, RenewNode(1, SET[0], 0, OTHER_PROOF))
            grant(state, seal(lsid, stream.epoch))
    assert decide(state, RenewNode(1, SET[0], 0, OTHER_PROOF)) == m.NodeRenewed(SET[0], 1, OTHER_PROOF)


def test_a_drain_that_leaves_a_log_stream_too_few_replicas_is_refused_by_its_name() -> None:
    state = cluster()
    for snid in (1, 2, 4):
        grant(state, SetDraining(1, StorageNodeID(snid), True))
    with pytest.raises(errors.Conflict, match=f"log stream {SEALED} needs 2 replicas, would have 0, and 1 other"):
        decide(state, SetDraining(1, StorageNodeID(3), True))
    grant(state, SetDraining(1, StorageNodeID(5), False))
    grant(state, SetDraining(1, StorageNodeID(3), True))


def test_M2_a_drain_does_not_count_on_nodes_that_are_full(monkeypatch: pytest.MonkeyPatch) -> None:
    state = cluster()
    monkeypatch.setattr(limits, "MAX_LOG_STREAMS_PER_NODE", 0)
    with pytest.raises(errors.Conflict, match=f"log stream {SMALL} needs 2 .* 0 other storage nodes"):
        decide(state, SetDraining(1, StorageNodeID(1), True))
    grant(state, SetDraining(1, StorageNodeID(3), True))


def test_M2_a_node_that_joins_must_have_room(monkeypatch: pytest.MonkeyPatch) -> None:
    state = cluster()
    monkeypatch.setattr(limits, "MAX_LOG_STREAMS_PER_NODE", 1)
    for request in (unseal(SEALED, 1, (1, 2, 4)), plan(RUNNING, 4, 1)):
        with pytest.raises(errors.LimitExceeded, match="storage node 4 has 1 log streams"):
            decide(state, request)
    assert decide(state, unseal(SEALED, 1, (1, 2, 6))) is not ALREADY
    assert decide(state, unseal(SEALED, 1)) is not ALREADY, "who is there already does not join"
    grant(state, seal(PLANNED, 2))
    assert decide(state, unseal(PLANNED, 3, (2, 3, 4), 2)) is not ALREADY, "its place was kept for it"


def test_volumes_follow_the_set() -> None:
    state = cluster()
    grant(state, unseal(SEALED, 1, (1, 2, 3), 1, ("/a", "/b", "/c")))
    grant(state, seal(SEALED, 2))
    grant(state, unseal(SEALED, 3, (3, 4), 3, ("", "/d")))
    assert state.streams[SEALED].volumes == {3: "/c", 4: "/d"}
    grant(state, seal(SEALED, 4))
    grant(state, unseal(SEALED, 5, (1, 4), 4))
    assert state.streams[SEALED].volumes == {1: "", 4: "/d"}


def test_a_plan_that_is_done_in_part_goes_on() -> None:
    state = cluster()
    grant(state, seal(PLANNED, 2))
    grant(state, unseal(PLANNED, 3, (2, 3), 2))
    assert (state.streams[PLANNED].joining, state.streams[PLANNED].leaving) == (4, 1)
    grant(state, seal(PLANNED, 4))
    grant(state, unseal(PLANNED, 5, (2, 3, 4), 2))
    assert (state.streams[PLANNED].joining, state.streams[PLANNED].leaving) == (0, 0)


def test_a_node_that_goes_is_in_no_plan_any_more() -> None:
    state = cluster()
    grant(state, plan(RUNNING, 0, 1))
    for lsid in (SEALED, UNSEALING, RUNNING, SMALL, HELD, LOST, PLANNED):
        stream = state.streams[lsid]
        stream.replicas = tuple(snid for snid in stream.replicas if snid != 1)
    grant(state, UnregisterNode(1, StorageNodeID(1)))
    assert state.streams[RUNNING].leaving == 0


def test_what_is_declared_lost_ends_where_the_log_stream_did() -> None:
    state = cluster()
    grant(state, seal(RUNNING, 2))
    grant(state, lose(RUNNING, 3, 3, 4))
    stream = next(stream for stream in describe(state, 1).streams if stream.lsid == RUNNING)
    assert (stream.lost_begin, stream.lost_end, stream.is_held, stream.replicas) == (3, 6, True, (4,))
    assert (stream.joining, stream.leaving) == (0, 0)
