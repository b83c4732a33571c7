"""Attacks on the metadata of encrypted tables. The numbers are those of the threat table in docs/security.md.

Each change is made in place first, where the name of the file gives it away. Then it is made as if by another engine,
whose files have names that prove nothing: a warning says so, and the other checks have to do.
"""

from __future__ import annotations

import base64
import contextlib
import sys
from typing import TYPE_CHECKING, Any

import pytest

from pyiceberg_encryption import KekCache, Keyring, StandardKeyMetadata
from pyiceberg_encryption.catalogs.static import StaticTable
from pyiceberg_encryption.errors import ConfigurationError, IntegrityError
from pyiceberg_encryption.kms import load_kms_client
from pyiceberg_encryption.table.policy import UnverifiedMetadataWarning
from tests.support import MEMORY_PROPERTIES
from tests.table_support import (
    NAME,
    OTHER_ROWS,
    ROWS,
    Lake,
    change_in_place,
    ids,
    manifests,
    metadata_of,
    path_of,
    plain_file,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyiceberg_encryption.table.table import Table

    Change = Callable[[dict[str, Any]], object]

ATTACKERS_KEY = {"kms.memory.key.attacker": base64.b64encode(b"a" * 16).decode()}
KEY_ID = {"encryption.key-id": "keyA"}
PIN = {"encryption.expected-key-id.db.t": "keyA"}


def strip_key_id(metadata: dict[str, Any]) -> None:
    del metadata["properties"]["encryption.key-id"]


def strip_keys(metadata: dict[str, Any]) -> None:
    metadata["encryption-keys"] = []


def strip_all(metadata: dict[str, Any]) -> None:
    strip_key_id(metadata)
    del metadata["encryption-keys"]
    for snapshot in metadata["snapshots"]:
        del snapshot["key-id"]


def set_format_version_2(metadata: dict[str, Any]) -> None:
    metadata["format-version"] = 2


def change_key_id(metadata: dict[str, Any]) -> None:
    metadata["properties"]["encryption.key-id"] = "keyB"


def shorten_keys(metadata: dict[str, Any]) -> None:
    metadata["properties"]["encryption.data-key-length"] = "16"


def alter_keys(metadata: dict[str, Any]) -> None:
    for key in metadata["encryption-keys"]:
        sealed = bytearray(base64.b64decode(key["encrypted-key-metadata"]))
        sealed[-1] ^= 1
        key["encrypted-key-metadata"] = base64.b64encode(sealed).decode()


def plant_kek(metadata: dict[str, Any], master_key_id: str = "attacker", claims: str | None = None) -> None:
    """In place of the table's own, with a key for each manifest list sealed by it."""
    cache = KekCache(load_kms_client({"encryption.kms-type": "memory", **MEMORY_PROPERTIES, **ATTACKERS_KEY}))
    keyring = Keyring([], master_key_id=master_key_id, kek_cache=cache)
    for snapshot in metadata["snapshots"]:
        key = StandardKeyMetadata.generate(16).with_file_length(1000)
        snapshot["key-id"] = keyring.seal_manifest_list_key(key)
    metadata["encryption-keys"] = [key.to_json() for key in keyring.added]
    if claims:
        metadata["encryption-keys"][0]["encrypted-by-id"] = claims


def plant_kek_that_claims_to_be_ours(metadata: dict[str, Any]) -> None:
    plant_kek(metadata, claims="keyA")


def a_property(transaction: Any) -> None:
    transaction.set_properties({"a": "b"})


def append_a_space(metadata: dict[str, Any]) -> None:
    metadata["location"] += " "


@contextlib.contextmanager
def refused(lake: Lake, match: str | None = None) -> Iterator[None]:
    """And nothing was added."""
    before = lake.files()
    with pytest.raises(IntegrityError, match=match):
        yield
    assert lake.files() == before


def assert_refused_by_name(lake: Lake, table: Table) -> None:
    changed = "is not the metadata that was committed under this name"
    catalog = lake.catalog()
    calls: list[Callable[[], Any]] = [
        lambda: catalog.load_table(NAME),
        lambda: catalog.table_exists(NAME),
        lambda: catalog.create_table(NAME, ROWS.schema, properties=KEY_ID),
        lambda: catalog.create_table_if_not_exists(NAME, ROWS.schema, properties=KEY_ID),
        lambda: catalog.register_table("db.copy", table.metadata_location),
        lambda: catalog.purge_table(NAME),
        lambda: StaticTable.from_metadata(table.metadata_location, {"encryption.key-id": "keyA"}),
        lambda: table.refresh(),
        lambda: commit(table, a_property),
    ]
    for call in calls:
        with refused(lake, changed):
            call()
    with pytest.raises(IntegrityError, match=changed):
        table.append(ROWS)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(change, id=f"{number}-{change.__name__}")
        for number, change in (
            (12, strip_key_id),
            (12, strip_all),
            (13, strip_keys),
            (13, alter_keys),
            (14, set_format_version_2),
            (15, change_key_id),
            (15, shorten_keys),
            (18, plant_kek),
            (17, append_a_space),
        )
    ],
)
def test_12_to_18_metadata_changed_in_place(lake: Lake, change: Change) -> None:
    table = lake.create(properties={"encryption.data-key-length": "24"})
    change_in_place(table, change)
    assert_refused_by_name(lake, table)


