"""Doing: which of the manager's steps are sent now, and what it says it is about.

The same steps follow from every look at the world until they have been done. A new one is sent and told at once; one
that stays is sent again only after a while, as the request or its answer may have been lost, and told once. What does
not follow any more is forgotten, a little later, so that a step which comes and goes is told once as well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

from varlog.core.manager import Step
from varlog.core.messages import Message

AGAIN_AFTER: Final = 0.5
LATER_AFTER: Final = 2.0
"""Between two of the same, at first and when it has gone on for long; a copy needs to be asked for every 5 s."""
SOON_AFTER: Final = 0.03
"""After a refusal: it was not ready for the request."""
LONG: Final = 10.0
FORGET_AFTER: Final = 1.5


class _Known:
    __slots__ = ("message", "request", "seen", "sent", "sentence", "since")

    def __init__(self, now: float) -> None:
        self.since = self.seen = now
        self.sent = float("-inf")
        self.sentence = ""
        self.request = 0
        self.message: Message | None = None


class Doing:
    """See the module's text."""

    def __init__(self) -> None:
        self._known: dict[object, _Known] = {}
        self.sent: Counter[str] = Counter()
        """How many requests of each kind there were."""
        self._looked = 0.0

    def take(self, steps: Iterable[Step], now: float) -> Iterator[tuple[Step, bool]]:
        """The steps that are to be sent now, and whether they are new."""
        self._looked = now
        for step in steps:
            known = self._known.get(step.key)
            is_new = known is None
            if known is None:
                known = self._known[step.key] = _Known(now)
            known.seen, known.sentence = now, step.sentence
            pause = AGAIN_AFTER if now - known.since < LONG else LATER_AFTER
            is_to_do = step.message is not None or step.reconfigure is not None
            if is_new or (is_to_do and now - known.sent >= pause):
                known.sent, known.message = now, step.message
                if step.message is not None:
                    known.request = step.message.request  # type: ignore[attr-defined]
                    self.sent[type(step.message).__name__] += 1
                yield step, is_new
        self._known = {key: known for key, known in self._known.items() if now - known.seen < FORGET_AFTER}

    def asked(self, request: int) -> Message | None:
        """What was last asked for under that number, if it still followed a moment ago."""
        return next((known.message for known in self._known.values() if known.request == request), None)

    def refused(self, request: int, now: float) -> None:
        """A request was refused: if it still follows in a moment, it is made again then."""
        for known in self._known.values():
            if known.request == request and now - known.since < LONG:
                known.sent = now - AGAIN_AFTER + SOON_AFTER

    @property
    def sentences(self) -> list[tuple[str, float]]:
        """What is being done or waited for, and since when."""
        return [(known.sentence, known.since) for known in self._known.values() if known.seen == self._looked]
