"""Certificates for tests of TLS, made anew for each."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import trustme
from cryptography.hazmat.primitives import serialization as forms  # trustme brings it

from varlog.wire.tls import TlsFiles

LOOPBACK = "127.0.0.1"


class Authority:
    """A CA of its own."""

    def __init__(self) -> None:
        self._ca = trustme.CA(key_type=trustme.KeyType.ECDSA)

    def issue(
        self,
        directory: Path,
        *hosts: str,
        name: str = "node",
        days: int = 100,
        expired: bool = False,
        trusts: Authority | None = None,
    ) -> TlsFiles:
        """A certificate for these hosts, its key, and the certificates of the CA to believe: this one, unless another
        one is named."""
        now = dt.datetime.now(dt.UTC)
        until = now + dt.timedelta(days=-1 if expired else days)
        issued = self._ca.issue_cert(
            *(hosts or (LOOPBACK, "localhost")), not_after=until, key_type=trustme.KeyType.ECDSA
        )
        files = TlsFiles(directory / f"{name}.pem", directory / f"{name}.key", directory / f"{name}.ca.pem")
        write(files.key, issued.private_key_pem.bytes(), 0o600)
        write(files.cert, b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        write(files.ca, (trusts or self).pem)
        return files

    @property
    def pem(self) -> bytes:
        return self._ca.cert_pem.bytes()


def write(path: str | Path, content: bytes, mode: int = 0o644) -> None:
    """Replace a file at once, as operators should."""
    path = Path(path)
    draft = path.with_name(f".{path.name}")
    draft.write_bytes(content)
    draft.chmod(mode)
    draft.replace(path)


def encrypt(path: str | Path) -> None:
    """Put a passphrase on a key."""
    key = forms.load_pem_private_key(Path(path).read_bytes(), None)
    locked = forms.BestAvailableEncryption(b"passphrase")
    write(path, key.private_bytes(forms.Encoding.PEM, forms.PrivateFormat.PKCS8, locked), 0o600)
