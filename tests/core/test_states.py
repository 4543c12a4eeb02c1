"""The state table of a replica (M13): the transitions of the documents, and no others."""

from __future__ import annotations

from itertools import product

import pytest

from varlog.core.states import TRANSITIONS, Event, Transition, diagram, transition_of
from varlog.types import ReplicaState

SEALING, SEALED, RUNNING = ReplicaState.SEALING, ReplicaState.SEALED, ReplicaState.RUNNING


def test_M13_the_states_are_three() -> None:
    assert {state.name for state in ReplicaState} == {"SEALING", "SEALED", "RUNNING"}


def test_M13_the_transitions_are_those_of_the_documents_and_one_more() -> None:
    changes = {(before, after) for (before, _), after in TRANSITIONS.items() if before is not after}
    documented = {(SEALING, SEALED), (SEALED, RUNNING), (RUNNING, SEALED), (RUNNING, SEALING)}
    missed_a_running_epoch_or_damaged = (SEALED, SEALING)
    assert changes == documented | {missed_a_running_epoch_or_damaged}


@pytest.mark.parametrize(
    ("event", "transitions"),
    [
        (Event.SEAL_COMPLETE, {SEALING: SEALED, SEALED: SEALED, RUNNING: SEALED}),
        (Event.SEAL_BEHIND, {SEALING: SEALING, SEALED: SEALING, RUNNING: SEALING}),
        (Event.SEAL_SELF, {RUNNING: SEALING, SEALED: SEALING}),
        (Event.REACHED_SEAL_POINT, {SEALING: SEALED}),
        (Event.UNSEAL, {SEALED: RUNNING}),
    ],
    ids=lambda value: value.name if isinstance(value, Event) else "",
)
def test_M13_an_event_leads_where_the_documents_say(
    event: Event, transitions: dict[ReplicaState, ReplicaState]
) -> None:
    assert {before: after for (before, on), after in TRANSITIONS.items() if on is event} == transitions


def test_M13_only_unseal_leads_to_running_and_only_from_sealed() -> None:
    ways = [(before, event) for (before, event), after in TRANSITIONS.items() if after is RUNNING]
    assert ways == [(SEALED, Event.UNSEAL)]


def test_a_named_transition_is_a_change_of_state_in_the_table() -> None:
    named = {
        (before, after): transition
        for before, after in product(ReplicaState, repeat=2)
        if (transition := transition_of(before, after)) is not None
    }
    assert sorted(transition.value for transition in named.values()) == sorted(t.value for t in Transition)
    for (before, after), transition in named.items():
        assert transition.value == f"{before.name} -> {after.name}"
        assert after in {to for (frm, _), to in TRANSITIONS.items() if frm is before}


def test_the_diagram_has_a_line_for_every_transition() -> None:
    lines = diagram().splitlines()
    assert lines[0] == "stateDiagram-v2"
    assert lines[1].strip() == "[*] --> SEALING", "a replica begins in SEALING (B7)"
    assert "    SEALED --> RUNNING: Unseal" in lines
    assert len(lines) == 2 + len(TRANSITIONS)
