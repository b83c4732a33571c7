"""A PyIceberg catalog's configuration in Spark SQL, and what Iceberg Java does in catalogs that are refused there."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import boto3
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.io import load_file_io

from integration import rest
from integration.kms_support import AWS_REGION, aws_admin
from pyiceberg_encryption import load_catalog
from pyiceberg_encryption.errors import IntegrityError
from pyiceberg_encryption.spark.sql import add_java_catalog, java_catalog_settings

pytest.importorskip("pyspark", reason="needs Spark: `pip install --group test`")

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from integration.conftest import SparkOnHive

# PySpark leaves sockets to the garbage collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

NAMESPACE = "one_configuration"
CREDENTIALS = {"aws.accessKeyId": "testing", "aws.secretAccessKey": "testing"}


@pytest.fixture
def spark(spark_on_hive: SparkOnHive, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """With AWS's credentials where each looks for them outside of the configuration."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    system = spark_on_hive.session._jvm.java.lang.System
    for name, value in CREDENTIALS.items():
        system.setProperty(name, value)
    yield spark_on_hive.session
    for name in CREDENTIALS:
        system.clearProperty(name)


@pytest.fixture
def key_id(aws_endpoint: str) -> str:
    admin = aws_admin(aws_endpoint)
    key_id: str = admin.create_key()["KeyMetadata"]["Arn"]
    admin.close()
    return key_id


def beginnings(folder: Path, pattern: str) -> set[bytes]:
    return {file.read_bytes()[:4] for file in folder.rglob(pattern)}


