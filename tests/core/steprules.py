"""What the manager may never ask for, whatever the world it was shown looks like."""

from __future__ import annotations

from collections.abc import Sequence

from tests.core import sketch
from varlog import errors
from varlog.core.manager import Step
from varlog.core.messages import (
    AbortStream,
    AddLogStream,
    Message,
    RemoveLogStream,
    RenewNode,
    ReopenLogStream,
    ReplicaInfo,
    RunStream,
    Seal,
    SealStream,
    Sync,
    UnregisterStream,
    Unseal,
    UnsealStream,
)
from varlog.core.world import World
from varlog.types import Epoch, LogStreamID, ReplicaState, StorageNodeID, StreamStatus

SEALING, SEALED, RUNNING = ReplicaState.SEALING, ReplicaState.SEALED, ReplicaState.RUNNING


def check_steps(world: World, steps: Sequence[Step]) -> None:
    """Hold every step against the rules, by the world it was decided on."""
    unsealed: set[LogStreamID] = set()
    for step in steps:
        assert step.sentence.startswith(f"{step.subject}: "), step
        assert step.subject.startswith(("log stream ", "node ")), step
        if isinstance(step.message, UnsealStream):
            assert step.message.lsid not in unsealed, "two sets for one epoch"
            unsealed.add(step.message.lsid)
        if step.message is not None:
            _Rules(world, step.address, step.message).check()


