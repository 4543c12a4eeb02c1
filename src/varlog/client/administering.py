"""`admin` and `Admin`: what an operator does with a cluster.

    async with varlog.admin("varlog-data") as admin:
        await admin.add_topic("orders", streams=4)

Requests go to the manager, which carries them out (M1, M2); what is there is read from the metadata repository, and
what a node says of itself from the node. A request is sent once. If the connection breaks before the answer its error
says so (`happened` is None), and a look at what is there tells what became of it; asking again does no harm.

What takes long, because a log has to be copied, is only begun by the call: the manager goes on with it by itself, also
if this client or the manager ends. `streams` and `node` tell how far it is.

    await admin.drain_node(2)
    while any(2 in stream.replicas for stream in await admin.streams()):
        await asyncio.sleep(1)
    await admin.remove_node(2)
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from msgspec.structs import replace

from varlog import errors
from varlog.client.archives import Archives
from varlog.client.arguments import (
    check_count,
    check_node,
    check_nodes,
    check_position,
    check_stream,
    check_text,
    check_timeout,
)
from varlog.client.connecting import Connecting, open_session
from varlog.client.log import DEFAULT_TIMEOUT
from varlog.client.session import Session
from varlog.core.messages import (
    AddNode,
    AddStream,
    AddTopic,
    AttachArchive,
    DeclareLost,
    Diagnose,
    Diagnosis,
    DrainNode,
    Fingerprint,
    GetFingerprint,
    GetInfo,
    GetStanding,
    HoldLogStream,
    Info,
    Managed,
    Message,
    Metadata,
    MoveReplica,
    NodeInfo,
    Peek,
    Peeked,
    RemoveNode,
    RemoveStream,
    RemoveTopic,
    ReplaceNode,
    Scrub,
    ScrubState,
    Standing,
    StreamInfo,
    SyncLogStream,
    TopicInfo,
)
from varlog.types import GLSN, Epoch, Ordering, StreamStatus, TopicID
from varlog.wire.link import Link
from varlog.wire.tls import TlsFiles

LOOK_AGAIN: Final = 0.05
MANAGER_SECONDS: Final = 2.0
"""How long a manager that was started just now may take to register."""
NO_MANAGER: Final = "no manager has registered with the cluster; start one with `vms start`"


class LostRange(NamedTuple):
    """What no replica of a log stream has any more: those of its entries from `begin` up to `end` (exclusive)."""

    begin: GLSN
    end: GLSN


class Admin:
    """Nodes, topics and log streams of a cluster. Made by `admin`."""

    def __init__(self, session: Session, timeout: float) -> None:
        self._session = session
        self._timeout = timeout

    # Storage nodes

    async def add_node(self, address: str, *, timeout: float | None = None) -> int:
        """Register the storage node that listens at an address; returns its id."""
        place = check_text("address", address)
        return await self._manage(lambda request: AddNode(request, place), self._deadline(timeout))

    async def remove_node(self, snid: int, *, timeout: float | None = None) -> None:
        """Take out a node that has no replica of any log stream."""
        node = check_node("snid", snid)
        await self._manage(lambda request: RemoveNode(request, node), self._deadline(timeout))

    async def drain_node(self, snid: int, *, timeout: float | None = None) -> NodeInfo:
        """Let the manager take all replicas off a node: to other nodes, or away where enough are left without. Returns
        when that is decided; it is done when no log stream has the node among its `replicas`. `Conflict` if a log
        stream would be left with fewer than its topic's `min_replicas`."""
        return await self._draining(snid, False, timeout)

    async def undrain_node(self, snid: int, *, timeout: float | None = None) -> NodeInfo:
        """Let a node have replicas again, whether it was drained to the end or not."""
        return await self._draining(snid, True, timeout)

    async def _draining(self, snid: int, undo: bool, timeout: float | None) -> NodeInfo:
        wanted, deadline = check_node("snid", snid), self._deadline(timeout)
        await self._manage(lambda request: DrainNode(request, wanted, undo), deadline)
        metadata = await self._refreshed(deadline)
        return next((node for node in metadata.nodes if node.snid == wanted), NodeInfo(wanted))

    async def replace_node(self, snid: int, by: int, *, timeout: float | None = None) -> list[StreamInfo]:
        """Let one node take the place of another: every replica of the other moves there, and the other gets none any
        more. Returns the log streams that move; it is done when none is `joining` there any more. A node that is dead
        can be replaced as well."""
        node, other, deadline = check_node("snid", snid), check_node("by", by), self._deadline(timeout)

        def request_of(request: int) -> Message:
            return ReplaceNode(request, node, other)

        await self._manage(request_of, deadline)
        metadata = await self._refreshed(deadline)
        return [stream for stream in metadata.streams if stream.joining == other]

    async def nodes(self, *, timeout: float | None = None) -> list[NodeInfo]:
        """The registered storage nodes."""
        return list((await self.metadata(timeout=timeout)).nodes)

    async def node(self, snid: int, *, timeout: float | None = None) -> Info:
        """What a storage node says of itself, its volumes and its replicas."""
        deadline = self._deadline(timeout)
        await self._session.refreshed(deadline)
        answer = await self._session.asking.ask(GetInfo, deadline, of=self._link_to(snid))
        assert isinstance(answer, Info)
        return answer

    async def scrub_node(self, snid: int, *, begin: bool = True, timeout: float | None = None) -> ScrubState:
        """Let a storage node read all its replicas through, now and not at leisure; returns at once, with how far it
        is. With `begin=False` it only tells that. Damage shows in what `node` tells, and is repaired by the manager."""
        deadline = self._deadline(timeout)
        await self._session.refreshed(deadline)
        link = self._link_to(snid)
        answer = await self._session.asking.ask(lambda request: Scrub(request, begin), deadline, of=link)
        assert isinstance(answer, ScrubState)
        return answer

    def _link_to(self, snid: int) -> Link:
        link = self._session.node(check_node("snid", snid))
        if link is None:
            raise errors.UnknownNode(f"there is no storage node {snid}, or nobody has said where it is")
        return link

    # Topics

    async def add_topic(
        self,
        name: str,
        *,
        replication_factor: int = 0,
        min_replicas: int = 0,
        streams: int = 1,
        first: int = 1,
        ordering: str = Ordering.COMMIT.label,
        block: int = 0,
        timeout: float | None = None,
    ) -> TopicInfo:
        """Make a topic and wait until its log streams run. 0 lets the manager choose. Its log begins at `first`: what
        comes before counts as trimmed. `ordering` is `commit` or `sequencer`; with a sequencer, `block` consecutive
        positions go to one log stream before the next one's turn comes."""
        deadline = self._deadline(timeout)
        wanted = AddTopic(
            0,
            check_text("name", name),
            check_count("replication_factor", replication_factor),
            check_count("min_replicas", min_replicas),
            check_count("streams", streams, 1),
            GLSN(check_position("first", first)),
            Ordering.labelled(ordering),
            check_count("block", block),
        )
        tpid = await self._manage(lambda request: replace(wanted, request=request), deadline)
        metadata = await self._running(lambda stream: stream.tpid == tpid, wanted.streams, deadline)
        return next(topic for topic in metadata.topics if topic.tpid == tpid)

    async def remove_topic(self, name: str, *, timeout: float | None = None) -> None:
        """Delete a topic, its log streams and their data."""
        topic = check_text("name", name)
        await self._manage(lambda request: RemoveTopic(request, topic), self._deadline(timeout))

    async def attach_archive(self, topic: str, uri: str, *, timeout: float | None = None) -> TopicInfo:
        """Let readers of a topic find what was trimmed in the archive at `uri`, a path or a URI that every client
        understands. Refused with `NoArchive` if there is none, with `WrongIdentity` if it is of another topic."""
        uri, deadline = check_text("uri", uri), self._deadline(timeout)
        known = next((known for known in (await self._refreshed(deadline)).topics if known.name == topic), None)
        if known is None:
            raise errors.UnknownTopic(f"there is no topic {topic!r}")
        archives = Archives(self._session, known.tpid, topic, self._timeout)
        return await self._set_archive(topic, await archives.check(uri, deadline), deadline)

    async def detach_archive(self, topic: str, *, timeout: float | None = None) -> TopicInfo:
        """Let readers of a topic find nothing of what was trimmed any more. The archive itself stays as it is."""
        return await self._set_archive(check_text("topic", topic), "", self._deadline(timeout))

    async def _set_archive(self, topic: str, uri: str, deadline: float) -> TopicInfo:
        tpid = await self._manage(lambda request: AttachArchive(request, topic, uri), deadline)
        topics = (await self._refreshed(deadline)).topics
        return next(known for known in topics if known.tpid == tpid)

    async def topics(self, *, timeout: float | None = None) -> list[TopicInfo]:
        return list((await self.metadata(timeout=timeout)).topics)

    # Log streams

    async def add_stream(self, topic: str, *, nodes: Sequence[int] = (), timeout: float | None = None) -> StreamInfo:
        """Make one more log stream in a topic, on these nodes or where the manager chooses; waits until it runs."""
        name, replicas, deadline = check_text("topic", topic), check_nodes("nodes", nodes), self._deadline(timeout)
        lsid = await self._manage(lambda request: AddStream(request, name, replicas), deadline)
        metadata = await self._running(lambda stream: stream.lsid == lsid, 1, deadline)
        return _stream(metadata, lsid)

    async def remove_stream(self, lsid: int, *, timeout: float | None = None) -> None:
        """Delete a log stream that holds no entry a reader could ask for."""
        stream = check_stream(lsid)
        await self._manage(lambda request: RemoveStream(request, stream), self._deadline(timeout))

    async def seal_stream(self, lsid: int, *, timeout: float | None = None) -> StreamInfo:
        """Seal a log stream and keep it so: it takes no appends, and can be read, until `unseal_stream`."""
        return await self._hold(lsid, True, timeout)

    async def unseal_stream(self, lsid: int, *, timeout: float | None = None) -> StreamInfo:
        """Let a log stream that `seal_stream` sealed run again; waits until it does. `Conflict` if it was not sealed
        that way: one that the manager sealed runs again by itself."""
        wanted, deadline = check_stream(lsid), self._deadline(timeout)
        await self._manage(lambda request: HoldLogStream(request, wanted, False), deadline)
        metadata = await self._running(lambda stream: stream.lsid == wanted, 1, deadline, "unsealed")
        return _stream(metadata, wanted)

    async def _hold(self, lsid: int, seal: bool, timeout: float | None) -> StreamInfo:
        wanted, deadline = check_stream(lsid), self._deadline(timeout)
        await self._manage(lambda request: HoldLogStream(request, wanted, seal), deadline)
        return _stream(await self._refreshed(deadline), wanted)

    async def sync_stream(self, lsid: int, target: int, *, source: int = 0, timeout: float | None = None) -> int:
        """Let the replica on node `target` copy what it lacks from the one on node `source`, or from one that the
        manager chooses (M9). Returns how far it is, in percent. Ask again until that is 100, at least every few
        seconds: a copy that nobody asks for is given up. The manager does this by itself for every replica that needs
        it."""
        wanted = SyncLogStream(0, check_stream(lsid), check_node("target", target), check_node("source", source, 0))
        return await self._manage(lambda request: replace(wanted, request=request), self._deadline(timeout))

    async def move_replica(
        self, lsid: int, *, to: int = 0, away_from: int = 0, timeout: float | None = None
    ) -> StreamInfo:
        """Let a log stream have a replica on node `to`, and none on node `away_from` any more. The new one copies the
        log first, while appends go on. Returns when that is decided; it is done when the log stream is neither
        `joining` nor `leaving`. With neither of them a move that is under way is given up."""
        deadline = self._deadline(timeout)
        wanted = MoveReplica(0, check_stream(lsid), check_node("to", to, 0), check_node("away_from", away_from, 0))
        await self._manage(lambda request: replace(wanted, request=request), deadline)
        return _stream(await self._refreshed(deadline), wanted.lsid)

    async def declare_lost(
        self, lsid: int, *, gone: Sequence[int] = (), dry_run: bool = False, timeout: float | None = None
    ) -> LostRange:
        """Declare lost what no replica of a sealed log stream has any more, for good: readers get `errors.Lost` there
        instead of waiting, and go on behind it. Refused while a node that does not answer may have it, unless that node
        is among `gone`: the nodes that will never come back. With `dry_run` it only tells what would be lost."""
        wanted, nodes, deadline = check_stream(lsid), check_nodes("gone", gone), self._deadline(timeout)
        begin = await self._manage(lambda request: DeclareLost(request, wanted, nodes, dry_run), deadline)
        stream = _stream(await self._refreshed(deadline), wanted)
        return LostRange(GLSN(begin), GLSN(stream.last_glsn + 1))

    async def streams(self, topic: str | None = None, *, timeout: float | None = None) -> list[StreamInfo]:
        """The log streams of a topic, or of all."""
        metadata = await self.metadata(timeout=timeout)
        if topic is None:
            return list(metadata.streams)
        for known in metadata.topics:
            if known.name == topic:
                return [stream for stream in metadata.streams if stream.tpid == known.tpid]
        raise errors.UnknownTopic(f"there is no topic {topic!r}")

    # The cluster

    async def diagnose(self, *, timeout: float | None = None) -> Diagnosis:
        """What the manager sees that is not as it should be, since when, what it does about it, and what only a person
        can do (`findings`, none if all is well); and what it has been doing of late (`doing`)."""
        answer = await self._ask_manager(Diagnose, self._deadline(timeout), changes=False)
        assert isinstance(answer, Diagnosis)
        return answer

    async def fingerprint(
        self, snid: int, lsid: int, begin: int, end: int, *, timeout: float | None = None
    ) -> Fingerprint:
        """What a node's replica of a log stream holds of [begin, end), to be compared with that of others."""
        deadline, link, stream = self._deadline(timeout), self._link_to(snid), check_stream(lsid)
        begin, end = check_position("begin", begin), check_position("end", end)

        def request_of(request: int) -> Message:
            return GetFingerprint(request, stream, GLSN(begin), GLSN(end))

        answer = await self._session.asking.ask(request_of, deadline, of=link)
        assert isinstance(answer, Fingerprint)
        return answer

    async def repositories(self, *, timeout: float | None = None) -> dict[str, Standing | errors.VarlogError]:
        """How each of the metadata repositories that this client knows is, by address: which one leads, in which term,
        how it reaches its store. Of one that does not answer, why."""
        deadline = self._deadline(timeout)
        asking, links = self._session.asking, self._session.repositories
        answers = await asyncio.gather(
            *(asking.ask(GetStanding, deadline, of=link) for link in links), return_exceptions=True
        )
        found: dict[str, Standing | errors.VarlogError] = {}
        for link, answer in zip(links, answers, strict=True):
            if not isinstance(answer, Standing | errors.VarlogError):
                assert isinstance(answer, BaseException)
                raise answer
            found[link.address] = answer
        return found

    async def sequencers(self, *, timeout: float | None = None) -> dict[str, int | errors.VarlogError]:
        """Of every registered sequencer, by address, which start of it answers; or why none does."""
        deadline = self._deadline(timeout)
        addresses = [known.address for known in (await self.metadata(timeout=timeout)).sequencers]

        async def boot_of(address: str) -> int | errors.VarlogError:
            def request_of(request: int) -> Message:
                return Peek(request, TopicID(0), Epoch(0))

            try:
                link = self._session.sequencer(address)
                answer = await self._session.asking.ask(request_of, deadline, of=link, whatever=True)
            except errors.VarlogError as error:
                return error
            assert isinstance(answer, Peeked)
            return answer.boot

        return dict(zip(addresses, await asyncio.gather(*map(boot_of, addresses)), strict=True))

    async def manager(self, *, timeout: float | None = None) -> str:
        """Where the manager is, once it can be reached; `Unreachable` says why it cannot."""
        deadline = self._deadline(timeout)
        await self._session.refreshed(deadline)
        link = self._session.manager()
        while link is None or not link.connected:
            if link is None or self._session.loop.time() + LOOK_AGAIN > deadline:
                why = NO_MANAGER if link is None else f"{link.address}: {link.error or 'it does not answer'}"
                raise errors.Unreachable(why)
            await asyncio.sleep(LOOK_AGAIN)
        return link.address

    async def metadata(self, *, timeout: float | None = None) -> Metadata:
        """The present state of the cluster, all of one version."""
        return await self._refreshed(self._deadline(timeout))

    async def _refreshed(self, deadline: float) -> Metadata:
        await self._session.refreshed(deadline)
        assert self._session.metadata is not None
        return self._session.metadata

    async def close(self) -> None:
        """End what is under way with `Closed`, and all connections."""
        await self._session.close()

    async def _manage(self, build: Callable[[int], Message], deadline: float) -> int:
        """Have the manager do something; the id of what it made."""
        answer = await self._ask_manager(build, deadline, changes=True)
        assert isinstance(answer, Managed)
        return answer.value

    async def _ask_manager(self, build: Callable[[int], Message], deadline: float, *, changes: bool) -> Message:
        session = self._session
        give_up = min(deadline, session.loop.time() + MANAGER_SECONDS)
        while True:
            manager = session.manager()
            missing: errors.VarlogError = errors.Unreachable(NO_MANAGER)
            if manager is not None:
                try:
                    return await session.asking.ask(build, deadline, of=manager, repeats=not changes, changes=changes)
                except errors.StandBy as standing_by:  # it has done nothing, and another one leads, or will soon
                    missing = standing_by
            if session.loop.time() + 2 * LOOK_AGAIN > give_up:
                raise missing
            await asyncio.sleep(LOOK_AGAIN)
            await session.refreshed(deadline)

    async def _running(
        self, wanted: Callable[[StreamInfo], bool], count: int, deadline: float, what: str = "made"
    ) -> Metadata:
        """Wait until so many log streams run."""
        while True:
            metadata = await self._refreshed(deadline)
            found = [stream for stream in metadata.streams if wanted(stream)]
            if len(found) >= count and all(_serves(metadata, stream) for stream in found):
                return metadata
            if self._session.loop.time() + LOOK_AGAIN > deadline:
                states = ", ".join(f"log stream {stream.lsid} is {stream.status.name}" for stream in found)
                raise errors.DeadlineExceeded(f"{what}, but not running yet: {states}; see `varlog status`")
            await asyncio.sleep(LOOK_AGAIN)

    def _deadline(self, timeout: float | None) -> float:
        return self._session.now() + (self._timeout if timeout is None else check_timeout(timeout))

    async def __aenter__(self) -> Admin:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _serves(metadata: Metadata, stream: StreamInfo) -> bool:
    """Whether it runs; where a sequencer orders, whether positions can lie there."""
    if stream.status is not StreamStatus.CHAINED:
        return stream.status is StreamStatus.RUNNING
    projection = next(topic.projection for topic in metadata.topics if topic.tpid == stream.tpid)
    return projection is not None and any(stream.lsid in stripe.lsids for stripe in projection.stripes)


def _stream(metadata: Metadata, lsid: int) -> StreamInfo:
    for stream in metadata.streams:
        if stream.lsid == lsid:
            return stream
    raise errors.UnknownLogStream(f"log stream {lsid} was removed meanwhile")


def admin(
    cluster: str | Path | None = None,
    *,
    cid: int | None = None,
    secret_file: str | Path | None = None,
    tls: TlsFiles | None = None,
    timeout: float = DEFAULT_TIMEOUT,
) -> Connecting[Admin]:
    """Connect to a cluster to administer it; the arguments are those of `varlog.connect`.

    >>> import asyncio, tempfile, varlog
    >>> async def main() -> None:
    ...     with tempfile.TemporaryDirectory() as path:
    ...         async with varlog.embedded(path), varlog.admin(path) as admin:
    ...             await admin.add_topic("orders", streams=2)
    ...             print([topic.name for topic in await admin.topics()], len(await admin.streams("orders")))
    >>> asyncio.run(main())
    ['log', 'orders'] 2
    """
    limit = check_timeout(timeout)

    async def make() -> Admin:
        return Admin(await open_session(cluster, cid, secret_file, limit, tls), limit)

    return Connecting(make)
