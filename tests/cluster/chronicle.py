"""What metadata repositories that share an etcd do, as seen from outside: what they ask of it, what it keeps, and what
they tell the storage nodes.

`Chronicle` watches the store and knows every leader and every entry there ever was, in the order of the store.
`Tellings` sits in the proxies between nodes and metadata repositories and takes note of every commit that is told.
`Writes` sits in those between a metadata repository and etcd; it knows which transactions the repository asked for and
what came of them, and loses requests or answers when it is told to.

Together they show what no client can: that every version was written once, by who led then (rule 1); and that no node
was ever told a version that was not written like that, by the very leader who wrote it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import Final, NamedTuple, Self

from tests.cluster.proxy import Direction
from tests.cluster.waiting import until
from tests.metarepo.etcds import ask
from varlog.core import messages
from varlog.core.metastate import AnyEntry, Cut, ManagerRegistered, decode_entry
from varlog.core.store import (
    ENTRY_PREFIX,
    LEADER_KEY,
    LeaderRecord,
    ReadResult,
    WatchEvents,
    WatchNotice,
    decode_leader,
)
from varlog.metarepo.etcd.store import EtcdStore
from varlog.wire import catalogue, hot

COMMIT: Final = catalogue.NUMBERS[messages.Commit]
PUT: Final = b'"request_put"'
COMPARE: Final = b'"mod_revision"'
SUCCEEDED: Final = re.compile(rb'"succeeded"\s*:\s*true')


class Written(NamedTuple):
    """An entry in the store."""

    version: int
    entry: AnyEntry
    revision: int
    term: int
    """Of who led when it was written."""


class Chronicle:
    """See the module's text. Made by `open`."""

    def __init__(self, store: EtcdStore) -> None:
        self.leaders: list[LeaderRecord] = []
        self.written: list[Written] = []
        self.gap = ""
        """Why there is something it does not know."""
        self._store = store

    @classmethod
    async def open(cls, store: EtcdStore) -> Self:
        """Of a store that nobody has written to yet."""
        chronicle = cls(store)
        empty = await ask(store.read_prefix, "")
        assert isinstance(empty, ReadResult)
        assert not empty.kvs
        store.watch("", empty.revision, chronicle._on_notice)
        return chronicle

    def _on_notice(self, notice: WatchNotice) -> None:
        if not isinstance(notice, WatchEvents):
            self.gap = str(notice)
            return
        for kv in notice.puts:
            if kv.key == LEADER_KEY:
                self.leaders.append(decode_leader(kv.value))
            elif kv.key.startswith(ENTRY_PREFIX):
                version = int(kv.key.removeprefix(ENTRY_PREFIX), 16)
                self.written.append(Written(version, decode_entry(kv.value), kv.revision, self.term))

    @property
    def term(self) -> int:
        """Of the latest leader."""
        return self.leaders[-1].term if self.leaders else 0

    @property
    def manager(self) -> str:
        """The address of the manager that registered last."""
        registered = [written.entry for written in self.written if isinstance(written.entry, ManagerRegistered)]
        return registered[-1].address if registered else ""

    async def begins(self, after: int) -> None:
        """Wait until somebody leads in a later term, and has written something."""

        async def has_begun() -> bool:
            return self.term > after and self.written[-1].term > after

        await until(has_begun)

    async def is_complete(self) -> None:
        """Wait until it knows all that the store does."""
        version = await ask(self._store.read, ("version",))
        assert isinstance(version, ReadResult)
        last = int(version.kvs["version"].value)

        async def knows_it() -> bool:
            return bool(self.written) and self.written[-1].version >= last

        await until(knows_it)

    def check(self, tellings: Tellings) -> None:
        """Of everything that was written and told. To be called when all has ended, and it is complete."""
        assert not self.gap
        assert tellings.commits
        terms = [leader.term for leader in self.leaders]
        assert terms == sorted(set(terms)), "every leader raises the term"
        versions = [written.version for written in self.written]
        assert versions == list(range(1, len(versions) + 1)), "every version is written once, in order"
        for who, commit in tellings.commits:
            if commit.version == commit.prev_version:
                continue  # nothing but that it is there
            written = self.written[commit.version - 1]
            told = f"{who} told {commit}, but the store has {written}"
            assert written.term == commit.term, told
            if isinstance(written.entry, Cut):
                assert set(commit.ranges) <= set(written.entry.ranges), told
                assert set(commit.hwms) <= set(written.entry.hwms), told
            else:
                assert not commit.ranges, told
                assert not commit.hwms, told


