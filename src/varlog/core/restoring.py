"""Restoring: a backup put back, so that nothing is given out a second time that was given out after it was taken.

What was decided since the backup is not known. So versions, epochs and ids go on far above the backup's, as after a
rebuild, and what lies between was given out by metadata that is gone: a node that reports of it has seen what nobody
here knows of, and stops (rules 2, 5). Log streams are SEALED there, and the manager lets them run again with the nodes
that know no more than the backup. How far it is grows with the time since the backup, so that the same one restored
again, or an older one, goes on above all that was given out after the first time.

Topics that a sequencer orders go on where they were: their epochs are counted by the projections.
"""

from __future__ import annotations

from typing import Final

from varlog.core.gaps import EPOCHS_SKIPPED
from varlog.core.metastate import MetadataState, Stream
from varlog.core.rebuilding import IDS_SKIPPED, VERSIONS_SKIPPED
from varlog.types import Epoch, LogStreamID, StreamStatus, TopicID, Version

_WITH_EPOCHS: Final = (StreamStatus.SEALED, StreamStatus.UNSEALING, StreamStatus.RUNNING)


def go_on_above(state: MetadataState, seconds: int) -> None:
    """Let metadata that was backed up so many seconds ago go on above all that can have been given out since: in no
    second are so many versions decided."""
    times = 1 + max(0, seconds)
    before, state.version = state.version, Version(state.version + VERSIONS_SKIPPED * times)
    state.skipped = (*state.skipped, (before, state.version))
    state.next_tpid = TopicID(state.next_tpid + IDS_SKIPPED)
    state.next_lsid = LogStreamID(state.next_lsid + IDS_SKIPPED)
    for stream in state.streams.values():
        if stream.status in _WITH_EPOCHS:
            _seal_above(stream, state.version, EPOCHS_SKIPPED * times)


def _seal_above(stream: Stream, version: Version, skipped: int) -> None:
    before, stream.epoch = stream.epoch, Epoch((stream.epoch + skipped) | 1)
    stream.skipped = (*stream.skipped, (before, stream.epoch))
    stream.status, stream.touched = StreamStatus.SEALED, version
