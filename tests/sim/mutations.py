"""Protocol rules broken on purpose.

Each mutation patches production code so that it breaks one rule, and names the checker that must find out. A checker
that cannot find a broken rule proves nothing when it is silent. The inline assertions of the core are switched off
while a mutation is in place: they would stop the node before any harm was done, and it is the checkers that are tested.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from varlog import errors
from varlog.batch import BatchHeader
from varlog.core import invariants, manager, repairing, tally
from varlog.core.address import node_address
from varlog.core.dedup import DedupTable, Fate, Record
from varlog.core.executor import LogStreamExecutor
from varlog.core.messages import (
    Append,
    FetchLog,
    RemoveLogStream,
    ReplicaInfo,
    ReportLine,
    Seal,
    StreamInfo,
    Unseal,
)
from varlog.core.metarepo import MetadataRepository
from varlog.core.metastate import AnyEntry, Cut, Stream
from varlog.core.pending import PendingBatches
from varlog.core.replication import Backups
from varlog.core.staging import Staging
from varlog.core.states import RUNNING, SEALED, SEALING
from varlog.core.steps import Situation, Step
from varlog.core.store import TxnOutcome
from varlog.core.syncing import Copy, FetchPlan, Syncing
from varlog.core.tally import Tallies, Tally
from varlog.core.world import Sight
from varlog.sim.command import RUNS
from varlog.sim.runner import RunSeed, find_run_seed
from varlog.storage import logfiles
from varlog.storage.replay import Replay
from varlog.storage.state import LogState
from varlog.types import GLSN, LLSN, CommitContext, Epoch, Ordering, StorageNodeID, Version

ROOT = Path(__file__).resolve().parents[2]
Patch = Callable[[pytest.MonkeyPatch], None]


class Mutation(NamedTuple):
    """A broken rule, and who finds it."""

    name: str
    checker: str
    patch: Patch
    hint: int
    """A seed that is known to find it, tried first."""


def _no_assertions(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(invariants, "require", lambda *_: None)


@contextmanager
def applied(mutation: Mutation) -> Iterator[None]:
    """The mutation in place, the inline assertions out of it."""
    with pytest.MonkeyPatch.context() as patch:
        _no_assertions(patch)
        mutation.patch(patch)
        yield


def assert_found(mutation: Mutation, ordering: Ordering, *, transactions: bool = False) -> None:
    """That its checker finds a mutation in one of the seeds that `make test` runs, of which the hint comes first.

    So it is shown as well that the same seeds find nothing without the mutation.
    """
    seeds = _seeds_in_ci(ordering, transactions)
    assert mutation.hint in seeds, "nobody runs this seed without the mutation"
    run_seed = find_run_seed(RUNS[ordering, transactions])
    with applied(mutation):
        for seed in (mutation.hint, *seeds):
            if mutation.checker in _violated(run_seed, seed):
                return
    pytest.fail(f"{mutation.checker} did not find {mutation.name} in {len(seeds)} seeds")


def _violated(run_seed: RunSeed, seed: int) -> set[str]:
    """The checkers that object. A run that ends with an exception shows nothing: a broken rule may break anything."""
    try:
        return {checker for checker, _ in run_seed(seed).violations}
    except Exception:
        return set()


def _seeds_in_ci(ordering: Ordering, transactions: bool) -> list[int]:
    """The seeds of an ordering that `make test` runs."""
    option = "" if ordering is Ordering.COMMIT else f"--ordering {ordering.label} "
    option += "--transactions " if transactions else ""
    runs = re.findall(rf" varlog sim {option}(?:--first-seed (\d+) )?--seeds (\d+) ", (ROOT / "Makefile").read_text())
    return [seed for first, count in runs for seed in range(int(first or 1), int(first or 1) + int(count))]


def _writes_prove_nothing(patch: pytest.MonkeyPatch) -> None:
    """Rule 1: a deposed leader's write lands, and so does one that follows from an old version."""
    patch.setattr(MetadataRepository, "_compares", lambda _: ())


