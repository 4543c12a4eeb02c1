"""Golden scripts of transactions: how they are committed, fenced and expire, told step by step.

Each text file in `transactions` is a script (`script` has its form, `transaction_stage` its commands), run and compared
as the others are.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.golden.script import replay
from tests.golden.transaction_stage import TransactionStage

HERE = Path(__file__).parent / "transactions"
STORIES = ("commit", "expiry", "fencing", "trimmed_verdict")


@pytest.mark.parametrize("story", STORIES)
def test_transaction_golden(story: str) -> None:
    script = HERE / f"{story}.txt"
    found = replay(script.read_text(), TransactionStage().execute)
    if os.environ.get("VARLOG_REWRITE_GOLDEN") == "1":
        script.write_text(found)
    assert found.splitlines() == script.read_text().splitlines()


def test_every_transaction_script_is_run() -> None:
    assert sorted(path.stem for path in HERE.glob("*.txt")) == sorted(STORIES)
