from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyiceberg.expressions import AlwaysTrue, EqualTo

pytest.importorskip("pyspark", reason="needs Spark: `pip install --group test`")

from pyiceberg_encryption.errors import ConfigurationError
from pyiceberg_encryption.kms.keystore import Keystore
from pyiceberg_encryption.pipeline.commit import Overwrite
from pyiceberg_encryption.spark.options import Options
from pyiceberg_encryption.spark.read import load_table, scan_of
from pyiceberg_encryption.spark.write import overwrite_of
from tests.pipeline.support import new_table
from tests.table_support import MORE_ROWS, ROWS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyiceberg_encryption.table.table import Table
    from tests.table_support import Lake


def test_each_option_goes_where_it_belongs() -> None:
    options = Options.of(
        {
            "Catalog": "prod",
            "TABLE": "db.t",
            "uri": "sqlite://",
            "client.region": "eu-west-1",
            "encryption.kms-type": "aws",
            "split-size": 5,
            "snapshot-property.Team": "x",
            "table-property.write.format.default": "avro",
            "checkpointLocation": "/tmp/x",
        }
    )
    assert (options.catalog, options.table) == ("prod", "db.t")
    assert options.properties == {"uri": "sqlite://", "client.region": "eu-west-1", "encryption.kms-type": "aws"}
    assert options.own["split-size"] == "5"
    assert options.after("snapshot-property.") == {"team": "x"}
    assert options.after("table-property.") == {"write.format.default": "avro"}
    assert Options.of({"path": "db.t"}).table == "db.t"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "Name the table"),
        ({"table": ""}, "Name the table"),
        ({"table": "t", "snapshotid": "1"}, "Did you mean snapshot-id"),
        ({"table": "t", "overwrite_filter": "a = 1"}, "Did you mean overwrite-filter"),
        ({"table": "t", "kms.local.passphrase": "x"}, "may be a secret"),
        ({"table": "t", "KMS.Vault.Token": "x"}, "may be a secret"),
        ({"table": "t", "kms.of-mine": "x"}, "may be a secret"),
        ({"table": "t", "encryption.expected-key-id.db.t": "x"}, "without the table's name"),
    ],
)
def test_what_cannot_be_meant_is_refused(given: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Options.of(given)


@pytest.mark.parametrize(
    "given",
    [
        *("kms.endpoint", "kms.local.keystore", "kms.vault.address", "type", "uri", "warehouse", "s3.region"),
        *("py-io-impl", "py-kms-impl", "encryption.required", "s3.endpoint", "rest.sigv4-enabled", "oauth2-server-uri"),
        *("table-default.encryption.key-id", "glue.id", "hive.kerberos-authentication", "init_catalog_tables"),
    ],
)
def test_properties_of_catalogs_are_taken(given: str) -> None:
    assert Options.of({"table": "t", given: "x"}).properties == {given: "x"}


def test_values_that_are_none() -> None:
    options = Options.of({"table": "t", "fanout-enabled": "yes", "snapshot-id": "first", "case-sensitive": "FALSE"})
    assert options.flag("case-sensitive", True) is False
    assert options.flag("create-table", True) is True
    assert options.number("start-snapshot-id") is None
    with pytest.raises(ConfigurationError, match="must be true or false"):
        options.flag("fanout-enabled", True)
    with pytest.raises(ConfigurationError, match="must be a number"):
        options.number("snapshot-id")


def ids(table: Table, **own: str) -> list[int]:
    scan = scan_of(table, Options.of({"table": "db.t", **{name.replace("_", "-"): text for name, text in own.items()}}))
    return sorted(scan.to_arrow()["id"].to_pylist())


@pytest.fixture
def history(lake: Lake) -> tuple[Table, list[int]]:
    """Two snapshots, of which a tag is on the first, and a branch with one more."""
    table = new_table(lake, ROWS.schema)
    table.append(ROWS)
    (first,) = (snapshot.snapshot_id for snapshot in table.metadata.snapshots)
    table.manage_snapshots().create_tag(first, "start").commit()
    table.manage_snapshots().create_branch(first, "side").commit()
    table.append(MORE_ROWS)
    table.append(ROWS, branch="side")
    return table, [snapshot.snapshot_id for snapshot in table.metadata.snapshots]


def test_what_is_read(history: tuple[Table, list[int]]) -> None:
    table, (first, second, third) = history
    assert ids(table) == [1, 2, 3, 4, 5]
    assert ids(table, snapshot_id=str(first)) == ids(table, tag="start") == [1, 2, 3]
    assert ids(table, branch="side") == ids(table, snapshot_id=str(third)) == [1, 1, 2, 2, 3, 3]
    assert ids(table, row_filter="id > 2") == [3, 4, 5]
    assert ids(table, start_snapshot_id=str(first)) == [4, 5]
    assert ids(table, start_snapshot_id=str(first), end_snapshot_id=str(second), row_filter="id = 5") == [5]
    snapshot = table.metadata.snapshot_by_id(second)
    assert snapshot is not None
    assert ids(table, as_of_timestamp=str(snapshot.timestamp_ms)) == [1, 2, 3, 4, 5]
    assert ids(table, as_of_timestamp=str(table.metadata.snapshots[0].timestamp_ms)) == [1, 2, 3]
    columns = scan_of(table, Options.of({"table": "db.t", "columns": "s, _row_id"}))
    assert columns.projection().column_names == ["s", "_row_id"]
    insensitive = {"columns": "ID", "row-filter": "Id = 1", "case-sensitive": "false"}
    assert scan_of(table, Options.of({"table": "db.t", **insensitive})).to_arrow().to_pydict() == {"id": [1]}


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ({"snapshot_id": "1", "tag": "start"}, "Only one of"),
        ({"branch": "side", "start_snapshot_id": "1"}, "Only one of"),
        ({"end_snapshot_id": "1"}, "needs start-snapshot-id"),
        ({"branch": "start"}, "has no branch 'start'"),
        ({"tag": "side"}, "has no tag 'side'"),
        ({"tag": "nowhere"}, "has no tag 'nowhere'"),
        ({"as_of_timestamp": "5"}, "no snapshot that is as old"),
    ],
)
def test_what_cannot_be_read(history: tuple[Table, list[int]], own: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        ids(history[0], **own)


def test_a_snapshot_that_is_gone(history: tuple[Table, list[int]]) -> None:
    with pytest.raises(ValueError, match="not found"):
        ids(history[0], snapshot_id="1")


def test_tables_are_loaded_with_the_properties(lake: Lake, tmp_path: Path) -> None:
    new_table(lake, ROWS.schema)
    Keystore.create(tmp_path / "keystore.json", "a passphrase", ["keyA"])
    (tmp_path / "passphrase").write_text("a passphrase")
    public = {
        **lake.properties(),
        "type": "sql",
        "encryption.kms-type": "local",
        "kms.local.keystore": str(tmp_path / "keystore.json"),
        "kms.local.passphrase-file": str(tmp_path / "passphrase"),
    }
    table = load_table(Options.of({"table": "db.t", "catalog": "lake", **public}))
    assert table.name() == ("db", "t")
    table.catalog.close()


def overwrite(is_overwrite: bool, **own: str) -> Overwrite | None:
    return overwrite_of(
        Options.of({"table": "t", **{name.replace("_", "-"): text for name, text in own.items()}}), is_overwrite
    )


def test_what_is_overwritten() -> None:
    assert overwrite(False) is None
    assert overwrite(True) == overwrite(True, overwrite_mode="static") == Overwrite(AlwaysTrue(), False)
    assert overwrite(True, overwrite_mode="Dynamic") == Overwrite(AlwaysTrue(), True)
    expected: Callable[..., EqualTo] = EqualTo
    assert overwrite(True, overwrite_filter="a = 1") == Overwrite(expected("a", 1), False)


@pytest.mark.parametrize(
    ("is_overwrite", "own", "message"),
    [
        (True, {"overwrite_mode": "some"}, "must be static or dynamic"),
        (False, {"overwrite_mode": "dynamic"}, "need mode"),
        (False, {"overwrite_filter": "a = 1"}, "need mode"),
        (True, {"overwrite_filter": "a = 1", "overwrite_mode": "dynamic"}, "exclude each other"),
    ],
)
def test_what_cannot_be_overwritten(is_overwrite: bool, own: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        overwrite(is_overwrite, **own)
