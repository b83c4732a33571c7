"""What the reader and the writer ask of the file objects that they are given."""

from __future__ import annotations

import io

from pyiceberg_encryption.errors import UsageError


def name_of(file: object) -> str:
    """For messages: the file's own name, if it has one."""
    name = getattr(file, "name", None)
    return name if isinstance(name, str) and name else "The encrypted stream"


def check_is_binary(file: object, is_usable: bool) -> None:
    """Paths and text files are the usual mistakes, and would fail late and strangely."""
    if not is_usable or isinstance(file, (io.TextIOWrapper, io.StringIO)):
        raise UsageError(f"An encrypted stream needs a file opened in binary mode, and was given {type(file).__name__}")
