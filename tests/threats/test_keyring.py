"""Attacks on the keys in a table's metadata. The numbers are those of the threat table in docs/security.md."""

from __future__ import annotations

import base64
from dataclasses import replace

import pytest

from pyiceberg_encryption import EncryptedKey, Secret
from pyiceberg_encryption.ciphers import AesGcm
from pyiceberg_encryption.errors import IntegrityError
from pyiceberg_encryption.keyring import KEK_LIFESPAN_DAYS_DEFAULT, KEY_TIMESTAMP, MAX_CLOCK_SKEW_MILLIS
from tests.support import DAY, MEMORY_PROPERTIES, RecordingClient, Table


@pytest.fixture
def table() -> Table:
    table = Table()
    table.commit()
    table.commit()
    table.client.calls.clear()
    return table


def assert_refused_for_reading(table: Table, keys: list[EncryptedKey], key_id: str, names: str) -> None:
    with pytest.raises(IntegrityError, match=names.replace("+", r"\+")):
        table.keyring(keys).open_manifest_list_key(key_id)


def assert_refused_for_writing(table: Table, keys: list[EncryptedKey], names: str) -> None:
    """And no KEK is minted that would cover it up."""
    keyring = table.keyring(keys)
    with pytest.raises(IntegrityError, match=names.replace("+", r"\+")):
        keyring.seal_manifest_list_key(keyring.new_key_metadata().with_file_length(50))
    assert keyring.added == ()
    assert ("wrap", "keyA") not in table.client.calls


def test_13_all_encryption_keys_stripped(table: Table) -> None:
    first = table.snapshot_key_ids[0]
    assert_refused_for_reading(table, [], first, f"'{first}' is missing")
    assert_refused_for_writing(table, [], f"'{first}' is missing")


def test_13_one_encryption_key_stripped(table: Table) -> None:
    for stripped in table.keys:
        left = [key for key in table.keys if key != stripped]
        assert_refused_for_writing(table, left, f"'{stripped.key_id}' is missing")
        read = table.snapshot_key_ids[0] if stripped in table.keks else stripped.key_id
        assert_refused_for_reading(table, left, read, f"'{stripped.key_id}' is missing")


def flipped(key: EncryptedKey) -> EncryptedKey:
    data = key.encrypted_key_metadata
    return replace(key, encrypted_key_metadata=data[:-1] + bytes([data[-1] ^ 1]))


def test_13_a_kek_altered(table: Table) -> None:
    kek, *lists = table.keys
    altered = [flipped(kek), *lists]
    assert_refused_for_reading(table, altered, lists[0].key_id, kek.key_id)
    assert_refused_for_writing(table, altered, kek.key_id)


def test_13_a_manifest_list_key_altered(table: Table) -> None:
    kek, first, second = table.keys
    assert_refused_for_reading(table, [kek, flipped(first), second], first.key_id, first.key_id)


def test_13_manifest_list_keys_that_name_no_kek(table: Table) -> None:
    kek, first, second = table.keys
    orphaned = [kek, replace(first, encrypted_by_id=None), second]
    assert_refused_for_reading(table, orphaned, first.key_id, first.key_id)
    assert_refused_for_writing(table, orphaned, first.key_id)


def with_timestamp(table: Table, timestamp: str | None) -> list[EncryptedKey]:
    kek, *lists = table.keys
    return [replace(kek, properties={} if timestamp is None else {KEY_TIMESTAMP: timestamp}), *lists]


def test_16_timestamp_edited_to_keep_an_old_kek_alive(table: Table) -> None:
    table.clock.seconds += (KEK_LIFESPAN_DAYS_DEFAULT + 1) * DAY
    rejuvenated = with_timestamp(table, str(int(table.clock.seconds * 1000) - 1000))
    assert_refused_for_writing(table, rejuvenated, table.keks[0].key_id)
    assert_refused_for_reading(table, rejuvenated, table.snapshot_key_ids[0], KEY_TIMESTAMP)


def test_16_timestamp_dated_back(table: Table) -> None:
    """So that the KEK looks too old, and a new one is made over the change."""
    for timestamp in ("1", str(int(table.clock.seconds * 1000) - 2 * KEK_LIFESPAN_DAYS_DEFAULT * DAY * 1000)):
        assert_refused_for_writing(table, with_timestamp(table, timestamp), table.keks[0].key_id)
        assert_refused_for_reading(table, with_timestamp(table, timestamp), table.snapshot_key_ids[0], KEY_TIMESTAMP)


