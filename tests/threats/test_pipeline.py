"""What goes to other processes, and comes back: pickled, as an engine sends, spills and keeps it."""

from __future__ import annotations

import base64
import pickle
from typing import TYPE_CHECKING

import pytest

from pyiceberg_encryption import IntegrityError
from pyiceberg_encryption.pipeline.rewrite import RewriteTask, rewrite
from pyiceberg_encryption.pipeline.sealed import send
from pyiceberg_encryption.pipeline.splits import open_tasks, seal_tasks
from pyiceberg_encryption.table.manifests import file_key
from tests.support import JAVA_MASTER_KEYS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyiceberg.manifest import DataFile

    from pyiceberg_encryption.table.table import Table
    from tests.table_support import Lake


def tasks_and_results(table: Table) -> tuple[list[RewriteTask], list[object], list[bytes]]:
    """All that travels when a table's data is written again, and the keys of its old and new files."""
    planned = list(table.scan().plan_files())
    sealed, here = send(table)
    tasks = [RewriteTask(sealed, None, seal_tasks(here, [task]), "job", True) for task in planned]
    results = [rewrite(task) for task in tasks]
    written = [entry.data_file for result in results for entry in here.open_entries(result.files)]
    return tasks, [*results], [*keys_of(task.file for task in planned), *keys_of(written)]


def keys_of(files: Iterable[DataFile]) -> list[bytes]:
    found = [file_key(file) for file in files]
    return [bytes(key.open().encryption_key.expose()) for key in found if key is not None]


def forms(key: bytes) -> list[bytes]:
    return [key, key.hex().encode(), base64.b64encode(key), repr(key)[2:-1].encode()]


def test_26_what_travels_holds_no_key(lake: Lake) -> None:
    table = lake.create()
    tasks, results, data_keys = tasks_and_results(table)
    kek = bytes(table.io.keys.unwrap(tasks[0].table.envelope.wrapped_kek).expose())  # type: ignore[attr-defined]
    secrets = [*data_keys, kek, *JAVA_MASTER_KEYS.values()]
    assert len(secrets) == 4 + 1 + 2
    travelling = pickle.dumps([tasks, results], protocol=0) + pickle.dumps([tasks, results]) + repr(tasks).encode()
    assert not [secret for secret in secrets if any(form in travelling for form in forms(secret))]
    assert forms(secrets[0])[0] in pickle.dumps([tasks, secrets[0]])  # it would have been found


def test_26_nothing_that_is_secret_is_needed_to_come_along(lake: Lake) -> None:
    envelope = send(lake.create())[0].envelope
    assert dict(envelope.kms) == {"encryption.kms-type": "memory"}


def test_26_what_was_changed_on_the_way_is_not_opened(lake: Lake) -> None:
    table = lake.create(appends=1)
    _, here = send(table)
    tasks = seal_tasks(here, table.scan().plan_files())
    (group,) = tasks.entries.groups
    for at in (0, len(group[1]) // 2, len(group[1]) - 1):
        changed = bytearray(group[1])
        changed[at] ^= 1
        object.__setattr__(tasks.entries, "groups", ((group[0], bytes(changed)),))
        with pytest.raises(IntegrityError):
            open_tasks(here, tasks)
    with pytest.raises(IntegrityError):
        here.open(group[1])  # whole, but for another purpose


def test_26_one_jobs_key_opens_nothing_of_another(lake: Lake) -> None:
    table = lake.create(appends=1)
    one, other = send(table)[1], send(table)[1]
    sealed = one.seal("hello")
    assert one.open(sealed) == "hello"
    with pytest.raises(IntegrityError):
        other.open(sealed)