def test_17_metadata_rolled_back(lake: Lake) -> None:
    table = lake.create()
    older = metadata_of(table)["metadata-log"][-1]["metadata-file"]
    path_of(table.metadata_location).write_bytes(path_of(older).read_bytes())
    assert_refused_by_name(lake, table)


def test_17_metadata_of_another_table(lake: Lake) -> None:
    table, other = lake.create(), lake.create("db.other")
    path_of(table.metadata_location).write_bytes(path_of(other.metadata_location).read_bytes())
    assert_refused_by_name(lake, table)


def load_unverified(lake: Lake, **more: str) -> Table:
    with pytest.warns(UnverifiedMetadataWarning, match="leaves no proof of its content"):
        return lake.load(**more)


def test_12_key_id_stripped(lake: Lake) -> None:
    table = lake.create()
    for keys_too in (False, True):

        def strip(metadata: dict[str, Any], keys_too: bool = keys_too) -> None:
            strip_key_id(metadata)
            if keys_too:
                strip_keys(metadata)

        lake.commit_as_another_engine(strip, table)
        with refused(lake, "has encryption keys, but its encryption.key-id is gone"):
            lake.load()
        with refused(lake, "encryption.key-id is gone"):
            commit(table, a_property)


@pytest.mark.parametrize("policy", [{"encryption.required": "true"}, PIN, {"encryption.expected-key-id": "keyA"}])
def test_12_all_of_the_encryption_stripped(lake: Lake, policy: dict[str, str]) -> None:
    """Only who was told knows that the table was encrypted."""
    table = lake.create()
    location = lake.commit_as_another_engine(strip_all, table)
    catalog = lake.catalog(**policy)
    for call in (
        lambda: catalog.load_table(NAME),
        lambda: catalog.table_exists(NAME),
        lambda: catalog.purge_table(NAME),
        lambda: catalog.register_table("db.t", location),
        lambda: catalog.create_table("db.t", ROWS.schema),
    ):
        with refused(lake, "has no encryption.key-id, and no table without one can be (used|created) in this catalog"):
            call()


def test_12_a_table_stripped_while_it_is_in_use(lake: Lake) -> None:
    """What was loaded as an encrypted table does not become a plain one: that would write in plaintext."""
    table = lake.create()
    lake.commit_as_another_engine(strip_all, table)
    for call in (lambda: table.append(ROWS), lambda: table.refresh()):
        with pytest.raises(IntegrityError, match=r"key-id is gone|by another key when it was loaded"):
            call()
    assert not [path for path in lake.files(".parquet") if path.read_bytes()[:4] == b"PAR1"]


