"""Credentials: what a process proves with that it belongs to the cluster, as it stands in files at this moment.

`Server`, `Link` and `dial` take them, and ask for the secret and for TLS anew at every connection. `FileCredentials`
looks at the files each time; a look is a few calls of `stat`. So whoever replaces a file need tell nobody: the next
connection is made with the new one, and those that are there stay as they are.

What always holds: a file that cannot be used never takes the place of one that could. What is wrong with it is logged,
once for each state the files were found in, and the process goes on with what it had. Several files that belong
together (a certificate and its key) are taken over together or not at all. Only at the start, when there is nothing to
go on with, what is wrong is raised.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Generic, Protocol, TypeVar

from varlog.errors import VarlogError
from varlog.wire.secret import Secret
from varlog.wire.tls import Tls, TlsFiles

_log = logging.getLogger(__name__)

_SETTLED_NS: Final = 100_000_000
"""A file that was changed less than this ago might be changed again within the same tick of the file system's clock
and not look it; so it is read again at the next look."""

_WARN_SECONDS: Final = 14 * 86400.0
_WARN_AGAIN_SECONDS: Final = 86400.0
"""How long before its end a certificate is complained about, and how often."""

_T = TypeVar("_T")


class Credentials(Protocol):
    """What to prove with, now."""

    @property
    def secret(self) -> Secret: ...

    @property
    def tls(self) -> Tls | None:
        """None if connections are not encrypted."""


class Watched(Generic[_T]):
    """What is made of some files, made anew when they have changed."""

    def __init__(
        self, what: str, paths: Sequence[str | Path], make: Callable[[], _T], describe: Callable[[_T], str]
    ) -> None:
        """`what` and `describe` are for the log: what it is, and which one. Raises what `make` raises."""
        self.refused = ""
        """Why the files as they are now cannot be used, and what was made before is instead."""
        self._what = what
        self._paths = paths
        self._make = make
        self._describe = describe
        self._look = self._take_a_look()
        self._value = make()

    @property
    def value(self) -> _T:
        """What the files hold, or held when they could last be used."""
        look = self._take_a_look()
        if look is None or look != self._look:
            self._look = look
            self._renew()
        return self._value

    def _renew(self) -> None:
        try:
            value = self._make()
        except VarlogError as error:
            if str(error) != self.refused:
                self.refused = str(error)
                _log.warning("%s: what is there now cannot be used, and what was stays: %s", self._what, error)
            return
        before, now = self._describe(self._value), self._describe(value)
        self._value = value
        if self.refused or now != before:
            self.refused = ""
            _log.info("%s: read anew, %s", self._what, now)

    def _take_a_look(self) -> object:
        """What tells one state of the files from another; None if that cannot be told yet."""
        found: list[object] = []
        youngest = 0
        for path in self._paths:
            try:
                status = os.stat(path)
            except OSError as error:
                found.append(error.errno)
            else:
                youngest = max(youngest, status.st_mtime_ns, status.st_ctime_ns)
                found.append((status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns))
        return None if abs(time.time_ns() - youngest) < _SETTLED_NS else found


class FileCredentials:
    """See the module's text."""

    def __init__(self, secret_file: str | Path, tls: TlsFiles | None = None) -> None:
        """Reads the files; raises `SecretUnusable` or `TlsUnusable` if they are of no use."""

        def tell(secret: Secret) -> str:
            return f"to prove with and to believe: {', '.join(secret.fingerprints())}"

        self._secret = Watched(f"secret file {secret_file}", [secret_file], lambda: Secret.load(secret_file), tell)
        self._cert = f"certificate {tls.cert}" if tls is not None else ""
        self._tls = Watched(self._cert, tls, lambda: Tls.load(tls), Tls.describe) if tls is not None else None
        self._warned = 0.0

    @property
    def secret(self) -> Secret:
        return self._secret.value

    @property
    def tls(self) -> Tls | None:
        if self._tls is None:
            return None
        tls = self._tls.value
        now = time.time()
        if tls.expires - now < _WARN_SECONDS and now - self._warned >= _WARN_AGAIN_SECONDS:
            self._warned = now
            _log.warning(
                "%s is good until %s, and then nobody talks to this process: renew it", self._cert, tls.not_after
            )
        return tls
