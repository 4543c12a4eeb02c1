"""Real processes on machines of their own: links that are taken down, disks that are small."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.inside import SCENARIOS, run_inside


@pytest.mark.parametrize("name", SCENARIOS)
def test_nothing_is_lost_and_the_log_goes_on_with_those_that_can(name: str, tmp_path: Path) -> None:
    run_inside(name, tmp_path / "cluster")
