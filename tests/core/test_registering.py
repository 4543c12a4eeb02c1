"""The register of transactions: which attempt of a name is which, what is refused, and what stays within its limits."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from varlog import errors, limits
from varlog.core import metastate as m
from varlog.core.decisions import Already, decide
from varlog.core.messages import (
    BeginTransaction,
    Begun,
    CommittedName,
    EndTransaction,
    ForgetTransactions,
    GetTransactions,
    Message,
    OpenTransaction,
    TrimTopic,
)
from varlog.core.metastate import Checkpoint, MetadataState
from varlog.core.projection import NEVER, Projection
from varlog.core.register import Register
from varlog.core.registering import begun, refused, transactions
from varlog.types import GLSN, Epoch, Ordering, TopicID, TransactionID, Version

TOPIC, SEQUENCED = TopicID(1), TopicID(2)
EXPIRY = 60_000


class Metadata:
    """A state that requests change. Topic 1 has nine entries, a sequencer orders topic 2."""

    def __init__(self) -> None:
        self.state = MetadataState()
        self.now = 1.0
        self.apply(m.TopicCreated(TOPIC, "orders", 1, 1))
        self.apply(m.TopicCreated(SEQUENCED, "sequenced", 1, 1, ordering=Ordering.SEQUENCER, block=8))
        self.state.topics[TOPIC].hwm = GLSN(9)
        self.state.topics[SEQUENCED].projection = Projection(Epoch(1), "sequencer:1", 1, GLSN(1), 0, (), ())

    def apply(self, entry: m.AnyEntry) -> None:
        self.state.apply(Version(self.state.version + 1), entry)

    def ask(self, request: Message) -> bool:
        """Whether it changed something."""
        decision = decide(self.state, request, self.now)
        if isinstance(decision, Already):
            return False
        self.apply(m.decode_entry(m.encode_entry(decision)))
        return True

    def begin(
        self, token: str = "t", number: int = -1, name: str = "n", after: int = 0, tpid: TopicID = TOPIC
    ) -> OpenTransaction:
        return self.begun(token, number, name, after, tpid)[0]

    def begun(
        self, token: str = "t", number: int = -1, name: str = "n", after: int = 0, tpid: TopicID = TOPIC
    ) -> tuple[OpenTransaction, tuple[OpenTransaction, ...]]:
        request = BeginTransaction(7, tpid, name, token, GLSN(after), EXPIRY, number)
        self.ask(request)
        answer = begun(self.state, request, self.now)
        assert (answer.request, answer.code) == (7, 0)
        assert answer.transaction is not None
        return answer.transaction, answer.earlier

    def end(self, opened: OpenTransaction, glsn: int = 20, *, commits: bool = True) -> bool:
        return self.ask(EndTransaction(8, TOPIC, opened.txid, commits, GLSN(glsn)))

    def register(self) -> Register:
        return self.state.registers[TOPIC]


@pytest.fixture
def metadata() -> Metadata:
    return Metadata()


def test_a_transaction_is_begun(metadata: Metadata) -> None:
    metadata.now = 5.0
    opened = metadata.begin("token", 3, "name")
    assert opened == OpenTransaction(TransactionID(metadata.state.version), "name", 3, GLSN(9), EXPIRY, 0, "token")


def test_everything_of_it_comes_after_the_tail_and_the_trim_point(metadata: Metadata) -> None:
    assert metadata.begin("a").after == 9
    assert metadata.begin("b", after=4).after == 9
    assert metadata.begin("a", tpid=SEQUENCED, after=30).after == 30
    metadata.apply(m.Trimmed(SEQUENCED, GLSN(400)))
    assert metadata.begin("b", tpid=SEQUENCED, after=100).after == 400


def test_who_says_the_same_again_joins(metadata: Metadata) -> None:
    earlier = metadata.begin("old", 1)
    first, before = metadata.begun("t", 2)
    assert not metadata.ask(BeginTransaction(9, TOPIC, "n", "t", GLSN(0), 1, 2))
    assert metadata.begun("t", 2) == (first, before)
    assert before == (earlier,)


def test_another_token_is_another_attempt_and_told_of_all_earlier_ones(metadata: Metadata) -> None:
    first, second = metadata.begin("a", 5), metadata.begin("b", 5)
    third, earlier = metadata.begun("c", 4)
    assert len({first.txid, second.txid, third.txid}) == 3
    assert earlier == (first, second)
    metadata.end(first, commits=False)
    assert metadata.begun("c", 4) == (third, (second,))
    assert metadata.begun(name="other")[1] == ()


def test_a_token_that_was_replaced_begins_nothing(metadata: Metadata) -> None:
    metadata.begin("a", 5)
    metadata.begin("b", 5)
    for number in (4, 5, 6):
        with pytest.raises(errors.TransactionAborted, match="a later attempt of 'n'"):
            metadata.begin("a", number)
    assert len(metadata.register().open) == 2


def test_one_attempt_goes_on_to_greater_numbers_and_never_back(metadata: Metadata) -> None:
    fifth = metadata.begin("a", 5)
    sixth, earlier = metadata.begun("a", 6)
    assert (sixth.number, earlier) == (6, (fifth,))
    with pytest.raises(errors.TransactionAborted, match="went on to number 6"):
        metadata.begin("a", 5)
    assert metadata.begin("a", 6) == sixth


def test_a_token_whose_attempt_has_ended_begins_nothing(metadata: Metadata) -> None:
    for number in (-1, 5):
        metadata.end(metadata.begin("a", number), commits=False)
        with pytest.raises(errors.TransactionAborted, match="has ended"):
            metadata.begin("a", number)


def test_a_number_that_is_committed_is_not_written_again(metadata: Metadata) -> None:
    metadata.end(metadata.begin("a", 5), 33)
    for token in ("a", "b"):
        for number in (0, 5):
            request = BeginTransaction(7, TOPIC, "n", token, GLSN(0), EXPIRY, number)
            with pytest.raises(errors.AlreadyCommitted, match="by the commit at 33") as refusal:
                metadata.ask(request)
            answer = refused(metadata.state, request, 7, refusal.value.code, "why")
            assert answer == Begun(7, errors.AlreadyCommitted.code, glsn=GLSN(33), detail="why")
    assert metadata.begin("a", 6).number == 6
    assert metadata.begin("b").number == -1, "one without a number is another matter"


def test_the_last_number_never_falls(metadata: Metadata) -> None:
    fifth, sixth = metadata.begin("a", 5), metadata.begin("a", 6)
    metadata.end(sixth, 40)
    metadata.end(fifth, 30)
    asked = GetTransactions(1, TOPIC, names=True)
    assert transactions(metadata.state, asked, 1.0).names == (CommittedName("n", 6, GLSN(40)),)


def test_what_was_aborted_or_has_no_number_leaves_no_number(metadata: Metadata) -> None:
    metadata.end(metadata.begin("a", 5, "aborted"), commits=False)
    metadata.end(metadata.begin("a", -1, "plain"))
    assert transactions(metadata.state, GetTransactions(1, TOPIC, names=True), 1.0).names == ()
    assert metadata.begin("b", 5, "aborted").number == 5


def test_that_it_ended_may_be_told_twice(metadata: Metadata) -> None:
    opened = metadata.begin("a", 5)
    assert metadata.end(opened)
    assert not metadata.end(opened)
    assert not metadata.end(opened, commits=False)
    assert not metadata.ask(EndTransaction(1, SEQUENCED, opened.txid, True, GLSN(20)))
    with pytest.raises(errors.AlreadyCommitted):
        metadata.begin("b", 5)


def test_a_verdict_does_not_come_before_its_transaction(metadata: Metadata) -> None:
    opened = metadata.begin()
    with pytest.raises(errors.InvalidArgument, match="all of it comes after 9"):
        metadata.end(opened, 9)


def test_what_is_open_is_listed_with_its_age(metadata: Metadata) -> None:
    metadata.now = 5.0
    first, second = metadata.begin("a"), metadata.begin("b")
    metadata.end(metadata.begin("c", 1, "numbered"), 30)
    told = transactions(metadata.state, GetTransactions(3, TOPIC), 7.5)
    assert (told.request, told.code, told.names) == (3, 0, ())
    assert [(one.txid, one.age) for one in told.open] == [(first.txid, 2500), (second.txid, 2500)]
    assert {one.age for one in transactions(metadata.state, GetTransactions(3, TOPIC), 1.0).open} == {0}
    assert transactions(metadata.state, GetTransactions(3, SEQUENCED), 1.0).open == ()
    assert transactions(metadata.state, GetTransactions(3, TopicID(9)), 1.0).code == errors.UnknownTopic.code


def test_rule14_nothing_is_trimmed_that_an_open_transaction_may_have(metadata: Metadata) -> None:
    first, _ = metadata.begin("a"), metadata.begin("b", tpid=SEQUENCED, after=100)
    metadata.state.topics[TOPIC].hwm = GLSN(50)
    assert metadata.ask(TrimTopic(1, TOPIC, GLSN(9)))
    with pytest.raises(errors.TransactionOpen, match=rf"transaction {first.txid} of 'n' is open, .* 60 s"):
        metadata.ask(TrimTopic(1, TOPIC, GLSN(10)))
    assert not metadata.ask(TrimTopic(1, TOPIC, GLSN(5))), "that is trimmed already"
    assert metadata.ask(TrimTopic(1, SEQUENCED, GLSN(100)))
    metadata.end(first, 30, commits=False)
    assert metadata.ask(TrimTopic(1, TOPIC, GLSN(50)))


def test_a_name_is_forgotten(metadata: Metadata) -> None:
    opened = metadata.begin("a", 5)
    with pytest.raises(errors.TransactionOpen, match="abort it before its name is forgotten"):
        metadata.ask(ForgetTransactions(1, TOPIC, "n"))
    metadata.end(opened)
    assert metadata.ask(ForgetTransactions(1, TOPIC, "n"))
    assert not metadata.ask(ForgetTransactions(1, TOPIC, "n"))
    assert metadata.begin("a", 0).number == 0
    assert metadata.register().bytes > 0


def test_a_topic_takes_its_register_along(metadata: Metadata) -> None:
    metadata.begin()
    metadata.apply(m.TopicDeleted(TOPIC))
    assert metadata.state.registers == {}


BAD: dict[str, tuple[BeginTransaction, type[errors.VarlogError]]] = {
    "topic": (BeginTransaction(1, TopicID(9), "n", "t", GLSN(0), 1), errors.UnknownTopic),
    "no name": (BeginTransaction(1, TOPIC, "", "t", GLSN(0), 1), errors.InvalidArgument),
    "long name": (BeginTransaction(1, TOPIC, "n" * 201, "t", GLSN(0), 1), errors.InvalidArgument),
    "control character": (BeginTransaction(1, TOPIC, "a\nb", "t", GLSN(0), 1), errors.InvalidArgument),
    "no token": (BeginTransaction(1, TOPIC, "n", "", GLSN(0), 1), errors.InvalidArgument),
    "long token": (BeginTransaction(1, TOPIC, "n", "t" * 201, GLSN(0), 1), errors.InvalidArgument),
    "number": (BeginTransaction(1, TOPIC, "n", "t", GLSN(0), 1, -2), errors.InvalidArgument),
    "great number": (BeginTransaction(1, TOPIC, "n", "t", GLSN(0), 1, 1 << 63), errors.InvalidArgument),
    "at once": (BeginTransaction(1, TOPIC, "n", "t", GLSN(0), 0), errors.InvalidArgument),
    "never": (BeginTransaction(1, TOPIC, "n", "t", GLSN(0), 86_400_001), errors.InvalidArgument),
    "beyond the tail": (BeginTransaction(1, TOPIC, "n", "t", GLSN(10), 1), errors.InvalidArgument),
    "beyond all": (BeginTransaction(1, SEQUENCED, "n", "t", GLSN(NEVER), 1), errors.InvalidArgument),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_begun(case: str, metadata: Metadata) -> None:
    request, refusal = BAD[case]
    with pytest.raises(refusal):
        metadata.ask(request)
    answer = refused(metadata.state, request, 1, refusal.code, "why")
    assert answer == Begun(1, refusal.code, detail="why")


def test_nothing_is_told_or_forgotten_of_a_topic_that_is_not_there(metadata: Metadata) -> None:
    nowhere = TopicID(9)
    for request in (EndTransaction(1, nowhere, TransactionID(1), True, GLSN(1)), ForgetTransactions(1, nowhere, "n")):
        with pytest.raises(errors.UnknownTopic):
            metadata.ask(request)


def test_open_transactions_are_limited(metadata: Metadata, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_OPEN_TRANSACTIONS", 2)
    first = metadata.begin("a", name="a")
    metadata.begin("a", name="b")
    with pytest.raises(errors.LimitExceeded, match="varlog txn list"):
        metadata.begin("a", name="c")
    assert metadata.begin("a", name="a") == first, "it is there already"
    metadata.begin("a", tpid=SEQUENCED)
    metadata.end(first)
    metadata.begin("a", name="c")


def test_names_are_limited_when_they_are_begun_so_that_every_end_is_taken(
    metadata: Metadata, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_TRANSACTION_NAMES", 2)
    metadata.end(metadata.begin("a", 1, "one"))
    two = metadata.begin("a", 1, "two")
    with pytest.raises(errors.LimitExceeded, match="varlog txn forget"):
        metadata.begin("a", 1, "three")
    metadata.begin("b", 1, "two")
    metadata.begin("a", 2, "one")
    metadata.begin("a", -1, "three")
    metadata.end(two)
    assert set(metadata.register().names) == {"one", "two"}


def test_what_is_kept_of_all_topics_is_limited(metadata: Metadata, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = metadata.begin("a", 1, "one")
    monkeypatch.setattr(limits, "REGISTER_RESERVE", 500)
    monkeypatch.setattr(limits, "REGISTER_BYTES", metadata.register().bytes + 700)
    for tpid in (TOPIC, SEQUENCED):
        with pytest.raises(errors.LimitExceeded, match="varlog txn forget"):
            metadata.begin("a", 1, "two", tpid=tpid)
    metadata.end(opened)
    assert metadata.begin("b", 2, "one").number == 2, "what is known goes on"
    monkeypatch.setattr(limits, "REGISTER_BYTES", metadata.register().bytes + 200)
    with pytest.raises(errors.LimitExceeded, match="would exceed"):
        metadata.begin("c", 2, "one")


def test_of_an_attempt_s_token_only_the_last_ones_are_remembered(metadata: Metadata) -> None:
    most = limits.REMEMBERED_ATTEMPTS
    for number in range(most + 1):
        metadata.end(metadata.begin(f"token {number}", 1), commits=False)
    with pytest.raises(errors.TransactionAborted):
        metadata.begin("token 1", 1)
    assert metadata.begin("token 0", 1).token == "token 0"


def test_names_without_a_number_are_forgotten_in_time(metadata: Metadata) -> None:
    opened = metadata.begin("a", name="open")
    for number in range(limits.REMEMBERED_NAMES + 1):
        metadata.end(metadata.begin("a", name=f"name {number}"))
    metadata.end(metadata.begin("a", 3, "kept"))
    others = metadata.register().others
    assert len(others) == limits.REMEMBERED_NAMES + 1
    assert {"open", "name 1"} <= set(others)
    assert "name 0" not in others
    assert set(metadata.register().names) == {"kept"}
    assert metadata.begin("a", name="open") == opened


NAMES = st.sampled_from(["x", "ÿ" * 9, "z"])
BEGINS = st.builds(
    BeginTransaction,
    st.just(1),
    st.just(TOPIC),
    NAMES,
    st.sampled_from("abcde"),
    st.just(GLSN(0)),
    st.just(EXPIRY),
    st.integers(-1, 4),
)
ENDS = st.builds(EndTransaction, st.just(1), st.just(TOPIC), st.integers(3, 30), st.booleans(), st.integers(10, 99))
FORGETS = st.builds(ForgetTransactions, st.just(1), st.just(TOPIC), NAMES)


@given(st.lists(st.one_of(BEGINS, ENDS, FORGETS), max_size=60))
def test_whatever_is_asked_the_register_is_consistent(requests: list[Message]) -> None:
    metadata = Metadata()
    committed: dict[str, int] = {}
    for request in requests:
        with suppress(errors.TransactionAborted, errors.AlreadyCommitted, errors.TransactionOpen):
            metadata.ask(request)
        register = metadata.state.registers.get(TOPIC, Register())
        names = {**register.names, **register.others}
        assert len(names) == len(register.names) + len(register.others)
        for name, known in names.items():
            mine = [one.txid for one in register.open.values() if one.name == name]
            assert known.open == len(mine)
            assert max(mine, default=0) <= known.latest
            assert (known.committed >= 0) == (name in register.names)
        if not isinstance(request, ForgetTransactions):
            assert all(register.names[name].committed >= last for name, last in committed.items())
        committed = {name: known.committed for name, known in register.names.items()}
        saved = snapshot_of(register)
        assert Checkpoint.decode(saved).state.registers == {TOPIC: register}
        assert len(saved) - len(snapshot_of(Register())) <= register.bytes
        assert names or not register.bytes


def snapshot_of(register: Register) -> bytes:
    return Checkpoint(MetadataState(registers={TOPIC: register}), {}).encode()
