"""`varlog secret`: the secret that the processes of a cluster know each other by, and replacing it while they run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from varlog.cli.options import JSON
from varlog.cli.output import Output
from varlog.wire.secret import Secret, add, promote, retire

File = Annotated[Path, Parameter(metavar="FILE")]
_EVERYWHERE = "give the file to every machine"


def new_secret(file: File, /, *, json: JSON = False) -> None:
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


def show_secret(file: File, /, *, json: JSON = False) -> None:
    """Tell the fingerprints of the secrets in a file.

    Parameters
    ----------
    file
        The secret file.
    """
    _tell(Secret.load(file), file, "", json=json)


def add_secret(file: File, /, *, json: JSON = False) -> None:
    """Add a new secret to a file.

    Parameters
    ----------
    file
        The secret file.
    """
    _tell(add(file), file, f"{_EVERYWHERE}; when all have it: varlog secret promote {file}", json=json)


def promote_secret(file: File, /, *, json: JSON = False) -> None:
    """Prove with the newest secret of a file.

    Parameters
    ----------
    file
        The secret file.
    """
    _tell(promote(file), file, f"{_EVERYWHERE}; when all have it: varlog secret retire {file}", json=json)


def retire_secret(file: File, /, *, json: JSON = False) -> None:
    """Remove all secrets of a file but the one to prove with.

    Parameters
    ----------
    file
        The secret file.
    """
    _tell(retire(file), file, _EVERYWHERE, json=json)


def _tell(secret: Secret, file: Path, todo: str, *, json: bool) -> None:
    first, *others = secret.fingerprints()
    output = Output(json=json)
    output.record({"secret_file": str(file), "proves": first, "believes": [first, *others]})
    also = f", and believes {' and '.join(others)}" if others else ""
    output.line(f"{file} proves by {first}{also}")
    if todo:
        output.line(todo)
