"""`varlog append`, end to end."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
from pathlib import Path

from tests.cli.shell import COMMAND, SECONDS, Shell, ended, line_of
from varlog import limits
from varlog.cli import manual


def entries_of(shell: Shell, topic: str) -> bytes:
    """Everything in a topic, each followed by a newline."""
    done = shell.run("tail", "-n", "1000000", "--topic", topic, "--format", "raw")
    assert done.code == 0, done.err
    return done.out


def test_arguments_are_entries(shell: Shell, topic: str) -> None:
    assert shell.run("append", "--topic", topic, "one").text == "appended 1 entry: GLSN 1\n"
    assert shell.run("append", "--topic", topic, "two", "", "--", "-4").text == "appended 3 entries: GLSN 2 to 4\n"
    assert entries_of(shell, topic) == b"one\ntwo\n\n-4\n"


def test_json_tells_what_the_acknowledgement_means(shell: Shell, topic: str) -> None:
    record = shell.run("append", "--json", "--topic", topic, "one", "two").record
    assert all(key in manual.APPEND.examples for key in record)
    assert (record["glsn"], record["count"], record["replicas"], record["synced"]) == (1, 2, 3, True)


def test_lines_of_standard_input_are_entries(shell: Shell, topic: str) -> None:
    done = shell.feed(b"one\n\n\x00\xff\nlast", "append", "--topic", topic)
    assert done.text == "appended 4 entries: GLSN 1 to 4\n"
    assert entries_of(shell, topic) == b"one\n\n\x00\xff\nlast\n"


def test_many_lines_keep_their_order(shell: Shell, topic: str) -> None:
    lines = b"".join(b"%d\n" % number for number in range(200_000))
    results = shell.feed(lines, "append", "--topic", topic, "--json").records
    assert sum(result["count"] for result in results) == 200_000
    assert len(results) < 200, "batches are large under load"
    assert entries_of(shell, topic) == lines


def test_nothing_at_all_is_no_error(shell: Shell, topic: str) -> None:
    assert shell.feed(b"", "append", "--topic", topic).text == "appended nothing\n"


def test_standard_streams_may_be_closed(shell: Shell, topic: str) -> None:
    command = f"{shlex.join(COMMAND)} append --topic {topic}"
    for closed in ("x <&-", "y >&-", "z 2>&-", "<&-", "w <&- >&- 2>&-"):
        subprocess.run(f"{command} {closed}", shell=True, env=shell.environment, check=True, timeout=SECONDS)
    assert entries_of(shell, topic) == b"x\ny\nz\nw\n"


def test_a_file_is_one_entry_or_its_lines_are(shell: Shell, topic: str, tmp_path: Path) -> None:
    (tmp_path / "bytes").write_bytes(bytes(range(256)))
    (tmp_path / "lines").write_bytes(b"a\nb\n")
    file, lines = str(tmp_path / "bytes"), str(tmp_path / "lines")
    assert shell.run("append", "--topic", topic, "--file", file, "--file", lines).text.startswith("appended 2 entries")
    assert shell.run("append", "--topic", topic, "--file", lines, "--lines").text.startswith("appended 2 entries")
    assert shell.feed(b"x\ny\n", "append", "--topic", topic, "--file", "-").text == "appended 1 entry: GLSN 5\n"
    assert entries_of(shell, topic) == bytes(range(256)) + b"\na\nb\n\na\nb\nx\ny\n\n"
    assert shell.run("read", "1", "--topic", topic, "--format", "raw").out == bytes(range(256))


def test_lines_of_what_is_no_file_are_refused(shell: Shell, topic: str) -> None:
    done = shell.run("append", "--topic", topic, "--lines", "my access.log")
    assert (done.code, done.out) == (2, b"")
    meant = "--file 'my access.log' --lines"
    assert done.err == f"varlog: InvalidArgument: --lines is said of files, and none is named; did you mean {meant}?\n"
    assert entries_of(shell, topic) == b""
    assert shell.feed(b"x\ny\n", "append", "--topic", topic, "--lines").text.startswith("appended 2 entries")


def test_nothing_is_appended_if_a_file_cannot_be_read(shell: Shell, topic: str, tmp_path: Path) -> None:
    (tmp_path / "there").write_bytes(b"x")
    for wrong, why in ((tmp_path / "gone", "is not there"), (tmp_path, "is a directory")):
        done = shell.run("append", "--topic", topic, "--file", str(tmp_path / "there"), "--file", str(wrong))
        assert (done.code, done.out) == (2, b"")
        assert why in done.err
    assert entries_of(shell, topic) == b""


def test_what_was_appended_before_a_failure_is_told(shell: Shell, topic: str, tmp_path: Path) -> None:
    (tmp_path / "small").write_bytes(b"x")
    (tmp_path / "large").write_bytes(bytes(limits.MAX_ENTRY_BYTES + 1))
    files = ("--file", str(tmp_path / "small"), "--file", str(tmp_path / "large"))
    done = shell.run("append", "--topic", topic, *files)
    assert (done.code, done.out) == (1, b"")
    told, failure = done.err.splitlines()
    assert told == "varlog: appended 1 entry: GLSN 1; then it ended early"
    assert failure.startswith("varlog: EntryTooLarge: ")
    assert shell.run("append", "--json", "--topic", topic, *files).out.count(b"\n") == 1
    assert entries_of(shell, topic) == b"x\nx\n"


def test_a_line_is_appended_as_it_comes_and_ctrl_c_ends_it(shell: Shell, topic: str) -> None:
    with shell.spawn("append", "--topic", topic, "--json") as process:
        assert process.stdin is not None
        for number in (1, 2):
            process.stdin.write(b"line\n")
            process.stdin.flush()
            assert json.loads(line_of(process))["glsn"] == number
        process.send_signal(signal.SIGINT)
        assert ended(process) == (130, "")


def test_a_failure_ends_it_though_more_is_to_come(shell: Shell, topic: str) -> None:
    with shell.spawn("append", "--topic", topic, "--json", "--timeout", "1") as process:
        assert process.stdin is not None
        process.stdin.write(b"line\n")
        process.stdin.flush()
        assert json.loads(line_of(process))["glsn"] == 1
        assert shell.run("topic", "remove", topic).code == 0
        process.stdin.write(b"line\n")
        process.stdin.flush()
        code, told = ended(process)
        assert code == 1
        assert json.loads(told)["happened"] in {False, None}


def test_on_a_terminal_there_is_a_bar_and_a_last_word(shell: Shell, topic: str, tmp_path: Path) -> None:
    (tmp_path / "lines").write_bytes(b"line\n" * 1000)
    master, slave = os.openpty()
    arguments = ("append", "--topic", topic, "--lines", "--file", str(tmp_path / "lines"))
    with shell.spawn(*arguments, stdin=slave, stdout=slave, stderr=slave) as process:
        os.close(slave)
        shown = b""
        while chunk := read_terminal(master):
            shown += chunk
        assert process.wait() == 0
    os.close(master)
    assert b"1,000 entries" in shown
    assert shown.rstrip().endswith(b"appended 1,000 entries: GLSN 1 to 1000")


def read_terminal(master: int) -> bytes:
    """What a terminal shows next; nothing when everybody has left it."""
    try:
        return os.read(master, 65536)
    except OSError:
        return b""


def test_a_transaction_is_seen_as_a_whole_and_once(shell: Shell, topic: str) -> None:
    numbered = ("append", "--topic", topic, "--transaction", "load", "--number", "7")
    told = shell.run(*numbered, "one", "two").text
    assert told == "appended 2 entries: GLSN 1 to 2; committed at GLSN 3\n"
    assert shell.run(*numbered, "one", "two").text.startswith("appended nothing: number 7 of 'load' is committed")
    batches = shell.feed(b"three\n", "append", "--json", "--topic", topic, "--transaction", "load").records
    assert [(record["glsn"], record["count"]) for record in batches[:-1]] == [(4, 1)]
    assert all(key in manual.APPEND.examples for record in batches for key in record)
    assert (batches[-1]["commit"], batches[-1]["entries"]) == (5, 1)
    assert shell.run(*numbered, "--json", "one").record == {"transaction": None, "commit": 3, "entries": 0}
    assert entries_of(shell, topic) == b"one\ntwo\nthree\n"


def test_a_transaction_that_fails_leaves_nothing_to_be_seen(shell: Shell, topic: str, tmp_path: Path) -> None:
    (tmp_path / "small").write_bytes(b"seen by nobody")
    with (tmp_path / "large").open("wb") as large:
        large.truncate(limits.MAX_ENTRY_BYTES + 1)
    files = ("--file", str(tmp_path / "small"), "--file", str(tmp_path / "large"))
    failed = shell.run("append", "--topic", topic, "--transaction", "load", *files)
    assert failed.code != 0
    shell.run("append", "--topic", topic, "plain")
    assert entries_of(shell, topic) == b"plain\n"
    assert "--transaction" in shell.run("append", "--topic", topic, "--number", "3", "one").err


def test_what_is_given_is_appended_though_nobody_reads_the_results_any_more(shell: Shell, topic: str) -> None:
    with shell.spawn("append", "--json", "--topic", topic) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"one\n")
        process.stdin.flush()
        assert json.loads(line_of(process))["count"] == 1
        process.stdout.close()
        for count, line in enumerate((b"two\n", b"three\n"), 2):
            process.stdin.write(line)
            process.stdin.flush()
            while len(entries_of(shell, topic).splitlines()) < count:
                assert process.poll() is None
        process.stdin.close()
        assert ended(process) == (0, "")
    assert entries_of(shell, topic) == b"one\ntwo\nthree\n"


def test_results_that_cannot_be_written_do_not_say_that_nothing_happened(shell: Shell, topic: str) -> None:
    with (
        open("/dev/full", "wb") as full,
        shell.spawn("append", "--json", "--topic", topic, "x", stdout=full) as process,
    ):
        code, told = ended(process)
    assert code == 1
    failure = json.loads(told)
    assert failure["message"] == "standard output: No space left on device"
    assert failure["happened"] is None
    assert entries_of(shell, topic) == b"x\n"
