"""Options that others' programs use, and secrets among them."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark", reason="needs Spark: `pip install --group test`")

from pyspark.sql.types import StructType

from pyiceberg_encryption.errors import ConfigurationError
from pyiceberg_encryption.spark.options import Options
from pyiceberg_encryption.spark.source import IcebergEncrypted

SECRETS = (
    *(
        "s3.secret-access-key",
        "s3.access-key-id",
        "s3.session-token",
        "client.secret-access-key",
        "token",
        "credential",
    ),
    *("adls.account-key", "adls.client-secret", "adls.sas-token", "adls.connection-string", "gcs.oauth2.token"),
    *("adls.sas-token.account.dfs.core.windows.net", "header.Authorization", "hf.token"),
)


@pytest.mark.parametrize("name", SECRETS)
def test_credentials_are_no_options(name: str) -> None:
    with pytest.raises(ConfigurationError, match="may be a secret"):
        Options.of({"table": "db.t", name: "hunter2"})


@pytest.mark.parametrize(
    "uri", ["postgresql+psycopg2://me:hunter2@host/db", "https://me:hunter2@host", "sqlite:///x?password=hunter2"]
)
def test_addresses_with_passwords_are_no_options(uri: str) -> None:
    with pytest.raises(ConfigurationError, match="may be a secret") as raised:
        Options.of({"table": "db.t", "uri": uri})
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize(
    "name", ["partitionOverwriteMode", "replaceWhere", "overwriteSchema", "mergeSchema", "filter", "where", "overwrite"]
)
def test_options_of_other_formats_that_would_spare_rows(name: str) -> None:
    with pytest.raises(ConfigurationError, match="is no option"):
        Options.of({"table": "db.t", name: "dynamic"})


@pytest.mark.parametrize("name", ["row-filter", "snapshot-id", "tag", "columns", "start-snapshot-id"])
def test_options_of_reads_are_refused_where_rows_are_replaced(name: str) -> None:
    source = IcebergEncrypted({"table": "db.t", name: "1"})
    with pytest.raises(ConfigurationError, match=f"{name}: not an option of writes"):
        source.writer(StructType(), True)
    with pytest.raises(ConfigurationError, match=f"{name}: not an option of writes"):
        source.streamWriter(StructType(), False)


@pytest.mark.parametrize("name", ["overwrite-filter", "commit-id"])
def test_options_without_a_value(name: str) -> None:
    """As of a variable that is not set. An empty commit-id would take every write but the first for done."""
    with pytest.raises(ConfigurationError, match=f"{name} is empty"):
        IcebergEncrypted({"table": "db.t", name: ""}).writer(StructType(), True)
