"""Topics with transactions: what is written, and what readers are to see of it."""

from __future__ import annotations

from collections.abc import Sequence

import varlog.sync
from varlog.client import AppendResult
from varlog.sync import Transaction


class Story:
    """Writes plain entries and transactions of every kind to a topic, and knows what became of each entry."""

    def __init__(self, log: varlog.sync.Log) -> None:
        self.log = log
        self.everything: dict[int, bytes] = {}
        """All entries that somebody appended, by position."""
        self.visible: dict[int, bytes] = {}
        """Those that are committed, or of no transaction."""

    def plain(self, *entries: bytes) -> None:
        self.visible |= self._note(self.log.append_batch(entries), entries)

    def write(self, transaction: Transaction, *batches: Sequence[bytes]) -> dict[int, bytes]:
        """Entries of a transaction, which may become visible."""
        written: dict[int, bytes] = {}
        for batch in batches:
            written |= self._note(transaction.append_batch(batch), batch)
        return written

    def _note(self, appended: AppendResult, entries: Sequence[bytes]) -> dict[int, bytes]:
        noted = dict(enumerate(entries, appended.glsn))
        self.everything |= noted
        return noted

    def committed(self, name: str, *batches: Sequence[bytes]) -> None:
        with self.log.transaction(name) as transaction:
            written = self.write(transaction, *batches)
        self.visible |= written

    def aborted(self, name: str, *batches: Sequence[bytes]) -> None:
        transaction = self.log.begin(name)
        self.write(transaction, *batches)
        transaction.abort("nobody wants it")

    def fenced(self, name: str, *batches: Sequence[bytes]) -> None:
        """An attempt that a later one takes the place of."""
        self.write(self.log.begin(name), *batches)
        self.committed(name, [b"the later attempt"])

    def with_a_part_that_is_not_counted(self, name: str, mine: Sequence[bytes], others: Sequence[bytes]) -> None:
        ours, theirs = (self.log.begin(name, token="both") for _ in range(2))
        written = self.write(ours, mine)
        self.write(theirs, others)
        ours.commit([ours.finish()])
        self.visible |= written

    def tell(self) -> None:
        """One of each kind, among plain entries."""
        self.plain(b"plain/0", b"plain/1")
        self.committed("a", [b"a/%d" % number for number in range(5)], [b"a/5"])
        self.aborted("b", [b"b/%d" % number for number in range(7)])
        self.plain(b"plain/2")
        self.fenced("c", [b"c/0", b"c/1"])
        self.with_a_part_that_is_not_counted("d", [b"d/mine"], [b"d/0", b"d/1"])
        self.plain(b"plain/3")
