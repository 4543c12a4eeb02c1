"""The command lines of the daemons: `vsn start`, `vmr start`, `vms start`, `vsq start`.

Flags are made from the config structs, so that a flag and a key of the config file are one thing with one text. They
are read with argparse, not with the library behind `varlog`: that one takes 40 ms to import, which a person does not
notice but a restarting storage node should not spend.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, get_args

import msgspec

from varlog import __version__
from varlog.daemon import config as configs
from varlog.daemon.config import DaemonConfig, Kind, Option
from varlog.errors import BadConfig

CODES: Final = """\
exit codes:
  0  it was asked to stop (SIGTERM, SIGINT, SIGHUP), and has
  1  unexpected: the log has a traceback; restart it
  2  a flag or the config file is wrong
  3  a volume, port, permission or peer is not as it should be
  4  stopped to protect data; look before restarting it
"""


class _Daemon(NamedTuple):
    """What the command line of a daemon says and does."""

    config: type[DaemonConfig]
    main: Callable[[Any], int]
    what: str
    about: str
    examples: str


def _storage_node(config: configs.StorageNodeConfig) -> int:
    from varlog.storagenode.daemon import main  # noqa: PLC0415  # help and mistakes need not pay for it

    return main(config)


def _metadata_repository(config: configs.MetadataRepositoryConfig) -> int:
    from varlog.metarepo.daemon import main  # noqa: PLC0415

    return main(config)


def _manager(config: configs.ManagerConfig) -> int:
    from varlog.manager.daemon import main  # noqa: PLC0415

    return main(config)


def _sequencer(config: configs.SequencerConfig) -> int:
    from varlog.sequencer.daemon import main  # noqa: PLC0415

    return main(config)


VSN: Final = _Daemon(
    configs.StorageNodeConfig,
    _storage_node,
    "a storage node of a Varlog cluster",
    """\
A storage node keeps replicas of log streams on its volumes and serves appends and reads. Its data lies in
VOLUME/cid=CLUSTER/snid=SNID/lsid=LOG STREAM. It looks for the metadata repository until that answers, so daemons may
be started in any order. A node becomes part of the cluster when it is added to it once: varlog node add HOST:PORT.
""",
    """\
examples:
  a node with one volume:
    vsn start --snid 1 --volumes /data/varlog --secret-file /etc/varlog/secret

  a second one on the same machine:
    vsn start --snid 2 --volumes /data2/varlog --secret-file /etc/varlog/secret \\
        --listen 127.0.0.1:9094 --http 127.0.0.1:9194

  for other machines, with everything in a file:
    vsn start --config /etc/varlog/vsn.toml

    # /etc/varlog/vsn.toml; paths are relative to this file
    cluster = 1
    volumes = ["/disk1/varlog", "/disk2/varlog"]
    listen = "0.0.0.0:9091"
    advertise = "10.0.0.7:9091"
    metadata_repository = "10.0.0.5:9092"
    secret_file = "secret"
""",
)
VMR: Final = _Daemon(
    configs.MetadataRepositoryConfig,
    _metadata_repository,
    "the metadata repository of a Varlog cluster",
    """\
The metadata repository decides what the cluster consists of and in which order entries stand. All of that is in its
journal, and must not be lost: then a cluster has one of them. Or it is in an etcd, which several of them share; one
leads, and another one takes over when it fails.
""",
    """\
examples:
  for a cluster on this machine:
    vmr start --path /data/varlog-meta --secret-file /etc/varlog/secret

  for other machines:
    vmr start --path /data/varlog-meta --secret-file /etc/varlog/secret --listen 0.0.0.0:9092

  one of several, with the metadata in an etcd:
    vmr start --store etcd://10.0.0.11:2379,10.0.0.12:2379,10.0.0.13:2379/varlog \\
        --secret-file /etc/varlog/secret --listen 0.0.0.0:9092 --advertise 10.0.0.11:9092
""",
)
VMS: Final = _Daemon(
    configs.ManagerConfig,
    _manager,
    "the manager of a Varlog cluster",
    """\
The manager watches the storage nodes, brings log streams back after a failure, and carries out what is asked with
varlog node, varlog topic and varlog stream. It has no data of its own.
""",
    """\
