"""What a person is told of chains: see `tests.core.chainpaper`."""

from __future__ import annotations

from tests.core.chainpaper import SEQUENCER, ChainPaper
from varlog import errors
from varlog.core.chain_findings import findings_of_sequencers
from varlog.core.diagnosing import diagnose
from varlog.core.messages import Finding
from varlog.types import Epoch, StorageNodeID


def findings(paper: ChainPaper) -> dict[str, Finding]:
    world = paper.world()
    paper.memory.observe(world)
    return {finding.kind: finding for finding in diagnose(world, paper.memory)}


def test_nothing_is_wrong_with_chains_that_are_whole() -> None:
    paper = ChainPaper(streams=2)
    paper.pass_time(5)
    assert not findings(paper)


def test_one_replica_is_left() -> None:
    paper = ChainPaper()
    for snid in (1, 2):
        paper.node(snid).is_up = False
    paper.pass_time(3)
    found = findings(paper)["stream-short"]
    assert (found.severity, found.subject) == ("urgent", "log stream 1")
    assert found.what.startswith("has 1 of 3 replicas, on node 3: there is no other copy of what is appended now")
    assert found.doing.startswith("one replica is left (node 3); nothing protects it until another is added")


def test_a_chain_that_cannot_go_on_is_a_persons_matter() -> None:
    paper = ChainPaper(1, factor=1)
    paper.node(1).is_up = False
    paper.pass_time(4)
    found = findings(paper)["chain-broken"]
    assert found.severity == "urgent"
    assert (
        found.what
        == "takes no appends: node 1 does not answer; it needs 1 replica, and of its chain no node can be used"
    )
    assert found.person == "start node 1 again, with its data"
    paper.node(1).restart()
    paper.replica(1).fault = errors.Corrupt.code
    paper.pass_time(1)
    found = findings(paper)["chain-broken"]
    assert found.person == "look at the disks of node 1"
    assert findings(paper)["replica-corrupt"].severity == "urgent"


def test_a_chain_that_goes_on_soon_is_not_urgent() -> None:
    paper = ChainPaper()
    paper.replica(2).fault = errors.Corrupt.code
    found = findings(paper)["chain-broken"]
    assert (found.severity, found.person) == ("degraded", "")
    assert found.doing == "the replica on node 2 is corrupt; going on with nodes 1, 3 in epoch 2"


def test_a_seal_without_a_projection() -> None:
    paper = ChainPaper()
    paper.has_sequencer = False
    for snid in (1, 2, 3):
        paper.replica(snid).epoch = Epoch(3)
    paper.pass_time(3)
    found = findings(paper)["chain-sealed"]
    assert found.severity == "urgent"
    assert "it was sealed in epoch 3, and the reconfiguration has not been finished" in found.what


def test_a_log_stream_without_positions() -> None:
    paper = ChainPaper()
    paper.has_sequencer = False
    paper.add_stream((StorageNodeID(1), StorageNodeID(2), StorageNodeID(3)))
    paper.pass_time(4)
    found = findings(paper)["chain-unused"]
    assert (found.severity, found.subject) == ("urgent", "log stream 2")
    assert "vsq start" in found.person


def test_a_copy_is_told_in_positions() -> None:
    paper = ChainPaper()
    paper.append(50_000)
    paper.node(3).is_up = False
    paper.pass_time(2)
    paper.append(30_000)
    paper.node(3).restart()
    paper.pass_time(2)
    assert findings(paper)["replica-copying"].what.startswith("node 3 copies the log from node 2: 5")
    assert "of 80000 positions" in findings(paper)["replica-copying"].what


def test_a_sequencer_that_does_not_answer_matters_if_it_orders_something() -> None:
    metadata = ChainPaper().metadata()
    assert not list(findings_of_sequencers(metadata, {SEQUENCER: 1, "vsq:2": "nobody there"}))
    (found,) = findings_of_sequencers(metadata, {SEQUENCER: "nobody there", "vsq:2": 7})
    assert (found.kind, found.severity, found.subject) == ("sequencer-silent", "degraded", f"sequencer {SEQUENCER}")
    assert "Whoever appends next goes on with another one (vsq:2)" in found.what
    (found,) = findings_of_sequencers(metadata, {})
    assert found.severity == "urgent"
