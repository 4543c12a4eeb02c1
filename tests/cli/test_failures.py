"""What is said of a command that fails, besides the error itself."""

from __future__ import annotations

import pytest

from varlog import errors
from varlog.cli.failures import Exit, tell


@pytest.mark.parametrize(
    ("command", "advice"),
    [
        ("append", "look with varlog tail before sending it again"),
        ("topic", "look with varlog topic list before asking for it again"),
        ("stream", "look with varlog stream list before asking for it again"),
        ("node", "look with varlog node list before asking for it again"),
        ("txn", "look with varlog txn list before asking for it again"),
        ("trim", "look with varlog status before asking for it again"),
        ("", "look with varlog status before asking for it again"),
    ],
)
def test_whether_it_happened_is_found_out_where_it_would_be_seen(
    command: str, advice: str, capsys: pytest.CaptureFixture[str]
) -> None:
    error = errors.Unknown("nobody answered; it may have been done")
    assert tell(error, command=command, json=False) is Exit.FAILED
    assert capsys.readouterr().err == f"varlog: Unknown: nobody answered; it may have been done; {advice}\n"
