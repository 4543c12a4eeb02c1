"""An examination: a look at the whole cluster, and what is wrong with it.

The manager is asked what it finds; it has watched for long and knows since when, and what is done about it. What only
shows from here is added: whom the manager reaches and we do not, and how each of the metadata repositories and of the
sequencers is. If the manager itself cannot be asked, the same function (`varlog.core.diagnosing.diagnose`) is applied
to what was seen from here. Then nobody does anything about it, and nobody has seen since when it is so.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from varlog.cli.looking import Seen, see
from varlog.cli.options import Cluster
from varlog.core.chain_findings import findings_of_sequencers
from varlog.core.diagnosing import diagnose
from varlog.core.findings import Severity, finding
from varlog.core.messages import Diagnosis, Finding
from varlog.core.repository_findings import findings_of_repositories
from varlog.core.world import Memory, World
from varlog.errors import VarlogError
from varlog.types import StorageNodeID

if TYPE_CHECKING:
    from varlog import Admin

MANAGER_SECONDS: Final = 1.0


class Examination(NamedTuple):
    """What was found."""

    seen: Seen
    findings: tuple[Finding, ...]
    """The worst first."""
    doing: tuple[str, ...]
    """What the manager has been doing of late."""

    @property
    def problems(self) -> list[Finding]:
        """What is not as it should be; the rest is good to know."""
        return [found for found in self.findings if found.severity != Severity.NOTE]

    @property
    def notes(self) -> list[Finding]:
        return [found for found in self.findings if found.severity == Severity.NOTE]


async def examine(at: Cluster, admin: Admin, memory: Memory) -> Examination:
    """Ask everybody. `memory` is of the examinations before, if there were any."""
    seconds = min(MANAGER_SECONDS, at.patience)
    seen, answer, sequencers = await asyncio.gather(
        see(at, admin), _diagnosis(admin, seconds), admin.sequencers(timeout=seconds)
    )
    world = World.of(
        seen.metadata,
        {StorageNodeID(snid): info for snid, info in seen.infos.items()},
        asyncio.get_running_loop().time(),
    )
    memory.observe(world)
    boots = {address: boot if isinstance(boot, int) else str(boot) for address, boot in sequencers.items()}
    of_others = [
        *findings_of_repositories(seen.repositories, len(seen.metadata.nodes)),
        *findings_of_sequencers(seen.metadata, boots),
    ]
    if isinstance(answer, Diagnosis):
        of_manager = [*_with_reasons(answer.findings, seen), *_only_from_here(answer, seen)]
        return Examination(seen, _ordered([*of_others, *of_manager]), answer.doing)
    lost = seen._replace(manager_error=seen.manager_error or str(answer))
    own = [msgspec.structs.replace(found, doing="", seconds=0.0) for found in diagnose(world, memory)]
    return Examination(lost, _ordered([*of_others, _unmanaged(lost), *_with_reasons(own, seen)]), ())


async def _diagnosis(admin: Admin, seconds: float) -> Diagnosis | VarlogError:
    try:
        return await admin.diagnose(timeout=seconds)
    except VarlogError as error:
        return error


def _ordered(findings: list[Finding]) -> tuple[Finding, ...]:
    order = [severity.value for severity in Severity]
    return tuple(sorted(findings, key=lambda found: order.index(found.severity)))


def _with_reasons(findings: tuple[Finding, ...] | list[Finding], seen: Seen) -> list[Finding]:
    """To a node that does not answer, what was met when it was asked from here."""
    reasons = {f"node {snid}": reason for snid, reason in seen.silent.items()}
    return [
        msgspec.structs.replace(found, what=f"{found.what} (from here: {reasons[found.subject]})")
        if found.kind == "node-silent" and found.subject in reasons
        else found
        for found in findings
    ]


def _only_from_here(diagnosis: Diagnosis, seen: Seen) -> list[Finding]:
    silent = {found.subject for found in diagnosis.findings if found.kind == "node-silent"}
    return [
        finding(
            "node-unreachable",
            Severity.DEGRADED,
            f"node {snid}",
            f"answers the manager, and cannot be reached from here: {reason}",
            person="check the network between here and the node: clients on this machine can neither read from it nor "
            "append to it",
        )
        for snid, reason in seen.silent.items()
        if f"node {snid}" not in silent
    ]


def _unmanaged(seen: Seen) -> Finding:
    where = seen.metadata.manager
    return finding(
        "manager-unreachable",
        Severity.DEGRADED,
        "manager",
        f"cannot be asked ({seen.manager_error}): nothing is repaired, and nothing can be added or removed",
        person=f"see that vms runs at {where} and what its log says" if where else "start one with vms start",
    )
