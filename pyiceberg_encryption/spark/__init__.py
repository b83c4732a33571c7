"""Encrypted tables in Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyiceberg_encryption.spark.source import IcebergEncrypted, register

__all__ = ["IcebergEncrypted", "register"]


def __getattr__(name: str) -> Any:
    """Java's settings need no PySpark, and the data source does."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from pyiceberg_encryption.spark import source
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "pyspark":
            raise
        raise ImportError("Spark needs PySpark 4.1 or newer: install this package with its extra 'spark'") from None
    return getattr(source, name)
