"""Blacklist: whom a client leaves alone for a while (M6, M11).

Whoever fails several times in short succession is avoided until a term has passed. Then one failure more is enough for
another term, twice as long, up to a limit; a single success, or a long time without a failure, and all is forgotten.
Whoever certainly cannot be used now, such as a node whose connection broke, is avoided at once.

To be avoided is not to be excluded: where nobody else is left, the avoided are as good as any.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Final, Generic, TypeVar

THRESHOLD: Final = 2
"""So many failures, and it is avoided;"""
FIRST_TERM: Final = 2.0
"""for so long at first,"""
LONGEST_TERM: Final = 32.0
"""and for so long at most."""
REMEMBERED: Final = 10.0
"""After so long without a failure earlier ones do not count."""

K = TypeVar("K")


class _Record:
    __slots__ = ("failures", "term", "until")

    def __init__(self) -> None:
        self.failures = 0
        self.term = FIRST_TERM
        """How long it is avoided the next time."""
        self.until = 0.0
        """Until when it is avoided, or when it last failed."""


class Blacklist(Generic[K]):
    """See the module's text. Of one kind of things: nodes, or log streams."""

    def __init__(self) -> None:
        self._records: dict[K, _Record] = {}

    def __bool__(self) -> bool:
        """False if nothing at all is avoided, as it is most of the time."""
        return bool(self._records)

    def failed(self, who: K, now: float) -> None:
        """It did not do what it should have done."""
        record = self._records.get(who)
        if record is None or now - record.until > REMEMBERED:
            record = self._records[who] = _Record()
        record.failures += 1
        if record.until > now:
            return
        record.until = now
        if record.failures >= THRESHOLD:
            record.until += record.term
            record.term = min(2 * record.term, LONGEST_TERM)

    def unusable(self, who: K, now: float) -> None:
        """It can certainly not be used at present."""
        record = self._records.setdefault(who, _Record())
        record.until = max(record.until, now + FIRST_TERM)

    def worked(self, who: K) -> None:
        """It did what it should do."""
        self._records.pop(who, None)

    def avoids(self, who: K, now: float) -> bool:
        record = self._records.get(who)
        return record is not None and now < record.until

    def keep(self, known: Container[K]) -> None:
        """Forget all but these."""
        self._records = {who: record for who, record in self._records.items() if who in known}