@pytest.mark.parametrize("change", [strip_keys, alter_keys, plant_kek, plant_kek_that_claims_to_be_ours])
def test_13_and_18_keys_stripped_altered_or_planted(lake: Lake, change: Change) -> None:
    """Nor is a new key minted over it, not even by what needs none of the old ones."""
    lake.commit_as_another_engine(change, lake.create())
    with pytest.warns(UnverifiedMetadataWarning):
        table = lake.load(**ATTACKERS_KEY)
    location = table.metadata_location
    for call in (
        lambda: table.scan().to_arrow(),
        lambda: table.inspect.files(),
        lambda: table.append(ROWS),
        lambda: table.append(ROWS, branch="fresh"),
        lambda: table.overwrite(ROWS),
    ):
        with pytest.raises(IntegrityError, match=r"(Key|KEK) '"):
            call()
    assert table.refresh().metadata_location == location


def test_14_format_version_2(lake: Lake) -> None:
    """In which nothing is encrypted."""
    table = lake.create()
    lake.commit_as_another_engine(set_format_version_2, table)
    with refused(lake, "format version 2, which knows no encryption"):
        lake.load()
    with refused(lake, "format version 2, which knows no encryption"):
        commit(table, a_property)

    def without_key_id(metadata: dict[str, Any]) -> None:
        set_format_version_2(metadata)
        strip_key_id(metadata)

    lake.commit_as_another_engine(without_key_id, table)
    with refused(lake, "encryption.key-id is gone"):
        lake.load()


@pytest.mark.parametrize("version", ["1", "2"])
def test_14_a_new_table_of_a_version_that_knows_no_encryption(lake: Lake, version: str) -> None:
    properties = {"encryption.key-id": "keyA", "format-version": version}
    for create in (lake.catalog().create_table, lake.catalog().create_table_transaction):
        with pytest.raises(ConfigurationError, match=f"cannot be encrypted with format version {version}"):
            create(NAME, ROWS.schema, properties=properties)
    assert not lake.files()


def test_15_key_id_changed(lake: Lake) -> None:
    """The attacker's key may be in the same KMS. Where there are no keys yet, only a pin tells."""
    lake.commit_as_another_engine(change_key_id, lake.create())
    table = load_unverified(lake)
    for call in (lambda: table.scan().to_arrow(), lambda: table.append(ROWS), lambda: table.append(ROWS, branch="b")):
        with pytest.raises(IntegrityError, match="wrapped by 'keyA', but the master key of this table is 'keyB'"):
            call()


@pytest.mark.parametrize("policy", [PIN, {"encryption.expected-key-id": "keyA"}])
def test_15_key_id_changed_before_the_first_key_was_made(lake: Lake, policy: dict[str, str]) -> None:
    lake.commit_as_another_engine(change_key_id, lake.create(appends=0))
    with refused(lake, "has the encryption.key-id 'keyB', but encryption.expected-key-id is 'keyA'"):
        lake.load(**policy)


@pytest.mark.parametrize("policy", [PIN, {"encryption.expected-key-id": "keyA"}])
def test_15_a_new_table_of_another_key(lake: Lake, policy: dict[str, str]) -> None:
    with refused(lake, "'keyB', but encryption.expected-key-id is 'keyA'"):
        lake.catalog(**policy).create_table(NAME, ROWS.schema, properties={"encryption.key-id": "keyB"})


def test_15_key_id_or_key_length_changed_by_a_commit(lake: Lake) -> None:
    table = lake.create(properties={"encryption.data-key-length": "32"})
    for change in (
        lambda transaction: transaction.set_properties({"encryption.key-id": "keyB"}),
        lambda transaction: transaction.set_properties({"encryption.data-key-length": "16"}),
        lambda transaction: transaction.remove_properties("encryption.key-id"),
        lambda transaction: transaction.remove_properties("encryption.data-key-length"),
    ):
        with pytest.raises(ConfigurationError, match="cannot be changed, added or removed"):
            commit(table, change)
    plain = lake.catalog().create_table("db.plain", ROWS.schema, properties={"format-version": "3"})
    with pytest.raises(ConfigurationError, match="cannot be changed, added or removed"):
        commit(plain, lambda transaction: transaction.set_properties({"encryption.key-id": "keyA"}))


