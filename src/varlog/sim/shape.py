"""The shape of a run: how large the cluster is, who uses it, and what is odd about it."""

from __future__ import annotations

from dataclasses import dataclass

from varlog.sim.world import World


@dataclass(frozen=True)
class Shape:
    """How large a cluster is, and who uses it."""

    nodes: int
    streams: int
    replication_factor: int
    repositories: int = 1
    writers: int = 2
    retrying_writers: int = 2
    readers: int = 2
    subscribers: int = 2
    peekers: int = 2
    trimmers: int = 1
    segment_bytes: int = 8192
    dedup_sequences: int = 64
    lying_disk: bool = False
    """One node's disk tells some syncs done that are not; it may lose what it has reported."""
    operator_seals: int = 0
    """How often a log stream is sealed that nothing is wrong with."""
    lost_node: bool = False
    """One node is not there any more when all is healed: appends may stop, reads go on."""
    old_backup: bool = False
    """At the very end, the metadata is replaced by what it was at the beginning."""
    bad_store: bool = False
    """The metadata store that several repositories share refuses, loses and delays requests."""
    outsider: bool = False
    """One node has data of log streams it is no replica of."""
    managers: int = 1
    operations: int = 0
    """How often an operator drains, replaces, moves, adds or holds something."""
    frugal: bool = False
    """Nodes write and report only what somebody waits for, and look at the time more rarely while nothing happens, as
    the daemon does. The others do so after every event."""
    first: int = 1
    """Where the log begins; later of one that is restored from an archive."""

    @property
    def can_lose_a_node(self) -> bool:
        """Whether appends go on with one node less: enough replicas are left, or another node can take one."""
        return self.replication_factor > 2 or self.nodes > self.replication_factor

    @classmethod
    def draw(cls, world: World) -> Shape:
        """Some shape, by the world's seed."""
        rng = world.rng("shape")
        nodes = rng.randint(1, 5)
        replication_factor = rng.randint(1, min(3, nodes))
        repositories = rng.choice((1, 2, 3))
        lying_disk = replication_factor > 1 and rng.random() < 0.25
        return cls(
            nodes=nodes,
            streams=rng.randint(1, 4),
            replication_factor=replication_factor,
            repositories=1 if lying_disk else repositories,
            segment_bytes=rng.choice((2048, 8192, 65536)),
            dedup_sequences=rng.choice((8, 64, 4096)),
            lying_disk=lying_disk,
            lost_node=replication_factor > 1 and not lying_disk and rng.random() < 0.15,
            old_backup=rng.random() < 0.2,
            bad_store=rng.random() < 0.5,
            operator_seals=rng.choice((0, 5, 15, 40)),
            outsider=nodes > replication_factor and rng.random() < 0.6,
            managers=rng.choice((1, 1, 2)),
            operations=rng.choice((0, 4, 12)),
            frugal=rng.random() < 0.5,
        )

    def __str__(self) -> str:
        traits = {
            "lying disk": self.lying_disk,
            "outsider": self.outsider,
            "frugal nodes": self.frugal,
            "bad store": self.bad_store and self.repositories > 1,
            "old backup": self.old_backup,
            "lost node": self.lost_node,
            f"from {self.first} on": self.first > 1,
        }
        return ", ".join(
            [
                f"{self.nodes} nodes",
                f"{self.streams} log streams",
                f"RF {self.replication_factor}",
                f"{self.repositories} metadata repositories",
                f"segments of {self.segment_bytes} bytes",
                f"{self.dedup_sequences} sequences remembered",
                f"{self.operator_seals} seals for no reason",
                f"{self.operations} operations",
                f"{self.managers} managers",
                *(trait for trait, has in traits.items() if has),
            ]
        )
