"""Processes that are started together are laid out alike, and whoever starts them goes on as before."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from types import SimpleNamespace

import pytest

from varlog import layout

_SAY_WHERE = "print(id(None))"
_AS_IT_IS = 0xFFFFFFFF
_FIXED = 0x0040000


def where_python_lies() -> int:
    """The address of something of the interpreter, in a process of its own."""
    return int(subprocess.run([sys.executable, "-c", _SAY_WHERE], check=True, capture_output=True, text=True).stdout)


def may_be_fixed() -> bool:
    """Whether the system lets a process have no random layout; containers may forbid it."""
    personality = ctypes.CDLL(None).personality
    before: int = personality(_AS_IT_IS)
    permitted = before != -1 and personality(before | _FIXED) != -1
    if permitted:
        personality(before)
    return permitted


def test_processes_started_inside_share_their_addresses_where_that_is_permitted() -> None:
    with layout.shared():
        inside = {where_python_lies() for _ in range(3)}
        with layout.shared():
            inside.add(where_python_lies())
        inside.add(where_python_lies())
    assert len(inside) == 1 or not may_be_fixed()


def test_who_starts_them_is_as_it_was_before() -> None:
    personality = ctypes.CDLL(None).personality
    before = personality(_AS_IT_IS)
    with layout.shared():
        assert personality(_AS_IT_IS) == (before | _FIXED if may_be_fixed() else before)
    assert personality(_AS_IT_IS) == before


def test_where_it_is_refused_processes_are_started_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def refuse(wanted: int) -> int:
        asked.append(wanted)
        return 0 if wanted == _AS_IT_IS else -1

    monkeypatch.setattr(ctypes, "CDLL", lambda _name: SimpleNamespace(personality=refuse))
    with layout.shared():
        assert where_python_lies() > 0
    assert asked == [_AS_IT_IS, _FIXED], "it was asked for once, and nothing was put back that had not changed"
