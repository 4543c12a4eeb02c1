"""`varlog --install-completion`, in a home directory of the test's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.shell import Shell

SCRIPTS = {
    "bash": ".local/share/bash-completion/completions/varlog",
    "zsh": ".zsh/completions/_cyclopts_varlog",
    "fish": ".config/fish/completions/varlog.fish",
}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("ZSH", "ZSH_CUSTOM", "SHELL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("shell", SCRIPTS)
def test_a_script_is_installed_that_knows_commands_and_options(bare: Shell, home: Path, shell: str) -> None:
    told = bare.run("--install-completion", "--shell", shell).text
    script = home / SCRIPTS[shell]
    assert str(script) in told
    written = [str(path) for path in home.rglob("*") if path.is_file()]
    assert all(path in told for path in written)
    assert all(word in script.read_text() for word in ("subscribe", "describe", "topic", "--cluster"))


def test_the_shell_is_the_users_own(bare: Shell, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, _, err = bare.run("--install-completion")
    assert code == 2
    assert "--shell bash|zsh|fish" in err
    monkeypatch.setenv("SHELL", "/usr/bin/fish")
    assert bare.run("--install-completion").code == 0
    assert (home / SCRIPTS["fish"]).exists()
