"""Faults that nobody notices: files of a stopped node, and of an archive, rewritten so that every checksum is right.

A segment is taken apart into its frames, changed, and laid out anew with production's own encoding: frame headers, the
chain that runs through them, the checksums of batches, and the mark of what is synced. So the node that opens it finds
a sound log, only not the one that was written.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from crc32c import crc32c

from varlog import batch
from varlog.archive import checked
from varlog.storage import format as fmt
from varlog.storage.files import OSFileSystem
from varlog.storage.format import FrameKind, Mark
from varlog.storage.logfiles import MARK_NAME
from varlog.storage.scan import FrameScan
from varlog.types import CommitContext


class Frame(NamedTuple):
    """A frame without its place."""

    kind: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody misses here
    llsn: int
    epoch: int
    prev_sequence: int
    body: bytes

    @property
    def commit(self) -> CommitContext:
        found = fmt.decode_commit(self.body)
        assert found is not None
        return found

    @property
    def payloads(self) -> list[bytes]:
        return batch.decode(self.body).to_list()

    @property
    def is_batch(self) -> bool:
        return self.kind == FrameKind.BATCH

    @property
    def is_commit(self) -> bool:
        return self.kind == FrameKind.COMMIT

    def with_commit(self, cc: CommitContext) -> Frame:
        return self._replace(body=fmt.encode_commit(cc), llsn=cc.llsn_begin)

    def with_payloads(self, payloads: Sequence[bytes]) -> Frame:
        """The same batch with other entries; the frame goes on saying how many it had."""
        header = batch.peek_header(self.body)
        encoded = batch.encode(
            payloads, writer_id=header.writer_id, sequence=header.sequence, timestamp=header.timestamp
        )
        return self._replace(body=encoded)


Change = Callable[[list[Frame]], list[Frame]]


def replica_of(volume: Path, lsid: int) -> Path:
    """The directory of a replica on a node's volume."""
    (directory,) = volume.glob(f"cid=*/snid=*/lsid={lsid}")
    return directory


def forge(replica: Path, change: Change) -> None:
    """Change the newest segment of a replica whose node is stopped."""
    path = max(replica.glob("*.seg"))
    data = path.read_bytes()
    header = fmt.decode_segment_header(data[: fmt.SEGMENT_HEADER_BYTES])
    assert header is not None
    file = OSFileSystem().open(str(path))
    scan = FrameScan(file, len(data), header.nonce, fmt.SEGMENT_HEADER_BYTES, header.crc)
    frames = [Frame(h.kind, h.count, h.llsn, h.epoch, h.prev_sequence, bytes(body)) for _, h, body in scan]
    file.close()
    chain, written = header.crc, bytearray(data[: fmt.SEGMENT_HEADER_BYTES])
    for frame in change(frames):
        check = fmt.batch_check(frame.body) if frame.is_batch else crc32c(frame.body)
        head, chain = fmt.encode_frame_header(
            len(written), chain, frame.kind, len(frame.body), frame.count, check, 0, frame.llsn, frame.epoch,
            frame.prev_sequence, header.nonce,
        )  # fmt: skip
        written += head + frame.body
    path.write_bytes(bytes(written).ljust(len(data), b"\0"))
    (replica / MARK_NAME).write_bytes(fmt.encode_mark(Mark(header.seq, len(written))))


# What can be wrong with a replica


def index_of(frames: Sequence[Frame], payload: bytes) -> int:
    """The frame of the batch that has this entry."""
    return next(at for at, frame in enumerate(frames) if frame.is_batch and payload in frame.payloads)


def flip(payload: bytes, bit: int = 1) -> Change:
    """One bit of an entry."""

    def change(frames: list[Frame]) -> list[Frame]:
        at = index_of(frames, payload)
        flipped = bytes([payload[0] ^ bit]) + payload[1:]
        frames[at] = frames[at].with_payloads([flipped if p == payload else p for p in frames[at].payloads])
        return frames

    return change


def swap(one: bytes, other: bytes) -> Change:
    """Two batches stand in each other's places."""

    def change(frames: list[Frame]) -> list[Frame]:
        a, b = index_of(frames, one), index_of(frames, other)
        frames[a], frames[b] = frames[a]._replace(body=frames[b].body), frames[b]._replace(body=frames[a].body)
        return frames

    return change


def repeat(from_: Sequence[bytes], to: Sequence[bytes]) -> Change:
    """Batches are there again, in the place of others."""

    def change(frames: list[Frame]) -> list[Frame]:
        bodies = [frames[index_of(frames, payload)].body for payload in from_]
        for payload, body in zip(to, bodies, strict=True):
            at = index_of(frames, payload)
            frames[at] = frames[at]._replace(body=body)
        return frames

    return change


