"""The life of a daemon, on real processes: signals, exit codes, what it says when it is ready and when it ends."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from varlog import errors, limits
from varlog.daemon.service import Exit, exit_code

ROOT = Path(__file__).resolve().parent.parent.parent


class Running:
    """A tiny daemon, and its two outputs."""

    def __init__(
        self, *arguments: str, fds: tuple[int, ...] = (), files: int | None = None, **environment: str
    ) -> None:
        command = [sys.executable, "-m", "tests.daemon.tiny", *arguments]
        if files is not None:
            command = ["sh", "-c", 'ulimit -S -n "$0" && exec "$@"', str(files), *command]
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=ROOT,
            pass_fds=fds,
            env={**os.environ, **environment},
            text=True,
        )

    def told(self, event: str) -> dict[str, Any]:
        """The next log line of that event; whatever comes before it is skipped."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            said: dict[str, Any] = json.loads(line)
            if said["event"] == event:
                return said
        raise AssertionError(f"ended without saying {event!r}")

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self) -> tuple[int, str, list[dict[str, Any]]]:
        """Exit code, output and remaining log, once it has ended by itself."""
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        log = [json.loads(line) for line in self.process.stderr]  # what `told` has read ahead is in its buffer
        output = self.process.stdout.read()
        return self.process.wait(timeout=30), output, log


@contextmanager
def running(
    *arguments: str, fds: tuple[int, ...] = (), files: int | None = None, **environment: str
) -> Iterator[Running]:
    daemon = Running(*arguments, fds=fds, files=files, **environment)
    try:
        yield daemon
    finally:
        if daemon.process.poll() is None:
            daemon.process.kill()
        daemon.process.communicate()


@contextmanager
def handled(number: signal.Signals, how: signal.Handlers) -> Iterator[None]:
    """A child inherits whether a signal is ignored."""
    before = signal.signal(number, how)
    try:
        yield
    finally:
        signal.signal(number, before)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_lets_it_close_and_end_well(number: signal.Signals) -> None:
    with handled(signal.SIGHUP, signal.SIG_DFL), running("obey") as daemon:
        daemon.told("ready")
        daemon.signal(number)
        code, output, log = daemon.end()
    assert (code, output) == (0, "closed\n")
    assert [line["event"] for line in log] == ["stopping", "stopped"]
    assert log[0]["reason"] == number.name


def test_under_nohup_it_outlives_its_terminal() -> None:
    with handled(signal.SIGHUP, signal.SIG_IGN), running("obey") as daemon:
        daemon.told("ready")
        daemon.signal(signal.SIGHUP)
        daemon.signal(signal.SIGTERM)
        code, _, log = daemon.end()
    assert (code, log[0]["reason"]) == (0, "SIGTERM")


@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_it_at_once(first: signal.Signals, second: signal.Signals) -> None:
    with running("linger") as daemon:
        daemon.told("ready")
        daemon.signal(first)
        daemon.told("stopping")
        daemon.signal(second)
        code, _, _ = daemon.end()
    assert code == -second


def test_a_second_signal_also_ends_one_whose_loop_is_stuck() -> None:
    with running("hang") as daemon:
        daemon.told("ready")
        daemon.signal(signal.SIGTERM)
        assert daemon.process.stdout is not None
        assert daemon.process.stdout.readline() == "hangs\n"
        daemon.signal(signal.SIGTERM)
        code, _, _ = daemon.end()
    assert code == -signal.SIGTERM


@pytest.mark.parametrize(
    ("what", "code", "told"),
    [
        ("bad-config", Exit.USAGE, "BadConfig: cluster is 0"),
        ("not-writable", Exit.ENVIRONMENT, "NotWritable: /volume is not a directory"),
        ("port-taken", Exit.ENVIRONMENT, "CannotListen: 127.0.0.1:1 is taken"),
        ("permission", Exit.ENVIRONMENT, "PermissionError: [Errno 13] Permission denied: '/volume'"),
        ("inconsistent", Exit.PROTECTED, "ConsistencyViolation: two answers"),
        ("wrong-identity", Exit.PROTECTED, "WrongIdentity: another node's volumes"),
        ("poisoned", Exit.PROTECTED, "Poisoned: fsync failed"),
        ("journal", Exit.PROTECTED, "JournalCorrupt: a frame is damaged in journal at offset 64"),
        ("group", Exit.PROTECTED, "Poisoned: p"),
    ],
)
def test_a_known_error_is_one_line_and_an_exit_code(what: str, code: Exit, told: str) -> None:
    with running(f"main:{what}") as daemon:
        ended, _, log = daemon.end()
    (line,) = log
    assert (ended, line["exit_code"]) == (code, code)
    assert line["error"].startswith(told)
    assert line["level"] == "critical"
    assert "exception" not in line


def test_a_mistake_is_told_with_its_traceback() -> None:
    with running("main:mistake") as daemon:
        code, _, (line,) = daemon.end()
    assert code == Exit.UNEXPECTED
    assert line["error"] == "KeyError: 'no such thing'"
    assert "in main\n" in line["exception"]


