"""The teeth of the simulator's runs with transactions: every rule broken on purpose is found.

The seeds are those that `make test` runs against the code as it is, where they find nothing.
"""

from __future__ import annotations

import pytest

from tests.sim.mutations import Mutation, assert_found
from tests.sim.transaction_mutations import MUTATIONS
from varlog.types import Ordering


@pytest.mark.timeout(300)
@pytest.mark.parametrize("mutation", MUTATIONS, ids=[mutation.name for mutation in MUTATIONS])
def test_broken_rule_is_found(mutation: Mutation) -> None:
    assert_found(mutation, Ordering.COMMIT, transactions=True)