def test_one_configuration_for_python_and_spark_sql(
    spark: Any,
    spark_on_hive: SparkOnHive,
    aws_endpoint: str,
    key_id: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Tables that each creates, by the catalog's default key, are written and read by both in turn."""
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    monkeypatch.setenv("PYICEBERG_CATALOG__BOTH__TABLE_DEFAULT__ENCRYPTION__KEY_ID", key_id)
    (tmp_path / ".pyiceberg.yaml").write_text(
        "catalog:\n"
        "  both:\n"
        "    type: hive\n"
        f"    uri: {spark_on_hive.uri}\n"
        f"    warehouse: file://{tmp_path}/warehouse\n"
        "    encryption.kms-type: aws\n"
        f"    kms.endpoint: {aws_endpoint}\n"
        f"    client.region: {AWS_REGION}\n"
    )
    add_java_catalog(spark, java_catalog_settings("both"))
    with load_catalog("both") as catalog:
        catalog.create_namespace(NAMESPACE, {"location": f"file://{tmp_path}/warehouse"})
        rows = pa.table({"id": [1], "name": ["Grace"]})
        catalog.create_table(f"{NAMESPACE}.of_python", rows.schema).append(rows)
        spark.sql(f"create table both.{NAMESPACE}.of_java (id bigint, name string) using iceberg")
        spark.sql(f"insert into both.{NAMESPACE}.of_java values (1, 'Grace')")
        for name in ("of_python", "of_java"):
            assert spark.sql(f"select name from both.{NAMESPACE}.{name}").collect() == [("Grace",)]
            spark.sql(f"insert into both.{NAMESPACE}.{name} values (2, 'Ada')")
            table = catalog.load_table(f"{NAMESPACE}.{name}")
            assert table.properties["encryption.key-id"] == key_id
            assert sorted(table.scan().to_arrow()["name"].to_pylist()) == ["Ada", "Grace"]
            table.append(pa.table({"id": [3], "name": ["Alan"]}))
            spark.sql(f"delete from both.{NAMESPACE}.{name} where id = 2")
            found = spark.sql(f"select id, name from both.{NAMESPACE}.{name} order by id").collect()
            assert found == [(1, "Grace"), (3, "Alan")]
            assert sorted(catalog.load_table(f"{NAMESPACE}.{name}").scan().to_arrow()["id"].to_pylist()) == [1, 3]
    assert beginnings(tmp_path / "warehouse", "*.parquet") == {b"PARE"}
    assert beginnings(tmp_path / "warehouse", "*.avro") == {b"AGS1"}


@pytest.fixture
def kms(aws_endpoint: str) -> dict[str, str]:
    return {"encryption.kms-type": "aws", "kms.endpoint": aws_endpoint, "client.region": AWS_REGION}


def add_refused_catalog(spark: Any, name: str, properties: dict[str, str]) -> None:
    """As `java_catalog_settings` would have it, if it did not refuse the type."""
    settings = java_catalog_settings(name, {**properties, "type": "hive"})
    add_java_catalog(spark, {**settings, f"spark.sql.catalog.{name}.type": properties["type"]})


@pytest.mark.parametrize("kind", ["hadoop", "rest"])
def test_java_writes_plaintext_in_other_catalogs(
    kind: str, spark: Any, kms: dict[str, str], key_id: str, tmp_path: Path
) -> None:
    """Without a word of warning, and with the settings that have it encrypt in a Hive catalog."""
    warehouse = f"file://{tmp_path / 'warehouse'}"
    with rest.server(tmp_path, warehouse) if kind == "rest" else contextlib.nullcontext("") as uri:
        add_refused_catalog(spark, kind, {"type": kind, "uri": uri, "warehouse": warehouse, **kms})
        spark.sql(f"create database {kind}.shop")
        spark.sql(
            f"create table {kind}.shop.orders (name string) using iceberg "
            f"tblproperties ('format-version'='3', 'encryption.key-id'='{key_id}')"
        )
        spark.sql(f"insert into {kind}.shop.orders values ('Grace')")
    (file,) = tmp_path.rglob("*.parquet")
    assert pq.read_table(file)["name"].to_pylist() == ["Grace"]
    assert beginnings(tmp_path, "*.avro") == {b"Obj\x01"}


@pytest.mark.filterwarnings("ignore::pyiceberg_encryption.table.policy.UnverifiedMetadataWarning")
def test_what_java_does_to_tables_of_a_sql_catalog(
    spark: Any, kms: dict[str, str], key_id: str, tmp_path: Path
) -> None:
    """Its rows lie there in plaintext even if it could not commit them, and what it committed is refused here."""
    database, warehouse = tmp_path / "catalog.db", f"file://{tmp_path}"
    rows = pa.table({"name": ["Grace"]})
    with load_catalog("sql", type="sql", uri=f"sqlite:///{database}", warehouse=warehouse, **kms) as catalog:
        catalog.create_namespace("shop")
        for name in ("empty", "filled"):
            table = catalog.create_table(f"shop.{name}", rows.schema, properties={"encryption.key-id": key_id})
        table.append(rows)
        sqlite = {"uri": f"jdbc:sqlite:{database}", "clients": "1", "jdbc.schema-version": "V1"}
        add_refused_catalog(spark, "sql", {"type": "jdbc", "warehouse": warehouse, **sqlite, **kms})
        spark.sql("insert into sql.shop.empty values ('Ada')")
        with pytest.raises(Exception, match="Cannot decrypt manifest list"):
            spark.sql("insert into sql.shop.filled values ('Ada')")
        with pytest.raises(IntegrityError, match="written by software that does not encrypt"):
            catalog.load_table("shop.empty").scan().to_arrow()
        assert catalog.load_table("shop.filled").scan().to_arrow() == rows
    for name in ("empty", "filled"):
        (file,) = (file for file in (tmp_path / "shop" / name).rglob("*.parquet") if file.read_bytes()[:4] == b"PAR1")
        assert pq.read_table(file)["name"].to_pylist() == ["Ada"]


def test_the_same_objects_of_s3(spark: Any, aws_endpoint: str) -> None:
    """Java's FileIO gets endpoint, addressing, region and credentials from PyIceberg's properties."""
    properties = {
        "uri": "thrift://127.0.0.1:1",
        "encryption.kms-type": "gcp",
        "s3.endpoint": aws_endpoint,
        "s3.region": AWS_REGION,
        "s3.access-key-id": "of-storage",
        "s3.secret-access-key": "of-storage",
    }
    boto3.client("s3", endpoint_url=aws_endpoint, region_name="us-east-1").create_bucket(Bucket="of-both")
    settings = java_catalog_settings("s3", properties, with_credentials=True)
    java_properties = spark._jvm.java.util.HashMap()
    for name, value in settings.items():
        java_properties[name.removeprefix("spark.sql.catalog.s3.")] = value
    in_java = spark._jvm.org.apache.iceberg.CatalogUtil.loadFileIO(
        java_properties["io-impl"], java_properties, spark.sparkContext._jsc.hadoopConfiguration()
    )
    in_python = load_file_io(properties, "s3://of-both")
    with in_python.new_output("s3://of-both/of-python").create() as output:
        output.write(b"of Python")
    assert in_java.newInputFile("s3://of-both/of-python").newStream().readAllBytes() == b"of Python"
    output = in_java.newOutputFile("s3://of-both/of-java").create()
    output.write(b"of Java")
    output.close()
    in_java.close()
    with in_python.new_input("s3://of-both/of-java").open() as file:
        assert file.read() == b"of Java"
