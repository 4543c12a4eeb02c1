"""`varlog secret`: the secret that the processes of a cluster know each other by."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from varlog.cli.options import JSON
from varlog.cli.output import Output
from varlog.wire.secret import Secret


def new_secret(file: Annotated[Path, Parameter(metavar="FILE")], /, *, json: JSON = False) -> None:
    """Make a secret file.

    Parameters
    ----------
    file
        Where to make it.
    """
    Secret.create(file)
    output = Output(json=json)
    output.record({"secret_file": str(file)})
    output.line(f"made {file}; give it to every process of the cluster with --secret-file {file}")
