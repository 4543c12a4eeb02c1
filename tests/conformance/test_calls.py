"""What the client's calls refuse, on topics of both orderings. A simulated log has no such calls."""

from __future__ import annotations

import pytest

from tests.conformance.conftest import RIGS
from tests.conformance.rigs import LogUnderTest
from varlog import errors

pytestmark = pytest.mark.parametrize("place", [rig for rig in RIGS if rig != "simulated"], indirect=True)


def test_L4_reading_beyond_the_tail_is_a_clear_error(log: LogUnderTest) -> None:
    log.append(b"one")
    with pytest.raises(errors.Unwritten):
        log.read(log.tail() + 1)


@pytest.mark.parametrize("glsn", [0, -1])
def test_positions_that_are_none_are_refused(log: LogUnderTest, glsn: int) -> None:
    for call in (log.read, log.scan, log.trim):
        with pytest.raises(errors.InvalidArgument):
            call(glsn)


def test_a_trim_beyond_the_tail_is_refused(log: LogUnderTest) -> None:
    log.append(b"one")
    with pytest.raises(errors.InvalidArgument):
        log.trim(log.tail() + 1)
    assert log.first() == 1


def test_what_no_log_takes_is_refused_and_changes_nothing(log: LogUnderTest) -> None:
    with pytest.raises(errors.EntryTooLarge):
        log.append(bytes((16 << 20) + 1))
    with pytest.raises(errors.EmptyBatch):
        log.append()
    assert log.append(b"first") == 1