def _cut_without_the_leadership_compare(patch: pytest.MonkeyPatch) -> None:
    """Rule 1: a write proves the version before it, and not that its writer leads. One who was deposed slips a cut in
    behind what its successor has read, who takes it for its own."""
    genuine = MetadataRepository._compares
    patch.setattr(MetadataRepository, "_compares", lambda self: genuine(self)[1:])


def _unknown_is_taken_for_failed(patch: pytest.MonkeyPatch) -> None:
    """Rule 1: a write whose outcome is unknown counts as one that never happened, and another takes its place."""
    genuine = MetadataRepository._on_written

    def on_written(self: MetadataRepository, write: Any, outcome: TxnOutcome) -> None:
        decisions = write.decisions
        if isinstance(outcome, errors.OutcomeUnknown) and write is self._write:
            self._write = None
            for _, asked in decisions:
                if asked is not None:
                    self._refuse(asked, outcome)
            self._pump()
        else:
            genuine(self, write, outcome)

    patch.setattr(MetadataRepository, "_on_written", on_written)


def _told_before_it_is_written(patch: pytest.MonkeyPatch) -> None:
    """Rule 1: the nodes are told of a cut when it is sent to the store, not when the store has it."""
    genuine_submit, genuine_announce = MetadataRepository._submit, MetadataRepository._announce

    def submit(self: MetadataRepository, decisions: Sequence[tuple[AnyEntry, Any]]) -> None:
        genuine_submit(self, decisions)
        for version, (entry, _) in enumerate(decisions, self.state.version + 1):
            if isinstance(entry, Cut):
                self._audience.tell_cut(Version(version), entry)

    def announce(self: MetadataRepository, version: Version, entry: AnyEntry) -> None:
        if isinstance(entry, Cut):
            self.history.add(version, entry)
        else:
            genuine_announce(self, version, entry)

    patch.setattr(MetadataRepository, "_submit", submit)
    patch.setattr(MetadataRepository, "_announce", announce)


def _stale_seal_is_obeyed(patch: pytest.MonkeyPatch) -> None:
    """Rule 2: a delayed Seal of a passed epoch stops a running replica and takes what was stored since. The storage
    has a check of its own against it, an inline assertion too, which is off as well."""
    genuine = LogStreamExecutor.seal

    def seal(self: LogStreamExecutor, source: str, message: Seal) -> None:
        if message.epoch < self.epoch:
            self.epoch = Epoch(message.epoch - 1)
        genuine(self, source, message)

    def seal_in_file(self: LogState, epoch: Epoch, llsn_end: LLSN) -> None:
        self.epoch = epoch
        self.end = min(self.end, llsn_end)
        self.committed_end = min(self.committed_end, llsn_end)

    patch.setattr(LogStreamExecutor, "seal", seal)
    patch.setattr(LogState, "seal", seal_in_file)


def _old_completions_count(patch: pytest.MonkeyPatch) -> None:
    """Rule 9: a seal is no barrier, and a write that was queued before it counts as durable after it."""

    def on_batches_durable(self: LogStreamExecutor, _epoch: Epoch, end: LLSN) -> None:
        if end > self.durable_end:
            self.durable_end = end
            self.changed = True

    def without_barrier(genuine: Callable[..., None]) -> Callable[..., None]:
        def promise(self: LogStreamExecutor, *args: Any) -> None:
            genuine(self, *args)
            self._promise = None
            waiters, self._promise_waiters = self._promise_waiters, []
            for source, request in waiters:
                self._reply(source, request, 0)

        return promise

    patch.setattr(LogStreamExecutor, "_on_batches_durable", on_batches_durable)
    patch.setattr(LogStreamExecutor, "seal", without_barrier(LogStreamExecutor.seal))
    patch.setattr(LogStreamExecutor, "unseal", without_barrier(LogStreamExecutor.unseal))


