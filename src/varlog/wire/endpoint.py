"""Addresses of processes: `host:port`, with brackets around an IPv6 address (`[::1]:9091`)."""

from __future__ import annotations

from varlog.errors import InvalidArgument


def parse_address(address: str) -> tuple[str, int]:
    """Host and port."""
    host, colon, digits = address.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if bracketed:
        host = host[1:-1]
    if not colon or not host or (":" in host) != bracketed or not digits.isascii() or not digits.isdigit():
        raise InvalidArgument(f"{address!r} is not an address; write host:port, or [host]:port for IPv6")
    port = int(digits)
    if port > 0xFFFF:
        raise InvalidArgument(f"{address!r}: a port is at most 65535")
    return host, port


def format_address(name: object) -> str:
    """The address of a socket, from what the socket calls its name."""
    if not isinstance(name, tuple) or len(name) < 2:
        return str(name)
    host, port = name[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
