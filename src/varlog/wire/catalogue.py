"""The catalogue: which number each message has on the wire, and how its body is made.

A number is given once and never changes its meaning; gaps are left so that what belongs together can stay together. The
messages of `hot` and `chained` are packed by hand, all others are msgpack arrays of their fields in order. A receiver
ignores fields it does not know at the end of such an array, and takes the default for fields that are missing there.

What goes wrong while bytes are taken apart, whatever it is, is the sender's fault and a `ProtocolError`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct
from typing import Any, Final, NoReturn

import msgspec

from varlog import limits
from varlog.batch import Buffer
from varlog.core import messages as core
from varlog.core.messages import Message
from varlog.errors import InvalidArgument
from varlog.wire import chained, hello, hot
from varlog.wire.hot import Codec, Decode, Out

HOT: Final[Sequence[tuple[int, type[Message], Callable[[int], Codec]]]] = [
    (8, hot.Ping, hot.ping),
    (9, hot.Pong, hot.pong),
    (16, core.Append, hot.append),
    (17, core.AppendReply, hot.append_reply),
    (20, core.AppendReplies, hot.append_replies),
    (18, core.Scan, hot.scan),
    (19, core.ScanReply, hot.scan_reply),
    (24, core.Replicate, hot.replicate),
    (25, core.ReplicateAck, hot.replicate_ack),
    (26, core.FetchLog, hot.fetch_log),
    (27, core.LogPart, hot.log_part),
    (21, core.Next, chained.next_positions),
    (22, core.Granted, chained.granted),
    (28, core.ChainWrite, chained.chain_write),
    (29, core.ChainWritten, chained.chain_written),
    (30, core.ChainRead, chained.chain_read),
    (31, core.ChainPart, chained.chain_part),
]

HELLO: Final[Sequence[tuple[int, type[Message]]]] = [
    (1, hello.Hello),
    (2, hello.Welcome),
    (3, hello.Proof),
    (4, hello.Ready),
    (5, hello.Refused),
]

CONTROL: Final[Sequence[tuple[int, type[Message]]]] = [
    # Storage node and metadata repository
    (32, core.Report),
    (33, core.Commit),
    (34, core.Snapshot),
    (35, core.FetchCuts),
    (36, core.Cuts),
    # Manager and storage node
    (48, core.GetInfo),
    (49, core.Info),
    (50, core.AddLogStream),
    (51, core.RemoveLogStream),
    (52, core.Seal),
    (53, core.Unseal),
    (54, core.ReplicaReply),
    (55, core.Sync),
    (56, core.SyncReply),
    (57, core.AdoptIdentity),
    (58, core.IdentityAdopted),
    (59, core.GetFingerprint),
    (60, core.Fingerprint),
    (61, core.Scrub),
    (62, core.ScrubState),
    (63, core.ReopenLogStream),
    # Anyone and the metadata repository
    (64, core.GetMetadata),
    (65, core.Metadata),
    (66, core.GetTail),
    (67, core.Tail),
    (68, core.TrimTopic),
    (69, core.Decided),
    (72, core.RegisterNode),
    (73, core.AnnounceNode),
    (74, core.UnregisterNode),
    (75, core.RegisterManager),
    (76, core.CreateTopic),
    (77, core.DeleteTopic),
    (78, core.CreateStream),
    (79, core.RegisterStream),
    (80, core.UnregisterStream),
    (81, core.AbortStream),
    (82, core.SealStream),
    (83, core.UnsealStream),
    (84, core.RunStream),
    (85, core.RenewNode),
    (86, core.SetDraining),
    (87, core.PlanStream),
    (88, core.HoldStream),
    (89, core.LoseStream),
    (90, core.SetArchive),
    (91, core.Leading),
    (92, core.NotLeading),
    (93, core.GetStanding),
    (94, core.Standing),
    # Operators and the manager
    (96, core.AddNode),
    (97, core.RemoveNode),
    (98, core.AddTopic),
    (99, core.RemoveTopic),
    (100, core.AddStream),
    (101, core.RemoveStream),
    (102, core.Managed),
    (103, core.DrainNode),
    (104, core.ReplaceNode),
    (105, core.HoldLogStream),
    (106, core.SyncLogStream),
    (107, core.MoveReplica),
    (108, core.DeclareLost),
    (109, core.Diagnose),
    (110, core.Diagnosis),
    (111, core.AttachArchive),
    # The sequencer ordering: anyone, a sequencer, the replicas of chains, and the metadata repository
    (112, core.Peek),
    (113, core.Peeked),
    (114, core.ChainSeal),
    (115, core.ChainSealed),
    (116, core.ChainCopy),
    (117, core.ChainCopied),
    (118, core.GetDigest),
    (119, core.Digest),
    (120, core.ProposeProjection),
    (121, core.RegisterSequencer),
    # Transactions: anyone and the metadata repository
    (122, core.BeginTransaction),
    (123, core.Begun),
    (124, core.EndTransaction),
    (125, core.ForgetTransactions),
    (126, core.GetTransactions),
    (127, core.Transactions),
]

_HEADER = Struct(hot.FRAME)
_MSGPACK = msgspec.msgpack.Encoder()


def _control(number: int, cls: type[Message], most: int) -> Codec:
    pack, body_of = _HEADER.pack, _MSGPACK.encode
    parse = msgspec.msgpack.Decoder(cls).decode

    def encode(message: Any, out: Out) -> int:
        body = body_of(message)
        size = len(body)
        if size > most:
            raise InvalidArgument(f"a {cls.__name__} of {size} bytes; at most {most} fit into one")
        out(hot.sealed(pack(size, number, 0) + body))
        return hot.HEADER_BYTES + size

    def decode(view: memoryview, begin: int, end: int) -> Message:
        return parse(view[begin:end])

    return Codec(encode, decode, decode, 1, most)


def _shared(codec: Codec) -> Codec:
    """The same of a message that goes to several receivers one after another: it is packed once."""
    pack = codec.encode
    # One tuple, so that loops in several threads can never take a message for another.
    last: tuple[Any, bytes] = (None, b"")

    def encode(message: Any, out: Out) -> int:
        nonlocal last
        known, frame = last
        if known is not message:
            pieces: list[bytes] = []
            pack(message, pieces.append)  # type: ignore[arg-type]
            (frame,) = pieces
            last = (message, frame)
        out(frame)
        return len(frame)

    return codec._replace(encode=encode)


def _codecs() -> dict[int, tuple[type[Message], Codec]]:
    found: dict[int, tuple[type[Message], Codec]] = {}
    for number, hot_cls, make in HOT:
        found[number] = (hot_cls, make(number))
    for number, cls in HELLO:
        found[number] = (cls, _control(number, cls, limits.HELLO_BYTES))
    for number, cls in CONTROL:
        codec = _control(number, cls, limits.MAX_CONTROL_BYTES)
        found[number] = (cls, _shared(codec) if cls is core.Commit else codec)
    assert len(found) == len(HOT) + len(HELLO) + len(CONTROL), "a number is given once"
    return found


CODECS: Final = _codecs()
"""By number: the class and its codec."""

NUMBERS: Final = {cls: number for number, (cls, _) in CODECS.items()}

ENCODERS: Final = {cls: codec.encode for cls, codec in CODECS.values()}
"""By class, for the sender."""

Entry = tuple[int, int, Decode, Decode]
Table = list[Entry | None]
"""By number, for the receiver: least and most of the body's length, `decode`, `adopt`; None where a number may not
occur. Plain tuples, because they are unpacked for every frame."""

_REFUSED = NUMBERS[hello.Refused]
_GREETING = {number for number, _ in HELLO}
_LAST = max(CODECS)


def _entry(number: int) -> Entry:
    _, decode, adopt, least, most = CODECS[number][1]
    if number == _REFUSED:
        decode = adopt = _refused
    return (least, most, decode, adopt)


def _refused(view: memoryview, begin: int, end: int) -> NoReturn:
    refused = CODECS[_REFUSED][1].decode(view, begin, end)
    assert isinstance(refused, hello.Refused)
    raise hello.PeerRefused(refused)


def _table(numbers: set[int]) -> Table:
    return [_entry(number) if number in numbers else None for number in range(_LAST + 1)]


BEFORE_HELLO: Final = _table(_GREETING)
"""What may be received until the hello is done."""

AFTER_HELLO: Final = _table((set(CODECS) - _GREETING) | {_REFUSED})
"""What may be received from then on."""


def name_of(number: int) -> str:
    """What to call a message of that number in an error."""
    known = CODECS.get(number)
    return f"message type {number}" if known is None else known[0].__name__


def encode(message: Message) -> bytes:
    """The whole frame of a message as one piece."""
    pieces: list[Buffer] = []
    ENCODERS[message.__class__](message, pieces.append)
    return b"".join(pieces)
