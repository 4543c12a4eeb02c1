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
configuration; 3 the cluster cannot be reached; 130 interrupted.

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

STREAM: Final = Page("""Make, list, describe and remove log streams: the parts a topic is spread over.""")
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
replicas (ids of nodes), llsn_end, last_glsn.
""",
)
STREAM_DESCRIBE: Final = Page(
    """Show one log stream and how each of its replicas is.

Behind: how many entries a replica has yet to commit. Waiting: entries that are
on its disk and have no position yet. Written: since its node started.
""",
    """Examples

    varlog stream describe 1

JSON: as of varlog stream list, with replica_states: a list of objects: node,
log_stream, answers, state, epoch, healthy, fault, committed_end, durable_end,
behind, waiting, volume, and, since its node started, batches, entries, bytes,
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

NODE: Final = Page("""Register, list, describe and remove storage nodes.""")
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
many).
""",
)
NODE_DESCRIBE: Final = Page(
    "Show one storage node: its volumes and its replicas, as the node tells it.",
    """Examples

    varlog node describe 1

JSON: id, address, boot, volumes (objects: path, total_bytes, free_bytes),
replica_states (as of varlog stream describe).
""",
)
NODE_REMOVE: Final = Page(
    """Take a storage node out of the cluster.

A node that has replicas is refused: remove its log streams first. Its data
stays where it is.
""",
    """Examples

    varlog node remove 4

JSON: node, removed (true).
""",
)

STATUS: Final = Page(
    """Show on one screen how the cluster is.

Nodes and whether they answer, topics and how far they go, log streams with
their states and how far replicas are behind, and what the manager has to do.
It asks every node, and tells of those that do not answer.
""",
    """Examples

    varlog status
    watch -n 1 varlog status

  in a script: is everything as it should be?
    varlog status --json | jq -e .healthy

JSON: healthy, version, manager, manager_answers, problems (sentences), doing
(sentences), nodes (id, address, answers, error, replicas, free_bytes,
total_bytes), topics (as of varlog topic list), streams (as of varlog stream
list, with behind: entries its slowest replica lacks, and waiting).
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
