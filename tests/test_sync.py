"""The client without asyncio: the same calls from any thread, and nothing left running behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import varlog
import varlog.sync
from varlog import errors
from varlog.background import Background, Use, background
from varlog.oneprocess import EmbeddedCluster


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Path]:
    """A cluster that runs in a thread of its own."""
    started, done = threading.Event(), threading.Event()
    loops: list[asyncio.AbstractEventLoop] = []
    stops: list[asyncio.Event] = []

    async def serve() -> None:
        running = await EmbeddedCluster.start(tmp_path)
        loops.append(asyncio.get_running_loop())
        stops.append(asyncio.Event())
        started.set()
        await stops[0].wait()
        await running.stop()
        done.set()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert started.wait(30)
    yield tmp_path
    loops[0].call_soon_threadsafe(stops[0].set)
    thread.join(30)
    assert done.is_set()


def background_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "varlog"]


def test_every_call_on_a_sequencers_topic(cluster: Path) -> None:
    with varlog.sync.admin(cluster) as admin:
        admin.add_topic("sequenced", ordering="sequencer", block=8)
    with varlog.sync.connect(cluster, topic="sequenced", fill_after=0.1) as log:
        assert log.append_batch([b"one", b"two"]).end == 3
        assert log.peek() == log.tail() == 2
        assert log.seal() == 2
        with pytest.raises(errors.Written):
            log.fill(2)
        with log.appender(window=2) as appender:
            pending = [appender.append(b"%d" % number) for number in range(10)]
        assert [each.result().glsn for each in pending] == list(range(3, 13))
        assert len([entry for batch in log.scan() for entry in batch]) == 12


def test_every_call(cluster: Path) -> None:
    with varlog.sync.connect(cluster) as log:
        assert log.name == log.topic.name == "log"
        assert log.append(b"one").glsn == 1
        assert log.append_batch([b"two", b"three"]).count == 2
        assert log.read(2).data == b"two"
        assert (log.tail(), log.first()) == (3, 1)
        assert [batch.payloads() for batch in log.scan()] == [[b"one"], [b"two", b"three"]]
        assert [entry.data for entry in log.subscribe(2, end=4)] == [b"two", b"three"]
        with log.appender(window=2) as appender:
            pending = [appender.append(b"%d" % number) for number in range(10)]
            pending.append(appender.append_batch([b"x", b"y"]))
            appender.flush()
        assert [each.result().glsn for each in pending] == list(range(4, 15))
        assert log.trim(3) == 3
        log.refresh()
        assert log.metadata.topics[0].trim == 3
        with pytest.raises(errors.Trimmed):
            log.read(1)
        with pytest.raises(errors.Unwritten):
            log.read(99)
    assert background_threads() == []
    for call in (lambda: log.append(b"late"), log.tail):
        with pytest.raises(errors.Closed):
            call()
    log.close()


def test_an_operators_calls(cluster: Path) -> None:
    with varlog.sync.admin(cluster) as admin:
        assert [node.snid for node in admin.nodes()] == [1, 2, 3]
        assert admin.node(1).snid == 1
        assert admin.add_topic("orders", streams=1).name == "orders"
        assert admin.add_stream("orders").lsid in {stream.lsid for stream in admin.streams("orders")}
        assert [topic.name for topic in admin.topics()] == ["log", "orders"]
        assert admin.metadata().manager
        admin.remove_topic("orders")
        with pytest.raises(errors.UnknownTopic):
            admin.streams("orders")
        with pytest.raises(errors.UnknownNode):
            admin.remove_node(99)
        with pytest.raises(errors.UnknownLogStream):
            admin.remove_stream(99)
        with pytest.raises(errors.VarlogError):
            admin.add_node("127.0.0.1:1")
    assert background_threads() == []


def test_an_operators_calls_about_what_is_there(cluster: Path) -> None:
    with varlog.sync.admin(cluster) as admin:
        assert admin.seal_stream(1).is_held
        assert not admin.unseal_stream(1).is_held
        assert admin.sync_stream(1, 2) == 100
        assert admin.drain_node(2).is_draining
        assert not admin.undrain_node(2).is_draining
        assert admin.move_replica(1).lsid == 1
        with pytest.raises(errors.UnknownNode):
            admin.replace_node(1, 99)
        with pytest.raises(errors.Conflict):
            admin.declare_lost(1, gone=[2])
        assert admin.diagnose().request
    assert background_threads() == []


def test_a_subscription_waits_for_what_another_thread_appends(cluster: Path) -> None:
    with varlog.sync.connect(cluster) as log, ThreadPoolExecutor() as pool, log.subscribe() as subscription:
        first = pool.submit(next, subscription)
        log.append(b"here")
        assert first.result(30).data == b"here"
        appends = [pool.submit(log.append, b"%d" % number) for number in range(50)]
        positions = sorted(append.result(30).glsn for append in appends)
        assert positions == list(range(2, 52))
        assert [next(subscription).glsn for _ in range(50)] == positions
        assert subscription.batches() is subscription.batches()


def test_threads_that_share_a_subscription_get_each_entry_once(cluster: Path) -> None:
    with varlog.sync.connect(cluster) as log, ThreadPoolExecutor() as pool, log.subscribe() as shared:
        for begin in range(1, 181, 6):
            readers = [pool.submit(lambda: [next(shared).glsn for _ in range(2)]) for _ in range(3)]
            for _ in range(3):
                log.append_batch([b"x"] * 2)
            read = [glsn for reader in readers for glsn in reader.result(30)]
            assert sorted(read) == list(range(begin, begin + 6))


def test_threads_that_share_a_scan_get_each_batch_once(cluster: Path) -> None:
    with varlog.sync.connect(cluster) as log, ThreadPoolExecutor() as pool:
        for _ in range(200):
            log.append(b"x")
        shared = log.scan()
        readers = [pool.submit(lambda: [batch.glsn for batch in shared]) for _ in range(3)]
        assert sorted(glsn for reader in readers for glsn in reader.result(30)) == list(range(1, 201))
        assert shared.position == 201


def test_clients_share_one_thread(cluster: Path) -> None:
    with varlog.sync.connect(cluster) as one, varlog.sync.connect(cluster) as other:
        assert background_threads() == ["varlog"]
        glsn = one.append(b"x").glsn
        assert other.read(glsn).data == b"x"
    assert background_threads() == []


def test_a_client_that_could_not_be_made_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(errors.BadConfig):
        varlog.sync.connect(tmp_path)
    assert background_threads() == []


@pytest.mark.parametrize("is_set_up", [False, True])
def test_an_application_hears_of_warnings_where_it_has_set_up_logging(cluster: Path, is_set_up: bool) -> None:
    program = (
        "import logging, sys, varlog.sync\n"
        f"if {is_set_up}: logging.basicConfig(format='%(levelname)s %(name)s %(message)s')\n"
        "try: varlog.sync.connect(sys.argv[1], cid=9)\n"
        "except varlog.errors.WrongCluster: print('refused')\n"
    )
    command = [sys.executable, "-c", program, str(cluster)]
    done = subprocess.run(command, capture_output=True, check=True, text=True, timeout=60)
    assert done.stdout == "refused\n"
    if is_set_up:
        assert done.stderr.startswith("WARNING varlog.wire.link no connection to ")
        assert done.stderr.count("\n") == 1
    else:
        assert done.stderr == ""


def fail_in_transaction(log: varlog.sync.Log) -> None:
    with log.transaction("job") as transaction:
        transaction.append(b"never seen")
        raise RuntimeError


def test_transactions(cluster: Path) -> None:
    with varlog.sync.connect(cluster) as log:
        with log.transaction("job", number=1) as transaction:
            assert (transaction.name, transaction.number) == ("job", 1)
            transaction.append(b"one")
            transaction.append_batch([b"two"])
            with transaction.appender() as appender:
                appender.append(b"three")
            assert [one.txid for one in log.transactions()] == [transaction.id]
            assert log.stable() == 0
            assert log.read(1, uncommitted=True).data == b"one"
            assert len([*log.subscribe(end=4, uncommitted=True)]) == 3
            assert sum(batch.count for batch in log.scan(1, 4, uncommitted=True)) == 3
        with pytest.raises(errors.AlreadyCommitted):
            log.begin("job", number=1)
        with pytest.raises(RuntimeError):
            fail_in_transaction(log)
        shared = [log.begin("job", number=2, token="shared") for _ in range(2)]
        shared[0].append(b"four")
        assert shared[1].commit([shared[0].finish()]).entries == 1
        shared[0] = log.begin("job")
        shared[0].abort("for a reason")
        abandoned = log.begin("job")
        fate = log.end_transaction(abandoned.id, "nobody wants it")
        assert fate is not None
        assert fate.verdict.reason == "nobody wants it"
        assert [one.number for one in log.transaction_names()] == [2]
        log.forget_transactions("job")
        found = [entry.data for batch in log.scan() for entry in batch]
        assert sorted(found[:3]) == [b"one", b"three", b"two"]
        assert found[3:] == [b"four"]


class Interrupting:
    """A future whose waiter is interrupted: before there is a result, or when it is there and was not fetched."""

    def __init__(self, future: Future[Any], late: bool) -> None:
        self._future = future
        self._late = late

    def result(self) -> Any:
        if self._late:
            self._future.result(30)
        raise KeyboardInterrupt

    def cancel(self) -> bool:
        return self._future.cancel()


def interrupt(monkeypatch: pytest.MonkeyPatch, iterator: Iterator[object], *, late: bool) -> None:
    """Press Ctrl-C in `next(iterator)`."""
    submit = asyncio.run_coroutine_threadsafe
    with monkeypatch.context() as patch:
        patch.setattr(asyncio, "run_coroutine_threadsafe", lambda work, loop: Interrupting(submit(work, loop), late))
        with pytest.raises(KeyboardInterrupt):
            next(iterator)


@pytest.mark.parametrize("late", [False, True])
def test_what_was_interrupted_goes_on_where_it_was(cluster: Path, monkeypatch: pytest.MonkeyPatch, late: bool) -> None:
    with varlog.sync.connect(cluster) as log:
        for _ in range(3):
            log.append_batch([b"one", b"two"])
        scan = log.scan()
        interrupt(monkeypatch, scan, late=late)
        assert [batch.glsn for batch in scan] == [1, 3, 5]
        with log.subscribe() as subscription:
            interrupt(monkeypatch, subscription, late=late)
            assert [entry.glsn for entry in islice(subscription, 6)] == [1, 2, 3, 4, 5, 6]
            if not late:  # it waits, and there is nothing yet
                interrupt(monkeypatch, subscription, late=False)
            log.append(b"seven")
            assert next(subscription).data == b"seven"


def test_who_is_closed_while_it_waits_is_told_so(cluster: Path) -> None:
    with varlog.sync.connect(cluster) as log, ThreadPoolExecutor() as pool:
        waiting = pool.submit(next, log.subscribe())
        log.close()
        with pytest.raises(errors.Closed):
            waiting.result(30)


def test_what_the_loop_gives_up_is_closed() -> None:
    """Work that is cancelled in the loop, and not by whoever waits for it."""

    async def give_up() -> None:
        raise asyncio.CancelledError

    use = background.acquire()
    try:
        with pytest.raises(errors.Closed):
            use.run(give_up)
    finally:
        use.release()


def test_who_releases_the_background_waits_for_nobody_elses_thread() -> None:
    """Another one acquires it just when the last one has let go of it, and keeps it."""
    background = Background()
    first = background.acquire()
    others: list[Use] = []

    async def acquire_when_it_is_stopped() -> None:
        loop = asyncio.get_running_loop()
        call_soon = loop.call_soon_threadsafe

        def stop(*call: Any) -> asyncio.Handle:
            loop.call_soon_threadsafe = call_soon  # type: ignore[method-assign]
            others.append(background.acquire())
            return call_soon(*call)

        loop.call_soon_threadsafe = stop  # type: ignore[method-assign,assignment]

    first.run(acquire_when_it_is_stopped)
    releasing = threading.Thread(target=first.release, daemon=True)
    releasing.start()
    releasing.join(30)
    waited_in_vain = releasing.is_alive()
    assert len(others) == 1
    others[0].release()
    assert not waited_in_vain
    assert background_threads() == []


def test_what_is_asked_for_while_the_background_ends_is_done_or_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last one lets go of it between the look whether it runs and the handing over of work."""
    use = Background().acquire()
    submit = asyncio.run_coroutine_threadsafe
    releasing = threading.Thread(target=use.release, daemon=True)

    def submit_late(work: Coroutine[Any, Any, None], loop: asyncio.AbstractEventLoop) -> Future[None]:
        releasing.start()
        releasing.join(0.5)  # it comes in between if anything can
        return submit(work, loop)

    async def nothing() -> None: ...

    monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", submit_late)
    with contextlib.suppress(errors.Closed):
        use.run(nothing)
    releasing.join(30)
    assert background_threads() == []


