"""What is asked of arguments, wherever a caller hands them in: each is checked at the call, before anything is sent.

What is wrong raises `InvalidArgument`, which names the parameter and says what it must be. A whole number may be of any
kind that stands for one, as numpy's do; True and False are none, since whoever passes them means something else.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Iterable
from numbers import Real
from operator import index
from pathlib import Path
from typing import Any, Final

from varlog import limits
from varlog.batch import Codec
from varlog.errors import InvalidArgument
from varlog.types import MAX_ID, ClusterID, LogStreamID, StorageNodeID
from varlog.wire.tls import TlsFiles

MOST: Final = (1 << 63) - 1
"""The greatest that any position or count may be."""


def wrong(name: str, value: object, what: str) -> InvalidArgument:
    """Why a value is refused."""
    try:
        shown = reprlib.repr(value)
    except ValueError:  # a number that is too long to be written
        shown = f"of type {type(value).__name__}, and long"
    return InvalidArgument(f"{name} is {shown}, it must be {what}")


def check_whole(name: str, value: Any, what: str, least: float, most: float) -> int:
    """A whole number within bounds; `what` says what it stands for, and its bounds."""
    try:
        number = None if isinstance(value, bool) else index(value)
    except TypeError:
        number = None
    if number is None or not least <= number <= most:
        raise wrong(name, value, what)
    return number


def check_count(name: str, value: Any, least: int = 0, most: int = MOST) -> int:
    """How many of something."""
    bounds = f"from {least} on" if most == MOST else f"from {least} to {most}"
    return check_whole(name, value, f"a whole number {bounds}", least, most)


def check_position(name: str, value: Any) -> int:
    return check_whole(name, value, "a position: a whole number from 1 on", 1, MOST)


def check_end(value: Any) -> int | None:
    """The position that a range of the log ends before, if it ends."""
    return None if value is None else check_position("end", value)


def check_timestamp(timestamp: Any) -> int:
    what = "a whole number of microseconds since 1970"
    return check_whole("timestamp", timestamp, what, -math.inf, math.inf)


def check_affinity(affinity: Any) -> int | None:
    return None if affinity is None else check_count("affinity", affinity)


def check_window(window: Any) -> int:
    most = limits.DEDUP_SEQUENCES_PER_WRITER
    return check_whole("window", window, f"a number of batches from 1 to {most}", 1, most)


def check_node(name: str, snid: Any, least: int = 1) -> StorageNodeID:
    """The id of a storage node; with `least` 0 it may be left open."""
    return StorageNodeID(check_whole(name, snid, f"the id of a storage node, from 1 to {MAX_ID}", least, MAX_ID))


def check_nodes(name: str, snids: Any) -> tuple[StorageNodeID, ...]:
    if not isinstance(snids, Iterable):
        raise wrong(name, snids, "a sequence of ids of storage nodes")
    return tuple(check_node(name, snid) for snid in snids)


def check_stream(lsid: Any) -> LogStreamID:
    return LogStreamID(check_whole("lsid", lsid, f"the id of a log stream, from 1 to {MAX_ID}", 1, MAX_ID))


def check_cluster(name: str, cid: Any) -> ClusterID:
    return ClusterID(check_whole(name, cid, f"a cluster id, from 1 to {MAX_ID}", 1, MAX_ID))


def check_timeout(timeout: Any) -> float:
    seconds = _seconds(timeout)
    if not 0 < seconds < math.inf:
        raise wrong("timeout", timeout, "a number of seconds above 0")
    return seconds


def check_fill_after(fill_after: Any) -> float:
    seconds = _seconds(fill_after)
    if not 0 <= seconds < math.inf:
        raise wrong("fill_after", fill_after, "a number of seconds from 0 on")
    return seconds


def _seconds(value: Any) -> float:
    """Of what is no number, or too large a one, what no check lets pass."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.inf


def check_text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise wrong(name, value, "a text")
    return value


def check_path(name: str, value: Any) -> Path:
    if not isinstance(value, str | Path):
        raise wrong(name, value, "a path")
    return Path(value)


def check_directory(name: str, value: Any) -> Path:
    """A path that was meant: an empty one would be that of the current directory."""
    if value == "":
        raise wrong(name, value, "the path of a directory; '.' is the current one")
    return check_path(name, value)


def check_codec(codec: Any) -> Codec:
    if not isinstance(codec, Codec):
        raise wrong("codec", codec, "one of varlog.Codec")
    return codec


def check_tls(tls: Any) -> TlsFiles | None:
    if tls is not None and not isinstance(tls, TlsFiles):
        raise wrong("tls", tls, "varlog.TlsFiles, or None")
    return tls
