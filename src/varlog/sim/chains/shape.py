"""The shape of a run of the sequencer ordering: how large the cluster is, who uses it, and what is odd about it."""

from __future__ import annotations

from dataclasses import dataclass

from varlog.sim.world import World


@dataclass(frozen=True)
class ChainShape:
    """How large a cluster is, and who uses it."""

    nodes: int
    streams: int
    replication_factor: int
    sequencers: int = 2
    repositories: int = 1
    block: int = 8
    """How many consecutive positions go to one log stream."""
    writers: int = 3
    readers: int = 1
    subscribers: int = 2
    tails: int = 1
    trimmers: int = 1
    segment_bytes: int = 8192
    fill_after: float = 0.5
    """How long readers wait for a hole."""
    seal_pace: float = 0.0
    """Mean seconds between projections that nobody needs; 0: there are none."""
    dooms: int = 0
    """How many clients die at moments of their own."""
    bad_store: bool = False
    """The metadata store that several repositories share refuses, loses and delays requests."""
    lost_node: bool = False
    """One node is not there any more when all is healed."""
    grows: bool = False
    """A log stream is added while things fail."""
    frugal: bool = False
    """As `varlog.sim.shape.Shape.frugal`."""

    @classmethod
    def draw(cls, world: World) -> ChainShape:
        """Some shape, by the world's seed."""
        rng = world.rng("shape")
        nodes = rng.randint(1, 5)
        replication_factor = rng.randint(1, min(3, nodes))
        return cls(
            nodes=nodes,
            streams=rng.randint(1, 3),
            replication_factor=replication_factor,
            sequencers=rng.choice((1, 2, 2)),
            repositories=rng.choice((1, 3)),
            block=rng.choice((5, 8, 64)),
            segment_bytes=rng.choice((2048, 8192, 65536)),
            fill_after=rng.choice((0.05, 0.3, 1.0)),
            seal_pace=rng.choice((0.0, 0.4, 2.0)),
            dooms=rng.choice((0, 3, 10)),
            bad_store=rng.random() < 0.5,
            lost_node=replication_factor > 1 and rng.random() < 0.2,
            grows=rng.random() < 0.3,
            frugal=rng.random() < 0.5,
        )

    def __str__(self) -> str:
        traits = {
            "bad store": self.bad_store and self.repositories > 1,
            "lost node": self.lost_node,
            "one more log stream": self.grows,
            "frugal nodes": self.frugal,
            f"needless projections every {self.seal_pace} s": self.seal_pace > 0.0,
        }
        return ", ".join(
            [
                f"{self.nodes} nodes",
                f"{self.streams} log streams",
                f"RF {self.replication_factor}",
                f"{self.sequencers} sequencers",
                f"{self.repositories} metadata repositories",
                f"blocks of {self.block}",
                f"segments of {self.segment_bytes} bytes",
                f"holes filled after {self.fill_after} s",
                f"{self.dooms} doomed clients",
                *(trait for trait, has in traits.items() if has),
            ]
        )
