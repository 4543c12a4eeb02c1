"""etcd lets a user in for a while; when it has forgotten whom, one login brings everything on that is under way.

etcd makes passwords costly to try, so a login for each request that was refused would keep it from all other work.
"""

from __future__ import annotations

import asyncio
import re
import urllib.request
from pathlib import Path

from tests.metarepo.etcds import ask, commit, opened, revision_of
from tests.metarepo.test_etcd_store import ask_for_passwords, gateway, password_file
from varlog.core.store import Committed, ReadResult, WatchEvents, WatchNotice
from varlog.errors import StoreUnavailable
from varlog.etcdserver import EtcdCluster
from varlog.metarepo.etcd.address import EtcdOptions

REQUESTS = 40


def logins(etcd: EtcdCluster) -> int:
    """How often a password was tried."""
    with urllib.request.urlopen(f"{etcd.members[0].client_url}/metrics", timeout=10) as reply:
        told = reply.read().decode()
    counts = re.findall(r'^grpc_server_started_total\{grpc_method="Authenticate".*\} (\d+)$', told, re.MULTILINE)
    return sum(map(int, counts))


def change_password(etcd: EtcdCluster, password: str) -> None:
    """After it nobody is let in who was before."""
    root = gateway(etcd, "/v3/auth/authenticate", {"name": "root", "password": "root"})["token"]
    gateway(etcd, "/v3/auth/user/changepw", {"name": "varlog", "password": password}, root)


def test_all_requests_wait_for_one_login_with_the_password_of_now(tmp_path: Path) -> None:
    options = EtcdOptions(user="varlog", password_file=password_file(tmp_path / "password", "right"))

    async def scenario() -> None:
        async with EtcdCluster(tmp_path / "etcd", members=1) as etcd:
            await asyncio.to_thread(ask_for_passwords, etcd)
            async with opened(etcd, prefix="mine", options=options) as store:
                told: asyncio.Queue[WatchNotice] = asyncio.Queue()
                store.watch("", await revision_of(store), told.put_nowait)
                await asyncio.to_thread(change_password, etcd, "new")
                assert isinstance(await ask(store.read, ("a",)), StoreUnavailable)
                password_file(tmp_path / "password", "new")
                before = await asyncio.to_thread(logins, etcd)
                outcomes = await asyncio.gather(*(ask(store.read, ("a",)) for _ in range(REQUESTS)))
                assert {str(outcome) for outcome in outcomes if not isinstance(outcome, ReadResult)} == set()
                assert await asyncio.to_thread(logins, etcd) == before + 1
                assert isinstance(await commit(store, "a", b"1"), Committed)
                assert isinstance(await asyncio.wait_for(told.get(), 10), WatchEvents)

    asyncio.run(scenario())
