"""The command lines of the daemons: flags are the config's keys, help teaches, mistakes are told in a line."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from varlog import __version__
from varlog.daemon import commands
from varlog.daemon.commands import VMR, VMS, VSN, VSQ
from varlog.daemon.config import load, options
from varlog.daemon.service import Exit

ROOT = Path(__file__).resolve().parent.parent.parent
PROGRAMS = {"vsn": VSN, "vmr": VMR, "vms": VMS, "vsq": VSQ}


def called(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    code = f"import sys; from varlog.daemon.commands import {program}; sys.exit({program}())"
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def given(program: str, *arguments: str) -> dict[str, Any]:
    """What the flags come to, by key."""
    return vars(commands.parser(PROGRAMS[program]).parse_args(["start", *arguments]))


def test_the_entry_points_are_installed_as_scripts() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    for program in PROGRAMS:
        assert scripts[program] == f"varlog.daemon.commands:{program}"
        assert callable(getattr(commands, program))


def test_B1_vsn_start_takes_cluster_id_node_id_and_volumes() -> None:
    flags = given("vsn", "--cluster", "2", "--snid", "3", "--volumes", "/a", "--volumes", "/b", "--secret-file", "/s")
    node = load(VSN.config, flags)
    assert node == VSN.config(cluster=2, snid=3, volumes=["/a", "/b"], secret_file="/s")  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("flag", "expected"),
    [
        (["--no-sync"], {"sync": False}),
        (["--sync"], {"sync": True}),
        (["--error-if-exists"], {"error_if_exists": True}),
        (["--listen", "[::1]:0"], {"listen": "[::1]:0"}),
        (["--http", "off"], {"http": "off"}),
        (["--ready-fd=3"], {"ready_fd": "3"}),
        (["--log-level", "debug", "--log-format", "json"], {"log_level": "debug", "log_format": "json"}),
        (["--config", "vsn.toml"], {"config": "vsn.toml"}),
        ([], {}),
    ],
)
def test_only_flags_that_were_given_count(flag: list[str], expected: dict[str, Any]) -> None:
    assert given("vsn", *flag) == expected


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_key_is_a_flag_and_help_tells_what_it_does(program: str) -> None:
    done = called(program, "start", "--help")
    told = " ".join(done.stdout.split())
    assert done.returncode == 0
    for option in options(PROGRAMS[program].config).values():
        assert option.flag in told
        assert option.description in told
    assert "examples:" in told
    assert "exit codes:" in told


def test_help_tells_numbers_from_texts() -> None:
    told = called("vmr", "start", "--help").stdout
    for placeholder in ("--cluster N", "--store URL", "--etcd-user TEXT", "--path DIR", "--listen HOST:PORT"):
        assert f"  {placeholder}" in told


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_help_lists_the_exit_codes_there_are(program: str) -> None:
    listed = re.findall(r"^  (\d)  ", called(program, "start", "--help").stdout, re.MULTILINE)
    assert [int(code) for code in listed] == list(Exit)


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_examples_of_the_help_are_accepted(program: str) -> None:
    examples = PROGRAMS[program].examples.replace("\\\n", " ")
    shown = re.findall(rf"^ +{program} start (.+)$", examples, re.MULTILINE)
    assert shown
    for arguments in shown:
        flags = given(program, *arguments.split())
        if "config" not in flags:
            load(PROGRAMS[program].config, flags)


def test_the_config_file_of_the_help_is_accepted(tmp_path: Path) -> None:
    _, _, shown = VSN.examples.partition("# /etc/varlog/vsn.toml")
    file = tmp_path / "vsn.toml"
    file.write_text("#" + "\n".join(line.strip() for line in shown.splitlines()))
    node = load(VSN.config, {}, str(file))
    assert node.secret_file == str(tmp_path / "secret")


@pytest.mark.parametrize("program", PROGRAMS)
def test_version(program: str) -> None:
    assert called(program, "--version").stdout == f"{program} {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "vsn: error: the following arguments are required: start"),
        (["stop"], "invalid choice: 'stop'"),
        (["start", "--frobnicate"], "unrecognized arguments: --frobnicate"),
        (["start", "--vol", "/v"], "unrecognized arguments: --vol /v"),
        (["start", "--cluster"], "--cluster: expected one argument"),
        (["start"], "vsn: --secret-file is missing: "),
        (["start", "--cluster", "x"], "vsn: --cluster is 'x': Expected int, got str; accepted is a whole number"),
        (["start", "--config", "/no/such.toml"], "vsn: /no/such.toml: the config file cannot be read: No such file"),
    ],
)
def test_a_mistake_is_told_and_ends_with_2(arguments: list[str], told: str) -> None:
    done = called("vsn", *arguments)
    assert done.returncode == Exit.USAGE
    assert told in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("arguments", [["--secret", "deadbeef"], ["--secret=deadbeef"]])
def test_a_secret_on_the_command_line_is_refused_and_not_repeated(arguments: list[str]) -> None:
    done = called("vsn", "start", *arguments)
    assert done.returncode == Exit.USAGE
    assert "use --secret-file FILE" in done.stderr
    assert "deadbeef" not in done.stdout + done.stderr


def test_no_option_is_taken_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SECRET", "VARLOG_SECRET", "VARLOG_CLUSTER", "CLUSTER"):
        monkeypatch.setenv(name, "7")
    done = called("vms", "start")
    assert done.returncode == Exit.USAGE
    assert "--secret-file is missing" in done.stderr
    assert load(VMS.config, {"secret_file": "/s"}).cluster == 1


def test_what_a_daemon_does_not_need_is_not_imported_for_it() -> None:
    """Every start pays for every import, and a storage node should serve again at once."""
    code = (
        "import sys; from varlog.daemon import commands, http, logs, metrics, service;"
        "print(*({'cyclopts', 'rich', 'prometheus_client', 'pyarrow', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "\n"