def _hwm_is_per_node(patch: pytest.MonkeyPatch) -> None:
    """Rule 10: a high watermark counts for every replica of the node that is told. Readers that believe it never skip
    what is missing (rule 11): they wait for it for ever, so it is `liveness` that finds out."""

    def raise_hwm(self: LogStreamExecutor, hwm: GLSN) -> bool:
        self.global_hwm = max(self.global_hwm, hwm)
        return True

    patch.setattr(LogStreamExecutor, "raise_hwm", raise_hwm)


def _append_of_any_epoch(patch: pytest.MonkeyPatch) -> None:
    """Rule 17: an append is taken whatever epoch its client knew."""
    genuine = LogStreamExecutor.append

    def append(self: LogStreamExecutor, source: str, message: Append, header: BatchHeader, now: float) -> None:
        current = Append(
            message.request, message.lsid, self.epoch, message.prev_sequence, message.horizon, message.batch
        )
        genuine(self, source, current, header, now)

    patch.setattr(LogStreamExecutor, "append", append)


def _no_deduplication(patch: pytest.MonkeyPatch) -> None:
    """Rule 18: a batch that is in the log already is appended again."""

    genuine = DedupTable.judge

    def judge(self: DedupTable, *args: Any) -> tuple[Fate, Record | None]:
        fate, record = genuine(self, *args)
        return (fate, record) if fate is Fate.PENDING else (Fate.NEW, None)

    patch.setattr(DedupTable, "judge", judge)


def _fastest_replica_decides(patch: pytest.MonkeyPatch) -> None:
    """A cut commits what one replica has, not what all have."""
    genuine_cut, genuine_cut_at = Tallies.cut, Tally.cut_at

    def cut(self: Tallies, *args: Any) -> Any:
        with pytest.MonkeyPatch.context() as within:
            within.setattr(tally, "min", max, raising=False)
            return genuine_cut(self, *args)

    def cut_at(self: Tally, end: int) -> None:
        genuine_cut_at(self, end)
        self.behind = 1

    patch.setattr(Tallies, "cut", cut)
    patch.setattr(Tally, "cut_at", cut_at)


def _reported_before_synced(patch: pytest.MonkeyPatch) -> None:
    """A batch is reported as soon as it is staged."""
    for name in ("_store", "_store_run"):
        _report_after(patch, name, getattr(LogStreamExecutor, name))


def _report_after(patch: pytest.MonkeyPatch, name: str, genuine: Callable[..., None]) -> None:
    def store(self: LogStreamExecutor, *args: Any) -> None:
        genuine(self, *args)
        self.durable_end = self.end
        self.changed = True

    patch.setattr(LogStreamExecutor, name, store)


def _restarted_primary_runs_on(patch: pytest.MonkeyPatch) -> None:
    """A restarted primary goes on in its epoch, and gives LLSNs that it had given before."""
    genuine = LogStreamExecutor.recover

    def recover(self: LogStreamExecutor, context: Any, damage: errors.VarlogError | None) -> None:
        genuine(self, context, damage)
        if self.epoch % 2 == 0 and self.epoch > 0:
            self.state = RUNNING
            if self.primary == self.snid and len(self.replicas) > 1:
                others = [snid for snid in self.replicas if snid != self.snid]
                backups = Backups(self.lsid, self.epoch, others, self.end, self._send, 0.0)
                self._backups = backups

    patch.setattr(LogStreamExecutor, "recover", recover)


def _directory_is_not_synced(patch: pytest.MonkeyPatch) -> None:
    """A new segment is written to before its name is durable."""
    genuine = logfiles.publish

    class Forgetful:
        def __init__(self, fs: Any) -> None:
            self._fs = fs

        def __getattr__(self, name: str) -> Any:
            return getattr(self._fs, name)

        def sync_dir(self, path: str) -> None:
            """Forgotten."""

    def publish(fs: Any, *args: Any, **kwargs: Any) -> Any:
        return genuine(Forgetful(fs), *args, **kwargs)

    patch.setattr(logfiles, "publish", publish)


