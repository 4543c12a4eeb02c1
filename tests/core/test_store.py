"""What every metadata store shares: the value of the leader's key. Stores themselves: tests/metarepo."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from varlog import limits
from varlog.core.store import NO_LEASE, LeaderRecord, LeaseID, decode_leader, encode_leader
from varlog.errors import MalformedMetadata
from varlog.types import Term

LEADERS = st.builds(
    LeaderRecord,
    st.integers(0, (1 << 64) - 1).map(Term),
    st.integers(0, (1 << 63) - 1).map(LeaseID),
    st.text(max_size=limits.MAX_ADDRESS),
)


@given(LEADERS)
def test_a_leader_comes_back(leader: LeaderRecord) -> None:
    assert decode_leader(encode_leader(leader)) == leader


def test_a_leader_is_readable() -> None:
    leader = LeaderRecord(Term(7), LeaseID(12), "10.0.0.1:7001")
    assert encode_leader(leader) == b'{"term":7,"lease":12,"address":"10.0.0.1:7001"}'


@given(st.binary())
@example(b"1" * 5000)
@example("\u0661".encode())
@example(b"-1")
@example(b" 1")
@example(b"1_0")
@example(b'{"term":-1}')
@example(b'{"term":1,"lease":-1}')
@example(b'{"term":1,"address":"%s"}' % (b"a" * 301))
@example(b'{"term":1,"address":"\xff"}')
@example(b"[1]")
def test_bytes_that_are_not_digits_name_no_leader(value: bytes) -> None:
    """A term in digits was all there was before there could be several."""
    if value.isdigit() and len(value) <= 20:
        assert decode_leader(value) == LeaderRecord(Term(int(value)), NO_LEASE, "")
    else:
        with pytest.raises(MalformedMetadata):
            decode_leader(value)
