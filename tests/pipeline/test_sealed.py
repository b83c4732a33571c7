"""What travels says nothing to who has no KEK, and nothing wrong to who has."""

from __future__ import annotations

import base64
import dataclasses
import pickle
from typing import TYPE_CHECKING, cast

import pyarrow as pa
import pytest

from pyiceberg_encryption.errors import (
    ConfigurationError,
    EncryptionError,
    IntegrityError,
    SecretExposureError,
    UsageError,
)
from pyiceberg_encryption.kms.master_keys import MasterKeyClient
from pyiceberg_encryption.pipeline import sealed
from pyiceberg_encryption.pipeline.sealed import SealedTable, _opened, opened_here, send
from pyiceberg_encryption.pipeline.splits import packed, seal_tasks
from pyiceberg_encryption.table.file_io import FileKey
from tests.pipeline.support import JOB, KnownKeys, append, new_table, writer
from tests.pipeline.test_splits import received, sizes
from tests.support import JAVA_MASTER_KEYS
from tests.table_support import MORE_ROWS, ROWS, data_files

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyiceberg.manifest import ManifestEntry

    from pyiceberg_encryption.key_metadata import StandardKeyMetadata
    from pyiceberg_encryption.secret import Secret
    from pyiceberg_encryption.table.file_io import EncryptedFileIO
    from pyiceberg_encryption.table.table import Table
    from tests.table_support import Lake

STORAGE_SECRET = "a-secret-of-the-storage"


@pytest.fixture(autouse=True)
def new_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing is known from before."""
    sealed._keks_of_process.cache_clear()
    _opened.cache_clear()
    monkeypatch.setattr(sealed, "_sent", {})
    yield
    sealed._keks_of_process.cache_clear()
    _opened.cache_clear()


@pytest.fixture
def unwrapped(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The master keys by which the KMS was asked to unwrap."""
    calls: list[str] = []
    unwrap = MasterKeyClient.unwrap_key

    def noted(self: MasterKeyClient, wrapped_key: bytes, wrapping_key_id: str) -> Secret | bytes:
        calls.append(wrapping_key_id)
        return unwrap(self, wrapped_key, wrapping_key_id)

    monkeypatch.setattr(MasterKeyClient, "unwrap_key", noted)
    return calls


@pytest.fixture
def table(lake: Lake) -> Table:
    table = new_table(lake, ROWS.schema)
    append(table, ROWS)
    append(table, MORE_ROWS)
    return table


def forms(secret: bytes) -> list[bytes]:
    return [secret, secret.hex().encode(), base64.b64encode(secret)[:-4], base64.urlsafe_b64encode(secret)[:-4]]


def opened_keys(entries: list[ManifestEntry]) -> list[StandardKeyMetadata]:
    keys = [entry.data_file.key_metadata for entry in entries]
    return [key.open() for key in keys if isinstance(key, FileKey)]


def keys_of(table: Table) -> list[bytes]:
    """Of its data files, and its KEK."""
    io = cast("EncryptedFileIO", table.io)
    found = [file.key_metadata.open() for file in data_files(table) if isinstance(file.key_metadata, FileKey)]
    assert len(found) == len(data_files(table)) > 0
    _, kek = io.keys.keyring(table.metadata).kek_for_transport()
    return [bytes(kek.expose()), *(bytes(key.encryption_key.expose()) for key in found)]


def test_nothing_secret_is_in_what_travels(table: Table) -> None:
    table.io.properties["s3.secret-access-key"] = STORAGE_SECRET
    cast("EncryptedFileIO", table.io).plain.properties["s3.secret-access-key"] = STORAGE_SECRET
    sent, here = send(table)
    tasks = [seal_tasks(here, one) for one in packed(table.scan().plan_files(), sizes(1))]
    task = writer(table)
    for batch in ROWS.to_batches():
        task.write(batch)
    entries = task.finish()
    results = here.seal_entries(entries)
    secrets = [*keys_of(table), *JAVA_MASTER_KEYS.values(), STORAGE_SECRET.encode()]
    secrets += [bytes(key.encryption_key.expose()) for key in opened_keys(entries)]
    assert len(secrets) == 1 + 2 + len(JAVA_MASTER_KEYS) + 1 + 1
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        pickled = pickle.dumps((sent, tasks, results), protocol)
        for secret in secrets:
            assert not [form for form in forms(secret) if form in pickled]
    assert sent.envelope.wrapped_kek in pickle.dumps(sent)  # what is looked for would be found
    there = received(sent)
    assert there.io.plain.properties["s3.secret-access-key"] == STORAGE_SECRET
    assert opened_keys(there.open_entries(results)) == opened_keys(entries)


def test_what_knows_keys_cannot_be_sent(table: Table) -> None:
    _, here = send(table)
    for wrong in (here, table.io, data_files(table)):
        with pytest.raises((SecretExposureError, TypeError)):
            pickle.dumps(wrong)
    with pytest.raises(SecretExposureError):
        here.seal(data_files(table))


def test_a_process_asks_the_kms_once(table: Table, unwrapped: list[str]) -> None:
    sent, here = send(table)
    sent_again, here_again = send(table)
    unwrapped.clear()
    assert received(sent).open(here.seal(1)) == 1
    assert received(sent).open(here.seal(2)) == 2
    assert received(sent_again).open(here_again.seal(3)) == 3
    assert unwrapped == ["keyA"]


