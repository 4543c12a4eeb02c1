"""Logs: one line per event in either form, nothing secret in it, and never a failure of whoever logs."""

from __future__ import annotations

import json
import logging
import os
import pty
import re
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from varlog import limits
from varlog.daemon import logs
from varlog.wire.secret import Secret

KEY = bytes(range(32))


@pytest.fixture(autouse=True)
def unchanged_logging(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What `configure` does to the process is undone after each test."""
    monkeypatch.setattr(logs, "_way", logs._way)
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers[:] = []
    yield
    logging.captureWarnings(capture=False)
    root.handlers[:] = handlers
    root.setLevel(level)


def lines(captured: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in captured.readouterr().err.splitlines()]


def test_a_json_line_has_time_level_event_what_is_bound_and_the_rest(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(form="json", program="vsn", cluster=7)
    logs.get().bind(snid=3).info("ready", address="127.0.0.1:9091", replicas=[1, 2], idle=0.5, why=None)
    (line,) = lines(capsys)
    assert list(line)[:3] == ["timestamp", "level", "event"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z", line.pop("timestamp"))
    assert line == {
        "level": "info",
        "event": "ready",
        "program": "vsn",
        "cluster": 7,
        "snid": 3,
        "address": "127.0.0.1:9091",
        "replicas": [1, 2],
        "idle": 0.5,
        "why": None,
    }


def test_a_console_line_reads_as_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(form="console", program="vsn", cluster=7)
    logs.get().warning("slow disk", volume="/data", seconds=2)
    told = capsys.readouterr().err
    assert re.fullmatch(r"\S+Z \[warning +\] slow disk +program=vsn cluster=7 volume=/data seconds=2\n", told)


def test_auto_is_json_unless_stderr_is_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure()
    logs.get().info("ready")
    assert lines(capsys)[0]["event"] == "ready"

    terminal, stderr = pty.openpty()
    code = "from varlog.daemon import logs; logs.configure(); logs.get().info('ready')"
    subprocess.run([sys.executable, "-c", code], stderr=stderr, check=True)
    os.close(stderr)
    shown = os.read(terminal, 4096).decode()
    os.close(terminal)
    assert "ready" in shown
    assert not shown.startswith("{")


def test_nothing_below_the_level(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("warning", "json")
    logs.get().debug("a")
    logs.get().info("b")
    logs.get().warning("c")
    logging.getLogger("library").info("d")
    logging.getLogger("library").error("e")
    assert [line["event"] for line in lines(capsys)] == ["c", "e"]


def test_the_standard_logging_and_warnings_take_the_same_way(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(form="json", program="vmr")
    logging.getLogger("asyncio").warning("took %d ms", 120)
    logging.getLogger("asyncio").warning("took %d ms", "not a number")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(capture=True)
        warnings.warn("old habit", DeprecationWarning, stacklevel=1)
    took, odd, warned = lines(capsys)
    assert (took["event"], took["logger"], took["program"]) == ("took 120 ms", "asyncio", "vmr")
    assert odd["event"] == "took %d ms"
    assert "old habit" in warned["event"]


@pytest.mark.parametrize("form", ["json", "console"])
def test_a_secret_is_never_written(form: logs.Format, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "secret"
    secret = Secret.create(path)
    text = path.read_text().strip()
    key = bytes.fromhex(text)
    logs.configure("debug", form)
    log = logs.get()
    log.info(str(secret), it=secret, inside=[secret, {"deep": (secret,)}], raw=key, view=memoryview(key))
    log.info(
        "named", secret=text, cluster_secret=text, Secret=text, options={"secret": text, "list": [{"secret": text}]}
    )
    logging.getLogger("library").info("%s %r", secret, secret)
    try:
        raise ValueError("while it was at hand")
    except ValueError:
        log.exception("failed")
    written = capsys.readouterr().err
    assert text not in written
    assert key.decode("latin-1") not in written
    assert repr(key) not in written
    assert logs.REDACTED in written


def test_where_the_secret_lies_may_be_told(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(form="json")
    logs.get().info("config", secret_file="/etc/varlog/secret")
    assert lines(capsys)[0]["secret_file"] == "/etc/varlog/secret"


def test_bytes_are_counted_and_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(form="json")
    logs.get().info("append", batch=b"payload", view=memoryview(b"payload"), inside=[bytearray(b"payload")])
    (line,) = lines(capsys)
    assert (line["batch"], line["view"], line["inside"]) == ("[7 bytes]", "[7 bytes]", ["[7 bytes]"])


@pytest.mark.parametrize("form", ["json", "console"])
def test_a_text_from_outside_cannot_forge_a_line(form: logs.Format, capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(form=form)
    forged = "x\n2026-01-01T00:00:00Z [info] all is well\x1b[2J"
    logs.get().info("refused", detail=forged)
    logs.get().info(forged)
    logging.getLogger("library").warning(forged)
    written = capsys.readouterr().err
    assert len(written.splitlines()) == 3
    assert "\x1b[2J" not in written


@pytest.mark.parametrize("form", ["json", "console"])
def test_a_text_from_outside_is_cut_off(form: logs.Format, capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(form=form)
    long = "x\n\x1b[31m" * 100_000
    logs.get().info("connection closed", reason=long, inside=[long, {long: long}])
    logs.get().info("connection closed", reason="x" * limits.MAX_LOGGED)
    logging.getLogger("library").warning("no hello: %s", long)
    cut, whole, library = capsys.readouterr().err.splitlines()
    assert len(cut) < 40 * limits.MAX_LOGGED
    assert len(library) < 10 * limits.MAX_LOGGED
    for line in (cut, library):
        assert "... (70" in line, "and how long it was"
    assert "x" * limits.MAX_LOGGED in whole
    assert "characters)" not in whole


def test_an_exception_is_one_json_line_without_local_variables(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(form="json")
    hidden = KEY.hex()
    try:
        raise RuntimeError("broken")
    except RuntimeError:
        logs.get().exception("unexpected")
    (line,) = lines(capsys)
    assert line["level"] == "error"
    assert "RuntimeError: broken" in line["exception"]
    assert hidden not in line["exception"]


def test_whatever_is_logged_becomes_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(form="json")
    endless: list[Any] = []
    endless.append(endless)
    values = {"path": "\udc80", "endless": endless, "keys": {1: 2, (3,): 4}, "set": {1}, "type": int, "big": 1 << 80}
    logs.get().info("odd", **values)
    for key, value in values.items():
        logs.get().info(key, value=value)
    assert [line["event"].strip("'") for line in lines(capsys)] == ["odd", *values]


def test_a_log_that_cannot_be_written_is_nobodys_failure() -> None:
    code = "from varlog.daemon import logs; logs.configure(); logs.get().info('lost'); print('went on')"
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=full, text=True, check=False)
    assert done.stdout == "went on\n"


def test_threads_do_not_mix_their_lines(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(form="json")

    def work(number: int) -> None:
        for _ in range(100):
            logs.get().info("work", number=number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(line["number"] for line in lines(capsys)) == [n for n in range(4) for _ in range(100)]


def test_without_a_daemon_it_is_the_applications_logging(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    logging.getLogger().addHandler(caplog.handler)
    try:
        raise RuntimeError("broken")
    except RuntimeError:
        logs.get().bind(snid=1).exception("failed", secret="hidden", batch=b"payload")
    logs.get().warning("50% full")
    failed, full = caplog.records
    assert (failed.name, failed.levelname) == ("varlog", "ERROR")
    assert failed.getMessage() == f"failed snid=1 secret={logs.REDACTED} batch=[7 bytes]"
    assert failed.exc_info is not None
    assert isinstance(failed.exc_info[1], RuntimeError)
    assert full.getMessage() == "50% full"
    assert capsys.readouterr().out == ""


def test_an_application_keeps_its_own_structlog(capsys: pytest.CaptureFixture[str]) -> None:
    before = structlog.get_config()
    logs.configure(form="json")
    logs.get().info("ours")
    assert structlog.get_config() == before
    assert [line["event"] for line in lines(capsys)] == ["ours"]


def test_rich_can_be_imported_after_the_logs_and_is_not_imported_by_them() -> None:
    code = "import sys; from varlog.daemon import logs; assert 'rich' not in sys.modules; import rich.console"
    subprocess.run([sys.executable, "-c", code], check=True)
