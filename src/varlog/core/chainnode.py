"""ChainNode: the replicas of chains that one storage node has, without I/O.

It hands each message to the replica it is for, lets replicas copy (`chaincopying`), and sees to the lease (S10): a node
that the metadata repository has not answered for too long serves no chain, so that clients who are cut off together
with it notice. Safety does not rest on that but on epochs, so a seal is taken without a lease (rule 23).

A storage node has one, `StorageNode.chains`, which hands it what is of chains. The caller's duties beside those of the
storage node, whenever it suits after any call:

- *Reads.* Take `reads`; for each plan call `storage.read(plan.glsn, plan.max_bytes)` of its replica, in any thread, and
  hand what it returns, or the VarlogError it raises, to `finish_read`; on Corrupt, `storage.condemn` it first. That may
  ask for further reads.
- *Durability.* When a group that a replica's storage was given is finished, `on_durable`; when it failed, `on_failed`.
- *Time.* When `copying.due` has come, `StorageNode.flush`, though nothing else may have happened.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from typing import Any, Final

from varlog import errors, limits
from varlog.core.address import Address, Send
from varlog.core.branches import ChainBranch, Observe
from varlog.core.chaincontext import ChainReadPlan, Result
from varlog.core.chaincopying import ChainCopying
from varlog.core.chainreplica import ChainReplica
from varlog.core.messages import (
    ChainCopied,
    ChainCopy,
    ChainPart,
    ChainRead,
    ChainSeal,
    ChainSealed,
    ChainWrite,
    ChainWritten,
    Digest,
    GetDigest,
    Message,
)
from varlog.types import GLSN, Epoch, LogStreamID, StorageNodeID, TopicID

NEVER_LEASED: Final = float("-inf")

_Handler = Callable[[ChainReplica, Address, Any, float], None]


class ChainNode:
    """See the module's text."""

    def __init__(self, snid: StorageNodeID, send: Send, observe: Observe) -> None:
        self.snid = snid
        self.reads: list[ChainReadPlan] = []
        self.copying = ChainCopying(send, observe)
        self._send = send
        self._observe = observe
        self._replicas: dict[LogStreamID, ChainReplica] = {}
        self._leased = NEVER_LEASED
        """When the last report was sent that the metadata repository has answered."""
        self._writer: Address = ""
        self._is_shared = False
        """The last two writes came from different clients."""
        self.handlers: Final[dict[type[Message], _Handler]] = {
            ChainWrite: self._on_write,
            ChainRead: self._on_read,
            ChainSeal: self._on_seal,
            ChainCopy: self.copying.on_copy,
            GetDigest: self._on_get_digest,
            Digest: self._on_digest,
            ChainPart: self._on_part,
        }

    def __contains__(self, lsid: LogStreamID) -> bool:
        return lsid in self._replicas

    @property
    def replicas(self) -> Seq[ChainReplica]:
        return list(self._replicas.values())

    @property
    def is_quiet(self) -> bool:
        """Whether one client at most writes here: nothing is on its way then that it would pay to wait for."""
        return not self._is_shared

    def add(self, replica: ChainReplica) -> None:
        """Serve one more replica."""
        self._replicas[replica.lsid] = replica
        replica.plan = self._plan

    def _plan(self, plan: ChainReadPlan) -> None:
        self.reads.append(plan)

    def remove(self, lsid: LogStreamID) -> None:
        """Serve a replica no more; whoever waits for something of it is told that it is unknown here."""
        self.copying.drop(lsid)
        self._replicas.pop(lsid).leave()

    # Lease

    def renew(self, sent: float) -> None:
        """The metadata repository has answered a report that was sent at that time."""
        self._leased = max(self._leased, sent)

    def is_leased(self, now: float) -> bool:
        return now - self._leased <= limits.NODE_LEASE_SECONDS

    def _why_not(self, now: float) -> errors.LeaseExpired | None:
        if now - self._leased <= limits.NODE_LEASE_SECONDS:
            return None
        self._observe(ChainBranch.S10_LEASE_EXPIRED)
        return errors.LeaseExpired(
            f"node {self.snid} was not answered by the metadata repository within {limits.NODE_LEASE_SECONDS:.0f} s"
        )

    # Messages

    def on_message(self, source: Address, message: Message, now: float) -> None:
        """One of those in `handlers`."""
        replica = self._replicas.get(message.lsid)  # type: ignore[attr-defined]
        if replica is None:
            detail = f"node {self.snid} has no such log stream"
            self.refuse(source, message, errors.UnknownLogStream(detail))
        else:
            self.handlers[type(message)](replica, source, message, now)

    def refuse(self, source: Address, message: Message, error: errors.VarlogError) -> None:
        """There is no replica here that a message could be for."""
        code, epoch, detail = error.code, Epoch(0), str(error)[: limits.MAX_DETAIL]
        match message:
            case ChainWrite(request, lsid):
                self._send(source, ChainWritten(request, lsid, code, epoch, detail=detail))
            case ChainRead(request, lsid):
                self._send(source, ChainPart(request, lsid, code, epoch, detail=detail))
            case ChainSeal(request, lsid):
                self._send(source, ChainSealed(request, lsid, code, self.snid, epoch, detail=detail))
            case ChainCopy(request, lsid):
                self._send(source, ChainCopied(request, lsid, code, self.snid, detail=detail))
            case GetDigest(request, lsid):
                self._send(source, Digest(request, lsid, code, epoch, detail=detail))
            case _:
                pass  # not a request: there is nobody to tell

    def _on_write(self, replica: ChainReplica, source: Address, message: ChainWrite, now: float) -> None:
        self._is_shared = source != (self._writer or source)
        self._writer = source
        if (why_not := self._why_not(now)) is not None:
            replica.refuse_write(source, message.request, why_not)
        else:
            replica.write(source, message)

    def _on_read(self, replica: ChainReplica, source: Address, message: ChainRead, now: float) -> None:
        if (why_not := self._why_not(now)) is not None:
            replica.refuse_read(source, message, why_not)
        else:
            replica.read(source, message, now)

    def readable(self, message: ChainRead, now: float) -> ChainReplica | None:
        """The replica, if it may be read right away; what is found is told with `tell_one`. Else it is a message like
        others."""
        replica = self._replicas.get(message.lsid)
        is_leased = now - self._leased <= limits.NODE_LEASE_SECONDS
        return replica if replica is not None and is_leased and replica.is_readable(message) else None

    def _on_get_digest(self, replica: ChainReplica, source: Address, message: GetDigest, now: float) -> None:
        if (why_not := self._why_not(now)) is not None:
            replica.refuse_digest(source, message, why_not)
        else:
            replica.digest(source, message)

    def _on_seal(self, replica: ChainReplica, source: Address, message: ChainSeal, _now: float) -> None:
        replica.seal(source, message)

    def _on_digest(self, replica: ChainReplica, _source: Address, message: Digest, now: float) -> None:
        self.copying.on_digest(replica, message, now)

    def _on_part(self, replica: ChainReplica, _source: Address, message: ChainPart, now: float) -> None:
        self.copying.on_part(replica, message, now)

    def finish_read(self, plan: ChainReadPlan, result: Result) -> None:
        """Answer with what the caller has read."""
        replica = self._replicas.get(plan.replica.lsid)
        if isinstance(result, errors.Corrupt) and replica is not None and replica is plan.replica:
            replica.on_corrupt()
        plan.then(result)

    # Durability, trim, time

    def on_durable(self, lsid: LogStreamID) -> None:
        """A group of what a replica staged is written and synced."""
        self._replicas[lsid].on_durable()

    def on_failed(self, lsid: LogStreamID, error: errors.VarlogError) -> None:
        """Writing what a replica staged has failed."""
        self._replicas[lsid].on_failed(error.code)

    def on_corrupt(self, lsid: LogStreamID) -> None:
        """Stored bytes of a replica turned out to be damaged."""
        self._replicas[lsid].on_corrupt()

    def on_peer_connected(self, snid: StorageNodeID) -> None:
        self.copying.on_peer_connected(snid)

    def trim(self, tpid: TopicID, glsn: GLSN) -> None:
        for replica in self._replicas.values():
            if replica.tpid == tpid:
                replica.trim(glsn)

    def flush(self, now: float) -> None:
        """Let copies go on."""
        if self.copying:
            self.copying.advance(now)

    def tick(self, now: float) -> None:
        """Called a few times a second."""
        self.copying.tick(now)
        for replica in self._replicas.values():
            replica.tick(now)
            if replica.waits and (why_not := self._why_not(now)) is not None:
                replica.send_readers_away(why_not)
