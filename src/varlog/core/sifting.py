"""What a replica tells who asks for verdicts on transactions only: those whole, and of everything else its positions.

Batches that follow each other are told as one line without a batch. So whoever merges log streams still sees that every
position is there, and of which log stream it is, and next to nothing is sent.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from varlog.batch import BatchFlag
from varlog.core.messages import StoredLine

FLAGS_AT: Final = 14
"""Where the flags begin in a batch; those that are known fit into a byte."""
MOST_POSITIONS: Final = 1 << 31
"""Of one line; a count is sent as 32 bits."""
_CONTROL: Final = int(BatchFlag.CONTROL)


def is_control(batch: bytes | memoryview) -> bool:
    """Whether a batch says that it holds a verdict; one that was left out does not."""
    return len(batch) > FLAGS_AT and bool(batch[FLAGS_AT] & _CONTROL)


def sifted(lines: Iterable[StoredLine]) -> list[StoredLine]:
    """The lines of a log stream in which only verdicts have their batches. The version and the time of a line that
    stands for several are those of the last."""
    told: list[StoredLine] = []
    end, run = 0, False
    for glsn, llsn, count, epoch, version, time, batch in lines:
        if is_control(batch):
            told.append((glsn, llsn, count, epoch, version, time, batch))
            run = False
        elif run and glsn == end and told[-1][2] + count < MOST_POSITIONS:
            first = told[-1]
            told[-1] = (first[0], first[1], first[2] + count, epoch, version, time, b"")
        else:
            told.append((glsn, llsn, count, epoch, version, time, b""))
            run = True
        end = glsn + count
    return told