def drop(payload: bytes) -> Change:
    """A batch that was committed alone is gone, with its commit; what follows moves up."""

    def change(frames: list[Frame]) -> list[Frame]:
        at = index_of(frames, payload)
        llsn, count = frames[at].llsn, frames[at].count
        kept = []
        for frame in frames[:at] + frames[at + 1 :]:
            if frame.is_batch and frame.llsn > llsn:
                kept.append(frame._replace(llsn=frame.llsn - count))
            elif frame.is_commit and frame.commit.llsn_begin == llsn:
                assert frame.commit.count == count, "the batch was not committed alone"
            elif frame.is_commit and frame.commit.llsn_begin > llsn:
                cc = frame.commit
                kept.append(frame.with_commit(cc._replace(llsn_begin=cc.llsn_begin - count)))  # type: ignore[arg-type]
            else:
                kept.append(frame)
        return kept

    return change


def shrink(payload: bytes) -> Change:
    """A batch has one entry fewer than its frame says."""

    def change(frames: list[Frame]) -> list[Frame]:
        at = index_of(frames, payload)
        frames[at] = frames[at].with_payloads([p for p in frames[at].payloads if p != payload])
        return frames

    return change


def cut(payload: bytes) -> Change:
    """Everything from a batch on is gone."""

    def change(frames: list[Frame]) -> list[Frame]:
        return frames[: index_of(frames, payload)]

    return change


def move_commit(payload: bytes, by: int) -> Change:
    """A commit gives other positions than it gave."""

    def change(frames: list[Frame]) -> list[Frame]:
        llsn = frames[index_of(frames, payload)].llsn
        for at, frame in enumerate(frames):
            if frame.is_commit and frame.commit.llsn_begin <= llsn < frame.commit.llsn_end:
                cc = frame.commit
                frames[at] = frame.with_commit(cc._replace(glsn_begin=cc.glsn_begin + by))  # type: ignore[arg-type]
        return frames

    return change


def retime(payload: bytes, by: int) -> Change:
    """A commit says that it was at another time."""

    def change(frames: list[Frame]) -> list[Frame]:
        llsn = frames[index_of(frames, payload)].llsn
        for at, frame in enumerate(frames):
            if frame.is_commit and frame.commit.llsn_begin <= llsn < frame.commit.llsn_end:
                frames[at] = frame.with_commit(frame.commit._replace(time=frame.commit.time + by))
        return frames

    return change


def retime_chained(payload: bytes, by: int) -> Change:
    """The same of a batch in a chain, which carries its time itself."""

    def change(frames: list[Frame]) -> list[Frame]:
        at = index_of(frames, payload)
        frames[at] = frames[at]._replace(prev_sequence=frames[at].prev_sequence + by)
        return frames

    return change


# What can be wrong with an archive


def rewrite(
    archive: Path, relative: str, change: Callable[[pa.Table], pa.Table], *, counted: bool = True
) -> None:  # fmt: skip
    """Rows of a data file; its checksums and its manifest go along: its size is right, and if `counted` the number of
    rows as well."""
    path = archive / relative
    table = pq.read_table(path, partitioning=None)
    changed = change(table)
    with path.open("wb") as stream, checked.writing(stream, changed.schema, compression="zstd") as write:
        write(changed)

    def corrected(action: dict[str, Any]) -> dict[str, Any] | None:
        add = action.get("add")
        if add is not None and add["path"] == relative:
            stats = json.loads(add["stats"]) | ({"numRecords": len(changed)} if counted else {})
            return {"add": add | {"size": path.stat().st_size, "stats": json.dumps(stats)}}
        return action

    edit_manifest(archive, corrected)


def forget(archive: Path, relative: str) -> None:
    """A data file is no longer in the manifest."""
    edit_manifest(archive, lambda action: None if action.get("add", {}).get("path") == relative else action)


def edit_manifest(archive: Path, change: Callable[[dict[str, Any]], dict[str, Any] | None]) -> None:
    for path in (archive / "_delta_log").glob("*.json"):
        actions = [json.loads(line) for line in path.read_text().splitlines()]
        kept = [changed for action in actions if (changed := change(action)) is not None]
        path.write_text("".join(json.dumps(action) + "\n" for action in kept))


def set_rows(table: pa.Table, order: Sequence[int]) -> pa.Table:
    """The rows of a table by their numbers: left out, repeated, or in another order."""
    return table.take(pa.array(order, pa.int64()))


def set_payload(table: pa.Table, row: int, payload: bytes) -> pa.Table:
    payloads = table.column("payload").to_pylist()
    payloads[row] = payload
    at = table.schema.get_field_index("payload")
    return table.set_column(at, table.schema.field(at), pa.array(payloads, pa.binary()))
