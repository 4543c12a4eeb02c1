"""`varlog --install-completion`: commands and options are completed by the shell."""

from __future__ import annotations

import os
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
    path = app.install_completion(shell=chosen)
    Output(json=False).line(f"wrote {path}; {_NEXT[chosen]}")
