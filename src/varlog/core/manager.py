"""The manager's decisions: the world in, the next steps and a sentence for each out (M4).

`reconcile` looks at what the metadata repository says of each log stream and what its replicas say of themselves, and
names the requests that bring the two together. It keeps no state and remembers no answer: the next look at the world
shows what has happened, and every request may be repeated. So two managers at once, or one that dies between two
steps, do no harm: each request to the metadata repository is a compare-and-swap on an epoch, each one to a replica is
checked there.

By subject: `watching` has the log streams that run, and those about to; `resuming` those that are sealed; `repairing`
brings a set back to its size, and moves replicas; `chainrepair` does all of that for topics that a sequencer orders;
`collecting` clears away what was not finished, or is left over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from varlog.core.chainrepair import repair_chains
from varlog.core.collecting import (
    collect_aborted,
    collect_left_over,
    collect_strays,
    give_up_creating,
    renew_nodes,
)
from varlog.core.messages import StreamInfo
from varlog.core.placing import Primaries
from varlog.core.repairing import repair
from varlog.core.resuming import complete
from varlog.core.steps import COLLECT_AFTER, REPLACE_AFTER, ChoosePrimary, Situation, Step
from varlog.core.watching import follow_unsealing, wait_for_metadata, watch
from varlog.core.world import Memory, World
from varlog.types import StreamStatus

__all__ = ["COLLECT_AFTER", "REPLACE_AFTER", "ChoosePrimary", "Step", "reconcile"]


def reconcile(
    world: World,
    memory: Memory,
    request: Callable[[], int],
    choose_primary: ChoosePrimary | None = None,
    replace_after: float = REPLACE_AFTER,
    collect_after: float = COLLECT_AFTER,
) -> list[Step]:
    """The next steps. `memory` has observed this world already. Primaries are spread unless another way is given."""
    choose = choose_primary or Primaries(world.metadata).choose
    situation = Situation(world, memory, request, choose, replace_after, collect_after)
    steps = [step for stream in world.metadata.streams for step in _steps_for(situation, stream)]
    return [*steps, *repair_chains(situation), *collect_strays(situation), *renew_nodes(situation)]


def _steps_for(situation: Situation, stream: StreamInfo) -> Iterator[Step]:
    if stream.status is StreamStatus.CREATING:
        yield from give_up_creating(situation, stream)
    elif stream.status is StreamStatus.ABORTED:
        yield from collect_aborted(situation, stream)
    elif stream.status is StreamStatus.CHAINED:
        return
    elif situation.world.later(stream):
        yield from wait_for_metadata(situation, stream)
    elif stream.status is StreamStatus.SEALED:
        yield from complete(situation, stream)
    elif stream.status is StreamStatus.UNSEALING:
        yield from follow_unsealing(situation, stream)
    elif steps := list(watch(situation, stream)) or list(repair(situation, stream)):
        yield from steps
    else:
        yield from collect_left_over(situation, stream)
