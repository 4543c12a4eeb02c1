"""Session: a client's connections to one cluster, and what it knows of it.

The decisions are made by state machines of the core (`Writer`, `Subscription`); here they are its *participants*. The
session carries their messages, gives them request numbers by which answers find back to them, keeps the metadata fresh
when one of them wants that, tells them of connections that come and go, and lets time pass for them.

A link to a storage node or to a sequencer is opened when something is first sent to it, and redialled from then on for
as long as the metadata lists it there. What is sent while it is not connected is dropped; the participants are told
when it is, and send again.

There is a tick ten times a second while anything is under way. An idle session has no timer, and costs nothing.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Container
from copy import copy
from typing import Any, Final, Protocol, TypeVar, get_args

from varlog import errors, limits
from varlog.client.asking import Asking
from varlog.client.cluster import Cluster
from varlog.core.address import METADATA_REPOSITORY, Address, node_address, sequencer_address
from varlog.core.appending import Writer
from varlog.core.messages import (
    AppendReplies,
    AppendReply,
    ChainPart,
    ChainWritten,
    Digest,
    GetMetadata,
    Granted,
    Info,
    Leading,
    Message,
    Metadata,
    NotLeading,
    Peeked,
    ScanReply,
    Tail,
)
from varlog.core.routing import Routing
from varlog.types import StorageNodeID
from varlog.wire.connection import Connection
from varlog.wire.hello import Identity, Role
from varlog.wire.link import Link

TICK: Final = 0.1
REFRESH_EVERY: Final = 0.05
"""Metadata is not asked for more often; and while an answer is out, only every so often:"""
REFRESH_AGAIN: Final = 0.5
REFRESH_SHARE: Final = 0.05
REFRESH_RARELY: Final = 1.0
"""Whoever wants metadata for long gets it after a twentieth of that time, but not more rarely than this: a short outage
is over when it ends, and in a long one the clients do not wear the metadata repository out."""

_SLOTS: Final = limits.CLIENT_OPERATIONS
_SLOT: Final = _SLOTS - 1
_Reply = AppendReply | ScanReply | ChainWritten | Granted | ChainPart | Digest | Peeked | Tail
_REPLIES: Final = get_args(_Reply)
_FATAL: Final = (
    errors.WrongCluster,
    errors.WrongSecret,
    errors.WrongRole,
    errors.UnsupportedProtocol,
    errors.WrongCertificate,
    errors.TlsMismatch,
)


class Participant(Protocol):
    """What the session needs of a state machine. `wants_metadata` is looked at after every call."""

    @property
    def wants_metadata(self) -> bool: ...

    @property
    def outstanding(self) -> int:
        """Not zero while it needs ticks."""

    def on_reply(self, reply: Any, now: float) -> None: ...

    def on_metadata(self, now: float) -> None: ...

    def on_connected(self, snid: StorageNodeID, now: float) -> None: ...

    def on_disconnected(self, snid: StorageNodeID, now: float) -> None: ...

    def tick(self, now: float) -> None: ...


_P = TypeVar("_P", bound=Participant)
Abandon = Callable[[errors.VarlogError], None]
OnSequencer = Callable[[str, bool, float], None]
"""Told where a sequencer is, whether there is a connection to it now, and when that is."""


class Peer:
    """One process of the cluster, as a receiver of its connection's messages."""

    def __init__(self, session: Session, snid: StorageNodeID, location: str, wants: Role) -> None:
        self.snid = snid
        """0 if it is no storage node."""
        self.is_sequencer = wants is Role.SEQUENCER
        self._session = session
        self.link = Link(location, session.identity, wants, session.cluster.credentials, self)
        self.on_message = self._on_repository if wants is Role.METADATA_REPOSITORY else session.on_message
        self.link.open()

    @property
    def unreachable(self) -> bool:
        return not self.link.connected and self.link.error is not None

    def on_connected(self, connection: Connection) -> None:
        self._session.on_connected(self, connection)

    def _on_repository(self, connection: Connection, message: Message) -> None:
        if isinstance(message, Leading | NotLeading):
            self._session.on_said(self.link, message)
        else:
            self._session.on_message(connection, message)

    def on_turn(self, connection: Connection) -> None:
        """Everything was done message by message."""

    def on_closed(self, _connection: Connection, _error: errors.VarlogError | None) -> None:
        self._session.on_closed(self)


