"""How commands end that do not end well: exit codes, and one line that says what happened and what to do.

| code | meaning                                                                                   |
|------|-------------------------------------------------------------------------------------------|
| 0    | done                                                                                      |
| 1    | the cluster could not or would not do it, or something was violated                       |
| 2    | the command line, the cluster file, secret or certificate is not right; nothing was tried |
| 3    | the cluster cannot be reached, or does not let us in; nothing was tried                   |
| 4    | what was looked at is not as it should be (`doctor`, `verify`)                            |
| 5    | nothing wrong was found, but not everything could be looked at (`verify`)                 |
| 130  | interrupted                                                                               |

With `--json` the line is an object: `error` (the name of the error), `code` (its number, 0 if it has none), `message`,
`happened` (of an append or a change: false if it did not happen and never will, null if it may have), `retriable`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import TYPE_CHECKING, Final

import msgspec

from varlog import errors

if TYPE_CHECKING:
    from cyclopts import CycloptsError


class Exit(IntEnum):
    """See the module's text."""

    OK = 0
    FAILED = 1
    USAGE = 2
    UNREACHABLE = 3
    NOT_WELL = 4
    INCOMPLETE = 5
    INTERRUPTED = 130


_USAGE: Final = (
    errors.BadConfig,
    errors.BadQuery,
    errors.InvalidArgument,
    errors.SecretUnusable,
    errors.TlsUnusable,
)
_UNREACHED: Final = (
    errors.Unreachable,
    errors.ConnectionLost,
    errors.PeerStalled,
    errors.WrongCluster,
    errors.WrongSecret,
    errors.WrongRole,
    errors.UnsupportedProtocol,
    errors.WrongCertificate,
    errors.TlsMismatch,
)


class NotConnected(Exception):
    """A command could not connect to its cluster. The same error later on is the cluster's own trouble, with one of its
    nodes for example, and another exit code."""

    def __init__(self, why: errors.VarlogError) -> None:
        super().__init__(str(why))
        self.why = why


@contextmanager
def connecting() -> Iterator[None]:
    """Around what connects to a cluster."""
    try:
        yield
    except _UNREACHED as error:
        raise NotConnected(error) from error


_ADVICE: Final[tuple[tuple[type[errors.VarlogError], str], ...]] = (
    (errors.WrongSecret, "give the cluster's own with --secret-file FILE"),
    (errors.WrongCluster, "give its id with --cid"),
    (errors.TlsMismatch, "give --tls-cert, --tls-key and --tls-ca if the cluster uses TLS, and none of them if not"),
    (errors.Trimmed, "read from there on"),
    (errors.Unwritten, "varlog tail -f waits for what comes"),
    (errors.UnknownTopic, "see varlog topic list, or make it with varlog topic add"),
    (errors.UnknownLogStream, "see varlog stream list"),
    (errors.UnknownNode, "see varlog node list"),
    (errors.DeadlineExceeded, "see varlog status; --timeout gives it longer"),
)
"""What a person at a command line can do next, where the message does not say it already."""
_LISTED: Final = ("topic", "stream", "node", "sequencer", "txn")
"""Commands whose doings their own list shows."""


class Failure(msgspec.Struct):
    """An error as JSON."""

    error: str
    code: int
    message: str
    happened: bool | None = False
    retriable: bool = False


def describe(error: errors.VarlogError | OSError, command: str = "") -> Failure:
    """What is told of an error of a command, which is named by its first word."""
    name, message = type(error).__name__, " ".join(str(error).split())
    if isinstance(error, errors.VarlogError):
        advice = _advice(error, command)
        told = f"{message}; {advice}" if advice and advice not in message else message
        return Failure(name, error.code, told, error.happened, error.retriable)
    where = f"{error.filename}: " if error.filename is not None else ""
    return Failure(name, 0, f"{where}{error.strerror or message}", happened=None)  # it may have been done before that


def _advice(error: errors.VarlogError, command: str) -> str:
    if not isinstance(error, errors.Unknown):
        return next((text for kind, text in _ADVICE if isinstance(error, kind)), "")
    if command == "append":
        return "look with varlog tail before sending it again"
    return f"look with varlog {f'{command} list' if command in _LISTED else 'status'} before asking for it again"


def tell(error: errors.VarlogError | OSError | NotConnected, *, command: str, json: bool) -> Exit:
    """Say on standard error why the command ends, and with what code."""
    reason = error.why if isinstance(error, NotConnected) else error
    _say(describe(reason, command), json=json)
    if isinstance(error, NotConnected):
        return Exit.UNREACHABLE
    return Exit.USAGE if isinstance(error, _USAGE) else Exit.FAILED


def tell_usage(error: CycloptsError, *, json: bool) -> Exit:
    """The same of a command line that cannot be understood."""
    command = " ".join(["varlog", *(error.command_chain or ())])
    message = " ".join(str(error).split())
    _say(Failure("Usage", 0, f"{message} (see {command} --help)"), json=json)
    return Exit.USAGE


def _say(failure: Failure, *, json: bool) -> None:
    if json:
        line = msgspec.json.encode(failure).decode()
    else:
        line = f"varlog: {failure.error}: {failure.message}"
    sys.stderr.write(line + "\n")
