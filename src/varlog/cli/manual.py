"""What `--help` says: of each command a sentence, an explanation, and examples to copy.

It stands here, apart from the commands, because the list of commands is shown without loading any of them. Options are
explained where they are defined. Lines are kept as they are written, so none is longer than a terminal is wide.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Page(NamedTuple):
    """What is said of one command. `about` begins with its sentence."""

    about: str
    examples: str = ""


TOP: Final = Page(
    """A strongly consistent, totally ordered distributed log.

Start a cluster in one terminal with varlog dev, and in another one append with
varlog append and read with varlog tail -f. Every command explains itself, with
examples: varlog append --help.
""",
    """Which cluster: --cluster, else $VARLOG_CLUSTER, else ./varlog-data, which is
where varlog dev keeps its data.

Exit codes: 0 done; 1 the cluster could not or would not do it; 2 wrong usage or
configuration; 3 the cluster cannot be reached; 4 doctor or verify has found
something wrong; 5 verify could not look at everything; 130 interrupted.

With --json every command prints JSON objects, one to a line, and nothing else
on standard output; an error is a JSON object on standard error.
""",
)

DEV: Final = Page(
    """Run a whole cluster in this process, for developing and trying things out.

A metadata repository, a manager and three storage nodes listen on loopback.
What they store lies in ./varlog-data and is there again at the next start. A
topic is made, and a cluster file is written that the other commands and
varlog.connect() find by themselves in this directory.

It runs until Ctrl-C or SIGTERM, and then stops cleanly.
""",
    """Examples

  start a cluster, and use it in another terminal:
    varlog dev
    varlog append 'hello'
    varlog tail -f

  a second one, with data elsewhere and four log streams:
    varlog dev --data /tmp/other --port 9200 --streams 4
    varlog tail --cluster /tmp/other

  in a script: any free ports, one JSON line when it is ready:
    varlog dev --port 0 --json
""",
)

APPEND: Final = Page(
    """Append entries: arguments, lines of standard input, or files.

Every argument is one entry. Without arguments and files, every line of standard
input is one, without its newline; lines that arrive together are sent together,
and many batches are under way at once. With --file every file is one entry, or,
with --lines, every line of it.

Entries of one call follow each other in the log in the order they were given;
entries of others may stand between them. When the command says so they are on
the disks of all replicas.

If it fails half-way it tells how many entries are in the log for certain.
""",
    """Examples

  two entries:
    varlog append 'first' 'second'

  everything another program prints, as it comes:
    journalctl -f | varlog append

  a file as one entry; a file line by line:
    varlog append --file picture.png
    varlog append --file access.log --lines

  the position of an entry, in a script:
    varlog append --json 'hello' | jq .glsn

JSON: an object for each batch: glsn (of its first entry), count, llsn,
log_stream, epoch, replicas, synced.
""",
)

READ: Final = Page(
    """Read the entry at one position.

The position is the GLSN that append told. An entry that was trimmed, or is not
there yet, is an error that says where the log begins or ends.
""",
    """Examples

  show an entry:
    varlog read 17

  its exact bytes into a file:
    varlog read 17 --format raw > picture.png

JSON: glsn, llsn, log_stream, timestamp (when it got its position, microseconds
since 1970), encoding (text or base64), data.
""",
)

TAIL: Final = Page(
    """Show the last entries, and with -f those that are yet to come.

Each line is a position and the entry's text. What is not text is shown as
0x..., control characters as escapes; see --format.
""",
    """Examples

  the last ten entries; the last hundred with time and log stream:
    varlog tail
    varlog tail -n 100 --long

  wait for what comes, from now on:
    varlog tail -n 0 -f

  stop at the first error:
    varlog tail -f | grep -m 1 ERROR

JSON: as of varlog read, an object for each entry.
""",
)

SUBSCRIBE: Final = Page(
    """Print every entry from a position on, in order, and wait for more.

Nothing is left out and nothing comes twice, whatever happens to nodes and
connections meanwhile. With --to it ends after that position.
""",
    """Examples

  everything there is, and whatever comes:
    varlog subscribe

  go on where you were:
    varlog subscribe --from 1042

  copy a part of a log, line by line:
    varlog subscribe --from 1 --to 1000 --format raw > lines.txt

JSON: as of varlog read, an object for each entry.
""",
)

TRIM: Final = Page(
    """Delete every entry at or below a position, for good.

The positions are not used again: the log now begins behind them, and reading
them says so. Disk space is freed by whole segments, so a little later.
On a terminal it asks first.
""",
    """Examples

  forget the first thousand entries:
    varlog trim 1000

  keep the last million:
    last=$(varlog topic describe log --json | jq .high_watermark)
    varlog trim $(( last - 1000000 ))

