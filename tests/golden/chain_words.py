"""Messages of the sequencer ordering in words, for the traces of golden scripts."""

from __future__ import annotations

from varlog import batch, errors
from varlog.core.messages import (
    ChainCopied,
    ChainCopy,
    ChainPart,
    ChainRead,
    ChainSeal,
    ChainSealed,
    ChainWrite,
    ChainWritten,
    Decided,
    GetTail,
    Granted,
    Message,
    Next,
    Peek,
    Peeked,
    ProposeProjection,
    Tail,
)
from varlog.core.projection import Projection


def message(told: Message) -> str | None:
    """What a message says; None if it is not of the story."""
    match told:
        case Next() | Granted() | Peek() | Peeked():
            return _of_sequencer(told)
        case ChainWrite() | ChainWritten() | ChainRead() | ChainPart():
            return _of_replica(told)
        case ChainSeal(_, lsid, epoch):
            return f"seal log stream {lsid} in epoch {epoch}{', as one that joins' if told.joins else ''}"
        case ChainSealed(_, _, 0):
            return f"sealed: in epoch {told.epoch}, nothing is at {told.end} or beyond"
        case ChainSealed():
            return f"not sealed: {_error(told.code)}, in epoch {told.epoch}"
        case ChainCopy(_, lsid, _, source, end):
            return f"copy log stream {lsid} from sn/{source}, " + (f"up to {end}" if end else "and follow it")
        case ChainCopied(_, _, 0):
            return f"copied up to {told.copied}{', complete' if told.is_complete else ''}"
        case ChainCopied():
            return f"not copied: {_error(told.code)}"
        case ProposeProjection(_, _, base, proposed):
            return f"propose after epoch {base}: {projection(proposed)}"
        case GetTail():
            return "which epoch is it?"
        case Tail():
            return f"epoch {told.epoch}"
        case Decided() if told.code:
            return f"refused: {_error(told.code)}"
        case Decided():
            return "granted"
        case _:
            return None


def projection(made: Projection) -> str:
    chains = "; ".join(
        f"log stream {chain.lsid} on {' > '.join(f'sn/{snid}' for snid in chain.nodes)}" for chain in made.chains
    )
    return f"epoch {made.epoch}, positions from {made.start} on by sq/{made.sequencer}, {chains}"


def entries(content: bytes | memoryview) -> str:
    record = batch.decode(content)
    if record.flags & batch.BatchFlag.JUNK:
        return "junk"
    return "[" + " ".join(entry.decode() for entry in record.to_list()) + "]"


def positions(glsn: int, count: int) -> str:
    return f"{glsn}" if count == 1 else f"{glsn}-{glsn + count - 1}"


def _of_sequencer(told: Next | Granted | Peek | Peeked) -> str:
    match told:
        case Next():
            return f"next: {sum(told.counts)}, epoch {told.epoch}"
        case Granted(_, 0):
            skipped = "".join(f", {positions(*one)} left out" for one in told.skipped)
            return f"next: {', '.join(map(str, told.glsns))}{skipped}"
        case Granted():
            return f"next: {_error(told.code)}, in epoch {told.epoch}"
        case Peek():
            return f"peek: epoch {told.epoch}" if told.epoch else "are you there?"
        case Peeked(_, 0, epoch):
            return f"peek: {told.glsn}" if epoch else f"yes, my start number {told.boot}"
        case Peeked():
            return f"peek: {_error(told.code)}, in epoch {told.epoch}"


def _of_replica(told: ChainWrite | ChainWritten | ChainRead | ChainPart) -> str:
    match told:
        case ChainWrite():
            pairs = zip(told.glsns, told.batches, strict=True)
            written = "; ".join(f"{entries(b)} at {positions(g, batch.peek_header(b).count)}" for g, b in pairs)
            return f"write {written}, epoch {told.epoch}"
        case ChainWritten(_, _, 0):
            refused = [
                f"{_error(code)}: {entries(there)} is at {glsn}" if len(there) else _error(code)
                for _, code, glsn, _, there in told.refused
            ]
            return f"write: {'; '.join(refused) or 'ok'}"
        case ChainWritten():
            return f"write: {_error(told.code)}, in epoch {told.epoch}"
        case ChainRead():
            return f"read from {told.glsn} on, epoch {told.epoch}"
        case ChainPart(_, _, 0):
            found = "; ".join(f"{entries(line[6])} at {positions(line[0], line[2])}" for line in told.batches)
            return f"read: {found or 'unwritten'}"
        case ChainPart():
            return f"read: {_error(told.code)}, in epoch {told.epoch}"


def _error(code: int) -> str:
    return errors.VarlogError.registry[code].__name__
