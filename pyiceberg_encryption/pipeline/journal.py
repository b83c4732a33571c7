"""What the tasks of an encryption have written, noted next to the table's metadata, for when the job is broken off.

A note is sealed: it has the keys of the files. Nothing in it is unpickled.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from typing import TYPE_CHECKING, Any

from pyiceberg_encryption.errors import EncryptionError
from pyiceberg_encryption.pipeline.listing import files_below
from pyiceberg_encryption.pipeline.rewrite import Rewritten, deletes_of
from pyiceberg_encryption.pipeline.sealed import Envelope, SealedEntries, kms_of, opened_here
from pyiceberg_encryption.table.file_io import EncryptedFileIO, plain_io
from pyiceberg_encryption.table.manifests import file_key

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyiceberg.manifest import DataFile
    from pyiceberg.schema import Schema
    from pyiceberg.table import FileScanTask

    from pyiceberg_encryption.pipeline.sealed import RemoteTable
    from pyiceberg_encryption.table.table import Table

DIGEST_LENGTH = 32


def location(target: Table, job: str, tasks: Iterable[FileScanTask], schema: Schema) -> str:
    """Of the note on these rows, with these columns."""
    files = [(task.file.file_path, sorted(deletes_of(task))) for task in tasks]
    digest = hashlib.sha256(json.dumps([files, schema.model_dump_json()]).encode()).hexdigest()
    return target.location_provider().new_metadata_location(f"{job}-{digest[:DIGEST_LENGTH]}.json")


def notes(target: Table, job: str) -> list[str]:
    """All that there are. Data of the job may lie in the same folder."""
    is_note = re.compile(rf"{re.escape(job)}-[0-9a-f]{{{DIGEST_LENGTH}}}\.json")
    found = files_below(plain_io(target.io), target.location_provider().metadata_path)
    return [file.location for file in found if is_note.fullmatch(_name(file.location))]


def write(target: Table, location: str, envelope: Envelope, here: RemoteTable, result: Rewritten) -> None:
    key = {
        "master-key-id": envelope.master_key_id,
        "wrapped-kek": base64.b64encode(envelope.wrapped_kek).decode(),
        "salt": base64.b64encode(envelope.salt).decode(),
    }
    done = here.seal_note(_name(location), json.dumps(to_json(result)).encode())
    with plain_io(target.io).new_output(location).create(overwrite=True) as stream:
        stream.write(json.dumps({"key": key, "done": base64.b64encode(done).decode()}).encode())


def read(target: Table, location: str) -> tuple[list[DataFile], int] | None:
    """What a task wrote that was finished before. What is noted but not as it should be is done again."""
    plain = plain_io(target.io)
    note = plain.new_input(location)
    if not note.exists():
        return None
    try:
        with note.open() as stream:
            entry = json.loads(stream.read())
        key = {name: str(value) for name, value in entry["key"].items()}
        envelope = Envelope(
            target.catalog.name,
            kms_of(target.catalog),
            key["master-key-id"],
            base64.b64decode(key["wrapped-kek"]),
            base64.b64decode(key["salt"]),
        )
        here = opened_here(envelope, target)
        result = from_json(json.loads(here.open_note(_name(location), base64.b64decode(entry["done"]))))
        opened = here.open_entries(result.files)
    except (EncryptionError, ValueError, KeyError, TypeError, AttributeError):
        return None
    files = [found.data_file for found in opened]
    is_whole = sum(file.record_count for file in files) == result.rows
    if is_whole and _are_as_now(target, files) and all(plain.new_input(file.file_path).exists() for file in files):
        return files, result.rows
    return None


def to_json(result: Rewritten) -> dict[str, Any]:
    return {
        "rows": result.rows,
        "files": [[spec, base64.b64encode(sealed).decode()] for spec, sealed in result.files.groups],
    }


def from_json(entry: dict[str, Any]) -> Rewritten:
    groups = tuple((int(spec), base64.b64decode(sealed)) for spec, sealed in entry["files"])
    return Rewritten(SealedEntries(groups), int(entry["rows"]))


def _are_as_now(target: Table, files: list[DataFile]) -> bool:
    """Partitioned and encrypted as what is written now."""
    if any(file.spec_id != target.metadata.default_spec_id for file in files):
        return False
    lengths = {len(key.open().encryption_key) for key in map(file_key, files) if key is not None}
    return isinstance(target.io, EncryptedFileIO) and lengths <= {target.io.keys.data_key_length}


def _name(location: str) -> str:
    return location.rpartition("/")[2]
