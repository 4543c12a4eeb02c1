"""Bytes that were right once: what decoders must not fall over."""

from __future__ import annotations

from hypothesis import strategies as st


@st.composite
def mutations(draw: st.DrawFn, valid: bytes) -> bytes:
    """`valid` with a few bytes changed, put in or taken out, or without its end."""
    data = bytearray(valid)
    for _ in range(draw(st.integers(min_value=1, max_value=4))):
        at = draw(st.integers(min_value=0, max_value=len(data)))
        removed = draw(st.integers(min_value=0, max_value=4))
        data[at : at + removed] = draw(st.binary(max_size=4))
    return bytes(data[: draw(st.integers(min_value=0, max_value=len(data)))] if draw(st.booleans()) else data)