def test_16_timestamp_dated_into_the_future(table: Table) -> None:
    future = int(table.clock.seconds * 1000) + 365 * DAY * 1000
    assert_refused_for_writing(table, with_timestamp(table, str(future)), table.keks[0].key_id)
    assert_refused_for_reading(table, with_timestamp(table, str(future)), table.snapshot_key_ids[0], KEY_TIMESTAMP)


def test_16_a_kek_whose_true_time_lies_in_the_future(table: Table) -> None:
    """It would live too long."""
    table.clock.seconds -= MAX_CLOCK_SKEW_MILLIS / 1000 + 1
    from_the_future = table.keks[0]
    table.commit()
    assert table.keys[-1].encrypted_by_id != from_the_future.key_id


def test_16_a_writer_whose_clock_is_a_little_ahead_is_not_an_attack(table: Table) -> None:
    table.clock.seconds -= MAX_CLOCK_SKEW_MILLIS / 1000
    table.commit()
    assert len(table.keks) == 1


@pytest.mark.parametrize("timestamp", [None, "", "-1", "+1", " 1", "1.5", "soon", "9" * 16, "\u0661"])
def test_16_timestamp_that_is_none(table: Table, timestamp: str | None) -> None:
    kek_id = table.keks[0].key_id
    assert_refused_for_writing(table, with_timestamp(table, timestamp), kek_id)
    assert_refused_for_reading(table, with_timestamp(table, timestamp), table.snapshot_key_ids[0], kek_id)


ATTACKERS_PROPERTIES = {**MEMORY_PROPERTIES, "kms.memory.key.attacker": base64.b64encode(b"a" * 16).decode()}


def planted(table: Table, master_key_id: str, claims: str) -> list[EncryptedKey]:
    """A KEK that the attacker made and wrapped, with a manifest-list key under it, as good as a writer's own."""
    theirs = Table(RecordingClient(ATTACKERS_PROPERTIES), master_key_id=master_key_id)
    theirs.clock.seconds = table.clock.seconds + 1
    theirs.commit()
    return [replace(key, encrypted_by_id=claims) if key in theirs.keks else key for key in theirs.keys]


def test_18_a_kek_wrapped_by_the_attackers_own_key(table: Table) -> None:
    """The attacker has a key in the same KMS, and the victim may use it."""
    table.client = RecordingClient(ATTACKERS_PROPERTIES)
    kek, manifest_list = planted(table, "attacker", claims="attacker")
    keys = [*table.keys, kek, manifest_list]
    assert_refused_for_reading(table, keys, manifest_list.key_id, "'attacker'")
    keyring = table.keyring(keys)
    keyring.seal_manifest_list_key(keyring.new_key_metadata().with_file_length(50))
    assert keyring.added[0].encrypted_by_id == table.keks[0].key_id  # the planted one is left alone
    assert {key_id for _, key_id in table.client.calls} == {"keyA"}


def test_18_a_snapshot_sealed_by_a_planted_kek(table: Table) -> None:
    table.client = RecordingClient(ATTACKERS_PROPERTIES)
    kek, manifest_list = planted(table, "attacker", claims="attacker")
    table.snapshot_key_ids.append(manifest_list.key_id)
    assert_refused_for_writing(table, [*table.keys, kek, manifest_list], "'attacker'")
    assert table.client.calls == []


def test_18_a_kek_that_claims_to_be_wrapped_by_the_master_key(table: Table) -> None:
    table.client = RecordingClient(ATTACKERS_PROPERTIES)
    kek, manifest_list = planted(table, "attacker", claims="keyA")
    keys = [*table.keys, kek, manifest_list]
    assert_refused_for_reading(table, keys, manifest_list.key_id, kek.key_id)
    assert_refused_for_writing(table, keys, kek.key_id)
    assert {key_id for _, key_id in table.client.calls} == {"keyA"}


def test_18_a_kek_wrapped_by_another_master_key_of_the_same_kms(table: Table) -> None:
    kek, manifest_list = planted(table, "keyB", claims="keyA")
    assert_refused_for_writing(table, [*table.keys, kek, manifest_list], kek.key_id)


def test_18_a_kek_left_in_the_clear(table: Table) -> None:
    """Neither the bare KEK nor one sealed without a master key is taken."""
    kek = b"k" * 16
    timestamp = {KEY_TIMESTAMP: str(int(table.clock.seconds * 1000))}
    for blob in (kek, AesGcm(Secret(kek)).seal(kek)):
        entry = EncryptedKey("planted", blob, "keyA", timestamp)
        proof = EncryptedKey("proof", AesGcm(Secret(kek)).seal(b"", timestamp[KEY_TIMESTAMP].encode()), "planted")
        assert_refused_for_writing(table, [entry, proof, *table.keys], "planted")
