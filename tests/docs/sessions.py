"""Replays what a page shows of terminals and programs, and holds it against what really happens.

A page tells one story in one directory, from top to bottom. Of its fenced blocks

- `console` is a session: a line that begins with `$ ` is a command, what follows is what it prints. A command that goes
  on (`varlog dev`, `tail -f`, a daemon with `&`) is left running until the page ends, or until a `kill -9 %?WORD` finds
  WORD in it, as the shell's job control does;
- `python` is a program, run in that directory;
- `text`, directly after one of these, is what the program prints, or what the command that goes on prints further;
- `toml` that begins with a comment of a file's name is that file.

Everything else is not run, nor is a session after `<!-- on ... -->`: that one happens on several machines and is
followed by `tests/cluster/deployment.py`. A line `...` stands for any number of lines. Times, addresses, process ids,
fingerprints and sizes are compared by their form only, and so are all numbers of a block after `<!-- numbers vary -->`.
Well-known ports become free ones when commands run, and are put back in what is printed.
"""

from __future__ import annotations

import os
import random
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from threading import Event
from time import monotonic
from typing import Final, NamedTuple

SECONDS: Final = 180.0
"""For one command; it may have to start Spark, on a machine with much else to do."""
ANYTHING: Final = "..."

_BLOCK: Final = re.compile(
    r"^(?:<!-- (?P<remark>[\w ]+) -->\n+)?```(?P<tag>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)
_FILE: Final = re.compile(r"# (\w+\.toml)\n")
_PORT: Final = re.compile(r"(?<=:)9[01]9\d\b")
_EXPORT: Final = re.compile(r"export (\w+)=(\S+)")
_GOES_ON: Final = re.compile(r"varlog dev\b|.* -f\b|.*&$", re.DOTALL)
_LOG_OF_DAEMON: Final = re.compile(r"2> (\S+) &$")
_KILL: Final = re.compile(r"kill (?:-(\d+) )?%\?(\S+)")
_VARYING: Final = (
    (re.compile(r"\d{4}-\d\d-\d\d[T ][\d:.]+Z?"), "TIME"),
    (re.compile(r"127\.0\.0\.1:\d+"), "ADDRESS"),
    (re.compile(r"\bpid \d+"), "pid N"),
    (re.compile(r"\b[0-9a-f]{8}\b"), "FINGERPRINT"),
    (re.compile(r"\"timestamp\":\d+"), '"timestamp":N'),
    (re.compile(r"\d[\d,.]*(?= (?:B|kB|MB|GB|TB|s|ms|seconds)\b)"), "N"),
)
_NUMBER: Final = re.compile(r"\d[\d,.]*")
_FILLING: Final = re.compile(r"[ ─━]+")


class Block(NamedTuple):
    """One fenced block of a page, and where its text is."""

    tag: str
    text: str
    begin: int
    end: int
    remark: str


def blocks_of(page: str) -> Iterator[Block]:
    for found in _BLOCK.finditer(page):
        yield Block(found["tag"], found["text"], *found.span("text"), found["remark"] or "")


def form_of(line: str, *, numbers_vary: bool = False) -> str:
    """A line without what differs from run to run."""
    for varying, name in _VARYING:
        line = varying.sub(name, line)
    if numbers_vary:
        line = _NUMBER.sub("N", line)
    return _FILLING.sub(" ", line).strip()


def align(shown: Sequence[str], real: Sequence[str], *, numbers_vary: bool = False) -> list[str] | None:
    """The real lines in place of the shown ones; None if what is shown is not what there is."""

    def form(line: str) -> str:
        return form_of(line, numbers_vary=numbers_vary)

    aligned: list[str] = []
    at = 0
    pieces = [piece.splitlines() for piece in re.split(r"^\.\.\.$\n?", "\n".join([*shown, ""]), flags=re.MULTILINE)]
    for number, piece in enumerate(pieces):
        wanted = [form(line) for line in piece]
        places = range(at, len(real) - len(piece) + 1)
        if number == 0:
            places = places[:1]
        if number == len(pieces) - 1:  # an end that is shown is the end
            places = places[-1:] if number else places if len(piece) == len(real) else range(0)
        place = next((p for p in places if [form(line) for line in real[p : p + len(piece)]] == wanted), None)
        if place is None:
            return None
        at = place + len(piece)
        aligned += [*real[place:at], *([ANYTHING] if number < len(pieces) - 1 else [])]
    return aligned


class _Running:
    """A command that goes on."""

    def __init__(self, command: str, process: subprocess.Popen[bytes], output: Path) -> None:
        self.command = command
        self._process = process
        self._output = output
        self._seen = 0

    def lines(self, count: int) -> list[str]:
        """So many lines more, waited for."""
        until(lambda: len(self._lines()) >= self._seen + count or self._process.poll() is not None)
        new = self._lines()[self._seen : self._seen + count]
        self._seen += len(new)
        return new

    def _lines(self) -> list[str]:
        return [line.rstrip("\n") for line in self._output.read_text().splitlines(keepends=True) if line.endswith("\n")]

    @property
    def is_over(self) -> bool:
        return self._process.poll() is not None

    def end(self, number: int = signal.SIGINT) -> None:
        self._process.send_signal(number)
        try:
            self._process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def until(condition: Callable[[], bool]) -> None:
    """Look again and again until it holds; another process brings it about."""
    deadline, pause = monotonic() + SECONDS, Event()
    while not condition():
        assert monotonic() < deadline, "it did not happen in time"
        pause.wait(0.02)


class Terminal:
    """Where a page's commands run."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._ports: dict[str, str] = {}
        self._running: list[_Running] = []
        environment = {key: value for key, value in os.environ.items() if not key.startswith("VARLOG_")}
        path = f"{Path(sys.executable).parent}{os.pathsep}{environment.get('PATH', '')}"
        self._environment = {**environment, "PATH": path, "COLUMNS": "200"}

    def close(self) -> None:
        for running in reversed(self._running):
            running.end()

    def file(self, name: str, text: str) -> None:
        (self._directory / name).write_text(self._with_free_ports(text))

    def session(self, text: str) -> list[str]:
        """The session as it really goes."""
        lines: list[str] = []
        for command, shown in _commands(text):
            lines += [f"$ {line}" if number == 0 else line for number, line in enumerate(command.split("\n"))]
            if exported := _EXPORT.fullmatch(command):
                self._environment[exported[1]] = exported[2]
            elif killed := _KILL.fullmatch(command):
                (job,) = [job for job in self._running if killed[2] in job.command and not job.is_over]
                job.end(int(killed[1] or signal.SIGTERM))
            elif _GOES_ON.fullmatch(command):
                self._start(command)
                lines += self.further(shown)
            else:
                lines += self._run(["bash", "-c", self._with_free_ports(command)])[1]
        return lines

    def program(self, code: str) -> list[str]:
        """What a Python program prints."""
        status, lines = self._run([sys.executable, "-W", "error", "-c", self._with_free_ports(code)])
        assert status == 0, "\n".join(lines)
        return lines

    def further(self, count: int) -> list[str]:
        """What the command prints that was started last and goes on."""
        return [self._with_known_ports(line) for line in self._running[-1].lines(count)]

    def _run(self, command: Sequence[str]) -> tuple[int, list[str]]:
        done = subprocess.run(
            command,
            cwd=self._directory,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        return done.returncode, self._with_known_ports(done.stdout).splitlines()

    def _start(self, command: str) -> None:
        program = self._with_free_ports(command).removesuffix("&")
        if program.startswith("varlog dev"):
            program += " --port " + self._with_free_ports(":9092")[1:]
        log = _LOG_OF_DAEMON.search(command)
        path = self._directory / log[1] if log is not None else None
        if path is not None:
            path.unlink(missing_ok=True)  # it may be of a process before this one
        output = self._directory / f"output-{len(self._running)}"
        with output.open("wb") as file:
            process = subprocess.Popen(
                ["bash", "-c", f"exec {program}"],
                cwd=self._directory,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            )
        self._running.append(_Running(command, process, output))
        if path is not None:
            until(lambda: process.poll() is not None or (path.exists() and "ready" in path.read_text()))

    def _with_free_ports(self, text: str) -> str:
        return _PORT.sub(lambda found: self._ports.setdefault(found[0], _free_port()), text)

    def _with_known_ports(self, text: str) -> str:
        for known, free in self._ports.items():
            text = text.replace(f":{free}", f":{known}")
        return text


def _commands(text: str) -> Iterator[tuple[str, int]]:
    """Each command, and how many lines of output are shown."""
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        lines = part.splitlines()
        end = next(number for number, line in enumerate(lines) if not line.endswith("\\")) + 1
        yield "\n".join(lines[:end]), len(lines) - end


def _free_port() -> str:
    """One that the operating system does not hand out by itself, so that nobody takes it before it is used; as long as
    the well-known one, so that tables stay in line."""
    while True:
        port = random.SystemRandom().randrange(5000, 9000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return str(port)


def replay(page: str, directory: Path) -> tuple[str, list[str]]:
    """The page as it really is, and how the shown one differs."""
    terminal = Terminal(directory)
    real: list[tuple[Block, list[str]]] = []
    printed: list[str] | None = None
    """What the program before has printed."""
    try:
        for block in blocks_of(page):
            match block.tag:
                case "toml" if named := _FILE.match(block.text):
                    terminal.file(named[1], block.text)
                case "console" if not block.remark.startswith("on "):
                    printed = None
                    real.append((block, terminal.session(block.text)))
                case "python":
                    printed = terminal.program(block.text)
                case "text":
                    lines = block.text.splitlines()
                    real.append((block, terminal.further(len(lines)) if printed is None else printed))
                case _:
                    pass
    finally:
        terminal.close()
    return _compared(page, real)


def _compared(page: str, real: Sequence[tuple[Block, list[str]]]) -> tuple[str, list[str]]:
    differences: list[str] = []
    for block, lines in reversed(real):
        aligned = align(block.text.splitlines(), lines, numbers_vary=block.remark == "numbers vary")
        if aligned is None:
            differences.insert(0, f"shown:\n{block.text}\nreal:\n" + "\n".join(lines) + "\n")
        page = page[: block.begin] + "\n".join([*(aligned or lines), ""]) + page[block.end :]
    return page, differences
