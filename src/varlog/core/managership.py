"""Which of several managers leads (M4).

A leading metadata repository remembers one manager: the connection that registered last, and when it was last heard.
Another one is registered only after that one has been silent for a second, or its connection has ended; until then it
stands by. What only a manager may ask for is granted to the registered connection alone, so a manager that was paused
and comes back changes nothing before it has registered again, which it is refused while another leads. This is what a
leader knows of its own connections: a new one has the managers register again, and of several that could lead it gives
the manager whose address is on record a second to be the first.

None of it is needed for safety. Two managers that act at once repeat each other's requests, and every request is
decided against the epoch its manager knew (rules 1, 2).
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Final

from varlog import errors
from varlog.core.address import Address
from varlog.core.branches import Branch
from varlog.core.messages import (
    AbortStream,
    CreateStream,
    CreateTopic,
    DeleteTopic,
    HoldStream,
    LoseStream,
    Message,
    PlanStream,
    RegisterManager,
    RegisterNode,
    RegisterStream,
    RenewNode,
    RunStream,
    SealStream,
    SetArchive,
    SetDraining,
    UnregisterNode,
    UnregisterStream,
    UnsealStream,
)

SILENT_SECONDS: Final = 1.0
"""A manager that was not heard for so long may be replaced by another."""

MANAGERS_REQUESTS: Final = frozenset[type[Message]](
    {
        RegisterNode,
        UnregisterNode,
        RenewNode,
        SetDraining,
        CreateTopic,
        DeleteTopic,
        SetArchive,
        CreateStream,
        RegisterStream,
        UnregisterStream,
        AbortStream,
        PlanStream,
        HoldStream,
        LoseStream,
        SealStream,
        UnsealStream,
        RunStream,
    }
)
"""What only the manager that leads may ask for."""


class Managership:
    """See the module's text. Times are of a clock that may be set: one that goes back is no reason to wait."""

    def __init__(self, observe: Callable[[Enum], None]) -> None:
        self._observe = observe
        self._source: Address | None = None
        self._heard = 0.0
        self._waits = False
        """Nobody has registered since this leadership began, and the manager of the one before may be about to."""

    def begin(self, now: float, *, waits: bool) -> None:
        """A leadership of the metadata repository begins; it `waits` for the manager of the one before."""
        self._source = None
        self._heard = now
        self._waits = waits

    def heard(self, source: Address, now: float) -> None:
        """Something came from there."""
        if source == self._source:
            self._heard = now

    def on_closed(self, source: Address) -> None:
        """A connection has ended."""
        if source == self._source:
            self._source = None

    def check(self, source: Address, message: Message, on_record: str, now: float) -> None:
        """Refuse what this source may not ask for now. `on_record` is the address of the last manager."""
        if type(message) in MANAGERS_REQUESTS:
            if source != self._source:
                self._observe(Branch.M4_MANAGER_FENCED)
                raise errors.StandBy(_leads(on_record))
        elif isinstance(message, RegisterManager) and source != self._source:
            is_first = self._waits and message.address == on_record
            is_awaited = (self._waits and on_record != "") or self._source is not None
            if is_awaited and not is_first and 0 <= now - self._heard < SILENT_SECONDS:
                self._observe(Branch.M4_MANAGER_STOOD_BY)
                raise errors.StandBy(_leads(on_record))

    def register(self, source: Address, now: float) -> None:
        """This one leads from now on."""
        self._source = source
        self._heard = now
        self._waits = False


def _leads(address: str) -> str:
    if not address:
        return "no manager has registered yet; this one has to register first"
    return f"the manager at {address} leads, or did so last; another one registers after a second without it"
