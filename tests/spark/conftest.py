from __future__ import annotations

import base64
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from pyiceberg_encryption import load_catalog

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyiceberg.table import Table


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Table]:
    settings = {
        "TYPE": "sql",
        "URI": f"sqlite:///{tmp_path}/catalog.db",
        "WAREHOUSE": f"file://{tmp_path}/warehouse",
        "ENCRYPTION__KMS_TYPE": "memory",
        "KMS__MEMORY__KEY__MINE": base64.b64encode(bytes(range(16))).decode(),
    }
    for name, value in settings.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__STREAMED__{name}", value)
    with load_catalog("streamed") as catalog:
        catalog.create_namespace("db")
        yield catalog.create_table("db.t", pa.schema([("id", pa.int64())]), properties={"encryption.key-id": "mine"})
