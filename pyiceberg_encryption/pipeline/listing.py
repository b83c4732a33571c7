"""What lies in a folder of the storage, which PyIceberg's FileIO cannot tell."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any
from urllib.parse import urlparse

from pyiceberg.io.pyarrow import PyArrowFileIO

from pyiceberg_encryption.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyiceberg.io import FileIO

_SCHEME_AND_AUTHORITY = re.compile(r"[A-Za-z][\w+.-]*:(//[^/]*)?")


@dataclass(frozen=True)
class StoredFile:
    location: str
    length: int
    changed: datetime | None


def files_below(plain: FileIO, folder: str) -> Iterator[StoredFile]:
    """`plain` is the FileIO that reaches the storage. Locations begin as the folder's does."""
    if isinstance(plain, PyArrowFileIO):
        return _listed_by_arrow(plain, folder.rstrip("/"))
    get_fs = getattr(plain, "get_fs", None)
    if get_fs is None:
        raise UsageError(f"{type(plain).__name__} cannot list files: set py-io-impl to PyArrow's or fsspec's FileIO")
    return _listed_by_fsspec(get_fs, folder.rstrip("/"))


def place(location: str) -> str:
    """Where a file is, without the scheme and authority that engines write differently. Two files that differ in these
    alone count as one, and are kept."""
    return re.sub("/+", "/", "/" + _SCHEME_AND_AUTHORITY.sub("", location, count=1))


def _listed_by_arrow(plain: PyArrowFileIO, folder: str) -> Iterator[StoredFile]:
    from pyarrow.fs import FileSelector, FileType

    scheme, netloc, path = plain.parse_location(folder, plain.properties)
    found = plain.fs_by_scheme(scheme, netloc).get_file_info(FileSelector(path, allow_not_found=True, recursive=True))
    for info in found:
        if info.type == FileType.File:
            yield StoredFile(folder + info.path.removeprefix(path), info.size, info.mtime)


def _listed_by_fsspec(get_fs: Any, folder: str) -> Iterator[StoredFile]:
    parsed = urlparse(folder)
    file_system = get_fs(parsed.scheme or "file", parsed.netloc)
    path = file_system._strip_protocol(folder)
    file_system.invalidate_cache()
    found = file_system.find(path, detail=True)
    file_system.invalidate_cache()  # or what is made later is not found
    for name, info in found.items():
        yield StoredFile(folder + name.removeprefix(path), info["size"], _changed(info))


def _changed(info: dict[str, Any]) -> datetime | None:
    """Each file system of fsspec has a name of its own for it."""
    for name in ("mtime", "LastModified", "last_modified", "updated", "created"):
        value = info.get(name)
        if isinstance(value, (int, float)):
            return datetime.fromtimestamp(value, timezone.utc)
        if isinstance(value, str):
            value = datetime.fromisoformat(value.replace("Z", "+00:00"))
        if isinstance(value, datetime):
            return value if value.tzinfo else value.replace(tzinfo=timezone.utc)
    return None
