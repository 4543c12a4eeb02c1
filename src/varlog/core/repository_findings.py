"""What can be wrong with the metadata repositories and their store: one is silent, hears too few, waits for the store.

They are told by whoever has asked each of them how it stands (`Standing`); the manager sees only the one that leads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from varlog import limits
from varlog.core.findings import Severity, finding
from varlog.core.messages import Finding, Standing

WAITS_SECONDS: Final = 1.0
"""A decision that takes the store so long is late,"""
SLOW_SECONDS: Final = 0.5
"""and so is an answer."""
LARGE_BYTES: Final = 1536 * limits.KIB * limits.KIB
"""etcd stops writing at 2 GiB unless it is told otherwise."""


def findings_of_repositories(standings: Mapping[str, Standing | str], registered: int) -> Iterator[Finding]:
    """`standings` are by the addresses that clients know; of one that does not answer, why. `registered` is the number
    of storage nodes."""
    known = {address: found for address, found in standings.items() if isinstance(found, Standing)}
    for address, found in standings.items():
        if isinstance(found, str):
            yield _silent(address, found, others=len(known))
        else:
            yield from _hears_few(address, found, registered)
    members = {member for found in known.values() for member, _ in found.members}
    for address in sorted(members - standings.keys() - {found.address for found in known.values()}):
        yield _unnamed(address)
    for leader in known.values():
        if leader.role == "leading":
            yield from _store(leader)


def _silent(address: str, why: str, others: int) -> Finding:
    left = "the one that is left does" if others == 1 else f"the {others} that are left do"
    return finding(
        "repository-silent",
        Severity.DEGRADED,
        f"metadata repository {address}",
        f"does not answer ({why}); the order goes on as long as {left}",
        person="see that vmr runs there and what its log says, and start it again",
    )


def _hears_few(address: str, found: Standing, registered: int) -> Iterator[Finding]:
    if found.members and found.nodes < registered:
        yield finding(
            "repository-hears-few",
            Severity.DEGRADED,
            f"metadata repository {address}",
            f"hears {found.nodes} of {registered} storage nodes, and would lead only those",
            person="if all nodes are well, check the network between it and the others, and that every vsn names it "
            "in metadata_repository",
        )


def _unnamed(address: str) -> Finding:
    return finding(
        "repository-unnamed",
        Severity.NOTE,
        f"metadata repository {address}",
        "shares the store, and is not named in the cluster file: clients from here would not find it if it led",
        person="name it among metadata_repositories in the cluster file, and in metadata_repository of all daemons; or "
        "stop it",
    )


def _store(leader: Standing) -> Iterator[Finding]:
    store = leader.store
    subject = "metadata store"
    if leader.lag >= WAITS_SECONDS:
        yield finding(
            "store-waits",
            Severity.URGENT,
            subject,
            f"has not taken a decision for {leader.lag:.1f} s ({store.name}): no entry gets a position meanwhile",
            seconds=leader.lag,
            person=f"see that a majority of its members runs{': ' + store.error if store.error else ''}",
        )
    elif store.round_trip >= SLOW_SECONDS:
        yield finding(
            "store-slow",
            Severity.DEGRADED,
            subject,
            f"took {store.round_trip:.2f} s to answer ({store.endpoint}): every append waits for that",
            person="see what its disks and the network to it are busy with",
        )
    if store.total_bytes >= LARGE_BYTES:
        yield finding(
            "store-large",
            Severity.DEGRADED,
            subject,
            f"has {store.total_bytes >> 20} MiB on disk, {store.used_bytes >> 20} MiB of them in use; an etcd that "
            "reaches its quota takes no more writes",
            person="run etcdctl defrag on each member, one after another, or raise --quota-backend-bytes",
        )
