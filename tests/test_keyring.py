from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyiceberg_encryption import EncryptedKey, KekCache, KeyManagementClient, Keyring, Secret, StandardKeyMetadata
from pyiceberg_encryption.ciphers import AesGcm
from pyiceberg_encryption.errors import ConfigurationError, EncryptionError, FormatError, IntegrityError
from pyiceberg_encryption.keyring import KEY_TIMESTAMP
from pyiceberg_encryption.kms import GuardedClient, KeyGenerationResult
from tests.support import DAY, MEMORY_PROPERTIES, NO_PAUSE, RecordingClient, Table


@pytest.mark.parametrize("data_key_length", [16, 24, 32])
def test_what_is_sealed_is_opened_by_another_process(data_key_length: int) -> None:
    table = Table(data_key_length=data_key_length)
    sealed = [table.commit() for _ in range(3)]
    assert [table.keyring().open_manifest_list_key(key_id) for key_id, _ in sealed] == [key for _, key in sealed]
    assert {len(key.encryption_key) for _, key in sealed} == {data_key_length}


def test_entries_look_as_java_makes_them() -> None:
    table = Table()
    table.commit()
    kek, manifest_list = table.keys
    assert kek.encrypted_by_id == "keyA"
    assert kek.properties == {KEY_TIMESTAMP: "1800000000000"}
    assert manifest_list.encrypted_by_id == kek.key_id
    assert manifest_list.properties == {}
    assert len(kek.key_id) == len(manifest_list.key_id) == 24  # base64 of 16 bytes
    assert kek.key_id != manifest_list.key_id


def test_a_kek_is_used_again_until_it_is_too_old() -> None:
    table = Table()
    first, _ = table.commit()
    for _ in range(3):
        table.clock.seconds += 200 * DAY
        table.commit()
    assert len(table.keks) == 1
    table.clock.seconds += 129 * DAY
    table.commit()
    assert len(table.keks) == 1
    table.clock.seconds += DAY  # 730 days
    table.commit()
    assert len(table.keks) == 2
    table.commit()
    assert len(table.keks) == 2
    table.keyring().open_manifest_list_key(first)


def test_the_kms_is_called_once_for_many_keys() -> None:
    table = Table()
    ids = [table.commit()[0] for _ in range(5)]
    table.client.calls.clear()
    keyring = table.keyring()
    for key_id in ids:
        keyring.open_manifest_list_key(key_id)
    keyring.seal_manifest_list_key(keyring.new_key_metadata().with_file_length(50))
    assert table.client.calls == [("unwrap", "keyA")]


def test_a_new_kek_costs_one_call() -> None:
    table = Table()
    keyring = table.keyring()
    for _ in range(3):
        keyring.seal_manifest_list_key(keyring.new_key_metadata().with_file_length(50))
    assert len(keyring.added) == 4
    assert table.client.calls == [("wrap", "keyA")]


def with_two_keks() -> Table:
    table = Table()
    table.commit()
    keys, table.keys, snapshots = table.keys, [], table.snapshot_key_ids
    table.snapshot_key_ids = []
    table.clock.seconds += DAY
    table.commit()
    table.keys += keys
    table.snapshot_key_ids += snapshots
    return table


def test_goes_on_whichever_kek_another_writer_took() -> None:
    """Java takes the first that is not expired, iceberg-rust the newest."""
    table = with_two_keks()
    newer, older = table.keks
    for kek in (newer, older):
        keyring = table.keyring([key for key in table.keys if kek.key_id in (key.key_id, key.encrypted_by_id)])
        keyring._snapshot_key_ids = ()
        key_id = keyring.seal_manifest_list_key(keyring.new_key_metadata().with_file_length(7))
        assert {key.encrypted_by_id for key in keyring.added} == {kek.key_id}
        table.keys += keyring.added
        table.snapshot_key_ids.append(key_id)
    keyring = table.keyring()
    for key_id in table.snapshot_key_ids:
        assert keyring.open_manifest_list_key(key_id)


def test_takes_the_newest_kek() -> None:
    table = with_two_keks()
    newer = table.keks[0]
    table.keys.reverse()
    table.commit()
    assert table.keys[-1].encrypted_by_id == newer.key_id


