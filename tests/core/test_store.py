"""What every metadata store shares: the value of the leader's key. Stores themselves: tests/metarepo."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from varlog.core.store import decode_term, encode_term
from varlog.errors import MalformedMetadata
from varlog.types import Term


@given(st.integers(min_value=0, max_value=(1 << 64) - 1))
def test_a_term_comes_back(term: int) -> None:
    assert decode_term(encode_term(Term(term))) == term


@given(st.binary())
@example(b"1" * 5000)
@example("\u0661".encode())
@example(b"-1")
@example(b" 1")
@example(b"1_0")
def test_bytes_that_are_not_digits_are_no_term(value: bytes) -> None:
    if value.isdigit() and len(value) <= 20:
        assert decode_term(value) == int(value)
    else:
        with pytest.raises(MalformedMetadata):
            decode_term(value)
