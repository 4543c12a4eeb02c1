"""The pages of the manual on metadata as a whole: backup, restore, copy, survey, rebuild."""

from __future__ import annotations

from typing import Final

from varlog.cli.manual import Page

METADATA: Final = Page(
    """Back up, restore, copy and rebuild a cluster's metadata.

A STORE is the directory of an embedded metadata repository, which has to be
stopped, or an etcd: etcd://HOST:2379,HOST:2379/PREFIX.
"""
)
METADATA_BACKUP: Final = Page(
    """Write all metadata into one file.

Of an etcd it is taken while the cluster runs, as of one revision. The file is
checked as a whole when it is read again, and says what it is.

A backup grows old: storage nodes that have seen later decisions stop when it
is restored. What lies in it that nodes do not know, such as names of topics,
helps varlog metadata rebuild at any age.
""",
    """Examples

    varlog metadata backup /var/lib/varlog/metadata metadata-monday.backup
    varlog metadata backup etcd://a:2379,b:2379/varlog metadata.backup

JSON: file, bytes, cluster, version, term, topics, log_streams, storage_nodes.
""",
)
METADATA_RESTORE: Final = Page(
    """Put the metadata of a backup into a store.

The store must be empty, unless --replace is given. No metadata repository may
run on it. Leadership is raised above all that the backup and the store have
known, so that none of before can go on. Versions and the epochs of log streams
go on far above the backup's, so that none is given out twice.

If decisions were made since the backup was taken, storage nodes that have seen
them stop, with a message; nothing they hold is changed. Then stop everything,
and use varlog metadata survey and rebuild. Nodes that hold only topics which a
sequencer orders, and were stopped, cannot tell: use survey and rebuild at once,
with the backup, unless nothing can have been decided since.
""",
    """Examples

    varlog metadata restore metadata.backup /var/lib/varlog/metadata
    varlog metadata restore metadata.backup etcd://a:2379/varlog --replace

JSON: store, cluster, version, term, topics, log_streams, storage_nodes.
""",
)
METADATA_COPY: Final = Page(
    """Copy the metadata of a stopped cluster from one store to another.

So a cluster goes from the embedded metadata repository to etcd, or back: stop
every vmr, copy, and start them on the other store. The one it was copied from
is left as it is; do not start a vmr on it again.
""",
    """Examples

    varlog metadata copy /var/lib/varlog/metadata etcd://a:2379,b:2379/varlog
    varlog metadata copy etcd://a:2379/varlog /var/lib/varlog/metadata

JSON: store, cluster, version, term, topics, log_streams, storage_nodes.
""",
)
METADATA_SURVEY: Final = Page(
    """Write down what a stopped storage node's volumes hold.

Give all volumes of one node. Nothing on them is changed. The file says which
log streams are there, where they end, and by which proof the node is known; it
holds no secret and no entry. varlog metadata rebuild makes metadata of the
surveys of all nodes.
""",
    """Examples

    varlog metadata survey /srv/varlog --out node1.survey
    varlog metadata survey /disk1 /disk2 --out node2.survey

JSON: file, bytes, cluster, node, log_streams, uncommitted (a list of objects:
log_stream, llsn_begin, llsn_end, epoch, batches, bytes).
""",
)
METADATA_REBUILD: Final = Page(
    """Make metadata anew from the storage nodes alone.

Everything has to be stopped. Give the surveys of all nodes, and last the store.
The nodes know the order: every entry whose commit context is on a disk keeps
its position. Log streams are sealed there, and the manager lets them run again
when the cluster is started.

What lies on disks beyond the last commit context may have been acknowledged or
not. It is listed, and not brought back: copy the volumes first if you may want
to look into it. Without --declare-lost the positions it may have had are given
to others.

What nodes do not know is taken from --backup, however old: names, archives and
wanted replicas of topics, and which numbers were committed under the names of
transactions. Without it, name topics with --topic; and what was committed under
a number is written again if it is replayed.

Nodes that contradict each other are refused, and so is a survey that is
missing, unless --without says that its node is gone for good.
""",
    """Examples

    varlog metadata rebuild a.survey b.survey metadata --topic 1=log --dry-run
    varlog metadata rebuild *.survey etcd://a:2379/varlog --backup old.backup
    varlog metadata rebuild a.survey b.survey metadata --without 3

JSON: store, cluster, version, term (null with --dry-run), written, topics (a
list of objects: id, name, log_streams, first, last, lost, uncertain),
uncommitted (a list of objects: node, log_stream, llsn_begin, llsn_end, epoch,
batches, bytes), remarks.
""",
)