def test_each_job_has_a_key_of_its_own(table: Table) -> None:
    (_, one), (other, _) = send(table), send(table)
    with pytest.raises(EncryptionError):
        received(other).open(one.seal("x"))


def test_another_kek_opens_nothing(table: Table, lake: Lake) -> None:
    other = new_table(lake, ROWS.schema, "db.other")
    append(other, ROWS)
    (sent, here), (wrong, _) = send(table), send(other)
    mixed = dataclasses.replace(sent, envelope=wrong.envelope)
    with pytest.raises(EncryptionError):
        received(mixed)
    with pytest.raises(EncryptionError):
        opened_here(wrong.envelope, other).open(here.seal("x"))
    with pytest.raises(EncryptionError):
        received(dataclasses.replace(sent, envelope=dataclasses.replace(sent.envelope, master_key_id="keyB")))


def test_what_was_changed_on_the_way_is_refused(table: Table) -> None:
    sent, here = send(table)
    there = received(sent)
    content, entries = here.seal("content"), seal_tasks(here, table.scan().plan_files()).entries
    for place in range(len(content)):
        changed = bytearray(content)
        changed[place] ^= 1
        with pytest.raises(IntegrityError):
            there.open(bytes(changed))
    ((spec_id, group),) = entries.groups
    for wrong in (group[:-1], group + b"x", group[:20], b"", bytes([group[0] ^ 1]) + group[1:]):
        with pytest.raises(EncryptionError):
            there.open_entries(dataclasses.replace(entries, groups=((spec_id, wrong),)))
    with pytest.raises(EncryptionError):
        received(SealedTable(sent.envelope, sent._sealed[:-1]))


def test_what_was_sealed_for_one_purpose_serves_no_other(table: Table) -> None:
    """Or a file's name, which a writer chooses, could be made to be unpickled."""
    sent, here = send(table)
    there = received(sent)
    entries = seal_tasks(here, table.scan().plan_files()).entries
    ((_, group),) = entries.groups
    with pytest.raises(IntegrityError):
        there.open(group)
    with pytest.raises(IntegrityError):
        there.open_manifests(group)
    with pytest.raises(IntegrityError):
        there.open_entries(dataclasses.replace(entries, groups=((0, here.seal("x")),)))


def test_results_are_opened_where_the_table_is_loaded(table: Table, lake: Lake) -> None:
    sent, _ = send(table)
    there = received(sent)
    (file,) = (file for file in data_files(table) if file.record_count == 3)
    task = seal_tasks(there, [one for one in table.scan().plan_files() if one.file.file_path == file.file_path])
    (entry,) = opened_here(sent.envelope, lake.load()).open_entries(task.entries)
    assert (entry.data_file.file_path, JOB in file.file_path) == (file.file_path, False)
    plain = cast("Table", lake.catalog().create_table("db.plain", ROWS.schema))
    with pytest.raises(UsageError, match="is not encrypted"):
        opened_here(sent.envelope, plain)
    with pytest.raises(UsageError, match="is not encrypted"):
        send(plain)


@pytest.mark.parametrize(
    ("kms", "travels"),
    [
        ({"encryption.kms-type": "aws", "kms.endpoint": "https://x", "client.region": "eu-west-1"}, True),
        ({"encryption.kms-type": "vault", "kms.vault.address": "https://x", "kms.vault.mount": "y"}, True),
        ({"encryption.kms-type": "local", "kms.local.keystore": "x", "kms.local.passphrase-file": "y"}, True),
        ({"kms.local.passphrase": "x", "kms.vault.token": "x", "kms.vault.secret-id": "x"}, False),
        ({"client.access-key-id": "x", "client.secret-access-key": "x", "client.session-token": "x"}, False),
        ({"kms.memory.key.a": "x", "kms.of-my-own": "x", "adls.client-secret": "x"}, False),
    ],
)
def test_settings_of_the_kms_that_may_travel(lake: Lake, kms: Mapping[str, str], travels: bool) -> None:
    lake.kms = {}
    found = dict(sealed.kms_of(lake.catalog(**kms)))
    assert found == (kms if travels else {})


def test_a_process_has_credentials_of_its_own(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its configuration comes before what it is told."""
    sent, here = send(table)
    told = dataclasses.replace(sent.envelope, kms=(("py-kms-impl", "nowhere.Client"),))
    with pytest.raises(ConfigurationError, match=r"Set what is secret where it runs.*PYICEBERG_CATALOG__LAKE__"):
        received(dataclasses.replace(sent, envelope=told))
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__PY_KMS_IMPL", f"{KnownKeys.__module__}.{KnownKeys.__name__}")
    assert received(dataclasses.replace(sent, envelope=told)).open(here.seal("x")) == "x"


def test_what_is_sealed_is_what_is_opened(table: Table) -> None:
    sent, here = send(table)
    there = received(sent)
    assert there.open(here.seal(pa.schema([("a", pa.int64())]))) == pa.schema([("a", pa.int64())])
    assert here.open(there.seal({"a": [1]})) == {"a": [1]}
    assert here.seal("same") != here.seal("same")