class _Rules:
    def __init__(self, world: World, address: str, message: Message) -> None:
        self.world = world
        self.message = message
        self.node = StorageNodeID(int(address.removeprefix("sn/")) if address != "mr" else 0)
        self.stream = sketch.stream(0, StreamStatus.CREATING, replicas=(), primary=0)
        for stream in world.metadata.streams:
            if stream.lsid == getattr(message, "lsid", None):
                self.stream = stream
        if self.node:
            assert not world.is_dead(self.node), message

    def replica(self, snid: StorageNodeID | None = None) -> ReplicaInfo | None:
        return self.world.replica(self.node if snid is None else snid, self.stream.lsid)

    def sound(self, snid: StorageNodeID, state: ReplicaState, epoch: int) -> bool:
        replica = self.replica(snid)
        return replica is not None and (replica.state, replica.epoch, replica.healthy) == (state, epoch, True)

    def check(self) -> None:
        match self.message:
            case SealStream(_, _, epoch):
                assert self.stream.status in (StreamStatus.RUNNING, StreamStatus.UNSEALING)
                assert epoch == self.stream.epoch
            case UnsealStream():
                self.check_unseal_stream(self.message)
            case RunStream(_, _, epoch):
                assert self.stream.status is StreamStatus.UNSEALING
                assert all(self.sound(snid, RUNNING, epoch) for snid in self.stream.replicas)
            case Seal(_, _, epoch, llsn_end):
                self.check_seal(epoch, llsn_end)
            case Unseal():
                self.check_unseal(self.message)
            case Sync():
                self.check_sync(self.message)
            case _:
                self.check_making()

    def check_unseal_stream(self, message: UnsealStream) -> None:
        """Rules 2, 3, M10: only replicas that are complete, and enough of them."""
        stream, snids = self.stream, message.replicas
        assert stream.status is StreamStatus.SEALED
        assert message.epoch == stream.epoch
        assert not stream.is_held
        assert not stream.lost_begin
        assert len(set(snids)) == len(snids)
        assert message.primary in snids
        assert len(message.volumes) == len(snids)
        assert self.world.least(stream) <= len(snids) <= max(self.world.factor(stream), len(stream.replicas))
        for snid in snids:
            assert self.sound(snid, SEALED, stream.epoch), (snid, self.replica(snid))
            assert self.world.is_identified(snid)

    def check_seal(self, epoch: Epoch, llsn_end: int) -> None:
        """One epoch has one seal point."""
        sealed = self.stream.epoch - (self.stream.status is StreamStatus.UNSEALING)
        assert self.stream.status in (StreamStatus.SEALED, StreamStatus.UNSEALING)
        assert (epoch, llsn_end) == (sealed, self.stream.llsn_end)
        replica = self.world.recent(self.node, self.stream.lsid)
        assert replica is not None
        assert replica.healthy
        assert self.world.is_identified(self.node) or not self.world.answers(self.node)

    def check_unseal(self, message: Unseal) -> None:
        """Rule 3: backups first, primary last."""
        stream = self.stream
        assert stream.status is StreamStatus.UNSEALING
        assert (message.epoch, message.replicas, message.primary) == (stream.epoch, stream.replicas, stream.primary)
        replica = self.world.recent(self.node, stream.lsid)
        assert replica is not None
        assert (replica.state, replica.epoch) == (SEALED, stream.epoch - 1)
        if self.node == stream.primary:
            backups = [snid for snid in stream.replicas if snid != stream.primary]
            assert all(self.sound(snid, RUNNING, stream.epoch) for snid in backups)

    def check_sync(self, message: Sync) -> None:
        """M9, rule 12: from a complete replica, or a running one of the set, and never to itself."""
        stream, target = self.stream, self.replica()
        assert target is not None
        assert target.healthy
        assert message.source != self.node
        assert message.epoch == stream.epoch
        assert message.learner is (self.node not in stream.replicas)
        if stream.status is StreamStatus.RUNNING:
            assert message.learner
            assert message.source in stream.replicas
            assert self.sound(message.source, RUNNING, stream.epoch)
        else:
            assert stream.status is StreamStatus.SEALED
            assert self.sound(message.source, SEALED, stream.epoch)

    def check_making(self) -> None:
        """Rule 13, B11: nothing is removed that could be missed, nothing is given up that is being made."""
        stream, replica = self.stream, self.replica()
        match self.message:
            case AddLogStream():
                assert replica is None
                assert self.world.is_identified(self.node)
                assert self.node not in stream.replicas or stream.status is StreamStatus.SEALED
            case RemoveLogStream(_, lsid, new_only, failed_only, until):
                if stream.lsid != lsid:
                    assert new_only
                    assert lsid < self.world.metadata.next_lsid
                    return
                assert replica is not None
                if self.node in stream.replicas:
                    assert stream.status is StreamStatus.SEALED
                    others = self.world.replicas(stream.lsid).keys() - {self.node}
                    assert any(self.sound(snid, SEALED, stream.epoch) for snid in others)
                if stream.status is StreamStatus.ABORTED:
                    assert new_only
                elif until:
                    self.check_left_over(until)
                else:
                    assert failed_only
                    assert replica.fault == errors.Corrupt.code, "what only failed to write may be the last good copy"
            case ReopenLogStream():
                assert replica is not None
                assert not replica.healthy
                assert replica.fault != errors.Corrupt.code
            case AbortStream():
                assert stream.status is StreamStatus.CREATING
                assert stream.lsid not in self.world.making
            case UnregisterStream():
                assert stream.status is StreamStatus.ABORTED
                assert not self.world.replicas(stream.lsid)
                assert all(self.world.knows(snid, stream.lsid) for snid in self.world.nodes)
            case RenewNode(_, snid, generation):
                assert not self.world.is_identified(snid)
                assert generation == self.world.nodes[snid].generation > 0
                for known in self.world.metadata.streams:
                    runs = known.status in (StreamStatus.RUNNING, StreamStatus.UNSEALING)
                    assert not (runs and snid in known.replicas)
            case _:
                raise AssertionError(f"a manager has no reason to send {self.message}")

    def check_left_over(self, until: Epoch) -> None:
        """What it had is on a whole set, without it, and it knows of no later one."""
        stream, replica = self.stream, self.replica()
        assert replica is not None
        assert stream.status is StreamStatus.RUNNING
        assert self.node not in (*stream.replicas, stream.joining)
        assert replica.epoch <= until == stream.epoch
        assert len(stream.replicas) >= self.world.factor(stream)
        assert all(self.sound(snid, RUNNING, stream.epoch) for snid in stream.replicas)
        known = self.world.replicas(stream.lsid)
        assert all(replica.committed_end <= known[snid].committed_end for snid in stream.replicas)
