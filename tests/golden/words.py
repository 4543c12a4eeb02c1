"""Messages, decisions and replicas in words, for people who read a trace.

Positions are told as people count them: a range names its first and its last, and "to 4" includes 4.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from varlog import batch, errors
from varlog.core import metastate as m
from varlog.core.appending import Committed, Outcome, Rejected
from varlog.core.executor import LogStreamExecutor
from varlog.core.identity import GENERATION_SHIFT, generation_of
from varlog.core.messages import (
    AbortStream,
    AddLogStream,
    AdoptIdentity,
    AnnounceNode,
    Append,
    AppendReplies,
    AppendReply,
    Commit,
    CreateStream,
    Cuts,
    Decided,
    FetchCuts,
    FetchLog,
    GetInfo,
    GetMetadata,
    HoldStream,
    IdentityAdopted,
    Info,
    LogPart,
    LoseStream,
    Message,
    Metadata,
    PlanStream,
    RegisterNode,
    RegisterStream,
    RemoveLogStream,
    RenewNode,
    ReopenLogStream,
    ReplicaReply,
    Replicate,
    ReplicateAck,
    Report,
    ReportLine,
    RunStream,
    ScanReply,
    Seal,
    SealStream,
    SetDraining,
    Snapshot,
    StreamEnd,
    StreamInfo,
    Sync,
    SyncReply,
    UnregisterStream,
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
        case Snapshot(_, version, _, topics, streams, unknown):
            parts = [_stream_end(end) for end in streams] + [f"hwm {hwm}" for _, hwm, _ in topics]
            parts += [f"epoch {epoch} of ls {lsid} is not known" for lsid, epoch, _ in unknown]
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
            has = f"{state.name} in epoch {epoch}, committed to LLSN {committed_end - 1}" if committed_end else "none"
            return f"ls {lsid}: {refused}{has}"
        case Decided(_, code, version, _, _, detail):
            return f"{error_name(code)}: {detail}".rstrip(": ") if code else f"in version {version}"
        case AddLogStream() | RemoveLogStream() | ReopenLogStream() | Sync() | SyncReply() | FetchLog() | LogPart():
            return _replicas(sent)
        case _:
            return _members(sent)


def _replicas(sent: Message) -> str:
    """What replicas are made, removed and copied with."""
    match sent:
        case AddLogStream(_, _, lsid) | ReopenLogStream(_, lsid):
            return f"ls {lsid}"
        case RemoveLogStream(_, lsid, new_only, failed_only, until):
            only = " if nothing ever happened to it" if new_only else " if it has failed" if failed_only else ""
            only += f" unless it is past epoch {until}" if until else ""
            return f"ls {lsid}{only}"
        case Sync(_, lsid, epoch, source, learner):
            return f"ls {lsid} epoch {epoch}: copy from sn/{source}" + (", as a learner" if learner else "")
        case SyncReply(_, lsid, code, _, is_complete, source, copied, end, detail):
            if code:
                return f"ls {lsid}: {error_name(code)}: {detail}"
            if is_complete:
                return f"ls {lsid}: SYNC_COMPLETE, has LLSN {copied - 1}"
            far = f", has LLSN {copied - 1} of {end - 1}" if end else ""
            return f"ls {lsid}: SYNC_INPROGRESS{far}"
        case FetchLog(_, lsid, _, _, begin):
            return f"ls {lsid} from LLSN {begin}"
        case LogPart(_, lsid, code, end, llsn, _, _, batches, commits, base, detail):
            if base:
                return f"ls {lsid}: {error_name(code)}; its log begins at LLSN {llsn}, begin there"
            if code:
                return f"ls {lsid}: {error_name(code)}: {detail}"
            told = " ".join(entries(bytes(data)) for data in batches) or "nothing more"
            cuts = f", committed by {len(commits)} cut{'s' * (len(commits) > 1)}" if commits else ""
            return f"ls {lsid} from LLSN {llsn}: {told}{cuts}; has LLSN {end - 1}"
        case _:
            raise AssertionError(sent)


def _members(sent: Message) -> str:
    """What nodes are registered with, and say of themselves."""
    match sent:
        case GetInfo() | GetMetadata():
            return ""
        case Info(_, snid, boot, replicas):
            has = ", ".join(f"ls {one.lsid}" for one in replicas) or "nothing"
            return f"node {snid}, {_start(boot)}{'' if sent.is_identified else ', without a secret'}: {has}"
        case Metadata():
            listed = ", ".join(f"ls {one.lsid} {one.status.name}" for one in sent.streams) or "no log streams"
            return f"version {sent.version}: nodes {', '.join(str(node.snid) for node in sent.nodes)}; {listed}"
        case RegisterNode(_, snid):
            return f"node {snid} with the proof of a secret"
        case RenewNode(_, snid, generation):
            return f"node {snid}, whose secret is number {generation}, with the proof of another"
        case AnnounceNode(_, snid, _, _, boot, secret):
            following = " and the proof of the next" if sent.next_proof else ""
            shown = f"its secret{following}" if secret else "no secret"
            return f"node {snid}, {_start(boot)}, with {shown}"
        case AdoptIdentity(_, snid, _, generation):
            return f"node {snid}: secret number {generation}"
        case IdentityAdopted(_, code, detail):
            return f"{error_name(code)}: {detail}" if code else "on the disk"
        case SetDraining(_, snid, is_draining):
            return f"node {snid}: {'no replicas there' if is_draining else 'replicas are welcome again'}"
        case _:
            return _streams(sent)


def _streams(sent: Message) -> str:
    """What log streams are registered with, and what is wanted of them."""
    match sent:
        case CreateStream():
            return ""
        case RegisterStream(_, lsid, replicas):
            return f"ls {lsid} on {members(replicas, 0)}"
        case AbortStream(_, lsid) | UnregisterStream(_, lsid):
            return f"ls {lsid}"
        case HoldStream(_, lsid, is_held):
            return f"ls {lsid}: {'is to stay sealed' if is_held else 'may run again'}"
        case PlanStream(_, lsid, joining, leaving):
            return _plan(lsid, joining, leaving)
        case LoseStream(_, lsid, epoch, begin, replicas):
            return f"ls {lsid} epoch {epoch}: from GLSN {begin} on; the rest is on {members(replicas, 0) or 'no node'}"
        case _:
            raise AssertionError(f"no words for {sent}")


def _start(boot: int) -> str:
    generation, starts = generation_of(boot), boot % (1 << GENERATION_SHIFT)
    return f"start {starts}" + (f" with secret number {generation}" if generation else "")


def _plan(lsid: int, joining: int, leaving: int) -> str:
    wishes = [f"sn/{joining} joins"] * bool(joining) + [f"sn/{leaving} leaves"] * bool(leaving)
    return f"ls {lsid}: {', '.join(wishes) or 'as it is'}"


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
        case m.StreamPlanned(lsid, joining, leaving):
            return _plan(lsid, joining, leaving)
        case m.StreamHeld(lsid, is_held):
            return f"ls {lsid} {'stays sealed' if is_held else 'may run again'}, as an operator wants it"
        case m.StreamLost(lsid, begin, replicas):
            left = members(replicas, 0) or "no node"
            return f"ls {lsid} has lost what it had from GLSN {begin} on; what is left is on {left}"
        case _:
            return _registration(made)


def _registration(made: AnyEntry) -> str:
    match made:
        case m.NodeRegistered(snid):
            return f"node {snid} is registered"
        case m.NodeAnnounced(snid):
            promoted = "" if made.next_proof else ", with the secret it said it would have"
            return f"node {snid} has proven who it is{promoted}"
        case m.NodeRenewed(snid, generation):
            return f"node {snid} begins anew, with secret number {generation}"
        case m.NodeDraining(snid, is_draining):
            return f"node {snid} is {'being drained' if is_draining else 'drained no more'}"
        case m.StreamCreating(lsid):
            return f"ls {lsid} is CREATING"
        case m.StreamRegistered(lsid, replicas):
            return f"ls {lsid} is registered on {members(replicas, 0)}, SEALED in epoch 1"
        case m.StreamAborted(lsid):
            return f"ls {lsid} is ABORTED"
        case m.StreamUnregistered(lsid):
            return f"ls {lsid} is no more"
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
    if executor.needs_sync:
        repair += "; needs a copy"
    if executor.source:
        repair += f"; copies from sn/{executor.source}"
    return f"ls {executor.lsid}: {executor.state.name}{role} in epoch {executor.epoch}; {ends}{repair}"


def stream(info: StreamInfo) -> str:
    """A log stream as the metadata repository has it."""
    where = members(info.replicas, info.primary) or "no node"
    ends = f"committed to LLSN {info.llsn_end - 1}, GLSN {info.last_glsn}"
    if info.lost_end:
        ends += f"; GLSN {span(info.lost_begin, info.lost_end)} is lost"
    elif info.is_held:
        ends += "; kept sealed by an operator"
    if info.joining or info.leaving:
        ends += f"; wanted: {_plan(info.lsid, info.joining, info.leaving).partition(': ')[2]}"
    return f"ls {info.lsid}: {info.status.name} in epoch {info.epoch} on {where}; {ends}"


_CHATTER = {"Append", "AppendReply", "AppendReplies", "Commit", "Decided", "Report", "Replicate", "ReplicateAck"}
_CHATTER |= {"Snapshot", "FetchCuts", "Cuts", "AnnounceNode", "GetMetadata", "Metadata"}
_ASIDES = ("    (rule 4:", "    (rule 5:", "    (rule 10:")


def gist(trace: Iterable[str]) -> Iterator[str]:
    """A trace without what goes on all the time: of reports, commits and syncs only what they changed."""
    headline = ""
    for line in trace:
        if not line.startswith(" "):
            words = line.split()
            is_chatter = words[-1] == "syncs" or (len(words) > 3 and words[3] in _CHATTER)
            headline = line if is_chatter else ""
            if not is_chatter:
                yield line
        elif " sends " not in line and not line.startswith(_ASIDES):
            if headline:
                yield headline
                headline = ""
            yield line
