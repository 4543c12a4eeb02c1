"""Which of several metadata repositories leads.

Several run on one metadata store, and each has a `Candidate`. It holds a lease there, which it keeps alive, and under
it a key that says how many storage nodes the process is connected to. The leader's key names the leader's lease. A
standby asks the store how long that lease has not been kept alive: after a second it may campaign. So nobody needs a
connection to the others, and who cannot reach the store, which is where everything is decided, does not lead for long.

Safety is not at stake here. A leader proves itself with every write (rule 1); two that believe they lead are one that
does and one that is about to find out. What is decided here is only who tries, and when:

- A campaign replaces the leader that was found silent, and no other: it is made against the revision of the leader's
  key that was judged. A judgement that comes late, or follows from a late look, deposes nobody.
- Of those that could lead, the one that hears the most storage nodes does. A standby lets one that hears more go first,
  and a leader resigns for one that has heard more for a second: a leader that is cut off from the nodes, but not from
  the store, yields. What a member counted is worth something only while that member keeps its lease alive, which the
  store is asked for: a machine that dies takes a node along, and must not be yielded to for having heard it.
- A leader whose lease is gone resigns, and is a standby like any other. So does one that the store has not answered for
  as long as a lease lives: its lease may be gone, and others lead; yet nodes that hear nobody else would go on
  reporting to it, and take its answers for proof that they are heard of. One that resigns gives its lease back, so that
  nobody waits for it. Its last write may still happen; who leads next reads the store after it has raised the term.
- A standby whose own lease is named by the leader's key has won a campaign without being told so. Nobody else will
  depose it, so it campaigns again.
- A leader that sees a later leader resigns, though it has written nothing: a paused one finds out when it goes on.

What is written: the lease, and the member's key when it changes. An idle cluster writes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Annotated, Final

import msgspec

from varlog import errors, limits
from varlog.core.branches import Branch, Observe
from varlog.core.metarepo import MetadataRepository, Role
from varlog.core.store import (
    LEADER_KEY,
    MEMBER_PREFIX,
    NO_LEASE,
    Committed,
    KeyValue,
    LeaderRecord,
    Lease,
    LeaseID,
    LeaseOutcome,
    MetadataStore,
    Put,
    ReadOutcome,
    ReadResult,
    Remaining,
    RemainingOutcome,
    Txn,
    TxnOutcome,
    Watch,
    WatchNotice,
    decode_leader,
)
from varlog.errors import Compacted, LeaseNotFound

LEASE_SECONDS: Final = 5
KEEP_ALIVE_SECONDS: Final = 0.3
ASK_SECONDS: Final = 0.25
"""A standby asks after the leader this often."""
SILENT: Final = 2
"""Whole seconds of its lease that a leader has let go by: since they are rounded, more than one second."""
OUTHEARD_SECONDS: Final = 1.0
"""For so long another has to hear more nodes before a leader resigns for it, if it still keeps its lease alive then:
one that was dead already when it began to hear more than others has been silent for as long by then."""


class MemberRecord(msgspec.Struct, frozen=True):
    """A metadata repository that is there."""

    address: Annotated[str, msgspec.Meta(max_length=limits.MAX_ADDRESS)]
    hears: Annotated[int, msgspec.Meta(ge=0)]
    """How many storage nodes are connected to it."""


_MEMBER: Final = msgspec.json.Decoder(MemberRecord)


def decode_member(value: bytes) -> MemberRecord:
    try:
        return _MEMBER.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError) as e:
        raise errors.MalformedMetadata(f"{value[:20]!r} is no metadata repository: {e}") from None


class _Mirror:
    """The keys under a prefix as the store shows them, read once and then watched: late at times, never wrong."""

    def __init__(self, store: MetadataStore, prefix: str, changed: Callable[[], None]) -> None:
        self._store = store
        self._prefix = prefix
        self._changed = changed
        self._is_reading = False
        self._watch: Watch | None = None
        self.kvs: dict[str, KeyValue] = {}
        self.revision = -1
        """Of the latest change that is in it; -1 before it was read."""

    def tick(self) -> None:
        """Read if there is no watch, for the first time or because the store forgot what it was to tell."""
        if self._watch is None and not self._is_reading:
            self._is_reading = True
            self._store.read_prefix(self._prefix, self._on_read)

    def _on_read(self, outcome: ReadOutcome) -> None:
        self._is_reading = False
        if isinstance(outcome, ReadResult):
            self.kvs = dict(outcome.kvs)
            self.revision = outcome.revision
            self._watch = self._store.watch(self._prefix, outcome.revision, self._on_notice)
            self._changed()

    def _on_notice(self, notice: WatchNotice) -> None:
        if isinstance(notice, Compacted):
            self._watch = None
            return
        for kv in notice.puts:
            self.kvs[kv.key] = kv
        for key in notice.deletes:
            self.kvs.pop(key, None)
        self.revision = notice.revision
        self._changed()

    def close(self) -> None:
        if self._watch is not None:
            self._watch.cancel()


class Candidate:
    """See the module's text. `tick` is called a few times a second; everything else follows from it."""

    def __init__(self, store: MetadataStore, repository: MetadataRepository, address: str, observe: Observe) -> None:
        self._store = store
        self._repository = repository
        self._address = address
        self._observe = observe
        self._key = MEMBER_PREFIX + address
        self._leader_keys = _Mirror(store, LEADER_KEY, self._on_leader_seen)
        self._member_keys = _Mirror(store, MEMBER_PREFIX, self._on_members_seen)
        self._now = 0.0
        self._wall = 0.0
        self._is_stopped = False

        self._lease: LeaseID | None = None
        self._is_granting = False
        self._is_renewing = False
        self._renew_at = 0.0
        self._kept_at = 0.0
        """When the store was asked for what it answered last: to grant the lease, or to keep it alive."""
        self._campaigned_under: LeaseID | None = None

        self._hears = 0
        self._recorded: tuple[LeaseID, MemberRecord] | None = None
        self._recorded_at = 0
        """The revision of our own key as it was last known to be written."""
        self._is_recording = False

        self._ask_at = 0.0
        self._is_asking = False
        self._outheard_since: float | None = None
        self._asked_of: dict[LeaseID, float] = {}
        """When the leases of members that hear more were last asked for;"""
        self._alive: dict[LeaseID, float] = {}
        """those that were kept alive according to the last answer, with when that was asked;"""
        self._silent: set[LeaseID] = set()
        """and those that were not."""
        self.silence = 0.0
        """For how many seconds, at most, the leader had let its lease be when it was last asked for."""

    @property
    def leader(self) -> LeaderRecord | None:
        """Who leads, as far as is known."""
        seen = self._leader_keys.kvs.get(LEADER_KEY)
        return None if seen is None else decode_leader(seen.value)

    @property
    def members(self) -> Mapping[str, MemberRecord]:
        """The metadata repositories that are there, by their addresses."""
        found = {}
        for kv in self._member_keys.kvs.values():
            with suppress(errors.MalformedMetadata):  # of a release that is not ours: it has no say
                member = decode_member(kv.value)
                found[member.address] = member
        return found

    def hears(self, count: int) -> None:
        """So many storage nodes are connected to this process."""
        self._hears = count

    def tick(self, now: float, wall: float) -> None:
        """Called a few times a second, with the time of a clock that never goes back, and of the wall's."""
        self._now, self._wall = now, wall
        self._go_on()

    def resign(self, done: Callable[[], None]) -> None:
        """Before the process ends: lead no more, nor try to, and give the lease back, so that a standby may go on at
        once. `done` is called when that has happened, or failed."""
        self._observe(Branch.M4_RESIGNED)
        self._is_stopped = True
        self._leader_keys.close()
        self._member_keys.close()
        lease = self._lease
        self._step_down()
        if lease is None:
            done()
        else:
            self._store.lease_revoke(lease, lambda _: done())

    def _step_down(self) -> None:
        self._repository.resign()
        self._lease = None
        self._recorded = None
        self._outheard_since = None

    # Steps

    def _go_on(self) -> None:
        """Do what can be done now."""
        if self._is_stopped:
            return
        self._leader_keys.tick()
        self._member_keys.tick()
        self._keep_lease()
        self._record()
        role = self._repository.role
        if role is Role.FOLLOWING:
            self._look_after_leader()
        elif role is not Role.CAMPAIGNING:
            self._look_after_lead()

    def _keep_lease(self) -> None:
        if self._lease is not None and self._now - self._kept_at > LEASE_SECONDS:
            self._observe(Branch.M4_LEASE_UNCERTAIN)
            self._lease = self._recorded = None
            self._is_renewing = False
        if self._lease is None:
            if not self._is_granting:
                self._is_granting = True
                self._store.lease_grant(LEASE_SECONDS, partial(self._on_granted, self._now))
        elif self._now >= self._renew_at and not self._is_renewing:
            self._is_renewing = True
            self._renew_at = self._now + KEEP_ALIVE_SECONDS
            self._store.lease_keep_alive(self._lease, partial(self._on_renewed, self._lease, self._now))

    def _on_granted(self, asked: float, outcome: LeaseOutcome) -> None:
        self._is_granting = False
        if isinstance(outcome, Lease) and not self._is_stopped:
            self._lease = outcome.id
            self._kept_at = asked
            self._renew_at = self._now + KEEP_ALIVE_SECONDS
            self._go_on()

    def _on_renewed(self, lease: LeaseID, asked: float, outcome: LeaseOutcome) -> None:
        self._is_renewing = False
        if isinstance(outcome, LeaseNotFound):
            self._lose(lease)
        elif isinstance(outcome, Lease) and lease == self._lease:
            self._kept_at = asked

    def _lose(self, lease: LeaseID) -> None:
        if lease == self._lease:
            self._lease = None
            self._recorded = None
            self._go_on()

    # Being a member

    def _record(self) -> None:
        record = MemberRecord(self._address, self._hears)
        if self._lease is None or self._is_recording or self._recorded == (self._lease, record):
            return
        self._is_recording = True
        put = Put(self._key, msgspec.json.encode(record), self._lease)
        self._store.txn(Txn(puts=(put,)), partial(self._on_recorded, self._lease, record))

    def _on_recorded(self, lease: LeaseID, record: MemberRecord, outcome: TxnOutcome) -> None:
        self._is_recording = False
        if isinstance(outcome, Committed):
            if lease == self._lease:
                self._recorded = (lease, record)
                self._recorded_at = outcome.revision
        elif isinstance(outcome, LeaseNotFound):
            self._lose(lease)

    def _on_members_seen(self) -> None:
        """An earlier write of ours whose outcome was unknown may have come after a later one: then we write again."""
        if self._recorded is not None and self._member_keys.revision >= self._recorded_at:
            lease, record = self._recorded
            kv = self._member_keys.kvs.get(self._key)
            if kv is None or (kv.lease == lease and kv.value != msgspec.json.encode(record)):
                self._recorded = None
        self._go_on()

    # Standing by

    def _look_after_leader(self) -> None:
        if self._lease is None or self._leader_keys.revision < 0 or self._member_keys.revision < 0:
            return
        seen = self._leader_keys.kvs.get(LEADER_KEY)
        leader = LeaderRecord(self._repository.term) if seen is None else decode_leader(seen.value)
        revision = 0 if seen is None else seen.revision
        if leader.lease == self._lease:
            self._observe(Branch.M4_WON_UNKNOWING)
            self._campaign(revision)
        elif leader.lease == NO_LEASE:
            self._campaign_unless_outheard(leader, revision)
        elif self._now >= self._ask_at and not self._is_asking:
            self._is_asking = True
            self._ask_at = self._now + ASK_SECONDS
            self._store.lease_remaining(leader.lease, partial(self._on_remaining, leader, revision))

    def _on_remaining(self, leader: LeaderRecord, revision: int, outcome: RemainingOutcome) -> None:
        self._is_asking = False
        if isinstance(outcome, Remaining):
            self.silence = max(0, outcome.granted - outcome.remaining)
        elif isinstance(outcome, LeaseNotFound):
            self.silence = math.inf
        else:
            return
        seen = self._leader_keys.kvs.get(LEADER_KEY)
        stands = seen is not None and seen.revision == revision
        if stands and self.silence >= SILENT and self._repository.role is Role.FOLLOWING and not self._is_stopped:
            self._campaign_unless_outheard(leader, revision)

    def _campaign_unless_outheard(self, leader: LeaderRecord, revision: int) -> None:
        if self._is_outheard(but=leader.address):
            self._observe(Branch.M4_HELD_BACK)
        else:
            self._observe(Branch.M4_CAMPAIGNED)
            self._campaign(revision)

    def _campaign(self, revision: int) -> None:
        if self._lease is not None:
            self._campaigned_under = self._lease
            self._repository.campaign(self._wall, self._lease, self._address, revision)

    # Those who hear more

    def _is_outheard(self, but: str = "") -> bool:
        """Whether somebody hears more who may be alive; what is not known of them is asked for."""
        louder = self._louder(but)
        for lease in louder - self._asked_of.keys():
            self._ask_after(lease)
        for lease in self._asked_of.keys() - louder:
            del self._asked_of[lease]
            self._alive.pop(lease, None)
            self._silent.discard(lease)
        for lease, asked in list(self._asked_of.items()):
            if self._now - asked >= ASK_SECONDS:
                self._ask_after(lease)
        return not louder <= self._silent

    def _louder(self, but: str) -> set[LeaseID]:
        found = set()
        for kv in self._member_keys.kvs.values():
            with suppress(errors.MalformedMetadata):
                member = decode_member(kv.value)
                if member.hears > self._hears and member.address not in (self._address, but):
                    found.add(kv.lease)
        return found

    def _ask_after(self, lease: LeaseID) -> None:
        self._asked_of[lease] = self._now
        self._store.lease_remaining(lease, partial(self._on_member_remaining, lease, self._now))

    def _on_member_remaining(self, lease: LeaseID, asked: float, outcome: RemainingOutcome) -> None:
        if lease not in self._asked_of:
            return
        if isinstance(outcome, Remaining) and outcome.granted - outcome.remaining < SILENT:
            self._alive[lease] = asked
            self._silent.discard(lease)
        elif isinstance(outcome, Remaining | LeaseNotFound):
            self._silent.add(lease)
            self._alive.pop(lease, None)

    # Leading

    def _on_leader_seen(self) -> None:
        seen = self._leader_keys.kvs.get(LEADER_KEY)
        if seen is not None:
            self._repository.see_leader(seen.revision)
        self._go_on()

    def _look_after_lead(self) -> None:
        self.silence = 0.0
        if self._campaigned_under != self._lease:
            self._observe(Branch.M4_LEASE_LOST)
            self._repository.resign()
        elif not self._is_outheard():
            self._outheard_since = None
        elif self._outheard_since is None:
            self._outheard_since = self._now
        elif max(self._alive.values(), default=-math.inf) - self._outheard_since >= OUTHEARD_SECONDS:
            self._yield()

    def _yield(self) -> None:
        self._observe(Branch.M4_YIELDED)
        lease = self._lease
        self._step_down()
        if lease is not None:
            self._store.lease_revoke(lease, lambda _: None)
