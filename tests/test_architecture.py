"""What the shape of the code promises, checked on the source itself.

The protocol does no I/O: `varlog.core` may import neither a module that reaches the outside world nor a part of Varlog
that does, directly or through what it imports. Time and randomness are handed in. That is what lets one and the same
code run in production and in the simulator.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
from collections.abc import Collection, Iterator
from functools import cache
from pathlib import Path

import pytest

import varlog
from varlog.errors import VarlogError

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src"
OUTSIDE_WORLD = {
    "asyncio",
    "io",
    "multiprocessing",
    "os",
    "pathlib",
    "random",
    "secrets",
    "select",
    "selectors",
    "signal",
    "socket",
    "ssl",
    "subprocess",
    "tempfile",
    "threading",
    "time",
    "uuid",
    "uvloop",
}
CORE_MAY_USE = ("varlog.batch", "varlog.core", "varlog.errors", "varlog.limits", "varlog.tuples", "varlog.types")
LONGEST_FUNCTION = 70


def modules_under(*roots: Path) -> list[Path]:
    return sorted(path for root in roots for path in root.rglob("*.py"))


def name_of(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


def imports_of(path: Path) -> Iterator[tuple[int, str]]:
    """Every module named by an import anywhere in the file, also inside functions and `if TYPE_CHECKING`."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield node.lineno, f"{node.module}.{alias.name}"
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in {"__import__", "importlib.import_module"}:
            yield node.lineno, ast.unparse(node.args[0]).strip("'\"") if node.args else "?"


def belongs_to(module: str, packages: Collection[str]) -> bool:
    return any(module == package or module.startswith(package + ".") for package in packages)


CORE = modules_under(SOURCE / "varlog" / "core")
NO_IO = [*CORE, *(path for path in modules_under(SOURCE) if name_of(path) in CORE_MAY_USE)]


def test_the_protocol_does_no_io() -> None:
    reached = [
        f"{name_of(path)}:{line} imports {name}"
        for path in NO_IO
        for line, name in imports_of(path)
        if belongs_to(name, OUTSIDE_WORLD)
    ]
    assert not reached, "time, randomness and I/O are handed in"


def test_the_core_knows_nothing_of_what_surrounds_it() -> None:
    foreign = [
        f"{name_of(path)}:{line} imports {name}"
        for path in NO_IO
        for line, name in imports_of(path)
        if belongs_to(name, {"varlog"}) and not belongs_to(name, CORE_MAY_USE)
    ]
    assert not foreign


def test_only_the_simulator_and_the_command_line_import_the_simulator() -> None:
    users = [
        f"{name_of(path)}:{line}"
        for path in modules_under(SOURCE)
        for line, name in imports_of(path)
        if belongs_to(name, {"varlog.sim"}) and not belongs_to(name_of(path), {"varlog.sim", "varlog.cli"})
    ]
    assert not users


def test_every_error_has_a_docstring_and_a_code_of_its_own() -> None:
    for module in pkgutil.walk_packages(varlog.__path__, "varlog."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)

    def descendants(cls: type[VarlogError]) -> Iterator[type[VarlogError]]:
        for child in cls.__subclasses__():
            yield child
            yield from descendants(child)

    errors = list(descendants(VarlogError))
    assert errors
    assert sorted(cls.code for cls in errors) == sorted(VarlogError.registry)
    for cls in errors:
        assert VarlogError.registry[cls.code] is cls
        assert cls.code > 0
        assert inspect.cleandoc(cls.__dict__.get("__doc__") or ""), f"{cls.__name__} does not say when it is raised"


def test_an_error_code_is_given_once() -> None:
    taken = next(iter(VarlogError.registry))
    with pytest.raises(TypeError, match=f"error code {taken} is"):
        type("Second", (VarlogError,), {}, code=taken)


def test_a_function_fits_on_a_screen() -> None:
    long = [
        f"{path.relative_to(ROOT)}: {node.name} has {node.end_lineno - node.lineno + 1} lines"
        for path in modules_under(SOURCE, ROOT / "tests")
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno is not None
        and node.end_lineno - node.lineno >= LONGEST_FUNCTION
    ]
    assert not long


def test_no_test_sleeps_or_looks_away() -> None:
    """A test waits for a condition, not for time to pass; and a test that is there runs."""
    evasions = {"time.sleep", "asyncio.sleep", "pytest.skip", "pytest.xfail", "pytest.importorskip"}
    marks = {"pytest.mark.skip", "pytest.mark.skipif", "pytest.mark.xfail"}
    last = {name.rpartition(".")[2] for name in evasions | marks}
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)}"
        for path in modules_under(ROOT / "tests")
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Attribute) and node.attr in last and ast.unparse(node) in evasions | marks
    ]
    assert not found
