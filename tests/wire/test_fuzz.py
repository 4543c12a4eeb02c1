"""A few seconds among strangers; `python -m tests.wire.fuzz` goes on for longer."""

from __future__ import annotations

import pytest

from tests.wire.fuzz import SHAPES, Tally, fuzz
from tests.wire.peers import run


@pytest.mark.parametrize("seed", [1, 2])
def test_strangers_disturb_nobody(seed: int) -> None:
    tally = Tally()
    run(fuzz(1.5, seed, tally))
    assert set(tally.strangers) == {shape.__name__ for shape in SHAPES}
    assert tally.calls
