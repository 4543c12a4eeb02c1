"""docs/protocol.md says what the code does. `VARLOG_REWRITE_GOLDEN=1` makes its tables anew."""

from __future__ import annotations

import asyncio
import os
import re
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.core.sketch import stream
from tests.core.writer import Bench
from tests.daemon.small import CID, Small
from tests.wire.peers import CLUSTER, SECRET, Recorder, run
from tests.wire.reference import GENERATED, messages_named
from varlog import batch, errors, limits
from varlog.core.messages import GetMetadata, Message, Metadata, NotLeading
from varlog.manager import server as manager
from varlog.metarepo import server as metarepo
from varlog.sequencer import server as sequencer
from varlog.storagenode import server as storagenode
from varlog.types import Sequence, Term, WriterID
from varlog.wire import Connection, Identity, Role, Server, catalogue, hot
from varlog.wire.endpoint import parse_address
from varlog.wire.hello import PROTOCOL_VERSION, Accepting, Dialing

PAGE = Path(__file__).resolve().parents[2] / "docs" / "protocol.md"
REWRITE = os.environ.get("VARLOG_REWRITE_GOLDEN") == "1"
KEY = bytes(range(32))


def text() -> str:
    return PAGE.read_text()


def shown(name: str, wanted: bytes) -> bool:
    """Whether the page shows these bytes under that name."""
    pattern = re.compile(rf"^{name}: ([0-9a-f ]+)$", re.MULTILINE)
    if REWRITE:
        PAGE.write_text(pattern.sub(f"{name}: {wanted.hex()}", text()))
    (digits,) = pattern.findall(text())
    return bytes.fromhex(digits) == wanted


def python_block(containing: str) -> str:
    blocks = re.findall(r"^```python\n(.*?)^```$", text(), re.MULTILINE | re.DOTALL)
    (found,) = [str(code) for code in blocks if containing in code]
    return found


@pytest.mark.parametrize("marker", GENERATED)
def test_tables_are_the_code_s(marker: str) -> None:
    wanted = GENERATED[marker]()
    pattern = re.compile(rf"(<!-- {marker} -->\n)(.*?)(<!-- end -->)", re.DOTALL)
    if REWRITE:
        PAGE.write_text(pattern.sub(lambda found: f"{found[1]}\n{wanted}\n{found[3]}", text()))
    found = pattern.search(text())
    assert found is not None
    assert found[2].strip() == wanted.strip(), "run this test with VARLOG_REWRITE_GOLDEN=1"


def test_the_frame_is_the_one_shown() -> None:
    assert shown("frame", catalogue.encode(GetMetadata(1)))


def test_the_checksum_is_the_one_shown() -> None:
    names: dict[str, Callable[[bytes], int]] = {}
    exec(compile(python_block("0x82F63B78"), "protocol.md", "exec"), names)
    whole = catalogue.encode(GetMetadata(1))
    assert names["crc32c"](whole[4:]).to_bytes(4, "little") == whole[:4]
    assert names["crc32c"](b"123456789") == 0xE3069283, "the value by which everyone tells it"


def test_the_hello_is_the_one_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    nonces = iter([b"\x11" * 32, b"\x22" * 32])
    monkeypatch.setattr("secrets.token_bytes", lambda _: next(nonces))
    sides: list[Dialing | Accepting] = [
        Dialing(Identity(CLUSTER, Role.CLIENT), Role.STORAGE_NODE, SECRET),
        Accepting(Identity(CLUSTER, Role.STORAGE_NODE, 5), frozenset(Role), SECRET),
    ]
    said: list[bytes] = []
    message = sides[0].begin()
    for name, hears in zip(["hello", "welcome", "proof", "ready"], [1, 0, 1, 0], strict=True):
        assert message is not None
        said.append(catalogue.encode(message))
        assert shown(name, said[-1])
        message = sides[hears].receive(message)
    names: dict[str, bytes] = {}
    exec(compile(python_block("of_the_server"), "protocol.md", "exec"), names)
    assert shown("proof of the server", names["of_the_server"])
    assert shown("proof of the dialer", names["of_the_dialer"])
    assert said[1].endswith(names["of_the_server"])
    assert said[2].endswith(names["of_the_dialer"])


def test_the_batch_is_the_one_shown() -> None:
    made = batch.encode([b"hello", b"log"], writer_id=WriterID(1), sequence=Sequence(2), timestamp=3)
    assert shown("batch", made)
    offsets, entries = struct.pack("<3i4x", 0, 5, 8), b"hellolog"
    assert shown("its offsets, padded", offsets)
    assert shown("its entries", entries)
    assert made.endswith(offsets + entries)


def test_the_layout_of_a_batch_is_the_one_shown() -> None:
    section = text()[text().index("## The record batch") : text().index("## Requests and answers")]
    rows = re.findall(r"^\| (\d+) \| ([ui]\d+) \| (\w+) \|", section, re.MULTILINE)
    letters = {"u8": "B", "u16": "H", "u32": "I", "u64": "Q", "i64": "q"}
    layout = struct.Struct("<" + "".join(letters[kind] for _, kind, _ in rows))
    assert layout.format == batch.HEADER.format
    at = 0
    for offset, kind, _ in rows:
        assert int(offset) == at
        at += struct.calcsize(letters[kind])


