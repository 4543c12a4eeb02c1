"""Whatever happens to chains, nothing acknowledged is lost and nothing is asked of a member that would harm it (which
`tests.core.chainpaper` sees to); and when everything is there again the manager brings everything back."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.chainpaper import ChainPaper
from varlog import errors
from varlog.core.messages import PlanStream, SetDraining
from varlog.core.reconfiguring import Change
from varlog.types import Epoch, LogStreamID, StorageNodeID

STREAMS = (1, 2)
SNIDS = (1, 2, 3, 4, 5)
EVENTS = (
    "kill", "restart", "hang", "go on", "cut off", "lose disk", "corrupt", "poison", "slow", "drain", "undrain",
    "move", "client", "dead proposer", "no join", "append",
)  # fmt: skip


class Happening:
    """One thing after another happens to a topic."""

    def __init__(self) -> None:
        self.paper = ChainPaper(5, streams=2)

    def happen(self, what: str, snid: int, other: int, passes: float) -> None:
        paper, node = self.paper, self.paper.node(snid)
        if what in ("kill", "restart", "hang", "go on", "cut off", "slow"):
            self.disturb(what, snid)
        elif what == "lose disk":
            if all(self.is_spared(snid, lsid) for lsid in STREAMS):
                node.lose_disk()
        elif what in ("corrupt", "poison"):
            self.fail(snid, errors.Corrupt if what == "corrupt" else errors.Poisoned)
        elif what in ("drain", "undrain"):
            paper.ask(SetDraining(0, StorageNodeID(snid), what == "drain"))
        elif what == "move":
            paper.ask(PlanStream(0, LogStreamID(1), StorageNodeID(other), StorageNodeID(snid)))
        elif what == "client":
            paper.reconfigure(Change(paper.projection.epoch, suspects=frozenset({StorageNodeID(snid)})))
        elif what == "dead proposer":
            for replica in node.replicas.values():
                replica.epoch = Epoch(max(replica.epoch, paper.projection.epoch) + 1)
        elif what == "no join":
            paper.joining_fails = not paper.joining_fails
        for lsid in STREAMS:
            paper.append(50, lsid)
        paper.pass_time(passes)

    def disturb(self, what: str, snid: int) -> None:
        node = self.paper.node(snid)
        if what == "kill":
            node.is_up = False
        elif what == "restart":
            node.restart()
            for replica in node.replicas.values():
                self.paper.restarted(replica)
        elif what == "cut off":
            node.unanswered = 0.0 if node.unanswered else 3.0
        elif what == "slow":
            node.rate = 30.0
        else:
            node.hangs = what == "hang"

    def is_spared(self, snid: int, lsid: int) -> bool:
        """Whether another member has all that this one has."""
        return snid not in self.paper.chain(lsid) or any(
            self.paper.node(other).is_identified
            and (replica := self.paper.node(other).replicas.get(LogStreamID(lsid))) is not None
            and replica.fault != errors.Corrupt.code
            and replica.epoch >= self.paper.projection.epoch
            for other in self.paper.chain(lsid)
            if other != snid
        )

    def fail(self, snid: int, error: type[errors.VarlogError]) -> None:
        for lsid, replica in self.paper.node(snid).replicas.items():
            if error is errors.Poisoned or self.is_spared(snid, lsid):
                replica.fault = error.code

    def end_well(self) -> None:
        """Everything is there again; that alone is enough."""
        paper = self.paper
        paper.joining_fails = False
        for snid in SNIDS:
            node = paper.node(snid)
            node.restart()
            for replica in node.replicas.values():
                paper.restarted(replica)
            node.unanswered, node.rate = 0.0, 1000.0
            paper.ask(SetDraining(0, StorageNodeID(snid), False))
        paper.ask(PlanStream(0, LogStreamID(1), StorageNodeID(0), StorageNodeID(0)))
        waited = paper.pass_time(400, self.is_whole)
        assert self.is_whole(), (waited, paper.projection, paper.says)
        assert all(paper.append(1, lsid) for lsid in STREAMS)

    def is_whole(self) -> bool:
        return all(len(self.paper.chain(lsid)) == 3 and self.serves(lsid) for lsid in STREAMS)

    def serves(self, lsid: int) -> bool:
        replicas = [self.paper.node(snid).replicas.get(LogStreamID(lsid)) for snid in self.paper.chain(lsid)]
        epoch = self.paper.projection.epoch
        return all(replica is not None and replica.healthy and replica.epoch == epoch for replica in replicas)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(EVENTS),
            st.sampled_from(SNIDS),
            st.sampled_from(SNIDS),
            st.sampled_from([0.1, 0.6, 2.0, 35.0]),
        ),
        max_size=14,
    )
)
@settings(max_examples=30, deadline=None)
def test_whatever_happens_nothing_is_lost_and_all_comes_back(events: list[tuple[str, int, int, float]]) -> None:
    happening = Happening()
    for event in events:
        happening.happen(*event)
    happening.end_well()
