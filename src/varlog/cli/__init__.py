"""The command `varlog`.

Each command is named here by its import path only, so that starting the program costs no more than the command that
runs; what `--help` says of each is in `varlog.cli.manual`. How a command ends is decided here for all of them, see
`varlog.cli.failures`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Final

from cyclopts import App, CycloptsError, Group

from varlog import __version__
from varlog.cli import manual, manual_cluster, manual_metadata, manual_pipeline, manual_sequencer, manual_txn
from varlog.cli.failures import Exit, NotConnected, tell, tell_usage
from varlog.cli.manual import Page
from varlog.cli.output import discard_stdout
from varlog.errors import VarlogError

_LOG: Final = Group("The log", sort_key=1)
_CLUSTER: Final = Group("The cluster", sort_key=2)
_TRIAL: Final = Group("Trying it out", sort_key=3)
_OPTIONS: Final = Group("Options", sort_key=4)

_COMMANDS: Final[tuple[tuple[Group, str, str, Page], ...]] = (
    (_LOG, "append", "varlog.cli.append:append", manual.APPEND),
    (_LOG, "read", "varlog.cli.read:read", manual.READ),
    (_LOG, "tail", "varlog.cli.read:tail", manual.TAIL),
    (_LOG, "subscribe", "varlog.cli.read:subscribe", manual.SUBSCRIBE),
    (_LOG, "sql", "varlog.cli.sql:sql", manual.SQL),
    (_LOG, "trim", "varlog.cli.trim:trim", manual.TRIM),
    (_CLUSTER, "dev", "varlog.cli.dev:dev", manual.DEV),
    (_CLUSTER, "status", "varlog.cli.status:status", manual.STATUS),
    (_CLUSTER, "doctor", "varlog.cli.doctor:doctor", manual.DOCTOR),
    (_CLUSTER, "verify", "varlog.cli.verify:verify", manual.VERIFY),
    (_TRIAL, "bench", "varlog.cli.bench:bench", manual.BENCH),
    (_TRIAL, "demo", "varlog.demo.command:run_demo", manual.DEMO),
    (_TRIAL, "sim", "varlog.sim.command:run_sim", manual.SIM),
    (_OPTIONS, "--install-completion", "varlog.cli.completion:install", manual.COMPLETION),
)

_FAMILIES: Final[dict[str, tuple[Page, dict[str, Page]]]] = {
    "topic": (
        manual_cluster.TOPIC,
        {
            "add": manual_cluster.TOPIC_ADD,
            "list": manual_cluster.TOPIC_LIST,
            "describe": manual_cluster.TOPIC_DESCRIBE,
            "attach-archive": manual_cluster.TOPIC_ATTACH_ARCHIVE,
            "detach-archive": manual_cluster.TOPIC_DETACH_ARCHIVE,
            "remove": manual_cluster.TOPIC_REMOVE,
        },
    ),
    "stream": (
        manual_cluster.STREAM,
        {
            "add": manual_cluster.STREAM_ADD,
            "list": manual_cluster.STREAM_LIST,
            "describe": manual_cluster.STREAM_DESCRIBE,
            "seal": manual_cluster.STREAM_SEAL,
            "unseal": manual_cluster.STREAM_UNSEAL,
            "sync": manual_cluster.STREAM_SYNC,
            "move": manual_cluster.STREAM_MOVE,
            "declare-lost": manual_cluster.STREAM_DECLARE_LOST,
            "remove": manual_cluster.STREAM_REMOVE,
        },
    ),
    "node": (
        manual_cluster.NODE,
        {
            "add": manual_cluster.NODE_ADD,
            "list": manual_cluster.NODE_LIST,
            "describe": manual_cluster.NODE_DESCRIBE,
            "drain": manual_cluster.NODE_DRAIN,
            "undrain": manual_cluster.NODE_UNDRAIN,
            "replace": manual_cluster.NODE_REPLACE,
            "scrub": manual_cluster.NODE_SCRUB,
            "remove": manual_cluster.NODE_REMOVE,
        },
    ),
    "sequencer": (
        manual_sequencer.SEQUENCER,
        {
            "list": manual_sequencer.LIST,
            "peek": manual_sequencer.PEEK,
            "fill": manual_sequencer.FILL,
            "seal": manual_sequencer.SEAL,
        },
    ),
    "txn": (
        manual_txn.TXN,
        {
            "list": manual_txn.LIST,
            "abort": manual_txn.ABORT,
            "forget": manual_txn.FORGET,
        },
    ),
    "pipeline": (
        manual_pipeline.PIPELINE,
        {
            "archive": manual_pipeline.ARCHIVE,
            "restore": manual_pipeline.RESTORE,
            "audit": manual_pipeline.AUDIT,
            "materialize": manual_pipeline.MATERIALIZE,
        },
    ),
    "metadata": (
        manual_metadata.METADATA,
        {
            "backup": manual_metadata.METADATA_BACKUP,
            "restore": manual_metadata.METADATA_RESTORE,
            "copy": manual_metadata.METADATA_COPY,
            "survey": manual_metadata.METADATA_SURVEY,
            "rebuild": manual_metadata.METADATA_REBUILD,
        },
    ),
    "secret": (
        manual.SECRET,
        {
            "new": manual.SECRET_NEW,
            "show": manual.SECRET_SHOW,
            "add": manual.SECRET_ADD,
            "promote": manual.SECRET_PROMOTE,
            "retire": manual.SECRET_RETIRE,
        },
    ),
}
"""Commands of two words: `varlog topic add` is `varlog.cli.topic.add_topic`, a dash is an underscore."""


def _application() -> App:
    top = App(
        name="varlog",
        help=manual.TOP.about,
        help_epilogue=manual.TOP.examples,
        help_format="plaintext",
        version=__version__,
        suppress_keyboard_interrupt=False,
        result_action="return_value",
    )
    for flag in ("--help", "--version"):
        top[flag].group = _OPTIONS
    for group, name, path, page in _COMMANDS:
        top.command(path, name=name, group=group, help=page.about, help_epilogue=page.examples)
    for name, (page, commands) in _FAMILIES.items():
        family = App(name=name, group=_CLUSTER, help=page.about, help_epilogue=page.examples)
        for verb, subpage in commands.items():
            path = f"varlog.cli.{name}:{verb.replace('-', '_')}_{name}"
            family.command(path, name=verb, help=subpage.about, help_epilogue=subpage.examples)
        top.command(family)
    return top


app: Final = _application()


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of the `varlog` script; returns the exit code."""
    _open_streams()
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = given[: given.index("--")] if "--" in given else given
    json = "--json" in options
    try:
        code = app(given, exit_on_error=False, print_error=False)
    except CycloptsError as error:
        return tell_usage(error, json=json)
    except BrokenPipeError:
        discard_stdout()
        return Exit.OK
    except SystemExit:  # what prints the help says so that nobody reads it any more
        return Exit.OK
    except (VarlogError, OSError, NotConnected) as error:
        return tell(error, command=given[0] if given else "", json=json)
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    return int(code or 0)


def _open_streams() -> None:
    """Whoever starts us may have closed some of the standard streams; then they lead nowhere."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115  # until the process ends
