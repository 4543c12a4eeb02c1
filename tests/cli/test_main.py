"""The command line: what holds for every command."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys

import pytest

from tests.cli.shell import COMMAND, Shell, ended
from varlog import __version__
from varlog.cli import app, manual, manual_cluster, manual_metadata
from varlog.cli.manual import Page

WIDTH = 80
PAGES = {
    name: page
    for name, page in (vars(manual) | vars(manual_cluster) | vars(manual_metadata)).items()
    if isinstance(page, Page)
}
FAMILIES = ("topic", "stream", "node")
COMMANDS = [
    *((name,) for name in ("append", "read", "tail", "subscribe", "trim", "dev", "bench", "demo", "sim")),
    *((name,) for name in ("status", "doctor", "verify")),
    *(("secret", verb) for verb in ("new", "show", "add", "promote", "retire")),
    *((family, verb) for family in FAMILIES for verb in ("add", "list", "describe", "remove")),
    *(("stream", verb) for verb in ("seal", "unseal", "sync", "move", "declare-lost")),
    *(("node", verb) for verb in ("drain", "undrain", "replace")),
    *(("metadata", verb) for verb in ("backup", "restore", "copy", "survey", "rebuild")),
]
CALL = re.compile(r"""\bvarlog ((?:'[^']*'|"[^"]*"|[^|>)#'"])+)""")


def test_it_is_a_program() -> None:
    done = subprocess.run([*COMMAND, "--version"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, __version__, "")


def test_the_list_of_commands_is_shown_without_loading_them() -> None:
    """Nor anything else that takes long: a person should not notice that it starts."""
    heavy = {"asyncio", "numpy", "pyarrow", "uvloop", "structlog", "varlog.client", "varlog.core", "varlog.wire"}
    program = f"import sys, varlog.cli; varlog.cli.main(['--help']); print({heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()"


def test_who_reads_no_more_of_the_help_has_seen_enough(bare: Shell) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with bare.spawn("--help", stdout=writer) as process:
        os.close(writer)
        assert ended(process) == (0, "")


def test_help_lists_every_command(bare: Shell) -> None:
    told = bare.run("--help").text
    assert "totally ordered" in told
    for command in (*(command[0] for command in COMMANDS), *FAMILIES, "--install-completion"):
        assert f" {command} " in told


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_teaches_a_command(bare: Shell, command: tuple[str, ...]) -> None:
    page = PAGES["_".join(command).upper().replace("-", "_")]
    told = " ".join(bare.run(*command, "--help").text.split())
    assert " ".join(page.about.split()) in told
    if command != ("demo",):
        assert " ".join(page.examples.split()) in told
        assert f"varlog {' '.join(command)}" in page.examples


@pytest.mark.parametrize("page", PAGES.values(), ids=PAGES)
def test_help_fits_on_a_terminal(page: Page) -> None:
    assert not [line for text in page for line in text.splitlines() if len(line) > WIDTH]


def test_examples_in_the_help_are_commands_that_exist() -> None:
    calls = [call for page in PAGES.values() for line in page.examples.splitlines() for call in examples_in(line)]
    assert len(calls) > 40
    for call in calls:
        app.parse_args(shlex.split(call), exit_on_error=False, print_error=False)


def examples_in(line: str) -> list[str]:
    """The calls of varlog that an indented line shows."""
    return CALL.findall(re.sub(r"\$\(\(.*\)\)", "17", line)) if line.startswith("    ") else []


@pytest.mark.parametrize(
    "arguments",
    [
        ("no-such-command",),
        ("topic", "no-such-command"),
        ("append", "--no-such-option"),
        ("read",),
        ("read", "0"),
        ("read", "x"),
        ("read", "1.5"),
        ("read", "0x10"),
        ("read", "1_0"),
        ("read", str(1 << 63)),
        ("trim", "3.5"),
        ("tail", "-n", "1.5"),
        ("stream", "seal", "1.6"),
        ("stream", "move", "1", "--to", "2.0"),
        ("topic", "add", "x", "--replicas", "1.5"),
        ("append", "--transaction", "x", "--number", "1.5", "x"),
        ("tail", "-n", "-1"),
        ("tail", "--format", "morse"),
        ("append", "--timeout", "0", "x"),
        ("node", "add"),
        ("stream", "describe", "0"),
        ("stream", "sync", "1"),
        ("stream", "move", "1", "--to", "0"),
        ("node", "replace", "1"),
        ("metadata", "backup", "store"),
        ("metadata", "survey", "volume"),
    ],
    ids=" ".join,
)
def test_wrong_usage_is_said_in_one_line(bare: Shell, arguments: tuple[str, ...]) -> None:
    code, out, err = bare.run(*arguments)
    assert (code, out) == (2, b"")
    assert re.fullmatch(r"varlog: Usage: .+ \(see varlog.* --help\)\n", err)


def test_wrong_usage_is_an_object_for_scripts(bare: Shell) -> None:
    failure = bare.run("read", "x", "--json").failure
    assert failure["error"] == "Usage"
    assert "GLSN" in failure["message"]


def test_what_follows_two_dashes_is_no_option(bare: Shell) -> None:
    assert bare.run("append", "--", "--json").err.startswith("varlog: BadConfig: ")
