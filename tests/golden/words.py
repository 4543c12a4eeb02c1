"""Messages, decisions and replicas in words, for people who read a trace.

Positions are told as people count them: a range names its first and its last, and "to 4" includes 4.
"""

from __future__ import annotations

from collections.abc import Iterable

from varlog import batch, errors
from varlog.core import metastate as m
from varlog.core.appending import Committed, Outcome, Rejected
from varlog.core.executor import LogStreamExecutor
from varlog.core.messages import (
    Append,
    AppendReplies,
    AppendReply,
    Commit,
    Cuts,
    Decided,
    FetchCuts,
    Message,
    ReplicaReply,
    Replicate,
    ReplicateAck,
    Report,
    ReportLine,
    RunStream,
    ScanReply,
    Seal,
    SealStream,
    Snapshot,
    StreamEnd,
    StreamInfo,
    Unseal,
    UnsealStream,
)
from varlog.core.metastate import AnyEntry
from varlog.types import CommitContext


def span(begin: int, end: int) -> str:
    """The positions from `begin` up to but not including `end`."""
    return f"{begin}" if end - begin == 1 else f"{begin}-{end - 1}"


def entries(data: bytes | memoryview) -> str:
    return "[" + " ".join(entry.decode() for entry in batch.decode(data).to_list()) + "]"


def error_name(code: int) -> str:
    return errors.VarlogError.registry[code].__name__


def members(replicas: Iterable[int], primary: int) -> str:
    return ", ".join(f"sn/{snid} (primary)" if snid == primary else f"sn/{snid}" for snid in replicas)


def given(lsid: int, epoch: int, llsn: int, glsn: int, count: int) -> str:
    """What a cut gives one log stream."""
    return f"ls {lsid} LLSN {span(llsn, llsn + count)} of epoch {epoch} = GLSN {span(glsn, glsn + count)}"


def message(sent: Message) -> str:
    """One line for a message; its kind comes first."""
    return f"{type(sent).__name__} {_content(sent)}".rstrip()


def _content(sent: Message) -> str:
    match sent:
        case Append():
            sequence = batch.peek_header(sent.batch).sequence
            return (
                f"ls {sent.lsid} epoch {sent.epoch}: {entries(sent.batch)}, batch {sequence} after {sent.prev_sequence}"
            )
        case AppendReply():
            return f"ls {sent.lsid}: {_append_reply(sent)}"
        case AppendReplies():
            return f"ls {sent.lsid}: " + "; ".join(map(_append_reply, sent.each()))
        case Replicate():
            return f"ls {sent.lsid} epoch {sent.epoch}: {_run(sent)}"
        case ReplicateAck(lsid, _, epoch, accepted, received, durable):
            has = f"has all to LLSN {received - 1}, durable to {durable - 1}"
            return f"ls {lsid} epoch {epoch}: {has}" if accepted else f"ls {lsid} epoch {epoch}: does not follow"
        case Report():
            return _report(sent)
        case Commit() | Snapshot() | FetchCuts() | Cuts():
            return _told(sent)
        case ScanReply():
            return f"ls {sent.lsid}: {_scan_reply(sent)}"
        case _:
            return _management(sent)


def _append_reply(reply: AppendReply) -> str:
    if reply.code:
        return f"{error_name(reply.code)}, in epoch {reply.epoch}"
    return f"committed at GLSN {span(reply.glsn, reply.glsn + reply.count)}"


def _run(replicate: Replicate) -> str:
    told, llsn = [], int(replicate.llsn)
    for data in replicate.batches:
        end = llsn + batch.peek_header(data).count
        told.append(f"LLSN {span(llsn, end)} {entries(bytes(data))}")
        llsn = end
    return ", ".join(told)


def _scan_reply(reply: ScanReply) -> str:
    if reply.code == errors.NotYet.code:
        return f"not yet; complete to GLSN {reply.complete_to}"
    if reply.code:
        return error_name(reply.code)
    told = [
        f"GLSN {span(glsn, glsn + count)} {entries(bytes(data))}" for glsn, _, count, _, _, _, data in reply.batches
    ]
    return f"{', '.join(told) or 'nothing'}; complete to GLSN {reply.complete_to}"


def _report(report: Report) -> str:
    def line(told: ReportLine) -> str:
        lsid, epoch, _, committed_end, durable_end, healthy = told
        if not healthy:
            return f"ls {lsid} needs repair"
        return f"ls {lsid} epoch {epoch} durable to LLSN {durable_end - 1}, committed to {committed_end - 1}"

    asks = " and asks for the state" if report.ask else ""
    return f"at version {report.version}{asks}: " + "; ".join(map(line, report.lines))