def _seal_takes_commits_along(patch: pytest.MonkeyPatch) -> None:
    """Rule 6: a seal cuts the file at the first batch it voids, and with it the commits that were written after."""
    genuine_batch, genuine_seal = Replay._batch, Replay._seal

    def batch(self: Any, frame: Any) -> None:
        genuine_batch(self, frame)
        self.before = getattr(self, "before", {})
        self.before[frame.header.llsn] = self.state.context()

    def seal(self: Any, frame: Any) -> None:
        before = getattr(self, "before", {})
        voided = sorted(llsn for llsn in before if llsn >= frame.header.llsn and llsn < self.state.end)
        genuine_seal(self, frame)
        if voided:
            old = before[voided[0]]
            lost = [item for item in self.dedup_tail if item[0] == "commit" and item[1].llsn_end > old.committed_end]
            if lost:
                self.state.committed_end = old.committed_end
                self.state.version, self.state.hwm, self.state.local_hwm = old.version, old.hwm, old.local_hwm

    patch.setattr(Replay, "_batch", batch)
    patch.setattr(Replay, "_seal", seal)


def _stale_frames_are_committed(patch: pytest.MonkeyPatch) -> None:
    """Rule 7: a cut commits what stands at its LLSNs, whatever epoch that was written in. A replica that was outside of
    the set commits its own batches in place of those that were written without it."""
    genuine = LogStreamExecutor.apply_commit

    def holds(self: PendingBatches, cc: CommitContext) -> bool:
        return self.end is not None and self.end >= cc.llsn_end

    def apply_commit(self: LogStreamExecutor, cc: CommitContext) -> bool:
        if cc.epoch > self.epoch:
            cc = cc._replace(epoch=self.epoch)
        return genuine(self, cc)

    patch.setattr(PendingBatches, "holds", holds)
    patch.setattr(LogStreamExecutor, "apply_commit", apply_commit)


def _old_epochs_count(patch: pytest.MonkeyPatch) -> None:
    """A report counts whatever epoch it was made in, and goes on counting when that has passed, also beside a later one
    that says less."""
    genuine_count, genuine_follow = Tallies.count, Tallies.follow

    def count(self: Tallies, snid: StorageNodeID, lines: Iterable[ReportLine]) -> None:
        current = []
        for line in lines:
            tally = self._tallies.get(line[0])
            if tally is None:
                continue
            lsid, _, durable_version, committed_end, end, healthy = line
            most = max(end, tally.ends.get(snid, 0))
            current.append((lsid, tally.epoch, durable_version, committed_end, most, healthy))
        genuine_count(self, snid, current)

    def follow(self: Tallies, stream: Stream) -> None:
        before = self._tallies.get(stream.lsid)
        genuine_follow(self, stream)
        for snid, end in before.ends.items() if before is not None else ():
            genuine_count(self, StorageNodeID(snid), [(stream.lsid, stream.epoch, 0, 0, end, True)])

    patch.setattr(Tallies, "count", count)
    patch.setattr(Tallies, "follow", follow)


def _seal_record_is_left_out(patch: pytest.MonkeyPatch) -> None:
    """Rule 6: a replica promises an epoch, and writes nothing down of it."""
    genuine = LogStreamExecutor._promise_seal

    def promise_seal(self: LogStreamExecutor, epoch: Epoch, llsn_end: LLSN) -> None:
        staging = self._staging
        staging.flush()
        self._staging = _Silent(self._log, self.dedup)
        genuine(self, epoch, llsn_end)
        self._staging = staging
        self._on_promise_durable()

    patch.setattr(LogStreamExecutor, "_promise_seal", promise_seal)
    patch.setattr(LogState, "batch", _batch_anywhere)
    patch.setattr(LogState, "batches", lambda state, llsn, counts, epoch: state.batch(llsn, sum(counts), epoch))


class _Silent(Staging):
    """Stages no seals."""

    def seal(self, _epoch: Epoch, _llsn_end: LLSN) -> None:
        """Left out."""


