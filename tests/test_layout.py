"""Processes that are started together are laid out alike, and whoever starts them goes on as before."""

from __future__ import annotations

import subprocess
import sys

from varlog import layout

_SAY_WHERE = "print(id(None))"


def where_python_lies() -> int:
    """The address of something of the interpreter, in a process of its own."""
    return int(subprocess.run([sys.executable, "-c", _SAY_WHERE], check=True, capture_output=True, text=True).stdout)


def test_processes_started_inside_share_their_addresses_and_those_outside_do_not() -> None:
    with layout.shared():
        inside = {where_python_lies() for _ in range(3)}
        with layout.shared():
            inside.add(where_python_lies())
        inside.add(where_python_lies())
    outside = {where_python_lies() for _ in range(3)}
    assert len(inside) == 1
    assert len(outside) > 1
    assert not inside & outside