class Session:
    """See the module's text."""

    def __init__(self, cluster: Cluster) -> None:
        self.loop = asyncio.get_running_loop()
        self.cluster = cluster
        self.identity = Identity(cluster.cid, Role.CLIENT)
        self.routing = Routing()
        self.metadata: Metadata | None = None
        self.infos: dict[StorageNodeID, tuple[float, Info]] = {}
        """What nodes last said of themselves, and when."""
        self.closed: errors.VarlogError | None = None
        self._participants: dict[int, Participant] = {}
        self._numbers: list[itertools.count[int]] = []
        self._free: list[int] = []
        self._nodes: dict[Address, Peer] = {}
        self._nowhere: set[Address] = set()
        """Nodes that something was to be sent to, and nobody knows where they are."""
        self._sequencers: dict[Address, Peer] = {}
        self.sequencer_listeners: list[OnSequencer] = []
        self._connections: dict[Address, Connection] = {}
        """Of the nodes and sequencers that are connected."""
        self.ticker: asyncio.TimerHandle | None = None
        """None while nothing is under way."""
        self._asked_at = -REFRESH_AGAIN
        self._refreshing = False
        self._wanted_since: float | None = None
        """Since when one tick after another has found that somebody wants metadata."""
        self._unanswered_since = 0.0
        """When metadata was first asked for since it last came."""
        self._refreshed: list[asyncio.Future[None]] = []
        self._places: dict[Participant, tuple[int, Abandon]] = {}
        self.asking = Asking(self.loop, self.stir, self.claim_slot())
        self.repositories = [
            self.asking.add_repository(Peer(self, StorageNodeID(0), address, Role.METADATA_REPOSITORY).link)
            for address in cluster.addresses
        ]
        self._manager: Peer | None = None

    def now(self) -> float:
        """The loop's time; or raises, before anything is touched, if this is not that loop."""
        if asyncio._get_running_loop() is not self.loop:
            raise errors.InvalidArgument(
                "this client belongs to another event loop, or to the process that this one was forked from; connect "
                "once in each of them, or use varlog.sync, which any thread may"
            )
        return self.loop.time()

    async def open(self, deadline: float) -> None:
        """Wait for the first metadata. An error that waiting does not mend is raised at once."""
        waiting = self._wait_for_metadata()
        self.refresh()
        try:
            while not waiting.done():
                await asyncio.wait([waiting], timeout=min(TICK / 2, max(0.0, deadline - self.loop.time())))
                self._check_reachable(deadline)
        finally:
            waiting.cancel()

    def _check_reachable(self, deadline: float) -> None:
        reasons = [link.error for link in self.repositories]
        if any(link.connected for link in self.repositories) and self.loop.time() < deadline:
            return
        fatal = [error for error in reasons if isinstance(error, _FATAL)]
        if fatal and all(reasons):
            raise copy(fatal[0])
        if self.loop.time() >= deadline and self.metadata is None:
            raise self.unreachable()

    def unreachable(self) -> errors.VarlogError:
        """Why there is no answer from any metadata repository."""
        leader = self.asking.leader
        tried = f"{leader.address}: connected, but silent" if leader is not None else self.asking.why_nobody_leads()
        return errors.Unreachable(f"no metadata repository answers ({tried}); check that the cluster runs")

    def repositories_silent(self) -> errors.VarlogError | None:
        """The same, if one was asked and has not answered for some time; else None."""
        silent = self._refreshing and self.loop.time() - self._unanswered_since >= 2 * REFRESH_AGAIN
        return self.unreachable() if silent else None

    async def close(self) -> None:
        """End everything under way with `Closed`, and every connection."""
        if self.closed is None:
            self.closed = errors.Closed("the client was closed")
            self.fail(self.closed)
            self.asking.close(self.closed)
            for waiting in self._refreshed:
                if not waiting.done():
                    waiting.set_exception(copy(self.closed))
            self._participants.clear()
            if self.ticker is not None:
                self.ticker.cancel()
        links = [*self.repositories, *(peer.link for peer in (*self._nodes.values(), *self._sequencers.values()))]
        if self._manager is not None:
            links.append(self._manager.link)
        for link in links:
            link.close()
        for link in links:
            await link.gone()

    # Participants

    def claim_slot(self) -> Callable[[], int]:
        """A source of request numbers whose answers belong to one participant."""
        if not self._free:
            if len(self._numbers) >= _SLOTS:
                raise errors.Busy(f"{_SLOTS} operations are under way in this client already")
            self._free.append(len(self._numbers))
            self._numbers.append(itertools.count(_SLOTS + len(self._numbers), _SLOTS))
        return self._numbers[self._free.pop()].__next__

    def enroll(
        self,
        make: Callable[[Callable[[], int]], _P],
        abandon: Abandon,
    ) -> _P:
        """Take part: `make` is given the request numbers to use. `abandon` is called with why, when everything under
        way ends before the participant is dismissed."""
        if self.closed is not None:
            raise copy(self.closed)
        new_request = self.claim_slot()
        slot = new_request() & _SLOT
        participant = make(new_request)
        self._participants[slot] = participant
        self._places[participant] = (slot, abandon)
        if self.metadata is not None:
            participant.on_metadata(self.loop.time())
        self.stir()
        if participant.wants_metadata:
            self.refresh()
        return participant

    def dismiss(self, participant: Participant) -> None:
        """Take part no more; what is still said to it is dropped."""
        place = self._places.pop(participant, None)
        if place is not None:
            self._participants.pop(place[0], None)
            self._free.append(place[0])

    def fail(self, error: errors.VarlogError) -> None:
        """End everything under way, and go on."""
        for _, abandon in list(self._places.values()):
            abandon(error)

    # Messages

    def send(self, address: Address, message: Message) -> bool:
        """Send to a storage node or a sequencer, if it is connected; otherwise see that it will be. Or to the metadata
        repository that leads. False: it was not sent."""
        connection = self._connections.get(address)
        if connection is not None:
            return connection.send(message)
        if address == METADATA_REPOSITORY:
            return self.asking.tell_repository(message)
        if address not in self._nodes and address not in self._sequencers:
            self._reach(address)
        return False

    def send_now(self, address: Address, message: Message) -> bool:
        """The same, and the node can begin with it while this turn of the loop goes on."""
        connection = self._connections.get(address)
        if connection is None:
            return self.send(address, message)
        is_sent = connection.send(message, held=True)
        connection.flush()
        return is_sent

    def _reach(self, address: Address) -> None:
        location = address.removeprefix(sequencer_address(""))
        if location != address:
            self._sequencers[address] = Peer(self, StorageNodeID(0), location, Role.SEQUENCER)
            return
        for node in self.metadata.nodes if self.metadata is not None else ():
            if node.address and node_address(node.snid) == address:
                self._nodes[address] = Peer(self, node.snid, node.address, Role.STORAGE_NODE)
                return
        self._nowhere.add(address)

    def node(self, snid: StorageNodeID) -> Link | None:
        """The link to a storage node; None if no address is known for it."""
        address = node_address(snid)
        if address not in self._nodes:
            self._reach(address)
        peer = self._nodes.get(address)
        return peer.link if peer is not None else None

    def sequencer(self, location: str) -> Link:
        """The link to a sequencer."""
        address = sequencer_address(location)
        if address not in self._sequencers:
            self._reach(address)
        return self._sequencers[address].link

    def manager(self) -> Link | None:
        """The link to the manager; None if none has registered."""
        location = self.metadata.manager if self.metadata is not None else ""
        if self._manager is not None and self._manager.link.address != location:
            self.leave_manager()
        if self._manager is None and location:
            self._manager = Peer(self, StorageNodeID(0), location, Role.MANAGER)
        return self._manager.link if self._manager is not None else None

    def leave_manager(self) -> None:
        """The manager is not needed any more."""
        if self._manager is not None:
            self._manager.link.close()
            self._manager = None

    def manager_missing(self) -> str | None:
        """Why no manager can be reached; None if one can, or if nobody tried."""
        if self.metadata is not None and not self.metadata.manager:
            return "none has registered"
        link = self._manager.link if self._manager is not None else None
        return str(link.error) if link is not None and not link.connected and link.error is not None else None

    def on_connected(self, peer: Peer, connection: Connection) -> None:
        if peer.snid:
            if connection.peer.node_id != peer.snid:
                connection.close(errors.WrongIdentity(f"storage node {peer.snid} is expected at {peer.link.address}"))
                return
            self._connections[node_address(peer.snid)] = connection
            self.routing.nodes_avoided.worked(peer.snid)
            now = self.loop.time()
            for participant in list(self._participants.values()):
                participant.on_connected(peer.snid, now)
        elif peer.is_sequencer:
            self._connections[sequencer_address(peer.link.address)] = connection
            self._tell_of_sequencer(peer, is_connected=True)
        self.asking.on_connected(connection)

    def on_said(self, repository: Link, said: Leading | NotLeading) -> None:
        if self.asking.on_said(repository, said) and self._refreshing:
            self._ask_metadata()

    def _tell_of_sequencer(self, peer: Peer, *, is_connected: bool) -> None:
        for listener in self.sequencer_listeners:
            listener(peer.link.address, is_connected, self.loop.time())

    def on_closed(self, peer: Peer) -> None:
        address = node_address(peer.snid)
        if peer.is_sequencer:
            if self._connections.pop(sequencer_address(peer.link.address), None) is not None:
                self._tell_of_sequencer(peer, is_connected=False)
        elif self._nodes.get(address) is peer and self._connections.pop(address, None) is not None:
            self._on_node_lost(peer.snid)
        self.asking.on_closed(peer.link)

    def _on_node_lost(self, snid: StorageNodeID) -> None:
        now = self.loop.time()
        self.routing.nodes_avoided.unusable(snid, now)
        for participant in list(self._participants.values()):
            participant.on_disconnected(snid, now)
            if participant.wants_metadata:
                self.refresh()

    def _on_replies(self, replies: AppendReplies) -> None:
        slots = {request & _SLOT for request in replies.requests}
        if len(slots) == 1:
            participant = self._participants.get(slots.pop())
            if isinstance(participant, Writer):  # nobody else appends
                participant.on_replies(replies, self.loop.time())
                if participant.wants_metadata:
                    self.refresh()
        else:
            for reply in replies.each():
                self._on_reply(reply)

    def _on_reply(self, reply: _Reply) -> bool:
        """False if it is not for a participant."""
        participant = self._participants.get(reply.request & _SLOT)
        if participant is None:
            return False
        participant.on_reply(reply, self.loop.time())
        if participant.wants_metadata:
            self.refresh()
        return True

    def on_message(self, _connection: Connection, message: Message) -> None:
        if isinstance(message, AppendReplies):
            self._on_replies(message)
        elif isinstance(message, _REPLIES) and self._on_reply(message):
            pass
        elif isinstance(message, Metadata):
            self._on_metadata(message)
        else:
            if isinstance(message, Info):
                self.infos[message.snid] = (self.loop.time(), message)
            self.asking.on_answer(message)

    # Metadata

    def refresh(self) -> None:
        """Ask for metadata, unless that was just done."""
        now = self.loop.time()
        since = now - self._asked_at
        wanted = now - self._wanted_since if self._wanted_since is not None else 0.0
        pause = min(max(REFRESH_EVERY, wanted * REFRESH_SHARE), REFRESH_RARELY)
        if since >= (REFRESH_AGAIN if self._refreshing else pause):
            self._ask_metadata()
        self.stir()

    def _ask_metadata(self) -> None:
        self._asked_at = self.loop.time()
        if not self._refreshing:
            self._unanswered_since = self._asked_at
        self._refreshing = True
        self.asking.tell_repository(GetMetadata(self.asking.new_request()))

    async def refreshed(self, deadline: float) -> None:
        """Wait for metadata that was asked for after this call."""
        if self.closed is not None:
            raise copy(self.closed)
        waiting = self._wait_for_metadata()
        self._ask_metadata()
        self.stir()
        try:
            async with asyncio.timeout_at(deadline):
                await waiting
        except TimeoutError:
            raise self.unreachable() from None

    def _wait_for_metadata(self) -> asyncio.Future[None]:
        waiting = self.loop.create_future()
        self._refreshed.append(waiting)
        return waiting

    def _on_metadata(self, metadata: Metadata) -> None:
        known = {stream.lsid: stream.epoch for stream in self.metadata.streams} if self.metadata is not None else {}
        if not self.routing.update(metadata) and metadata.version != self.routing.version:
            return
        self.metadata = metadata
        self._refreshing = False
        for stream in metadata.streams:
            peer = self._nodes.get(node_address(stream.primary))
            if peer is not None and stream.epoch != known.get(stream.lsid):
                peer.link.hasten()  # nobody would have gone on with a primary that is not there
        places = {node_address(node.snid): node.address for node in metadata.nodes}
        moved = [peer for address, peer in self._nodes.items() if places.get(address) != peer.link.address]
        for peer in moved:
            del self._nodes[node_address(peer.snid)]
            self._connections.pop(node_address(peer.snid), None)
            peer.link.close()
        self._leave_sequencers({sequencer_address(sequencer.address) for sequencer in metadata.sequencers})
        now = self.loop.time()
        for participant in list(self._participants.values()):
            participant.on_metadata(now)
        for peer in moved:
            self._on_node_lost(peer.snid)
        waiting, self._refreshed = self._refreshed, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    def _leave_sequencers(self, listed: Container[Address]) -> None:
        for address in [address for address in self._sequencers if address not in listed]:
            self._connections.pop(address, None)
            peer = self._sequencers.pop(address)
            peer.link.close()
            self._tell_of_sequencer(peer, is_connected=False)

    # Time

    def stir(self) -> None:
        """Something is under way."""
        if self.ticker is None and self.closed is None:
            self.ticker = self.loop.call_later(TICK, self._tick)

    def _tick(self) -> None:
        self.ticker = None
        now = self.loop.time()
        self.asking.tick(now)
        try:
            self._let_pass(now)
        except errors.VarlogError as error:
            self.fail(error)
        except Exception as error:  # somebody would wait for ever now: all are told, and time goes on
            self.fail(errors.Unknown(f"the client has failed, connect anew: {error!r}"))
        wanted = any(participant.wants_metadata for participant in self._participants.values())
        self._wanted_since = (self._wanted_since or now) if wanted else None
        if wanted or self._refreshed:
            self.refresh()
        if wanted or self._refreshed or self.asking.outstanding or self._is_busy():
            self.stir()

    def _let_pass(self, now: float) -> None:
        """Let time pass for the participants."""
        for snid in self._lost():
            self._on_node_lost(snid)
        for peer in self._sequencers.values():
            if peer.unreachable:
                self._tell_of_sequencer(peer, is_connected=False)
        for participant in list(self._participants.values()):
            participant.tick(now)

    def _lost(self) -> list[StorageNodeID]:
        """The nodes that cannot be reached, or of which nobody knows where they are."""
        nowhere, self._nowhere = self._nowhere, set()
        streams = self.metadata.streams if self.metadata is not None else ()
        unplaced = {snid for stream in streams for snid in stream.replicas if nowhere and node_address(snid) in nowhere}
        return [*unplaced, *(peer.snid for peer in self._nodes.values() if peer.unreachable)]

    def _is_busy(self) -> bool:
        return any(participant.outstanding for participant in self._participants.values())
