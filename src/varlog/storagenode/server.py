"""StorageNodeServer: a storage node on an event loop.

It carries messages between connections and the core (`varlog.core.storagenode`), staged groups to the disks
(`writing`), allowed reads to their threads (`reading`), and time to all of them; it decides nothing. What happens in
one turn of the loop is settled together at its end: one report, one group per replica.

A node is connected to all metadata repositories and follows the one that leads; it dials other nodes when it has
something to replicate to them, at the addresses the metadata repository gives.

An error that means two parts disagree on what is committed ends the node (`failed` is called); a message that makes no
sense is its sender's problem.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Final

import msgspec

from varlog import descriptors, errors, limits
from varlog.core.address import METADATA_REPOSITORY, Address, node_address
from varlog.core.executor import LogStreamExecutor
from varlog.core.messages import (
    AddLogStream,
    AdoptIdentity,
    Append,
    AppendReplies,
    AppendReply,
    ChainCopy,
    ChainPart,
    ChainRead,
    ChainSeal,
    ChainWrite,
    ChainWritten,
    Commit,
    Decided,
    Digest,
    FetchLog,
    GetDigest,
    GetFingerprint,
    GetInfo,
    GetMetadata,
    Info,
    LogPart,
    Message,
    Metadata,
    RemoveLogStream,
    ReopenLogStream,
    Replicate,
    ReplicateAck,
    Scan,
    Scrub,
    Seal,
    Sync,
    Unseal,
)
from varlog.core.proving import Outcome
from varlog.core.replicalog import CopiedPart
from varlog.core.storagenode import StorageNode
from varlog.core.syncing import FetchPlan, RestartPlan
from varlog.daemon import logs
from varlog.daemon.config import StorageNodeConfig
from varlog.daemon.peers import Peers, answers_ping
from varlog.daemon.polling import Polling
from varlog.daemon.repositories import Repositories
from varlog.storage.files import FileSystem
from varlog.storage.group import WriteGroup
from varlog.storage.grouped import AnyLog
from varlog.storage.options import StorageOptions
from varlog.storage.residents import OpenFiles
from varlog.storagenode.announcing import Announcing
from varlog.storagenode.answering import Answering
from varlog.storagenode.copying import Copying
from varlog.storagenode.fingerprinting import Fingerprinting
from varlog.storagenode.hosting import Hosting
from varlog.storagenode.replicas import AnyReplica, ChainedReplica, Replicas
from varlog.storagenode.scrubbing import Scrubbing
from varlog.storagenode.volumes import Volumes, space_of
from varlog.storagenode.writing import VolumeWriting
from varlog.types import MAX_ID, ClusterID, StorageNodeID
from varlog.wire.connection import Connection
from varlog.wire.credentials import Credentials, FileCredentials
from varlog.wire.hello import Identity, Role
from varlog.wire.link import Link
from varlog.wire.server import Server

TICK: Final = 0.1
IDLE_TICK: Final = 0.5
ASK_AGAIN: Final = 0.5

_ACCEPTED: Final[dict[Role, frozenset[type[Message]]]] = {
    Role.CLIENT: frozenset[type[Message]](
        {Append, Scan, GetInfo, GetFingerprint, Scrub, ChainWrite, ChainRead, ChainSeal, GetDigest}
    ),
    Role.STORAGE_NODE: frozenset[type[Message]](
        {Replicate, ReplicateAck, FetchLog, LogPart, ChainRead, ChainPart, GetDigest, Digest}
    ),
    Role.MANAGER: frozenset[type[Message]]({GetInfo, AdoptIdentity, AddLogStream, RemoveLogStream, ReopenLogStream})
    | frozenset[type[Message]]({Seal, Unseal, Sync, ChainSeal, ChainCopy}),
}

_ANSWERS: Final = frozenset[type[Message]]({AppendReply, AppendReplies, ChainWritten, ChainPart})
"""What a client waits for, and gets before anything else is done."""
_AWAITED: Final = frozenset[type[Message]]({AppendReply, ChainWritten})
"""What a client has nothing else to do without."""
_ORDERING: Final = frozenset[type[Message]]({Append, Replicate, Commit})
"""After which more of them can be expected soon, if there is not much else to do."""
_HOSTED: Final = frozenset[type[Message]](
    {AddLogStream, AdoptIdentity, RemoveLogStream, ReopenLogStream, GetInfo, GetFingerprint, Scrub, Unseal}
)


class StorageNodeServer:
    """See the module's text. Made by `start`."""

    def __init__(
        self,
        config: StorageNodeConfig,
        volumes: Volumes,
        fs: FileSystem,
        credentials: Credentials,
        failed: Callable[[errors.VarlogError], None],
        open_files: OpenFiles,
    ) -> None:
        self._config = config
        self._volumes = volumes
        self._credentials = credentials
        self._failed = failed
        self._loop = asyncio.get_running_loop()
        self._log = logs.get().bind(snid=volumes.snid)
        self.snid = volumes.snid
        self.identity = Identity(ClusterID(config.cluster), Role.STORAGE_NODE, volumes.snid)
        self.peers = Peers()
        self.branches: Counter[object] = Counter()
        """How often the core took which way."""
        self.announcing = Announcing(volumes)
        self.node = StorageNode(volumes.snid, volumes.boot, self._send, self._observe)
        options = StorageOptions(segment_bytes=config.segment_bytes, sync=config.sync, open_files=open_files)
        self.replicas = Replicas(fs, volumes, options, self._send, self._observe, self._serve)
        self._writings = {path: VolumeWriting(self._loop, self._on_written) for path in volumes.paths}
        self._fingerprinting = Fingerprinting(self._loop, volumes.snid, self._send, self._on_looked_through)
        self.scrubbing = Scrubbing(volumes.snid, self.replicas, config.scrub_mb_per_second, self._on_looked_through)
        self._hosting = Hosting(
            volumes.snid, self.replicas, self._send, self.node.remove, self._is_busy, self._resume_copy,
            self.node.on_reconnected,
        )  # fmt: skip
        self._answering = Answering(self._loop, self.node, self.replicas, self._hosting, self._settle_soon)
        self._copying = Copying(
            self._loop, self.node.syncing, self.node.chains, self.replicas, self._hosting, self._on_part_read,
            self._settle_soon,
        )  # fmt: skip
        self.repositories = Repositories(config.metadata_repository, self._dial, self.peers, self._on_leader)
        self._links: dict[Address, Link] = {}
        self._addresses: dict[Address, str] = {}
        """Where the other nodes are."""
        self._unreached: set[Address] = set()
        """Nodes that are wanted and whose place is not known."""
        self._asked = 0.0
        self._requests = 0
        self._appends: list[Append] = []
        """Of the read that is being taken apart, and"""
        self._appends_from: Address = ""
        self._polling = Polling(self._loop, config.busy_poll)
        self._is_ordering = False
        """Something has come of an append that is under way."""
        self._has_replicated = False
        """Backups were sent something since this node last wrote."""
        self._is_settling = False
        self._is_settled = False
        """Nothing has come since the last time that a turn was settled, but what is answered already."""
        self._is_writing = False
        """A group is written within `_settle`, which will see to what comes of it."""
        self._is_active = True
        self._is_stopping = False
        self._has_failed = False
        self._timer: asyncio.TimerHandle | None = None
        self._server: Server

    @classmethod
    async def start(
        cls,
        config: StorageNodeConfig,
        fs: FileSystem,
        failed: Callable[[errors.VarlogError], None],
        open_files: OpenFiles | None = None,
    ) -> StorageNodeServer:
        """Open the volumes, recover every replica, listen, and call the metadata repository. Nodes of one process share
        what bounds the files that they keep open."""
        credentials = FileCredentials(config.secret_file, config.tls)
        snid = StorageNodeID(config.snid) if config.snid is not None else None
        volumes = Volumes.open(
            fs, ClusterID(config.cluster), snid, config.volumes, error_if_exists=config.error_if_exists
        )
        shared = open_files if open_files is not None else OpenFiles(descriptors.for_segments())
        node = cls(config, volumes, fs, credentials, failed, shared)
        try:
            node.replicas.open_all()
            for one in node.replicas.unopened.values():
                node._log.error("a replica cannot be opened", lsid=one.lsid, volume=one.volume, error=str(one.error))
            accepts = frozenset(_ACCEPTED)
            node._server = await Server.start(config.listen, node.identity, accepts, credentials, node)
        except BaseException:
            node.replicas.close()
            volumes.close()
            raise
        node.repositories.open()
        node._tick()
        node.scrubbing.start()
        return node

    @property
    def listening(self) -> str:
        """The address it listens on."""
        return self._server.address

    @property
    def address(self) -> str:
        """Where others reach it."""
        return self._config.advertise or self._server.address

    @property
    def is_connected(self) -> bool:
        """To a metadata repository that leads."""
        return self.peers.at(METADATA_REPOSITORY) is not None

    @property
    def is_answered(self) -> bool:
        """Whether that one has answered lately: one that hangs keeps its connections. It does not answer the reports of
        a node that it has refused."""
        return self.is_connected and (self.announcing.was_refused or self.node.chains.is_leased(self._loop.time()))

    async def stop(self) -> None:
        """Serve no more; finish what is being written; let go of the files."""
        self._is_stopping = True
        if self._timer is not None:
            self._timer.cancel()
        self.repositories.close()
        for link in self._links.values():
            link.close()
        await self._server.close()
        await self._answering.stop()
        await self._copying.stop()
        await self._fingerprinting.stop()
        await self.scrubbing.stop()
        for writing in self._writings.values():
            await writing.stop()
        await self._hosting.stop()
        if self._has_failed:
            self.replicas.abandon()
        else:
            self.replicas.close()
        self._volumes.close()

    # Connections

    def on_connected(self, connection: Connection) -> None:
        address = self.peers.admit(connection)
        self._log.debug("connected", peer=address, remote=connection.remote)
        if connection.peer.role is Role.STORAGE_NODE:
            self.node.on_peer_connected(StorageNodeID(connection.peer.node_id), self._loop.time())
            self._settle_soon()

    def _on_leader(self, leader: Connection) -> None:
        self._announce()
        leader.send(GetMetadata(self._request()))
        self.node.on_reconnected()
        self._pass_time()

    def on_message(self, connection: Connection, message: Message) -> None:
        kind, role = type(message), connection.peer.role
        was_settled, self._is_settled = self._is_settled, False
        if kind is Append and role is Role.CLIENT:
            if not self._appends:
                self._appends_from = self.peers.name(connection)
            self._appends.append(message)  # type: ignore[arg-type]
            return
        if self._appends:
            self._take_appends()
        if role is Role.METADATA_REPOSITORY:
            if not self.repositories.takes(connection, message):
                self._on_metadata_message(message)
        elif kind not in _ACCEPTED[role]:
            if not answers_ping(connection, message):
                raise errors.ProtocolError(f"a storage node does not take {kind.__name__} from a {role.name}")
        elif kind in _HOSTED:
            self._on_hosted(self.peers.name(connection), message)
        elif isinstance(message, ChainRead) and self._answering.at_once(self.peers.name(connection), message):
            self._is_settled = was_settled
        else:
            self._receive(self.peers.name(connection), message)
            if self.node.chains.reads:
                self._answering.do_chained()

    def _take_appends(self) -> None:
        """What one read has brought of them is taken together."""
        source, appends, self._appends = self._appends_from, self._appends, []
        if len(appends) == 1:
            self._receive(source, appends[0])
            return
        if not self._is_active:
            self._wake_up()
        self.peers.hold()  # until `on_turn`
        try:
            self.node.on_appends(source, appends, self._loop.time())
        except errors.VarlogError as error:
            self._on_raised(error)

    def _on_metadata_message(self, message: Message) -> None:
        if isinstance(message, Metadata):
            self._on_metadata(message)
        elif isinstance(message, Decided):
            self._on_announced(message)
        else:
            self._receive(METADATA_REPOSITORY, message)

    def _receive(self, source: Address, message: Message) -> None:
        if not self._is_active and self.node.is_news(message):
            self._wake_up()
        if message.__class__ in _ORDERING:
            self._is_ordering = True
        self.peers.hold()  # until `on_turn`
        try:
            self.node.on_message(source, message, self._loop.time())
        except errors.VarlogError as error:
            self._on_raised(error)

    def _on_raised(self, error: errors.VarlogError) -> None:
        """By the core, of what was received: it makes no sense, or contradicts what is committed."""
        if isinstance(error, errors.ConsistencyViolation):
            self._fail(error)
        elif isinstance(error, errors.InvalidArgument):
            raise errors.ProtocolError(str(error)) from error
        else:
            raise error

    def _on_hosted(self, source: Address, message: Message) -> None:
        """What is about more than the protocol: volumes, connections."""
        match message:
            case AddLogStream():
                self._hosting.add(source, message)
            case RemoveLogStream():
                self._hosting.remove(source, message)
            case ReopenLogStream():
                self._hosting.reopen(source, message, self._loop.time())
            case GetInfo(request):
                self._send(source, self.info(request))
            case AdoptIdentity():
                self._adopt(source, message)
            case GetFingerprint(_, lsid):
                replica = None if self._hosting.is_leaving(lsid) else self.replicas.get(lsid)
                self._fingerprinting.answer(source, message, replica)
            case Scrub():
                self._send(source, self.scrubbing.answer(message))
            case Unseal():
                _check_set(message)
                self._receive(source, message)
                self._reach_backups(message)
            case _:
                raise errors.ProtocolError(f"a storage node does not take {type(message).__name__}")

    def on_turn(self, _connection: Connection) -> None:
        self._polling.wake()
        if self._is_settled:
            return
        if self._appends:
            self._take_appends()
        self.peers.release()
        if self.node.is_quiet and not self._is_settling:
            self._settle()  # nothing else will come in this turn that it could be settled together with
            if self._is_ordering and self.node.is_alone:
                self._polling.rest(self.node.is_under_way)
        else:
            self._settle_soon()
        self._is_ordering = False

    def on_closed(self, connection: Connection, error: errors.VarlogError | None) -> None:
        if self._appends:
            self._take_appends()
        address = self.peers.drop(connection)
        self.repositories.on_closed(connection)
        if address is not None and error is not None:
            self._log.info("connection closed", peer=address, reason=str(error))

    def _send(self, address: Address, message: Message) -> None:
        if message.__class__ in _ANSWERS:
            self.peers.send_now(address, message)
            if message.__class__ in _AWAITED and self.node.is_quiet:
                self._polling.give_way()  # the client first, and what is left to do here afterwards
        elif not self.peers.send(address, message) and address.startswith("sn/"):
            self._reach(address)
        elif message.__class__ is Replicate:
            self._has_replicated = True

    def _request(self) -> int:
        self._requests += 1
        return self._requests

    def _announce(self) -> None:
        """Say where this node is and who it is; until it is registered that changes nothing."""
        self._send(METADATA_REPOSITORY, self.announcing.announce(self._request(), self.address))

    def _on_announced(self, answer: Decided) -> None:
        try:
            outcome = self.announcing.on_decided(answer)
        except errors.WrongIdentity as error:
            self._fail(error)
            return
        if outcome in (Outcome.ADMITTED, Outcome.PROVEN):  # what was reported before did not count
            self.node.on_reconnected()
            self._pass_time()
        if outcome is Outcome.PROVEN:
            self._announce()

    def _adopt(self, source: Address, message: AdoptIdentity) -> None:
        self._send(source, self.announcing.adopt(message))
        self.node.boot = self.announcing.boot
        self._announce()

    def _fail(self, error: errors.VarlogError) -> None:
        """Do nothing more, whatever has arrived already, and write nothing more, whatever is staged."""
        self._log.critical("stopping to protect data", error=str(error))
        self._has_failed = self._is_stopping = True
        self._answering.cease()
        self.peers.close()
        self._failed(error)

    # Other nodes

    def _dial(self, location: str, role: Role, node_id: int = 0) -> Link:
        return Link(location, self.identity, role, self._credentials, self, node_id)

    def _reach(self, address: Address) -> None:
        """Have a connection to another node, now or soon; what could not be sent is sent again by the core."""
        link = self._links.get(address)
        location = self._addresses.get(address)
        if link is not None and link.connected:
            return  # it takes no more at the moment
        self._unreached.discard(address)
        if location is not None and link is None:
            self._links[address] = self._dial(location, Role.STORAGE_NODE, int(address.removeprefix("sn/")))
            self._links[address].open()
        elif location is None:
            self._unreached.add(address)
            self._ask_for_metadata()
        elif link is not None and link.error is not None:
            self._ask_for_metadata()

    def _reach_backups(self, message: Unseal) -> None:
        """A primary is about to replicate: its first batch should not have to wait for a connection. A backup that has
        restarted is there again, or else nobody would go on with it; where it is is asked anew."""
        if message.primary != self.snid:
            return
        backups = {node_address(snid) for snid in message.replicas if snid != self.snid}
        missing = {address for address in backups if self.peers.at(address) is None}
        for address in missing & self._links.keys():
            self._links[address].hasten()
        self._unreached |= missing
        if self._unreached:
            self._send(METADATA_REPOSITORY, GetMetadata(self._request()))

    def _ask_for_metadata(self) -> None:
        now = self._loop.time()
        if now - self._asked >= ASK_AGAIN:
            self._asked = now
            self._send(METADATA_REPOSITORY, GetMetadata(self._request()))

    def _on_metadata(self, metadata: Metadata) -> None:
        others = [node for node in metadata.nodes if node.snid != self.snid and node.address]
        addresses = {node_address(node.snid): node.address for node in others}
        for address, link in list(self._links.items()):
            if addresses.get(address) != self._addresses.get(address):
                link.close()
                del self._links[address]
        self._addresses = addresses
        for address in self._unreached & addresses.keys():
            self._reach(address)

    # Replicas

    def _serve(self, replica: AnyReplica) -> None:
        if isinstance(replica, ChainedReplica):
            self.node.chains.add(replica.executor)
        else:
            self.node.add(replica.executor)

    def _observe(self, what: object) -> None:
        self.branches[what] += 1

    def _is_busy(self, replica: AnyReplica) -> bool:
        """Whether its files are in use; those who look through them at leisure are told to let go."""
        storage = replica.storage
        is_vacant = self.scrubbing.vacate(storage) and not self._fingerprinting.is_busy(storage)
        is_vacant = is_vacant and not self._copying.is_busy(storage)
        return not is_vacant or self._writings[replica.volume].is_busy(storage) or self._answering.is_busy(storage)

    def _resume_copy(self, executor: LogStreamExecutor, plan: RestartPlan) -> None:
        """A replica was made anew."""
        self.node.syncing.resume(executor, plan)
        self._settle_soon()

    def info(self, request: int) -> Info:
        """What the node is and how its replicas are (M12)."""
        served = [
            msgspec.structs.replace(replica.executor.info(), volume=replica.volume)
            for replica in self.replicas
            if not self._hosting.is_leaving(replica.executor.lsid)
        ]
        replicas = (*served, *[unopened.info() for unopened in self.replicas.unopened.values()])
        known = self.announcing.is_identified
        space = space_of(self._volumes.paths)
        unanswered = self.node.unanswered(self._loop.time())
        return Info(request, self.snid, self.node.boot, replicas, self.address, space, known, unanswered)

    # Settling: what a turn of the loop has brought is reported, read and written together.

    def _settle_soon(self) -> None:
        if not self._is_settling:
            self._is_settling = True
            self._loop.call_soon(self._settle)

    def _settle(self) -> None:
        self._is_settling, self._is_settled = False, True
        if self._is_stopping:
            return
        node = self.node
        if node.reads or node.chains.reads or node.has_news:
            self._tell_others()
        node.stage()
        urgent = [replica for replica in self.replicas if replica.storage.urgent_bytes is not None]
        if not urgent:
            return
        if self._has_replicated:
            self._has_replicated = False
            if node.is_alone:
                self._polling.give_way()  # the backups first: the disk has to write for all before anybody goes on
        self._is_writing = True
        for replica in urgent:
            self._writings[replica.volume].submit(replica.storage, at_once=replica is urgent[0])
        self._is_writing = False
        self._tell_others()

    def _tell_others(self) -> None:
        """Do the reads, replicate, report; and before anything blocks, hand it all to the kernel."""
        self.peers.hold()
        if self._answering:
            self._answering.do_some()
        self.node.flush(self._loop.time())
        if self.node.syncing or self.node.chains.copying:
            self._copying.attend()
        self.peers.release()

    def _on_written(self, storage: AnyLog, group: WriteGroup | None, error: errors.VarlogError | None) -> None:
        if self._is_stopping:
            return
        replica = self.replicas.of(storage)
        lsid = replica.executor.lsid
        if self._hosting.is_leaving(lsid):
            self._hosting.go_on(lsid)
            return
        try:
            if error is not None:
                self._log.error("a replica failed", lsid=lsid, error=str(error))
                self.node.on_failed(lsid, error)
            elif group is None or not group.needs_sync:
                pass
            elif isinstance(replica, ChainedReplica):
                self.node.chains.on_durable(lsid)
            else:
                last = None
                if group.last_epoch is not None and group.last_llsn_end is not None:
                    last = (group.last_epoch, group.last_llsn_end)
                self.node.on_durable(lsid, last, group.epoch_records, replica.storage.durable_version)
        except errors.ConsistencyViolation as violation:
            self._fail(violation)
            return
        if not self._is_writing:
            self._settle()

    def _on_part_read(self, plan: FetchPlan, result: CopiedPart | errors.VarlogError) -> None:
        if self._is_stopping:
            return
        lsid = plan.executor.lsid
        replica = self.replicas.get(lsid)
        if self._hosting.is_leaving(lsid):
            self._hosting.go_on(lsid)
        elif isinstance(result, errors.Corrupt) and replica is not None:
            self._log.error("damage found", lsid=lsid, error=str(result))
            replica.storage.condemn(result)
        self.node.finish_fetch(plan, result)
        self._settle_soon()

    def _on_looked_through(self, storage: AnyLog, damage: errors.Corrupt | None) -> None:
        """A scrub or a fingerprint of a replica has ended."""
        if self._is_stopping:
            return
        lsid = self.replicas.of(storage).executor.lsid
        if self._hosting.is_leaving(lsid):
            self._hosting.go_on(lsid)
        elif damage is not None:
            self._log.error("damage found", lsid=lsid, error=str(damage))
            storage.condemn(damage)
            self.node.on_corrupt(lsid)
            self._settle_soon()

    def _tick(self) -> None:
        if self._is_stopping:
            return
        self._timer = self._loop.call_later(TICK if self._is_active else IDLE_TICK, self._tick)
        self._is_active = False
        if self.announcing.is_due:
            self._announce()
        for writing in self._writings.values():
            writing.mark()
        for replica in self.replicas:
            if replica.storage.doomed and not self._hosting.is_leaving(replica.executor.lsid):
                self._writings[replica.volume].clear(replica.storage)
        self.repositories.tick(self._loop.time())
        self._hosting.tick(self._loop.time())
        self._pass_time()

    def _pass_time(self) -> None:
        try:
            self.node.tick(self._loop.time())
        except errors.ConsistencyViolation as error:
            self._fail(error)
        self._settle_soon()

    def _wake_up(self) -> None:
        """Something happens again: time has to be looked at more often."""
        self._is_active = True
        if self._timer is not None and self._timer.when() > self._loop.time() + TICK:
            self._timer.cancel()
            self._timer = self._loop.call_later(TICK, self._tick)


def _check_set(message: Unseal) -> None:
    """A set that no metadata repository decides is not even looked at."""
    if len(message.replicas) > limits.MAX_REPLICAS or not all(1 <= snid <= MAX_ID for snid in message.replicas):
        raise errors.ProtocolError(f"an Unseal names 1 to {limits.MAX_REPLICAS} storage nodes")
