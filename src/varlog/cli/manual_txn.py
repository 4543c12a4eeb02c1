"""The pages of the manual on transactions."""

from __future__ import annotations

from typing import Final

from varlog.cli.manual import Page

TXN: Final = Page(
    """See transactions that are open, and end them.

Entries of a transaction are seen when it is committed, all at once. Until then
readers of the topic wait before the first of them, for no longer than the time
after which it expires; and nothing behind its beginning can be trimmed.
"""
)
LIST: Final = Page(
    """List the transactions of a topic that are open.

What has ended in the log by now, and what has expired, is not: it is settled on
the way. A name under which transactions have numbers is kept with the last
number that was committed, so that one that is replayed is not written again.
""",
    """Examples

    varlog txn list
    varlog txn list --topic orders --names

JSON: an object for each transaction: topic, id, name, number (null if it has
none), after (all of it is behind this GLSN), age and expires (both seconds).
With --names one for each name: topic, name, committed (the last number), glsn
(of its commit).
""",
)
ABORT: Final = Page(
    """Abort a transaction, so that readers need not wait for it.

Nothing of it is ever seen then, and its owner is told when it tries to commit.
If it was committed just before, it stays so, and the exit code is 1. On a
terminal it asks first.
""",
    """Examples

    varlog txn abort 4711
    varlog txn abort 4711 --reason "the importer hangs" --yes

JSON: topic, id, ended (aborted, committed, expired, or trimmed if that was long
ago), glsn (of its end; null if that is trimmed).
""",
)
FORGET: Final = Page(
    """Forget which number was last committed under a name.

For names that nobody uses any more, such as those of Spark queries whose
checkpoints are deleted: a topic keeps 10,000 of them. If the name is used again,
what is replayed under it is written again. On a terminal it asks first.
""",
    """Examples

    varlog txn forget spark/0b5e7a52-5d1c-4a4e-9d0e-2f6f3e1f8a11

JSON: topic, name, forgotten (false if nothing was committed under it).
""",
)
