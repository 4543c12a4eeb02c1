"""The pages of the manual on what a cluster is made of: topics, log streams, storage nodes."""

from __future__ import annotations

from typing import Final

from varlog.cli.manual import Page

TOPIC: Final = Page("""Make, list, describe and remove topics: logs, each with positions of its own.""")
TOPIC_ADD: Final = Page(
    """Make a topic.

Its entries are spread over log streams, each with a replica on several nodes.
More log streams let more nodes and disks take part in appends and reads.
The command returns when the topic takes appends.
""",
    """Examples

  a topic with one log stream and three replicas, as far as there are nodes:
    varlog topic add orders

  one for much traffic; one that needs no copies:
    varlog topic add events --streams 4
    varlog topic add scratch --replicas 1

  one whose first entry is to have position 1,001:
    varlog topic add restored --first 1001

  one whose positions come from a sequencer, before entries are written:
    varlog topic add moves --ordering sequencer
    varlog topic add trades --ordering sequencer --streams 4 --block 1000

JSON: topic, id.
""",
)
TOPIC_LIST: Final = Page(
    "List the topics of the cluster.",
    """Examples

    varlog topic list
    varlog topic list --json | jq -r .name

JSON: an object for each topic: id, name, first, high_watermark, log_streams,
replication_factor, min_replicas, archive (where what was trimmed can be read,
empty if nowhere), ordering (commit or sequencer); and if a sequencer orders it:
epoch (of its projection), sequencer (its address), start (the first position of
that epoch), block (consecutive positions in one log stream).
""",
)
TOPIC_DESCRIBE: Final = Page(
    "Show one topic with its log streams.",
    """Examples

    varlog topic describe orders

JSON: as of varlog topic list, with streams: a list of objects as of varlog
stream list.
""",
)
TOPIC_ATTACH_ARCHIVE: Final = Page(
    """Let reads go on in an archive where the topic was trimmed.

An archive is what varlog pipeline archive makes: a directory, or a prefix of
an object store. It must be of this topic, and in a place that every client
that reads it can reach by the same name. From then on read, tail, subscribe,
scans and Spark find there what the log no longer has.
""",
    """Examples

    varlog topic attach-archive orders /srv/archive/orders
    varlog topic attach-archive orders s3://bucket/orders

JSON: topic, archive.
""",
)
TOPIC_DETACH_ARCHIVE: Final = Page(
    """Do without the archive of a topic.

What was trimmed cannot be read through the log any more. The archive itself is
left as it is.
""",
    """Examples

    varlog topic detach-archive orders

JSON: topic, archive (empty).
""",
)
TOPIC_REMOVE: Final = Page(
    """Delete a topic with all its entries, for good.

On a terminal it asks first.
""",
    """Examples

    varlog topic remove scratch

JSON: topic, removed (true).
""",
)

STREAM: Final = Page("""Make, list, describe, seal, move and remove log streams: the parts of a topic.""")
STREAM_ADD: Final = Page(
    """Add a log stream to a topic.

Its replicas go to the nodes that have fewest, or to those named with --node.
Appends use it from then on; positions stay one sequence over all log streams.
""",
    """Examples

  one more for the topic "log":
    varlog stream add

  on chosen nodes:
    varlog stream add --topic orders --node 1 --node 2 --node 3

JSON: log_stream, topic.
""",
)
STREAM_LIST: Final = Page(
    "List the log streams of one topic, or of all.",
    """Examples

    varlog stream list
    varlog stream list --topic orders

JSON: an object for each log stream: id, topic, status, epoch, primary,
replicas (ids of nodes), llsn_end, last_glsn, held (kept sealed by an operator),
joining and leaving (nodes; 0 for none), lost_begin and lost_end (of what was
declared lost; 0 for nothing), head and tail (nodes, of a chain; else 0).
""",
)
STREAM_DESCRIBE: Final = Page(
    """Show one log stream and how each of its replicas is.

Behind: how many entries a replica has yet to commit. Waiting: entries that are
on its disk and have no position yet. Written: since its node started. Outside:
appends do not wait for it; it was taken out of the set, or is about to join.
Copying: how much it has of what it lacked, and from which node.
""",
    """Examples

    varlog stream describe 1

JSON: as of varlog stream list, with replica_states: a list of objects: node,
log_stream, answers, in_set, state, epoch, healthy, fault, committed_end,
durable_end, behind, waiting, needs_sync, source (the node it copies from, or
0), source_end, volume, and, since its node started, batches, entries, bytes,
commits, refused, scans, syncs.
""",
)
STREAM_REMOVE: Final = Page(
    """Remove a log stream that holds nothing a reader could ask for.

One that holds entries is refused: trim the topic first.
""",
    """Examples

    varlog stream remove 4

JSON: log_stream, removed (true).
""",
)

