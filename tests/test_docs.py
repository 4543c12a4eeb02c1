"""The documents keep up with the code: what they draw, list, link to and run is what there is."""

from __future__ import annotations

import re
import tomllib
from enum import Enum
from pathlib import Path

import pytest

from varlog.core.states import diagram
from varlog.sim.checkers import CHECKERS
from varlog.sim.disk import DiskFault
from varlog.sim.nemesis import PROFILES, Fault
from varlog.sim.network import NetworkFault
from varlog.sim.store import StoreFault

ROOT = Path(__file__).resolve().parent.parent
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text()
SIMULATOR = (ROOT / "docs" / "simulator.md").read_text()
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])

FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def blocks(text: str, language: str) -> list[str]:
    return [content for tag, content in FENCED.findall(text) if tag == language]


def anchors(text: str) -> set[str]:
    """The headings of a document as links name them."""
    headings = HEADING.findall(FENCED.sub("", text))
    return {re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-") for heading in headings}


def test_the_state_diagram_is_the_table() -> None:
    assert diagram() in [block.rstrip("\n") for block in blocks(ARCHITECTURE, "mermaid")]


def test_every_module_has_its_place_on_the_map() -> None:
    source = ROOT / "src" / "varlog"
    modules = {
        path.name for path in source.rglob("*.py") if path.name != "__init__.py" and "checkers" not in path.parts
    }
    assert not {name for name in modules if not re.search(rf"[`/]{re.escape(name)}`", ARCHITECTURE)}


def test_the_map_names_no_module_that_is_gone() -> None:
    source = ROOT / "src" / "varlog"
    named = set(re.findall(r"`(?:\w+/)*(\w+\.py)`", ARCHITECTURE))
    assert named
    assert (
        not named - {path.name for path in source.rglob("*.py")} - {path.name for path in ROOT.rglob("tests/**/*.py")}
    )


def test_every_dependency_has_a_reason() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *(one for extra in project["optional-dependencies"].values() for one in extra)]
    names = {re.split(r"[><=\[]", requirement)[0] for requirement in wanted} - {project["name"]}
    reasons = ARCHITECTURE[ARCHITECTURE.index("## Dependencies") :]
    assert not {name for name in names if not re.search(rf"\b{name}\b", reasons)}


@pytest.mark.parametrize("faults", [Fault, NetworkFault, DiskFault, StoreFault])
def test_every_fault_is_explained(faults: type[Enum]) -> None:
    told = " ".join(SIMULATOR.split())
    assert not [fault.value for fault in faults if fault.value not in told]


def test_every_checker_and_profile_is_explained() -> None:
    assert not [name for name in CHECKERS if f"| `{name}` |" not in SIMULATOR]
    assert not [profile.name for _, profile in PROFILES if profile.name not in SIMULATOR]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    text = document.read_text()
    for target in LINK.findall(FENCED.sub("", text)):
        if "://" in target:
            continue
        file, _, anchor = target.partition("#")
        path = (document.parent / file) if file else document
        assert path.exists(), f"{target} does not exist"
        assert not anchor or anchor in anchors(path.read_text()), f"{target} is no heading"


SESSIONS = {"README.md", "client.md", "operations.md", "orderings.md", "spark.md", "transactions.md"}
"""They need a cluster and are run in tests/docs; spark.md, which needs Spark too, in tests/spark."""
EXAMPLES = [
    pytest.param(code, id=f"{document.name}-{number}")
    for document in DOCUMENTS
    if document.name not in SESSIONS
    for number, code in enumerate(blocks(document.read_text(), "python"), 1)
]


@pytest.mark.parametrize("code", EXAMPLES)
def test_examples_run(code: str) -> None:
    exec(compile(code, "example", "exec"), {"__name__": "example"})
