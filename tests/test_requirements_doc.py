"""docs/requirements.md keeps its word: the proofs it lists exist, and every id the source cites is explained there."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCUMENT = (ROOT / "docs" / "requirements.md").read_text()

REFERENCE = re.compile(r"`(tests/[^`:\s]+)(?:::([^`\s]+))?`")
HEADING = re.compile(r"^### ([LBMOSP]\d+|rule \d+)\b", re.MULTILINE)
CITED_REQUIREMENT = re.compile(r"\b[LBMOSP]\d{1,2}\b")
CITED_RULES = re.compile(r"\brules? (\d+(?:(?:, | and |, and )\d+)*)")


@cache
def proofs_in(path: Path) -> frozenset[str]:
    """Names of the tests in a module, those in a class as `Class::test`."""
    tree = ast.parse(path.read_text(), str(path))
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    names = {node.name for node in tree.body if isinstance(node, functions)}
    for group in tree.body:
        if isinstance(group, ast.ClassDef):
            names |= {f"{group.name}::{node.name}" for node in group.body if isinstance(node, functions)}
    return frozenset(name for name in names if name.split("::")[-1].startswith("test"))


def missing(file: str, test: str) -> bool:
    path = ROOT / file
    if not test:
        return not path.exists()
    return not path.is_file() or test not in proofs_in(path)


def test_every_listed_proof_exists() -> None:
    references = [(found[1], found[2] or "") for found in REFERENCE.finditer(DOCUMENT)]
    assert references
    assert not [f"{file}::{test}" for file, test in references if missing(file, test)]


def test_a_missing_proof_would_be_noticed() -> None:
    here = "tests/test_requirements_doc.py"
    assert not missing(here, "test_a_missing_proof_would_be_noticed")
    assert missing(here, "test_that_is_not_there")
    assert missing(here, "missing")
    assert missing("tests/no_such_file.py", "")
    assert missing("tests/no_such_file.py", "test_x")


def test_each_id_is_explained_once_and_says_what_proves_it() -> None:
    ids = HEADING.findall(DOCUMENT)
    assert len(ids) == len(set(ids))
    sections = re.split(r"^### ", DOCUMENT, flags=re.MULTILINE)[1:]
    assert not [section.splitlines()[0] for section in sections if section.count("\nProved by:") != 1]


def test_every_id_the_source_cites_is_explained() -> None:
    explained = set(HEADING.findall(DOCUMENT))
    dangling: set[str] = set()
    for path in (ROOT / "src").rglob("*.py"):
        text = path.read_text()
        cited = set(CITED_REQUIREMENT.findall(text))
        cited |= {f"rule {number}" for found in CITED_RULES.findall(text) for number in re.findall(r"\d+", found)}
        dangling |= {f"{path.relative_to(ROOT)}: {name}" for name in cited - explained}
    assert not dangling
