"""The command `varlog sim`, on toy runs."""

from __future__ import annotations

import msgspec
import pytest

from varlog.cli import app, main
from varlog.sim.command import campaign, replay
from varlog.sim.runner import run_checked

TOYS = "tests.sim.toy_runs"


def test_a_good_campaign_ends_with_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert campaign(1, 40, path=f"{TOYS}:well") == 0
    out = capsys.readouterr().out
    assert "2 of 40 seeds" in out
    assert "40 of 40 seeds" in out
    for words in ("seeds", "operations", "simulated hours", "weather", "rain"):
        assert words in out
    assert "200" in out


def test_a_violation_tells_seed_check_trace_and_how_to_replay(capsys: pytest.CaptureFixture[str]) -> None:
    assert campaign(1, 4, path=f"{TOYS}:badly_at_3") == 1
    out = capsys.readouterr().out
    assert "agreement: the two disagree" in out
    assert "1.000000" in out
    assert "varlog sim --seed 3" in out


def test_a_zero_fails_only_where_coverage_is_required(capsys: pytest.CaptureFixture[str]) -> None:
    assert campaign(1, 5, path=f"{TOYS}:well") == 0
    assert campaign(1, 5, path=f"{TOYS}:well", require_coverage=True) == 1
    assert "never exercised (weather): snow" in capsys.readouterr().out
    assert campaign(6, 5, path=f"{TOYS}:well", require_coverage=True) == 0


def test_json_is_the_only_output(capsys: pytest.CaptureFixture[str]) -> None:
    assert campaign(1, 4, path=f"{TOYS}:badly_at_3", json=True) == 1
    found = msgspec.json.decode(capsys.readouterr().out)
    assert found["seeds"] == 4
    assert found["operations"] == 20
    assert found["exercised"] == {"weather": {"rain": 2, "snow": 0}}
    assert found["never_exercised"] == ["snow"]
    (failure,) = found["failures"]
    assert failure["seed"] == 3
    assert failure["violations"] == [{"checker": "agreement", "message": "the two disagree"}]


def test_replay_shows_the_trace(capsys: pytest.CaptureFixture[str]) -> None:
    assert replay(1, path=f"{TOYS}:well") == 0
    assert "rained" in capsys.readouterr().out
    assert replay(3, path=f"{TOYS}:badly_at_3") == 1
    assert "agreement: the two disagree" in capsys.readouterr().out
    assert replay(3, path=f"{TOYS}:badly_at_3", json=True) == 1
    found = msgspec.json.decode(capsys.readouterr().out)
    assert len(found["trace"]) == 1


def test_the_course_is_told_on_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    course = run_checked(1, path=f"{TOYS}:well", trace=True).trace_hash
    replay(1, path=f"{TOYS}:well")
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "course" in line]
    assert line.endswith(f"simulated seconds, course {course}")


def test_help_explains_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sim", "--help"]) == 0
    out = capsys.readouterr().out
    for option in ("--seeds", "--first-seed", "--seed", "--jobs", "--json", "--require-coverage"):
        assert option in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--seeds", "0"], "--seeds"),
        (["--first-seed", "-1"], "--first-seed"),
        (["--seed", "-5"], "--seed"),
        (["--jobs", "0"], "--jobs"),
        (["--seed", "5", "--seeds", "10"], "--seed replays one seed, without --seeds"),
        (["--seed", "5", "--first-seed", "1"], "without --first-seed"),
        (["--seed", "5", "--require-coverage", "--jobs", "2"], "without --jobs and --require-coverage"),
    ],
)
def test_nonsense_is_refused(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        app(["sim", *arguments])
    assert ended.value.code == 2
    told = capsys.readouterr()
    assert not told.out
    assert said in told.err
