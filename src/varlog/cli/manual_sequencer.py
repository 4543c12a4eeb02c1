"""The pages of the manual on sequencers."""

from __future__ import annotations

from typing import Final

from varlog.cli.manual import Page

SEQUENCER: Final = Page(
    """See sequencers, and the topics that they order.

A sequencer gives out the positions of a topic made with --ordering sequencer,
before its entries are written. Clients mend such topics by themselves: what is
here is for looking at them, and for not waiting.
"""
)
LIST: Final = Page(
    "List the sequencers of the cluster, and which topics each orders now.",
    """Examples

    varlog sequencer list

A sequencer that was killed stays in the list: when it is started again there,
topics may be given to it again.

JSON: an object for each sequencer: sequencer (its address), topics (their names).
""",
)
PEEK: Final = Page(
    """Show the last position that was given out in a topic.

What was given out may not be written yet, or never will be, if the client that
asked for it has died: readers fill such positions after a while.
""",
    """Examples

    varlog sequencer peek --topic moves

JSON: topic, glsn.
""",
)
FILL: Final = Page(
    """Write junk at positions that nobody writes, so that readers need not wait.

Only positions that were given out can be filled. One that holds an entry keeps
it; if it was half-written, it is completed.
""",
    """Examples

    varlog sequencer fill 4711 --topic moves
    varlog sequencer fill 4711 --count 100 --topic moves

JSON: topic, glsn, count.
""",
)
SEAL: Final = Page(
    """End the epoch of a topic, and begin the next one.

Clients do so when they meet a failure. Doing it by hand does no harm: appends
and reads go on in the new epoch, and replicas that do not answer are left out.
""",
    """Examples

    varlog sequencer seal --topic moves

JSON: topic, epoch (the new one).
""",
)