examples:
  for a cluster on this machine:
    vms start --secret-file /etc/varlog/secret

  with the metadata repository elsewhere:
    vms start --secret-file /etc/varlog/secret --metadata-repository 10.0.0.5:9092 \\
        --listen 0.0.0.0:9093 --advertise 10.0.0.6:9093
""",
)
VSQ: Final = _Daemon(
    configs.SequencerConfig,
    _sequencer,
    "a sequencer of a Varlog cluster",
    """\
A sequencer gives out the positions of topics that were made with varlog topic create --ordering sequencer; a cluster
without such topics needs none. It has no data: when it is gone, or was started again, the clients have another one
named, or the same anew. So start two of them where one should not be missed.
""",
    """\
examples:
  for a cluster on this machine:
    vsq start --secret-file /etc/varlog/secret

  with the metadata repository elsewhere:
    vsq start --secret-file /etc/varlog/secret --metadata-repository 10.0.0.5:9092 \\
        --listen 0.0.0.0:9097 --advertise 10.0.0.6:9097
""",
)


def vsn(arguments: Sequence[str] | None = None) -> int:
    """Entry point of `vsn`."""
    return _command(VSN, arguments)


def vmr(arguments: Sequence[str] | None = None) -> int:
    """Entry point of `vmr`."""
    return _command(VMR, arguments)


def vms(arguments: Sequence[str] | None = None) -> int:
    """Entry point of `vms`."""
    return _command(VMS, arguments)


def vsq(arguments: Sequence[str] | None = None) -> int:
    """Entry point of `vsq`."""
    return _command(VSQ, arguments)


def parser(daemon: _Daemon) -> argparse.ArgumentParser:
    """The command line of a daemon."""
    program = daemon.config.program
    top = argparse.ArgumentParser(program, description=f"{program}: {daemon.what}.")
    top.add_argument("--version", action="version", version=f"{program} {__version__}")
    start = top.add_subparsers(required=True, metavar="start").add_parser(
        "start",
        help=f"start {daemon.what}",
        description=daemon.about,
        epilog=f"{daemon.examples}\n{CODES}",
        formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, max_help_position=32),
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    start.add_argument(
        "--config", metavar="FILE", help="A TOML file with the options below as keys; flags override it."
    )
    for option in configs.options(daemon.config).values():
        _add(start, option)
    start.add_argument("--secret", action=_RefuseSecret, nargs="?", help=argparse.SUPPRESS)
    return top


class _RefuseSecret(argparse.Action):
    """Tells better, and does not repeat what was given as argparse would with a flag it does not know."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        parser.error("a secret is not given on a command line, where everybody can read it; use --secret-file FILE")


def _add(start: argparse.ArgumentParser, option: Option) -> None:
    told = option.description
    if option.default is msgspec.NODEFAULT:
        told += " Required."
    elif option.default is not None and not isinstance(option.default, bool):
        told += f" [default: {option.default}]"
    plain = get_args(option.type)[0]
    if plain is bool:
        start.add_argument(option.flag, action=argparse.BooleanOptionalAction, help=told)
    else:
        start.add_argument(
            option.flag,
            action="append" if plain == list[str] else "store",
            metavar=_placeholder(option, plain),
            help=told.replace("%", "%%"),
        )


def _placeholder(option: Option, plain: Any) -> str:
    if option.kind is Kind.PATH:
        return "DIR" if option.key in {"path", "volumes"} else "FILE"
    if option.kind is not None:
        return "HOST:PORT"
    if str in {plain, *get_args(plain)}:
        return "URL" if option.key == "store" else "TEXT"
    choices = [choice for choice in get_args(plain) if isinstance(choice, str)]
    return "|".join(choices) or "N"


def _command(daemon: _Daemon, arguments: Sequence[str] | None) -> int:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # no traceback for who changes their mind while it starts
    flags = vars(parser(daemon).parse_args(arguments))
    try:
        config = configs.load(daemon.config, flags, flags.pop("config", None))
    except BadConfig as error:
        print(f"{daemon.config.program}: {error}", file=sys.stderr)  # noqa: T201
        return 2
    return daemon.main(config)