def test_a_kek_that_no_key_vouches_for_is_left_alone() -> None:
    table = Table()
    table.commit()
    table.keys = table.keks
    table.snapshot_key_ids = []
    table.commit()
    assert len(table.keks) == 2


def test_a_kek_shorter_than_the_data_keys_is_not_used_for_new_ones() -> None:
    table = Table(data_key_length=16)
    old, _ = table.commit()
    table.data_key_length = 32
    table.commit()
    assert len(table.keks) == 2
    table.keyring().open_manifest_list_key(old)


def test_a_proof_of_a_later_version_is_a_proof() -> None:
    """That it opens is enough; what it holds matters to those who read that snapshot."""
    table = Table()
    table.commit()
    kek_entry = table.keks[0]
    kek = Secret(table.client.unwrap_key(kek_entry.encrypted_key_metadata, "keyA"))
    later = AesGcm(kek).seal(b"\x02 of a later version", kek_entry.properties[KEY_TIMESTAMP].encode())
    table.keys = [kek_entry, EncryptedKey("later", later, kek_entry.key_id)]
    table.snapshot_key_ids = ["later"]
    table.commit()
    assert len(table.keks) == 1
    with pytest.raises(FormatError, match="version"):
        table.keyring().open_manifest_list_key("later")


def test_a_writer_whose_clock_was_ahead_does_not_stop_the_others() -> None:
    table = Table()
    table.clock.seconds += 3650 * DAY
    key_id, sealed = table.commit()
    table.clock.seconds -= 3650 * DAY
    table.commit()
    assert len(table.keks) == 2
    table.commit()
    assert len(table.keks) == 2
    assert table.keyring().open_manifest_list_key(key_id) == sealed


class GeneratingClient(RecordingClient):
    length = 32

    def supports_key_generation(self) -> bool:
        return True

    def generate_key(self, wrapping_key_id: str) -> KeyGenerationResult:
        key = b"g" * self.length
        return KeyGenerationResult(key, self.wrap_key(key, wrapping_key_id))


def test_a_service_that_generates_keys_makes_the_kek() -> None:
    table = Table(GeneratingClient())
    key_id, sealed = table.commit()
    assert table.client.unwrap_key(table.keks[0].encrypted_key_metadata, "keyA") == b"g" * 32
    assert table.keyring().open_manifest_list_key(key_id) == sealed


@pytest.mark.parametrize("length", [16, 24, 31, 48])
def test_a_generated_key_that_is_too_short_or_none_is_refused(length: int) -> None:
    client = GeneratingClient()
    client.length = length
    with pytest.raises(ConfigurationError, match=r"kms\.data-key-spec"):
        Table(client, data_key_length=32).commit()


def test_only_finished_files_are_sealed() -> None:
    keyring = Table().keyring()
    with pytest.raises(FormatError, match="length of the file"):
        keyring.seal_manifest_list_key(keyring.new_key_metadata())
    assert keyring.added == ()


def test_a_failed_commit_adds_no_keys() -> None:
    table = Table()

    def fail() -> None:
        raise RuntimeError

    table.client.fail = fail
    keyring = table.keyring()
    with pytest.raises(EncryptionError):
        keyring.seal_manifest_list_key(keyring.new_key_metadata().with_file_length(5))
    assert keyring.added == ()


@pytest.mark.parametrize(
    "options",
    [{"master_key_id": ""}, {"data_key_length": 15}, {"kek_lifespan_days": 0}, {"kek_lifespan_days": float("nan")}],
    ids=lambda options: next(iter(options)),
)
def test_settings_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    kms = GuardedClient(RecordingClient())
    with pytest.raises(ConfigurationError):
        Keyring([], **{"master_key_id": "keyA", "kek_cache": KekCache(kms), **options})


def test_the_lifespan_of_keks_can_be_set() -> None:
    table = Table()
    table.commit()
    table.clock.seconds += 2 * DAY
    kms = GuardedClient(table.client, NO_PAUSE)
    cache = KekCache(kms)
    for days, added in [(3, 1), (1, 2)]:
        keyring = Keyring(table.keys, master_key_id="keyA", kek_cache=cache, kek_lifespan_days=days, clock=table.clock)
        keyring.seal_manifest_list_key(keyring.new_key_metadata().with_file_length(5))
        assert len(keyring.added) == added


