"""What the daemons can be told, and the one place where it is read.

Each daemon has a struct here. Its fields are at once the keys of the config file (TOML, `--config FILE`) and the flags
of the command line (`metadata_repository` is `--metadata-repository`), and they carry what both say of them: what the
value is for, what is accepted, the default. A flag stands over the file, the file over the default.

What always holds of a config that `load` has returned: every value is of its type and within its bounds, every address
can be taken apart, and paths from a file are relative to that file. Nothing is opened or bound here. Anything else is
a `BadConfig` that names the place (file or flag), the key and what is accepted there. A secret is never a value of any
of this: only the file that holds it is.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from enum import Enum
from typing import Annotated, Any, ClassVar, Final, Literal, NamedTuple, TypeVar, get_args, get_type_hints

import msgspec
from msgspec import Meta, Struct

from varlog import limits
from varlog.errors import BadConfig, InvalidArgument
from varlog.wire.endpoint import parse_address, split_addresses
from varlog.wire.tls import TlsFiles

OFF: Final = "off"
EVERY_INTERFACE: Final = frozenset({"0.0.0.0", "::"})


class Kind(Enum):
    """What a text stands for, where that is more than its type."""

    PATH = "path"
    LISTEN = "listen"
    PEER = "peer"
    PEERS = "peers"


_ADDRESSES: Final = frozenset({Kind.LISTEN, Kind.PEER, Kind.PEERS})

# What is accepted, as types. The title tells it to people; the outermost `Meta` of a field is the one that counts.
_U32 = Annotated[int, Meta(ge=1, le=(1 << 32) - 1)]
_ID = "a whole number from 1 to 4294967295"
_LISTEN = "HOST:PORT such as 127.0.0.1:9091 or [::1]:9091; port 0 is any free one"
_PEER = "HOST:PORT such as 127.0.0.1:9092 or [::1]:9092"
_PEERS = f"{_PEER}; several separated by commas"
_SIZE = Annotated[int, Meta(ge=limits.KIB, le=limits.MAX_SEGMENT_BYTES)]
_FD = Annotated[int, Meta(ge=1, le=1 << 20)]

_Cluster = Annotated[_U32, Meta(title=_ID, description="The cluster's id; daemons of another one are refused.")]
_SecretFile = Annotated[
    str,
    Meta(
        title="a path",
        description="The file that holds the cluster's secret; it must be readable by its owner alone (mode 0600).",
        extra={"kind": Kind.PATH},
    ),
]
_TLS = "All connections of the cluster are inside TLS if this is given; tls_cert, tls_key and tls_ca go together."
_TlsCert = Annotated[
    str | None,
    Meta(
        title="a path",
        description=f"The file with the certificate (PEM) that this daemon shows. {_TLS}",
        extra={"kind": Kind.PATH},
    ),
]
_TlsKey = Annotated[
    str | None,
    Meta(
        title="a path",
        description="The file with the certificate's private key (PEM); readable by its owner alone (mode 0600).",
        extra={"kind": Kind.PATH},
    ),
]
_TlsCa = Annotated[
    str | None,
    Meta(
        title="a path",
        description="The file with the certificates of the CA (PEM) that those of all other processes are from.",
        extra={"kind": Kind.PATH},
    ),
]
_Listen = Annotated[str, Meta(title=_LISTEN, description="Where to listen.", extra={"kind": Kind.LISTEN})]
_Advertise = Annotated[
    str | None,
    Meta(
        title=_PEER,
        description="The address by which others reach this daemon, if that is not the one it listens on.",
        extra={"kind": Kind.PEER},
    ),
]
_Http = Annotated[
    str | None,
    Meta(
        title=f"{_LISTEN}; or {OFF}",
        description=f"Where to serve /metrics and /healthz; {OFF} for nowhere.",
        extra={"kind": Kind.LISTEN},
    ),
]
_MetadataRepository = Annotated[
    str,
    Meta(
        title=_PEERS,
        description="Where the metadata repositories listen; the one that leads is found among them.",
        extra={"kind": Kind.PEERS},
    ),
]
_LogLevel = Annotated[
    Literal["debug", "info", "warning", "error"],
    Meta(title="debug, info, warning or error", description="Log nothing below this."),
]
_LogFormat = Annotated[
    Literal["auto", "console", "json"],
    Meta(
        title="auto, console or json",
        description="Log lines for people (console) or machines (json); auto asks whether stderr is a terminal.",
    ),
]
_ReadyFd = Annotated[
    _FD | None,
    Meta(
        title="the number of an open file descriptor",
        description="Once serving, write the address (and in a second line that of --http) there, and close it.",
    ),
]
_Volumes = Annotated[
    Annotated[list[str], Meta(min_length=1)],
    Meta(
        title="one or more directories",
        description="A directory for data, existing and writable; may be given several times.",
        extra={"kind": Kind.PATH},
    ),
]
_Path = Annotated[
    str | None,
    Meta(
        title="a directory",
        description="The directory of the embedded journal; existing and writable. Either this or a store is given.",
        extra={"kind": Kind.PATH},
    ),
]
_Store = Annotated[
    str | None,
    Meta(
        title="etcd://HOST:PORT,HOST:PORT/PREFIX, or etcds:// with TLS",
        description="The etcd that holds the metadata, and the prefix of this cluster's keys in it. Several metadata"
        " repositories share it, and one of them leads.",
    ),
]
_EtcdUser = Annotated[str | None, Meta(title="a name", description="The user by which etcd knows this daemon.")]
_EtcdPasswordFile = Annotated[
    str | None,
    Meta(
        title="a path",
        description="The file that holds the user's password; it must be readable by its owner alone (mode 0600).",
        extra={"kind": Kind.PATH},
    ),
]
_EtcdCa = Annotated[
    str | None,
    Meta(
        title="a path",
        description="The file with the certificates of the CA (PEM) that etcd's is from, if not the system's.",
        extra={"kind": Kind.PATH},
    ),
]
_EtcdCert = Annotated[
    str | None,
    Meta(
        title="a path",
        description="The file with the certificate (PEM) that is shown to etcd; etcd_key goes with it.",
        extra={"kind": Kind.PATH},
    ),
]
_EtcdKey = Annotated[
    str | None,
    Meta(title="a path", description="The file with that certificate's private key (PEM).", extra={"kind": Kind.PATH}),
]
_EtcdAnyVersion = Annotated[
    bool,
    Meta(
        title="true or false",
        description="Take also an etcd of a version that is known to lose data. For tests.",
    ),
]
_Snid = Annotated[
    _U32 | None,
    Meta(
        title=_ID,
        description="The storage node's id. Left out, it is the one found on the volumes, or a new one at random.",
    ),
]
_Sync = Annotated[
    bool,
    Meta(
        title="true or false",
        description="Sync to disk before reporting. Without it a power loss can take what was acknowledged.",
    ),
]
_ErrorIfExists = Annotated[
    bool, Meta(title="true or false", description="Refuse to start if this node has data on its volumes already.")
]
_SegmentBytes = Annotated[
    _SIZE,
    Meta(
        title=f"bytes, from {limits.KIB} to {limits.MAX_SEGMENT_BYTES}",
        description="A segment file is closed when it has grown to this.",
    ),
]

_ScrubRate = Annotated[
    Annotated[float, Meta(ge=0, le=100_000)],
    Meta(
        title="megabytes, from 0 to 100000",
        description="How much a node reads in a second while it looks for damage in its data, once a week; 0 is never.",
    ),
]
_BusyPoll = Annotated[
    Annotated[int, Meta(ge=0, le=10_000)],
    Meta(
        title="microseconds, from 0 to 10000",
        description="How long to look for the next message before sleeping, where the last ones came within a"
        " millisecond; 0 is not at all. It makes appends that come one at a time quicker, and costs processor time.",
    ),
]
_ReplaceAfter = Annotated[
    Annotated[float, Meta(ge=0, le=86400)],
    Meta(
        title="seconds, from 0 to 86400",
        description="How long a node that is away is waited for before another one gets its replicas.",
    ),
]


class DaemonConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What every daemon can be told."""

    program: ClassVar[str]

    cluster: _Cluster = 1
    secret_file: _SecretFile
    tls_cert: _TlsCert = None
    tls_key: _TlsKey = None
    tls_ca: _TlsCa = None
    listen: _Listen
    advertise: _Advertise = None
    http: _Http
    log_level: _LogLevel = "info"
    log_format: _LogFormat = "auto"
    ready_fd: _ReadyFd = None

    @property
    def tls(self) -> TlsFiles | None:
        """The files that connections are made secure with, if they are."""
        return TlsFiles.of(self.tls_cert, self.tls_key, self.tls_ca)


