"""This Python under another path: Spark looks for sources only if the path of its Python has no space in it."""

from __future__ import annotations

import sys
from pathlib import Path


def python_at(path: Path) -> Path:
    """Make a program there that is this Python with all it has installed; a link would not find that."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    path.chmod(0o755)
    return path
