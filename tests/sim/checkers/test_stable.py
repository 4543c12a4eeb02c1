"""Up to where the log is told to be stable, everything is decided."""

from __future__ import annotations

import pytest

from tests.sim.checkers.story import transactional_story
from varlog.sim.history import Kind


@pytest.mark.parametrize(("invoked", "glsn"), [(2.0, 10), (4.8, 14), (6.5, 16)])
def test_a_position_before_what_is_open_is_fine(invoked: float, glsn: int) -> None:
    story = transactional_story()
    story.add("s", Kind.STABLE, invoked, invoked + 0.1, glsn=glsn)
    assert story.complaints("stable") == ""


@pytest.mark.parametrize(("invoked", "glsn"), [(2.5, 13), (4.8, 15), (6.5, 17)])
def test_a_position_behind_something_undecided_is_found(invoked: float, glsn: int) -> None:
    story = transactional_story()
    story.add("s", Kind.STABLE, invoked, invoked + 0.1, glsn=glsn)
    assert "nothing decided it before" in story.complaints("stable")