def test_15_keys_of_no_valid_length(lake: Lake) -> None:
    for length in ("20", "0", "-16", "16.0", ""):
        with pytest.raises(ConfigurationError, match=r"encryption\.data-key-length is"):
            lake.create(properties={"encryption.data-key-length": length})
    assert not lake.files()
    lake.commit_as_another_engine(
        lambda metadata: metadata["properties"].update({"encryption.data-key-length": "8"}), lake.create()
    )
    with pytest.warns(UnverifiedMetadataWarning), pytest.raises(ConfigurationError, match="data-key-length is 8"):
        lake.load()


def test_17_unverified_metadata_is_refused_where_that_is_asked_for(lake: Lake) -> None:
    """Even if nothing in it was changed."""
    location = lake.commit_as_another_engine(lambda metadata: None, lake.create())
    refuse = {"encryption.unverified-metadata": "refuse"}
    with refused(lake, "leaves no proof of its content"):
        lake.load(**refuse)
    with refused(lake, "leaves no proof of its content"):
        StaticTable.from_metadata(location, {**lake.kms, **refuse, "encryption.key-id": "keyA"})
    table = load_unverified(lake)
    table.append(OTHER_ROWS)  # which mends it
    assert ids(lake.load(**refuse)) == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("label", ["py-io-impl", "write.py-location-provider.impl"])
def test_17_unverified_metadata_that_names_code_to_run(lake: Lake, label: str) -> None:
    """PyIceberg would import it."""
    lake.commit_as_another_engine(lambda metadata: metadata["properties"].update({label: "this.Zen"}), lake.create())
    with refused(lake, "names code to be run"), pytest.warns(UnverifiedMetadataWarning):
        lake.load()
    assert "this" not in sys.modules


def test_17_unverified_metadata_that_names_another_place(lake: Lake) -> None:
    """Where the storage is, and with which credentials to go there, is for the catalog to say."""
    other = {"s3.endpoint": "http://attacker"}
    lake.commit_as_another_engine(lambda metadata: metadata["properties"].update(other), lake.create())
    assert "s3.endpoint" not in load_unverified(lake).io.properties


def test_10_metadata_that_asks_for_leniency(lake: Lake) -> None:
    """What a catalog asks for is not read from its tables."""
    table = lake.create()
    manifest = manifests(table)[-1]
    plain = plain_file(lake)
    converting = lake.load(**{"encryption.plaintext-data-files": "admit"})
    converting.add_files([plain])

    def ask(metadata: dict[str, Any]) -> None:
        metadata["properties"] |= {
            "encryption.plaintext-data-files": "admit",
            "encryption.unverified-metadata": "warn",
            "encryption.required": "false",
            "encryption.expected-key-id": "keyB",
            "encryption.kms-type": "none",
            "py-kms-impl": "os.system",
            "kms.memory.key.keyA": MEMORY_PROPERTIES["kms.memory.key.keyB"],
        }

    lake.commit_as_another_engine(ask, converting)
    with pytest.raises(IntegrityError, match="has no key"):
        load_unverified(lake).scan().to_arrow()
    assert load_unverified(lake).scan(snapshot_id=manifest.added_snapshot_id).to_arrow()["id"].to_pylist() == [1, 2, 3]
    with refused(lake, "leaves no proof of its content"):
        lake.load(**{"encryption.unverified-metadata": "refuse"})


def commit(table: Any, change: Callable[[Any], object]) -> None:
    with table.transaction() as transaction:
        change(transaction)
