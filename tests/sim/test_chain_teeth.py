"""The teeth of the simulator's runs of the sequencer ordering: every rule broken on purpose is found."""

from __future__ import annotations

import pytest

from tests.sim.chain_mutations import MUTATIONS
from tests.sim.mutations import Mutation, assert_found
from varlog.types import Ordering


@pytest.mark.timeout(300)
@pytest.mark.parametrize("mutation", MUTATIONS, ids=[mutation.name for mutation in MUTATIONS])
def test_broken_rule_is_found(mutation: Mutation) -> None:
    assert_found(mutation, Ordering.SEQUENCER)
