"""Fingerprints of real files, with damage planted in them; and who gets one."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.core.replica import Replica as CoreReplica
from tests.daemon.small import cluster, run, until
from tests.storage.owner import IDENTITY, Owner, options
from tests.storagenode.gated import GatedFileSystem
from varlog import errors, limits
from varlog.core.messages import Fingerprint, GetFingerprint, Message
from varlog.storage.files import FileSystem, OSFileSystem
from varlog.storage.grouped import AnyLog
from varlog.storagenode.fingerprinting import Fingerprinting
from varlog.storagenode.replicas import Replica
from varlog.types import GLSN, LogStreamID, StorageNodeID

LSID = IDENTITY.lsid
SEGMENT_BYTES = 4096


class Shelf:
    """A replica of some batches in several segments, and what was answered of it."""

    def __init__(
        self, path: Path, fs: FileSystem | None = None, sequences: tuple[int, ...] = tuple(range(1, 41))
    ) -> None:
        self.path = path
        owner = Owner(fs or OSFileSystem(), options(SEGMENT_BYTES), path=str(path))
        owner.unseal()
        for sequence in sequences:
            owner.skip_to(sequence - 1)
            owner.store(3, 40)
        self.owner = owner
        executor = CoreReplica().executor
        executor.global_hwm = owner.model.hwm
        self.replica = Replica("", owner.storage, executor)
        self.answers: list[Fingerprint] = []
        self.released: list[errors.Corrupt | None] = []
        self.fingerprinting = Fingerprinting(asyncio.get_running_loop(), StorageNodeID(2), self._send, self._release)

    def _send(self, _address: str, message: Message) -> None:
        assert isinstance(message, Fingerprint)
        self.answers.append(message)

    def _release(self, storage: AnyLog, damage: errors.Corrupt | None) -> None:
        assert storage is self.owner.storage
        self.released.append(damage)

    def ask(self, begin: int = 1, end: int = 0) -> None:
        asked = GetFingerprint(7, LSID, GLSN(begin), GLSN(end or self.owner.model.hwm + 1))
        self.fingerprinting.answer("client", asked, self.replica)

    async def answer(self, begin: int = 1, end: int = 0) -> Fingerprint:
        self.ask(begin, end)
        await until(lambda: bool(self.answers))
        return self.answers.pop()

    async def close(self) -> None:
        await self.fingerprinting.stop()
        self.owner.storage.close()

    def segments(self) -> list[Path]:
        return sorted(self.path.glob("*.seg"))


def flip(file: Path, content: bytes) -> None:
    """Flip a bit of these bytes in a file."""
    data = bytearray(file.read_bytes())
    data[data.index(content)] ^= 1
    with file.open("r+b") as opened:
        opened.write(data)


def essence(answer: Fingerprint) -> tuple[Any, ...]:
    return (answer.code, answer.content, answer.chain, answer.llsn_end, answer.spans, answer.next_glsn)


def test_equal_replicas_give_equal_fingerprints_whatever_their_segments(tmp_path: Path) -> None:
    async def main() -> None:
        one, other = Shelf(tmp_path / "a"), Shelf(tmp_path / "b")
        other.owner.storage.close()
        other.owner.reopen()
        other.replica = other.replica._replace(storage=other.owner.storage)
        assert len(one.segments()) > 2
        first, second = await one.answer(), await other.answer()
        assert (first.code, first.batches, first.commits, first.llsn_end) == (0, 40, 40, 121)
        assert essence(first) == essence(second)
        assert essence(await one.answer(10, 20)) == essence(await other.answer(10, 20))
        assert essence(await one.answer(10, 20)) != essence(await other.answer(10, 21))
        assert one.released == [None, None, None]
        await one.close()
        await other.close()

    run(main())


def test_rule15_a_flipped_bit_is_corrupt_and_what_is_sound_still_has_a_fingerprint(tmp_path: Path) -> None:
    async def main() -> None:
        shelf = Shelf(tmp_path / "a")
        before = await shelf.answer(1, 10)
        flip(shelf.segments()[1], b":15:")
        damaged = await shelf.answer()
        assert (damaged.code, damaged.content) == (errors.Corrupt.code, b"")
        assert "damaged" in damaged.detail
        assert await shelf.answer(1, 10) == before
        assert [type(damage) for damage in shelf.released] == [type(None), errors.Corrupt, type(None)]
        await shelf.close()

    run(main())


@pytest.mark.parametrize(
    "planted",
    [
        (*range(1, 20), 21, 20, *range(22, 41)),
        (*range(1, 20), *range(21, 41)),
        tuple(range(1, 30)),
    ],
    ids=["a swapped pair", "a missing entry", "a short replica"],
)
def test_what_is_whole_and_wrong_differs(tmp_path: Path, planted: tuple[int, ...]) -> None:
    async def main() -> None:
        right, wrong = Shelf(tmp_path / "a"), Shelf(tmp_path / "b", sequences=planted)
        end = min(right.owner.model.hwm, wrong.owner.model.hwm) + 1
        same = essence(await right.answer(1, 58)) == essence(await wrong.answer(1, 58))
        assert same, "up to where they are equal"
        differs = essence(await right.answer(1, end)) != essence(await wrong.answer(1, end))
        assert differs == (planted != tuple(range(1, 30)))
        assert (await wrong.answer()).llsn_end == 3 * len(planted) + 1
        await right.close()
        await wrong.close()

    run(main())


def test_what_the_replica_does_not_know_to_be_complete_is_not_yet(tmp_path: Path) -> None:
    """Rule 10."""

    async def main() -> None:
        shelf = Shelf(tmp_path / "a")
        shelf.replica.executor.global_hwm = GLSN(50)
        assert (await shelf.answer(1, 51)).code == 0
        assert (await shelf.answer(1, 52)).code == errors.NotYet.code
        assert (await shelf.answer(5, 5)).code == errors.InvalidArgument.code
        assert (await shelf.answer(-1, 5)).code == errors.InvalidArgument.code
        await shelf.close()

    run(main())


def test_what_waits_is_bounded_and_stopping_makes_no_more(tmp_path: Path) -> None:
    async def main() -> None:
        fs = GatedFileSystem()
        shelf = Shelf(tmp_path / "a", fs)
        fs.reads.close()
        for _ in range(limits.MAX_FINGERPRINTS + 2):
            shelf.ask()
        assert [answer.code for answer in shelf.answers] == [errors.Busy.code] * 2
        await until(lambda: fs.reads.waiting == 1)
        assert shelf.fingerprinting.is_busy(shelf.owner.storage)
        stopping = asyncio.ensure_future(shelf.fingerprinting.stop())
        done, _ = await asyncio.wait({stopping}, timeout=0)
        assert not done
        fs.reads.open()
        await stopping
        assert [answer.code for answer in shelf.answers[2:]] == [0] + [errors.Busy.code] * (limits.MAX_FINGERPRINTS - 1)
        assert not shelf.fingerprinting.is_busy(shelf.owner.storage)
        shelf.owner.storage.close()

    run(main())


def test_a_client_compares_the_replicas_of_a_running_cluster(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path) as small:
            for sequence in range(1, 6):
                assert (await small.append(b"one", b"two", sequence=sequence)).code == 0
            await until(lambda: all(node.replicas.get(LogStreamID(1)) for node in small.nodes.values()))
            answers = []
            for number in (1, 2, 3):
                client = await small.call_node(number)
                answer = await _complete(client, 11)
                assert (answer.snid, answer.code, answer.batches) == (number, 0, 5)
                answers.append(essence(answer))
                unknown = await client.ask(Fingerprint, lambda request: fingerprint_of(request, 2, lsid=99))
                assert unknown.code == errors.UnknownLogStream.code
            assert len(set(answers)) == 1

    run(main())


def test_M8_damage_that_a_fingerprint_meets_makes_the_replica_one_in_need_of_repair(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path, manager=True) as small:
            assert (await small.append(b"some content")).code == 0
            for manager in list(small.managers):
                await small.stop_manager(manager)
            client = await small.call_node(2)
            await _complete(client, 2)
            segment = segment_of(small.volumes(2)[0])
            flip(segment, b"some content")
            damaged = await client.ask(Fingerprint, lambda request: fingerprint_of(request, 2))
            assert damaged.code == errors.Corrupt.code
            (replica,) = (await small.info(2)).replicas
            assert (replica.healthy, replica.fault) == (False, errors.Corrupt.code)
            assert (segment.parent / "condemned").exists()

    run(main())


def segment_of(volume: str) -> Path:
    """The one segment of the one replica there."""
    (segment,) = Path(volume).glob("cid=*/snid=*/lsid=*/*.seg")
    return segment


def fingerprint_of(request: int, end: int, lsid: int = 1) -> GetFingerprint:
    return GetFingerprint(request, LogStreamID(lsid), GLSN(1), GLSN(end))


async def _complete(client: Any, end: int) -> Fingerprint:
    """Ask until the replica has heard of everything that is committed."""
    while True:
        answer: Fingerprint = await client.ask(Fingerprint, lambda request: fingerprint_of(request, end))
        if answer.code != errors.NotYet.code:
            return answer
