"""Addresses as people write them."""

from __future__ import annotations

import pytest

from varlog.errors import InvalidArgument
from varlog.wire.endpoint import format_address, parse_address


@pytest.mark.parametrize(
    ("address", "host", "port"),
    [
        ("127.0.0.1:9091", "127.0.0.1", 9091),
        ("node-1.example:0", "node-1.example", 0),
        ("[::1]:65535", "::1", 65535),
        ("localhost:1", "localhost", 1),
    ],
)
def test_addresses_are_read(address: str, host: str, port: int) -> None:
    assert parse_address(address) == (host, port)


@pytest.mark.parametrize(
    "address",
    [
        "",
        ":",
        "host",
        "host:",
        ":9091",
        "::1:9091",
        "[::1]",
        "[::1:9091",
        "host:x",
        "host:-1",
        "host:65536",
        "h:\u0661",
    ],
)
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(InvalidArgument, match=r"is not an address|at most 65535"):
        parse_address(address)


@pytest.mark.parametrize("address", ["127.0.0.1:9091", "[::1]:9091"])
def test_the_name_of_a_socket_is_an_address(address: str) -> None:
    host, port = parse_address(address)
    assert format_address((host, port)) == address
    assert format_address((host, port, 0, 0)) == address