JSON: topic, trimmed (the position up to which the log is trimmed now), first.
""",
)

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

JSON: topic, id.
""",
)
TOPIC_LIST: Final = Page(
    "List the topics of the cluster.",
    """Examples

    varlog topic list
    varlog topic list --json | jq -r .name

JSON: an object for each topic: id, name, first, high_watermark, log_streams,
replication_factor, min_replicas.
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
declared lost; 0 for nothing).
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

NODE: Final = Page("""Register, list, describe, drain, replace and remove storage nodes.""")
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
    "List the storage nodes of the cluster.",
    """Examples

    varlog node list

JSON: an object for each node: id, address, volumes (paths), replicas (how
many), draining.
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
NODE_REMOVE: Final = Page(
    """Take a storage node out of the cluster.

A node that has replicas is refused: drain it first. Its data stays where it is.
""",
    """Examples

    varlog node remove 4

JSON: node, removed (true).
""",
)

STATUS: Final = Page(
    """Show on one screen how the cluster is.

Nodes and whether they answer, topics and how far they go, log streams with
their states, how many replicas they have of how many they should (the primary
has a star), how far replicas are behind, copies under way, and what the manager
has been doing. It asks every node, and tells of those that do not answer.

With --watch it looks again and again until Ctrl-C, every second or as often as
it says; in a pipe it prints one status after the other.
""",
    """Examples

    varlog status
    varlog status --watch
    varlog status --watch 0.2

  in a script: is everything as it should be?
    varlog status --json | jq -e .healthy

JSON: healthy, version, manager, manager_answers, problems, notes and doing
(sentences), nodes (id, address, state, answers, error, silent: seconds since it
answered, replicas, free_bytes, total_bytes), topics (as of varlog topic list),
streams (as of varlog stream list, with wanted: how many replicas it should
have, behind: entries its slowest replica lacks, waiting, and copies: node,
source, copied, of).
""",
)

DOCTOR: Final = Page(
    """Say what is wrong, since when, what is done about it, and what only you can do.

The manager is asked what it sees and does, and every storage node how it is. If
the manager or the metadata repository cannot be reached it says so, and tells
what can be found out without. If the high watermark does not move, it tells
which log stream holds it up, and which replica.

Findings are urgent (entries cannot be appended, or have one copy only),
degraded (all goes on, with less than there should be), or notes (somebody asked
for it, or it passes by itself).

Exit code 0: all is well, or there are only notes. 4: there are other findings.
""",
    """Examples

    varlog doctor

  what is urgent, one to a line:
    varlog doctor --json | jq '.findings[] | select(.severity=="urgent").what'

  tell somebody who is not looking:
    varlog doctor > findings || mail -s 'not well' oncall@example.org < findings

JSON: healthy, version, manager, nodes, nodes_answering, streams,
streams_running, doing (sentences), findings: a list of objects: kind (a word
that scripts can rely on, such as node-silent), severity, subject, what,
seconds (for how long), doing (by the manager), person (what you can do).
""",
)

VERIFY: Final = Page(
    """Compare all replicas of a topic with each other, entry by entry.

Every replica of every log stream reads what it has and sends fingerprints of
it: of the entries with their positions, and of the commits that gave them
these. Equal replicas give equal fingerprints; where they differ it is found
out from which position on. It is also checked that every position of the topic
is there exactly once.

Appends may go on meanwhile: everything is compared that was in the log when the
command was started. A replica that turns out to be damaged is reported to its
node, and repaired from another one by the manager.

Without a topic all are verified.

Exit code 0: consistent. 4: something differs, is damaged, missing or there
twice. 5: nothing wrong was found, but a replica could not be asked, or lacks
something as yet.
""",
    """Examples

    varlog verify
    varlog verify orders

  in a script:
    varlog verify --json | jq -r 'select(.verdict != "consistent").topic'

JSON: an object for each topic: topic, verdict (consistent, incomplete or
inconsistent), first, last (positions that were looked at), entries, seconds,
missing and twice (lists of positions, from and to), lost (how many were
declared lost), faults (sentences), unread (log streams that nobody could tell
of), replicas: a list of objects: log_stream, node, role (primary, backup,
outside), finding (equal, alone, behind, silent, missing, differs, damaged),
entries, detail.
""",
)

BENCH: Final = Page(
    """Measure how fast this cluster appends and reads, from here.

It makes a topic for itself and removes it afterwards, appends entries for some
seconds with several batches in flight, then reads them back and checks that all
of them are there. A latency is the time from the call to the acknowledgement.
""",
    """Examples

  as it is; one batch after another, for latency:
    varlog bench
    varlog bench --in-flight 1 --batch 1

  large entries over four log streams:
    varlog bench --size 16384 --batch 10 --streams 4 --seconds 10

JSON: size, batch, in_flight, streams, append and read, each with entries,
seconds, entries_per_second, megabytes_per_second; append also with batches,
p50_ms, p99_ms, max_ms.
""",
)

SECRET: Final = Page("""Make the secret that the processes of a cluster know each other by.""")
SECRET_NEW: Final = Page(
    """Make a new secret file, readable by you alone.

Give every daemon and client of a cluster the same file with --secret-file. A
file that is there is never replaced.
""",
    """Examples

    varlog secret new /etc/varlog/secret

JSON: secret_file.
""",
)

DEMO: Final = Page(
    """Watch a cluster of real processes append, be killed, and come back.

A metadata repository, a manager and three storage nodes are started, writers
append and readers follow; a storage node is killed with SIGKILL and started
again, then everything is. In the end it is proven from what the clients saw
that the log is one order, that nothing was lost and that nothing is there
twice. It takes about 20 seconds and leaves nothing behind.

Exit code 0: the proof holds. 1: it does not.
"""
)
SIM: Final = Page(
    """Run simulated clusters under faults and check everything they did.

Each seed is one run: a cluster of some shape, clients that append, read,
subscribe, peek and trim, and a nemesis that breaks network, disks, clocks and
processes. A seed always takes the same course, so a failure can be replayed
with --seed.

Exit code 0: nothing was violated. 1: something was, or --require-coverage found
a zero.
""",
    """Examples

    varlog sim --seeds 1000
    varlog sim --seed 42
""",
)
COMPLETION: Final = Page(
    """Install completion of commands and options for your shell (bash, zsh or fish).""",
)
