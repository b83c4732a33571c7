"""Has Iceberg Java write the encrypted tables below tests/vectors/iceberg-java/tables, through Spark.

    python -m integration.golden_tables

Each table's folder holds the table as Java left it, and `expected.json`: what Spark read from it, and what the
metastore knew of it. Needs the dependency group `spark`. The tables lie below WAREHOUSE, since their files name each
other by absolute paths.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from integration import spark as java_spark

if TYPE_CHECKING:
    from collections.abc import Mapping

WAREHOUSE = Path("/tmp/iceberg-golden")
TABLES = Path(__file__).parent.parent / "tests" / "vectors" / "iceberg-java" / "tables"
NAMESPACE = "golden"
LONG_TEXT = 1000
PARAMETERS = ("encryption.key-id", "encryption.data-key-length", "metadata_hash")

# Statements by table; {t} is the table's name. The first one creates it.
ALL_TYPES = """select
  cast({n} as bigint) as id, {n} % 2 = 0 as a_boolean, cast({n} as int) as an_int, cast({n} / 3 as float) as a_float,
  cast({n} / 3 as double) as a_double, cast({n} / 7 as decimal(9, 2)) as a_decimal, cast({n} / 7 as decimal(38, 10)) as
  a_long_decimal, 'text ' || {n} as a_string, cast('bytes ' || {n} as binary) as some_binary,
  date_add(date'2020-02-28', {n}) as a_date, timestamp'2021-03-04 05:06:07.890123' + make_interval(0, 0, 0, {n}) as
  a_timestamptz, timestamp_ntz'1969-12-31 23:59:59.999999' - make_interval(0, 0, 0, {n}) as a_timestamp,
  named_struct('x', cast({n} as int), 'y', named_struct('z', 'deep ' || {n})) as a_struct, array('a', null, 'b ' || {n})
  as an_array, map('k' || {n}, cast({n} as bigint), 'none', null) as a_map"""
NULLS = "insert into {t} (id) values (100)"
ODD_NUMBERS = """insert into {t} (id, a_float, a_double) values (101, float('NaN'), double('NaN')),
  (102, float('Infinity'), double('-Infinity')), (103, float('-0.0'), double('-0.0'))"""


def encrypted(
    columns: str, properties: Mapping[str, object] = MappingProxyType({}), *, key_id: str = "keyA", clauses: str = ""
) -> str:
    """A CREATE TABLE statement."""
    all_properties = {"format-version": 3, "encryption.key-id": key_id, **properties}
    listed = ", ".join(f"'{name}'='{value}'" for name, value in all_properties.items())
    return f"create table {{t}} ({columns}) using iceberg {clauses} tblproperties ({listed})"


def insert(first: int, last: int, values: str = "id, 'row ' || id") -> str:
    return f"insert into {{t}} select {values} from (select explode(sequence({first}, {last})) as id)"


MERGE_ON_READ = {f"write.{what}.mode": "merge-on-read" for what in ("delete", "update", "merge")}
COPY_ON_WRITE = {f"write.{what}.mode": "copy-on-write" for what in ("delete", "update", "merge")}
SIMPLE = "id bigint, data string"
NOISE = "array_join(transform(sequence(1, 800), x -> sha2(concat(id, ' ', x), 512)), '')"  # 100 KB that do not shrink

STATEMENTS: dict[str, list[str]] = {
    "all_types": [
        encrypted(
            "id bigint, a_boolean boolean, an_int int, a_float float, a_double double, a_decimal decimal(9, 2), "
            "a_long_decimal decimal(38, 10), a_string string, some_binary binary, a_date date, "
            "a_timestamptz timestamp, a_timestamp timestamp_ntz, a_struct struct<x: int, y: struct<z: string>>, "
            "an_array array<string>, a_map map<string, bigint>"
        ),
        *(f"insert into {{t}} {ALL_TYPES.replace('{n}', str(n))}" for n in (1, 2)),
        NULLS,
        ODD_NUMBERS,
    ],
    "empty": [encrypted(SIMPLE)],
    "key_24": [encrypted(SIMPLE, {"encryption.data-key-length": 24}), insert(1, 5)],
    "key_32": [encrypted(SIMPLE, {"encryption.data-key-length": 32}, key_id="keyB"), insert(1, 5), insert(6, 9)],
    "partitions_evolved": [
        encrypted("id bigint, data string, ts timestamp", clauses="partitioned by (days(ts), bucket(4, id))"),
        insert(1, 6, "id, 'row ' || id, timestamp'2024-01-01 00:00:00' + make_interval(0, 0, 0, id % 3)"),
        "alter table {t} drop partition field bucket(4, id)",
        "alter table {t} add partition field truncate(3, data)",
        insert(7, 9, "id, 'abc' || id, timestamp'2024-02-01 00:00:00'"),
        "alter table {t} replace partition field days(ts) with months(ts)",
        insert(10, 12, "id, null, null"),
    ],
    "schema_evolved": [
        encrypted("id bigint, old_name int, dropped string, s struct<a: int>"),
        insert(1, 2, "id, cast(id as int), 'gone', named_struct('a', cast(id as int))"),
        "alter table {t} rename column old_name to new_name",
        "alter table {t} alter column new_name type bigint",
        "alter table {t} drop column dropped",
        "alter table {t} add column added double after id",
        "alter table {t} add column s.b string first",
        insert(3, 4, "id, id / 2d, id + 5000000000, named_struct('b', 'new', 'a', 7)"),
        "alter table {t} alter column new_name first",
        insert(5, 5, "id, id, 0.5d, named_struct('b', null, 'a', null)"),
    ],
    "deletion_vectors": [
        encrypted(SIMPLE, MERGE_ON_READ),
        insert(1, 100),
        insert(101, 150),
        "delete from {t} where id % 10 = 3",
        "delete from {t} where id between 40 and 45",
        "update {t} set data = 'updated' where id in (50, 120)",
    ],
    "copied_on_write": [
        encrypted(SIMPLE, COPY_ON_WRITE),
        insert(1, 10),
        insert(11, 20),
        "delete from {t} where id = 4",
        "update {t} set data = 'updated' where id in (7, 15)",
        "merge into {t} using (select 8L as id union select 99L) s on {t}.id = s.id when matched then "
        "update set data = 'merged' when not matched then insert (id, data) values (s.id, 'inserted')",
    ],
    "avro": [
        encrypted("id bigint, noise string", {"write.format.default": "avro"}),
        insert(1, 60, f"id, {NOISE}"),
        insert(61, 63, "id, null"),
    ],
    "branches_and_tags": [
        encrypted(SIMPLE),
        insert(1, 3),
        "alter table {t} create tag first_tag",
        insert(4, 5),
        "alter table {t} create branch side",
        "insert into {t}.branch_side values (1000, 'on the side')",
        insert(6, 6),
    ],
    "maintained": [
        encrypted(SIMPLE),
        *(insert(n, n + 1) for n in (1, 3, 5, 7)),
        "call h.system.rewrite_manifests('{n}.{name}')",
        "delete from {t} where id = 2",
        "call h.system.rewrite_data_files(table => '{n}.{name}', options => map('min-input-files', '2'))",
        insert(9, 10),
        "call h.system.expire_snapshots(table => '{n}.{name}', older_than => timestamp'2100-01-01', retain_last => 1)",
    ],
}


def main() -> None:
    shutil.rmtree(WAREHOUSE, ignore_errors=True)
    shutil.rmtree(TABLES, ignore_errors=True)
    with (
        tempfile.TemporaryDirectory() as scratch,
        java_spark.hive_metastore(Path(scratch)) as metastore,
        java_spark.session(metastore, WAREHOUSE) as spark,
    ):
        spark.sql(f"create database {java_spark.CATALOG}.{NAMESPACE}")
        for name, statements in STATEMENTS.items():
            table = f"{java_spark.CATALOG}.{NAMESPACE}.{name}"
            for statement in statements:
                spark.sql(statement.replace("{t}", table).replace("{name}", name).replace("{n}", NAMESPACE))
            save(name, expected(spark, metastore, table, name))


def expected(spark: Any, metastore: str, table: str, name: str) -> dict[str, Any]:
    refs = [row.name for row in spark.sql(f"select name from {table}.refs order by name").collect()]
    parameters = metastore_parameters(spark, metastore, name)
    return {
        "metadata-location": parameters["metadata_location"],
        "metastore-parameters": {name: value for name, value in sorted(parameters.items()) if name in PARAMETERS},
        "rows": {ref: rows(spark, f"{table} version as of '{ref}'") for ref in refs} or {"main": rows(spark, table)},
    }


def rows(spark: Any, source: str) -> list[dict[str, Any]]:
    read = spark.sql(f"select *, _row_id, _last_updated_sequence_number from {source} order by id")
    return [plain(row.asDict(recursive=True)) for row in read.collect()]


def plain(value: Any) -> Any:
    """As JSON can hold it: numbers that are exact, or not numbers, as text, and of long text its SHA-256."""
    match value:
        case dict():
            return {str(key): plain(item) for key, item in value.items()}
        case list():
            return [plain(item) for item in value]
        case str() if len(value) > LONG_TEXT:
            return f"sha256:{hashlib.sha256(value.encode()).hexdigest()}"
        case bytes() | bytearray():
            return value.hex()
        case float() | Decimal():
            return str(value)
        case date() | datetime():
            return value.isoformat()
        case _:
            return value


def metastore_parameters(spark: Any, metastore: str, name: str) -> dict[str, str]:
    jvm = spark._jvm
    configuration = jvm.org.apache.hadoop.hive.conf.HiveConf()
    configuration.set("hive.metastore.uris", metastore)
    client = jvm.org.apache.hadoop.hive.metastore.HiveMetaStoreClient(configuration)
    return dict(client.getTable(NAMESPACE, name).getParameters())


def save(name: str, expectation: dict[str, Any]) -> None:
    shutil.copytree(
        WAREHOUSE / f"{NAMESPACE}.db" / name, TABLES / name, ignore=shutil.ignore_patterns("*.crc", "version-hint.text")
    )
    (TABLES / name / "expected.json").write_text(json.dumps(expectation, indent=1) + "\n")


if __name__ == "__main__":
    main()
