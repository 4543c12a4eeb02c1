"""Every error a caller can meet, with a stable code for the wire.

One root, one registry: a code is given once and never changes its meaning. The class says whether a retry of the same
request is safe (`retriable`), the docstring says when it is raised, the message says what to do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar


class VarlogError(Exception):
    """The root of every error of this system."""

    code: ClassVar[int] = 0
    retriable: ClassVar[bool] = False
    """True if the request may be sent again as it is and could succeed."""
    happened: bool | None = False
    """Of what was asked for. False: it did not happen and never will; None: it may have happened, or may yet."""

    registry: ClassVar[dict[int, type[VarlogError]]] = {}

    def __init_subclass__(cls, *, code: int, retriable: bool = False) -> None:
        super().__init_subclass__()
        taken = VarlogError.registry.get(code)
        if taken is not None:
            raise TypeError(f"error code {code} is {taken.__name__}'s already; {cls.__name__} needs another")
        cls.code = code
        cls.retriable = retriable
        VarlogError.registry[code] = cls

    def __reduce__(self) -> tuple[Callable[..., VarlogError], tuple[Any, ...], dict[str, Any]]:
        """How it is copied, to be raised anew: what is raised for several callers is not one object; and how it comes
        back from a process of an application. Made of its text, not of what the text was made of."""
        return _same, (type(self), self.args), self.__dict__

    @classmethod
    def of(cls, code: int, detail: str) -> VarlogError:
        """The error that a peer names by its code, with what the peer says of it. Its code is the peer's in any case:
        also of an error that is unknown to this release, or that would need more than a text to be made."""
        named = VarlogError.registry.get(code)
        if named is not None and named.__init__ is VarlogError.__init__:
            return named(detail or " ".join((named.__doc__ or "").split()))
        error = VarlogError(detail if named is not None else f"error {code}, unknown to this release: {detail}")
        error.code = code  # type: ignore[misc]  # of this one object
        return error


def _same(kind: type[VarlogError], args: tuple[Any, ...]) -> VarlogError:
    return kind.__new__(kind, *args)


# 1-19: what the caller handed in


class InvalidArgument(VarlogError, code=1):
    """An argument is outside of what the call accepts."""


class EmptyBatch(VarlogError, code=2):
    """A batch has no entries; there is nothing to give a position to."""


class EntryTooLarge(VarlogError, code=3):
    """One entry exceeds `limits.MAX_ENTRY_BYTES`."""


class BatchTooLarge(VarlogError, code=4):
    """A batch exceeds `limits.MAX_BATCH_BYTES` or `limits.MAX_BATCH_ENTRIES`; split it."""


class MalformedBatch(VarlogError, code=5):
    """Bytes that claim to be a record batch are not one."""


class UnknownCodec(VarlogError, code=6):
    """A batch is compressed by a codec this version does not know."""


class UnsupportedFormat(VarlogError, code=7):
    """Bytes or files were written by a newer version; upgrade before opening them."""


class ChecksumMismatch(VarlogError, code=8):
    """A batch's bytes are not the bytes its writer made."""


# 20-39: storage


class Corrupt(VarlogError, code=20):
    """Stored bytes that were once synced are damaged. Never answered as data, nor as absence."""

    def __init__(self, what: str, *, segment: str, offset: int) -> None:
        super().__init__(f"{what} in {segment} at offset {offset}; the replica must be repaired from another one")
        self.segment = segment
        self.offset = offset


class WrongIdentity(VarlogError, code=21):
    """Files belong to another cluster, storage node, topic or log stream."""


class DirectoryLocked(VarlogError, code=22):
    """The directory is open already, in another process or in this one; stop that first."""


class NotWritable(VarlogError, code=23):
    """A directory does not exist, is no directory, or may not be written."""


class DiskFull(VarlogError, code=24):
    """No space is left; appends fail, reads go on. Free space and restart the node."""


class Poisoned(VarlogError, code=25):
    """A write or fsync failed before; the replica accepts nothing until it is opened anew (M8)."""


