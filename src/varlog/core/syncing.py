"""Sync (M9): a replica copies from another what it lacks, in the background.

The target does the work. The manager asks it with `Sync`, and asks again: the first time begins a copy, further times
keep it going and are told how far it is. The target forgets all it has stored above its committed end, durably, and
from there on asks the source for the committed log in parts (`FetchLog`, `LogPart`). A part has batches, each with the
epoch it was written in, and the commit contexts that end within it; a commit context counts when its batches are
durable here. So a replica that copies is at any moment what a replica is: a committed prefix of the log, with its
deduplication table; and a copy that ended for whatever reason goes on at the committed end.

A replica of the set is a target when it is sealed and knows that cuts cannot complete it; its source is SEALED, and it
is done when it reaches its own seal point. A *learner* is outside the set (rule 12): it may copy from a running replica
as well, and follows it until it is sealed.

A source whose log begins later than where the copy ends, because it was trimmed, tells what to begin with instead
(rule 14). The target then starts anew, and goes on with the same copy: see `RestartPlan`.

What must always hold: nothing is asked for before the barrier in the target's log is durable; nothing at or above the
target's seal point is stored; a source that is not complete itself, or damaged, gives nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from enum import Enum
from itertools import count
from typing import Final, NamedTuple

import msgspec

from varlog import batch, errors, limits
from varlog.core.address import Address, Send, node_address
from varlog.core.branches import Branch, Observe
from varlog.core.executor import LogStreamExecutor
from varlog.core.messages import FetchLog, LogPart, Sync, SyncReply
from varlog.core.replicalog import CopiedPart
from varlog.core.states import RUNNING, SEALED, SEALING
from varlog.types import LLSN, CommitContext, Epoch, LogStreamID, StorageNodeID

RENEW_WITHIN: Final = 5.0
"""A copy that the manager does not ask about for so long is given up."""
SOURCE_SILENT: Final = 2.0
"""So is one whose source gives nothing for so long."""
ASK_AGAIN: Final = 0.5
"""A question or its answer may have been lost."""
FOLLOW_AGAIN: Final = 0.02
"""How long a copy waits that has caught up, or was refused, before it asks again."""
A_MOMENT: Final = 0.05
"""A copy of a log that grows always lacks what has just come. So it is measured by how far the source was a moment ago,
one to two of these before its last answer: who has that lacks no more than comes in such a time, however much it is."""


class FetchPlan(NamedTuple):
    """A part of the log that may be given to a replica that copies; the caller reads it (`LogStreamStorage.copy_from`)
    and hands it to `Syncing.finish_fetch`."""

    source: Address
    fetch: FetchLog
    executor: LogStreamExecutor


class RestartPlan(NamedTuple):
    """The replica is to be removed and made anew on `base`, with at least `epoch` promised: all it holds is trimmed.
    It is not served meanwhile; then `Syncing.resume` goes on with the copy."""

    executor: LogStreamExecutor
    base: bytes
    epoch: Epoch
    sync: Sync
    """What the manager asked for,"""
    renewed: float
    """and when it last did."""


class _Phase(Enum):
    BEGINNING = "waits for a promise that is under way"
    FORGETTING = "what was stored beyond the committed end is being voided"
    COPYING = "asks for parts"


class Copy:
    """The copy that one replica makes."""

    def __init__(
        self, executor: LogStreamExecutor, message: Sync, requests: Iterator[int], send: Send, now: float
    ) -> None:
        self.executor = executor
        self.source = message.source
        self.learner = message.learner
        self.renewed = now
        self.failure = ""
        """Why it has ended without being complete."""
        self.trouble = ""
        """What the source said last instead of giving something."""
        self._message = message
        self._send = send
        self._phase = _Phase.BEGINNING
        self._commits: deque[CommitContext] = deque()
        """Received; their batches are not durable yet."""
        self._parts: deque[tuple[LLSN, int]] = deque()
        """End and bytes of what was stored and is not durable yet,"""
        self._ahead = 0
        """and the bytes in all."""
        self._requests = requests
        self._request = 0
        self._is_asking = False
        self._asked = 0.0
        self._silent_since: float | None = None
        self._not_before = 0.0
        self._told = (0.0, LLSN(0))
        """What the source said its end was, and when: `source_end` a moment later."""

    @property
    def is_over(self) -> bool:
        return bool(self.failure) or (self._phase is not _Phase.BEGINNING and self.executor.state is not SEALING)

    @property
    def has_caught_up(self) -> bool:
        """All that the source had a moment before it last answered is committed here."""
        return 0 < self.executor.source_end <= self.executor.committed_end

    @property
    def due(self) -> float | None:
        """When it wants to ask, if nothing happens before."""
        executor = self.executor
        if self._phase is not _Phase.COPYING or self._is_asking or self._ahead >= limits.COPY_AHEAD_BYTES:
            return None
        if executor.seal_point is not None and executor.end >= executor.seal_point:
            return None  # all of it is here and will be durable soon
        return self._not_before

    def hurry(self) -> None:
        """What is missing is wanted now."""
        self._not_before = 0.0

    def ask_again(self) -> None:
        """What was asked may be lost."""
        self._is_asking = False

    def end(self) -> None:
        executor = self.executor
        executor.is_copying = False
        executor.source, executor.source_end = StorageNodeID(0), LLSN(0)

    def tick(self, now: float) -> None:
        if now - self.renewed > RENEW_WITHIN:
            self.failure = f"the manager has not asked about it for {RENEW_WITHIN:.0f} s"
        elif self._silent_since is not None and now - self._silent_since > SOURCE_SILENT:
            self.failure = self.trouble or f"node {self.source} has not answered for {SOURCE_SILENT:.0f} s"
        elif self._is_asking and now - self._asked > ASK_AGAIN:
            self._is_asking = False

    def advance(self, now: float) -> None:
        """Do what can be done now."""
        executor = self.executor
        if not executor.healthy:
            self.failure = "the replica has failed"
            return
        if self._phase is not _Phase.COPYING:
            if executor.is_promising:
                return
            if self._phase is _Phase.BEGINNING:
                executor.begin_copy(self._message.epoch if self.learner else executor.epoch)
                self._phase = _Phase.FORGETTING
                return
            executor.is_copying = True
            self._phase = _Phase.COPYING
        self._commit()
        if not self.is_over and (due := self.due) is not None and due <= now:
            self._ask(now)

    def _commit(self) -> None:
        executor = self.executor
        commits, parts = self._commits, self._parts
        while commits and commits[0].llsn_end <= executor.durable_end and executor.state is SEALING:
            if not executor.commit_copied(commits[0]):
                self.failure = f"node {self.source} gave a commit context that is not of these batches: {commits[0]}"
                return
            commits.popleft()
        while parts and parts[0][0] <= executor.durable_end:
            self._ahead -= parts.popleft()[1]

    def _ask(self, now: float) -> None:
        executor = self.executor
        self._request = next(self._requests)
        self._is_asking, self._asked = True, now
        if self._silent_since is None:
            self._silent_since = now
        after = self._commits[-1].version if self._commits else executor.version
        fetch = FetchLog(
            self._request, executor.lsid, executor.snid, executor.epoch, executor.end, after, limits.COPY_PART_BYTES,
            self.learner,
        )  # fmt: skip
        self._send(node_address(self.source), fetch)

    def on_part(self, message: LogPart, now: float) -> RestartPlan | None:
        """The source has answered. Returns how to start anew, if it comes to that."""
        executor = self.executor
        if not self._is_asking or message.request != self._request:
            return None
        if message.batches and message.llsn != executor.end:
            return None  # not the answer to this question, whatever its number
        self._is_asking = False
        if message.code == errors.Trimmed.code and message.llsn > executor.committed_end:
            self.failure = "what it lacks is trimmed; it starts anew where the log begins now"
            sync = msgspec.structs.replace(self._message, learner=self.learner)
            return RestartPlan(executor, message.base, executor.epoch, sync, self.renewed)
        if message.code:
            refused = errors.VarlogError.of(message.code, message.detail)
            self._not_before = now + FOLLOW_AGAIN
            self.trouble = f"node {self.source}: {refused}"
            if not refused.retriable:
                self.failure = self.trouble
            return None
        self._silent_since = None
        self.trouble = ""
        self._note_end(message.committed_end, now)
        try:
            size = self._take(message)
        except errors.VarlogError as error:
            self.failure = f"node {self.source} gave what cannot be taken: {error}"
            return None
        if not size or (size < limits.COPY_PART_BYTES // 4 and message.committed_end <= executor.end):
            self._not_before = now + FOLLOW_AGAIN
        return None

    def _note_end(self, end: LLSN, now: float) -> None:
        """The source is this far now."""
        told, before = self._told
        if not before:
            self.executor.source_end = end
        elif now - told < A_MOMENT:
            return
        else:
            self.executor.source_end = before
        self._told = (now, end)

    def _take(self, part: LogPart) -> int:
        """Store what follows, up to the seal point; returns how many bytes that are. What does not follow is no part
        of this log."""
        executor = self.executor
        stop = executor.seal_point
        columns = (part.epochs, part.prev_sequences, part.batches)
        if len(set(map(len, columns))) > 1:
            raise errors.InvalidArgument("batches without what belongs to them")
        size = 0
        for epoch, prev_sequence, content in zip(*columns, strict=True):
            if stop is not None and executor.end >= stop:
                break
            header = batch.verify(content)
            if stop is not None and (executor.end + header.count > stop or epoch >= executor.epoch):
                raise errors.InvalidArgument(f"a batch of epoch {epoch} that goes beyond the seal at {stop}")
            executor.store_copied(epoch, prev_sequence, header, content)
            size += header.length
        end = self._commits[-1].llsn_end if self._commits else executor.committed_end
        for cc in part.commits:
            if cc.llsn_begin != end or cc.count <= 0:
                raise errors.InvalidArgument(f"{cc} where {end} was to be committed")
            if cc.llsn_end > executor.end:
                break
            self._commits.append(cc)
            end = cc.llsn_end
        if size:
            self._parts.append((executor.end, size))
            self._ahead += size
        return size


class Syncing:
    """The copies that the replicas of a node make, and those that are made of them. See the module's text."""

    def __init__(self, send: Send, observe: Observe) -> None:
        self.fetches: list[FetchPlan] = []
        self.restarts: list[RestartPlan] = []
        self._send = send
        self._observe = observe
        self._requests = count(1)
        self._copies: dict[LogStreamID, Copy] = {}
        self._failures: dict[LogStreamID, str] = {}
        """Why the last copy ended, of those that ended too early."""

    def __bool__(self) -> bool:
        """Whether there is anything to be done, or to be waited for."""
        return bool(self._copies or self.fetches or self.restarts)

    def __iter__(self) -> Iterator[LogStreamExecutor]:
        """The replicas that copy."""
        return iter([copy.executor for copy in self._copies.values()])

    @property
    def due(self) -> float | None:
        """When `advance` should be called, if nothing else happens before."""
        return min((due for copy in self._copies.values() if (due := copy.due) is not None), default=None)

    # The target

    def on_sync(self, executor: LogStreamExecutor, address: Address, message: Sync, now: float) -> None:
        """Begin a copy, or go on with it; tell how far it is."""
        try:
            wants = self._wants_copy(executor, message)
        except errors.VarlogError as error:
            self._reply(executor, address, message.request, error.code, str(error))
            return
        copy = self._copies.get(executor.lsid)
        if copy is not None:
            copy.renewed, copy.learner = now, message.learner
        elif wants:
            copy = self._begin(executor, message, now)
            copy.advance(now)
        trouble = self._failures.get(executor.lsid, "") if copy is None or not copy.trouble else copy.trouble
        self._reply(executor, address, message.request, 0, trouble)

    def resume(self, executor: LogStreamExecutor, plan: RestartPlan) -> None:
        """A replica was made anew as planned: go on with its copy at the next `advance`. What the source has now may be
        trimmed as well before the manager asks again."""
        try:
            wants = self._wants_copy(executor, plan.sync)
        except errors.VarlogError:
            return  # one of the set is to be sealed first
        if wants and executor.lsid not in self._copies:
            self._begin(executor, plan.sync, plan.renewed)

    def _begin(self, executor: LogStreamExecutor, message: Sync, renewed: float) -> Copy:
        self._observe(Branch.RULE12_LEARNING if message.learner else Branch.M9_SYNC_BEGAN)
        copy = self._copies[executor.lsid] = Copy(executor, message, self._requests, self._send, renewed)
        executor.source = message.source
        return copy

    def _wants_copy(self, executor: LogStreamExecutor, message: Sync) -> bool:
        """Whether the replica is to copy; False if there is nothing to copy, or cuts may do. Refuses what it must."""
        copy = self._copies.get(executor.lsid)
        where = f"log stream {executor.lsid} on node {executor.snid}"
        if message.source == executor.snid:
            raise errors.InvalidArgument(f"{where} cannot be copied from itself")
        if not executor.healthy:
            detail = f"{where} has failed; it must be removed and added again"
            raise errors.VarlogError.of(executor.fault, detail)
        if message.epoch < executor.epoch:
            raise errors.StaleEpoch(f"{where} is in epoch {executor.epoch}; {message.epoch} has passed")
        if copy is not None and copy.source != message.source:
            self._observe(Branch.M9_ALREADY_SYNC)
            raise errors.AlreadySync(f"{where} copies from node {copy.source} already")
        if message.epoch == executor.epoch and executor.state is SEALED:
            return False
        if message.learner:
            if message.epoch == executor.epoch and executor.state is RUNNING:
                raise errors.Conflict(f"{where} runs in epoch {executor.epoch}; only a replica that does not can copy")
            return True
        if executor.state is not SEALING or message.epoch > executor.epoch or executor.seal_point is None:
            raise errors.Conflict(f"{where} is not sealed in epoch {message.epoch}; seal it first")
        return executor.needs_sync

    def _reply(self, executor: LogStreamExecutor, address: Address, request: int, code: int, detail: str) -> None:
        copy = self._copies.get(executor.lsid)
        is_complete = executor.state is SEALED or (copy is not None and copy.has_caught_up)
        reply = SyncReply(
            request, executor.lsid, code, executor.snid, is_complete and not code, executor.source,
            executor.committed_end, executor.source_end, detail[: limits.MAX_DETAIL],
        )  # fmt: skip
        self._send(address, reply)

    def on_part(self, executor: LogStreamExecutor, message: LogPart, now: float) -> None:
        copy = self._copies.get(executor.lsid)
        if copy is None:
            return
        restart = copy.on_part(message, now)
        if restart is not None:
            self._observe(Branch.RULE14_SYNC_STARTS_ANEW)
            self.restarts.append(restart)

    def on_peer_connected(self, snid: StorageNodeID) -> None:
        """There is a new way to a source: what was sent the old way may be lost."""
        for copy in self._copies.values():
            if copy.source == snid:
                copy.ask_again()

    def on_sealed(self, executor: LogStreamExecutor) -> None:
        """Now that its end is known, what is missing is waited for."""
        copy = self._copies.get(executor.lsid)
        if copy is not None:
            copy.hurry()

    def tick(self, now: float) -> None:
        for copy in self._copies.values():
            copy.tick(now)
        self.advance(now)

    def advance(self, now: float) -> None:
        """Let every copy do what it can, and end those that are over."""
        for lsid, copy in list(self._copies.items()):
            if not copy.is_over:
                copy.advance(now)
            if copy.is_over:
                del self._copies[lsid]
                copy.end()
                self._note_end(lsid, copy)

    def _note_end(self, lsid: LogStreamID, copy: Copy) -> None:
        if copy.failure:
            self._observe(Branch.M9_SYNC_ABANDONED)
            self._failures[lsid] = copy.failure
        else:
            self._observe(Branch.RULE12_LEARNER_SEALED if copy.learner else Branch.M9_SYNC_COMPLETE)
            self._failures.pop(lsid, None)

    def drop(self, lsid: LogStreamID) -> None:
        """The replica is served no more."""
        self._copies.pop(lsid, None)
        self._failures.pop(lsid, None)

    # The source

    def on_fetch(self, executor: LogStreamExecutor, address: Address, message: FetchLog) -> None:
        """A replica elsewhere asks for a part: only one that is complete gives any, or to a learner one that runs."""
        is_sealed = executor.state is SEALED and (message.learner or executor.epoch >= message.epoch)
        if executor.healthy and (is_sealed or (message.learner and executor.state is RUNNING)):
            self.fetches.append(FetchPlan(address, message, executor))
            return
        self._observe(Branch.M9_NO_SOURCE)
        why = "is damaged" if not executor.healthy else f"is {executor.state.name} in epoch {executor.epoch}"
        detail = f"log stream {executor.lsid} on node {executor.snid} {why}"
        self._refuse(address, message, errors.NoSource(detail), executor.committed_end)

    def finish_fetch(self, plan: FetchPlan, result: CopiedPart | errors.VarlogError) -> None:
        """Answer with what the caller has read."""
        address, fetch, executor = plan
        end = executor.committed_end
        if isinstance(result, errors.VarlogError):
            self._refuse(address, fetch, result, end)
        elif result.base:
            code = errors.Trimmed.code
            self._send(address, LogPart(fetch.request, fetch.lsid, code, end, result.llsn, base=result.base))
        else:
            part = LogPart(
                fetch.request, fetch.lsid, 0, end, result.llsn, result.epochs, result.prev_sequences, result.batches,
                result.commits,
            )  # fmt: skip
            self._send(address, part)

    def _refuse(self, address: Address, message: FetchLog, error: errors.VarlogError, end: LLSN) -> None:
        detail = str(error)[: limits.MAX_DETAIL]
        self._send(address, LogPart(message.request, message.lsid, error.code, end, detail=detail))
