"""Golden scripts: the protocol's stories, told step by step, against the production core, storage and journal.

Each text file beside this one is a script (`script` has its form, `stage` its commands). The test runs its commands and
compares the trace with the one in the file, character by character.

When the protocol changes on purpose, `VARLOG_REWRITE_GOLDEN=1 pytest tests/golden` writes the traces anew; the
difference is then read as carefully as the change itself.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.golden.script import replay
from tests.golden.stage import Stage

HERE = Path(__file__).parent
STORIES = (
    "append_commit",
    "backup_fails",
    "drain",
    "heal_in_place",
    "io_fault",
    "lost_disk",
    "lost_range",
    "missed_cuts",
    "move",
    "old_backup",
    "old_metadata",
    "partial_commit",
    "primary_fails",
    "rebuild",
    "register_node",
    "register_stream",
    "rejoin",
    "restart",
    "seal_unseal",
    "sync",
    "trimmed_source",
    "zombie",
)


@pytest.mark.parametrize("story", STORIES)
def test_golden(story: str) -> None:
    script = HERE / f"{story}.txt"
    found = replay(script.read_text(), Stage().execute)
    if os.environ.get("VARLOG_REWRITE_GOLDEN") == "1":
        script.write_text(found)
    assert found.splitlines() == script.read_text().splitlines()


def test_every_script_is_run() -> None:
    assert sorted(path.stem for path in HERE.glob("*.txt")) == sorted(STORIES)


def test_a_trace_that_differs_would_be_noticed() -> None:
    def execute(command: str) -> list[str]:
        return [f"did {command}"]

    good = "# why\n\nfirst\n----\ndid first\n\nsecond\n----\ndid second\n"
    assert replay(good, execute) == good
    assert replay(good.replace("did first", "did not"), execute) == good
    assert replay("# why\n\nfirst\n\nsecond\n", execute) == good, "a new command needs no trace yet"
    with pytest.raises(AssertionError, match="begins with ----"):
        replay("first\nsecond\n", execute)
