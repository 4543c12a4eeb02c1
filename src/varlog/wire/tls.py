"""TLS: the certificate a process shows, the CA whose certificates it believes, and what goes wrong with both.

It is mutual. The server shows a certificate that was issued for the host that was dialled, and the dialer shows one as
well; each must come from the CA that the other was given. TLS 1.3 and nothing older, and no session is resumed, so
every connection is made with the certificates of its own time. Who a process is in the cluster is still said and proven
in the hello, inside of it.

A `Tls` is made from three files of PEM, and has shaken hands with itself: a certificate that has expired, that is not
of the given CA, that does not fit its key, or that may not be used for both sides is refused here, where it can be
told, and not later by somebody else. The private key is a file that only its owner may use, and is not encrypted:
nobody is there to be asked for the passphrase.
"""

from __future__ import annotations

import os
import ssl
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn, cast

from varlog.batch import Buffer
from varlog.errors import InvalidArgument, ProtocolError, TlsMismatch, TlsUnusable, VarlogError, WrongCertificate
from varlog.wire.secret import complaint

HANDSHAKE: Final = 0x16
_ALERT: Final = 0x15
_MAJOR_VERSION: Final = 3
_MOST_BYTES: Final = 1 << 20
"""Of one file."""

_NOT_TLS: Final = frozenset(
    {
        "BAD_RECORD_TYPE",
        "HTTPS_PROXY_REQUEST",
        "HTTP_REQUEST",
        "PACKET_LENGTH_TOO_LONG",
        "RECORD_LAYER_FAILURE",
        "UNKNOWN_PROTOCOL",
        "WRONG_VERSION_NUMBER",
    }
)
_OF_CERTIFICATES: Final = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it showed no certificate",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "it wants to be shown a certificate",
    "TLSV1_ALERT_UNKNOWN_CA": "it does not know the CA of the certificate it was shown",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "the certificate it was shown has expired",
    "SSLV3_ALERT_CERTIFICATE_REVOKED": "the certificate it was shown is revoked",
    "SSLV3_ALERT_BAD_CERTIFICATE": "the certificate it was shown is not one for this host, or is damaged",
    "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE": "the certificate it was shown is of a kind that it cannot use",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "it does not accept the certificate it was shown",
    "TLSV1_ALERT_ACCESS_DENIED": "it does not accept the certificate it was shown",
}
"""By OpenSSL's words for what was found here, and for what the peer says it has found."""


class TlsFiles(NamedTuple):
    """Where the certificate of a process is (with those between it and the CA, if there are any), its private key, and
    the certificates of the CA that everybody's are from. All of PEM."""

    cert: str | Path
    key: str | Path
    ca: str | Path

    @classmethod
    def of(cls, cert: str | Path | None, key: str | Path | None, ca: str | Path | None) -> TlsFiles | None:
        """From what may have been given; None if nothing was."""
        if cert is not None and key is not None and ca is not None:
            return cls(cert, key, ca)
        if cert is None and key is None and ca is None:
            return None
        raise InvalidArgument("tls_cert, tls_key and tls_ca are given together or not at all")


class Tls:
    """What connections are made secure with. Made by `load`."""

    def __init__(self, files: TlsFiles) -> None:
        self._dialing = _context(files, server=False)
        self._accepting = _context(files, server=True)
        certificate = _shake_hands_with_itself(files, self._accepting)
        self.not_after: Final = str(certificate["notAfter"])
        self.expires: Final = ssl.cert_time_to_seconds(self.not_after)
        """When it does, in seconds since 1970."""
        self.serial: Final = str(certificate["serialNumber"])
        self.believed: Final = [str(ca["serialNumber"]) for ca in self._dialing.get_ca_certs()]

    @classmethod
    def load(cls, files: TlsFiles) -> Tls:
        """Read the files; `TlsUnusable` says what is wrong with which of them."""
        for path, is_private in ((files.cert, False), (files.key, True), (files.ca, False)):
            _check_file(path, is_private=is_private)
        return cls(files)

    def dial(self, host: str) -> Channel:
        """One side of a connection to a server that has to be that host."""
        try:
            return Channel(self._dialing, host)
        except ValueError as error:
            raise InvalidArgument(f"{host!r} is not a name that a certificate can have: {error}") from None

    def accept(self) -> Channel:
        """One side of a connection that somebody else has made."""
        return Channel(self._accepting)

    def describe(self) -> str:
        """Which certificates they are, for people."""
        believed = " and ".join(self.believed)
        return f"certificate {self.serial}, good until {self.not_after}; those of CA {believed} are believed"


