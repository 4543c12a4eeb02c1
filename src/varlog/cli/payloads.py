"""How entries are shown: a payload may be any bytes, and nothing of it may break a terminal, a pipe or a parser.

| format   | one entry alone (`read`)        | in a list (`tail`, `subscribe`)                      |
|----------|---------------------------------|------------------------------------------------------|
| `text`   | its text and a newline          | position, then its text on one line                  |
| `hex`    | hexadecimal digits              | position, then the digits                            |
| `base64` | base64                          | position, then base64                                |
| `json`   | one JSON object                 | one JSON object to a line                            |
| `raw`    | its bytes, nothing added        | its bytes and a newline: what `append --lines` takes |

Text is for people: what is not UTF-8 is shown as `0x...`, and characters that would move the cursor or not be seen are
shown as escapes. Whoever needs the exact bytes takes one of the others.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from varlog import Entry


class Format(StrEnum):
    """How payloads are shown."""

    TEXT = "text"
    HEX = "hex"
    BASE64 = "base64"
    JSON = "json"
    RAW = "raw"


_SHORT_ESCAPES: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_SUSPECT: Final = re.compile(r"[^ -~]")
"""Cheap to look for; whether such a character is printable is asked of it alone."""


class EntryRecord(msgspec.Struct):
    """An entry as JSON."""

    glsn: int
    llsn: int
    log_stream: int
    timestamp: int
    """Microseconds since 1970."""
    encoding: str
    """Of `data`: text, hex or base64."""
    data: str


def text_of(data: bytes, *, keep: str = "\t") -> str:
    """The payload as text that can be printed; characters in `keep` stay as they are whatever they do."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return "0x" + data.hex()

    def escaped(match: re.Match[str]) -> str:
        char = match[0]
        if char in keep or char.isprintable():
            return char
        return _SHORT_ESCAPES.get(char) or char.encode("unicode_escape").decode()

    return _SUSPECT.sub(escaped, text)


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


_ENCODED: Final[dict[Format, Callable[[bytes], str]]] = {
    Format.TEXT: text_of,
    Format.HEX: bytes.hex,
    Format.BASE64: _base64,
}


def record_of(entry: Entry, form: Format) -> EntryRecord:
    """An entry as JSON: its data as hex or base64 if asked for, else as text, or as base64 if it is not UTF-8."""
    if form is Format.HEX:
        encoding, data = "hex", entry.data.hex()
    elif form is Format.BASE64:
        encoding, data = "base64", _base64(entry.data)
    else:
        try:
            encoding, data = "text", entry.data.decode()
        except UnicodeDecodeError:
            encoding, data = "base64", _base64(entry.data)
    return EntryRecord(entry.glsn, entry.llsn, entry.log_stream, entry.timestamp, encoding, data)


def shown_alone(entry: Entry, form: Format, *, json: bool) -> bytes:
    """What `read` prints of an entry."""
    if json or form is Format.JSON:
        return msgspec.json.encode(record_of(entry, form)) + b"\n"
    if form is Format.RAW:
        return entry.data
    text = text_of(entry.data, keep="\t\n") if form is Format.TEXT else _ENCODED[form](entry.data)
    return text.encode() + b"\n"


def shown_in_list(entries: Iterable[Entry], form: Format, *, json: bool, long: bool = False) -> bytes:
    """What `tail` and `subscribe` print of entries, made in one piece because there may be very many."""
    if json or form is Format.JSON:
        encode = msgspec.json.encode
        return b"".join([encode(record_of(entry, form)) + b"\n" for entry in entries])
    if form is Format.RAW:
        return b"".join([entry.data + b"\n" for entry in entries])
    encoded = _ENCODED[form]
    if long:
        lines = [
            f"{entry.glsn}  {time_of(entry.timestamp)}  {entry.log_stream}:{entry.llsn}  {encoded(entry.data)}\n"
            for entry in entries
        ]
    else:
        lines = [f"{entry.glsn}  {encoded(entry.data)}\n" for entry in entries]
    return "".join(lines).encode()


def time_of(timestamp: int) -> str:
    """Microseconds since 1970 as a date and time."""
    when = datetime.fromtimestamp(timestamp / 1_000_000, UTC)
    return when.isoformat(timespec="milliseconds").replace("+00:00", "Z")