STREAM_SEAL: Final = Page(
    """Seal a log stream and keep it so, until it is unsealed.

It takes no appends any more; they go to the topic's other log streams. What it
has can be read. Whatever the manager seals by itself it also unseals by itself;
this is for what a person wants to stay sealed.
""",
    """Examples

    varlog stream seal 3

JSON: log_stream, status, held (true), last_glsn.
""",
)
STREAM_UNSEAL: Final = Page(
    """Let a log stream run again that was sealed with varlog stream seal.

It waits until it runs. One that the manager sealed is refused: the manager lets
it run again as soon as it can.
""",
    """Examples

    varlog stream unseal 3

JSON: log_stream, status, held (false), last_glsn.
""",
)
STREAM_SYNC: Final = Page(
    """Let a replica copy what it lacks from another one.

The manager does this by itself for every replica that needs it, so this is for
those who want to choose the source, or to watch. It waits until nothing is
lacking.
""",
    """Examples

  the replica of log stream 3 on node 2:
    varlog stream sync 3 --to 2

  from node 1, and no other:
    varlog stream sync 3 --to 2 --from 1

JSON: log_stream, node, percent.
""",
)
STREAM_MOVE: Final = Page(
    """Move a replica of a log stream to another node.

The new replica copies the log first, while appends go on; then it takes the
place of the other one, which interrupts appends for a moment. It waits until
that is done.
""",
    """Examples

  from node 2 to node 4:
    varlog stream move 3 --from 2 --to 4

  one replica less; one more, if there are fewer than the topic wants:
    varlog stream move 3 --from 2
    varlog stream move 3 --to 4

  change your mind:
    varlog stream move 3 --cancel

JSON: log_stream, replicas (ids of nodes), joining, leaving (0 if it is done).
""",
)
STREAM_DECLARE_LOST: Final = Page(
    """Declare lost what no replica of a log stream has any more, for good.

It is for the day when every copy of a part of the log is gone: disks destroyed,
and no backup. Readers, who would wait for those entries for ever, then get an
error that names the range, and can go on behind it. The log stream stays
sealed; what is left of it can be read.

It is refused as long as the entries may still be somewhere: a replica that has
them or may be restarted, or a node that does not answer. Name with --gone each
node that will never come back. On a terminal it tells what would be lost and
asks; elsewhere it does nothing without --yes.
""",
    """Examples

  what would be lost, and a question:
    varlog stream declare-lost 3

  nodes 1 and 2 have burnt down:
    varlog stream declare-lost 3 --gone 1 --gone 2 --yes

JSON: log_stream, lost_begin, lost_end (the first position behind the range).
""",
)

NODE: Final = Page("""Register, list, describe, drain, replace, scrub and remove storage nodes.""")
NODE_ADD: Final = Page(
    """Let storage nodes take part in the cluster.

A node is started with vsn start and added once, by the address it listens at;
a restarted node is known again.
""",
    """Examples

    varlog node add 10.0.0.7:9091 10.0.0.8:9091

JSON: an object for each node: node, address.
""",
)
NODE_LIST: Final = Page(
    "List the storage nodes of the cluster, and how they are.",
    """Examples

    varlog node list

JSON: an object for each node: id, address, state (ok, draining, has lost its
disks, or does not answer), volumes (paths), replicas (how many), draining.
""",
)
NODE_DESCRIBE: Final = Page(
    "Show one storage node: its volumes and its replicas, as the node tells it.",
    """Examples

    varlog node describe 1

JSON: id, address, boot, draining, identified (false if it has lost its disks),
volumes (objects: path, total_bytes, free_bytes), replica_states (as of varlog
stream describe).
""",
)
NODE_DRAIN: Final = Page(
    """Take all replicas off a storage node, to stop it for long or for good.

Each goes to another node that has room, or away where the topic has enough
replicas without it. Appends go on meanwhile. It waits until the node has none.
It is refused if a log stream would be left with too few replicas.

For a restart or an upgrade there is no need to drain: log streams go on without
the node and take it back when it returns.
""",
    """Examples

  take node 2 out of the cluster:
    varlog node drain 2
    varlog node remove 2

  begin, and look later how far it is:
    varlog node drain 2 --no-wait
    varlog node list

JSON: node, draining (true), replicas (how many it still has).
""",
)
NODE_UNDRAIN: Final = Page(
    """Let a storage node have replicas again that was drained.

What it has given away does not come back by itself.
""",
    """Examples

    varlog node undrain 2

JSON: node, draining (false), replicas.
""",
)
NODE_REPLACE: Final = Page(
    """Let one storage node take the place of another.

Every replica of the one moves to the other, whether the one is still there or
has died; afterwards it can be removed. Appends go on meanwhile. It waits until
all of them have moved.

A dead node that is not replaced by hand is replaced by the manager, by
whichever node has room.
""",
    """Examples

  node 2 has died, node 4 was started and added in its place:
    varlog node replace 2 --by 4
    varlog node remove 2

JSON: node, by, replicas (how many have yet to move).
""",
)
NODE_SCRUB: Final = Page(
    """Let a storage node read all its data through, to find damage.

Every node does so once a week, slowly; this is for when there is reason to
doubt a disk. It is read as fast as the disk allows, which appends may notice.
It waits until all is read. A replica that is damaged is made anew by the
manager, from another one.

Exit code 0: nothing is damaged. 4: something is.
""",
    """Examples

    varlog node scrub 2

JSON: node, done (false with --no-wait), bytes (read), damaged (the log streams
whose replica there was found to be corrupt).
""",
)
NODE_REMOVE: Final = Page(
    """Take a storage node out of the cluster.

A node that has replicas is refused: drain it first. So is one that log streams
have just gone on without, and that may come back. Its data stays where it is.
""",
    """Examples

    varlog node remove 4

JSON: node, removed (true).
""",
)