def _batch_anywhere(self: LogState, llsn: LLSN, count: int, epoch: Epoch) -> None:
    """As if the record that was left out had been there: else staging would stop the node."""
    self.end = LLSN(llsn + count)
    self.epoch = max(self.epoch, epoch)


def _outsiders_count(patch: pytest.MonkeyPatch) -> None:
    """A replica that was taken out of the set reports in place of the slowest that is in it."""
    genuine = Tallies.count

    def count(self: Tallies, snid: StorageNodeID, lines: Iterable[ReportLine]) -> None:
        lines = list(lines)
        genuine(self, snid, lines)
        for line in lines:
            tally = self._tallies.get(line[0])
            if tally is not None and snid not in tally.ends and tally.ends:
                slowest = min(tally.ends, key=lambda member: tally.ends[member])
                genuine(self, StorageNodeID(slowest), [(line[0], tally.epoch, 0, *line[3:])])

    patch.setattr(Tallies, "count", count)


def _incomplete_replica_runs(patch: pytest.MonkeyPatch) -> None:
    """M10: a replica is unsealed below the last committed entry."""
    genuine = LogStreamExecutor.unseal

    def unseal(self: LogStreamExecutor, source: str, message: Unseal, now: float) -> None:
        if self.state is SEALING and self.healthy and self.epoch == message.epoch - 1:
            self.state = SEALED
        genuine(self, source, message, now)

    patch.setattr(LogStreamExecutor, "unseal", unseal)
    _members_are_ready_when_sealing(patch)


def _members_are_ready_when_sealing(patch: pytest.MonkeyPatch) -> None:
    """The manager believes whoever is in the sealed epoch."""
    genuine = LogStreamExecutor.info

    def info(self: LogStreamExecutor) -> ReplicaInfo:
        told = genuine(self)
        sealed = told.state is SEALING and self.seal_point is not None and told.healthy
        return msgspec.structs.replace(told, state=SEALED) if sealed else told

    patch.setattr(LogStreamExecutor, "info", info)


def _sealing_replica_is_a_source(patch: pytest.MonkeyPatch) -> None:
    """M9: a replica that is not complete itself is copied from, and who has copied all it had is taken for complete. A
    set of such replicas runs and takes appends, but the next cut begins behind their ends, and they refuse it (B10): no
    entry is acknowledged in the place of another, and it is `liveness` that finds out."""

    def on_fetch(self: Syncing, executor: LogStreamExecutor, address: str, message: FetchLog) -> None:
        self.fetches.append(FetchPlan(address, message, executor))

    def advance(self: Copy, now: float) -> None:
        genuine(self, now)
        executor = self.executor
        if self.has_caught_up and executor.state is SEALING and executor.seal_point is not None:
            executor.seal_point = executor.committed_end
            executor._reach_seal_point()

    genuine = Copy.advance
    patch.setattr(Syncing, "on_fetch", on_fetch)
    patch.setattr(Copy, "advance", advance)
    patch.setattr(repairing, "_sources", _any_source)


def _any_source(situation: Any, stream: Any) -> list[StorageNodeID]:
    return list(situation.world.replicas(stream.lsid))


def _copy_begins_at_the_end(patch: pytest.MonkeyPatch) -> None:
    """Rule 7: a copy begins behind what the target has stored, not behind what is committed there."""

    def begin_copy(self: LogStreamExecutor, epoch: Epoch) -> None:
        self.seal_self()
        if epoch > self.epoch:
            self.epoch = epoch
            self.seal_point = None
            self._backups = None
        self._promise_epoch(self.epoch)
        self._staging.seal(self.epoch, self.end)

    def commit_copied(self: LogStreamExecutor, cc: CommitContext) -> bool:
        self._commit(cc)
        self._reach_seal_point()
        return True

    patch.setattr(LogStreamExecutor, "begin_copy", begin_copy)
    patch.setattr(LogStreamExecutor, "commit_copied", commit_copied)
    _stale_frames_are_committed(patch)


