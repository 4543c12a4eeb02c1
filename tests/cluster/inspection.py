"""What a stopped cluster's directories hold, read with the production code: the evidence beside the history.

Everything is read from a copy, because opening repairs. Commit contexts need no sync of their own, so that the disks of
a killed cluster do not say what was committed; let it start again, settle, and stop in an orderly way first.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from varlog.core.metarepo import MetadataRepository, Role
from varlog.core.metastate import MetadataState
from varlog.metarepo.journal import Journal
from varlog.sim.cluster import committed_batches
from varlog.sim.evidence import ReplicaDump, TopicState
from varlog.storage.files import OSFileSystem
from varlog.storage.identity import identify
from varlog.storage.log import LogStreamStorage
from varlog.types import FIRST_LLSN, ClusterID, LogStreamIdentity


def metadata_in(journal: Path, cid: ClusterID, scratch: Path) -> MetadataState:
    """What the metadata repository whose journal this is has decided."""
    shutil.copytree(journal, scratch)
    store = Journal.open(OSFileSystem(), str(scratch), cid)
    repository = MetadataRepository(store, lambda *_: None, lambda _: None)
    repository.campaign(0.0)
    while (group := store.take()) is not None:
        store.write(group)
        store.sync(group)
        store.finish(group)
    assert repository.role is Role.LEADING
    store.close()
    shutil.rmtree(scratch)
    return repository.state


def topics_of(state: MetadataState) -> Mapping[int, TopicState]:
    """The same as the checkers want it."""
    ends = {int(stream.lsid): int(stream.llsn_end) for stream in state.streams.values()}
    return {int(topic.tpid): TopicState(topic.hwm, topic.trim, ends) for topic in state.topics.values()}


def replicas_in(volume: Path, name: str, scratch: Path) -> Iterator[ReplicaDump]:
    """Every replica on a volume of the node of that name."""
    for directory in sorted(volume.glob("cid=*/snid=*/lsid=*")):
        shutil.copytree(directory, scratch)
        with _opened(scratch) as (storage, identity):
            yield _dump(storage, identity, name)
        shutil.rmtree(scratch)


def stored_in(volume: Path, scratch: Path) -> Mapping[int, int]:
    """How many entries each replica on a volume holds, committed or not."""
    found = {}
    for directory in sorted(volume.glob("cid=*/snid=*/lsid=*")):
        shutil.copytree(directory, scratch)
        with _opened(scratch) as (storage, identity):
            found[int(identity.lsid)] = storage.recovered.uncommitted_llsn_end - FIRST_LLSN
        shutil.rmtree(scratch)
    return found


@contextmanager
def _opened(directory: Path) -> Iterator[tuple[LogStreamStorage, LogStreamIdentity]]:
    fs = OSFileSystem()
    identity = identify(fs, str(directory))
    assert identity is not None, f"{directory} holds no log stream"
    storage = LogStreamStorage.open(fs, str(directory), identity)
    try:
        yield storage, identity
    finally:
        storage.close()


def _dump(storage: LogStreamStorage, identity: LogStreamIdentity, name: str) -> ReplicaDump:
    found = storage.recovered
    batches, damaged = committed_batches(storage, found.trim_glsn, found.global_hwm)
    return ReplicaDump(
        int(identity.tpid),
        int(identity.lsid),
        name,
        batches,
        found.committed_llsn_end,
        found.trim_glsn,
        damaged or found.corruption is not None,
    )
