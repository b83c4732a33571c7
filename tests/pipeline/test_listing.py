from __future__ import annotations

import os
from datetime import datetime, timezone
from typing import TYPE_CHECKING

import pytest
from pyiceberg.io import FileIO, load_file_io

from pyiceberg_encryption.errors import UsageError
from pyiceberg_encryption.pipeline.listing import files_below

if TYPE_CHECKING:
    from pathlib import Path

FILE_IOS = ["pyiceberg.io.pyarrow.PyArrowFileIO", "pyiceberg.io.fsspec.FsspecFileIO"]
NAMES = ["a.parquet", "kind=x%2Fy/b.parquet", "deep/er/c d.txt", "ü=1/d.parquet"]
MOMENT = datetime(2024, 2, 29, 12, tzinfo=timezone.utc)


@pytest.fixture(params=FILE_IOS)
def plain(request: pytest.FixtureRequest) -> FileIO:
    return load_file_io({"py-io-impl": request.param}, "file:///")


@pytest.mark.parametrize("scheme", ["file://", ""])
@pytest.mark.parametrize("ending", ["", "/"])
def test_files_of_all_folders_are_listed(plain: FileIO, tmp_path: Path, scheme: str, ending: str) -> None:
    """By names by which the same FileIO finds them."""
    for name in NAMES:
        path = tmp_path / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())
        os.utime(path, (MOMENT.timestamp(), MOMENT.timestamp()))
    (tmp_path / "data" / "empty").mkdir()
    (tmp_path / "database.txt").write_bytes(b"beside")
    found = {file.location: file for file in files_below(plain, f"{scheme}{tmp_path}/data{ending}")}
    assert found.keys() == {f"{scheme}{tmp_path}/data/{name}" for name in NAMES}
    for location, file in found.items():
        content = plain.new_input(location).open().read()
        assert (file.length, file.changed) == (len(content), MOMENT)
        assert location.endswith(content.decode())


def test_a_folder_that_is_not_there_has_no_files(plain: FileIO, tmp_path: Path) -> None:
    assert list(files_below(plain, f"file://{tmp_path}/nowhere")) == []


def test_a_file_io_that_cannot_list() -> None:
    class Other(FileIO):
        new_input = new_output = delete = None  # type: ignore[assignment]

    with pytest.raises(UsageError, match="Other cannot list files"):
        files_below(Other(), "file:///x")
