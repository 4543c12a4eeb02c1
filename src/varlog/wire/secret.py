"""The cluster's secret: what proves that a process belongs to the cluster (B11).

A file of mode 0600 that holds at least 32 random bytes as hexadecimal digits, in one line. While a secret is being
replaced by another one the file has several lines: a process proves itself by the first, and believes whoever proves
any of them. `add`, `promote` and `retire` are the three steps of that; between two of them the file goes to every
machine, and two processes understand each other as long as they are at most one step apart.

A secret never leaves the process: not on a command line, not in the environment, not in a log, a representation or an
error. What goes over the wire are proofs made with it (`hello`), and what people compare are *fingerprints*.
"""

from __future__ import annotations

import hmac
import os
import secrets
import stat
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NoReturn

from varlog import limits
from varlog.errors import AlreadyExists, Conflict, LimitExceeded, SecretUnusable

_MOST_BYTES: Final = 4096
_FINGERPRINT: Final = b"varlog secret fingerprint\0"
_FINGERPRINT_BYTES: Final = 4


class Secret:
    """Makes and checks proofs; shows nothing of what it is made from. By itself it is credentials that never change,
    of a process that uses no TLS."""

    __slots__ = ("_keys",)

    tls: Final = None

    def __init__(self, *keys: bytes) -> None:
        """The first key is the one to prove with; whoever knows any of them is believed."""
        for key in keys:
            if len(key) < limits.MIN_SECRET_BYTES:
                raise SecretUnusable(f"a secret has at least {limits.MIN_SECRET_BYTES} bytes; this one has {len(key)}")
        if not keys:
            raise SecretUnusable("at least one secret is needed")
        self._keys = keys

    @classmethod
    def load(cls, path: str | Path) -> Secret:
        """Read the secret file; refuses one that is missing, that others may read, or that is too short."""
        return cls(*_read(path))

    @classmethod
    def create(cls, path: str | Path) -> Secret:
        """Make a new secret file, whole and with its mode from the moment it has its name; never replaces one."""
        path = Path(path)
        key = secrets.token_bytes(limits.MIN_SECRET_BYTES)
        try:
            if path.is_dir() or not path.name:
                raise SecretUnusable(f"{path} is a directory; name a file in it")
            draft = _draft(path, [key])
            try:
                os.link(draft, path)
            finally:
                draft.unlink()
        except FileExistsError:
            raise AlreadyExists(f"there is a secret at {path} already; it was left as it is") from None
        except OSError as error:
            raise SecretUnusable(f"cannot make the secret file {path}: {error.strerror}") from None
        _sync_directory(path.parent)
        return cls(key)

    @property
    def secret(self) -> Secret:
        return self

    def proof(self, statement: bytes) -> bytes:
        """HMAC-SHA256 of the statement."""
        return hmac.digest(self._keys[0], statement, "sha256")

    def proves(self, proof: bytes, statement: bytes) -> bool:
        """Whether whoever made the proof of this statement knew a secret; takes the same time for every wrong one."""
        proven = [hmac.compare_digest(proof, hmac.digest(key, statement, "sha256")) for key in self._keys]
        return any(proven)

    def fingerprints(self) -> list[str]:
        """By which people tell secrets apart, that to prove with first; nobody can make the secrets from them."""
        made = [hmac.digest(key, _FINGERPRINT, "sha256") for key in self._keys]
        return [digest[:_FINGERPRINT_BYTES].hex() for digest in made]

    def __repr__(self) -> str:
        return "Secret(...)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret is not written down; give the other process the path of its file")


def add(path: str | Path) -> Secret:
    """The first step of replacing a secret: a new one is believed, and the present one still proven with."""
    keys = _read(path)
    if len(keys) == limits.MAX_SECRETS:
        raise LimitExceeded(f"{path} holds {len(keys)} secrets, as many as it may; retire some first")
    return _replace(path, [*keys, secrets.token_bytes(limits.MIN_SECRET_BYTES)])


def promote(path: str | Path) -> Secret:
    """The second step: the newest secret is proven with, and the others still believed."""
    keys = _read(path)
    if len(keys) == 1:
        raise Conflict(f"{path} holds one secret, so there is none to promote; add one first")
    return _replace(path, [keys[-1], *keys[:-1]])


def retire(path: str | Path) -> Secret:
    """The last step: only the secret to prove with is left."""
    return _replace(path, _read(path)[:1])


def complaint(path: str | Path, what: str, status: os.stat_result) -> str:
    """Why a file is not one that only its owner may use; nothing if it is."""
    if not stat.S_ISREG(status.st_mode):
        return f"the {what} {path} is not a file"
    if status.st_mode & 0o077:
        mode = stat.S_IMODE(status.st_mode)
        return f"others may use the {what} file {path} (mode {mode:04o}); run: chmod 600 {path}"
    return ""


def _read(path: str | Path) -> list[bytes]:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            if reason := complaint(path, "secret", os.fstat(descriptor)):
                raise SecretUnusable(reason)
            text = os.read(descriptor, _MOST_BYTES + 1)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise SecretUnusable(f"cannot read the secret file {path}: {error.strerror}") from None
    if len(text) > _MOST_BYTES:
        raise SecretUnusable(f"the secret file {path} holds more than {_MOST_BYTES} bytes; that is no secret")
    keys = [_parse(line, path) for line in text.splitlines() if line.strip()] or [_parse(b"", path)]
    if len(keys) > limits.MAX_SECRETS:
        raise SecretUnusable(f"the secret file {path} holds {len(keys)} secrets; it may hold {limits.MAX_SECRETS}")
    if len(set(keys)) < len(keys):
        raise SecretUnusable(f"the secret file {path} holds a secret twice")
    return keys


def _parse(line: bytes, path: str | Path) -> bytes:
    try:
        key = bytes.fromhex(line.strip().decode("ascii"))
    except ValueError:
        raise SecretUnusable(f"the secret file {path} does not hold hexadecimal digits") from None
    if len(key) < limits.MIN_SECRET_BYTES:
        raise SecretUnusable(
            f"the secret file {path} holds {len(key)} bytes; a secret has at least {limits.MIN_SECRET_BYTES}"
        )
    return key


def _replace(path: str | Path, keys: Sequence[bytes]) -> Secret:
    """Put the file with these secrets in the place of the one that is there, at once and for the same owner."""
    path = Path(path).resolve()
    try:
        owner = path.stat()
        draft = _draft(path, keys, (owner.st_uid, owner.st_gid))
        try:
            draft.replace(path)
        except BaseException:
            draft.unlink()
            raise
    except OSError as error:
        raise SecretUnusable(f"cannot replace the secret file {path}: {error.strerror}") from None
    _sync_directory(path.parent)
    return Secret(*keys)


def _draft(path: Path, keys: Sequence[bytes], owner: tuple[int, int] | None = None) -> Path:
    """A file beside the one that is meant, synced, so that it needs no more than its name."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, b"".join(key.hex().encode() + b"\n" for key in keys))
        if owner is not None:
            os.fchown(descriptor, *owner)
        os.fsync(descriptor)
    except BaseException:
        with suppress(OSError):
            draft.unlink()
        raise
    finally:
        os.close(descriptor)
    return draft


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
