"""Files of a folder, and marks of a job, on storages whose clients keep what they have listed."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest
from pyiceberg.io import load_file_io

from integration.environments import STORAGES, Environments
from pyiceberg_encryption.catalogs import load_catalog
from pyiceberg_encryption.pipeline.commit import Marks, sweep
from pyiceberg_encryption.pipeline.listing import files_below
from pyiceberg_encryption.table.file_io import EncryptedFileIO
from pyiceberg_encryption.table.table import Table
from tests.pipeline.support import JOB, append, written
from tests.table_support import ROWS

if TYPE_CHECKING:
    from collections.abc import Iterator

REMOTE = [name for name in STORAGES if not name.startswith("local")]
NAMES = ["a.parquet", "kind=x%2Fy/b.parquet", "deep/er/c d.txt", "ü=1/d.parquet"]


@pytest.fixture(scope="module")
def environments(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Environments]:
    with Environments(tmp_path_factory.mktemp("environments")) as environments:
        yield environments


@pytest.mark.parametrize("place", REMOTE)
def test_files_of_all_folders_are_listed(environments: Environments, place: str) -> None:
    storage = environments.storage(place)
    folder = f"{storage.warehouse}/listed-{place.replace(', ', '-')}/data"
    plain = load_file_io(dict(storage.properties), folder)
    assert list(files_below(plain, folder)) == []
    for name in NAMES:
        with plain.new_output(f"{folder}/{name}").create() as output:
            output.write(name.encode())
    with plain.new_output(f"{folder}base.txt").create() as output:
        output.write(b"beside")
    found = {file.location: file for file in files_below(plain, f"{folder}/")}
    assert found.keys() == {f"{folder}/{name}" for name in NAMES}
    for location, file in found.items():
        with plain.new_input(location).open() as stream:
            assert location.endswith(stream.read().decode())
        assert file.length == len(plain.new_input(location))
        assert file.changed is not None
        assert file.changed.tzinfo is not None
        assert file.changed.timestamp() > 1_700_000_000


def elsewhere(environments: Environments, table: Table) -> Table:
    """The table in another process, whose client knows nothing of this one's."""
    place = "S3" if table.location().startswith("s3") else "Azure Blob"
    storage = environments.storage(f"{place}, PyArrow")
    io = cast("EncryptedFileIO", table.io)
    plain = load_file_io(dict(storage.properties), table.location())
    return Table(table.name(), table.metadata, table.metadata_location, EncryptedFileIO(plain, io.keys), table.catalog)


@pytest.mark.parametrize("place", REMOTE)
def test_a_job_is_swept(environments: Environments, place: str) -> None:
    storage = environments.storage(place)
    with load_catalog("swept", **environments.properties("SQL (SQLite)", storage)) as catalog:
        catalog.create_namespace_if_not_exists("swept")
        name = f"swept.{place.replace(', ', '_')}"
        table = cast("Table", catalog.create_table(name, ROWS.schema, properties={"encryption.key-id": "keyA"}))
        append(table, ROWS)
        marks, of_a_task = Marks(table, JOB), Marks(elsewhere(environments, table), JOB)
        for _ in range(2):
            marks.begin()
            assert of_a_task.is_running()
            assert not marks.has_retries()
            (stray,) = written(table, ROWS)
            of_a_task.add_retry()
            assert marks.has_retries()
            marks.end()
            assert not of_a_task.is_running()
            assert len(sweep(table, JOB)) == 2
            assert not table.io.new_output(stray.file_path).exists()
        assert len(table.scan().to_arrow()) == len(ROWS)
