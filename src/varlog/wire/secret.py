"""The cluster's secret: what proves that a process belongs to the cluster (B11).

A file of mode 0600 that holds at least 32 random bytes as hexadecimal digits. It is read once at start and never leaves
the process: not on a command line, not in the environment, not in a log, a representation or an error. What goes over
the wire are proofs made with it (`hello`).
"""

from __future__ import annotations

import hmac
import os
import secrets
import stat
from pathlib import Path
from typing import NoReturn

from varlog import limits
from varlog.errors import AlreadyExists, SecretUnusable

_MOST_BYTES = 4096


class Secret:
    """Makes and checks proofs; shows nothing of what it is made from."""

    __slots__ = ("_key",)

    def __init__(self, key: bytes) -> None:
        if len(key) < limits.MIN_SECRET_BYTES:
            raise SecretUnusable(f"a secret has at least {limits.MIN_SECRET_BYTES} bytes; this one has {len(key)}")
        self._key = key

    @classmethod
    def load(cls, path: str | Path) -> Secret:
        """Read the secret file; refuses one that is missing, that others may read, or that is too short."""
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise SecretUnusable(f"cannot read the secret file {path}: {error.strerror}") from None
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise SecretUnusable(f"the secret {path} is not a file")
            if status.st_mode & 0o077:
                mode = stat.S_IMODE(status.st_mode)
                raise SecretUnusable(f"others may use the secret file {path} (mode {mode:04o}); run: chmod 600 {path}")
            text = os.read(descriptor, _MOST_BYTES + 1)
        except OSError as error:
            raise SecretUnusable(f"cannot read the secret file {path}: {error.strerror}") from None
        finally:
            os.close(descriptor)
        return cls(_parse(text, path))

    @classmethod
    def create(cls, path: str | Path) -> Secret:
        """Make a new secret file, whole and with its mode from the moment it has its name; never replaces one."""
        path = Path(path)
        draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        key = secrets.token_bytes(limits.MIN_SECRET_BYTES)
        try:
            descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                os.write(descriptor, key.hex().encode() + b"\n")
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            os.link(draft, path)
        except FileExistsError:
            raise AlreadyExists(f"there is a secret at {path} already; it was left as it is") from None
        except OSError as error:
            raise SecretUnusable(f"cannot make the secret file {path}: {error.strerror}") from None
        finally:
            draft.unlink(missing_ok=True)
        _sync_directory(path.parent)
        return cls(key)

    def proof(self, statement: bytes) -> bytes:
        """HMAC-SHA256 of the statement."""
        return hmac.digest(self._key, statement, "sha256")

    def proves(self, proof: bytes, statement: bytes) -> bool:
        """Whether whoever made the proof of this statement knew the secret; takes the same time for every wrong one."""
        return hmac.compare_digest(proof, self.proof(statement))

    def __repr__(self) -> str:
        return "Secret(...)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret is not written down; give the other process the path of its file")


def _parse(text: bytes, path: str | Path) -> bytes:
    digits = text.strip()
    if len(text) > _MOST_BYTES:
        raise SecretUnusable(f"the secret file {path} holds more than {_MOST_BYTES} bytes; that is no secret")
    try:
        key = bytes.fromhex(digits.decode("ascii"))
    except ValueError:
        raise SecretUnusable(f"the secret file {path} does not hold hexadecimal digits") from None
    if len(key) < limits.MIN_SECRET_BYTES:
        raise SecretUnusable(
            f"the secret file {path} holds {len(key)} bytes; a secret has at least {limits.MIN_SECRET_BYTES}"
        )
    return key


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