class NoSuchReplica(VarlogError, code=26):
    """There is no log stream data at that path."""


class AlreadyExists(VarlogError, code=27):
    """There is data where new data should be made; nothing was changed."""


class JournalCorrupt(Corrupt, code=28):
    """The metadata journal is damaged where it was once synced. It is left as it is; rebuild it from the storage nodes,
    see `varlog metadata rebuild`."""

    def __init__(self, what: str, *, segment: str, offset: int) -> None:
        VarlogError.__init__(self, f"{what} in {segment} at offset {offset}; see varlog metadata rebuild")
        self.segment = segment
        self.offset = offset


class MalformedSnapshot(VarlogError, code=29):
    """Bytes that claim to be a deduplication table are not one, though their checksum holds; repair the replica."""


class JournalFailed(VarlogError, code=30):
    """The metadata journal could not be written; whether its last decision is on disk, only a restart can tell."""


# 40-59: log stream


class Sealed(VarlogError, code=40, retriable=True):
    """The log stream takes no appends now; use another one, or wait for its unseal."""


class StaleEpoch(VarlogError, code=41):
    """The request names an epoch that has passed; refresh metadata."""


class NotPrimary(VarlogError, code=42):
    """The replica is not the primary of its epoch; refresh metadata."""


class SequenceGap(VarlogError, code=43, retriable=True):
    """A writer's earlier batch has not arrived on this log stream yet (rule 18)."""


class FateExpired(VarlogError, code=44):
    """The writer is too far behind for the log to say whether this batch was appended; it is unknown (rule 19)."""


class Busy(VarlogError, code=45, retriable=True):
    """A queue is full; try again shortly."""


class DidNotHappen(VarlogError, code=46):
    """The append never happened and never will (rule 19)."""


class NotYet(VarlogError, code=47, retriable=True):
    """The position is beyond what this replica knows to be complete (rule 10)."""


class Trimmed(VarlogError, code=48):
    """The position was trimmed, and no archive has it; what there is goes on at `first`. `begin` is the position that
    was asked for, 0 if that is not known: what stood from there up to `first` is gone."""

    def __init__(self, first: int, begin: int = 0, archive: str = "") -> None:
        what = f"the log now begins at {first}"
        if archive:
            what = f"{begin} to {first - 1} are neither in the log nor in its archive at {archive}; go on at {first}"
        super().__init__(f"trimmed: {what}")
        self.first = first
        self.begin = begin


class UnknownLogStream(VarlogError, code=49):
    """There is no such log stream here; refresh metadata."""


class ConsistencyViolation(VarlogError, code=50):
    """Two parts of the system disagree on what is committed. The replica stops at once and says so (M5)."""


class Unwritten(VarlogError, code=51):
    """The position is beyond the tail: nothing has been written there yet. Subscribe to wait for it."""


class AlreadySync(VarlogError, code=52, retriable=True):
    """The replica copies from another source already (M9). Wait until it is done, or ask how far it is."""


class NoSource(VarlogError, code=53, retriable=True):
    """The replica cannot be copied from: it is not complete itself, or damaged."""


class Lost(VarlogError, code=54):
    """Every copy of what stood in [begin, end) is gone, and an operator has declared so. The log goes on at `end`."""

    def __init__(self, begin: int, end: int) -> None:
        super().__init__(f"lost: every copy of {begin} to {end - 1} is gone; the log goes on at {end}")
        self.begin = begin
        self.end = end


class Filled(VarlogError, code=55):
    """The position holds no entry and never will: it was filled. A scan or a subscription passes over it."""


class Written(VarlogError, code=56):
    """The position is written already, and what is written once stays; the answer holds what is there (S3)."""


class LeaseExpired(VarlogError, code=57, retriable=True):
    """The storage node has not heard from the metadata repository for too long and serves no chain until it has (S10);
    another replica may, after a reconfiguration."""


class WrongOrdering(VarlogError, code=58):
    """The call is for topics of the other ordering: `varlog topic describe` says which one a topic has."""