@pytest.mark.parametrize("where", ["callback", "thread"])
@pytest.mark.parametrize(("what", "code"), [("mistake", Exit.UNEXPECTED), ("inconsistent", Exit.PROTECTED)])
def test_a_daemon_does_not_go_on_after_what_nobody_caught(where: str, what: str, code: Exit) -> None:
    with running(f"{where}:{what}") as daemon:
        line = daemon.told("ended")
        ended, _, _ = daemon.end()
    assert (ended, line["exit_code"]) == (code, code)


@pytest.mark.parametrize(("what", "named"), [("permission", "PermissionError"), ("port-taken", "CannotListen")])
def test_an_error_of_one_connection_is_told_and_the_daemon_goes_on(what: str, named: str) -> None:
    with running(f"callback-obey:{what}") as daemon:
        assert daemon.told("stray error")["error"].startswith(f"{named}: ")
        daemon.signal(signal.SIGTERM)
        code, output, _ = daemon.end()
    assert (code, output) == (0, "closed\n")


def test_one_that_failed_ends_even_if_it_cannot_close() -> None:
    with running("resist") as daemon:
        daemon.told("closing takes too long")
        code, _, (line,) = daemon.end()
    assert (code, line["error"]) == (Exit.PROTECTED, "Poisoned: fsync failed")


def test_one_that_ends_by_itself_has_ended_well() -> None:
    with running("start-only") as daemon:
        code, _, log = daemon.end()
    assert (code, [line["event"] for line in log]) == (0, ["stopped"])


def test_its_addresses_are_written_to_the_descriptor_it_was_given() -> None:
    reader, writer = os.pipe()
    with running("obey", f"ready_fd={writer}", fds=(writer,)) as daemon, open(reader) as lines:
        os.close(writer)
        address, http = lines.read().splitlines()
        assert address == "127.0.0.1:1"
        with urllib.request.urlopen(f"http://{http}/healthz", timeout=10) as reply:
            assert json.load(reply) == {"status": "ok", "role": "vms", "details": {"things": 42}}
        with urllib.request.urlopen(f"http://{http}/metrics", timeout=10) as reply:
            assert b"\nvarlog_tiny_things_total 42.0\n" in reply.read()
        said = daemon.told("ready")
    assert (said["address"], said["http"]) == (address, http)


def test_without_a_page_only_the_address_is_written() -> None:
    reader, writer = os.pipe()
    with running("obey", f"ready_fd={writer}", "http=off", fds=(writer,)), open(reader) as lines:
        os.close(writer)
        assert lines.read() == "127.0.0.1:1\n"


def test_nobody_at_the_other_end_of_the_descriptor_does_not_matter() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with running("obey", f"ready_fd={writer}", fds=(writer,)) as daemon:
        os.close(writer)
        daemon.told("whoever waits for it to be ready could not be told")
        daemon.signal(signal.SIGTERM)
        code, _, _ = daemon.end()
    assert code == 0


def test_a_descriptor_that_is_not_open_is_refused_before_anything_starts() -> None:
    with running("obey", "ready_fd=77") as daemon:
        code, _, (line,) = daemon.end()
    assert code == Exit.USAGE
    assert line["error"].startswith("BadConfig: --ready-fd is 77: it is not open")


def test_a_port_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with running("obey", f"http=127.0.0.1:{port}") as daemon:
            code, _, (line,) = daemon.end()
    assert code == Exit.ENVIRONMENT
    assert line["error"].startswith("CannotListen: ")
    assert f"127.0.0.1:{port}" in line["error"]


@pytest.mark.parametrize("abstract", [False, True])
def test_the_supervisor_is_notified(tmp_path: Path, abstract: bool) -> None:
    name = f"@varlog-test-{os.getpid()}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notified:
        notified.bind("\0" + name[1:] if abstract else name)
        notified.settimeout(30)
        with running("obey", NOTIFY_SOCKET=name) as daemon:
            assert notified.recv(100) == b"READY=1"
            daemon.signal(signal.SIGTERM)
            assert notified.recv(100) == b"STOPPING=1"
            code, _, _ = daemon.end()
    assert code == 0


def test_a_supervisor_that_is_gone_does_not_matter(tmp_path: Path) -> None:
    with running("obey", NOTIFY_SOCKET=str(tmp_path / "nobody")) as daemon:
        daemon.told("the supervisor could not be told")
        daemon.signal(signal.SIGTERM)
        code, _, _ = daemon.end()
    assert code == 0


def test_the_garbage_collector_leaves_what_the_start_made_alone() -> None:
    with running("settle") as daemon:
        code, output, _ = daemon.end()
    assert (code, output) == (0, "True 50000 0.0005\n")


def test_it_asks_for_all_the_descriptors_it_may_have() -> None:
    with running("obey", files=64) as daemon:
        daemon.told("ready")
        allowed, hard = resource.prlimit(daemon.process.pid, resource.RLIMIT_NOFILE)
    assert allowed == (limits.DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, limits.DESCRIPTORS))


def test_every_exit_code_is_reached_by_an_error() -> None:
    reached = {exit_code(kind("x")) for kind in (errors.BadConfig, errors.NotWritable, errors.Poisoned, KeyError)}
    assert reached == set(Exit) - {Exit.OK}
