"""What one replica's log gives to another one (M9): parts of what is committed, and what to begin with instead.

A copy begins where a commit ends, so that its own commits follow one another as those of any log do. A log that was
trimmed keeps the whole of the commit that the trim point lies in, and everything after it: where that commit begins is
the first position that can be copied. Who lacks something before it is given a *base*: the state of the log at that
position. It is found by replaying the segment in which it lies, from the state the segment begins with, as recovery
does; the deduplication table too.

Everything here only reads, in any thread, beside staging, writing and trimming.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice, takewhile
from typing import Any, NamedTuple

from varlog import limits
from varlog.errors import Busy, Corrupt, InvalidArgument, MalformedSnapshot
from varlog.storage import format as fmt
from varlog.storage.files import File, FileSystem
from varlog.storage.format import Context, FrameKind, LogBase, Members, TrimRecord
from varlog.storage.reader import LogReader, Segments, committed_end
from varlog.storage.replay import Replay
from varlog.storage.scan import FrameScan
from varlog.storage.segment import Segment
from varlog.types import GLSN, LLSN, CommitContext, Epoch, LogStreamIdentity, Version
from varlog.types import Sequence as WriterSequence

Fold = Callable[[bytes | None, Sequence[tuple[Any, ...]]], bytes]
"""Makes a snapshot of a deduplication table from an earlier one and what happened since, told as in
`Recovered.dedup_tail`."""


class Copied(NamedTuple):
    """Consecutive batches as they stand in their frames, and the commits that end within them; or a base."""

    llsn: LLSN
    """Where it begins."""
    epochs: tuple[Epoch, ...] = ()
    prev_sequences: tuple[WriterSequence, ...] = ()
    batches: tuple[memoryview, ...] = ()
    commits: tuple[CommitContext, ...] = ()
    base: bytes = b""


def first_llsn(reader: LogReader, segments: Segments, trim_llsn: LLSN) -> LLSN:
    """Where a copy of a log can begin that is trimmed below `trim_llsn`."""
    if trim_llsn >= committed_end(segments):
        return committed_end(segments)
    cc = next(reader.commits_from_llsn(segments, trim_llsn), None)
    if cc is None:
        raise Corrupt("a commit context is missing", segment=segments[-1].name, offset=segments[-1].index_offset)
    return cc.llsn_begin


def part(reader: LogReader, segments: Segments, begin: LLSN, end: LLSN, after: Version, max_bytes: int) -> Copied:
    """The batches in [begin, end), which is committed, about `max_bytes` of them."""
    if begin >= end:
        return Copied(begin)
    size = min(max_bytes, limits.COPY_PART_BYTES)
    frames = list(islice(reader.read(segments, begin, end, size), limits.COPY_PART_BATCHES))
    if frames[0].header.llsn != begin:
        raise InvalidArgument(f"a copy cannot begin at LLSN {begin}, in the middle of a batch")
    part_end = frames[-1].header.llsn + frames[-1].header.count
    commits = takewhile(lambda cc: cc.llsn_end <= part_end, reader.commits_after_version(segments, after))
    return Copied(
        begin,
        tuple([frame.header.epoch for frame in frames]),
        tuple([WriterSequence(frame.header.prev_sequence) for frame in frames]),
        tuple([frame.batch for frame in frames]),
        tuple(commits),
    )


def base_part(
    fs: FileSystem, directory: str, segments: Segments, llsn: LLSN, trimmed: tuple[LLSN, GLSN], fold: Fold
) -> Copied:
    """The state of the log when it was committed up to `llsn`, where its first kept commit begins."""
    at = len(segments) - 1
    while at > 0 and segments[at - 1].committed_end > llsn:
        at -= 1
    segment = segments[at]
    try:
        file = fs.open(f"{directory}/{segment.name}")
    except FileNotFoundError as e:
        if segment.index is not None:
            raise _not_written(llsn) from e
        raise Corrupt("a segment is missing", segment=segment.name, offset=0) from e
    try:
        replay = _replay(file, segment, llsn)
    finally:
        file.close()
    state = replay.state
    snapshot = fold(replay.snapshot or None, [*replay.dedup_tail, ("truncate", llsn)])
    base = LogBase(llsn, *trimmed, state.version, state.epoch, state.hwm, state.local_hwm, snapshot)
    return Copied(llsn, base=fmt.encode_base(base))


def _replay(file: File, segment: Segment, llsn: LLSN) -> Replay:
    """A segment up to the commit that ends at `llsn`, which is in it."""
    size = file.size()
    header = fmt.decode_segment_header(file.pread(fmt.SEGMENT_HEADER_BYTES, 0))
    if header is None or header.nonce != segment.nonce:
        raise Corrupt("a damaged segment header", segment=segment.name, offset=0)
    scan = FrameScan(file, size, header.nonce, fmt.SEGMENT_HEADER_BYTES, header.crc)
    frames = iter(scan)
    first = next(frames, None)
    found = fmt.decode_context(first.body) if first is not None and first.header.kind == FrameKind.CONTEXT else None
    if found is None:
        raise Corrupt("a damaged context", segment=segment.name, offset=fmt.SEGMENT_HEADER_BYTES)
    replay = Replay(header, *found)
    while replay.state.committed_end < llsn:
        frame = next(frames, None)
        if frame is None and segment.index is not None:
            raise _not_written(llsn)
        if frame is None or not replay.apply(frame):
            raise Corrupt("a damaged frame", segment=segment.name, offset=scan.offset)
    return replay


def _not_written(llsn: LLSN) -> Busy:
    return Busy(f"the commit that ends at LLSN {llsn} is not written yet; try again shortly")


# Beginning with a base


def base_of(data: bytes, epoch: Epoch) -> LogBase:
    """What a replica begins with that was given `data` and has promised `epoch` before."""
    base = fmt.decode_base(data)
    if base is None:
        raise MalformedSnapshot(f"{len(data)} bytes are not what a log can begin with")
    return base._replace(epoch=max(base.epoch, epoch))


def context_of(base: LogBase) -> Context:
    return Context(base.llsn, base.llsn, base.version, base.hwm, base.local_hwm, base.epoch, Members())


def trim_record(identity: LogStreamIdentity, base: LogBase) -> TrimRecord:
    """Says that what came before is trimmed."""
    return TrimRecord(
        identity, base.trim_llsn, base.trim_glsn, base.version, base.epoch, base.hwm, base.llsn, 1, base.snapshot
    )  # fmt: skip
