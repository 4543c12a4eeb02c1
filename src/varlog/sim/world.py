"""Time, chance and order: the world in which a simulation happens.

One thread, one heap of events, one seed. An event is a function to be called at a moment of simulated time; events of
the same moment happen in the order they were scheduled. Between events no time passes. Nothing in a simulation may
look at the real clock, draw from a random source of its own, or depend on the order of a set or on `hash`.

Randomness comes in named streams (`rng`): each purpose draws from its own, so that a new consumer of randomness does
not shift what the others get.

The trace is a list of readable lines, kept only when asked for (`tracing`); the hash of a run is always kept. It
covers the moment and number of every event and the moment, kind and process of everything traced, so two runs with the
same hash took the same course. It costs a fraction of a microsecond per event and is the same with and without lines.

What always holds: the same seed and the same program give the same hash, on every machine and in every process.
"""

from __future__ import annotations

import hashlib
import heapq
import random
import struct
import zlib
from collections import Counter, deque
from collections.abc import Callable
from enum import Enum
from typing import Any, Final

from varlog.sim.process import Process

TRACE_LINES: Final = 100_000
"""As many lines as a trace holds; the oldest go first."""

DETAIL_CHARACTERS: Final = 200
"""As long is each detail of a line at most; messages carry whole batches."""

_HASH_BUFFER: Final = 1 << 16
_pack_event: Final = struct.Struct("<dq").pack

Event = list[Any]
"""[time, number, owner, incarnation of the owner, function, arguments]; the function is None once cancelled."""

_FUNCTION: Final = 4


class World:
    """A simulation in progress."""

    def __init__(self, seed: int, *, tracing: bool = False) -> None:
        self.seed = seed
        self.now = 0.0
        self.tracing = tracing
        self.events = 0
        self.faults: Counter[Enum] = Counter()
        """How often each kind of fault happened, by any enum that names them."""
        self.processes: dict[str, Process] = {}
        self._rngs: dict[str, random.Random] = {}
        self._heap: list[Event] = []
        self._next_number = 0
        self._lines: deque[tuple[float, str, str, tuple[object, ...]]] = deque(maxlen=TRACE_LINES)
        self._digest = hashlib.sha256(b"%d" % seed)
        self._unhashed = bytearray()
        self._kinds: dict[str, int] = {}

    def rng(self, purpose: str) -> random.Random:
        """The random stream of that name; the same object every time."""
        found = self._rngs.get(purpose)
        if found is None:
            # A string seed is hashed by SHA-512 inside, not by `hash`, so it is the same in every process.
            found = self._rngs[purpose] = random.Random(f"{self.seed}/{purpose}")
        return found

    def process(self, name: str, *, skew: float = 0.0) -> Process:
        """A new process, alive, whose wall clock is off by `skew` seconds."""
        if name in self.processes:
            raise ValueError(f"there is a process {name} already")
        process = self.processes[name] = Process(self, name, len(self.processes), skew)
        return process

    # Events

    def at(self, delay: float, fn: Callable[..., object], *args: Any, owner: Process | None = None) -> Event:
        """Call `fn(*args)` in `delay` seconds, unless its owner dies before."""
        if delay < 0.0:
            raise ValueError(f"an event cannot be {-delay} s in the past")
        number = self._next_number
        self._next_number = number + 1
        # What a process schedules after its own death, in the event that killed it, belongs to no incarnation.
        incarnation = owner.incarnation if owner is not None and owner.alive else -1
        event: Event = [self.now + delay, number, owner, incarnation, fn, args]
        heapq.heappush(self._heap, event)
        return event

    @staticmethod
    def cancel(event: Event) -> None:
        """Let an event not happen. Fine if it has happened already."""
        event[_FUNCTION] = None

    def run(self, until: float, *, stop: Callable[[], bool] | None = None) -> None:
        """Let everything happen that is due up to `until`, or until `stop()` says so after an event."""
        heap = self._heap
        pop = heapq.heappop
        while heap and heap[0][0] <= until:
            event = pop(heap)
            owner = event[2]
            if owner is not None:
                if owner.incarnation != event[3]:
                    continue
                if owner.paused:
                    owner.defer(event)
                    continue
            self.now = event[0]
            self.fire(event)
            if stop is not None and stop():
                return
        self.now = until

    def fire(self, event: Event) -> None:
        """Let one event happen now."""
        fn = event[_FUNCTION]
        if fn is not None:
            self.events += 1
            self._hash(_pack_event(self.now, event[1]))
            fn(*event[5])

    # Trace

    def trace(self, kind: str, process: Process | None = None, *details: object) -> None:
        """Note that something happened. `details` must not change: they are made readable only when somebody reads."""
        code = self._kinds.get(kind)
        if code is None:
            code = self._kinds[kind] = zlib.crc32(kind.encode())
        self._hash(_pack_event(self.now, code if process is None else code << 16 | process.number))
        self.note(kind, process, *details)

    def note(self, kind: str, process: Process | None = None, *details: object) -> None:
        """Add a line to the trace, if there is one, that does not count for the hash; for what events tell anyway."""
        if self.tracing:
            self._lines.append((self.now, "" if process is None else process.name, kind, details))

    def count(self, fault: Enum, process: Process | None = None, *details: object) -> None:
        """Note a fault, in the trace and in the counters."""
        self.faults[fault] += 1
        self.trace(fault.value, process, *details)

    def trace_lines(self) -> list[str]:
        """The trace so far, readable."""
        return [
            f"{time:12.6f} {name:<10} {kind}{''.join(f' {_short(detail)}' for detail in details)}"
            for time, name, kind, details in self._lines
        ]

    def trace_hash(self) -> str:
        """A digest of the course of the run so far."""
        self._flush()
        return self._digest.hexdigest()

    def _hash(self, packed: bytes) -> None:
        self._unhashed += packed
        if len(self._unhashed) >= _HASH_BUFFER:
            self._flush()

    def _flush(self) -> None:
        self._digest.update(self._unhashed)
        self._unhashed.clear()


def _short(detail: object) -> str:
    text = str(detail)
    return text if len(text) <= DETAIL_CHARACTERS else text[:DETAIL_CHARACTERS] + "..."
