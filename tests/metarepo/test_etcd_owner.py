"""Whose metadata is under a prefix of an etcd: one cluster's, and everybody who opens it finds out."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

import pytest

from tests.metarepo.etcds import commit, opened, own_prefix
from tests.metarepo.rigs import CID
from varlog import errors
from varlog.core.metastate import Checkpoint, MetadataState
from varlog.core.store import CLUSTER_KEY
from varlog.daemon.config import MetadataRepositoryConfig
from varlog.etcdserver import EtcdCluster
from varlog.metarepo import backup, offline
from varlog.metarepo.server import MetadataRepositoryServer
from varlog.storage.files import OSFileSystem
from varlog.types import ClusterID, Term
from varlog.wire.secret import Secret

OTHER: Final = ClusterID(CID + 1)
FS: Final = OSFileSystem()


async def open_offline(etcd: EtcdCluster, where: str, cid: ClusterID | None) -> ClusterID | None:
    async with offline.opened(where, FS, cid, any_version=not etcd.program.is_sound) as store:
        return store.cid


def test_M4_a_metadata_repository_refuses_the_prefix_of_another_cluster(etcd: EtcdCluster, tmp_path: Path) -> None:
    Secret.create(tmp_path / "secret")
    prefix = own_prefix()

    async def begin(cid: ClusterID) -> None:
        config = MetadataRepositoryConfig(
            cluster=cid,
            store=etcd.url(prefix),
            etcd_any_version=not etcd.program.is_sound,
            secret_file=str(tmp_path / "secret"),
            listen="127.0.0.1:0",
            http=None,
        )
        server = await MetadataRepositoryServer.start(config, FS, lambda _: None)
        await server.stop()

    async def scenario() -> None:
        await begin(CID)
        with pytest.raises(errors.WrongIdentity, match=f"/{prefix} is of cluster {CID}, not {OTHER}"):
            await begin(OTHER)
        await begin(CID)
        with pytest.raises(errors.WrongIdentity):
            await open_offline(etcd, etcd.url(prefix), OTHER)
        assert await open_offline(etcd, etcd.url(prefix), None) == CID

    asyncio.run(scenario())


def test_of_two_clusters_that_claim_a_prefix_one_has_it(etcd: EtcdCluster) -> None:
    prefix = own_prefix()

    async def scenario() -> None:
        async with opened(etcd, prefix=prefix) as one, opened(etcd, prefix=prefix) as other:
            assert await one.owner() is None
            became = await asyncio.gather(one.claim(CID), other.claim(OTHER), return_exceptions=True)
            assert [type(it) for it in became if it is not None] == [errors.WrongIdentity]
            assert await one.owner() == (CID if became[0] is None else OTHER)
            await commit(one, CLUSTER_KEY, b"mine")
            with pytest.raises(errors.MalformedMetadata):
                await one.owner()

    asyncio.run(scenario())


def test_M4_metadata_that_is_put_into_etcd_says_whose_it_is(etcd: EtcdCluster) -> None:
    where, any_version = etcd.url(own_prefix()), not etcd.program.is_sound

    async def scenario() -> None:
        async with offline.opened(where, FS, CID, makes=True, any_version=any_version) as store:
            await backup.put(store, Checkpoint(MetadataState(), {}), Term(1))
        async with offline.opened(where, FS, any_version=any_version) as store:
            taken = await backup.take(store, 0)
        assert taken.cid == CID
        assert CLUSTER_KEY not in taken.keys
        with pytest.raises(errors.WrongIdentity):
            await open_offline(etcd, where, OTHER)

    asyncio.run(scenario())
