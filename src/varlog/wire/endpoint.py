"""Addresses of processes, `host:port` with brackets around an IPv6 address (`[::1]:9091`); sockets bound to them."""

from __future__ import annotations

import asyncio
import errno
import socket

from varlog.errors import CannotListen, InvalidArgument


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


def split_addresses(addresses: str) -> tuple[str, ...]:
    """Several addresses, separated by commas; each is one, and none is there twice."""
    found = tuple(part.strip() for part in addresses.split(","))
    for address in found:
        parse_address(address)
        if found.count(address) > 1:
            raise InvalidArgument(f"{address} is given twice")
    return found


def format_address(name: object) -> str:
    """The address of a socket, from what the socket calls its name."""
    if not isinstance(name, tuple) or len(name) < 2:
        return str(name)
    host, port = name[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


async def bind(address: str) -> socket.socket:
    """A socket bound to the first address that the host's name stands for."""
    host, port = parse_address(address)
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        family, kind, protocol, _, name = found[0]
        listening = socket.socket(family, kind, protocol)
    except OSError as error:
        raise cannot_listen(address, error) from error
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(name)
    except OSError as error:
        listening.close()
        raise cannot_listen(address, error) from error
    return listening


def cannot_listen(address: str, error: OSError) -> CannotListen:
    """What to tell of an address that could not be bound or listened at."""
    if error.errno == errno.EADDRINUSE:
        return CannotListen(f"{address} is taken by another process; stop it or choose another port")
    return CannotListen(f"cannot listen at {address}: {error.strerror or error}")