class NotSequencer(VarlogError, code=59):
    """The projection does not name this sequencer for the topic, or not this start of it; renew the projection."""


# 60-79: metadata


class NotLeader(VarlogError, code=60, retriable=True):
    """This metadata repository does not lead; ask another one."""


class Conflict(VarlogError, code=61):
    """The state has changed since the request was made; read it again and decide anew."""


class UnknownTopic(VarlogError, code=62):
    """There is no such topic."""


class UnknownNode(VarlogError, code=63):
    """There is no such storage node."""


class LimitExceeded(VarlogError, code=64):
    """The cluster holds as many of these as it may."""


class StoreUnavailable(VarlogError, code=65, retriable=True):
    """The metadata store did not take the request; nothing happened."""


class OutcomeUnknown(VarlogError, code=66):
    """The metadata store may or may not have taken the write; read it again before anything else (rule 1)."""


class LeaseNotFound(VarlogError, code=67):
    """The lease has run out, was revoked or never was; nothing happened."""


class Compacted(VarlogError, code=68):
    """The metadata store has forgotten the changes a watch asked for; read anew and watch from there."""


class MalformedMetadata(VarlogError, code=69):
    """A value in the metadata store is not what the metadata repository writes; restore it from a backup."""


# 80-99: client


class Unknown(VarlogError, code=80):
    """The deadline passed before it could be known whether what was asked for happened."""

    happened = None


class DeadlineExceeded(VarlogError, code=81, retriable=True):
    """The deadline passed; the request changes nothing."""


class Closed(VarlogError, code=82):
    """The client was closed, before or while the call was under way; connect anew. An append may have happened."""

    happened = None


# 100-109: connections


class ProtocolError(VarlogError, code=100):
    """Bytes on a connection are not what the protocol allows there; that connection is closed, nothing else."""


class UnsupportedProtocol(VarlogError, code=101):
    """The peer speaks another version of the protocol; upgrade the older side."""


class WrongCluster(VarlogError, code=102):
    """The peer belongs to another cluster; check the address and the cluster id."""


class WrongSecret(VarlogError, code=103):
    """The peer could not prove that it knows the cluster's secret; give both sides the same secret file."""


class WrongRole(VarlogError, code=104):
    """The peer is another kind of process than the one that belongs at this end, or another one of its kind; check the
    address."""


class Unreachable(VarlogError, code=105, retriable=True):
    """Nobody answered at the address, or not in time; check the address and whether the process runs."""


class ConnectionLost(VarlogError, code=106):
    """The connection ended while it was in use; what was under way may or may not have reached the peer."""

    happened = None


class PeerStalled(VarlogError, code=107):
    """The peer stopped in the middle of a hello or of a frame, or took none of what was sent to it, for too long."""


class CannotListen(VarlogError, code=108):
    """The address to listen at is taken by another process, is not of this machine, or may not be used."""


class SecretUnusable(VarlogError, code=109):
    """The cluster's secret file is missing, can be read by others, or does not hold a secret."""


# 110-119: daemons


class BadConfig(VarlogError, code=110):
    """A config file or a flag is not what a daemon takes; the message names the place, the key and what is accepted."""


# 120-129: archive and pipeline


class NoArchive(VarlogError, code=120):
    """There is no archive at that place, or what is there is not an archive."""


class BrokenArchive(VarlogError, code=121):
    """An archive contradicts itself: its list of files has a gap or an overlap, or a file is not what the list says.
    Nothing of it is answered as data; restore the file that is named, or archive anew to another place."""


class ArchiveConflict(VarlogError, code=122, retriable=True):
    """Somebody else has extended the archive meanwhile. Nothing was added; go on behind what is there now."""


class NotInstalled(VarlogError, code=123):
    """A library that only this part of Varlog needs is not installed; the message says which extra brings it."""


class JobFailed(VarlogError, code=124):
    """Spark could not finish what a job asked of it, as often as it tried. Nothing half done counts: run it again."""


