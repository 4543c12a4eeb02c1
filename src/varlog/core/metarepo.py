"""MetadataRepository: turns reports into one global order and decides everything else that all must agree on.

It leads or it follows. A leader has raised the term in the metadata store and proves itself with every write: each is a
transaction that compares the leader key and the version key, so a deposed leader, or a write that comes late, changes
nothing (rule 1). One is under way at a time, of one entry of the version sequence; only of what is asked about
transactions, in masses perhaps, many entries are written at once, with the cut that is due. What is asked for meanwhile
waits, and reports accumulate into the next cut. Only when the store has answered is an entry applied, announced to the
nodes and answered to whoever asked for it. An unknown outcome is settled by reading the store before anything else.

How the state is kept: `version`, one `entry/<version>` for each entry, and every so often a `snapshot` of the whole
state and of the cuts that some replica does not have on disk yet (rule 4). What the snapshot holds is deleted.

Nothing is sent when nothing changes. What a node may have missed it learns from the answer to its keep-alive (rule 5).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum
from functools import partial
from itertools import islice
from typing import Final, NamedTuple, cast

from varlog import errors, limits
from varlog.core import metastate as m
from varlog.core import registering
from varlog.core.address import Address, Send
from varlog.core.admissions import Admissions
from varlog.core.announcing import Audience, Listener
from varlog.core.branches import Branch, Observe
from varlog.core.cuthistory import CutHistory
from varlog.core.decisions import Already, decide
from varlog.core.describing import decided, describe
from varlog.core.managership import Managership
from varlog.core.messages import (
    AnnounceNode,
    BeginTransaction,
    Commit,
    Cuts,
    Decided,
    FetchCuts,
    GetMetadata,
    GetTail,
    GetTransactions,
    Message,
    RegisterManager,
    Report,
)
from varlog.core.metastate import (
    AnyEntry,
    Checkpoint,
    Cut,
    MetadataState,
    Stream,
    decode_entry,
    encode_entry,
)
from varlog.core.registering import begun, refused
from varlog.core.store import (
    ENTRY_PREFIX,
    LEADER_KEY,
    NO_LEASE,
    SNAPSHOT_KEY,
    Committed,
    Compare,
    CompareFailed,
    LeaderRecord,
    LeaseID,
    MetadataStore,
    Put,
    ReadOutcome,
    ReadResult,
    Txn,
    TxnOutcome,
    decode_leader,
    encode_leader,
    entry_key,
    version_of,
)
from varlog.core.tails import NO_LEAD, VERSION_KEY, Tails, leads
from varlog.core.tally import Tallies
from varlog.errors import OutcomeUnknown
from varlog.tuples import new_tuple
from varlog.types import LLSN, StreamStatus, Term, Version

SNAPSHOT_EVERY: Final = 64
DELETES_PER_WRITE: Final = 8
TOGETHER: Final = 31
"""So many more decisions about transactions may go with one: with what is deleted, no write has over 128 parts."""


def _nothing() -> None: ...


class Role(Enum):
    FOLLOWING = "following"
    CAMPAIGNING = "campaigning"
    LOADING = "loading"
    LEADING = "leading"


class _Asked(NamedTuple):
    source: Address
    message: Message
    request: int


_Decision = tuple[AnyEntry, _Asked | None]


class _Write(NamedTuple):
    """The entries being written, one mostly, the first with this version; and who waits for them."""

    version: Version
    decisions: Sequence[_Decision]
    txn: Txn
    snapshot: bool
    deleted: int


class MetadataRepository:
    """See the module's text."""

    def __init__(self, store: MetadataStore, send: Send, observe: Observe) -> None:
        self._store = store
        self._send = send
        self._observe = observe
        self.role = Role.FOLLOWING
        self.term = Term(0)
        self.state = MetadataState()
        self.history = CutHistory(self.state.streams, {})
        self._tallies = Tallies()
        self._audience = Audience(send)
        self._admissions = Admissions()
        self._managership = Managership(observe)
        self._asked: deque[_Asked] = deque()
        self._tails = Tails(store, send, self._answer_tails, self._fenced)
        self._write: _Write | None = None
        self._stalled: Callable[[], None] | None = None
        self._entries: deque[Version] = deque()
        self._snapshot_version = Version(0)
        self._checkpoint_due = Version(SNAPSHOT_EVERY)
        self._leader_revision = NO_LEAD
        """Of the leader key as this leadership wrote it: what the store answered to another one does not count."""
        self._campaign = 0
        self._lease = NO_LEASE
        self._version_revision = 0
        self._now = 0.0
        self.on_turn_of_role: Callable[[], None] = _nothing
        """Called when this one begins to lead, and when it leads no more."""

    # Leadership

    def campaign(self, now: float, lease: LeaseID = NO_LEASE, address: str = "", instead_of: int | None = None) -> None:
        """Try to lead: raise the term, then read everything. The lease and the address are written down for others to
        see; they prove nothing. If the leader to be replaced is given, by the revision of its key, no other one is."""
        self._now = now
        self.role = Role.CAMPAIGNING
        self._campaign += 1
        self._lease = lease
        self._store.read([LEADER_KEY], partial(self._on_leader_read, self._campaign, address, instead_of))

    def _on_leader_read(self, campaign: int, address: str, instead_of: int | None, outcome: ReadOutcome) -> None:
        if campaign != self._campaign:
            return
        if not isinstance(outcome, ReadResult):
            self.role = Role.FOLLOWING
            return
        leader = outcome.kvs.get(LEADER_KEY)
        self.term = Term((decode_leader(leader.value).term if leader is not None else 0) + 1)
        compare = Compare(LEADER_KEY, leader.revision if leader is not None else 0)
        if instead_of is not None and compare.revision != instead_of:
            self.role = Role.FOLLOWING
            return
        record = LeaderRecord(self.term, self._lease, address)
        txn = Txn((compare,), (Put(LEADER_KEY, encode_leader(record)),))
        self._store.txn(txn, partial(self._on_campaign, campaign))

    def _on_campaign(self, campaign: int, outcome: TxnOutcome) -> None:
        if campaign != self._campaign:
            return
        if isinstance(outcome, Committed):
            self._leader_revision = outcome.revision
            self._tails.begin(outcome.revision)
            self._load()
        else:
            self.role = Role.FOLLOWING

    def _load(self) -> None:
        self.role = Role.LOADING
        self._store.read_prefix("", partial(self._on_loaded, self._campaign))

    def _on_loaded(self, campaign: int, outcome: ReadOutcome) -> None:
        if campaign != self._campaign:
            return
        if not isinstance(outcome, ReadResult):
            self._stalled = self._load
            return
        kvs = outcome.kvs
        if not leads(outcome, self._leader_revision):
            self._step_down()
            return
        saved = Checkpoint(MetadataState(), {})
        if SNAPSHOT_KEY in kvs:
            saved = Checkpoint.decode(kvs[SNAPSHOT_KEY].value)
        self.state = saved.state
        self.history = CutHistory(self.state.streams, saved.held)
        self._snapshot_version = self.state.version
        self._checkpoint_due = Version(self.state.version + SNAPSHOT_EVERY)
        self._version_revision = kvs[VERSION_KEY].revision if VERSION_KEY in kvs else 0
        self._entries.clear()
        for key in sorted(key for key in kvs if key.startswith(ENTRY_PREFIX)):
            version = version_of(key)
            self._entries.append(version)
            if version > self._snapshot_version:
                entry = decode_entry(kvs[key].value)
                self.state.apply(version, entry)
                if isinstance(entry, Cut):
                    self.history.add(version, entry)
        self._begin()

    def _begin(self) -> None:
        """Lead. Nothing that was reported to a leader before counts; nodes are told anew."""
        self.role = Role.LEADING
        self._tallies = Tallies()
        self._audience.begin(self.term, self.state)
        self._admissions.forget_all()
        self._managership.begin(self._now, waits=self._lease != NO_LEASE)
        self._write = None
        for stream in self.state.streams.values():
            if stream.status is not StreamStatus.CHAINED:
                self._tallies.follow(stream)
        self.on_turn_of_role()
        self._pump()

    def resign(self) -> None:
        """Lead no more, nor try to. A write that is under way may still happen: who leads next reads it."""
        self._campaign += 1
        self._step_down()

    def see_leader(self, revision: int) -> None:
        """The leader key was seen at this revision; one after our own is another's."""
        if self.role in (Role.LOADING, Role.LEADING) and revision > self._leader_revision:
            self._observe(Branch.M4_SAW_ANOTHER_LEAD)
            self.resign()

    def _step_down(self) -> None:
        led = self.role is Role.LEADING
        self.role = Role.FOLLOWING
        self._leader_revision = NO_LEAD
        asked = [*self._asked]
        if self._write is not None:
            asked += [waiting for _, waiting in self._write.decisions if waiting is not None]
        self._asked.clear()
        self._write = None
        self._stalled = None
        for source, message, request in asked:
            self._send(source, refused(self.state, message, request, errors.NotLeader.code))
        self._tails.end()
        if led:
            self.on_turn_of_role()

    def _fenced(self) -> None:
        """The store shows another leader."""
        self._observe(Branch.RULE1_FENCED)
        self._step_down()

    @property
    def awaits_store(self) -> bool:
        """Whether a decision is being written."""
        return self._write is not None

    def _answer_tails(self) -> None:
        self._tails.answer(self.state, self._version_revision, self._now)

    # Messages

    def on_message(self, source: Address, message: Message, now: float) -> None:
        """Anything that arrives for the metadata repository."""
        self._now = now
        if self.role is not Role.LEADING:
            return
        match message:
            case Report():
                self._on_report(source, message)
            case FetchCuts():
                self._on_fetch_cuts(source, message)
            case GetMetadata(request):
                self._managership.heard(source, now)
                self._send(source, describe(self.state, request))
            case GetTail() | GetTransactions():
                self._tails.ask(source, message)
            case _:
                self._on_asked(source, message)
        self._pump()

    def _on_asked(self, source: Address, message: Message) -> None:
        self._managership.heard(source, self._now)
        request: int | None = getattr(message, "request", None)
        if request is None:
            raise errors.InvalidArgument(f"a metadata repository does not take {type(message).__name__}")
        if len(self._asked) >= limits.MAX_PENDING_DECISIONS:
            self._send(source, refused(self.state, message, request, errors.Busy.code))
            return
        if self._write is not None:
            self._observe(Branch.RULE1_DECISION_WAITS_FOR_WRITE)
        self._asked.append(_Asked(source, message, request))

    def on_closed(self, source: Address) -> None:
        """A connection has ended."""
        self._admissions.on_closed(source)
        self._managership.on_closed(source)

    def _on_report(self, source: Address, report: Report) -> None:
        known = self.state.nodes.get(report.snid)
        if known is None or (known.proof and not self._admissions.hears(report.snid, source, report.boot, self._now)):
            return
        nodes = self._audience.nodes
        node = nodes.get(report.snid)
        if node is None or report.boot > node.boot:
            if node is not None:
                self._observe(Branch.RULE5_NEW_BOOT_VOIDS)
            self._tallies.void(report.snid)
            node = nodes[report.snid] = Listener(report.boot)
        if report.boot < node.boot or report.seq <= node.seq:
            return
        node.seq = report.seq
        node.address = source
        if self._is_unknown(report):
            if not node.is_ahead:
                self._on_node_ahead(report, node)
            return
        self._tallies.count(report.snid, report.lines)
        if node.told is None or report.ask:
            if node.told is not None:
                self._observe(Branch.RULE5_SNAPSHOT_AFTER_GAP)
            self._send_snapshot(report, node)
        elif report.full:
            self._send(source, Commit(self.term, node.told, node.told, self.state.time, (), ()))

    def _on_node_ahead(self, report: Report, node: Listener) -> None:
        """A node knows of a later version or epoch: another leads, or metadata has gone back and the node must stop
        (rule 5). Only the store can tell which."""
        led = self._leader_revision
        node.is_ahead = True

        def on_read(outcome: ReadOutcome) -> None:
            node.is_ahead = False
            if led != self._leader_revision or self._audience.nodes.get(report.snid) is not node:
                return
            if not isinstance(outcome, ReadResult):
                return
            if not leads(outcome, led):
                self._fenced()
            elif self._is_unknown(report):
                self._send_snapshot(report, node)

        self._store.read([LEADER_KEY], on_read)

    def _send_snapshot(self, report: Report, node: Listener) -> None:
        """What a node asked for: its log streams, and those it has a replica of without being in their set."""
        lsids = {line[0] for line in report.lines}
        streams = [s for s in self.state.streams.values() if s.lsid in lsids or report.snid in s.replicas]
        self._audience.tell_state(node, streams, report.version, self._unknown_epochs(report))

    def _is_unknown(self, report: Report) -> bool:
        """Whether a node tells of what this metadata never gave out."""
        version, state = report.version, self.state
        if version > state.version or (state.skipped and state.known_version(version) < version):
            return True
        return bool(self._unknown_epochs(report))

    def _unknown_epochs(self, report: Report) -> tuple[tuple[int, int, int], ...]:
        """What a node has promised, and was not told by this metadata: see `Snapshot.unknown_epochs`. What a restarted
        node has on disk of a seal or an unseal is the epoch, and no version."""
        find, unknown = cast(dict[int, Stream], self.state.streams).get, []
        for lsid, epoch, _, _, _, _ in report.lines:  # for every report: as little as can be
            stream = find(lsid)
            if stream is not None and epoch != stream.epoch and (known := stream.known_epoch(epoch)) < epoch:
                unknown.append((lsid, epoch, int(known)))
        return tuple(unknown)

    def _on_fetch_cuts(self, source: Address, message: FetchCuts) -> None:
        cuts = self.history.of_stream(message.lsid, message.after, limits.MAX_CUTS_PER_REPLY)
        stream = self.state.streams.get(message.lsid)
        self._send(source, Cuts(message.lsid, tuple(cuts), LLSN(0) if stream is None else stream.llsn_end))

    # Writing

    def tick(self, now: float) -> None:
        """Called a few times a second: try again what the store did not take."""
        self._now = now
        self.history.prune(self._tallies.durable_version)
        stalled, self._stalled = self._stalled, None
        if stalled is not None:
            stalled()
        self._pump()

    def _pump(self) -> None:
        while self.role is Role.LEADING and self._write is None and self._asked:
            asked = self._asked.popleft()
            if (entry := self._decide(asked)) is None:
                continue
            decisions: list[_Decision] = [(entry, asked)]
            concerned = registering.concerned(self.state, asked.message)
            if concerned is not None:
                decisions += self._decide_together(concerned)
                decisions += self._cut()
            self._submit(decisions)
        if self.role is Role.LEADING and self._write is None and (cut := self._cut()):
            self._submit(cut)

    def _decide(self, asked: _Asked) -> AnyEntry | None:
        """The entry that what was asked for needs; None if it was answered."""
        try:
            self._managership.check(asked.source, asked.message, self.state.manager, self._now)
            decision = decide(self.state, asked.message, self._now)
            if isinstance(asked.message, AnnounceNode):
                snid = asked.message.snid
                place = self.state.nodes[snid].address
                self._admissions.check_alone(snid, asked.source, asked.message.boot, place, self._now)
        except errors.VarlogError as error:
            self._refuse(asked, error)
            return None
        if isinstance(decision, Already):
            self._answer(asked)
            return None
        return decision

    def _decide_together(self, first: tuple[int, str]) -> list[_Decision]:
        """What else was asked about transactions and has nothing to do with each other, nor with the first."""
        decisions: list[_Decision] = []
        concerned = {first}
        most = TOGETHER if registering.has_room(self.state, TOGETHER) else 0
        while self._asked and len(decisions) < most:
            name = registering.concerned(self.state, self._asked[0].message)
            if name is None or name in concerned:
                break
            asked = self._asked.popleft()
            if (entry := self._decide(asked)) is not None:
                concerned.add(name)
                decisions.append((entry, asked))
        return decisions

    def _cut(self) -> list[_Decision]:
        """The next cut, if there is one."""
        if not self._tallies.has_advanced:
            return []
        time = max(self.state.time, int(self._now * 1_000_000))
        if (cut := self._tallies.cut(self.state, time, self.history.full())) is None:
            return []
        self._tallies.require_durable(cut)
        return [(cut, None)]

    def _refuse(self, asked: _Asked, error: errors.VarlogError) -> None:
        """Most refusals do no harm if they come from a leader that has been deposed: who asked tries again. A node that
        is told it is not who it says it is stops, so that is told only by one whom the store knows as the leader."""
        detail = str(error)[: limits.MAX_DETAIL]
        refusal = refused(self.state, asked.message, asked.request, error.code, detail)
        if not isinstance(error, errors.WrongIdentity):
            self._send(asked.source, refusal)
            return
        led = self._leader_revision

        def on_read(outcome: ReadOutcome) -> None:
            leads = isinstance(outcome, ReadResult) and outcome.kvs[LEADER_KEY].revision == led
            if leads and led == self._leader_revision:
                self._send(asked.source, refusal)
            else:
                self._send(asked.source, Decided(asked.request, errors.NotLeader.code, self.state.version))

        self._store.read([LEADER_KEY], on_read)

    def _submit(self, decisions: Sequence[_Decision]) -> None:
        version, last = Version(self.state.version + 1), self.state.version + len(decisions)
        puts = [new_tuple(Put, (VERSION_KEY, b"%d" % last, NO_LEASE))]
        for at, (entry, _) in enumerate(decisions, version):
            puts.append(new_tuple(Put, (entry_key(at), encode_entry(entry), NO_LEASE)))
        checkpoint = self._checkpoint()
        if checkpoint is not None:
            puts.append(Put(SNAPSHOT_KEY, checkpoint))
        deletes: list[Version] = []
        if self._entries and self._entries[0] <= self._snapshot_version:
            most = DELETES_PER_WRITE + 2 * (len(decisions) - 1)
            deletes = [v for v in islice(self._entries, most) if v <= self._snapshot_version]
        txn = new_tuple(Txn, (self._compares(), tuple(puts), tuple(map(entry_key, deletes))))
        write = new_tuple(_Write, (version, decisions, txn, checkpoint is not None, len(deletes)))
        self._store.txn(txn, partial(self._on_written, write))
        self._write = write

    def _checkpoint(self) -> bytes | None:
        """The state to be written with the next entry, if it is time. One too large to be written is left out: the
        entries since the last one stay, and log streams that hold too many cuts get no more until it fits again."""
        if self.state.version < self._checkpoint_due:
            return None
        self._checkpoint_due = Version(self.state.version + SNAPSHOT_EVERY)
        if self.history.fold(self._tallies.durable_version):
            self._observe(Branch.RULE4_HISTORY_DROPPED)
        checkpoint = Checkpoint(self.state, self.history.held).encode()
        return checkpoint if len(checkpoint) <= self._store.max_value_bytes else None

    def _compares(self) -> tuple[Compare, ...]:
        """What every write proves (rule 1)."""
        leader = new_tuple(Compare, (LEADER_KEY, self._leader_revision))
        return (leader, new_tuple(Compare, (VERSION_KEY, self._version_revision)))

    def _on_written(self, write: _Write, outcome: TxnOutcome) -> None:
        if write is not self._write:
            return  # of a leadership that has passed
        if isinstance(outcome, Committed):
            self._complete(write, outcome.revision)
        elif isinstance(outcome, CompareFailed):
            self._on_refused(write, outcome)
        elif isinstance(outcome, OutcomeUnknown):
            self._settle(write)
        else:
            self._stalled = lambda: self._store.txn(write.txn, partial(self._on_written, write))

    def _on_refused(self, write: _Write, outcome: CompareFailed) -> None:
        leader = outcome.current.get(LEADER_KEY)
        if leader is None or leader.revision != self._leader_revision:
            self._fenced()
        else:  # an earlier copy of this very write, whose outcome was unknown, has landed
            self._settle(write)

    def _settle(self, write: _Write) -> None:
        """The outcome of the write is unknown: read again before anything else (rule 1)."""
        self._store.read([LEADER_KEY, VERSION_KEY], partial(self._on_settled, write))

    def _on_settled(self, write: _Write, outcome: ReadOutcome) -> None:
        if write is not self._write:
            return
        if not isinstance(outcome, ReadResult):
            self._stalled = partial(self._settle, write)
            return
        if not leads(outcome, self._leader_revision):
            self._fenced()
            return
        version = outcome.kvs.get(VERSION_KEY)
        if version is None or version.revision == self._version_revision:
            self._observe(Branch.RULE1_UNKNOWN_DID_NOT_HAPPEN)
            self._store.txn(write.txn, partial(self._on_written, write))  # the same bytes: one copy at most lands
        else:
            self._observe(Branch.RULE1_UNKNOWN_HAPPENED)
            self._complete(write, version.revision)

    def _complete(self, write: _Write, revision: int) -> None:
        """The store has it: apply, tell, answer, go on."""
        self._write = None
        self._version_revision = revision
        for _ in range(write.deleted):
            self._entries.popleft()
        if write.snapshot:
            self._snapshot_version = Version(write.version - 1)
        for at, (entry, asked) in enumerate(write.decisions, write.version):
            version = Version(at)
            self.state.apply(version, entry)
            self._entries.append(version)
            self._announce(version, entry)
            if asked is not None:
                self._answer(asked, entry)
        self._answer_tails()
        self._pump()

    def _answer(self, asked: _Asked, entry: AnyEntry | None = None) -> None:
        """Tell the requester that the state is as it asked for."""
        message = asked.message
        if isinstance(message, BeginTransaction):
            self._send(asked.source, begun(self.state, message, self._now))
            return
        if isinstance(message, AnnounceNode) and self.state.nodes[message.snid].proof:
            self._admissions.admit(message.snid, asked.source, message.boot, self._now)
        elif isinstance(message, RegisterManager):
            self._managership.register(asked.source, self._now)
        self._send(asked.source, decided(self.state, asked.request, message, entry))

    # Telling the nodes

    def _announce(self, version: Version, entry: AnyEntry) -> None:
        match entry:
            case Cut():
                self.history.add(version, entry)
                self._audience.tell_cut(version, entry)
            case m.StreamRunning(lsid):
                self._tallies.resume(lsid)
                stream = self.state.streams[lsid]
                self._audience.tell_epoch(version, stream)
            case m.StreamSealed(lsid) | m.StreamUnsealing(lsid) | m.StreamRegistered(lsid) | m.StreamLost(lsid):
                self._follow_set(version, self.state.streams[lsid])
            case m.Projected(tpid):
                self._audience.follow_chains(tpid)
            case m.TopicDeleted() | m.StreamUnregistered():
                self._follow_removal()
            case m.NodeUnregistered(snid) | m.NodeRenewed(snid):
                self._audience.nodes.pop(snid, None)
                self._admissions.forget(snid)
            case m.Trimmed(tpid, _):
                self._audience.tell_trim(version, tpid)
            case _:
                pass  # the nodes have no part in it

    def _follow_set(self, version: Version, stream: Stream) -> None:
        """A log stream's epoch, and with it perhaps its set, has changed."""
        if stream.status is StreamStatus.CHAINED:
            self._audience.follow_chains(stream.tpid)
            return
        before = self._tallies.members(stream.lsid)
        self._tallies.follow(stream)
        self._audience.follow_set(version, stream, before)

    def _follow_removal(self) -> None:
        """The nodes are not told: what they still hold gets no cut, and its watermark is raised no more."""
        for lsid in self._tallies.lsids() - self.state.streams.keys():
            self._tallies.drop(lsid)
        self._audience.find_hosts()