def test_json_and_back() -> None:
    table = Table()
    table.commit()
    text = json.dumps([key.to_json() for key in table.keys])
    assert [EncryptedKey.from_json(entry) for entry in json.loads(text)] == table.keys
    assert EncryptedKey.from_json({"key-id": "x", "encrypted-key-metadata": ""}).to_json() == {
        "key-id": "x",
        "encrypted-key-metadata": "",
    }


@pytest.mark.parametrize(
    "entry",
    [
        None,
        [],
        {},
        {"key-id": ""},
        {"key-id": 7, "encrypted-key-metadata": ""},
        {"key-id": "x"},
        {"key-id": "x", "encrypted-key-metadata": "not base64!"},
        {"key-id": "x", "encrypted-key-metadata": 7},
        {"key-id": "x", "encrypted-key-metadata": "", "encrypted-by-id": 7},
        {"key-id": "x", "encrypted-key-metadata": "", "properties": []},
        {"key-id": "x", "encrypted-key-metadata": "", "properties": {"a": 1}},
    ],
)
def test_a_malformed_entry_is_refused(entry: object) -> None:
    with pytest.raises(FormatError):
        EncryptedKey.from_json(entry)


def test_two_entries_of_one_id_are_refused() -> None:
    table = Table()
    table.commit()
    with pytest.raises(IntegrityError, match="two entries"):
        table.keyring([*table.keys, table.keys[0]])


def test_a_kek_is_no_manifest_list_key() -> None:
    table = Table()
    table.commit()
    with pytest.raises(IntegrityError, match="is a KEK"):
        table.keyring().open_manifest_list_key(table.keks[0].key_id)


def test_a_manifest_list_key_is_no_kek() -> None:
    table = Table()
    key_id, _ = table.commit()
    planted = EncryptedKey("planted", b"x" * 60, key_id)
    with pytest.raises(IntegrityError, match="master key of this table"):
        table.keyring([*table.keys, planted]).open_manifest_list_key("planted")


class OddKekClient(KeyManagementClient):
    def wrap_key(self, key: bytes, wrapping_key_id: str) -> bytes:
        return key

    def unwrap_key(self, wrapped_key: bytes, wrapping_key_id: str) -> bytes:
        return wrapped_key[:15]


def test_an_unwrapped_kek_of_an_odd_length_is_refused() -> None:
    kms = GuardedClient(OddKekClient({}))
    first = Keyring([], master_key_id="m", kek_cache=KekCache(kms))
    key_id = first.seal_manifest_list_key(first.new_key_metadata().with_file_length(5))
    second = Keyring(first.added, master_key_id="m", kek_cache=KekCache(kms))
    with pytest.raises(IntegrityError, match="15 bytes"):
        second.open_manifest_list_key(key_id)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=8,
)
entries = json_values | st.fixed_dictionaries(
    {"key-id": st.sampled_from(["a", "b", "c"]) | json_values},
    optional={
        "encrypted-key-metadata": st.sampled_from(["", "AAAA", "A" * 80]) | json_values,
        "encrypted-by-id": st.sampled_from(["a", "b", "keyA"]) | json_values,
        "properties": st.fixed_dictionaries({KEY_TIMESTAMP: st.sampled_from(["0", "1799999999999", "x", "²"])})
        | json_values,
    },
)


@given(st.lists(entries, max_size=4))
def test_hostile_entries_raise_nothing_but_this_packages_errors(hostile: list[Any]) -> None:
    kms = GuardedClient(RecordingClient(MEMORY_PROPERTIES), NO_PAUSE)
    try:
        keyring = Keyring(
            [EncryptedKey.from_json(entry) for entry in hostile],
            master_key_id="keyA",
            kek_cache=KekCache(kms),
            clock=lambda: 1_800_000_000.0,
        )
        keyring.seal_manifest_list_key(StandardKeyMetadata(Secret(bytes(16)), b"", 40))
        keyring.open_manifest_list_key("a")
    except EncryptionError:
        pass
