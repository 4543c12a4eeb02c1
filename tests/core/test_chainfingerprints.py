"""Fingerprints of replicas of chains: equal of equal ones and of no others."""

from __future__ import annotations

import pytest

from tests.core.chains import batch_of, junk
from tests.core.writeonce_paper import PaperWriteOnceLog
from varlog import batch, limits
from varlog.core.fingerprints import Held, written_fingerprint
from varlog.types import GLSN, Epoch

PLACED = [(1, batch_of(1)), (2, batch_of(2, 3)), (9, junk(2)), (20, batch_of(20))]


def log_of(placed: list[tuple[int, bytes]], *, epoch: int = 1, time: int = 3) -> PaperWriteOnceLog:
    log = PaperWriteOnceLog()
    for glsn, content in placed:
        log.stage_writes(Epoch(epoch), [glsn], [time], [content], [batch.verify(content)])
    log.make_durable()
    return log


def of(log: PaperWriteOnceLog, begin: int = 1, end: int = 100) -> Held:
    return written_fingerprint(log, log.trim, GLSN(begin), GLSN(end))


def test_it_says_what_is_there_and_where() -> None:
    held = of(log_of(PLACED))
    assert (held.spans, held.batches, held.next_glsn, held.trim) == (((1, 5), (9, 11), (20, 21)), 4, 0, 0)


def test_equal_replicas_are_equal_in_whatever_order_and_epoch_they_were_written() -> None:
    assert of(log_of(PLACED)) == of(log_of(PLACED[::-1], epoch=4))


@pytest.mark.parametrize(
    "other",
    [
        log_of(PLACED, time=4),
        log_of(PLACED[:-1]),
        log_of([*PLACED, (30, junk())]),
        log_of([*PLACED[:-1], (20, batch_of(21))]),
        log_of([*PLACED[:-1], (21, batch_of(20))]),
    ],
)
def test_whatever_is_different_shows(other: PaperWriteOnceLog) -> None:
    assert of(log_of(PLACED)).content != of(other).content


def test_a_range_may_begin_and_end_anywhere() -> None:
    held = of(log_of(PLACED), 3, 10)
    assert (held.spans, held.batches) == (((3, 5), (9, 10)), 2)
    assert of(log_of(PLACED), 12, 20).spans == ()


def test_one_fingerprint_covers_so_much_and_says_where_to_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FINGERPRINT_BYTES", 100)
    first = of(log_of(PLACED))
    assert (first.batches, first.next_glsn) == (2, 5)
    assert of(log_of(PLACED), first.next_glsn).spans == ((9, 11), (20, 21))


def test_what_is_trimmed_is_left_out() -> None:
    log = log_of(PLACED)
    log.stage_trim(GLSN(3))
    held = written_fingerprint(log, GLSN(0), GLSN(1), GLSN(100))
    assert (held.trim, held.spans) == (3, ((4, 5), (9, 11), (20, 21)))
