"""The state diagram of a log stream executor (M13), as a table.

A replica is made, or made again after a restart, in SEALING (B7): nobody may append to it before the manager has
sealed, completed and unsealed it. From there:

    SEALING  -> SEALED    Seal found the replica complete, or it reached its seal point by fetched cuts (rule 8)
    SEALED   -> RUNNING   Unseal, exactly one epoch later
    RUNNING  -> SEALED    Seal found the replica complete
    RUNNING  -> SEALING   Seal found it behind, or it sealed itself: a backup or its own disk failed
    SEALED   -> SEALING   Seal of a later epoch found it behind its point, or it was found damaged

The last line is not in the diagram of the documents. A replica that was SEALED, missed an unseal and a whole running
epoch, is behind when the next Seal reaches it: it must not call itself complete. Nor must a corrupt one (rule 15).
"""

from __future__ import annotations

from enum import Enum

from varlog.types import ReplicaState

SEALING, SEALED, RUNNING = ReplicaState.SEALING, ReplicaState.SEALED, ReplicaState.RUNNING


class Event(Enum):
    """What makes a replica change state."""

    SEAL_COMPLETE = "Seal, equal"
    SEAL_BEHIND = "Seal, less"
    SEAL_SELF = "seals itself"
    REACHED_SEAL_POINT = "reaches its seal point"
    UNSEAL = "Unseal"


TRANSITIONS: dict[tuple[ReplicaState, Event], ReplicaState] = {
    (SEALING, Event.SEAL_COMPLETE): SEALED,
    (SEALING, Event.SEAL_BEHIND): SEALING,
    (SEALING, Event.REACHED_SEAL_POINT): SEALED,
    (SEALED, Event.SEAL_COMPLETE): SEALED,
    (SEALED, Event.SEAL_BEHIND): SEALING,
    (SEALED, Event.SEAL_SELF): SEALING,
    (SEALED, Event.UNSEAL): RUNNING,
    (RUNNING, Event.SEAL_COMPLETE): SEALED,
    (RUNNING, Event.SEAL_BEHIND): SEALING,
    (RUNNING, Event.SEAL_SELF): SEALING,
}


class Transition(Enum):
    """The changes of state a run should have exercised."""

    SEALING_SEALED = "SEALING -> SEALED"
    SEALED_RUNNING = "SEALED -> RUNNING"
    RUNNING_SEALED = "RUNNING -> SEALED"
    RUNNING_SEALING = "RUNNING -> SEALING"
    SEALED_SEALING = "SEALED -> SEALING"


_NAMED = {
    (SEALING, SEALED): Transition.SEALING_SEALED,
    (SEALED, RUNNING): Transition.SEALED_RUNNING,
    (RUNNING, SEALED): Transition.RUNNING_SEALED,
    (RUNNING, SEALING): Transition.RUNNING_SEALING,
    (SEALED, SEALING): Transition.SEALED_SEALING,
}


def transition_of(before: ReplicaState, after: ReplicaState) -> Transition | None:
    """The named transition, or None where the state stays."""
    return _NAMED.get((before, after))


def diagram() -> str:
    """The table as a Mermaid state diagram; `docs/architecture.md` holds this text, and a test compares them."""
    lines = ["stateDiagram-v2", "    [*] --> SEALING"]
    for (before, event), after in TRANSITIONS.items():
        lines.append(f"    {before.name} --> {after.name}: {event.value}")
    return "\n".join(lines)
