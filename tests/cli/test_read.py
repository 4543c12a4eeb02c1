"""`varlog read`, `tail`, `subscribe` and `trim`, end to end."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
from pathlib import Path

import pytest

import varlog
from tests.cli.shell import COMMAND, SECONDS, Shell, ended, line_of
from tests.client.archiving import archive
from varlog.cli import manual


@pytest.fixture
def filled(shell: Shell, topic: str) -> str:
    """A topic with the entries e1 to e20."""
    assert shell.run("append", "--topic", topic, *(f"e{number}" for number in range(1, 21))).code == 0
    return topic


def test_an_entry_is_read_in_every_format(shell: Shell, filled: str) -> None:
    shown = {
        form: shell.run("read", "7", "--topic", filled, "--format", form).text for form in ("text", "hex", "base64")
    }
    assert shown == {"text": "e7\n", "hex": "6537\n", "base64": "ZTc=\n"}
    assert shell.run("read", "7", "--topic", filled, "--format", "raw").out == b"e7"
    record = shell.run("read", "7", "--topic", filled, "--json").record
    assert all(key in manual.READ.examples for key in record)
    assert (record["glsn"], record["encoding"], record["data"]) == (7, "text", "e7")
    for form in ("hex", "base64"):
        encoding = shell.run("read", "7", "--topic", filled, "--json", "--format", form).record["encoding"]
        assert encoding == form
        assert encoding in manual.READ.examples


def test_a_position_beyond_the_tail_is_an_error_that_tells_the_tail(shell: Shell, filled: str) -> None:
    code, out, err = shell.run("read", "21", "--topic", filled)
    assert (code, out) == (1, b"")
    assert err.startswith("varlog: Unwritten: ")
    assert "20" in err
    failure = shell.run("read", "21", "--topic", filled, "--json").failure
    assert (failure["error"], failure["code"], failure["happened"]) == ("Unwritten", 51, False)


def test_tail_shows_the_last_entries(shell: Shell, filled: str) -> None:
    assert shell.run("tail", "--topic", filled).text == "".join(f"{n}  e{n}\n" for n in range(11, 21))
    assert shell.run("tail", "--topic", filled, "-n", "2").text == "19  e19\n20  e20\n"
    assert shell.run("tail", "--topic", filled, "-n", "0").text == ""
    assert len(shell.run("tail", "--topic", filled, "-n", "100", "--json").records) == 20
    (line,) = shell.run("tail", "--topic", filled, "-n", "1", "-l").text.splitlines()
    assert line.startswith("20  20")
    assert line.endswith("e20")


def test_what_is_not_committed_is_shown_only_if_asked_for(shell: Shell, topic: str) -> None:
    async def write() -> None:
        async with varlog.connect(shell.cluster, topic=topic) as log:
            await log.append(b"plain")
            transaction = await log.begin("job", expires=600)
            await transaction.append(b"of a transaction")
            await log.append(b"behind it")

    asyncio.run(write())
    assert shell.run("tail", "--topic", topic).text == "1  plain\n"
    whole = "1  plain\n2  of a transaction\n3  behind it\n"
    assert shell.run("tail", "--topic", topic, "--uncommitted").text == whole
    assert shell.run("subscribe", "--to", "3", "--topic", topic, "--uncommitted").text == whole
    assert shell.run("read", "2", "--topic", topic, "--uncommitted").text == "of a transaction\n"
    code, _, err = shell.run("read", "2", "--topic", topic, "--timeout", "0.2")
    assert code != 0
    assert err.startswith("varlog: TransactionOpen: position 2 is of transaction")


def test_tail_counts_entries_and_not_the_positions_that_hold_none(shell: Shell, topic: str) -> None:
    assert shell.run("append", "--topic", topic, "a", "b", "c").code == 0
    for name in ("d", "e"):
        assert shell.run("append", "--topic", topic, "--transaction", name, name).code == 0
    shown = {number: shell.run("tail", "--topic", topic, "-n", str(number)).text.split()[1::2] for number in range(7)}
    assert shown == {
        0: [],
        1: ["e"],
        2: ["d", "e"],
        3: ["c", "d", "e"],
        4: list("bcde"),
        5: list("abcde"),
        6: list("abcde"),
    }


def test_tail_of_an_empty_topic_is_empty(shell: Shell, topic: str) -> None:
    assert shell.run("tail", "--topic", topic).text == ""


def test_P1_what_was_trimmed_is_shown_from_the_archive(shell: Shell, filled: str, tmp_path: Path) -> None:
    async def archived() -> None:
        async with varlog.connect(shell.cluster, topic=filled) as log:
            await archive(log, tmp_path / "archive", 1, 16)

    asyncio.run(archived())
    place = str(tmp_path / "archive")
    attached = shell.run("topic", "attach-archive", filled, place, "--json").record
    assert attached == {"topic": filled, "archive": place}
    assert shell.run("trim", "12", "--topic", filled).code == 0
    assert shell.run("read", "3", "--topic", filled).text == "e3\n"
    everything = "".join(f"{n}  e{n}\n" for n in range(1, 21))
    assert shell.run("tail", "-n", "100", "--topic", filled).text == everything
    assert shell.run("tail", "-n", "7", "--topic", filled).text == "".join(f"{n}  e{n}\n" for n in range(14, 21))
    assert shell.run("subscribe", "--to", "20", "--topic", filled).text == everything
    assert shell.run("subscribe", "--from", "10", "--to", "14", "--topic", filled).text.startswith("10  e10")
    assert shell.run("topic", "describe", filled, "--json").record["archive"] == place
    for shown in (shell.run("topic", "describe", filled), shell.run("status")):
        assert f"topic {filled}: what was trimmed is read from the archive at {place}" in shown.text
    assert "cannot be read any more" in shell.run("topic", "detach-archive", filled).text
    failure = shell.run("read", "3", "--topic", filled, "--json").failure
    assert (failure["error"], failure["code"]) == ("Trimmed", 48)
    assert shell.run("subscribe", "--to", "20", "--topic", filled).text.startswith("13  e13")
    nothing = shell.run("topic", "attach-archive", filled, str(tmp_path / "nothing"), "--json").failure
    assert nothing["error"] == "NoArchive"


def test_tail_follows_until_it_is_interrupted(shell: Shell, filled: str) -> None:
    with shell.spawn("tail", "-f", "-n", "1", "--topic", filled) as process:
        assert line_of(process) == "20  e20"
        for number in (21, 22):
            shell.run("append", "--topic", filled, f"e{number}")
            assert line_of(process) == f"{number}  e{number}"
        process.send_signal(signal.SIGINT)
        assert ended(process) == (130, "")


def test_tail_ends_quietly_when_nobody_reads_it_any_more(shell: Shell, filled: str) -> None:
    """And at once: not only when the next entry comes, which may be never."""
    with shell.spawn("tail", "-f", "--topic", filled) as process:
        assert process.stdout is not None
        assert line_of(process) == "11  e11"
        process.stdout.close()
        assert ended(process) == (0, "")


def test_a_pipe_that_closes_in_the_middle_is_no_error(shell: Shell, topic: str) -> None:
    assert shell.feed(b"x" * 100 + b"\n" + b"line\n" * 100_000, "append", "--topic", topic).code == 0
    with shell.spawn("subscribe", "--topic", topic, "--to", "100001") as process:
        assert process.stdout is not None
        assert line_of(process).startswith("1  xxx")
        process.stdout.close()
        assert ended(process) == (0, "")


def test_subscribe_goes_from_a_position_to_a_position(shell: Shell, filled: str) -> None:
    assert shell.run("subscribe", "--topic", filled, "--from", "3", "--to", "5").text == "3  e3\n4  e4\n5  e5\n"
    assert shell.run("subscribe", "--topic", filled, "--to", "2", "--format", "raw").out == b"e1\ne2\n"


def test_subscribe_waits_for_what_is_yet_to_come(shell: Shell, filled: str) -> None:
    with shell.spawn("subscribe", "--topic", filled, "--from", "20", "--to", "21", "--json") as process:
        assert json.loads(line_of(process))["glsn"] == 20
        shell.run("append", "--topic", filled, "more")
        assert json.loads(line_of(process))["data"] == "more"
        assert ended(process) == (0, "")


def test_what_is_trimmed_is_gone_and_says_so(shell: Shell, filled: str) -> None:
    record = shell.run("trim", "5", "--topic", filled, "--json").record
    assert all(key in manual.TRIM.examples for key in record)
    assert record == {"topic": filled, "trimmed": 5, "first": 6}
    assert shell.run("trim", "10", "--topic", filled).text == f"topic {filled!r} now begins at GLSN 11\n"
    code, out, err = shell.run("read", "3", "--topic", filled)
    assert (code, out) == (1, b"")
    assert err == "varlog: Trimmed: trimmed: the log now begins at 11; read from there on\n"
    assert shell.run("subscribe", "--from", "3", "--topic", filled, "--json").failure["error"] == "Trimmed"
    assert shell.run("tail", "-n", "100", "--topic", filled).text.startswith("11  e11\n")
    assert shell.run("subscribe", "--to", "11", "--topic", filled).text == "11  e11\n"
    assert shell.run("trim", "1000", "--topic", filled).code == 2


def test_an_unknown_topic_is_told_with_those_that_exist(shell: Shell, topic: str) -> None:
    code, out, err = shell.run("tail", "--topic", "no-such")
    assert (code, out) == (1, b"")
    assert err.startswith("varlog: UnknownTopic: there is no topic 'no-such'")
    assert repr(topic) in err
    assert "varlog topic add" in err


def test_output_is_utf8_whatever_the_locale_says(shell: Shell, topic: str) -> None:
    shell.run("append", "--topic", topic, "grüß dich")
    environment = shell.environment | {"LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    command = [*COMMAND, "tail", "--topic", topic]
    done = subprocess.run(command, capture_output=True, env=environment, check=True, timeout=SECONDS)
    assert done.stdout.decode() == "1  grüß dich\n"
