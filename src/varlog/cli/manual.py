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

With --etcd the metadata is kept in an etcd of three members, as a cluster of
several machines has it. One is looked for on the path; if there is none, run
python -m varlog.etcdserver, which brings one without being root.

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

  metadata in etcd, and two metadata repositories, of which one leads:
    varlog dev --data /tmp/other --etcd
    varlog status --cluster /tmp/other

  with a topic whose positions a sequencer gives out:
    varlog dev --data /tmp/other --ordering sequencer
    varlog topic describe --cluster /tmp/other log

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

With --transaction readers see all of a call's entries or, if it fails, none. A
later call with the same name ends an earlier one that is still under way. With
a --number, too, what was committed under it is not appended again, however
often the call is repeated; numbers of a name go up.
""",
    """Examples

  two entries:
    varlog append 'first' 'second'

  everything another program prints, as it comes:
    journalctl -f | varlog append

  a file as one entry; a file line by line:
    varlog append --file picture.png
    varlog append --file access.log --lines

  a file line by line, once, even if this is tried again:
    varlog append --file 2026-11-16.log --lines --transaction logs --number 320

  the position of an entry, in a script:
    varlog append --json 'hello' | jq .glsn

JSON: an object for each batch: glsn (of its first entry), count, llsn,
log_stream, epoch, replicas, synced. With --transaction another one at the end:
transaction (its id, null if it was committed before), commit (the GLSN of the
commit), entries.
""",
)

READ: Final = Page(
    """Read the entry at one position.

The position is the GLSN that append told. An entry that was trimmed, or is not
there yet, is an error that says where the log begins or ends. One of a
transaction is waited for until that is committed, or not with --uncommitted.
""",
    """Examples

  show an entry:
    varlog read 17

  its exact bytes into a file:
    varlog read 17 --format raw > picture.png

JSON: glsn, llsn, log_stream, timestamp (when it got its position, microseconds
since 1970), encoding (of data: text, or base64 if it is not UTF-8, or hex or
base64 if --format says so), data.
""",
)

TAIL: Final = Page(
    """Show the last entries, and with -f those that are yet to come.

Each line is a position and the entry's text. What is not text is shown as
0x..., control characters as escapes; see --format. What comes behind an open
transaction is shown when that has ended, or with --uncommitted at once.
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

SQL: Final = Page(
    """Ask the log with SQL.

Every topic is a table of its name, and log is the topic of --topic, with the
columns glsn, llsn, log_stream, timestamp (when it got its position) and
payload. Bounds on glsn and timestamp in WHERE say which part of the log is read
at all. Where an archive is attached, what was trimmed is still there. It only
asks: commands that change something, such as INSERT, are refused.

The query runs on Spark, which is started for it, takes some seconds for that,
and is gone afterwards: pip install 'varlog[spark]'.
""",
    """Examples

  how many entries of which log stream:
    varlog sql 'select log_stream, count(*) from log group by log_stream'

  what was there:
    varlog sql 'select * from log where glsn between 1000 and 1020'
    varlog sql 'select * from log where timestamp > now() - interval 1 hour'

  payloads that are JSON:
    varlog sql "select get_json_object(string(payload), '$.user') from orders"

  two topics, into a file:
    varlog sql --csv 'select * from orders join payments using (payload)' > f

JSON: an object for each row, by the names of its columns.
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

STATUS: Final = Page(
    """Show on one screen how the cluster is.

Nodes and whether they answer, topics and how far they go, log streams with
their states, how many replicas they have of how many they should (the primary
has a star; a chain is written from head to tail), how far replicas are behind,
copies under way, and what the manager has been doing. Of several metadata
repositories it shows which one leads, of topics with a sequencer where that is.
It asks all repositories and every node, and tells of those that do not answer.

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
source, copied, of), leader (the metadata repository that leads), term,
repositories (address, role, error, term, leader, leader_silent: seconds, lag:
seconds that a decision has been waiting for the store, nodes: how many it
hears, store: name, endpoint, release, round_trip: seconds, total_bytes,
used_bytes and error), sequencers (address, topics: those it orders).
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

JSON: healthy, version, manager, leader, term, repositories,
repositories_answering, nodes, nodes_answering, streams, streams_running, doing
(sentences), findings: a list of objects: kind (a word that scripts can rely on,
such as node-silent), severity, subject, what, seconds (for how long), doing (by
the manager), person (what you can do).
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
The topic is removed also when Ctrl-C or SIGTERM ends it early.
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

SECRET: Final = Page("""Make the secret that the processes of a cluster know each other by; replace it.""")
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
_SECRET_STEPS: Final = """Examples

  replace a secret while the cluster runs; after each command give the file to
  all machines, and go on when all have it:
    varlog secret add secret
    varlog secret promote secret
    varlog secret retire secret

JSON: secret_file, proves, believes.
"""
SECRET_SHOW: Final = Page(
    """Tell which secrets a file holds, by fingerprints: that to prove with first.

Nobody can make a secret from its fingerprint. Daemons log the same ones when
they have read a file that was changed.
""",
    """Examples

    varlog secret show /etc/varlog/secret

JSON: secret_file, proves, believes.
""",
)
SECRET_ADD: Final = Page(
    """Add a new secret to a file: it is believed, but not yet proven with.

The first of three steps that replace a secret while the cluster runs. Daemons
and clients read a changed file by themselves.
""",
    _SECRET_STEPS,
)
SECRET_PROMOTE: Final = Page(
    """Prove with the newest secret of a file; the others are still believed.

The second step. Take it when every machine has the file of the first.
""",
    _SECRET_STEPS,
)
SECRET_RETIRE: Final = Page(
    """Remove all secrets of a file but the one to prove with.

The last step. Take it when every machine has the file of the second. Done right
after varlog secret add, it takes the new secret back.
""",
    _SECRET_STEPS,
)

DEMO: Final = Page(
    """Watch a cluster of real processes be killed and come back, and Spark read it.

A metadata repository, a manager and three storage nodes are started, writers
append and readers follow; a storage node is killed with SIGKILL and started
again, then everything is.

Then a job on Spark archives the log as it grows and trims what it has archived,
and Spark reads archive and live log as one, for a table and two pictures. This
part is left out where Spark is not installed: pip install 'varlog[spark]'.

In the end it is proven from what the clients saw that the log is one order,
that nothing was lost and that nothing is there twice. It takes about a minute
and leaves nothing behind but the pictures.

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
