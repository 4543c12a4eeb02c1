"""The examples in the docstrings of what applications use run as they stand there."""

from __future__ import annotations

import doctest
from importlib import import_module

import pytest

MODULES = [
    "varlog.client.administering",
    "varlog.client.log",
    "varlog.client.reading",
    "varlog.client.writing",
    "varlog.oneprocess",
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_run(name: str) -> None:
    result = doctest.testmod(import_module(name))
    assert result.attempted
    assert not result.failed
