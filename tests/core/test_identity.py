"""B11: who a storage node is, as the metadata repository judges it."""

from __future__ import annotations

import pytest

from varlog import errors
from varlog.core.identity import Recorded, admit, boot_of, generation_of, is_secret, new_secret, proof_of
from varlog.types import StorageNodeID

NODE = StorageNodeID(7)
FIRST, SECOND, THIRD = (new_secret(bytes([number]) * 32) for number in (1, 2, 3))
BOOT = boot_of(1, 5)


def proof(secret: str) -> str:
    return proof_of(NODE, secret)


def on_record(secret: str = FIRST, successor: str = "", boot: int = BOOT, generation: int = 1) -> Recorded:
    return Recorded(generation, proof(secret), proof(successor) if successor else "", boot)


def test_a_secret_is_made_of_the_bytes_handed_in() -> None:
    assert FIRST == "01" * 32
    assert is_secret(FIRST)
    assert is_secret(proof(FIRST))
    for wrong in ("", "01" * 31, "01" * 33, "0X" * 32, "AB" * 32, " " + "0" * 63):
        assert not is_secret(wrong)
    with pytest.raises(errors.InvalidArgument, match="32 bytes"):
        new_secret(b"short")


def test_a_proof_is_of_one_secret_of_one_node() -> None:
    assert proof(FIRST) == proof(FIRST)
    assert len({proof(FIRST), proof(SECOND), proof_of(StorageNodeID(8), FIRST), FIRST}) == 4


def test_the_number_of_a_start_grows_with_the_generation() -> None:
    assert boot_of(0, 3) == 3
    assert boot_of(1, 1) > boot_of(0, (1 << 32) - 1)
    assert [generation_of(boot) for boot in (3, boot_of(1, 9), boot_of(7, 1))] == [0, 1, 7]


def test_B11_a_node_that_shows_its_secret_is_admitted_and_its_next_one_recorded() -> None:
    recorded = admit(NODE, on_record(), BOOT + 1, FIRST, proof(SECOND))
    assert recorded == on_record(FIRST, SECOND, BOOT + 1)


def test_B11_the_next_secret_takes_the_place_of_the_one_before() -> None:
    recorded = admit(NODE, on_record(FIRST, SECOND), BOOT, SECOND, "")
    assert recorded == on_record(SECOND)
    with pytest.raises(errors.WrongIdentity, match="copy"):
        admit(NODE, recorded, BOOT + 1, FIRST, proof(THIRD))


def test_B11_a_node_that_stopped_after_it_changed_its_secret_changes_it_again() -> None:
    assert admit(NODE, on_record(FIRST, SECOND), BOOT + 1, SECOND, proof(THIRD)) == on_record(SECOND, THIRD, BOOT + 1)


def test_B11_a_node_that_stopped_before_it_changed_its_secret_names_another() -> None:
    assert admit(NODE, on_record(FIRST, SECOND), BOOT + 1, FIRST, proof(THIRD)) == on_record(FIRST, THIRD, BOOT + 1)


def test_B11_to_show_the_same_again_changes_nothing() -> None:
    for recorded in (on_record(), on_record(FIRST, SECOND)):
        assert admit(NODE, recorded, BOOT, FIRST, "") == recorded


def test_B11_a_node_without_a_secret_has_lost_its_disks() -> None:
    with pytest.raises(errors.WrongIdentity, match="hold no secret"):
        admit(NODE, on_record(), 1, "", "")


def test_B11_a_secret_of_another_node_proves_nothing() -> None:
    with pytest.raises(errors.WrongIdentity):
        admit(StorageNodeID(8), on_record(), BOOT, FIRST, "")


def test_B11_an_older_state_of_the_volumes_is_found_by_its_count_of_starts() -> None:
    with pytest.raises(errors.WrongIdentity, match="fewer starts"):
        admit(NODE, on_record(boot=BOOT), BOOT - 1, FIRST, "")


def test_B11_who_has_not_been_given_its_new_secret_yet_waits_for_it() -> None:
    """The manager stopped between having it recorded and giving it, or it is on its way."""
    renewed = on_record(SECOND, boot=boot_of(1, 5), generation=2)
    with pytest.raises(errors.Conflict, match="about to be given"):
        admit(NODE, renewed, boot_of(1, 6), FIRST, proof(THIRD))
    assert admit(NODE, renewed, boot_of(2, 6), SECOND, "").boot == boot_of(2, 6)


def test_B11_volumes_from_before_a_node_was_renewed_are_refused_once_it_has_been_seen() -> None:
    seen = on_record(SECOND, boot=boot_of(2, 1), generation=2)
    with pytest.raises(errors.WrongIdentity, match="copy"):
        admit(NODE, seen, boot_of(1, 6), FIRST, proof(THIRD))
