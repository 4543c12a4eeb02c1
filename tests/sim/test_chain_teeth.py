"""The teeth of the simulator's runs of the sequencer ordering: every rule broken on purpose is found.

The seeds are those that `make test` runs against the code as it is, where they find nothing.
"""

from __future__ import annotations

import pytest

from tests.sim.chain_mutations import MUTATIONS
from tests.sim.mutations import Mutation, applied
from varlog.sim.command import RUNS
from varlog.sim.runner import run_checked
from varlog.types import Ordering

SEEDS = 60
PATH = RUNS[Ordering.SEQUENCER, False]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("mutation", MUTATIONS, ids=[mutation.name for mutation in MUTATIONS])
def test_broken_rule_is_found(mutation: Mutation) -> None:
    with applied(mutation):
        for seed in (mutation.hint, *range(1, SEEDS + 1)):
            found = {checker for checker, _ in run_checked(seed, path=PATH, trace=True).violations}
            if mutation.checker in found:
                break
        else:
            pytest.fail(f"{mutation.checker} did not find {mutation.name} in {SEEDS} seeds")
    clean = run_checked(seed, path=PATH)
    assert clean.violations == [], f"seed {seed} fails without the mutation too, so it proves nothing"
