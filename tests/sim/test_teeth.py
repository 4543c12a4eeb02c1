"""The simulator's teeth: every rule broken on purpose is found by the checker that is there for it."""

from __future__ import annotations

import pytest

from tests.sim.mutations import MUTATIONS, Mutation, assert_found
from varlog.types import Ordering


@pytest.mark.timeout(900)
@pytest.mark.parametrize("mutation", MUTATIONS, ids=[mutation.name for mutation in MUTATIONS])
def test_broken_rule_is_found(mutation: Mutation) -> None:
    assert_found(mutation, Ordering.COMMIT)
