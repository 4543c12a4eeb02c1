"""Lines and files as `append` reads them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from varlog import limits
from varlog.cli.inputs import lines_of, whole
from varlog.errors import EntryTooLarge

T = TypeVar("T")


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reading, writing = os.pipe()
    yield reading, writing
    for descriptor in (reading, writing):
        try:
            os.close(descriptor)
        except OSError:
            continue  # the test has closed it


async def all_of(items: AsyncIterator[T]) -> list[T]:
    return [item async for item in items]


def lines_in(path: Path, content: bytes) -> list[bytes]:
    path.write_bytes(content)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return [line for group in asyncio.run(all_of(lines_of(descriptor))) for line in group]
    finally:
        os.close(descriptor)


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (b"", []),
        (b"\n", [b""]),
        (b"a\nb\n", [b"a", b"b"]),
        (b"a\n\nb", [b"a", b"", b"b"]),
        (b"a\r\nb\x00\xff\n", [b"a\r", b"b\x00\xff"]),
    ],
)
def test_a_line_is_what_stands_between_newlines(tmp_path: Path, content: bytes, lines: list[bytes]) -> None:
    assert lines_in(tmp_path / "file", content) == lines


def test_lines_longer_than_a_read_are_put_together(tmp_path: Path) -> None:
    lines = [bytes([65 + i]) * (i * 300 * limits.KIB + 1) for i in range(4)]
    assert lines_in(tmp_path / "file", b"\n".join(lines)) == lines


def test_a_line_does_not_wait_for_the_next(pipe: tuple[int, int]) -> None:
    async def read() -> None:
        lines = lines_of(pipe[0])
        os.write(pipe[1], b"one\ntwo\nthr")
        assert await anext(lines) == [b"one", b"two"]
        os.write(pipe[1], b"ee\n")
        assert await anext(lines) == [b"three"]
        os.write(pipe[1], b"end")
        os.close(pipe[1])
        assert await anext(lines) == [b"end"]
        with pytest.raises(StopAsyncIteration):
            await anext(lines)

    asyncio.run(read())


def test_waiting_for_input_can_be_interrupted(pipe: tuple[int, int]) -> None:
    async def read() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await all_of(lines_of(pipe[0]))
        assert not asyncio.get_running_loop().remove_reader(pipe[0]), "still watched"

    asyncio.run(read())


@pytest.mark.parametrize("read", [lambda descriptor: all_of(lines_of(descriptor)), lambda d: whole(d, "the file")])
def test_what_no_entry_can_hold_is_refused(tmp_path: Path, read: Callable[[int], object]) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(limits.MAX_ENTRY_BYTES + 1))
    descriptor = os.open(path, os.O_RDONLY)
    with pytest.raises(EntryTooLarge, match="longer than an entry may be"):
        asyncio.run(read(descriptor))  # type: ignore[arg-type]
    os.close(descriptor)


def test_a_file_is_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(os.urandom(limits.MIB) + b"\n\n")
    descriptor = os.open(path, os.O_RDONLY)
    assert asyncio.run(whole(descriptor, "file")) == path.read_bytes()
    os.close(descriptor)