def _told(sent: Message) -> str:
    match sent:
        case Commit(_, prev, version, _, hwms, ranges, epochs, trims):
            parts = [given(*one) for one in ranges]
            parts += [f"hwm {prev_hwm} -> {hwm}" for _, prev_hwm, hwm in hwms]
            parts += [f"ls {lsid} is in epoch {epoch}, committed to LLSN {end - 1}" for lsid, epoch, end in epochs]
            parts += [f"trimmed to GLSN {glsn}" for _, glsn in trims]
            return f"version {prev} -> {version}: {'; '.join(parts) or 'nothing new'}"
        case Snapshot(_, version, _, topics, streams):
            parts = [_stream_end(end) for end in streams] + [f"hwm {hwm}" for _, hwm, _ in topics]
            return f"of version {version}: " + "; ".join(parts)
        case FetchCuts(_, lsid, after):
            return f"ls {lsid} after version {after}"
        case Cuts(lsid, cuts):
            return f"ls {lsid}: " + ("; ".join(f"version {cc.version}: {commit(lsid, cc)}" for cc in cuts) or "none")
        case _:
            raise AssertionError(sent)


def _stream_end(end: StreamEnd) -> str:
    return f"ls {end.lsid} {end.status.name} epoch {end.epoch}, committed to LLSN {end.llsn_end - 1}"


def commit(lsid: int, cc: CommitContext) -> str:
    return given(lsid, cc.epoch, cc.llsn_begin, cc.glsn_begin, cc.count)


def _management(sent: Message) -> str:
    match sent:
        case Seal(_, lsid, epoch, llsn_end):
            return f"ls {lsid} epoch {epoch}: at LLSN {llsn_end}, nothing from there on"
        case Unseal(_, lsid, epoch, replicas, primary):
            return f"ls {lsid} epoch {epoch}: {members(replicas, primary)}"
        case SealStream(_, lsid, epoch) | RunStream(_, lsid, epoch):
            return f"ls {lsid} epoch {epoch}"
        case UnsealStream(_, lsid, epoch, replicas, primary):
            return f"ls {lsid} epoch {epoch}: {members(replicas, primary)}"
        case ReplicaReply(_, lsid, code, _, epoch, state, committed_end):
            refused = f"{error_name(code)}; " if code else ""
            return f"ls {lsid}: {refused}{state.name} in epoch {epoch}, committed to LLSN {committed_end - 1}"
        case Decided(_, code, version):
            return error_name(code) if code else f"in version {version}"
        case _:
            raise AssertionError(f"no words for {sent}")


def entry(made: AnyEntry) -> str:
    """A decision of the metadata repository."""
    match made:
        case m.Cut(_, hwms, ranges):
            return "cut: " + "; ".join([given(*one) for one in ranges] + [f"hwm {a} -> {b}" for _, a, b in hwms])
        case m.StreamSealed(lsid, epoch):
            return f"ls {lsid} is sealed, epoch {epoch}"
        case m.StreamUnsealing(lsid, epoch, replicas, primary):
            return f"ls {lsid} is unsealing, epoch {epoch}, on {members(replicas, primary)}"
        case m.StreamRunning(lsid, epoch):
            return f"ls {lsid} runs, epoch {epoch}"
        case _:
            return type(made).__name__


def outcome(told: Outcome) -> str:
    """What a writer says of an append."""
    match told:
        case Committed():
            return f"committed at GLSN {span(told.glsn, told.glsn + told.count)}"
        case Rejected(code):
            return f"rejected: {error_name(code)}"
        case _:
            return "unknown"


def replica(executor: LogStreamExecutor) -> str:
    """All of a replica's state that a story may turn on."""
    role = " primary" if executor.primary == executor.snid and executor.state.name == "RUNNING" else ""
    ends = (
        f"committed to LLSN {executor.committed_end - 1}, durable to {executor.durable_end - 1}, "
        f"stored to {executor.end - 1}; complete to GLSN {executor.global_hwm}"
    )
    repair = "" if executor.healthy else "; needs repair"
    return f"ls {executor.lsid}: {executor.state.name}{role} in epoch {executor.epoch}; {ends}{repair}"


def stream(info: StreamInfo) -> str:
    """A log stream as the metadata repository has it."""
    where = members(info.replicas, info.primary)
    ends = f"committed to LLSN {info.llsn_end - 1}, GLSN {info.last_glsn}"
    return f"ls {info.lsid}: {info.status.name} in epoch {info.epoch} on {where}; {ends}"