class Diverged(VarlogError, code=125):
    """What a topic holds is not what the archive has that it is restored from; the message says from where on. It is of
    no use so: remove it, and restore into a topic that nobody else writes to."""


# 130-139: Spark


class NoJava(VarlogError, code=130):
    """Spark needs Java 17 or later, and none was found; the message says where it was looked for."""


class BadOption(VarlogError, code=131):
    """An option of the Spark source or sink is unknown, its value is not allowed, or the rows do not fit it; the
    message names both, and what is allowed."""


class DataLoss(VarlogError, code=132):
    """What a query was to read in [begin, end) is no longer there, and no archive has it."""

    def __init__(self, begin: int, end: int, why: str) -> None:
        super().__init__(
            f"{begin} to {end - 1} can no longer be read: {why}; "
            f"to go on without them, set failOnDataLoss to false or begin at {end}"
        )
        self.begin = begin
        self.end = end


# 140-149: queries


class BadQuery(VarlogError, code=140):
    """A query is not SQL, or asks for what there is not; the message says what and where."""


class QueryFailed(VarlogError, code=141):
    """Spark could not answer a query that is right as far as it can tell; the message is what Spark says."""


# 150-159: etcd


class UnsuitableEtcd(VarlogError, code=150):
    """An etcd of this version can lose what it has acknowledged, or it is another etcd than the rest of the addresses;
    the message says which. Upgrade it, or give addresses of one etcd."""


class EtcdRefused(VarlogError, code=151):
    """etcd does not let us in: user, password, certificate or permission. The message is what etcd says."""


class EtcdNotFound(VarlogError, code=152):
    """There is no etcd on this machine to start, and none could be brought; the message says where it was looked."""


# 160-169: leadership


class StandBy(VarlogError, code=160, retriable=True):
    """Another manager leads, and this one stands by; the message names the one that leads. Ask that one."""


# 170-179: backups and rebuilds of metadata


class BadBackup(VarlogError, code=170):
    """A file is no whole backup, or no whole survey, of metadata; nothing was changed."""


class StoreNotEmpty(VarlogError, code=171):
    """Metadata was to be put where some is, or where a metadata repository runs; nothing was changed."""


class SurveysDisagree(VarlogError, code=172):
    """What storage nodes hold contradicts itself, so that metadata cannot be made of it; the message says where."""


class SurveysIncomplete(VarlogError, code=173):
    """Something is missing that metadata is to be made of: a node, or positions; the message says what, and how to go
    on without it."""


# 190-199: transactions


class TransactionAborted(VarlogError, code=190):
    """The transaction did not commit and never will: it was aborted, it expired, or a later attempt of the same name
    took its place; the message says which. Nothing of it is visible. Begin another one."""


class TransactionEnded(VarlogError, code=191):
    """The transaction was committed or aborted before; nothing can be added to it. Begin another one."""


class AlreadyCommitted(VarlogError, code=192):
    """A transaction of this name and number, or a greater one, is in the log: what was to be done has been done. It
    must not be written again."""

    glsn: int = 0
    """Where its commit is; 0 if that is not known."""


class TransactionOpen(VarlogError, code=193, retriable=True):
    """A transaction that is not decided yet stands in the way; the message says which, and until when it may. Wait, or
    abort it (`varlog txn abort`)."""


class TransactionTooLarge(VarlogError, code=194):
    """A transaction would have more bytes, or more parts, than one may have. What it has so far can still be committed
    or aborted."""


# 180-189: TLS


class TlsUnusable(VarlogError, code=180):
    """A certificate, its private key or the CA's certificates are missing, do not belong together, have expired, or the
    key can be read by others; the message says which file it is."""


class WrongCertificate(VarlogError, code=181):
    """One side of a connection does not accept the other's certificate: it has none, or one that has expired, is of
    another CA, or is not for the host that was dialled."""


class TlsMismatch(VarlogError, code=182):
    """One side of a connection speaks TLS and the other does not; give all processes of a cluster certificates, or
    none."""
