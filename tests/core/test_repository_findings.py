"""What is told of the metadata repositories and their store."""

from __future__ import annotations

from typing import Any

import pytest

from varlog.core.findings import Severity
from varlog.core.messages import Finding, Standing, StoreInfo
from varlog.core.repository_findings import findings_of_repositories
from varlog.types import Term, Version

MEMBERS = (("a:1", 3), ("b:1", 3), ("c:1", 3))


def standing(address: str, role: str = "following", store: dict[str, Any] | None = None, **changes: Any) -> Standing:
    about: dict[str, Any] = {
        "request": 1,
        "address": address,
        "role": role,
        "term": Term(4),
        "leader": "a:1",
        "version": Version(9),
        "silence": 0.0,
        "lag": 0.0,
        "nodes": 3,
        "members": MEMBERS,
        "store": StoreInfo("etcd://e:1/p", "e:1", "3.5.9", **(store or {})),
    }
    return Standing(**(about | changes))


def found(*standings: Standing | tuple[str, str]) -> list[Finding]:
    known: dict[str, Standing | str] = {}
    for it in standings:
        if isinstance(it, Standing):
            known[it.address] = it
        else:
            known[it[0]] = it[1]
    return list(findings_of_repositories(known, 3))


def test_three_that_are_well_are_not_told_of() -> None:
    assert not found(standing("a:1", "leading"), standing("b:1"), standing("c:1"))


def test_an_embedded_one_has_no_others_to_be_told_of() -> None:
    assert not found(standing("a:1", "leading", members=(), nodes=0))


def test_one_that_does_not_answer_is_told_with_why() -> None:
    told = found(standing("a:1", "leading"), standing("b:1"), ("c:1", "connection refused"))
    assert [(it.kind, it.severity) for it in told] == [("repository-silent", Severity.DEGRADED)]
    assert (told[0].subject, "connection refused" in told[0].what) == ("metadata repository c:1", True)
    assert "the 2 that are left do" in told[0].what


def test_one_that_hears_too_few_nodes_is_told() -> None:
    (told,) = found(standing("a:1", "leading"), standing("b:1", nodes=1), standing("c:1"))
    assert (told.kind, told.subject) == ("repository-hears-few", "metadata repository b:1")
    assert "hears 1 of 3 storage nodes" in told.what


def test_one_that_the_cluster_file_does_not_name_is_told() -> None:
    (told,) = found(standing("a:1", "leading"), standing("b:1"))
    assert (told.kind, told.severity, told.subject) == ("repository-unnamed", "note", "metadata repository c:1")


@pytest.mark.parametrize(
    ("changes", "store", "kind", "severity"),
    [
        ({"lag": 7.0}, {"error": "e:2 did not answer"}, "store-waits", Severity.URGENT),
        ({}, {"round_trip": 0.8}, "store-slow", Severity.DEGRADED),
        ({}, {"total_bytes": 1800 << 20, "used_bytes": 1 << 20}, "store-large", Severity.DEGRADED),
    ],
)
def test_a_store_in_trouble_is_told_by_the_leader_alone(
    changes: dict[str, Any], store: dict[str, Any], kind: str, severity: Severity
) -> None:
    (told,) = found(standing("a:1", "leading", store, **changes), standing("b:1", "following", store), standing("c:1"))
    assert (told.kind, told.severity, told.subject) == (kind, severity, "metadata store")
    assert told.person
