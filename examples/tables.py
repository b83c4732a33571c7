"""An encrypted table from nothing, on SQLite and a keystore file: `make demo`."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from pyiceberg.types import StringType

from examples.core import show, step
from pyiceberg_encryption import EncryptionError, load_catalog
from pyiceberg_encryption.kms.keystore import Keystore

if TYPE_CHECKING:
    from collections.abc import Callable

COLUMNS = ("id", "customer", "city", "_row_id", "_last_updated_sequence_number")


def main(folder: Path) -> None:
    step("1. A keystore file with the master key 'orders', and a catalog that knows it")
    Keystore.create(folder / "keystore.json", "a passphrase", ["orders"])
    properties = {
        "type": "sql",
        "uri": f"sqlite:///{folder}/catalog.db",
        "warehouse": f"file://{folder}/warehouse",
        "encryption.kms-type": "local",
        "kms.local.keystore": str(folder / "keystore.json"),
        "kms.local.passphrase": "a passphrase",
    }
    catalog = load_catalog("demo", **properties)
    catalog.create_namespace("shop")
    show("catalog", "SQLite, which holds no more than where each table's metadata is")

    step("2. A table is encrypted when it is created with a key id")
    schema = pa.schema([("id", pa.int64()), ("customer", pa.string())])
    table = catalog.create_table("shop.orders", schema, properties={"encryption.key-id": "orders"})
    table.append(pa.table({"id": [1, 2, 3], "customer": ["Ada Lovelace", "Alan Turing", "Grace Hopper"]}))
    first = table.current_snapshot()
    show("format version", str(table.format_version))
    show("rows", str(table.scan().to_arrow().to_pylist()))

    step("3. It evolves, and takes upserts and deletes, as any table of PyIceberg")
    with table.update_schema() as update:
        update.add_column("city", StringType())
    table.upsert(
        pa.table({"id": [2, 4], "customer": ["Alan Turing", "Emmy Noether"], "city": ["London", "Göttingen"]}),
        join_cols=["id"],
    )
    table.delete("id = 3")
    for row in table.scan(selected_fields=COLUMNS).to_arrow().sort_by("id").to_pylist():
        show(f"  order {row['id']}", f"{row['customer']}, {row['city']}; row id {row['_row_id']}")
    if first is not None:
        show("as it was at first", f"{table.scan(snapshot_id=first.snapshot_id).count()} rows")

    step("4. What lies in storage")
    files = [path for path in (folder / "warehouse").rglob("*.*") if path.is_file()]
    contents = {path: path.read_bytes() for path in files}
    for suffix, kind in ((".parquet", "data"), (".avro", "manifests, manifest lists"), (".json", "table metadata")):
        those = [contents[path] for path in files if path.suffix == suffix]
        show(kind, f"{len(those)} files, each beginning with {sorted({content[:4] for content in those})}")
    readable = [path for path, content in contents.items() if b"Lovelace" in content or b"Turing" in content]
    show("with a customer's name", f"{len(readable)} of {len(files)} files")

    step("5. What others can do with it")
    kms = {name for name in properties if name.startswith(("encryption.", "kms."))}
    without_kms = load_catalog("demo", **{name: value for name, value in properties.items() if name not in kms})
    refused("without the keystore", lambda: without_kms.load_table("shop.orders"), folder)
    metadata = Path(table.metadata_location.removeprefix("file://"))
    metadata.write_bytes(metadata.read_bytes().replace(b'"encryption.key-id":"orders"', b""))
    refused("encryption switched off", lambda: load_catalog("demo", **properties).load_table("shop.orders"), folder)
    print("\nNext: 'Start' in README.md")


def refused(what: str, action: Callable[[], object], folder: Path) -> None:
    try:
        action()
    except EncryptionError as error:
        show(what, f"refused: {str(error).replace(str(folder), '…')}")
    else:
        sys.exit(f"{what}: this should have been refused")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        main(Path(name))
