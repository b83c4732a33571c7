"""The data source `iceberg_encrypted`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from pyiceberg_encryption.spark.options import Options
from pyiceberg_encryption.spark.read import Reader, ReaderWithFilters, load_table, scan_of
from pyiceberg_encryption.spark.stream import StreamReader
from pyiceberg_encryption.spark.types import to_spark_schema
from pyiceberg_encryption.spark.write import StreamWriter, Writer, overwrite_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

_PUSH_FILTERS = "spark.sql.python.filterPushdown.enabled"


class IcebergEncrypted(DataSource):
    """Tables of pyiceberg_encryption's catalogs."""

    tasks_at_once = 1
    is_offered_filters = False

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._options = Options.of(options)

    @classmethod
    def name(cls) -> str:
        return "iceberg_encrypted"

    def schema(self) -> StructType:
        return to_spark_schema(scan_of(load_table(self._options), self._options).projection())

    def reader(self, schema: StructType) -> Reader:
        self._options.check_for_reading()
        kind = ReaderWithFilters if self.is_offered_filters else Reader
        return kind(self._options, schema, self.tasks_at_once)

    def writer(self, schema: StructType, overwrite: bool) -> Writer:
        self._options.check_for_writing()
        return Writer(self._options, schema, overwrite_of(self._options, overwrite))

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802
        self._options.check_for_reading()
        return StreamReader(self._options, schema, self.tasks_at_once)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802
        self._options.check_for_writing()
        return StreamWriter(self._options, schema, overwrite_of(self._options, overwrite))


def register(spark: SparkSession, *, push_filters: bool = False) -> None:
    """Makes `format("iceberg_encrypted")` known to a session.

    With `push_filters`, Spark offers the filters of queries. Then what a `load()` returns is for one query alone: Spark
    4.1 keeps what it planned for the filters of one with the DataFrame, and reads no more for the next.
    """
    context = getattr(spark, "sparkContext", None)  # Spark Connect has none
    known = {
        "tasks_at_once": context.defaultParallelism if context is not None else 1,
        "is_offered_filters": push_filters,
    }
    if push_filters:
        spark.conf.set(_PUSH_FILTERS, "true")
    # A class of its own is pickled with what it knows, for the processes in which Spark has scans planned.
    spark.dataSource.register(type(IcebergEncrypted.__name__, (IcebergEncrypted,), known))