class Tellings:
    """The commits that metadata repositories have told to nodes, as they pass."""

    def __init__(self) -> None:
        self.commits: list[tuple[str, messages.Commit]] = []
        """By whom, and what."""

    def inspector(self, who: str) -> Callable[[], _Listener]:
        """For the proxies on the way to that metadata repository."""
        return lambda: _Listener(who, self.commits)


class _Listener:
    """Takes one connection apart."""

    def __init__(self, who: str, commits: list[tuple[str, messages.Commit]]) -> None:
        self._who = who
        self._commits = commits
        self._held = bytearray()

    def passes(self, direction: Direction, data: bytes) -> bool:
        if direction is Direction.FROM_TARGET:
            self._held += data
            while len(self._held) >= hot.HEADER_BYTES:
                end = hot.HEADER_BYTES + int.from_bytes(self._held[4:8], "little")
                if len(self._held) < end:
                    break
                if int.from_bytes(self._held[8:10], "little") == COMMIT:
                    self._take(bytes(self._held[:end]))
                del self._held[:end]
        return True

    def _take(self, frame: bytes) -> None:
        commit = catalogue.CODECS[COMMIT][1].decode(memoryview(frame), hot.HEADER_BYTES, len(frame))
        assert isinstance(commit, messages.Commit)
        self._commits.append((self._who, commit))


@dataclass
class Proving:
    """A transaction that compares before it writes: a leader's."""

    asked: float
    succeeded: bool | None = None
    """None: that was never answered."""


class Writes:
    """What one metadata repository asks of etcd, on all its connections."""

    def __init__(self) -> None:
        self.proving: list[Proving] = []
        self.lost = 0
        """Requests or answers that were."""
        self._loses: Direction | None = None
        self._more = 0

    def lose(self, direction: Direction, times: int) -> None:
        """Of the next so many writes lose the request, so that nothing happens, or the answer, though it does. Either
        way the connection breaks."""
        self._loses, self._more = direction, times

    def succeeded_since(self, begin: float) -> int:
        """How many of those asked for since then did."""
        return sum(proving.asked >= begin and proving.succeeded is True for proving in self.proving)

    def strikes(self, direction: Direction) -> bool:
        """A request or an answer of a leader's write is passing: whether it is lost."""
        if self._more == 0 or direction is not self._loses:
            return False
        self._more -= 1
        self.lost += 1
        return True

    def inspector(self) -> _Clerk:
        return _Clerk(self)


class _Clerk:
    """Sits in one connection, which carries one request after another, each answered before the next."""

    def __init__(self, writes: Writes) -> None:
        self._writes = writes
        self._asked = b""
        self._proving: Proving | None = None

    def passes(self, direction: Direction, data: bytes) -> bool:
        if direction is Direction.TO_TARGET:
            if data.startswith(b"POST "):
                self._asked, self._proving = b"", None
            self._asked += data
            if self._proving is None and PUT in self._asked and COMPARE in self._asked:
                self._proving = Proving(monotonic())
                self._writes.proving.append(self._proving)
                return not self._writes.strikes(direction)
        elif self._proving is not None:
            if self._writes.strikes(direction):
                return False
            self._proving.succeeded = SUCCEEDED.search(data) is not None
            self._proving = None
        return True
