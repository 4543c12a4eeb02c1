"""Which replica of a log stream is its primary. Where replicas go is tested with their registration."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest

from tests.core.sketch import metadata, stream
from varlog.core.messages import StreamInfo
from varlog.core.placing import Primaries
from varlog.types import Ordering, StorageNodeID, StreamStatus

SEALED = StreamStatus.SEALED


def chosen(streams: list[StreamInfo]) -> dict[int, int]:
    primaries = Primaries(metadata(1, *streams))
    return {one.lsid: primaries.choose(one) for one in streams}


def test_primaries_are_spread_in_whichever_order_the_replicas_were_registered() -> None:
    """What a node has free decides the order, and changes from one log stream to the next."""
    orders = [(1, 2, 3), (2, 3, 1), (2, 1, 3), (3, 1, 2), (2, 3, 1), (1, 3, 2)]
    found = chosen([stream(lsid, SEALED, replicas=order) for lsid, order in enumerate(orders, 1)])
    assert Counter(found.values()) == {1: 2, 2: 2, 3: 2}


@pytest.mark.parametrize("count", [2, 4, 40])
def test_primaries_are_spread_though_sets_of_nodes_alternate(count: int) -> None:
    """Log streams with odd numbers on nodes 1 and 2, those with even ones on 3 and 4."""
    found = chosen([stream(lsid, SEALED, replicas=(1, 2) if lsid % 2 else (3, 4)) for lsid in range(1, 2 * count + 1)])
    assert Counter(found.values()) == dict.fromkeys((1, 2, 3, 4), count / 2)


def test_primaries_of_a_dead_node_are_spread_over_those_that_are_left() -> None:
    streams = [stream(lsid, SEALED, replicas=(1, 2, 3)) for lsid in range(1, 7)]
    primaries = Primaries(metadata(1, *streams))
    left = tuple(map(StorageNodeID, (2, 3)))
    found = [primaries.choose(msgspec.structs.replace(one, replicas=left)) for one in streams]
    assert Counter(found) == {2: 3, 3: 3}
    assert [primaries.choose(msgspec.structs.replace(one, replicas=left)) for one in streams] == found, "asked again"


def test_a_node_that_comes_back_has_primaries_again() -> None:
    """Its replicas join one log stream after the other, each with a look at the metadata that the last one left."""
    streams = {lsid: stream(lsid, replicas=(2, 3), primary=2 + lsid % 2) for lsid in range(1, 7)}
    for lsid in streams:
        joined = stream(lsid, SEALED, replicas=(2, 3, 1))
        streams[lsid] = joined
        primary = Primaries(metadata(1, *streams.values())).choose(joined)
        streams[lsid] = stream(lsid, replicas=(2, 3, 1), primary=primary)
    assert Counter(one.primary for one in streams.values()) == {1: 2, 2: 2, 3: 2}


def test_chains_have_no_primaries_that_would_count() -> None:
    """Where a sequencer orders, heads are spread as log streams are made."""
    chains = [stream(lsid, replicas=(1, 2), primary=2, tpid=2) for lsid in (1, 2, 3)]
    known = metadata(1, *chains, ours := stream(9, SEALED, replicas=(1, 2)))
    topics = [
        msgspec.structs.replace(topic, ordering=Ordering.SEQUENCER) if topic.tpid == 2 else topic
        for topic in known.topics
    ]
    assert Primaries(known).choose(ours) == 1
    assert Primaries(msgspec.structs.replace(known, topics=tuple(topics))).choose(ours) == 2
