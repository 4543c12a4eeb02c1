"""docs/requirements.md keeps its word: the proofs it lists exist, every test that carries an id is listed under it, and
every id the source cites is explained."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

from tests.sim.mutations import MUTATIONS

ROOT = Path(__file__).resolve().parent.parent
DOCUMENT = (ROOT / "docs" / "requirements.md").read_text()

REFERENCE = re.compile(r"`(tests/[^`:\s]+)(?:::([^`\s]+))?`")
HEADING = re.compile(r"^### ([LBMOSP]\d+|rule \d+)\b", re.MULTILINE)
CARRIED = re.compile(r"test_(?:rule(\d+)|([LBMOSP]\d+))_")
BROKEN_RULES = re.compile(r"Rules? (\d+(?:(?:, | and |\n)\d+)*)\s+are\s+also broken on purpose")
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


def sections() -> dict[str, str]:
    """The text of each requirement and rule."""
    texts = re.split(r"^(?=##)", DOCUMENT, flags=re.MULTILINE)
    return {found[1]: text for text in texts if (found := HEADING.match(text))}


def carried_id(test: str) -> str | None:
    found = CARRIED.match(test.rsplit("::", maxsplit=1)[-1])
    if found is None:
        return None
    return f"rule {found[1]}" if found[1] else found[2]


def test_every_test_that_carries_an_id_is_listed_under_it() -> None:
    listed = {name: {(found[1], found[2]) for found in REFERENCE.finditer(text)} for name, text in sections().items()}
    carrying = [
        (str(path.relative_to(ROOT)), test, name)
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        for test in sorted(proofs_in(path))
        if (name := carried_id(test)) is not None
    ]
    assert len(carrying) > 100
    assert not [f"{name}: {file}::{test}" for file, test, name in carrying if (file, test) not in listed.get(name, ())]


def test_an_id_in_a_name_is_recognised() -> None:
    assert carried_id("test_B10_a_partial_commit_is_dropped") == "B10"
    assert carried_id("Group::test_rule15_x") == "rule 15"
    assert carried_id("test_a_list_of_bytes_comes_back") is None
    assert carried_id("test_rule_15") is None


def test_the_rules_said_to_be_broken_on_purpose_are_broken_by_a_mutation() -> None:
    said = BROKEN_RULES.search(DOCUMENT)
    assert said is not None
    broken = {found[1] for mutation in MUTATIONS if (found := re.match(r"rule(\d+)_", mutation.name))}
    assert set(re.findall(r"\d+", said[1])) == broken


def test_every_id_the_source_cites_is_explained() -> None:
    explained = set(HEADING.findall(DOCUMENT))
    dangling: set[str] = set()
    for path in (ROOT / "src").rglob("*.py"):
        text = path.read_text()
        cited = set(CITED_REQUIREMENT.findall(text))
        cited |= {f"rule {number}" for found in CITED_RULES.findall(text) for number in re.findall(r"\d+", found)}
        dangling |= {f"{path.relative_to(ROOT)}: {name}" for name in cited - explained}
    assert not dangling