def _history_is_dropped_early(patch: pytest.MonkeyPatch) -> None:
    """Rule 4: a cut leaves the history as soon as it is told, whoever has it on disk."""
    genuine = MetadataRepository._complete

    def complete(self: MetadataRepository, *args: Any) -> None:
        genuine(self, *args)
        self.history._cuts.clear()
        self.history.held.clear()

    patch.setattr(MetadataRepository, "_complete", complete)


def _table_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    """Rule 18: what writers have sent is forgotten at a restart."""
    patch.setattr(DedupTable, "recover", lambda *_: None)


def _what_is_being_made_is_collected(patch: pytest.MonkeyPatch) -> None:
    """Rule 13: what a node has of a log stream that is not registered is removed, though it may be registered yet."""

    def give_up_creating(situation: Situation, stream: StreamInfo) -> Iterator[Step]:
        made = situation.memory.seconds(situation.world.now, Sight.CREATING, stream.lsid)
        if made is not None and made >= situation.collect_after:
            for snid in situation.world.replicas(stream.lsid):
                removal = RemoveLogStream(situation.request(), stream.lsid)
                yield Step(node_address(snid), removal, f"log stream {stream.lsid}: node {snid} is to remove it")

    patch.setattr(manager, "give_up_creating", give_up_creating)


MUTATIONS = [
    Mutation("rule1_writes_prove_nothing", "dense_unique", _writes_prove_nothing, 9),
    Mutation("rule1_cut_without_the_leadership_compare", "invariant", _cut_without_the_leadership_compare, 24),
    Mutation("rule1_unknown_is_taken_for_failed", "agreement", _unknown_is_taken_for_failed, 5),
    Mutation("rule1_told_before_it_is_written", "dense_unique", _told_before_it_is_written, 83),
    Mutation("rule2_stale_seal_is_obeyed", "equal_prefixes", _stale_seal_is_obeyed, 62),
    Mutation("rule9_old_completions_count", "dense_unique", _old_completions_count, 42),
    Mutation("rule10_hwm_is_per_node", "liveness", _hwm_is_per_node, 7),
    Mutation("rule17_append_of_any_epoch", "exactly_once", _append_of_any_epoch, 13),
    Mutation("rule18_no_deduplication", "exactly_once", _no_deduplication, 3),
    Mutation("commit_before_the_slowest_replica", "durable_on_all", _fastest_replica_decides, 1),
    Mutation("reported_before_synced", "durable_on_all", _reported_before_synced, 1),
    Mutation("llsn_used_again_in_one_epoch", "one_content", _restarted_primary_runs_on, 71),
    Mutation("directory_is_not_synced", "exactly_once", _directory_is_not_synced, 23),
    Mutation("rule6_seal_takes_commits_along", "exactly_once", _seal_takes_commits_along, 3),
    Mutation("rule7_stale_frames_are_committed", "exactly_once", _stale_frames_are_committed, 524),
    Mutation("old_epochs_count", "durable_on_all", _old_epochs_count, 1),
    Mutation("rule6_seal_record_is_left_out", "exactly_once", _seal_record_is_left_out, 4),
    Mutation("outsiders_count", "durable_on_all", _outsiders_count, 62),
    Mutation("m10_incomplete_replica_runs", "exactly_once", _incomplete_replica_runs, 48),
    Mutation("m9_sealing_replica_is_a_source", "liveness", _sealing_replica_is_a_source, 45),
    Mutation("rule7_copy_begins_at_the_end", "exactly_once", _copy_begins_at_the_end, 249),
    Mutation("rule4_history_is_dropped_early", "liveness", _history_is_dropped_early, 3),
    Mutation("rule13_what_is_being_made_is_collected", "liveness", _what_is_being_made_is_collected, 2),
    Mutation("rule18_table_is_forgotten", "exactly_once", _table_is_forgotten, 76),
]
