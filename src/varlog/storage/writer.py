"""GroupCommitWriter: the thread that writes, one per volume.

It serves many log streams in turn: takes everything one has staged, writes it, syncs it, tells its owner, goes on to
the next. Groups grow by themselves: what is staged while a sync is under way makes up the next group.

The owner's part: `submit` a storage when something is staged and no group of it is under way; when `done` comes, carry
it to the owner's thread, `finish` the group there, and submit again if more is staged. So there is at most one entry
per log stream in the queue, and memory is bounded by what owners stage.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable

from varlog.errors import InvalidArgument, VarlogError
from varlog.storage.group import WriteGroup
from varlog.storage.grouped import AnyLog

Done = Callable[[AnyLog, WriteGroup | None, VarlogError | None], None]
"""(storage, group, None) when the group is written and synced; (storage, group or None, error) when it is not and never
will be; (storage, None, None) if nothing was staged. Called in the writer's thread."""


class GroupCommitWriter:
    """See the module's text."""

    def __init__(self, name: str = "varlog-writer") -> None:
        self._wake = threading.Condition()
        self._queue: OrderedDict[AnyLog, Done] = OrderedDict()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, storage: AnyLog, done: Done) -> None:
        """Write what `storage` has staged when its turn comes; asking twice before that is asking once."""
        with self._wake:
            if self._stopping:
                raise InvalidArgument("the writer was stopped")
            self._queue.setdefault(storage, done)
            self._wake.notify()

    def stop(self) -> None:
        """Write what was submitted, then end the thread. Storages stay open."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._wake:
                while not self._queue:
                    if self._stopping:
                        return
                    self._wake.wait()
                storage, done = self._queue.popitem(last=False)
            done(storage, *write_next(storage))


def write_next(storage: AnyLog, *, mark: bool = True) -> tuple[WriteGroup | None, VarlogError | None]:
    """Take the next group, write and sync it: what `Done` is told, in the thread that calls this. The mark of the
    sync may be left to the caller."""
    group: WriteGroup | None = None
    try:
        group = storage.take()
        if group is not None:
            storage.write(group)
            if group.needs_sync:
                storage.sync(group, mark=mark)
    except VarlogError as e:
        return group, e
    return group, None
