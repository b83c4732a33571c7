"""A driver of Spark with executors that are processes of their own, on one machine: what Spark calls a local cluster.

`python -m integration.cluster FOLDER` writes tables while tasks fail, hang, or are killed, and keeps all that Spark
keeps or shows of it. Who started it looks at what is left.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

from integration import spark as java_spark
from pyiceberg_encryption import load_catalog
from pyiceberg_encryption.kms.master_keys import MasterKeyClient
from pyiceberg_encryption.kms.registry import PY_KMS_IMPL
from pyiceberg_encryption.secret import Secret
from pyiceberg_encryption.spark import register

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


CATALOG = "cluster"
WORKERS = 2
OTHER_HOST = "127.0.0.2"
KEY = {"encryption.key-id": "keyA"}
# Not those of other tests, which may run at the same time and send theirs.
MASTER_KEYS = {"keyA": hashlib.sha256(b"the master key of the cluster").digest()[:16]}
CREATED = {
    "create-table": "true",
    "table-property.encryption.key-id": "keyA",
    "table-property.write.parquet.row-group-limit": "100",
}
ROWS, PARTS, KINDS = 1200, 4, 3
PLANTED = bytes(range(200, 232))  # is sent in the clear, and must be found
NOT_COMPRESSED = ("broadcast", "shuffle", "shuffle.spill", "rdd", "eventLog")
SETTINGS = {
    **{f"spark.{what}.compress": "false" for what in NOT_COMPRESSED},
    "spark.sql.inMemoryColumnarStorage.compressed": "false",
    "spark.ui.enabled": "true",
    "spark.ui.port": "0",
    "spark.eventLog.enabled": "true",
    "spark.speculation": "true",
    "spark.speculation.multiplier": "1.5",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.minTaskRuntime": "2s",
}
LOG_SETTINGS = """
rootLogger.level = info
rootLogger.appenderRef.file.ref = file
logger.spark.name = org.apache.spark
logger.spark.level = debug
{traced}
appender.file.type = File
appender.file.name = file
appender.file.fileName = {folder}/logs/${{date:yyyyMMddHHmmssSSS}}.log
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d %t %p %c: %m%n%ex
"""
TRACED = ("api.python", "executor", "rpc", "scheduler", "sql.execution", "storage")
# What befalls a task that writes: by table, and by part of it
FAULTS: dict[str, dict[int, str]] = {
    "no_fault": {},
    "raised": {1: "raise"},
    "workers_killed": {0: "kill worker", 2: "kill worker"},
    "slow": {3: "be late"},
    "failed": {1: "raise always"},
    "failed_beside_slow": {0: "be late", 1: "raise always"},
    "executor_killed": {1: "kill executor"},
}
LATE_AT_MOST = 20.0


class JournalKms(MasterKeyClient):
    """Notes who asks it to unwrap what."""

    where = "a cluster of Spark"

    def __init__(self, properties: Mapping[str, str]) -> None:
        super().__init__(properties, {key_id: Secret(key) for key_id, key in MASTER_KEYS.items()})
        self._journal = Path(properties["kms.journal"])

    def unwrap_key(self, wrapped_key: bytes, wrapping_key_id: str) -> Any:
        side = "executor" if "SPARK_EXECUTOR_DIRS" in os.environ else "driver"
        with self._journal.open("a") as journal:
            journal.write(f"{side} {os.getpid()} {wrapped_key.hex()}\n")
        return super().unwrap_key(wrapped_key, wrapping_key_id)


class FaultyFileIO(PyArrowFileIO):
    """Something happens to a task when it begins its second data file, the first being complete."""

    def new_output(self, location: str) -> PyArrowFile:
        if location.endswith("-00001.parquet"):
            _befall(Path(self.properties["faults"]), location)
        return super().new_output(location)


def _befall(arranged: Path, location: str) -> None:
    folder, _, name = location.removeprefix("file://").partition("/data/")
    plan = arranged / f"{Path(folder).name} {int(Path(name).name[:5])}"
    with contextlib.suppress(FileNotFoundError):
        fault = plan.read_text()
        if fault != "raise always":
            plan.unlink()
        if fault.startswith("raise"):
            raise OSError("arranged")
        if fault == "be late":
            first = Path(name).name.replace("-00001.", "-00000.")
            deadline = time.monotonic() + LATE_AT_MOST
            while time.monotonic() < deadline and list(Path(folder).rglob(first)):
                time.sleep(0.01)
        if fault == "kill worker":
            os.kill(os.getpid(), signal.SIGKILL)
        if fault == "kill executor":
            os.kill(_parent(os.getppid()), signal.SIGKILL)  # between them is the daemon that forks workers


def _parent(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


def properties(folder: Path) -> dict[str, str]:
    return {
        "type": "sql",
        "uri": f"sqlite:///{folder}/catalog.db",
        "warehouse": f"file://{folder}/warehouse",
        "py-io-impl": f"integration.cluster.{FaultyFileIO.__name__}",
        PY_KMS_IMPL: f"integration.cluster.{JournalKms.__name__}",
        "kms.journal": str(folder / "journal"),
        "faults": str(folder / "faults"),
    }


def run(folder: Path) -> subprocess.Popen[bytes]:
    """Starts the driver."""
    for name in ("conf", "events", "faults", "home", "logs", "local"):
        (folder / name).mkdir()
    lines = [f"    {name}: {value!r}" for name, value in properties(folder).items()]
    (folder / "home" / ".pyiceberg.yaml").write_text("\n".join(["catalog:", f"  {CATALOG}:", *lines, ""]))
    traced = "\n".join(
        f"logger.{number}.name = org.apache.spark.{name}\nlogger.{number}.level = trace"
        for number, name in enumerate(TRACED)
    )
    (folder / "conf" / "log4j2.properties").write_text(LOG_SETTINGS.format(folder=folder, traced=traced))
    environment = {
        **os.environ,
        **java_spark.spark_environment(),
        "JAVA_TOOL_OPTIONS": java_spark.QUICK_JAVA,
        "PYICEBERG_HOME": str(folder / "home"),
        "PYTHONPATH": str(Path(__file__).parent.parent),
        "SPARK_CONF_DIR": str(folder / "conf"),
        "SPARK_HOME": str(java_spark.home_for_cluster(folder)),
        "SPARK_LOCAL_DIRS": str(folder / "local"),
    }
    with (folder / "output").open("wb") as output:
        command = [sys.executable, "-m", "integration.cluster", str(folder)]
        return subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)


def rows_of(spark: Any) -> Any:
    """In each part, rows of all kinds, so that a task writes several files."""
    return spark.range(0, ROWS, 1, PARTS).selectExpr("id", f"concat('kind ', id % {KINDS}) as kind")


def write(spark: Any, name: str, **options: str) -> str | None:
    """What went wrong."""
    given = {"catalog": CATALOG, "table": f"db.{name}", **options}
    try:
        rows_of(spark).write.format("iceberg_encrypted").options(**given).mode("append").save()
    except Exception as error:
        return str(error)
    return None


def plant(spark: Any) -> None:
    """A key is sent, and shown, in each way in which something goes wrong in practice."""
    context = spark.sparkContext
    planted = PLANTED
    broadcast = context.broadcast([planted])
    assert context.parallelize([1], 1).map(lambda one: (one, planted, broadcast.value)).repartition(2).count() == 1
    frame = spark.createDataFrame([(bytearray(planted),)], "key binary").repartition(2)
    frame.filter(f"key = X'{planted.hex()}'").collect()
    context.setJobDescription(planted.hex())
    spark.range(1).collect()
    context.setJobDescription(None)


def read(spark: Any) -> dict[str, Any]:
    given = {"catalog": CATALOG, "table": "db.plain", "split-size": "1"}
    loaded = spark.read.format("iceberg_encrypted").options(**given).load()
    kept = loaded.filter("id >= 0").repartition(2).persist(pyspark.StorageLevel.DISK_ONLY)
    return {"ids": sorted(row.id for row in kept.collect()), "parts": loaded.rdd.getNumPartitions()}


def pages(spark: Any) -> Iterator[str]:
    """All that the UI tells of this application."""
    address, application = spark.sparkContext.uiWebUrl, spark.sparkContext.applicationId
    api = f"{address}/api/v1/applications/{application}"

    def fetched(url: str) -> str:
        with urllib.request.urlopen(url) as answer:
            return str(answer.read().decode())

    for name in ("environment", "allexecutors", "storage/rdd"):
        yield fetched(f"{api}/{name}")
    for name in ("jobs/", "stages/", "storage/", "environment/", "executors/", "SQL/"):
        yield fetched(f"{address}/{name}")
    for name, page in (("jobs", "jobs/job/?id={}"), ("sql", "SQL/execution/?id={}")):
        listed = fetched(f"{api}/{name}?details=true&planDescription=true&length=1000")
        yield listed
        for one in json.loads(listed):
            number = one["jobId"] if name == "jobs" else one["id"]
            yield fetched(f"{address}/{page.format(number)}")
    stages = fetched(f"{api}/stages?details=true&withSummaries=true")
    yield stages
    for stage in json.loads(stages):
        yield fetched(f"{address}/stages/stage/?id={stage['stageId']}&attempt={stage['attemptId']}")


@contextlib.contextmanager
def another_host(spark: Any, folder: Path) -> Iterator[None]:
    """A worker of the cluster by another name: Spark gives a task to a second one on no host that has it already."""
    (log,) = (log.read_text() for log in (folder / "logs").iterdir() if "Starting Spark master at" in log.read_text())
    (master,) = set(re.findall(r"Starting Spark master at (spark://\S+)", log))
    script = folder / "spark-home" / "bin" / "spark-class"
    command = [str(script), "org.apache.spark.deploy.worker.Worker", "--host", OTHER_HOST, "--cores", "1"]
    environment = {**os.environ, "SPARK_LOCAL_IP": OTHER_HOST}
    context = spark.sparkContext._jsc.sc()
    with subprocess.Popen([*command, "--memory", "1g", "--webui-port", "0", master], env=environment) as worker:
        while context.getExecutorMemoryStatus().size() < 1 + WORKERS + 1:
            time.sleep(0.1)
        try:
            yield
        finally:
            worker.terminate()


def main(folder: Path) -> None:
    settings = {**SETTINGS, "spark.eventLog.dir": f"file://{folder}/events"}
    spark = java_spark.builder(f"local-cluster[{WORKERS},1,1024]", settings).getOrCreate()
    register(spark)
    catalog = load_catalog(CATALOG)
    catalog.create_namespace("db")
    with another_host(spark, folder):
        report = {"plain": write(spark, "plain", **CREATED), "read": read(spark)}
        plant(spark)
        shutil.copytree(folder / "local", folder / "kept")
        schema = catalog.load_table("db.plain").schema()
        for name, faults in FAULTS.items():
            with catalog.create_table(f"db.{name}", schema, properties=KEY).update_spec() as spec:
                spec.add_identity("kind")
            for part, fault in faults.items():
                (folder / "faults" / f"{name} {part}").write_text(fault)
            report[name] = write(spark, name)
        (folder / "ui").write_text("\n".join(pages(spark)))
    spark.stop()
    (folder / "report").write_text(json.dumps(report))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