class StorageNodeConfig(DaemonConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`vsn`, a storage node."""

    program: ClassVar[str] = "vsn"

    volumes: _Volumes
    snid: _Snid = None
    listen: _Listen = "127.0.0.1:9091"
    metadata_repository: _MetadataRepository = "127.0.0.1:9092"
    http: _Http = "127.0.0.1:9191"
    sync: _Sync = True
    error_if_exists: _ErrorIfExists = False
    segment_bytes: _SegmentBytes = limits.SEGMENT_BYTES
    scrub_mb_per_second: _ScrubRate = 8.0
    busy_poll: _BusyPoll = 400


class MetadataRepositoryConfig(DaemonConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`vmr`, the metadata repository."""

    program: ClassVar[str] = "vmr"

    path: _Path = None
    store: _Store = None
    listen: _Listen = "127.0.0.1:9092"
    etcd_user: _EtcdUser = None
    etcd_password_file: _EtcdPasswordFile = None
    etcd_ca: _EtcdCa = None
    etcd_cert: _EtcdCert = None
    etcd_key: _EtcdKey = None
    etcd_any_version: _EtcdAnyVersion = False
    http: _Http = "127.0.0.1:9192"
    busy_poll: _BusyPoll = 600


class ManagerConfig(DaemonConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`vms`, the manager."""

    program: ClassVar[str] = "vms"

    listen: _Listen = "127.0.0.1:9093"
    metadata_repository: _MetadataRepository = "127.0.0.1:9092"
    http: _Http = "127.0.0.1:9193"
    replace_after: _ReplaceAfter = 30.0


class SequencerConfig(DaemonConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`vsq`, a sequencer."""

    program: ClassVar[str] = "vsq"

    listen: _Listen = "127.0.0.1:9097"
    metadata_repository: _MetadataRepository = "127.0.0.1:9092"
    http: _Http = "127.0.0.1:9197"


class Option(NamedTuple):
    """One field of a config, as file and command line know it."""

    key: str
    type: Any
    default: Any
    """`msgspec.NODEFAULT` if it must be given."""
    accepted: str
    description: str
    kind: Kind | None

    @property
    def flag(self) -> str:
        return "--" + self.key.replace("_", "-")


def options(config: type[DaemonConfig]) -> dict[str, Option]:
    """Every option of that daemon, by its key: what must be given first."""
    hints = get_type_hints(config, include_extras=True)
    found = []
    for field in msgspec.structs.fields(config):
        meta = [m for m in get_args(hints[field.name]) if isinstance(m, Meta)][-1]
        kind = (meta.extra or {}).get("kind")
        found.append(
            Option(field.name, hints[field.name], field.default, meta.title or "", meta.description or "", kind)
        )
    return {option.key: option for option in sorted(found, key=lambda o: o.default is not msgspec.NODEFAULT)}


C = TypeVar("C", bound=DaemonConfig)


def load(config: type[C], flags: Mapping[str, Any], file: str | None = None) -> C:
    """The config of a daemon from its config file, if there is one, and the flags that were given (by key)."""
    known = options(config)
    values: dict[str, Any] = {}
    for key, value in _read(file).items() if file is not None else ():
        if key not in known:
            raise BadConfig(f"{file}: there is no key {key!r}{_nearest(key, known)}; keys are {', '.join(known)}")
        values[key] = _relative(_accept(value, known[key], f"{file}: {key}", strict=True), known[key], str(file))
    for key, value in flags.items():
        values[key] = _accept(value, known[key], known[key].flag, strict=False)
    for option in known.values():
        if option.default is msgspec.NODEFAULT and option.key not in values:
            raise BadConfig(f"{option.flag} is missing: {option.description} Give {option.accepted}.")
    loaded = config(**values)
    _check_together(loaded)
    return loaded


def _read(file: str) -> dict[str, Any]:
    try:
        with open(file, "rb") as opened:
            return tomllib.load(opened)
    except OSError as error:
        raise BadConfig(f"{file}: the config file cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadConfig(f"{file}: this is not TOML: {error}") from None


def _accept(value: Any, option: Option, where: str, *, strict: bool) -> Any:
    """The value as its type has it. `strict` is False for flags, whose values are all text to begin with."""
    if value == OFF and option.key == "http":
        return None
    try:
        accepted = msgspec.convert(value, option.type, strict=strict)
        if option.kind in _ADDRESSES and accepted is not None:
            for address in split_addresses(accepted) if option.kind is Kind.PEERS else (accepted,):
                _, port = parse_address(address)
                if option.kind is not Kind.LISTEN and port == 0:
                    raise InvalidArgument("nobody can be reached at port 0")
        elif option.kind is Kind.PATH and "" in (accepted if isinstance(accepted, list) else [accepted]):
            raise InvalidArgument("it is empty")
    except (msgspec.ValidationError, InvalidArgument) as error:
        why = str(error).replace("`", "").removesuffix(" - at $")
        raise BadConfig(f"{where} is {value!r}: {why}; accepted is {option.accepted}") from None
    return accepted


def _relative(value: Any, option: Option, file: str) -> Any:
    """Paths in a config file are relative to that file."""
    if option.kind is not Kind.PATH:
        return value
    folder = os.path.dirname(file)
    return [os.path.join(folder, path) for path in value] if isinstance(value, list) else os.path.join(folder, value)


def _nearest(key: str, known: Mapping[str, Option]) -> str:
    from difflib import get_close_matches  # noqa: PLC0415  # only a mistake pays for it

    close = get_close_matches(key, known, 1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _check_store(config: MetadataRepositoryConfig) -> None:
    if (config.path is None) == (config.store is None):
        which = "are both given" if config.path is not None else "is missing"
        raise BadConfig(
            f"--path DIRECTORY or --store etcd://HOST:PORT/PREFIX {which}: the metadata is kept in exactly one of them"
        )
    known = options(MetadataRepositoryConfig)
    given = [key for key in known if key.startswith("etcd_") and getattr(config, key)]
    if config.store is None and given:
        raise BadConfig(f"{given[0]} is for an etcd: name it with --store etcd://HOST:PORT/PREFIX")
    if config.store is not None and not config.store.startswith(("etcd://", "etcds://")):
        raise BadConfig(f"store is {config.store!r}; accepted is {known['store'].accepted}")


def _check_together(config: DaemonConfig) -> None:
    """What is only wrong of several values together."""
    try:
        _ = config.tls
    except InvalidArgument as error:
        raise BadConfig(str(error)) from None
    if isinstance(config, StorageNodeConfig):
        places = [os.path.realpath(volume) for volume in config.volumes]
        twice = next(
            (volume for volume, place in zip(config.volumes, places, strict=True) if places.count(place) > 1), None
        )
        if twice is not None:
            raise BadConfig(f"volumes: {twice} is given twice; accepted are different directories")
    is_named = True
    if isinstance(config, MetadataRepositoryConfig):
        _check_store(config)
        is_named = config.store is not None  # else nobody is told of it: everybody knows where to connect
    if is_named and config.advertise is None:
        host, _ = parse_address(config.listen)
        if host in EVERY_INTERFACE:
            raise BadConfig(
                f"listen is {config.listen!r}, every interface: say with --advertise HOST:PORT (advertise in the config"
                " file) by which address others reach this daemon"
            )
