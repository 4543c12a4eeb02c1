"""The store on etcd where it differs from others: what becomes of a request whose connection fails, who is let in."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.cluster.proxy import BreakingProxy, Direction
from tests.metarepo.etcds import Counter, ask, commit, opened, own_prefix, revision_of, value_of
from tests.wire.certificates import Authority, encrypt
from varlog import limits
from varlog.core.store import (
    Committed,
    CompareFailed,
    KeyValue,
    Put,
    ReadResult,
    Remaining,
    Txn,
    WatchEvents,
    WatchNotice,
)
from varlog.errors import (
    Busy,
    Compacted,
    EtcdRefused,
    InvalidArgument,
    LimitExceeded,
    OutcomeUnknown,
    SecretUnusable,
    StoreUnavailable,
    UnsuitableEtcd,
)
from varlog.etcdserver import EtcdCluster, choose, in_wheel
from varlog.metarepo.etcd.address import EtcdAddress, EtcdOptions, FileTls
from varlog.metarepo.etcd.store import EtcdStore
from varlog.metarepo.stores import is_etcd, open_etcd


@asynccontextmanager
async def between(etcd: EtcdCluster) -> AsyncIterator[tuple[BreakingProxy, EtcdStore, EtcdStore]]:
    """A store that is reached through a proxy only, and another one on the same keys that is not."""
    prefix = own_prefix()
    async with (
        await BreakingProxy.start(etcd.members[0].endpoint) as proxy,
        opened(etcd, proxy.address, prefix=prefix) as store,
        opened(etcd, prefix=prefix) as direct,
    ):
        yield proxy, store, direct


# What a failed connection means


def test_O3_a_write_whose_answer_is_lost_is_unknown_and_happened(etcd: EtcdCluster) -> None:
    async def scenario() -> None:
        async with between(etcd) as (proxy, store, direct):
            proxy.block(Direction.FROM_TARGET)
            assert isinstance(await commit(store, "a", b"1"), OutcomeUnknown)
            assert (await value_of(direct, "a") or KeyValue("", b"", 0)).value == b"1"
            await proxy.heal()
            assert isinstance(await commit(store, "a", b"2", 0), CompareFailed)

    asyncio.run(scenario())


def test_O3_a_write_that_is_under_way_for_long_is_unknown_and_lands_behind_no_compare(etcd: EtcdCluster) -> None:
    async def scenario() -> None:
        async with between(etcd) as (proxy, store, direct):
            first = await commit(direct, "a", b"1")
            proxy.block(Direction.TO_TARGET)
            assert isinstance(await commit(store, "a", b"late", first.revision), OutcomeUnknown)
            assert await value_of(direct, "a") == KeyValue("a", b"1", first.revision), "it did not happen, yet"
            second = await commit(direct, "a", b"2", first.revision)
            assert isinstance(second, Committed)
            await proxy.heal()
            assert await value_of(store, "a") == KeyValue("a", b"2", second.revision)

    asyncio.run(scenario())


def test_O3_what_no_connection_was_made_for_did_not_happen(etcd: EtcdCluster) -> None:
    async def scenario() -> None:
        async with between(etcd) as (proxy, store, direct):
            proxy.refuse()
            proxy.cut()
            await proxy.wait_until(lambda: not proxy.connections)
            outcomes = [await commit(store, "a", b"1") for _ in range(2)]
            assert isinstance(outcomes[-1], StoreUnavailable)
            assert isinstance(await ask(store.lease_grant, 5), StoreUnavailable)
            assert await value_of(direct, "a") is None
            await proxy.heal()
            assert isinstance(await commit(store, "a", b"2", 0), Committed)

    asyncio.run(scenario())


@pytest.mark.parametrize("after", [0, 20, 200])
def test_an_answer_that_breaks_off_is_no_answer(etcd: EtcdCluster, after: int) -> None:
    async def scenario() -> None:
        async with between(etcd) as (proxy, store, direct):
            proxy.truncate(Direction.FROM_TARGET, after)
            assert isinstance(await commit(store, "a", b"1"), OutcomeUnknown)
            assert await value_of(direct, "a") is not None
            proxy.truncate(Direction.FROM_TARGET, after)
            assert isinstance(await ask(store.read, ("a",)), StoreUnavailable)
            assert isinstance(await ask(store.read, ("a",)), ReadResult)

    asyncio.run(scenario())


def test_a_watch_whose_connection_is_cut_again_and_again_is_told_everything_once(etcd: EtcdCluster) -> None:
    async def scenario() -> None:
        async with between(etcd) as (proxy, store, direct):
            told: list[WatchNotice] = []
            all_told = asyncio.Event()

            def hear(notice: WatchNotice) -> None:
                told.append(notice)
                if len(told) == 30:
                    all_told.set()

            store.watch("", await revision_of(store), hear)
            expected = []
            for number in range(30):
                outcome = await ask(direct.txn, Txn((), (Put("a", b"%d" % number), Put(f"b/{number}", b""))))
                puts = [
                    KeyValue(key, value, outcome.revision)
                    for key, value in (("a", b"%d" % number), (f"b/{number}", b""))
                ]
                expected.append(WatchEvents(outcome.revision, tuple(puts), ()))
                if number % 10 == 5:
                    await proxy.wait_until(lambda: proxy.connections > 0)
                    proxy.cut()
            await asyncio.wait_for(all_told.wait(), 10)
            assert told == expected

    asyncio.run(scenario())


def test_a_watch_that_comes_back_too_late_is_told_so(etcd: EtcdCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "WATCH_HISTORY_REVISIONS", 4)

    async def scenario() -> None:
        async with between(etcd) as (proxy, store, direct):
            told: asyncio.Queue[WatchNotice] = asyncio.Queue()
            store.watch("", await revision_of(store), told.put_nowait)
            await commit(direct, "a", b"0")
            assert isinstance(await asyncio.wait_for(told.get(), 10), WatchEvents)
            proxy.refuse()
            proxy.cut()
            for number in range(8):
                await commit(direct, "a", b"%d" % number)
            while direct.pending:
                await ask(direct.read, ())
            await proxy.heal()
            assert isinstance(await asyncio.wait_for(told.get(), 10), Compacted)
            assert told.empty()

    asyncio.run(scenario())


def test_a_store_that_is_closed_says_nothing_more(etcd: EtcdCluster) -> None:
    async def scenario() -> None:
        async with between(etcd) as (proxy, store, direct):
            proxy.block()
            outcomes: list[object] = []
            store.txn(Txn((), (Put("a", b"1"),)), outcomes.append)
            store.read(("a",), outcomes.append)
            store.watch("", 0, outcomes.append)
            await store.close()
            store.read(("a",), outcomes.append)
            await proxy.heal()
            await commit(direct, "a", b"2")
            assert outcomes == []
            assert store.pending == 0

    asyncio.run(scenario())


def test_no_more_is_under_way_than_may_be(etcd: EtcdCluster) -> None:
    async def scenario() -> None:
        async with between(etcd) as (proxy, store, _):
            proxy.block()
            for _ in range(limits.ETCD_REQUESTS):
                store.read(("a",), lambda _: None)
            with pytest.raises(Busy):
                store.read(("a",), lambda _: None)

    asyncio.run(scenario())


# Members


def test_a_member_that_is_no_etcd_or_another_one_is_not_used(etcd: EtcdCluster, tmp_path: Path) -> None:
    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{"a": 1}\n')
        writer.close()

    async def scenario() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        stranger = "{}:{}".format(*server.sockets[0].getsockname())
        async with opened(etcd, stranger, etcd.members[0].endpoint) as store:
            counter = await Counter.at(store)
            await counter.up()
            await counter.check()
            assert store.health().endpoint == etcd.members[0].endpoint
        with pytest.raises(StoreUnavailable, match="is no etcd"):
            async with opened(etcd, stranger):
                pass
        server.close()
        async with EtcdCluster(tmp_path, members=1) as other:
            with pytest.raises(UnsuitableEtcd, match="another etcd"):
                async with opened(etcd, etcd.members[0].endpoint, other.members[0].endpoint):
                    pass

    asyncio.run(scenario())


def test_the_member_that_leads_is_spoken_to_and_health_says_so(etcd: EtcdCluster) -> None:
    async def scenario() -> None:
        async with opened(etcd) as store:
            await commit(store, "a", b"1")
            health = store.health()
            assert health.endpoints == tuple(member.endpoint for member in etcd.members)
            assert health.leads
            assert health.version == etcd.program.version
            assert 0 < health.round_trip < 1
            assert health.database_bytes >= health.used_bytes > 0
            assert health.error == ""

    asyncio.run(scenario())


def test_an_etcd_that_can_lose_data_is_refused_unless_one_insists(tmp_path: Path) -> None:
    unsound = choose([], in_wheel())
    assert unsound.version == "3.5.1"
    assert not unsound.is_sound

    async def scenario() -> None:
        async with EtcdCluster(tmp_path, members=1, program=unsound) as etcd:
            with pytest.raises(UnsuitableEtcd, match=r"3\.5\.1"):
                await open_etcd(etcd.url("a"))
            store = await open_etcd(etcd.url("a"), any_version=True)
            assert isinstance(await commit(store, "a", b"1"), Committed)
            await store.close()

    asyncio.run(scenario())


# Bounds


def test_an_etcd_that_is_full_says_so_and_larger_values_than_it_takes_are_not_sent(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            EtcdCluster(tmp_path, members=1, flags=["--quota-backend-bytes=3000000"]) as etcd,
            opened(etcd) as store,
        ):
            with pytest.raises(InvalidArgument):
                await commit(store, "a", bytes(store.max_value_bytes + 1))
            largest = bytes(store.max_value_bytes)
            outcomes = [await commit(store, f"{number}", largest) for number in range(6)]
            assert isinstance(outcomes[0], Committed)
            assert isinstance(outcomes[-1], LimitExceeded)
            assert isinstance(await ask(store.read, ("0",)), ReadResult)

    asyncio.run(scenario())


def test_more_than_fits_into_one_answer_is_read_as_of_one_revision(
    etcd: EtcdCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "ETCD_PAGE_KEYS", 7)

    async def scenario() -> None:
        async with opened(etcd) as store:
            keys = [f"k{number:03}" for number in range(100)]
            at = (await ask(store.txn, Txn((), tuple(Put(key, key.encode()) for key in keys)))).revision
            reading = asyncio.ensure_future(ask(store.read_prefix, "k"))
            await commit(store, "k999", b"")
            found = await reading
            assert isinstance(found, ReadResult)
            assert list(found.kvs)[:100] == keys
            assert (found.revision == at) == ("k999" not in found.kvs)

    asyncio.run(scenario())


# Who is let in


def gateway(etcd: EtcdCluster, path: str, body: Mapping[str, object], token: str = "") -> dict[str, str]:
    """What an operator does with etcdctl."""
    headers = {"Authorization": token} if token else {}
    request = urllib.request.Request(etcd.members[0].client_url + path, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=10) as reply:
        answer: dict[str, str] = json.load(reply)
    return answer


def ask_for_passwords(etcd: EtcdCluster) -> None:
    """User varlog may read and write what is under mine/."""
    mine = {"permType": "READWRITE", "key": "bWluZS8=", "range_end": "bWluZTA="}
    steps: list[tuple[str, dict[str, object]]] = [
        ("user/add", {"name": "root", "password": "root"}),
        ("user/add", {"name": "varlog", "password": "right"}),
        ("role/add", {"name": "root"}),
        ("role/add", {"name": "keys"}),
        ("role/grant", {"name": "keys", "perm": mine}),
        ("user/grant", {"user": "root", "role": "root"}),
        ("user/grant", {"user": "varlog", "role": "keys"}),
        ("enable", {}),
    ]
    for step, body in steps:
        gateway(etcd, f"/v3/auth/{step}", body)


async def use_everything(store: EtcdStore) -> None:
    """Whoever may read and write the keys needs no other right."""
    lease = await ask(store.lease_grant, 5)
    for number in range(8):
        assert isinstance(await ask(store.txn, Txn((), (Put("a", b"%d" % number, lease.id),))), Committed)
    while store.pending:
        assert isinstance(await ask(store.read_prefix, ""), ReadResult)
    assert "compacted" not in store.health().error
    told: asyncio.Queue[WatchNotice] = asyncio.Queue()
    store.watch("", 1, told.put_nowait)
    assert isinstance(await asyncio.wait_for(told.get(), 10), Compacted)
    assert isinstance(await ask(store.lease_remaining, lease.id), Remaining)
    assert await ask(store.lease_keep_alive, lease.id) == lease
    assert await ask(store.lease_revoke, lease.id) == lease
    assert await value_of(store, "a") is None


def password_file(path: Path, password: str, mode: int = 0o600) -> str:
    path.write_text(f"{password}\n")
    path.chmod(mode)
    return str(path)


def test_a_user_and_a_password_are_needed_where_they_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "WATCH_HISTORY_REVISIONS", 4)
    good = EtcdOptions(user="varlog", password_file=password_file(tmp_path / "good", "right"))
    wrong = EtcdOptions(user="varlog", password_file=password_file(tmp_path / "wrong", "left"))
    readable = EtcdOptions(user="varlog", password_file=password_file(tmp_path / "readable", "right", 0o644))

    async def scenario() -> None:
        async with EtcdCluster(tmp_path / "etcd", members=1, flags=["--bcrypt-cost=4"]) as etcd:
            await asyncio.to_thread(ask_for_passwords, etcd)
            for options, error in ((None, EtcdRefused), (wrong, EtcdRefused), (readable, SecretUnusable)):
                with pytest.raises(error):
                    async with opened(etcd, prefix="mine", options=options):
                        pass
            with pytest.raises(EtcdRefused, match="permission"):
                async with opened(etcd, prefix="others", options=good):
                    pass
            async with opened(etcd, prefix="mine", options=good) as store:
                counter = await Counter.at(store)
                await counter.up()
                await etcd.members[0].kill()
                await etcd.members[0].start()
                await counter.up()
                await counter.check()
                await use_everything(store)

    asyncio.run(scenario())


def test_etcd_with_TLS_lets_in_who_has_a_certificate_and_is_believed_if_it_has_the_right_one(tmp_path: Path) -> None:
    authority, stranger = Authority(), Authority()
    theirs = authority.issue(tmp_path, name="etcd")
    ours = authority.issue(tmp_path, name="vmr")
    strange = stranger.issue(tmp_path, name="strange")
    flags = [f"--cert-file={theirs.cert}", f"--key-file={theirs.key}", f"--trusted-ca-file={theirs.ca}"]
    files = {"ca": str(ours.ca), "cert": str(ours.cert), "key": str(ours.key)}
    right = EtcdOptions(**files)
    wrong_ca = EtcdOptions(**{**files, "ca": str(strange.ca)})
    no_certificate = EtcdOptions(ca=str(ours.ca))

    async def scenario() -> None:
        async with EtcdCluster(tmp_path / "etcd", members=1, flags=[*flags, "--client-cert-auth"], tls=True) as etcd:
            async with opened(etcd, options=right, tls=True) as store:
                counter = await Counter.at(store)
                await counter.up()
                await counter.check()
            for options in (wrong_ca, no_certificate):
                with pytest.raises(StoreUnavailable):
                    async with opened(etcd, options=options, tls=True):
                        pass
            with pytest.raises(StoreUnavailable):
                async with opened(etcd):
                    pass

    asyncio.run(scenario())


def test_new_certificates_are_taken_without_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ETCD_LOOK_SECONDS", 0.1)
    files = Authority().issue(tmp_path, name="etcd")
    flags = [f"--cert-file={files.cert}", f"--key-file={files.key}"]
    options = EtcdOptions(ca=str(files.ca))

    async def scenario() -> None:
        secure = EtcdCluster(tmp_path / "etcd", members=1, flags=flags, tls=True)
        async with secure as etcd, opened(etcd, options=options, tls=True) as store:
            counter = await Counter.at(store)
            await counter.up()
            await etcd.members[0].kill()
            Authority().issue(tmp_path, name="etcd")  # in the place of those of before
            await etcd.members[0].start()
            await counter.up()
            await counter.check()

    asyncio.run(scenario())


# Addresses


def test_an_address_names_members_and_a_prefix() -> None:
    assert EtcdAddress.parse("etcd://a:1,b,[::1]:3/x/y/") == EtcdAddress(("a:1", "b:2379", "[::1]:3"), "x/y", tls=False)
    secure = EtcdAddress.parse("etcds://etcd.example.com/varlog")
    assert secure.tls
    assert secure.base(secure.endpoints[0]) == "https://etcd.example.com:2379"
    assert str(secure) == "etcds://etcd.example.com:2379/varlog"
    assert is_etcd(str(secure))
    assert not is_etcd("/var/lib/varlog")


@pytest.mark.parametrize(
    "url",
    [
        "",
        "a:2379/x",
        "http://a:2379/x",
        "etcd://a:2379",
        "etcd://a:2379/",
        "etcd:///x",
        "etcd://a:0/x",
        "etcd://a:b/x",
        "etcd://user:password@a/x",
        "etcd://a,,b/x",
        "etcd://a,a:2379/x",
        "etcd://a/x y",
        "etcd://a//x",
        "etcd://a b/x",
    ],
)
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(InvalidArgument):
        EtcdAddress.parse(url)


@pytest.mark.parametrize("scheme", ["etcd://", "http://", ""])
def test_a_password_in_an_address_is_not_repeated(scheme: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        EtcdAddress.parse(f"{scheme}me:hidden@a:2379/x")
    assert "hidden" not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("etcd://a/x", EtcdOptions(user="me")),
        ("etcd://a/x", EtcdOptions(password_file="p")),
        ("etcd://a/x", EtcdOptions(ca="ca.pem")),
        ("etcds://a/x", EtcdOptions(cert="c.pem")),
        ("etcds://a/x", EtcdOptions(key="k.pem")),
    ],
)
def test_options_that_do_not_fit_together_are_refused(url: str, options: EtcdOptions) -> None:
    with pytest.raises(InvalidArgument):
        options.check(EtcdAddress.parse(url))


def test_secrets_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    for options in (
        EtcdOptions(user="me", password_file=str(tmp_path / "none")),
        EtcdOptions(user="me", password_file=password_file(tmp_path / "empty", "")),
    ):
        with pytest.raises(SecretUnusable, match=str(tmp_path)):
            options.password()
    with pytest.raises(SecretUnusable, match="none"):
        FileTls(EtcdOptions(ca=str(tmp_path / "none")))
    (tmp_path / "no certificate").write_text("nothing")
    with pytest.raises(SecretUnusable, match="no certificate"):
        FileTls(EtcdOptions(ca=str(tmp_path / "no certificate")))
    files = Authority().issue(tmp_path, name="vmr")
    ours = EtcdOptions(ca=str(files.ca), cert=str(files.cert), key=str(files.key))
    FileTls(ours)
    Path(files.key).chmod(0o640)
    with pytest.raises(SecretUnusable, match="chmod 600"):
        FileTls(ours)
    encrypt(Path(files.key))
    with pytest.raises(SecretUnusable, match="encrypted"):
        FileTls(ours)
