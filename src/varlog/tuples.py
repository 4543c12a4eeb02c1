"""Named tuples on hot paths."""

from __future__ import annotations

from typing import Final

new_tuple: Final = tuple.__new__
"""Makes a named tuple from its class and a plain tuple, several times as fast as its own constructor."""