def test_the_numbers_are_the_code_s() -> None:
    said = text()
    for number in (
        limits.HELLO_BYTES,
        limits.MAX_BATCH_BYTES,
        limits.MAX_ENTRY_BYTES,
        limits.MAX_BATCH_ENTRIES,
        limits.MAX_CONTROL_BYTES,
        hot.MAX_SCAN_REPLY,
        hot.MAX_COPIED_BYTES,
        limits.COPY_PART_BATCHES,
        limits.CHAIN_WRITE_BATCHES,
        limits.MAX_GRANTS,
        8 + limits.MAX_PING_BYTES,
        limits.DEDUP_SEQUENCES_PER_WRITER,
    ):
        assert re.search(rf"\b{number}\b", said), number
    assert f"`version` is {PROTOCOL_VERSION}." in said
    assert f"within {limits.HELLO_SECONDS:.0f} seconds" in said
    assert f"{limits.RESERVED_CONNECTIONS} of a server's {limits.MAX_CONNECTIONS} connections" in " ".join(said.split())
    assert f"{limits.CONNECTION_BUFFER_HIGH // limits.MIB} MiB queued" in said
    assert (
        f"less than {limits.STALL_BYTES // limits.MIB} MiB of it is taken in\n{limits.STALL_SECONDS:.0f} seconds"
        in said
    )


@pytest.mark.parametrize(
    ("server", "accepted"),
    [
        ("metadata repository", metarepo._ACCEPTED),
        ("storage node", storagenode._ACCEPTED),
        ("manager", manager._ACCEPTED),
        ("sequencer", sequencer._ACCEPTED),
    ],
)
def test_what_a_client_may_ask_for_is_what_is_taken(
    server: str, accepted: dict[Role, frozenset[type[Message]]]
) -> None:
    (row,) = re.findall(rf"^\| {server} \| (.+) \|$", text(), re.MULTILINE)
    assert messages_named(re.findall(r"`(\w+)`", row)) == accepted[Role.CLIENT]


@pytest.mark.parametrize(
    "error", [errors.DidNotHappen, errors.Sealed, errors.NotPrimary, errors.StaleEpoch, errors.UnknownLogStream]
)
def test_an_append_that_its_epoch_ended_is_made_again_with_new_metadata(error: type[errors.VarlogError]) -> None:
    bench = Bench(stream(1, epoch=2))
    (append,) = bench.append(1)
    bench.refused(append, error)
    assert bench.writer.wants_metadata
    bench.learn(stream(1, epoch=4))
    assert (bench.last[1].epoch, bench.last[1].batch) == (4, append.batch)
    (to_do,) = re.findall(rf"^\| [^|]*`{error.__name__}`[^|]* \| [^|]+ \| ([^|]+) \|$", text(), re.MULTILINE)
    assert to_do.startswith("metadata, then again"), to_do


def test_what_a_metadata_repository_says_unasked_is_told(tmp_path: Path) -> None:
    section = text()[text().index("## A client's conversations") : text().index("### Metadata\n")]
    named = set(re.findall(r"`(\w+)`", section))

    async def main() -> None:
        async with Small(tmp_path) as small:
            await small.start_vmr()
            caller = await small.call_vmr()
            await caller.ask(Metadata, GetMetadata)
            unasked = {type(said).__name__ for said in (*caller.standings, *caller.heard)}
            assert unasked == {"Leading"}
            assert unasked <= named

    run(main())
    assert {"NotLeading", *NotLeading.__struct_fields__} <= named


Ask = Callable[[str, int, int, bytes], list[object]]


def client_shown() -> Ask:
    names: dict[str, Ask] = {"__name__": "example"}  # type: ignore[dict-item]
    exec(compile(python_block("def get_metadata"), "protocol.md", "exec"), names)
    return names["get_metadata"]


def test_the_client_shown_works(tmp_path: Path) -> None:
    ask = client_shown()

    async def main() -> None:
        async with Small(tmp_path) as small:
            await small.start_vmr()
            host, port = parse_address(small.vmr.address)
            key = bytes.fromhex(small.secret_file.read_text())
            answer = await asyncio.to_thread(ask, host, port, CID, key)
            metadata = await small.metadata()
            assert answer == [1, metadata.version, [], [], [], "", metadata.next_lsid, []]
            with pytest.raises(AssertionError, match="does not know the secret"):
                await asyncio.to_thread(ask, host, port, CID, bytes(32))
            with pytest.raises(ConnectionError, match="refused with code 102: the dialer is of cluster 8"):
                await asyncio.to_thread(ask, host, port, 8, key)

    run(main())


class StandingBy(Recorder):
    """A metadata repository that does not lead, and says so as the real one does."""

    def __init__(self, leader: str) -> None:
        super().__init__()
        self._said = NotLeading(Term(4), leader)

    def on_connected(self, connection: Connection) -> None:
        super().on_connected(connection)
        connection.send(self._said)

    def answer(self, connection: Connection, _message: Message) -> None:
        connection.send(self._said)


@pytest.mark.parametrize(("leader", "told"), [("b:9092", "b:9092 does"), ("", "nobody does")])
def test_the_client_shown_says_that_another_one_leads(leader: str, told: str) -> None:
    ask = client_shown()

    async def main() -> None:
        identity = Identity(CLUSTER, Role.METADATA_REPOSITORY)
        server = await Server.start("127.0.0.1:0", identity, frozenset({Role.CLIENT}), SECRET, StandingBy(leader))
        host, port = parse_address(server.address)
        with pytest.raises(ConnectionError, match=f"does not lead; {told}"):
            await asyncio.to_thread(ask, host, port, CLUSTER, KEY)
        await server.close()

    run(main())
