"""`varlog metadata`: metadata as a whole is backed up, restored, copied, and rebuilt from the storage nodes.

These commands work on files and stores themselves, not through a running cluster.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
from cyclopts import Group, Parameter

from varlog.cli.failures import NotConnected
from varlog.cli.options import JSON, Flag, Identifier
from varlog.cli.output import Column, Output, size_of
from varlog.core import rebuilding, surveys
from varlog.core.metastate import Checkpoint
from varlog.core.rebuilding import Loose, Rebuilt, Wishes
from varlog.core.restoring import go_on_above
from varlog.core.surveys import NodeSurvey
from varlog.errors import DirectoryLocked, InvalidArgument, StoreUnavailable
from varlog.metarepo import backup, checkedfile, offline
from varlog.metarepo.backup import Backup, Written
from varlog.metarepo.etcd.address import EtcdOptions
from varlog.storage.files import OSFileSystem
from varlog.types import ClusterID, StorageNodeID, Term, TopicID

if TYPE_CHECKING:
    from varlog.metarepo.offline import OfflineStore

FIRST_CLUSTER: Final = ClusterID(1)
_ETCD: Final = Group("etcd", sort_key=80)

Store = Annotated[str, Parameter(metavar="STORE")]
File = Annotated[Path, Parameter(metavar="FILE")]
Replace = Annotated[Flag, Parameter(help="Put it in place of the metadata that is there.")]
_Text = Annotated[str, Parameter(metavar="FILE", show_default=False)]
_CID: Final = "The cluster's id, where neither the store nor a file says it; 1 if it is left out."


@Parameter(name="*", group=_ETCD)
@dataclass(frozen=True)
class Etcd:
    """How to speak to an etcd."""

    etcd_user: Annotated[_Text, Parameter(help="A user of the etcd.", metavar="NAME")] = ""
    etcd_password_file: Annotated[_Text, Parameter(help="The file with its password, of mode 0600.")] = ""
    etcd_ca: Annotated[_Text, Parameter(help="Certificates to believe, for etcds://.")] = ""
    etcd_cert: Annotated[_Text, Parameter(help="Our own certificate, for etcds://.")] = ""
    etcd_key: Annotated[_Text, Parameter(help="The key that belongs to it.")] = ""
    etcd_any_version: Annotated[Flag, Parameter(help="Take also an etcd of a version that is known to lose data.")] = (
        False
    )

    @asynccontextmanager
    async def opened(self, where: str, cid: int | None = None, *, makes: bool = False) -> AsyncIterator[OfflineStore]:
        """Open a store; `makes` lets a directory become one."""
        options = EtcdOptions(self.etcd_user, self.etcd_password_file, self.etcd_ca, self.etcd_cert, self.etcd_key)
        owner = ClusterID(cid) if cid is not None else None
        opening = offline.opened(
            where, OSFileSystem(), owner, makes=makes, etcd=options, any_version=self.etcd_any_version
        )
        async with AsyncExitStack() as stack:
            try:
                store = await stack.enter_async_context(opening)
            except StoreUnavailable as error:
                raise NotConnected(error) from error
            except DirectoryLocked:
                raise DirectoryLocked(
                    f"{where} is open in another process: stop vmr first; of an etcd a backup can be taken at any time"
                ) from None
            yield store


USUAL_ETCD: Final = Etcd()


async def backup_metadata(
    store: Store,
    file: File,
    /,
    *,
    cid: Annotated[Identifier | None, Parameter(help=_CID, metavar="N")] = None,
    etcd: Etcd = USUAL_ETCD,
    json: JSON = False,
) -> None:
    """Back up metadata.

    Parameters
    ----------
    store
        Where the metadata is: a directory or an etcd.
    file
        Where to write the backup.
    """
    async with etcd.opened(store, cid) as opened:
        taken = await backup.take(opened, int(time.time()))
    state = backup.checkpoint_of(taken.keys).state
    size = checkedfile.write(OSFileSystem(), file, backup.KIND, taken)
    output = Output(json=json)
    written = Written(state.version, taken.term, len(state.topics), len(state.streams), len(state.nodes))
    output.record({"file": str(file), "bytes": size, "cluster": taken.cid, **msgspec.structs.asdict(written)})
    output.line(f"wrote {file} ({size_of(size)}): {_told(written)}")


async def restore_metadata(
    file: File,
    store: Store,
    /,
    *,
    replace: Replace = False,
    cid: Annotated[Identifier | None, Parameter(help=_CID, metavar="N")] = None,
    etcd: Etcd = USUAL_ETCD,
    json: JSON = False,
) -> None:
    """Restore metadata.

    Parameters
    ----------
    file
        The backup.
    store
        Where to put it: a directory or an etcd.
    """
    taken = checkedfile.read(OSFileSystem(), file, backup.KIND, Backup)
    owner = cid or taken.cid or FIRST_CLUSTER
    checkpoint = backup.checkpoint_of(taken.keys)
    go_on_above(checkpoint.state, int(time.time()) - taken.time)
    await _put(etcd, store, owner, checkpoint, taken.term, Output(json=json), replace=replace)


async def copy_metadata(
    source: Annotated[str, Parameter(metavar="FROM")],
    target: Annotated[str, Parameter(metavar="TO")],
    /,
    *,
    replace: Replace = False,
    cid: Annotated[Identifier | None, Parameter(help=_CID, metavar="N")] = None,
    etcd: Etcd = USUAL_ETCD,
    json: JSON = False,
) -> None:
    """Copy metadata.

    Parameters
    ----------
    source
        Where it is: a directory or an etcd.
    target
        Where it is to be.
    """
    output = Output(json=json)
    async with etcd.opened(source, cid) as opened:
        await backup.check_stopped(opened)
        taken = await backup.take(opened, int(time.time()))
        checkpoint = backup.checkpoint_of(taken.keys)
        owner = cid or taken.cid or FIRST_CLUSTER
        await _put(etcd, target, owner, checkpoint, taken.term, output, replace=replace)
    output.line(f"start every vmr with {target} from now on, and none with {source}")


async def _put(
    etcd: Etcd, where: str, cid: int, checkpoint: Checkpoint, term: Term, output: Output, *, replace: bool
) -> None:
    async with etcd.opened(where, cid, makes=True) as store:
        written = await backup.put(store, checkpoint, term, replace=replace)
    output.record({"store": where, "cluster": cid, **msgspec.structs.asdict(written)})
    output.line(f"{where} holds {_told(written)}")


def survey_metadata(
    volumes: Annotated[list[Path], Parameter(metavar="VOLUME")],
    /,
    *,
    out: File,
    snid: Annotated[Identifier | None, Parameter(metavar="N")] = None,
    cid: Annotated[Identifier | None, Parameter(metavar="N")] = None,
    json: JSON = False,
) -> None:
    """Survey a storage node.

    Parameters
    ----------
    volumes
        All volumes of the node.
    out
        Where to write what they hold.
    snid
        Which node, if there are several on the volumes.
    cid
        Of which cluster, if there are several.
    """
    from varlog.storagenode.surveying import survey  # noqa: PLC0415  # the storage is loaded when it is needed

    found = survey(OSFileSystem(), [str(volume) for volume in volumes], cid, snid, int(time.time()))
    size = checkedfile.write(OSFileSystem(), out, surveys.KIND, found)
    loose = rebuilding.loose_of(found)
    output = Output(json=json)
    listed = [{key: value for key, value in msgspec.structs.asdict(one).items() if key != "node"} for one in loose]
    output.record(
        {
            "file": str(out),
            "bytes": size,
            "cluster": found.cid,
            "node": found.snid,
            "log_streams": len(found.replicas),
            "uncommitted": listed,
        }
    )
    output.line(f"wrote {out} ({size_of(size)}): storage node {found.snid}, log streams {len(found.replicas)}")
    if loose:
        output.line("on disk without a commit context:")
        _show_loose(output, loose)


async def rebuild_metadata(
    *given: Annotated[str, Parameter(metavar="SURVEY... STORE")],
    topic: Annotated[list[str] | None, Parameter(metavar="ID=NAME", negative=())] = None,
    backup_file: Annotated[Path | None, Parameter(name="--backup", metavar="FILE")] = None,
    without: Annotated[list[Identifier] | None, Parameter(metavar="N", negative=())] = None,
    declare_lost: Flag = False,
    dry_run: Flag = False,
    replace: Replace = False,
    etcd: Etcd = USUAL_ETCD,
    json: JSON = False,
) -> None:
    """Rebuild metadata.

    Parameters
    ----------
    given
        The surveys of all storage nodes, and last where to put the metadata: a directory or an etcd.
    topic
        What a topic is called, for each one that no backup names; topic-ID otherwise.
    backup_file
        An older backup: names, archives, wanted replicas and names of transactions of topics are taken from it.
    without
        A storage node that is gone for good, and could not be surveyed; several if given more than once.
    declare_lost
        Declare lost every position that may have been given to what is not brought back: it is not given again, and
        readers get an error there.
    dry_run
        Say what would come of it, and write nothing.
    """
    if len(given) < 2:
        raise InvalidArgument("give the surveys of all storage nodes, and last the store")
    fs = OSFileSystem()
    *files, store = given
    found = [checkedfile.read(fs, Path(file), surveys.KIND, NodeSurvey) for file in files]
    known, term = None, Term(0)
    if backup_file is not None:
        older = checkedfile.read(fs, backup_file, backup.KIND, Backup)
        known, term = backup.checkpoint_of(older.keys).state, older.term
    gone = frozenset(StorageNodeID(snid) for snid in without or ())
    rebuilt = rebuilding.rebuild(found, Wishes(_names(topic or []), known, gone, declare_lost))
    written = None
    if not dry_run:
        async with etcd.opened(store, found[0].cid, makes=True) as opened:
            # No node keeps the term; one made of the time is above all that were ever counted.
            written = await backup.put(opened, rebuilt.checkpoint, max(term, Term(int(time.time()))), replace=replace)
    _show(Output(json=json), store, found[0].cid, rebuilt, written)


def _names(given: list[str]) -> dict[TopicID, str]:
    names = {}
    for text in given:
        number, equals, name = text.partition("=")
        if not equals or not number.isdecimal() or not name:
            raise InvalidArgument(f"--topic {text!r}: a topic is named as in --topic 1=orders")
        names[TopicID(int(number))] = name
    return names


def _show(output: Output, store: str, cid: int, rebuilt: Rebuilt, written: Written | None) -> None:
    record: dict[str, Any] = {
        "store": store,
        "cluster": cid,
        "version": rebuilt.checkpoint.state.version,
        "term": written.term if written is not None else None,
        "written": written is not None,
        "topics": rebuilt.topics,
        "uncommitted": rebuilt.loose,
        "remarks": rebuilt.remarks,
    }
    output.record(record)
    numbers = [Column(title, right=True) for title in ("log streams", "first", "last")]
    rows = [
        (topic.name, topic.log_streams, topic.first, topic.last, ", ".join(f"{b} to {e - 1}" for b, e in topic.lost))
        for topic in rebuilt.topics
    ]
    output.table([Column("topic"), *numbers, Column("lost")], rows)
    for remark in rebuilt.remarks:
        output.line(remark)
    if rebuilt.loose:
        output.line("on disk without a commit context, and not brought back:")
        _show_loose(output, rebuilt.loose)
    for topic in rebuilt.topics:
        if topic.uncertain:
            output.line(
                f"topic {topic.name}: positions {topic.last + 1} to {topic.last + topic.uncertain} may have been given "
                "to some of these, and are given again; with --declare-lost they are not"
            )
    output.line(f"{store} holds {_told(written)}" if written is not None else "nothing was written")


def _show_loose(output: Output, loose: list[Loose]) -> None:
    titles = ("node", "log stream", "first LLSN", "last LLSN", "epoch", "batches", "bytes")
    rows = [(o.node, o.log_stream, o.llsn_begin, o.llsn_end - 1, o.epoch, o.batches, o.bytes) for o in loose]
    output.table([Column(title, right=True) for title in titles], rows)


def _told(written: Written) -> str:
    return (
        f"version {written.version}, topics {written.topics}, log streams {written.log_streams}, "
        f"storage nodes {written.storage_nodes}"
    )
