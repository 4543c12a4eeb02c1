"""The sequencer as a daemon among others: who may ask it what, what becomes known of it, what it survives."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

from tests.daemon.small import ANY_PORT, CID, Small, run, until
from varlog import errors
from varlog.core.messages import (
    CreateStream,
    CreateTopic,
    GetTail,
    Granted,
    Next,
    Peek,
    Peeked,
    ProposeProjection,
    RegisterStream,
    SequencerInfo,
)
from varlog.core.projection import Chain, Projection, Stripe
from varlog.daemon.config import SequencerConfig
from varlog.sequencer.daemon import health
from varlog.sequencer.server import SequencerServer
from varlog.types import GLSN, Epoch, LogStreamID, Ordering, StorageNodeID, TopicID
from varlog.wire.hello import Role
from varlog.wire.hot import Ping, Pong

TOPIC, LOG, NODE = TopicID(1), LogStreamID(1), StorageNodeID(1)
BLOCK = 10


async def sequencer_of(small: Small, listen: str = ANY_PORT) -> SequencerServer:
    config = SequencerConfig(
        cluster=CID,
        secret_file=str(small.secret_file),
        listen=listen,
        metadata_repository=small.vmr.address,
        http=None,
    )
    return await SequencerServer.start(config)


async def make_topic(small: Small) -> None:
    """One that a sequencer orders, and its log stream: no replica is asked for anything here."""
    wanted = partial(CreateTopic, name="t", replication_factor=1, min_replicas=1, ordering=Ordering.SEQUENCER)
    made = await small.decide(wanted)
    assert made.value == TOPIC, made
    assert (await small.decide(partial(CreateStream, tpid=TOPIC))).value == LOG
    registered = await small.decide(partial(RegisterStream, lsid=LOG, replicas=(NODE,)))
    assert registered.code == 0, registered


async def name(small: Small, sequencer: SequencerServer, epoch: int, start: int) -> None:
    """Let a projection name it, as a client does."""
    stripes, chains = (Stripe(GLSN(1), BLOCK, (LOG,)),), (Chain(LOG, (NODE,)),)
    boot = sequencer.core.boot
    made = Projection(Epoch(epoch), sequencer.address, boot, GLSN(start), 0, stripes, chains)
    decided = await small.decide(partial(ProposeProjection, tpid=TOPIC, base=Epoch(epoch - 1), projection=made))
    assert decided.code == 0, decided


async def start(small: Small) -> SequencerServer:
    """With a metadata repository, a node that takes part, and a topic that waits for its first projection."""
    await small.start(nodes=1, streams=0)
    sequencer = await sequencer_of(small)
    await until(lambda: sequencer.core.is_registered)
    await make_topic(small)
    return sequencer


def test_S1_positions_are_given_out_in_the_epoch_that_names_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with Small(tmp_path) as small:
            sequencer = await start(small)
            caller = await small.call(sequencer.address, Role.SEQUENCER)
            ask = partial(Next, tpid=TOPIC, epoch=Epoch(1), counts=(4, 4))
            assert (await caller.ask(Granted, ask)).code == errors.StaleEpoch.code, "there is no projection yet"
            await name(small, sequencer, 1, 1)
            first, second = await caller.ask(Granted, ask), await caller.ask(Granted, ask)
            assert (first.glsns, first.skipped) == ((1, 5), ())
            assert (second.glsns, second.skipped) == ((11, 15), ((9, 2),))
            assert second.time >= first.time > 0
            peeked = await caller.ask(Peeked, partial(Peek, tpid=TOPIC, epoch=Epoch(1)))
            assert (peeked.code, peeked.glsn, peeked.boot) == (0, 18, sequencer.core.boot)
            await sequencer.stop()

    run(main())


def test_S1_one_that_was_started_again_is_another_one(tmp_path: Path) -> None:
    """At the same address: it has forgotten what it gave out, and serves nothing until a projection names it anew."""

    async def main() -> None:
        async with Small(tmp_path) as small:
            before = await start(small)
            await name(small, before, 1, 1)
            await before.stop()
            after = await sequencer_of(small, before.address)
            await until(lambda: after.core.is_registered)
            assert (await small.metadata()).sequencers == (SequencerInfo(after.address, after.core.boot),)
            assert after.core.boot != before.core.boot
            manager = await small.call(after.address, Role.SEQUENCER, Role.MANAGER)
            refused = await manager.ask(Granted, partial(Next, tpid=TOPIC, epoch=Epoch(1), counts=(1,)))
            assert (refused.code, refused.epoch) == (errors.NotSequencer.code, 1)
            told = await manager.ask(Peeked, partial(Peek, tpid=TOPIC, epoch=Epoch(0)))
            assert (told.code, told.boot) == (0, after.core.boot)
            await name(small, after, 2, 21)
            granted = await manager.ask(Granted, partial(Next, tpid=TOPIC, epoch=Epoch(2), counts=(1,)))
            assert granted.glsns == (21,)
            await after.stop()

    run(main())


def test_it_serves_on_without_metadata_and_says_so(tmp_path: Path) -> None:
    async def main() -> None:
        async with Small(tmp_path) as small:
            sequencer = await start(small)
            await name(small, sequencer, 1, 1)
            caller = await small.call(sequencer.address, Role.SEQUENCER)
            ask = partial(Next, tpid=TOPIC, epoch=Epoch(1), counts=(1,))
            assert (await caller.ask(Granted, ask)).glsns == (1,)
            assert health(sequencer).status == "ok"
            address = small.vmr.address
            await small.stop_vmr()
            await until(lambda: not sequencer.is_connected)
            assert health(sequencer).status == "disconnected"
            assert (await caller.ask(Granted, ask)).glsns == (2,)
            unknown = await caller.ask(Granted, partial(Next, tpid=TOPIC, epoch=Epoch(2), counts=(1,)))
            assert unknown.code == errors.Unreachable.code, "told in time, though nobody knows of that epoch"
            await small.start_vmr(address)
            await until(lambda: health(sequencer).status == "ok")
            await sequencer.stop()

    run(main())


def test_many_requests_of_one_read_are_answered_in_order(tmp_path: Path) -> None:
    async def main() -> None:
        async with Small(tmp_path) as small:
            sequencer = await start(small)
            await name(small, sequencer, 1, 1)
            caller = await small.call(sequencer.address, Role.SEQUENCER)
            for request in range(1000):
                caller.connection.send(Next(request, TOPIC, Epoch(1), (1,)))
            await until(lambda: len(caller.heard) == 1000)
            granted = [answer.glsns[0] for answer in caller.heard if isinstance(answer, Granted)]
            assert all(b == a + 1 for a, b in pairwise(granted))
            assert sequencer.core.positions == 1000
            await sequencer.stop()

    run(main())


def test_it_answers_clients_and_managers_and_nothing_but_what_it_is_for(tmp_path: Path) -> None:
    async def main() -> None:
        async with Small(tmp_path) as small:
            await small.start_vmr()
            sequencer = await sequencer_of(small)
            caller = await small.call(sequencer.address, Role.SEQUENCER)
            assert isinstance(await caller.ask(Pong, Ping), Pong)
            caller.connection.send(GetTail(1, TOPIC))
            assert isinstance(await caller.ended, errors.ProtocolError)
            for role in (Role.STORAGE_NODE, Role.METADATA_REPOSITORY, Role.SEQUENCER):
                with pytest.raises(errors.WrongRole):
                    await small.call(sequencer.address, Role.SEQUENCER, role, 1)
            await sequencer.stop()

    run(main())


def test_a_sequencer_that_nobody_waits_for_sleeps(tmp_path: Path) -> None:
    async def main() -> None:
        async with Small(tmp_path) as small:
            sequencer = await start(small)
            await until(lambda: sequencer._timer is None)
            caller = await small.call(sequencer.address, Role.SEQUENCER)
            early = partial(Next, tpid=TOPIC, epoch=Epoch(1), counts=(1,))
            assert (await caller.ask(Granted, early)).code == errors.StaleEpoch.code, "there is no projection yet"
            await until(lambda: sequencer._timer is None)
            await sequencer.stop()

    run(main())
