"""Golden scripts of the sequencer ordering: each figure of its two documents, told step by step.

Each text file in `chains` is a script (`script` has its form, `chain_stage` its commands), run and compared as those of
the commit ordering are.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.golden.chain_stage import ChainStage
from tests.golden.script import replay

HERE = Path(__file__).parent / "chains"
STORIES = (
    "append",
    "client_dies",
    "creation",
    "head_fails",
    "partition",
    "proposer_dies",
    "sequencer_fails",
    "tail_fails",
    "two_reconfigure",
)


@pytest.mark.parametrize("story", STORIES)
def test_chain_golden(story: str) -> None:
    script = HERE / f"{story}.txt"
    found = replay(script.read_text(), ChainStage().execute)
    if os.environ.get("VARLOG_REWRITE_GOLDEN") == "1":
        script.write_text(found)
    assert found.splitlines() == script.read_text().splitlines()


def test_every_chain_script_is_run() -> None:
    assert sorted(path.stem for path in HERE.glob("*.txt")) == sorted(STORIES)
