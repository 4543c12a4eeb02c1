"""Entries as they are shown: any bytes, in every format."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from varlog import Entry
from varlog.cli.payloads import Format, shown_alone, shown_in_list, text_of, time_of
from varlog.types import GLSN, LLSN, LogStreamID

TIME = 1_700_000_000_123_456

anything = st.one_of(st.binary(max_size=60), st.text(max_size=30).map(lambda text: text.encode("utf-8", "replace")))


def entry(data: bytes) -> Entry:
    return Entry(GLSN(17), data, LLSN(5), LogStreamID(3), TIME)


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (b"hello", "hello"),
        (b"", ""),
        ("grüß dich, 世界".encode(), "grüß dich, 世界"),
        (b"\x00\xff\x01", "0x00ff01"),
        (b"two\nlines\r\n", "two\\nlines\\r\\n"),
        (b"a\tb", "a\tb"),
        (b"\x1b[31mred\x07", "\\x1b[31mred\\x07"),
        ("zero\u200bwidth\u202e".encode(), "zero\\u200bwidth\\u202e"),
        (b"\xed\xa0\x80", "0xeda080"),
    ],
)
def test_text_is_for_people(data: bytes, shown: str) -> None:
    assert text_of(data) == shown


def test_an_entry_alone_may_have_lines() -> None:
    assert shown_alone(entry(b"two\nlines"), Format.TEXT, json=False) == b"two\nlines\n"


@given(data=anything)
def test_nothing_in_a_list_breaks_its_line_or_the_terminal(data: bytes) -> None:
    line = shown_in_list([entry(data)], Format.TEXT, json=False).decode()
    assert line.endswith("\n")
    assert line[:-1].replace("\t", "").isprintable()


@given(data=anything)
def test_exact_bytes_can_be_had_back(data: bytes) -> None:
    def shown(form: Format) -> bytes:
        line = shown_in_list([entry(data)], form, json=False)
        assert line.startswith(b"17  ")
        return line.removeprefix(b"17  ").removesuffix(b"\n")

    assert bytes.fromhex(shown(Format.HEX).decode()) == data
    assert base64.b64decode(shown(Format.BASE64)) == data
    assert shown_alone(entry(data), Format.RAW, json=False) == data
    assert shown_in_list([entry(data)] * 2, Format.RAW, json=False) == (data + b"\n") * 2


@given(data=anything)
@pytest.mark.parametrize("form", Format)
def test_json_says_how_to_read_it(form: Format, data: bytes) -> None:
    record = json.loads(shown_alone(entry(data), form, json=True))
    encoding, held = record.pop("encoding"), record.pop("data")
    decoders = {"text": str.encode, "hex": bytes.fromhex, "base64": base64.b64decode}
    assert decoders[encoding](held) == data
    assert form not in {Format.HEX, Format.BASE64} or encoding == form
    assert record == {"glsn": 17, "llsn": 5, "log_stream": 3, "timestamp": TIME}
    assert shown_in_list([entry(data)], Format.JSON, json=False) == shown_alone(entry(data), Format.TEXT, json=True)


def test_a_long_line_tells_when_and_where() -> None:
    line = shown_in_list([entry(b"hello")], Format.TEXT, json=False, long=True)
    assert line == b"17  2023-11-14T22:13:20.123Z  3:5  hello\n"
    assert time_of(0) == "1970-01-01T00:00:00.000Z"
