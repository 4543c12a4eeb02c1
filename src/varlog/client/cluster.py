"""Where a cluster is: the addresses of its metadata repositories, its id, and its secret.

A caller names a cluster by a *cluster file*, by the directory that holds one, or by addresses. The file is called
`cluster.toml` and is written by whoever sets a cluster up, next to the secret:

    metadata_repositories = ["127.0.0.1:9092"]
    cluster = 1
    secret_file = "secret"      # relative to the file
    tls_cert = "cert.pem"       # as are these; all of them if the cluster uses TLS, else none
    tls_key = "key.pem"
    tls_ca = "ca.pem"
    topic = "log"               # what `connect` opens unless told otherwise

Everything else (nodes, topics, log streams, the manager) is asked of the metadata repository.
"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from varlog.client.arguments import check_cluster, check_path, check_tls, wrong
from varlog.errors import BadConfig, InvalidArgument, SecretUnusable
from varlog.types import ClusterID
from varlog.wire.credentials import Credentials, FileCredentials
from varlog.wire.endpoint import parse_address, split_addresses
from varlog.wire.tls import TlsFiles

CLUSTER_FILE: Final = "cluster.toml"
DEFAULT_DIRECTORY: Final = "varlog-data"
DEFAULT_TOPIC: Final = "log"
ENVIRONMENT: Final = "VARLOG_CLUSTER"


class ClusterFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a cluster file says."""

    metadata_repositories: tuple[str, ...]
    cluster: int = 1
    secret_file: str = "secret"
    topic: str = DEFAULT_TOPIC
    tls_cert: str | None = None
    tls_key: str | None = None
    tls_ca: str | None = None

    def tls(self, folder: Path) -> TlsFiles | None:
        """The files for TLS, of a cluster file in that folder."""
        named = TlsFiles.of(self.tls_cert, self.tls_key, self.tls_ca)
        return TlsFiles(*(folder / file for file in named)) if named is not None else None


class Cluster(NamedTuple):
    """How to reach a cluster and prove to belong to it."""

    addresses: tuple[str, ...]
    cid: ClusterID
    credentials: Credentials
    topic: str
    """What to open unless told otherwise."""


def find(
    cluster: str | Path | None = None,
    *,
    cid: int | None = None,
    secret_file: str | Path | None = None,
    tls: TlsFiles | None = None,
) -> Cluster:
    """The cluster that a caller means. What is given besides `cluster` goes before what a cluster file says."""
    named = cluster if cluster is not None else os.environ.get(ENVIRONMENT) or DEFAULT_DIRECTORY
    file = _file_of(check_path("cluster", named))
    given = check_path("secret_file", secret_file) if secret_file is not None else None
    tls = check_tls(tls)
    if file is not None:
        known = read_file(file)
        secret = given if given is not None else file.parent / known.secret_file
        tls = tls or known.tls(file.parent)
    elif isinstance(named, str) and ":" in named and os.sep not in named:
        known = ClusterFile(split_addresses(named))
        if given is None:
            raise SecretUnusable(f"name the secret file of the cluster at {named}, or connect by its {CLUSTER_FILE}")
        secret = given
    else:
        raise BadConfig(
            f"{named}: neither a cluster file, nor a directory with a {CLUSTER_FILE}, nor host:port; "
            f"start a cluster with `varlog dev`, or name it with --cluster or ${ENVIRONMENT}"
        )
    if not known.metadata_repositories:
        raise BadConfig(f"{named}: metadata_repositories is empty; name at least one host:port")
    for address in known.metadata_repositories:
        parse_address(address)
    number = check_cluster(*(("cid", cid) if cid is not None else (f"cluster in {file}", known.cluster)))
    return Cluster(known.metadata_repositories, number, FileCredentials(secret, tls), known.topic)


def _file_of(path: Path) -> Path | None:
    """The cluster file that a path names; None if there is none."""
    try:
        file = path / CLUSTER_FILE if path.is_dir() else path
        return file if file.is_file() else None
    except OSError as error:
        raise wrong("cluster", str(path), f"a place that can be looked at ({error.strerror})") from None


def read_file(path: Path) -> ClusterFile:
    """Read a cluster file."""
    try:
        known = msgspec.convert(tomllib.loads(path.read_text()), ClusterFile)
        known.tls(path.parent)
    except (OSError, ValueError, InvalidArgument) as error:  # also what msgspec and tomllib raise
        raise BadConfig(f"{path}: {error}") from None
    return known


def write_file(path: Path, cluster: ClusterFile) -> None:
    """Write a cluster file, whole or not at all."""
    lines = [f"{key} = {_toml(value)}" for key, value in msgspec.structs.asdict(cluster).items() if value is not None]
    draft = path.with_name(f".{path.name}.new")
    draft.write_text("\n".join(lines) + "\n")
    draft.replace(path)


def _toml(value: object) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return msgspec.json.encode(value).decode()  # a TOML basic string may be written as JSON writes it
