"""Attacks on encrypted tables by way of programs beside. The numbers are those of docs/security.md."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pyiceberg.catalog import load_catalog as load_catalog_of_pyiceberg
from pyiceberg.manifest import ManifestFile, _manifest_cache, clear_manifest_cache
from pyiceberg.table import StaticTable as StaticTableOfPyIceberg

from pyiceberg_encryption.catalogs.static import StaticTable
from pyiceberg_encryption.errors import ConfigurationError, IntegrityError
from pyiceberg_encryption.table.policy import UnverifiedMetadataWarning
from tests.table_support import NAME, ROWS, Lake, ids, manifests

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyiceberg.catalog.sql import SqlCatalog


@pytest.fixture
def pyiceberg(lake: Lake) -> Iterator[SqlCatalog]:
    """The same catalog, as PyIceberg opens it by itself."""
    catalog: Any = load_catalog_of_pyiceberg("lake", type="sql", **lake.properties())
    yield catalog
    catalog.close()


def test_09_pyiceberg_itself_reads_nothing_of_an_encrypted_table(lake: Lake, pyiceberg: SqlCatalog) -> None:
    location = lake.create().metadata_location
    table = pyiceberg.load_table(NAME)
    static = StaticTableOfPyIceberg.from_metadata(location)
    calls: list[Callable[[], Any]] = [
        *(lambda: table.scan().to_arrow(), table.inspect.files, lambda: table.append(ROWS)),
        *(lambda: table.delete("id = 1"), lambda: static.scan().to_arrow()),
    ]
    for call in calls:
        with pytest.raises((ValueError, NotImplementedError, AssertionError)):
            call()
    assert lake.load().metadata_location == location


def test_13_software_that_does_not_know_encryption_commits(lake: Lake) -> None:
    """It keeps the properties, and drops all else. Nor is a new key made then, not even for a snapshot of its own."""

    def drop_what_is_unknown(metadata: dict[str, Any]) -> None:
        del metadata["encryption-keys"]
        for snapshot in metadata["snapshots"]:
            del snapshot["key-id"]

    location = lake.commit_as_another_engine(drop_what_is_unknown, lake.create())
    with pytest.warns(UnverifiedMetadataWarning):
        table = lake.load()
    for call in (
        lambda: table.scan().to_arrow(),
        lambda: table.append(ROWS),
        lambda: table.append(ROWS, branch="fresh"),
        lambda: table.delete("id = 1"),
    ):
        with pytest.raises(IntegrityError, match="has no key"):
            call()
    assert table.refresh().metadata_location == location


def test_12_a_static_table_without_a_key_id(lake: Lake) -> None:
    location = lake.create().metadata_location
    with pytest.raises(ConfigurationError, match="no catalog vouches for the key"):
        StaticTable.from_metadata(location, lake.kms)
    with pytest.raises(IntegrityError, match=r"'keyA', but encryption\.expected-key-id is 'keyB'"):
        StaticTable.from_metadata(location, {**lake.kms, "encryption.key-id": "keyB"})
    table = StaticTable.from_metadata(location, {**lake.kms, "encryption.key-id": "keyA"})
    assert ids(table) == [1, 2, 3, 4, 5]


def test_03_the_manifest_cache_of_pyiceberg(lake: Lake) -> None:
    """It is of the whole process and knows files by their paths only. Others may have filled it, and can read it."""
    clear_manifest_cache()
    table = lake.create()
    for manifest in manifests(table):
        forged = ManifestFile.from_args(manifest_path=manifest.manifest_path, manifest_length=1)
        _manifest_cache.get_or_cache(forged)
    kept = len(_manifest_cache)
    table = lake.load()
    assert ids(table) == [1, 2, 3, 4, 5]
    table.delete("id = 1")
    table.inspect.all_files()
    assert ids(lake.load()) == [2, 3, 4, 5]
    assert len(_manifest_cache) == kept == 2
    clear_manifest_cache()
