"""What the writers of the demo append: events of a shop, as JSON.

An event is a function of its writer and its number, so no two are equal, and whoever counts them knows what to find.
"""

from __future__ import annotations

from typing import Final

SCHEMA: Final = "writer int, number bigint, kind string, cents bigint"
"""Of the JSON, as Spark says it."""

_KINDS: Final = ("view",) * 13 + ("cart",) * 4 + ("order",) * 2 + ("refund",)
_SPREAD: Final = 2_654_435_761
"""Spreads numbers that follow each other over all of 32 bits."""


def event(writer: int, number: int) -> bytes:
    """The event. Some writers sell dearer things than others."""
    spread = (number + (writer << 20)) * _SPREAD & 0xFFFFFFFF
    kind = _KINDS[(spread >> 16) % len(_KINDS)]
    price = 100 + spread % (writer * 5_000)
    cents = price if kind == "order" else -price if kind == "refund" else 0
    return f'{{"writer":{writer},"number":{number},"kind":"{kind}","cents":{cents}}}'.encode()
