"""What is left over: log streams whose making was not finished, replicas that nobody needs any more, and nodes that
came back with empty disks.

A log stream in CREATING may be one that somebody is just making. It is given up only when this manager has seen it so
for long and is not making it itself, and given up means a compare-and-swap to ABORTED: from then on it can never be
registered, and only then what was made of it is removed (M3, rule 13). Of that, nodes delete only what nothing ever
happened to; a replica of a log stream that was ever registered is no zombie, in the set or out of it.

A replica that was moved away from, or whose place was taken while its node was away, is another matter: all of it that
counts is on a whole set. It is kept for a while, because it would be the first to be asked back, and then removed, if
this manager has seen it leave the set. The node holds the request against the epoch that it knows of, so that one which
comes late cannot hit a replica that is needed again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from varlog.core.address import METADATA_REPOSITORY, node_address
from varlog.core.messages import AbortStream, RemoveLogStream, RenewNode, StreamInfo, UnregisterStream
from varlog.core.steps import Situation, Step, is_corrupt, name, nodes, wait
from varlog.core.world import Sight
from varlog.types import StreamStatus

_RUNS: Final = (StreamStatus.RUNNING, StreamStatus.UNSEALING, StreamStatus.CHAINED)
RENEW_AFTER: Final = 1.0
"""How long a registered node has to be without a secret before it gets a new one: one that was just registered is about
to be handed its first."""


def give_up_creating(situation: Situation, stream: StreamInfo) -> Iterator[Step]:
    """A log stream that has been in the making for too long."""
    made = situation.memory.seconds(situation.world.now, Sight.CREATING, stream.lsid)
    if made is None or made < situation.collect_after or stream.lsid in situation.world.making:
        return
    why = f"{name(stream)}: given up, as its making was not finished in {made:.0f} s"
    yield Step(METADATA_REPOSITORY, AbortStream(situation.request(), stream.lsid), why)


def collect_aborted(situation: Situation, stream: StreamInfo) -> Iterator[Step]:
    """A log stream that was given up: what was made of it goes, and when it is gone everywhere its id goes too."""
    hosts = situation.world.replicas(stream.lsid)
    for snid in hosts:
        why = f"{name(stream)}: node {snid} is to remove what was made of it"
        yield Step(node_address(snid), RemoveLogStream(situation.request(), stream.lsid, new_only=True), why)
    silent = [snid for snid in situation.world.nodes if not situation.world.knows(snid, stream.lsid)]
    if silent:
        yield wait(name(stream), f"was given up; {nodes(silent)} may have something of it and do not answer")
    elif not hosts:
        why = f"{name(stream)}: taken out, as it was given up and no node has anything of it"
        yield Step(METADATA_REPOSITORY, UnregisterStream(situation.request(), stream.lsid), why)


def collect_strays(situation: Situation) -> Iterator[Step]:
    """What was made of a log stream that is no more: the request to make it was on its way for too long."""
    world = situation.world
    listed = {stream.lsid for stream in world.metadata.streams}
    for snid in world.views:
        answer = world.answer(snid)
        for replica in answer.replicas if answer is not None else ():
            gone = replica.lsid not in listed and replica.lsid < world.metadata.next_lsid
            if gone and replica.epoch == 0 and not is_corrupt(replica):  # which may not know of its past
                why = f"node {snid}: is to remove what was made of log stream {replica.lsid}, which is no more"
                yield Step(node_address(snid), RemoveLogStream(situation.request(), replica.lsid, new_only=True), why)


def collect_left_over(situation: Situation, stream: StreamInfo) -> Iterator[Step]:
    """Replicas that have left a set which is whole without them, and has been so for long."""
    world, memory = situation.world, situation.memory
    if not memory.has_lasted(situation.collect_after, world.now, Sight.WHOLE, stream.lsid, stream.epoch):
        return
    known = world.replicas(stream.lsid)
    has_all = min(known[snid].committed_end for snid in stream.replicas)
    for snid, replica in known.items():
        # What a replica has beyond the end of a chain that it was a member of was never acknowledged.
        has_no_more = replica.committed_end <= has_all or stream.status is StreamStatus.CHAINED
        if replica.epoch <= stream.epoch and has_no_more and memory.has_left(stream.lsid, snid):
            why = f"{name(stream)}: node {snid} is to remove its replica, as {nodes(stream.replicas)} have everything"
            yield Step(node_address(snid), RemoveLogStream(situation.request(), stream.lsid, until=stream.epoch), why)


def renew_nodes(situation: Situation) -> Iterator[Step]:
    """A node that has lost its disks is given a new secret, and begins anew, when nothing runs that counts on what it
    had (B11). The proof is left to whoever makes the secret."""
    world = situation.world
    for snid, node in world.nodes.items():
        lost = situation.memory.seconds(world.now, Sight.UNIDENTIFIED, snid)
        if lost is None or lost < RENEW_AFTER:
            continue
        running = [stream for stream in world.metadata.streams if snid in stream.replicas and stream.status in _RUNS]
        if running:
            listed = ", ".join(str(stream.lsid) for stream in running)
            yield wait(f"node {snid}", f"has lost its disks; it begins anew when log streams {listed} go on without it")
        else:
            why = f"node {snid}: has lost its disks, and begins anew with another secret"
            yield Step(METADATA_REPOSITORY, RenewNode(situation.request(), snid, node.generation, ""), why)
