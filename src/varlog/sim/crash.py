"""Every state a crash may leave on a disk.

`crash_states` takes a recording of file operations and yields the images a power loss could leave behind. A legal
state is any prefix of the operations in which each unsynced write is absent, whole, cut at any multiple of 512 bytes,
or zeros, and each unsynced directory operation (or change of a file's size) is there or not.

How: a state of a prefix is also a state of any longer prefix that has no sync in between (the operations added are
then the absent ones), so only the points just before each sync, and the end, need to be looked at. At such a point
each file has a set of possible contents and the directory tree a set of possible shapes; every shape is combined with
every content of the files it names. Contents that no reader can tell apart are one, so a small file rewritten in place
a hundred times without a sync has about a hundred contents and not three to the power of a hundred.

A set that would grow beyond `limit` is replaced by a systematic part of it, and the states of that point say so
(`complete` is False). For the unsynced operations p1..pn of one file, or of the names, that part is: for each pi and
each of its outcomes, with all others whole, with all others absent, and with those before it whole and those after it
absent; and every pair of operations absent or zeros with all others whole. Where the combinations of files and names
are too many, it is, for each shape of the names: one file in each of its states while the others are whole, and while
the others are absent; every pair of files in each of their states while the others are whole, if the shape's share of
the limit allows; and as many samples, drawn with a fixed seed, as its share.
"""

from __future__ import annotations

import functools
import itertools
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from varlog.sim.disk import Recording
from varlog.sim.medium import (
    ABSENT,
    WHOLE,
    ZEROS,
    Content,
    FileImage,
    FileOperation,
    Image,
    NameKind,
    NameTarget,
    Note,
    Outcome,
    SetNames,
    Survival,
    SyncDir,
    SyncFailed,
    SyncFile,
    Write,
    apply,
    outcomes,
    parent,
)

DEFAULT_LIMIT = 4096


class CrashState(NamedTuple):
    """One legal state. `notes` are the marks the program had made (`SimDisk.note`) when the power went."""

    image: Image
    notes: tuple[object, ...]
    position: int
    """How many of the recorded operations had been issued."""
    complete: bool
    """Whether every legal state of this position is enumerated, or a systematic part."""
    how: str
    """Which operations were not simply whole; for a person looking into a failure."""


T = TypeVar("T")
Op = TypeVar("Op", bound=FileOperation | SetNames)


def _any(_: object) -> bool:
    return True


@dataclass
class _Way(Generic[T]):
    """A possible state of a file or of the names, and how it came to be."""

    state: T
    how: tuple[str, ...] = ()


class _Possibilities(Generic[T, Op]):
    """Durable states a part of the disk may have, with the operations on it that are not synced."""

    def __init__(
        self, start: T, copy: Callable[[T], T], do: Callable[[T, Op, Outcome], None], key: Callable[[T], object]
    ) -> None:
        self.durable: list[_Way[T]] = [_Way(start)]
        self.pending: list[tuple[int, Op]] = []
        self.complete = True
        self._copy = copy
        self._do = do
        self._key = key

    def sync(self, of: Callable[[Op], bool] = _any) -> None:
        """What is pending becomes durable, whatever the durable state was."""
        mine = [p for p in self.pending if of(p[1])]
        self.pending = [p for p in self.pending if not of(p[1])]
        self.durable = self._distinct([self._result(way, [(p, WHOLE) for p in mine]) for way in self.durable])

    def lose(self, of: Callable[[Op], bool] = _any, *, limit: int) -> None:
        """A sync failed: whatever a crash could have left by now is what the medium holds from now on."""
        mine = [p for p in self.pending if of(p[1])]
        rest = [p for p in self.pending if not of(p[1])]
        self.pending = mine
        self.durable, complete = self.states(limit)
        self.complete = self.complete and complete
        self.pending = rest

    def states(self, limit: int) -> tuple[list[_Way[T]], bool]:
        """What a crash may leave: first all that is pending absent, then all of it whole, then the rest."""
        extremes = [self._result(self.durable[0], [(p, outcome) for p in self.pending]) for outcome in (ABSENT, WHOLE)]
        found = self.durable
        for p in self.pending:
            found = self._distinct([self._result(way, [(p, outcome)]) for way in found for outcome in outcomes(p[1])])
            if len(found) > limit:
                return self._distinct([*extremes, *self._part()]), False
        return self._distinct([*extremes, *found]), self.complete

    def _part(self) -> Iterator[_Way[T]]:
        """The systematic part of the module's text."""
        n = len(self.pending)
        for way in self.durable:
            for i, (_, operation) in enumerate(self.pending):
                for outcome in outcomes(operation):
                    for before, after in ((WHOLE, WHOLE), (ABSENT, ABSENT), (WHOLE, ABSENT)):
                        choice = [before] * i + [outcome] + [after] * (n - i - 1)
                        yield self._result(way, list(zip(self.pending, choice, strict=True)))
            for i, j in itertools.combinations(range(n), 2):
                for first, second in itertools.product((ABSENT, ZEROS), repeat=2):
                    choice = [WHOLE] * n
                    choice[i], choice[j] = first, second
                    yield self._result(way, list(zip(self.pending, choice, strict=True)))

    def _result(self, way: _Way[T], choices: Sequence[tuple[tuple[int, Op], Outcome]]) -> _Way[T]:
        state = self._copy(way.state)
        how = list(way.how)
        for (number, operation), wanted in choices:
            outcome = ABSENT if wanted is ZEROS and not isinstance(operation, Write) else wanted
            self._do(state, operation, outcome)
            if outcome.survival is not Survival.WHOLE:
                how.append(f"#{number} {outcome.survival.value}{f' at {outcome.cut}' if outcome.cut else ''}")
        return _Way(state, tuple(how))

    def _distinct(self, ways: Sequence[_Way[T]]) -> list[_Way[T]]:
        found: dict[object, _Way[T]] = {}
        for way in ways:
            found.setdefault(self._key(way.state), way)
        return list(found.values())


