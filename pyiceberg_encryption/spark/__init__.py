"""Encrypted tables in Spark."""

from __future__ import annotations

try:
    from pyiceberg_encryption.spark.source import IcebergEncrypted, register
except ModuleNotFoundError as error:
    if error.name != "pyspark":
        raise
    raise ImportError("Spark needs PySpark 4.1 or newer: install this package with its extra 'spark'") from None

__all__ = ["IcebergEncrypted", "register"]
