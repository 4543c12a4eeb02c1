"""The secret's file, and that nothing ever shows what is in it."""

from __future__ import annotations

import os
import pickle
import stat
import traceback
from itertools import pairwise
from pathlib import Path

import pytest

from tests.wire.peers import CLIENT, NODE, Recorder, run, serve
from varlog import errors
from varlog.wire import Role, Secret, dial
from varlog.wire.secret import add, promote, retire

KEY = bytes(range(7, 47))


def written(path: Path, text: str | bytes, mode: int = 0o600) -> Path:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    path.chmod(mode)
    return path


def test_a_new_secret_is_random_and_private(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    made = Secret.create(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(bytes.fromhex(path.read_text())) == 32
    assert Secret.load(path).proof(b"x") == made.proof(b"x")
    assert Secret.create(tmp_path / "other").proof(b"x") != made.proof(b"x")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["other", "secret"]


@pytest.mark.parametrize("path", ["", ".", "..", "/", "there", "there/"])
def test_a_new_secret_needs_the_name_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(errors.SecretUnusable, match=f"^{Path(path)} is a directory; name a file in it$"):
        Secret.create(path)
    assert [each.name for each in tmp_path.rglob("*")] == ["there"]


def test_a_new_secret_is_private_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        Secret.create(tmp_path / "secret")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "secret").stat().st_mode) == 0o600


def test_a_secret_is_never_replaced(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    Secret.create(path)
    before = path.read_bytes()
    with pytest.raises(errors.AlreadyExists, match="secret"):
        Secret.create(path)
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["secret"]


def test_a_secret_cannot_be_made_where_there_is_no_directory(tmp_path: Path) -> None:
    with pytest.raises(errors.SecretUnusable, match="No such file or directory"):
        Secret.create(tmp_path / "missing" / "secret")


def test_space_around_the_digits_and_capitals_are_allowed(tmp_path: Path) -> None:
    path = written(tmp_path / "secret", f"\n  {KEY.hex().upper()} \r\n")
    assert Secret.load(path).proof(b"x") == Secret(KEY).proof(b"x")


@pytest.mark.parametrize("mode", [0o604, 0o640, 0o602, 0o620, 0o601, 0o610, 0o644, 0o666])
def test_a_secret_that_others_may_use_is_refused(tmp_path: Path, mode: int) -> None:
    path = written(tmp_path / "secret", KEY.hex(), mode)
    with pytest.raises(errors.SecretUnusable, match=f"mode {mode:04o}.*chmod 600"):
        Secret.load(path)


@pytest.mark.parametrize("mode", [0o600, 0o400])
def test_a_secret_that_only_its_owner_may_use_is_taken(tmp_path: Path, mode: int) -> None:
    Secret.load(written(tmp_path / "secret", KEY.hex(), mode))


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("", "holds 0 bytes"),
        (KEY[:31].hex(), "holds 31 bytes"),
        ("not hexadecimal at all, though long enough to be a secret, one should think", "hexadecimal"),
        (KEY.hex() + "0", "hexadecimal"),
        (b"\xff" * 64, "hexadecimal"),
        ("ab" * 4000, "more than 4096 bytes"),
    ],
)
def test_what_is_no_secret_is_refused(tmp_path: Path, content: str | bytes, complaint: str) -> None:
    with pytest.raises(errors.SecretUnusable, match=complaint):
        Secret.load(written(tmp_path / "secret", content))


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(errors.SecretUnusable, match="No such file"):
        Secret.load(tmp_path / "missing")
    with pytest.raises(errors.SecretUnusable, match="not a file"):
        Secret.load(tmp_path)
    os.mkfifo(tmp_path / "fifo", 0o600)
    with pytest.raises(errors.SecretUnusable, match="not a file"):
        Secret.load(tmp_path / "fifo")


def shows(text: str) -> bool:
    digits = KEY.hex()
    return any(part in text for part in (repr(KEY)[2:-1], digits[:16], digits[-16:]))


def test_a_secret_is_not_shown() -> None:
    secret = Secret(KEY)
    assert shows(KEY.hex())
    assert not shows(f"{secret!r} {secret} {[secret]} {secret!a}")
    assert not hasattr(secret, "__dict__")
    with pytest.raises(TypeError, match="not written down"):
        pickle.dumps(secret)