def forked(work: Callable[[], object]) -> bool:
    """Do it in a process that is forked; whether it went through."""
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        try:
            work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status) == 0


def test_a_process_that_is_forked_connects_anew(cluster: Path) -> None:
    """It has no thread to wait for; what its parent uses is refused, and goes on there."""

    def connect_anew() -> None:
        with pytest.raises(errors.InvalidArgument, match="forked"):
            log.append(b"nothing")
        with varlog.sync.connect(cluster) as mine:
            mine.append(b"child")
            with pytest.raises(errors.InvalidArgument, match="forked"):
                log.append(b"nothing")

    with varlog.sync.connect(cluster) as log:
        log.append(b"parent")
        assert forked(connect_anew)
        assert log.read(2).data == b"child"
        assert log.append(b"parent").glsn == 3


def test_a_process_that_is_forked_closes_what_its_parent_uses_and_connects(cluster: Path) -> None:
    def close_and_connect() -> None:
        log.close()
        admin.close()
        with varlog.sync.connect(cluster) as mine:
            mine.append(b"child")
        assert background_threads() == []

    with varlog.sync.connect(cluster) as log, varlog.sync.admin(cluster) as admin:
        assert forked(close_and_connect)
        assert log.read(1).data == b"child"
        assert admin.nodes()


