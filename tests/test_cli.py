"""The command line: what holds for every command."""

from __future__ import annotations

import subprocess
import sys

from varlog import __version__


def varlog(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "varlog", *arguments], capture_output=True, text=True, check=False)


def test_version_is_the_package_version() -> None:
    done = varlog("--version")
    assert (done.returncode, done.stdout.strip()) == (0, __version__)


def test_help_says_what_varlog_is() -> None:
    done = varlog("--help")
    assert done.returncode == 0
    assert "totally ordered" in done.stdout


def test_help_says_what_each_command_does() -> None:
    listed = varlog("--help").stdout
    for command, summary in (("demo", "Watch a cluster of real processes"), ("sim", "Run simulated clusters")):
        assert f" {command} " in listed
        assert summary in listed
        told = varlog(command, "--help").stdout
        assert summary in told
        assert "Exit code 0" in told


def test_an_unknown_command_fails() -> None:
    done = varlog("no-such-command")
    assert done.returncode != 0
    assert "no-such-command" in done.stdout + done.stderr
