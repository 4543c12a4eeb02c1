"""Hosting: replicas are added to a running node, removed from it (M2, M12), made anew (rule 14), or opened anew (M8).

A removal takes a while. The replica is served no more at once; when no group and no read of it is under way it is let
go of; then its files are deleted in a thread, because each segment takes some milliseconds and the node's other
replicas must not wait for that. Who asked is answered when all is gone. A replica that starts anew is removed the same
way and then made on its base, unless somebody wants it removed meanwhile.

A replica that has failed to write is closed in the same way and opened again from its files, once its disk takes a new
file. One that cannot be opened, then or at the start of the node, is told of as one that has failed, and it is tried
again: the files are there, so nothing else may be made in their place. If it is damaged that is of no use; like one in
which damage is found while it is served it is left alone until it is to be removed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from varlog import errors, limits
from varlog.core.address import Address, Send
from varlog.core.executor import LogStreamExecutor
from varlog.core.messages import AddLogStream, RemoveLogStream, ReopenLogStream, ReplicaReply
from varlog.core.syncing import RestartPlan
from varlog.daemon import logs
from varlog.storage.copying import base_of
from varlog.storage.format import LogBase
from varlog.storagenode.replicas import AnyReplica, Replicas, UnopenedReplica
from varlog.types import GLSN, LLSN, Epoch, LogStreamID, ReplicaState, StorageNodeID


class _Beginning(NamedTuple):
    """How a replica that is being removed begins anew."""

    plan: RestartPlan
    volume: str
    base: LogBase


class Hosting:
    """See the module's text. `leave(lsid)` is called when a replica is to be served no more, `is_busy(replica)` tells
    whether its files are in use, `resume(executor, plan)` is called when a replica was made anew, and `inquire()` when
    one should hear from the metadata repository how its log stream is."""

    def __init__(
        self,
        snid: StorageNodeID,
        replicas: Replicas,
        send: Send,
        leave: Callable[[LogStreamID], None],
        is_busy: Callable[[AnyReplica], bool],
        resume: Callable[[LogStreamExecutor, RestartPlan], None],
        inquire: Callable[[], None],
    ) -> None:
        self._snid = snid
        self._replicas = replicas
        self._send = send
        self._leave = leave
        self._is_busy = is_busy
        self._resume = resume
        self._inquire = inquire
        self._leaving: dict[LogStreamID, list[tuple[Address, int]]] = {}
        """What is being removed, and who waits for that."""
        self._beginnings: dict[LogStreamID, _Beginning] = {}
        """What of it is to begin anew."""
        self._closing: set[LogStreamID] = set()
        """What of it is to be opened anew."""
        self._reopened: dict[LogStreamID, float] = {}
        """When replicas were last opened anew, or were to be."""
        self._trims: dict[LogStreamID, GLSN] = {}
        """Up to where replicas without room for another segment were trimmed when they were last opened anew."""
        self._deletions: set[asyncio.Task[None]] = set()
        self._log = logs.get().bind(snid=snid)

    def is_leaving(self, lsid: LogStreamID) -> bool:
        return lsid in self._leaving

    def add(self, source: Address, message: AddLogStream) -> None:
        lsid = message.lsid
        try:
            if lsid in self._leaving:
                raise errors.Busy(f"log stream {lsid} is being removed from this node")
            replica = self._replicas.add(message.tpid, lsid, message.volume, message.ordering)
        except errors.VarlogError as error:
            self._refuse(source, message.request, lsid, error)
            return
        self._agree(source, message.request, replica)
        self._log.info("log stream added", lsid=lsid, tpid=message.tpid)

    def remove(self, source: Address, message: RemoveLogStream) -> None:
        """A node that has none agrees."""
        lsid = message.lsid
        replica = self._replicas.get(lsid)
        waiting = self._leaving.get(lsid)
        if lsid in self._closing:
            self._refuse(source, message.request, lsid, errors.Busy(f"log stream {lsid} is being opened anew"))
        elif waiting is not None:
            if (message.new_only or message.failed_only or message.until) and lsid in self._beginnings:
                self._refuse(source, message.request, lsid, errors.Busy(f"log stream {lsid} is being made anew"))
                return
            self._beginnings.pop(lsid, None)
            if len(waiting) < limits.MAX_PENDING_DECISIONS:
                waiting.append((source, message.request))
        elif (unopened := self._replicas.unopened.get(lsid)) is not None:
            self._remove_unopened(source, message, unopened)
        elif replica is None:
            self._gone(source, message.request, lsid)
        elif message.new_only and replica.executor.epoch > 0:
            past = errors.AlreadyExists(f"log stream {lsid} has a past on this node, in {replica.volume}; it was left")
            self._refuse(source, message.request, lsid, past)
        elif message.failed_only and replica.executor.healthy:
            sound = errors.Conflict(f"log stream {lsid} is sound on this node; it was left")
            self._refuse(source, message.request, lsid, sound)
        elif 0 < message.until < replica.executor.epoch:
            later = errors.Conflict(f"log stream {lsid} is in epoch {replica.executor.epoch} on this node; it was left")
            self._refuse(source, message.request, lsid, later)
        else:
            self._leaving[lsid] = [(source, message.request)]
            self._leave(lsid)
            self.go_on(lsid)

    def _remove_unopened(self, source: Address, message: RemoveLogStream, unopened: UnopenedReplica) -> None:
        """What it holds is not known, so nothing that is asked for on a condition is done; but damage is damage."""
        lsid, where = message.lsid, f"in {unopened.volume} on this node"
        if message.new_only:
            past = errors.AlreadyExists(f"log stream {lsid} may have a past {where}; it was left")
            self._refuse(source, message.request, lsid, past)
        elif (message.failed_only or message.until) and not _is_damaged(unopened):
            closed = errors.Conflict(f"log stream {lsid} cannot be opened {where}, and may be sound; it was left")
            self._refuse(source, message.request, lsid, closed)
        else:
            self._leaving[lsid] = [(source, message.request)]
            self._begin_deletion(lsid)

    def reopen(self, source: Address, message: ReopenLogStream, now: float) -> None:
        """A replica that has failed to write, or could not be opened, begins again with what is on the disk."""
        request, lsid = message.request, message.lsid
        replica = self._replicas.get(lsid) or self._replicas.unopened.get(lsid)
        if lsid in self._leaving or now - self._reopened.get(lsid, -limits.REOPEN_SECONDS) < limits.REOPEN_SECONDS:
            self._refuse(source, request, lsid, errors.Busy(f"log stream {lsid} was just closed, or opened anew"))
        elif replica is None:
            self._refuse(source, request, lsid, errors.NoSuchReplica(f"this node has no replica of log stream {lsid}"))
        elif not isinstance(replica, UnopenedReplica) and replica.executor.healthy:
            self._agree(source, request, replica)
        elif _is_damaged(replica):
            damaged = errors.Conflict(f"the replica of log stream {lsid} is damaged; it has to be copied anew")
            self._refuse(source, request, lsid, damaged)
        else:
            self._reopened[lsid] = now
            try:
                self._replicas.check_room(replica.volume, lsid)
            except errors.VarlogError as error:
                if not self._is_trimmed_since(lsid, replica):  # it might not be opened either; as it is, it can be read
                    self._refuse(source, request, lsid, error)
                    self._inquire()  # who is in no set is told of no trim
                    return
            self._leaving[lsid] = [(source, request)]
            if isinstance(replica, UnopenedReplica):
                self._open_anew(replica.volume, lsid)
                return
            self._closing.add(lsid)
            self._leave(lsid)
            self.go_on(lsid)

    def _is_trimmed_since(self, lsid: LogStreamID, replica: AnyReplica | UnopenedReplica) -> bool:
        """Whether it was told of a trim since this was last asked. One that has failed deletes nothing; opened anew it
        makes the room that it lacks."""
        trim = GLSN(0) if isinstance(replica, UnopenedReplica) else replica.executor.trim_glsn
        if trim <= self._trims.get(lsid, GLSN(0)):
            return False
        self._trims[lsid] = trim
        return True

    def tick(self, now: float) -> None:
        """Try once more to open what could not be opened."""
        for lsid, unopened in list(self._replicas.unopened.items()):
            is_due = now - self._reopened.get(lsid, -limits.REOPEN_SECONDS) >= limits.REOPEN_SECONDS
            if is_due and not _is_damaged(unopened):
                self._open_anew(unopened.volume, lsid)

    def _open_anew(self, volume: str, lsid: LogStreamID) -> None:
        self._reopened[lsid] = asyncio.get_running_loop().time()
        waiting, before = self._leaving.pop(lsid, []), self._replicas.unopened.get(lsid)
        try:
            replica = self._replicas.reopen(volume, lsid)
        except errors.VarlogError as error:
            if before is None or str(before.error) != str(error):
                self._log.error("a replica could not be opened anew", lsid=lsid, error=str(error))
            for source, request in waiting:
                self._refuse(source, request, lsid, error)
            return
        if replica.storage.corruption is not None:
            self._log.error("damage found", lsid=lsid, error=str(replica.storage.corruption))
        self._log.info("a replica was opened anew", lsid=lsid, llsn=replica.executor.committed_end)
        if lsid in self._trims:  # before anything else is written
            replica.executor.trim(self._trims[lsid])
        for source, request in waiting:
            self._agree(source, request, replica)

    def start_anew(self, plan: RestartPlan) -> None:
        """All that a replica holds is trimmed elsewhere: make it anew where the log begins now."""
        lsid = plan.executor.lsid
        replica = self._replicas.get(lsid)
        if replica is None or replica.executor is not plan.executor or lsid in self._leaving:
            return
        try:
            base = base_of(plan.base, plan.epoch)
        except errors.VarlogError as error:
            self._log.error("a replica could not be begun anew", lsid=lsid, error=str(error))
            return
        self._beginnings[lsid] = _Beginning(plan, replica.volume, base)
        self._leaving[lsid] = []
        self._leave(lsid)
        self.go_on(lsid)

    def go_on(self, lsid: LogStreamID) -> None:
        """A group or a read of a replica that is leaving has ended."""
        replica = self._replicas.get(lsid)
        if replica is None or self._is_busy(replica):
            return
        if lsid in self._closing:
            self._closing.remove(lsid)
            self._open_anew(self._replicas.close_one(lsid).volume, lsid)
        else:
            self._begin_deletion(lsid)

    def _begin_deletion(self, lsid: LogStreamID) -> None:
        deletion = asyncio.get_running_loop().create_task(self._delete(lsid, self._replicas.let_go(lsid)))
        self._deletions.add(deletion)
        deletion.add_done_callback(self._deletions.discard)

    async def _delete(self, lsid: LogStreamID, path: str) -> None:
        error: errors.VarlogError | None = None
        try:
            await asyncio.to_thread(self._replicas.delete, path)
            self._log.info("log stream removed", lsid=lsid)
        except errors.VarlogError as failed:
            error = failed
            self._log.error("a log stream could not be removed", lsid=lsid, error=str(error))
        beginning = self._beginnings.pop(lsid, None)
        if beginning is not None and error is None:
            self._begin_anew(lsid, beginning)
        for source, request in self._leaving.pop(lsid):
            if error is None:
                self._gone(source, request, lsid)
            else:
                self._refuse(source, request, lsid, error)

    def _begin_anew(self, lsid: LogStreamID, beginning: _Beginning) -> None:
        """If that fails the replica is missing, and will be added again by whoever wants it."""
        try:
            replica = self._replicas.make(beginning.plan.executor.tpid, lsid, beginning.volume, beginning.base)
        except errors.VarlogError as error:
            self._log.error("a replica could not be begun anew", lsid=lsid, error=str(error))
            return
        self._log.info("a replica begins anew", lsid=lsid, llsn=beginning.base.llsn)
        self._resume(replica.executor, beginning.plan)

    def _agree(self, source: Address, request: int, replica: AnyReplica) -> None:
        executor = replica.executor
        state = (executor.epoch, executor.state, executor.committed_end)
        self._send(source, ReplicaReply(request, executor.lsid, 0, self._snid, *state))

    def _gone(self, source: Address, request: int, lsid: LogStreamID) -> None:
        self._send(source, ReplicaReply(request, lsid, 0, self._snid, Epoch(0), ReplicaState.SEALING, LLSN(0)))

    def _refuse(self, source: Address, request: int, lsid: LogStreamID, error: errors.VarlogError) -> None:
        detail = str(error)[: limits.MAX_DETAIL]
        state = (Epoch(0), ReplicaState.SEALING, LLSN(0))
        self._send(source, ReplicaReply(request, lsid, error.code, self._snid, *state, detail=detail))

    async def stop(self) -> None:
        """Finish what is being removed. No group and no read is under way any more."""
        for lsid in self._leaving.keys() - self._closing:
            self.go_on(lsid)
        await asyncio.gather(*self._deletions, return_exceptions=True)


def _is_damaged(replica: AnyReplica | UnopenedReplica) -> bool:
    """Whether it is of no use to open it again, and what happened to it may be forgotten."""
    fault = replica.error.code if isinstance(replica, UnopenedReplica) else replica.executor.fault
    return fault == errors.Corrupt.code
