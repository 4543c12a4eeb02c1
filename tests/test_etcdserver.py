"""An etcd of one's own: which program is run, and how its members begin and end."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.metarepo.etcds import commit, opened, value_of
from varlog.core.store import Committed, KeyValue
from varlog.errors import EtcdNotFound
from varlog.etcdserver import EtcdCluster, EtcdFailed, choose, find
from varlog.metarepo.etcd.versions import is_sound


def program(path: Path, version: str) -> str:
    """Something that says it is an etcd."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho 'etcd Version: {version}'\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("version", "sound"),
    [
        ("2.9.9", False),
        ("3.3.25", False),
        ("3.4.21", False),
        ("3.4.22", True),
        ("3.5.0", False),
        ("3.5.5", False),
        ("3.5.6", True),
        ("3.5.21", True),
        ("3.6.0-rc.1", True),
        ("of old", False),
    ],
)
def test_which_versions_may_be_trusted(version: str, sound: bool) -> None:
    assert is_sound(version) is sound


def test_the_first_sound_etcd_is_taken_and_the_one_of_the_wheel_only_if_there_is_none(tmp_path: Path) -> None:
    old = program(tmp_path / "old one" / "etcd", "3.3.25")
    sound = program(tmp_path / "a" / "etcd", "3.4.30")
    later = program(tmp_path / "b" / "etcd", "3.5.9")
    wheel = program(tmp_path / "wheel" / "etcd", "3.5.1")
    missing = str(tmp_path / "none")
    assert choose([missing, old, sound, later], wheel).path == sound
    assert choose([missing, old], wheel).path == wheel
    assert not choose([missing, old], wheel).is_sound


def test_a_machine_without_any_says_what_to_do(tmp_path: Path) -> None:
    old = program(tmp_path / "etcd", "3.3.25")
    with pytest.raises(EtcdNotFound, match="-m varlog"):
        choose([old, str(tmp_path / "none")], None)
    with pytest.raises(EtcdNotFound):
        choose([], str(tmp_path / "none"))


def test_the_set_up_needs_no_network_once_it_has_brought_one() -> None:
    """Whatever the machine has: it has been found for the tests already."""
    offline = {"PATH": os.environ["PATH"], "http_proxy": "http://127.0.0.1:9", "HOME": os.environ.get("HOME", "/")}
    done = subprocess.run(
        [sys.executable, "-m", "varlog.etcdserver"], capture_output=True, env=offline, timeout=60, check=True, text=True
    )
    assert done.stdout.startswith(f"etcd {find().version} at {find().path}")


def test_a_member_that_does_not_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(EtcdFailed, match="no-such-flag"):
        asyncio.run(EtcdCluster(tmp_path, members=1, flags=["--no-such-flag"]).start())


def test_what_was_left_in_a_directory_is_started_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with EtcdCluster(tmp_path / "an etcd") as etcd, opened(etcd, prefix="kept") as store:
            assert isinstance(await commit(store, "a", b"1"), Committed)
        url = etcd.url("kept")
        async with EtcdCluster(tmp_path / "an etcd") as again, opened(again, prefix="kept") as store:
            assert again.url("kept") == url
            assert (await value_of(store, "a") or KeyValue("", b"", 0)).value == b"1"
            with pytest.raises(EtcdFailed, match="somebody else has"):
                EtcdCluster(tmp_path / "an etcd")

    asyncio.run(scenario())


def test_members_end_with_whoever_started_them(tmp_path: Path) -> None:
    script = (
        "import asyncio, sys; from varlog.etcdserver import EtcdCluster\n"
        "etcd = EtcdCluster(sys.argv[1], members=1); asyncio.run(etcd.start())\n"
        "print(etcd.members[0].pid, flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as starter:
        assert starter.stdout is not None
        member = os.pidfd_open(int(starter.stdout.readline()))
        starter.send_signal(signal.SIGKILL)
    try:
        asyncio.run(readable(member))
    finally:
        os.close(member)


async def readable(descriptor: int) -> None:
    """A process that has ended makes its descriptor readable."""
    ended = asyncio.Event()
    asyncio.get_running_loop().add_reader(descriptor, ended.set)
    await asyncio.wait_for(ended.wait(), 10)
