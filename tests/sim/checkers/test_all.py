"""The good story pleases every checker, and there is a test file for each of them."""

from __future__ import annotations

from pathlib import Path

from tests.sim.checkers.story import Story, good_story
from varlog.sim.checkers import CHECKERS, check_all


def test_the_good_story_is_good() -> None:
    assert check_all(good_story().evidence()) == []


def test_an_empty_story_is_good() -> None:
    assert check_all(Story().evidence()) == []


def test_violations_come_with_the_name_of_their_checker() -> None:
    story = good_story()
    story.change_topic(hwm=6)
    found = check_all(story.evidence())
    assert {name for name, _ in found} == {"dense_unique", "liveness"}


def test_every_checker_is_listed_and_tested() -> None:
    package = Path(__file__).parents[3] / "src/varlog/sim/checkers"
    modules = {path.stem for path in package.glob("*.py")} - {"__init__"}
    assert modules == set(CHECKERS)
    assert modules == {path.stem.removeprefix("test_") for path in Path(__file__).parent.glob("test_*.py")} - {"all"}
