"""The simulator's teeth: every rule broken on purpose is found by the checker that is there for it.

The seeds are those that `make test` runs against the code as it is, where they find nothing.
"""

from __future__ import annotations

import pytest

from tests.sim.mutations import MUTATIONS, Mutation, applied
from varlog.sim.runner import run_checked

SEEDS = 300


def _seeds(hint: int) -> list[int]:
    return [hint, *(seed for seed in range(1, SEEDS + 1) if seed != hint)]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("mutation", MUTATIONS, ids=[mutation.name for mutation in MUTATIONS])
def test_broken_rule_is_found(mutation: Mutation) -> None:
    with applied(mutation):
        for seed in _seeds(mutation.hint):
            found = {checker for checker, _ in run_checked(seed).violations}
            if mutation.checker in found:
                break
        else:
            pytest.fail(f"{mutation.checker} did not find {mutation.name} in {SEEDS} seeds")
    clean = run_checked(seed)
    assert clean.violations == [], f"seed {seed} fails without the mutation too, so it proves nothing"
