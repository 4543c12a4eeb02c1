"""Where an etcd is, and how one proves oneself to it.

    etcd://host:2379,other:2379,[::1]:2379/prefix      etcds://... with TLS

The prefix is what the keys of one cluster have in common: clusters with different ones share an etcd and do not meet.
A password is in a file of its own, never in an address: addresses are shown in lists of processes and in logs.
"""

from __future__ import annotations

import os
import re
import ssl
import stat
from dataclasses import dataclass
from typing import Final, NamedTuple

from varlog import limits
from varlog.errors import InvalidArgument, SecretUnusable

PORT: Final = 2379
_ENDPOINT: Final = re.compile(r"(?P<host>\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._-]+)(?::(?P<port>[0-9]{1,5}))?")
_PREFIX: Final = re.compile(r"[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*")
_MOST_PASSWORD_BYTES: Final = 1024


class EtcdAddress(NamedTuple):
    """The members of an etcd, HOST:PORT each, and the prefix of the keys."""

    endpoints: tuple[str, ...]
    prefix: str
    tls: bool = False

    @classmethod
    def parse(cls, url: str) -> EtcdAddress:
        """Raises InvalidArgument, which says what an address looks like."""
        if "@" in url:  # before anything is said of it: it may be a password
            raise InvalidArgument("an address names no user; the password is in a file of its own")
        scheme, found, rest = url.partition("://")
        if not found or scheme not in {"etcd", "etcds"}:
            raise InvalidArgument(f"{url!r} is no address of an etcd; one is etcd://HOST:2379,HOST:2379/PREFIX")
        hosts, _, prefix = rest.partition("/")
        prefix = prefix.rstrip("/")
        if not _PREFIX.fullmatch(prefix) or len(prefix) > limits.MAX_ETCD_PREFIX:
            raise InvalidArgument(
                f"{url!r} needs a prefix for the keys of this cluster, of letters, digits and ._-/, "
                f"such as etcd://{hosts}/varlog"
            )
        endpoints = tuple(_endpoint(text.strip(), url) for text in hosts.split(","))
        if len(set(endpoints)) < len(endpoints) or len(endpoints) > limits.MAX_ETCD_ENDPOINTS:
            raise InvalidArgument(f"{url!r} names an endpoint twice, or more than {limits.MAX_ETCD_ENDPOINTS}")
        return cls(endpoints, prefix, scheme == "etcds")

    def base(self, endpoint: str) -> str:
        """The address of an endpoint for HTTP."""
        return f"{'https' if self.tls else 'http'}://{endpoint}"

    def __str__(self) -> str:
        return f"{'etcds' if self.tls else 'etcd'}://{','.join(self.endpoints)}/{self.prefix}"


def _endpoint(text: str, url: str) -> str:
    match = _ENDPOINT.fullmatch(text)
    if match is None or not 0 < int(match["port"] or PORT) < 1 << 16:
        raise InvalidArgument(f"{text!r} in {url!r} is no HOST:PORT")
    return f"{match['host']}:{int(match['port'] or PORT)}"


@dataclass(frozen=True, slots=True)
class EtcdOptions:
    """By what etcd knows us, and we etcd. Paths, never the secrets themselves; they are read when they are needed."""

    user: str = ""
    password_file: str = ""
    """Of mode 0600; its first line is the password."""
    ca: str = ""
    """Certificates to believe instead of the system's; for `etcds://` only, as are the following two."""
    cert: str = ""
    key: str = ""

    def check(self, address: EtcdAddress) -> None:
        """Raises InvalidArgument if the options do not fit together."""
        if bool(self.user) != bool(self.password_file):
            raise InvalidArgument("a user of etcd needs a password file, and a password file a user")
        if bool(self.cert) != bool(self.key):
            raise InvalidArgument("a certificate for etcd needs its key, and a key its certificate")
        if (self.ca or self.cert) and not address.tls:
            raise InvalidArgument(f"certificates are for an etcd with TLS: etcds://, not {address}")

    def password(self) -> str:
        """Raises SecretUnusable."""
        path = self.password_file
        try:
            with open(path, "rb") as file:
                mode = os.fstat(file.fileno()).st_mode
                if not stat.S_ISREG(mode) or mode & 0o077:
                    raise SecretUnusable(f"others may use the password file {path}; run: chmod 600 {path}")
                first = file.read(_MOST_PASSWORD_BYTES).partition(b"\n")[0].decode().strip()
        except OSError as e:
            raise SecretUnusable(f"cannot read the password file {path}: {e.strerror}") from None
        except UnicodeDecodeError:
            first = ""
        if not first:
            raise SecretUnusable(f"the password file {path} holds no line of text")
        return first


class FileTls:
    """TLS by the certificates as their files are now. Raises SecretUnusable if they cannot be used."""

    def __init__(self, options: EtcdOptions) -> None:
        self._options = options
        self._seen = self._look()
        self.context = self._load()

    def renew(self) -> None:
        """Connections that are made from now on use what the files hold, if that has changed."""
        seen = self._look()
        if seen != self._seen:
            self.context = self._load()
            self._seen = seen

    @property
    def _paths(self) -> list[str]:
        return [path for path in (self._options.ca, self._options.cert, self._options.key) if path]

    def _look(self) -> list[tuple[int, int]]:
        try:
            found = [os.stat(path) for path in self._paths]
        except OSError as e:
            raise SecretUnusable(f"cannot read {e.filename}: {e.strerror}") from None
        return [(status.st_ino, status.st_mtime_ns) for status in found]

    def _load(self) -> ssl.SSLContext:
        options = self._options

        def encrypted() -> str:  # or OpenSSL would ask whoever sits at the terminal
            raise SecretUnusable(f"the key {options.key} is encrypted; give one that is not, of mode 0600")

        try:
            context = ssl.create_default_context(cafile=options.ca or None)
            if options.cert:
                if os.stat(options.key).st_mode & 0o077:
                    raise SecretUnusable(f"others may use the key {options.key}; run: chmod 600 {options.key}")
                context.load_cert_chain(options.cert, options.key, encrypted)
        except OSError as e:
            where = ", ".join(self._paths)
            raise SecretUnusable(f"the certificates for etcd cannot be used ({where}): {e.strerror or e}") from None
        return context
