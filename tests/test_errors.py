"""Errors: each is the same after it was copied, or came from another process."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from copy import copy, deepcopy
from typing import Any

import pytest

from varlog import errors

MADE_OF: dict[type[errors.VarlogError], Callable[[], errors.VarlogError]] = {
    errors.Corrupt: lambda: errors.Corrupt("a hole", segment="1.log", offset=7),
    errors.JournalCorrupt: lambda: errors.JournalCorrupt("a hole", segment="1.journal", offset=7),
    errors.Trimmed: lambda: errors.Trimmed(9, 3, "/archive"),
    errors.Lost: lambda: errors.Lost(3, 9),
    errors.DataLoss: lambda: errors.DataLoss(3, 9, "trimmed"),
}
"""Of what those are made that take more than a text."""


def through_a_pipe(error: errors.VarlogError) -> errors.VarlogError:
    same = pickle.loads(pickle.dumps(error))
    assert isinstance(same, errors.VarlogError)
    return same


def known_of(error: errors.VarlogError) -> list[Any]:
    return [type(error), str(error), error.code, error.retriable, error.happened, vars(error)]


@pytest.mark.parametrize("again", [copy, deepcopy, through_a_pipe])
@pytest.mark.parametrize("kind", errors.VarlogError.registry.values(), ids=lambda kind: kind.__name__)
def test_an_error_stays_the_same(
    kind: type[errors.VarlogError], again: Callable[[errors.VarlogError], errors.VarlogError]
) -> None:
    error = MADE_OF.get(kind, lambda: kind("what it says"))()
    error.add_note("a note")
    error.happened = None
    assert known_of(again(error)) == known_of(error)
    assert again(error) is not error


def test_an_error_of_a_later_release_stays_the_same() -> None:
    error = errors.VarlogError.of(9999, "what it says")
    assert known_of(through_a_pipe(error)) == known_of(error)
    assert error.code == 9999