@pytest.mark.parametrize("content", [KEY[:31].hex(), KEY.hex() + "x", KEY.hex() + " " + KEY.hex() + "!"])
def test_what_is_nearly_a_secret_is_not_shown(tmp_path: Path, content: str) -> None:
    with pytest.raises(errors.SecretUnusable) as refused:
        Secret.load(written(tmp_path / "secret", content))
    assert not shows("".join(traceback.format_exception(refused.value)))
    assert refused.value.__cause__ is None


def test_a_refused_hello_does_not_show_the_secret(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(0)

    async def main() -> None:
        server = await serve(Recorder(), NODE)
        with pytest.raises(errors.WrongSecret) as refused:
            await dial(server.address, CLIENT, Role.STORAGE_NODE, Secret(KEY), Recorder())
        assert not shows("".join(traceback.format_exception(refused.value)))
        await server.close()

    run(main())
    assert "no hello with" in caplog.text
    assert not shows(caplog.text)


# Several secrets in one file

OLD, NEW = Secret(KEY), Secret(bytes(range(32, 64)))
STATEMENT = b"what is proven"


def test_the_first_secret_is_proven_with_and_all_are_believed(tmp_path: Path) -> None:
    both = Secret.load(written(tmp_path / "secret", f"{KEY.hex()}\n\n{bytes(range(32, 64)).hex()}\n"))
    assert both.proof(STATEMENT) == OLD.proof(STATEMENT)
    assert both.proves(OLD.proof(STATEMENT), STATEMENT)
    assert both.proves(NEW.proof(STATEMENT), STATEMENT)
    assert not OLD.proves(NEW.proof(STATEMENT), STATEMENT)
    assert not both.proves(both.proof(b"something else"), STATEMENT)
    assert both.fingerprints() == [*OLD.fingerprints(), *NEW.fingerprints()]
    assert not shows(" ".join(both.fingerprints()))


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (f"{KEY.hex()}\n{KEY.hex()[:40]}", "holds 20 bytes"),
        (f"{KEY.hex()}\n{KEY.hex()[:41]}", "hexadecimal"),
        (f"{KEY.hex()}\n# a remark", "hexadecimal"),
        (f"{KEY.hex()}\n{KEY.hex()}", "twice"),
        ("\n".join(bytes([n] * 32).hex() for n in range(9)), "holds 9 secrets; it may hold 8"),
    ],
)
def test_a_file_with_something_else_among_its_secrets_is_refused(tmp_path: Path, content: str, complaint: str) -> None:
    with pytest.raises(errors.SecretUnusable, match=complaint):
        Secret.load(written(tmp_path / "secret", content))


def test_any_two_processes_one_step_apart_believe_each_other(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    stages = [Secret.create(path), add(path), promote(path), retire(path)]
    for stage, next_one in pairwise(stages):
        assert stage.proves(next_one.proof(STATEMENT), STATEMENT)
        assert next_one.proves(stage.proof(STATEMENT), STATEMENT)
    assert not stages[-1].proves(stages[0].proof(STATEMENT), STATEMENT)
    assert len(Secret.load(path).fingerprints()) == 1
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [each.name for each in tmp_path.iterdir()] == ["secret"]


def test_a_new_secret_can_be_taken_back(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    before = Secret.create(path).fingerprints()
    add(path)
    assert retire(path).fingerprints() == before


def test_steps_that_cannot_be_taken_change_nothing(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    Secret.create(path)
    with pytest.raises(errors.Conflict, match="add one first"):
        promote(path)
    for _ in range(7):
        add(path)
    before = path.read_bytes()
    with pytest.raises(errors.LimitExceeded, match="8 secrets"):
        add(path)
    path.chmod(0o644)
    for step in (add, promote, retire):
        with pytest.raises(errors.SecretUnusable, match="chmod 600"):
            step(path)
    assert path.read_bytes() == before


def test_a_link_to_the_secret_stays_one(tmp_path: Path) -> None:
    Secret.create(tmp_path / "secret")
    (tmp_path / "link").symlink_to("secret")
    add(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert len(Secret.load(tmp_path / "secret").fingerprints()) == 2