class Channel:
    """One side of one connection: what goes through it, encrypted on the one side and plain on the other. No I/O."""

    __slots__ = ("_arrived", "_leaving", "_tls")

    def __init__(self, context: ssl.SSLContext, host: str | None = None) -> None:
        """With a host it is the dialing side."""
        self._arrived = ssl.MemoryBIO()
        self._leaving = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._arrived, self._leaving, server_side=host is None, server_hostname=host)

    def feed(self, data: memoryview) -> None:
        """This has arrived from the peer."""
        self._arrived.write(data)

    def shake(self) -> bool:
        """Go on with the handshake; whether it is done. Raises `ssl.SSLError` if it never will be."""
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        return True

    def read(self, into: memoryview) -> tuple[int, bool]:
        """Decrypt what has arrived; how many bytes that is, and whether the peer has closed its side."""
        filled = 0
        with suppress(ssl.SSLWantReadError):
            while filled < len(into):
                count = cast(int, self._tls.read(len(into) - filled, into[filled:]))  # told where to, it says how much
                if not count:
                    return filled, True
                filled += count
        return filled, False

    def write(self, data: Buffer) -> None:
        """Encrypt this for the peer."""
        rest = memoryview(data)
        while rest:
            rest = rest[self._tls.write(rest) :]

    def leaving(self) -> bytes:
        """What is to be sent to the peer now."""
        return self._leaving.read()

    @property
    def holds_more(self) -> bool:
        """Whether something has arrived that was not read."""
        return self._tls.pending() > 0 or self._arrived.pending > 0


def is_tls(begin: memoryview) -> bool:
    """Whether a stream of bytes that begins so may be TLS."""
    return begin[0] in {HANDSHAKE, _ALERT} and (len(begin) < 2 or begin[1] == _MAJOR_VERSION)


def explain(error: ssl.SSLError, peer: str) -> VarlogError:
    """What became of a handshake, by the name of the error and in words."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return WrongCertificate(f"the certificate of {peer} is not accepted: {error.verify_message}")
    reason = error.reason or ""
    if reason in _OF_CERTIFICATES:
        return WrongCertificate(f"no TLS with {peer}: {_OF_CERTIFICATES[reason]}")
    if reason in _NOT_TLS:
        return TlsMismatch(f"{peer} does not speak TLS")
    return ProtocolError(f"TLS with {peer} failed: {reason or error}")


def _context(files: TlsFiles, *, server: bool) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    if server:
        context.num_tickets = 0
    try:
        context.load_verify_locations(cafile=files.ca)
    except (ssl.SSLError, OSError) as error:
        raise TlsUnusable(f"{files.ca} holds no certificates of a CA: {_said(error)}") from None
    try:
        context.load_cert_chain(files.cert, files.key, password=_refuse_to_ask)
    except (ssl.SSLError, OSError) as error:
        both = f"{files.cert} and {files.key}"
        raise TlsUnusable(f"{both} are not a certificate and its private key: {_said(error)}") from None
    return context


def _refuse_to_ask() -> NoReturn:
    raise TlsUnusable("the private key is encrypted, and nobody can be asked for its passphrase; store it without one")


def _shake_hands_with_itself(files: TlsFiles, accepting: ssl.SSLContext) -> dict[str, Any]:
    """The certificate, as the other side of a connection sees it."""
    anywhere = _context(files, server=False)
    anywhere.check_hostname = False
    to_server, to_dialer = ssl.MemoryBIO(), ssl.MemoryBIO()
    dialer = anywhere.wrap_bio(to_dialer, to_server)
    server = accepting.wrap_bio(to_server, to_dialer, server_side=True)
    try:
        for side in (dialer, server, dialer):  # one flight each; the next ends it for the server
            with suppress(ssl.SSLWantReadError):
                side.do_handshake()
        server.do_handshake()
    except ssl.SSLError as error:
        raise TlsUnusable(f"{files.cert} cannot be used with the CA {files.ca}: {_said(error)}") from None
    certificate = dialer.getpeercert()
    assert certificate
    return certificate


def _check_file(path: str | Path, *, is_private: bool) -> None:
    """OpenSSL does not say which file it is that it cannot read, and does not mind who else can."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            status = os.fstat(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise TlsUnusable(f"cannot read {path}: {error.strerror}") from None
    if is_private and (reason := complaint(path, "private key", status)):
        raise TlsUnusable(reason)
    if not stat.S_ISREG(status.st_mode):
        raise TlsUnusable(f"{path} is not a file")
    if status.st_size > _MOST_BYTES:
        raise TlsUnusable(f"{path} has more than {_MOST_BYTES} bytes; that is neither a certificate nor a key")


def _said(error: OSError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message
    if isinstance(error, ssl.SSLError):
        return (error.reason or str(error)).replace("_", " ").lower()
    return error.strerror or str(error)
