"""What `--help` says of the data pipeline; see `varlog.cli.manual`."""

from __future__ import annotations

from typing import Final

from varlog.cli.manual import Page

PIPELINE: Final = Page(
    """Put a topic away, bring it back, prove it whole, make a table of it: jobs on Spark.

Each is a PySpark application: it runs here, on as many cores as there are, or
with --master on a Spark cluster, or by spark-submit. It may be stopped or
killed at any point and started again. It needs pip install 'varlog[spark]'.
"""
)

ARCHIVE: Final = Page(
    """Copy a topic into an archive: ordered Parquet files, listed as a Delta table.

The archive is a directory, or a prefix of an object store such as
s3://bucket/prefix. It is continued where it ends, by whoever runs this next;
several may run at once. With --follow it goes on as the log grows.

--trim deletes from the log what the archive has, durably. The archive has to be
attached to the topic (--attach, or varlog topic attach-archive), so that readers
find there what was trimmed; --detached does without, and they get Trimmed.

Ctrl-C and SIGTERM stop it; SIGTERM lets it finish what it is writing.
""",
    """Examples

    varlog pipeline archive /backup/orders --topic orders

  keep the last million entries in the log, the rest in the archive, for ever:
    varlog pipeline archive /backup/orders --topic orders --attach --trim \\
      --keep 1000000 --follow

  on a Spark cluster; what it needs there is in docs/spark.md:
    spark-submit --master spark://host:7077 \\
      $(python -c 'import varlog.pipeline.archive as a; print(a.__file__)') \\
      /backup/orders --cluster host:9092 --secret-file secret --topic orders

JSON: an object for each commit (event: committed, begin, end, rows, files,
bytes, version, seconds), and at the end one (event: summary) with topic,
archive, begin, end, positions, rows, files, bytes, commits, conflicts,
log_first, removed, seconds.
""",
)

RESTORE: Final = Page(
    """Bring a topic back from its archive: the same entries at the same positions.

The topic must not be there yet, or be what an earlier run that was stopped has
left: then it goes on behind its tail, after a look whether what is there is
what the archive has. At the end all of it is read again and compared.

Positions without an entry (fill, and what was lost) hold nothing again. LLSNs,
log streams and times are the new topic's own.

Nobody else may write to the topic meanwhile; that is noticed, and ends it with
Diverged. The topic has to be removed then.
""",
    """Examples

    varlog pipeline restore /backup/orders --cluster new --topic orders

JSON: one object (event: summary) with topic, archive, begin, end, resumed_at,
rows, filled, bytes, write_seconds, verified_rows, seconds.
""",
)

AUDIT: Final = Page(
    """Prove a topic whole: read all of every replica and of its archive, and compare.

It proves that every position is there exactly once, that LLSNs have no hole,
that replicas are equal, that the chain of commits is whole, that transactions
are whole, and that the archive equals the log; or it says in which copy, log stream and positions that
is not so. varlog verify is quicker: it believes the digests that nodes give.
Where a sequencer orders the topic there are no commits, and LLSNs are GLSNs.

Appends may go on meanwhile: everything up to the present tail is looked at.
It changes nothing.

Exit codes are those of varlog verify: 0 all is proven, 4 something is wrong,
5 nothing wrong was found, but not everything could be read.
""",
    """Examples

    varlog pipeline audit --topic orders --report audit.html

JSON: one object with topic, ordering, verdict (consistent, incomplete,
inconsistent), first, last, archive, archive_first, archive_last, entries,
bytes, seconds, tasks, transactions, more_findings,
  findings: begin, end (positions [begin, end)), log_stream (0: all), copy (the
    node; 0 the archive, -1 the topic as a whole), fault, detail
  copies: copy, role, log_stream, first, last, rows, bytes, commits, differing
    (cells of some thousand positions), remark
""",
)

MATERIALIZE: Final = Page(
    """Keep a table of the latest value of every key that JSON entries name.

The table is a directory, or a prefix of an object store: Parquet files, listed
as a Delta table, with the columns key, value, glsn, timestamp. It has each key
once, with the value of its last entry (by GLSN), up to the greatest GLSN in the
table. It is continued where it ends by whoever runs this next; one at a time.
With --follow it goes on as the log grows.

An entry that is not JSON, or has no key there or null, is passed over and
counted; one that has a key and no value makes the value null. Keys and values
are text: an object or an array is its JSON.

It may be killed at any point. Ctrl-C and SIGTERM stop it; SIGTERM lets it
finish what it is writing.
""",
    """Examples

    varlog pipeline materialize /tables/customers --topic orders \\
      --key customer.id --value customer

  for ever, a commit every minute at most:
    varlog pipeline materialize /tables/customers --topic orders \\
      --key customer.id --follow --every 60

JSON: an object for each commit (event: committed, begin, end, entries, ignored,
keys, version, seconds), and at the end one (event: summary) with topic, table,
end, keys, bytes, files, version, batches, entries, ignored, changed, removed,
seconds.
""",
)