def test_a_process_that_is_forked_connects_and_closes_what_its_parent_uses(cluster: Path) -> None:
    def connect_and_close() -> None:
        with varlog.sync.connect(cluster) as mine:
            log.close()
            mine.append(b"child")
            log.close()
            mine.append(b"child")
        assert background_threads() == []

    with varlog.sync.connect(cluster) as log:
        assert forked(connect_and_close)
        assert log.read(2).data == b"child"


def test_what_a_forked_process_has_of_its_parents_client_says_so(cluster: Path) -> None:
    """And does nothing in the parent, whether the child is connected itself or not."""

    def refused() -> None:
        calls: list[Callable[[], object]] = [log.tail, lambda: next(scan), lambda: next(subscription)]
        calls += [lambda: appender.append(b"no"), appender.flush, pending.result]
        calls += [lambda: transaction.append(b"no"), transaction.commit]
        for call in calls:
            with pytest.raises(errors.InvalidArgument, match="forked"):
                call()

    def use() -> None:
        refused()
        with varlog.sync.connect(cluster) as mine:
            refused()
            scan.close()
            subscription.close()
            mine.append(b"child")

    with varlog.sync.connect(cluster) as log:
        appender = log.appender()
        pending = appender.append(b"one")
        pending.result()
        transaction = log.begin("job")
        scan, subscription = log.scan(), log.subscribe()
        assert next(subscription).data == b"one"
        assert forked(use)
        transaction.append(b"two")
        transaction.commit()
        assert [entry.data for entry in islice(subscription, 2)] == [b"child", b"two"]
        assert [entry.data for batch in scan for entry in batch] == [b"one", b"child", b"two"]
