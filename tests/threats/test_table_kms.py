"""What becomes of tables when the KMS fails. The numbers are those of the threat table in docs/security.md."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from pyiceberg_encryption.errors import (
    ConfigurationError,
    KmsAccessDeniedError,
    KmsError,
    KmsKeyError,
    KmsUnavailableError,
)
from pyiceberg_encryption.kms.memory import MemoryKeyManagementClient
from tests.support import RecordingClient
from tests.table_support import NAME, OTHER_ROWS, ROWS, Lake, ids

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyiceberg_encryption.table.table import Table

FAILING: dict[str, Any] = {"encryption.kms-type": "", "py-kms-impl": f"{__name__}.FailingClient", "kms.max-attempts": 1}


class FailingClient(RecordingClient):
    error: ClassVar[Exception]

    def __init__(self, properties: Mapping[str, str]) -> None:
        super().__init__(properties)
        self.fail = self.raise_error

    def raise_error(self) -> None:
        raise self.error


def writes(table: Table) -> list[Callable[[], Any]]:
    return [
        lambda: table.append(OTHER_ROWS),
        lambda: table.append(OTHER_ROWS, branch="fresh"),
        lambda: table.overwrite(OTHER_ROWS),
        lambda: table.delete("id = 1"),
        lambda: table.upsert(ROWS, ["id"]),
    ]


@pytest.mark.parametrize(
    ("error", "seen"),
    [
        pytest.param(KmsUnavailableError("down"), KmsUnavailableError, id="19-down"),
        pytest.param(KmsAccessDeniedError("no"), KmsAccessDeniedError, id="20-denies"),
        pytest.param(RuntimeError("who knows"), KmsError, id="19-fails"),
    ],
)
@pytest.mark.parametrize("appends", [0, 2])
def test_19_and_20_kms_fails_while_a_table_is_written(
    lake: Lake, error: Exception, seen: type[Exception], appends: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is committed, and what was written so far is gone, or at least encrypted."""
    monkeypatch.setattr(FailingClient, "error", error, raising=False)
    lake.create(appends=appends)
    before = lake.files()
    table = lake.load(**FAILING)
    for write in writes(table) if appends else writes(table)[:2]:
        with pytest.raises(seen, match="keyA"):
            write()
    left = set(lake.files()) - set(before)
    assert {path.suffix for path in left} <= {".parquet"}
    assert {path.read_bytes()[:4] for path in left} <= {b"PARE"}
    with pytest.raises(KmsError) if appends else contextlib.nullcontext():
        table.refresh().scan().to_arrow()
    assert ids(lake.load()) == [1, 2, 3, 4, 5][: 5 if appends else 0]
    assert len(lake.load().metadata.snapshots) == appends


def test_20_no_kms_configured(lake: Lake) -> None:
    """No table becomes a plain one for that."""
    lake.create()
    before = lake.files()
    catalog = lake.catalog(**{"encryption.kms-type": ""})
    for call in (
        lambda: catalog.load_table(NAME),
        lambda: catalog.table_exists(NAME),
        lambda: catalog.create_table("db.new", ROWS.schema, properties={"encryption.key-id": "keyA"}),
    ):
        with pytest.raises(ConfigurationError, match="No KMS is configured"):
            call()
    assert lake.files() == before


def test_20_the_master_key_is_not_in_the_kms(lake: Lake) -> None:
    lake.create()
    lake.kms = {name: value for name, value in lake.kms.items() if name != "kms.memory.key.keyA"}
    table = lake.load()
    for call in (lambda: table.scan().to_arrow(), *writes(table)):
        with pytest.raises(KmsError, match="keyA"):
            call()


@pytest.mark.parametrize("ttl", ["0", "0.5"])
def test_20_a_tables_rows_outlive_a_revocation_until_the_ttl_ends(lake: Lake, ttl: str) -> None:
    lake.create()
    client = f"{__name__}.{RevocableClient.__name__}"
    table = lake.load(**{"encryption.kms-type": "", "py-kms-impl": client, "kms.kek-cache-ttl": ttl})
    assert len(ids(table)) == 5
    RevocableClient.is_revoked = True
    try:
        if ttl != "0":
            assert len(ids(table)) == 5
            time.sleep(float(ttl))
        with pytest.raises(KmsKeyError, match="disabled"):
            ids(table)
    finally:
        RevocableClient.is_revoked = False


@pytest.mark.parametrize("ttl", ["-1", "soon", "nan", "1000000"])
def test_20_a_ttl_that_cannot_be_meant(lake: Lake, ttl: str) -> None:
    lake.create()
    with pytest.raises(ConfigurationError, match=r"kms\.kek-cache-ttl"):
        lake.load(**{"kms.kek-cache-ttl": ttl})


class RevocableClient(MemoryKeyManagementClient):
    is_revoked = False

    def unwrap_key(self, wrapped_key: bytes, wrapping_key_id: str) -> bytes:
        if self.is_revoked:
            raise KmsKeyError("the key is disabled")
        return super().unwrap_key(wrapped_key, wrapping_key_id)
