"""Logs of a daemon: one line per event on stderr, for people on a terminal, as JSON otherwise.

Everything goes through one chain: what daemons log with `get()`, and what libraries log with the standard `logging`
(asyncio's complaints, warnings, Varlog's own library modules). A line has the time (ISO, UTC), the level, the event,
what was bound for the whole process (program, cluster), and the rest as given.

In a process that is no daemon, where nobody calls `configure`, `get()` logs to the standard logger "varlog", and what
becomes of that is the application's choice. structlog's global configuration is the application's as well: it is
neither used nor changed here.

What always holds: a secret is never written, nor is the content of any bytes, because an entry's payload is nobody's
business in a log; a line is one line, and what a stranger put into a text makes it neither two nor long; and logging
never fails its caller, so a full disk under the log file loses log lines and nothing else.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, MutableMapping
from typing import Any, Final, Literal, NamedTuple, NoReturn, TextIO

import msgspec

from varlog import limits

# structlog imports rich if it can, for coloured tracebacks that are not used here. That would take longer than
# everything else in this package together, at every start of a daemon; so it is told for a moment that rich is missing.
_HIDE_RICH: Final = "rich" not in sys.modules
if _HIDE_RICH:
    sys.modules["rich"] = None  # type: ignore[assignment]
try:
    import structlog
finally:
    if _HIDE_RICH:
        del sys.modules["rich"]

Level = Literal["debug", "info", "warning", "error"]
Format = Literal["auto", "console", "json"]
Logger = structlog.typing.FilteringBoundLogger
Event = MutableMapping[str, Any]

REDACTED: Final = "[redacted]"
DEEPEST: Final = 6
"""Containers inside containers are looked into so far, and cut off there."""
TRACEBACKS: Final = frozenset({"exception", "stack"})

_bound: dict[str, Any] = {}


class _Way(NamedTuple):
    """What becomes of an event."""

    processors: list[Any]
    wrapper: type[Logger]
    output: Any


_way: _Way


def configure(level: Level = "info", form: Format = "auto", **bound: Any) -> None:
    """Send every log of this process to stderr, in that form, from that level on, with `bound` on each line."""
    global _way  # noqa: PLW0603  # a process has one log
    _bound.clear()
    _bound.update(bound)
    stream = sys.stderr
    console = form == "console" or (form == "auto" and stream.isatty())
    least = logging.getLevelNamesMapping()[level.upper()]
    _way = _Way(
        [
            _bind,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.StackInfoRenderer(),
            structlog.processors.format_exc_info,
            redact,
            *([_one_line, _console_renderer(stream)] if console else [_render_json]),
        ],
        structlog.make_filtering_bound_logger(least),
        _Output(stream),
    )
    logging.basicConfig(handlers=[_FromLogging()], level=least, force=True)
    logging.captureWarnings(capture=True)


def get() -> Logger:
    """The daemon's logger: `log.info("event", key=value, ...)`."""
    logger: Logger = structlog.wrap_logger(_way.output, processors=_way.processors, wrapper_class=_way.wrapper)
    return logger


def redact(_logger: Any, _method: str, event: Event) -> Event:
    """Replace what must not be shown, however deep it lies in a value, and cut off what is too long."""
    for key, value in event.items():
        if key not in TRACEBACKS or not isinstance(value, str):
            event[key] = REDACTED if _is_secret(key) else _clean(value, DEEPEST)
    return event


def _is_secret(key: object) -> bool:
    """A key that names a secret. Where the secret lies (`secret_file`) may be told."""
    return isinstance(key, str) and "secret" in key.lower() and not key.lower().endswith("file")


def _clean(value: Any, depth: int) -> Any:
    if isinstance(value, str):
        return _cut_off(value)
    if isinstance(value, int | float | None):
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return f"[{memoryview(value).nbytes} bytes]"
    if depth == 0:
        return "..."
    if isinstance(value, Mapping):
        return {_cut_off(str(k)): REDACTED if _is_secret(k) else _clean(v, depth - 1) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_clean(v, depth - 1) for v in value]
    return _cut_off(str(value))


def _cut_off(text: str) -> str:
    most = limits.MAX_LOGGED
    return text if len(text) <= most else f"{text[:most]}... ({len(text)} characters)"


def _bind(_logger: Any, _method: str, event: Event) -> Event:
    return {**_bound, **event}


def _one_line(_logger: Any, _method: str, event: Event) -> Event:
    """Show what is not printable as an escape: no text from outside may begin a line of its own or move the cursor."""
    for key, value in event.items():
        if isinstance(value, str) and key not in TRACEBACKS and not value.isprintable():
            event[key] = ascii(value)
    return event


def _console_renderer(stream: TextIO) -> structlog.dev.ConsoleRenderer:
    return structlog.dev.ConsoleRenderer(
        colors=stream.isatty(), sort_keys=False, exception_formatter=structlog.dev.plain_traceback
    )


def _render_json(_logger: Any, _method: str, event: Event) -> str:
    first = {key: event.pop(key) for key in ("timestamp", "level", "event") if key in event}
    line = {**first, **event}
    try:
        return msgspec.json.encode(line, enc_hook=str).decode()
    except (TypeError, ValueError):  # half a surrogate pair in a path, for example
        return msgspec.json.encode({key: ascii(value) for key, value in line.items()}).decode()


class _Output:
    """Where lines end up. Every level of structlog's calls one of these methods."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def msg(self, line: str) -> None:
        try:
            self._stream.write(line + "\n")
            self._stream.flush()
        except (OSError, ValueError):
            pass  # the log's disk is full or its reader is gone: that must not become the daemon's failure

    debug = info = warning = warn = error = critical = fatal = exception = log = msg


class _FromLogging(logging.Handler):
    """Takes the records of the standard `logging` into the same chain."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = record.getMessage()
        except (TypeError, ValueError):
            text = str(record.msg)
        get().log(record.levelno, text, logger=record.name, exc_info=record.exc_info)


def _to_logging(_logger: Any, method: str, event: Event) -> NoReturn:
    """Hand an event over to the standard `logging`."""
    exception, text = event.pop("exc_info", None), event.pop("event", "")
    told = " ".join([str(text), *(f"{key}={value}" for key, value in redact(None, method, event).items())])
    level = logging.getLevelNamesMapping()[method.upper()]
    logging.getLogger("varlog").log(level, "%s", told, exc_info=exception)
    raise structlog.DropEvent


_way = _Way([_to_logging], structlog.make_filtering_bound_logger("debug"), _Output(sys.stderr))
