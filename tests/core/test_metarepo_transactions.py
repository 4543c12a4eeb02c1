"""What the metadata repository does when transactions are begun and ended in masses: they share writes, with each other
and with the cut that is due, as far as one does not depend on another."""

from __future__ import annotations

import pytest

from tests.core.repository import ONE, TOPIC, A, Answers, B, Repository, line
from tests.metarepo.rigs import SimRig
from varlog import errors, limits
from varlog.core.messages import BeginTransaction, Begun, Commit, Decided, EndTransaction, TrimTopic
from varlog.core.metarepo import TOGETHER
from varlog.types import GLSN, TransactionID


class Slow:
    """A metadata repository whose store answers when the test says so."""

    def __init__(self) -> None:
        self.rig = SimRig()
        self._answers = Answers(self.rig)
        self.repository = Repository(self.rig, self._answers.client).set_up()
        self._answers.hold()

    def write(self) -> None:
        """Let one write be answered."""
        self.rig.settle()
        self._answers.arrive()

    def writes(self) -> int:
        """How many it takes until nothing is left to be written."""
        count = 0
        while self.repository.core.awaits_store:
            count += 1
            self.write()
        return count


@pytest.fixture
def slow() -> Slow:
    return Slow()


@pytest.fixture
def repository(slow: Slow) -> Repository:
    return slow.repository


def begin(repository: Repository, name: str, *, token: str = "token", number: int = -1) -> int:
    request = repository.request()
    message = BeginTransaction(request, TOPIC, name, token, GLSN(0), 60_000, number)
    repository.core.on_message("client", message, repository.now)
    return request


def end(repository: Repository, txid: int, glsn: int, *, is_committed: bool = True) -> int:
    request = repository.request()
    message = EndTransaction(request, TOPIC, TransactionID(txid), is_committed, GLSN(glsn))
    repository.core.on_message("client", message, repository.now)
    return request


def begun(repository: Repository) -> dict[int, Begun]:
    return {message.request: message for message in repository.messages(Begun)}


def test_many_are_begun_with_one_write_and_the_cut_that_is_due(slow: Slow, repository: Repository) -> None:
    first = begin(repository, "first")  # being written, while others come
    requests = [begin(repository, f"{number}") for number in range(TOGETHER)]
    for node in (A, B):
        repository.report(node, line(ONE, 4))
    before = repository.version
    assert slow.writes() == 2
    answers = begun(repository)
    assert set(answers) == {first, *requests}
    ids = [answer.transaction.txid for answer in answers.values() if answer.transaction is not None]
    assert ids == list(range(before + 1, before + TOGETHER + 2)), "each has the version of its own entry"
    assert [message.version for message in repository.messages(Commit)][:1] == [before + TOGETHER + 2]
    again = Repository(slow.rig)
    assert again.core.state == repository.core.state


def test_cuts_are_not_held_up_by_transactions_that_go_on_being_begun(slow: Slow, repository: Repository) -> None:
    begin(repository, "first")
    for round_ in range(1, 4):
        for number in range(3 * TOGETHER):
            begin(repository, f"{round_} {number}")
        for node in (A, B):
            repository.report(node, line(ONE, 1 + round_))
        cuts = len(repository.messages(Commit))
        slow.write()
        slow.write()
        assert len(repository.messages(Commit)) > cuts, "with the next write but one at the latest"


def test_what_concerns_one_name_is_decided_one_after_another(slow: Slow, repository: Repository) -> None:
    number = begin(repository, "job", number=5)
    slow.writes()
    one = begun(repository)[number].transaction
    assert one is not None
    begin(repository, "busy")
    ended = end(repository, one.txid, one.after + 1)
    repeated = begin(repository, "job", token="another", number=5)
    other = begin(repository, "other")
    slow.writes()
    assert ended in {message.request for message in repository.messages(Decided) if not message.code}
    assert begun(repository)[repeated].code == errors.AlreadyCommitted.code
    assert begun(repository)[other].code == 0


def test_nothing_is_taken_before_its_turn(slow: Slow, repository: Repository) -> None:
    for node in (A, B):
        repository.report(node, line(ONE, 3))
    slow.writes()
    repository.sent.clear()
    begin(repository, "first")
    begin(repository, "second")
    request = repository.request()
    repository.core.on_message("client", TrimTopic(request, TOPIC, GLSN(1)), repository.now)
    begin(repository, "third")
    assert slow.writes() == 4
    assert [type(message) for _, message in repository.sent if isinstance(message, Begun | Decided)] == [
        Begun,
        Begun,
        Decided,
        Begun,
    ]


def test_close_to_a_limit_each_is_looked_at_by_itself(
    slow: Slow, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_OPEN_TRANSACTIONS", 3)
    requests = [begin(repository, f"{number}") for number in range(5)]
    slow.writes()
    codes = [begun(repository)[request].code for request in requests]
    assert codes == [0, 0, 0, errors.LimitExceeded.code, errors.LimitExceeded.code]
