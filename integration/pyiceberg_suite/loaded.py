"""A pytest plugin that loads this package, with all that it adds to PyIceberg in place."""

import pyiceberg_encryption.catalogs
import pyiceberg_encryption.catalogs.hive
import pyiceberg_encryption.catalogs.sql
import pyiceberg_encryption.table.table  # noqa: F401
