"""A look at the whole cluster: what the metadata repository says, and what every storage node says of itself.

Nodes are asked all at once, each for a short time only: one that does not answer is told of, not waited for.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from varlog.cli.options import Cluster
from varlog.core.messages import Info, Metadata, Standing
from varlog.errors import VarlogError
from varlog.types import LogStreamID, StreamStatus

if TYPE_CHECKING:
    from varlog import Admin

NODE_SECONDS: Final = 1.0
CATCH_UP_SECONDS: Final = 2.0
LOOK_AGAIN: Final = 0.05


class Seen(NamedTuple):
    """What was seen."""

    metadata: Metadata
    infos: dict[int, Info]
    """Of the nodes that answered, by id."""
    silent: dict[int, str]
    """Why the others did not."""
    manager_error: str
    """Why the manager cannot be reached; empty if it can."""
    repositories: dict[str, Standing | str]
    """How the metadata repositories are, by address; of one that does not answer, why."""


async def metadata_of(at: Cluster, admin: Admin) -> Metadata:
    """What there is. A log stream that was given up while it was being made is not there: it never was of any use."""
    metadata = await admin.metadata(timeout=at.patience)
    streams = tuple(stream for stream in metadata.streams if stream.status is not StreamStatus.ABORTED)
    return msgspec.structs.replace(metadata, streams=streams)


async def look(at: Cluster) -> Seen:
    """Connect and ask everybody."""
    async with at.admin() as admin:
        return await see(at, admin)


async def see(at: Cluster, admin: Admin) -> Seen:
    """Ask everybody."""
    seconds = min(NODE_SECONDS, at.patience)
    metadata = await metadata_of(at, admin)
    snids = [node.snid for node in metadata.nodes]
    repositories, manager, *answers = await asyncio.gather(
        admin.repositories(timeout=seconds),
        admin.manager(timeout=seconds),
        *(admin.node(snid, timeout=seconds) for snid in snids),
        return_exceptions=True,
    )
    infos: dict[int, Info] = {}
    silent: dict[int, str] = {}
    for snid, answer in zip(snids, answers, strict=True):
        if isinstance(answer, Info):
            infos[snid] = answer
        else:
            silent[snid] = _told(answer)
    assert isinstance(repositories, dict)
    standings = {at: it if isinstance(it, Standing) else _told(it) for at, it in repositories.items()}
    return Seen(metadata, infos, silent, "" if isinstance(manager, str) else _told(manager), standings)


async def caught_up(at: Cluster, admin: Admin, tpid: int | None = None) -> Seen:
    """Look at the cluster; a replica may take a moment to hear of what was just committed. Only those of one topic are
    waited for if that is all that matters."""
    first = await see(at, admin)
    ends = {s.lsid: s.last_glsn for s in first.metadata.streams if tpid is None or s.tpid == tpid}
    deadline = time.monotonic() + CATCH_UP_SECONDS
    latest = first
    while _are_behind(latest, ends) and time.monotonic() < deadline:
        await asyncio.sleep(LOOK_AGAIN)
        latest = await see(at, admin)
    return latest._replace(metadata=first.metadata)


def _are_behind(seen: Seen, ends: Mapping[LogStreamID, int]) -> bool:
    """Whether a running log stream has a replica that does not know of all that is committed."""
    return any(
        replica.lsid == stream.lsid and replica.local_hwm < ends.get(stream.lsid, 0)
        for stream in seen.metadata.streams
        if stream.status is StreamStatus.RUNNING
        for snid in stream.replicas
        if snid in seen.infos
        for replica in seen.infos[snid].replicas
    )


def _told(error: object) -> str:
    if not isinstance(error, VarlogError):
        assert isinstance(error, BaseException)
        raise error
    return str(error)
