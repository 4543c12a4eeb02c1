"""`varlog --install-completion`: commands and options are completed by the shell."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Final, Literal, get_args

from cyclopts import Parameter

from varlog.cli.output import Output
from varlog.errors import InvalidArgument

Shell = Literal["bash", "zsh", "fish"]

_NEXT: Final[dict[Shell, str]] = {
    "bash": "open a new shell, or run: source ~/.bashrc",
    "zsh": "open a new shell, or run: exec zsh",
    "fish": "it works from now on",
}

_STARTUP: Final = (".bashrc", ".zshrc", ".config/fish/config.fish")


def install(*, shell: Annotated[Shell | None, Parameter(show_default=False)] = None) -> None:
    """Install completion.

    Parameters
    ----------
    shell
        Which one; without it, the one that $SHELL names.
    """
    from varlog.cli import app  # noqa: PLC0415  # it names this module

    name = os.path.basename(os.environ.get("SHELL", ""))
    chosen = shell or next((known for known in get_args(Shell) if known == name), None)
    if chosen is None:
        raise InvalidArgument(f"cannot tell which shell this is; give --shell {'|'.join(get_args(Shell))}")
    before = _startup_files()
    path = app.install_completion(shell=chosen)
    changed = "".join(f" and changed {file}" for file, text in _startup_files().items() if text != before[file])
    Output(json=False).line(f"wrote {path}{changed}; {_NEXT[chosen]}")


def _startup_files() -> dict[Path, bytes]:
    """What shells read when they start, where the library may add a line."""
    files = [Path.home() / name for name in _STARTUP]
    return {file: file.read_bytes() if file.is_file() else b"" for file in files}