Names = dict[str, NameTarget]


def _do_names(names: Names, change: SetNames, outcome: Outcome) -> None:
    if outcome.survival is Survival.WHOLE:
        for path, target in change.sets:
            if target is NameKind.NOTHING:
                names.pop(path, None)
            else:
                names[path] = target


class _Enumeration:
    """The disk as a set of possibilities, carried through the recorded operations."""

    def __init__(self, recording: Recording, limit: int) -> None:
        self._limit = limit
        self._files: dict[int, _Possibilities[Content, FileOperation]] = {}
        for number, image in recording.files.items():
            self._add_file(number, Content(image.data, image.size))
        self._names: _Possibilities[Names, SetNames] = _Possibilities(
            dict(recording.names), dict, _do_names, lambda names: frozenset(names.items())
        )
        self._operations = recording.operations
        self._notes: list[object] = []
        self._seen: set[object] = set()

    def run(self) -> Iterator[CrashState]:
        for number, operation in enumerate(self._operations):
            if isinstance(operation, Note):
                self._notes.append(operation.what)
            elif isinstance(operation, SetNames):
                self._names.pending.append((number, operation))
            elif isinstance(operation, SyncFile):
                yield from self._states(number)
                self._file(operation.file).sync()
            elif isinstance(operation, SyncDir):
                yield from self._states(number)
                self._names.sync(functools.partial(SetNames.is_in, directory=operation.path))
            elif isinstance(operation, SyncFailed):
                self._fail(operation.target)
            else:
                self._file(operation.file).pending.append((number, operation))
        yield from self._states(len(self._operations))

    def _fail(self, target: int | str) -> None:
        if isinstance(target, int):
            self._file(target).lose(limit=self._limit)
        else:
            self._names.lose(functools.partial(SetNames.is_in, directory=target), limit=self._limit)

    def _file(self, number: int) -> _Possibilities[Content, FileOperation]:
        if number not in self._files:
            self._add_file(number, Content())
        return self._files[number]

    def _add_file(self, number: int, content: Content) -> None:
        self._files[number] = _Possibilities(content, Content.copy, apply, Content.key)

    def _states(self, position: int) -> Iterator[CrashState]:
        """The legal states when the first `position` operations were issued."""
        shapes, complete = self._names.states(self._limit)
        share = max(1, self._limit // len(shapes))
        contents: dict[int, list[_Way[Content]]] = {}
        images: dict[int, list[FileImage]] = {}
        for number, file in self._files.items():
            contents[number], all_contents = file.states(self._limit)
            images[number] = [FileImage(bytes(way.state.data), way.state.size) for way in contents[number]]
            complete = complete and all_contents
        for shape in shapes:
            shape_names = _reachable(shape.state)
            files = [(path, target) for path, target in shape_names.items() if isinstance(target, int)]
            sizes = [len(contents.get(number, ())) or 1 for _, number in files]
            whole_product = math.prod(sizes) <= share
            directories = frozenset(p for p, t in shape_names.items() if t is NameKind.DIRECTORY and p != "/")
            picks = itertools.product(*map(range, sizes)) if whole_product else _part_of_product(sizes, share)
            for pick in picks:
                chosen = {
                    path: images[number][i] if number in images else FileImage(b"", 0)
                    for (path, number), i in zip(files, pick, strict=True)
                }
                key = (len(self._notes), directories, frozenset(chosen.items()))
                if key in self._seen:
                    continue
                self._seen.add(key)
                how = list(shape.how)
                for (path, number), i in zip(files, pick, strict=True):
                    if number in contents and contents[number][i].how:
                        how.append(f"{path}: {', '.join(contents[number][i].how)}")
                text = "; ".join(how) or "everything whole"
                yield CrashState(
                    Image(directories, chosen), tuple(self._notes), position, complete and whole_product, text
                )


def _reachable(names: Names) -> Names:
    """Without what lies in directories that are not there."""
    found: Names = {}
    for path in sorted(names):
        if path == "/" or found.get(parent(path)) is NameKind.DIRECTORY:
            found[path] = names[path]
    return found


def _part_of_product(sizes: Sequence[int], share: int) -> Iterator[tuple[int, ...]]:
    """The systematic part of the module's text; state 0 of each is absent, state 1 is whole (if there are two)."""
    absent = tuple(0 for _ in sizes)
    whole = tuple(min(1, size - 1) for size in sizes)
    for rest in (whole, absent):
        for i, size in enumerate(sizes):
            for state in range(size):
                yield (*rest[:i], state, *rest[i + 1 :])
    if sum(a * b for a, b in itertools.combinations(sizes, 2)) <= share:
        for i, j in itertools.combinations(range(len(sizes)), 2):
            for first, second in itertools.product(range(sizes[i]), range(sizes[j])):
                yield (*whole[:i], first, *whole[i + 1 : j], second, *whole[j + 1 :])
    rng = random.Random(0)
    for _ in range(share):
        yield tuple(rng.randrange(size) for size in sizes)


def crash_states(recording: Recording, *, limit: int = DEFAULT_LIMIT) -> Iterator[CrashState]:
    """Every legal crash state of the recorded run, each once; a small multiple of `limit` per point in time at most."""
    return _Enumeration(recording, limit).run()
