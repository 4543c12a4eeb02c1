"""Coverage: counting, zeros, and adding up."""

from __future__ import annotations

import pickle
from enum import Enum

from rich.console import Console

from varlog.sim.coverage import Coverage


class Colour(Enum):
    RED = "a red one"
    BLUE = "a blue one"


class Shape(Enum):
    ROUND = "a round one"


def test_what_never_happened_is_a_zero() -> None:
    coverage = Coverage({"colours": (Colour,), "shapes": (Shape,)})
    coverage.observe(Colour.RED)
    coverage.add({Colour.RED: 2, Shape.ROUND: 5})
    assert coverage.as_dict() == {"colours": {"a red one": 3, "a blue one": 0}, "shapes": {"a round one": 5}}
    assert coverage.zeros() == [("colours", Colour.BLUE)]
    assert coverage.totals() == {"colours": 3, "shapes": 5}


def test_coverages_of_other_processes_add_up() -> None:
    total = Coverage({"colours": (Colour,)})
    total.observe(Colour.RED)
    for _ in range(2):
        other = Coverage({"colours": (Colour, Shape), "shapes": (Shape,)})
        other.observe(Colour.RED)
        total.merge(pickle.loads(pickle.dumps(other)))
    assert total.counts[Colour.RED] == 3
    assert total.groups == {"colours": (Colour, Shape), "shapes": (Shape,)}


def test_the_table_names_everything() -> None:
    coverage = Coverage({"colours": (Colour,)})
    coverage.observe(Colour.RED, 1234)
    console = Console(width=80)
    with console.capture() as captured:
        console.print(coverage.table())
    text = captured.get()
    assert "colours" in text
    assert "1,234" in text
    assert "a blue one" in text
