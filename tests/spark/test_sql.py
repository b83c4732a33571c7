"""Spark's settings for a catalog. That Spark takes them is tested in `integration/test_spark_sql.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pyiceberg_encryption.errors import ConfigurationError, UsageError
from pyiceberg_encryption.spark.sql import add_java_catalog, java_catalog_settings

if TYPE_CHECKING:
    from pathlib import Path

HIVE = {"type": "hive", "uri": "thrift://metastore:9083", "warehouse": "s3://bucket/warehouse"}
AWS = {**HIVE, "encryption.kms-type": "aws"}
SECRET = "hunter2"


@pytest.fixture(autouse=True)
def no_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    (tmp_path / ".pyiceberg.yaml").write_text("default-catalog: default\n")


def settings_of(properties: dict[str, Any], **options: Any) -> dict[str, str]:
    """Without what they all have."""
    settings = java_catalog_settings("prod", properties, **options)
    usual = {f"spark.sql.catalog.prod.{name}" for name in (*HIVE, "io-impl", "cache-enabled", "encryption.kms-type")}
    usual |= {"spark.sql.catalog.prod", "spark.sql.extensions"}
    return {name.removeprefix("spark.sql.catalog.prod."): settings[name] for name in settings.keys() - usual}


def test_a_catalog() -> None:
    assert java_catalog_settings("prod", AWS) == {
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.catalog.prod": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.prod.type": "hive",
        "spark.sql.catalog.prod.uri": "thrift://metastore:9083",
        "spark.sql.catalog.prod.warehouse": "s3://bucket/warehouse",
        "spark.sql.catalog.prod.io-impl": "org.apache.iceberg.io.ResolvingFileIO",
        "spark.sql.catalog.prod.cache-enabled": "false",
        "spark.sql.catalog.prod.encryption.kms-type": "aws",
    }


def test_the_configuration_is_that_of_load_catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arguments come before variables, and these before the file; without a name it is the default catalog."""
    (tmp_path / ".pyiceberg.yaml").write_text(
        "default-catalog: prod\n"
        "catalog:\n"
        "  prod:\n"
        "    uri: thrift://metastore:9083\n"
        "    encryption.kms-type: AWS\n"
        "    kms.endpoint: https://of-the-file\n"
        "    client.region: of-the-file\n"
    )
    monkeypatch.setenv("PYICEBERG_CATALOG__PROD__KMS__ENDPOINT", "https://of-the-environment")
    monkeypatch.setenv("PYICEBERG_CATALOG__PROD__CLIENT__REGION", "of-the-environment")
    settings = java_catalog_settings(properties={"client.region": "eu-west-1"})
    assert settings["spark.sql.catalog.prod.type"] == "hive"
    assert settings["spark.sql.catalog.prod.encryption.kms-type"] == "aws"
    assert settings["spark.sql.catalog.prod.kms.endpoint"] == "https://of-the-environment"
    assert settings["spark.sql.catalog.prod.client.region"] == "eu-west-1"


def test_the_class_instead_of_the_type() -> None:
    named = {"py-catalog-impl": "pyiceberg_encryption.catalogs.hive.HiveCatalog", "encryption.kms-type": "gcp"}
    assert java_catalog_settings("prod", named)["spark.sql.catalog.prod.type"] == "hive"


def test_another_name_in_spark() -> None:
    settings = java_catalog_settings("prod.eu", AWS, spark_name="eu")
    assert settings["spark.sql.catalog.eu.uri"] == "thrift://metastore:9083"
    with pytest.raises(ConfigurationError, match=r"'prod\.eu' a spark_name"):
        java_catalog_settings("prod.eu", AWS)


@pytest.mark.parametrize("kind", ["sql", "in-memory", "rest", "glue", "dynamodb", "bigquery"])
def test_a_catalog_in_which_java_would_write_plaintext(kind: str) -> None:
    with pytest.raises(ConfigurationError, match=f"type {kind}, and Iceberg Java encrypts in"):
        java_catalog_settings("prod", {**AWS, "type": kind})


def test_a_class_of_which_java_has_none() -> None:
    with pytest.raises(ConfigurationError, match=r"class ours\.Catalog, and Iceberg Java encrypts"):
        java_catalog_settings("prod", {**AWS, "py-catalog-impl": "ours.Catalog"})


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ({}, "No KMS is configured for catalog 'prod': set encryption.kms-type to one of aws, azure, gcp"),
        ({"encryption.kms-type": "vault"}, "kms-type vault, for which Iceberg Java has no client"),
        ({"encryption.kms-type": "local"}, "kms-type local, for which Iceberg Java has no client"),
        ({"encryption.kms-type": "memory"}, "set encryption.kms-impl beside it to a Java class"),
        ({"py-kms-impl": "ours.Client"}, "py-kms-impl, for which Iceberg Java has no client"),
        ({"encryption.kms-typ": "aws"}, "Did you mean encryption.kms-type"),
        ({"encryption": {"kms-type": "aws"}}, "encryption is a nested table"),
    ],
)
def test_a_kms_that_java_does_not_have(properties: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        java_catalog_settings("prod", {**HIVE, **properties})


@pytest.mark.parametrize("ours", [{"encryption.kms-type": "local"}, {"py-kms-impl": "ours.Client"}])
def test_the_users_own_client_for_java(ours: dict[str, str]) -> None:
    """Java bears only one of the two properties."""
    settings = java_catalog_settings("prod", {**HIVE, **ours, "encryption.kms-impl": "org.ours.Client"})
    assert settings["spark.sql.catalog.prod.encryption.kms-impl"] == "org.ours.Client"
    assert "spark.sql.catalog.prod.encryption.kms-type" not in settings
    assert "spark.sql.catalog.prod.py-kms-impl" not in settings


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        ({"kms.endpoint": "https://kms", "kms.data-key-spec": "AES_128"}, None),
        ({"kms.encryption-algorithm-spec": "RSAES_OAEP_SHA_256", "client.region": "eu-west-1"}, None),
        ({"azure.keyvault.url": "https://vault", "azure.keyvault.key-wrap-algorithm": "A256KW"}, None),
        ({"s3.path-style-access": "false", "s3.endpoint": "http://s3"}, None),
        ({"s3.endpoint": "http://s3", "s3.delete-enabled": False}, {"s3.path-style-access": "true"}),
        ({"s3.endpoint": "http://s3", "s3.force-virtual-addressing": "True"}, None),
        ({"s3.region": "eu-west-1"}, {"client.region": "eu-west-1"}),
        ({"gcs.project-id": "p", "gcs.service.host": "https://gcs"}, None),
        ({"hadoop.fs.s3a.endpoint": "http://s3", "io-impl": "org.apache.iceberg.hadoop.HadoopFileIO"}, None),
        ({"table-default.encryption.key-id": "k"}, {"table-default.format-version": "3"}),
        ({"table-override.encryption.key-id": "k"}, {"table-default.format-version": "3"}),
        (
            {"client.role-arn": "arn:r", "client.role-session-name": "s", "client.region": "eu-west-1"},
            {
                "client.factory": "org.apache.iceberg.aws.AssumeRoleAwsClientFactory",
                "client.assume-role.arn": "arn:r",
                "client.assume-role.region": "eu-west-1",
                "client.assume-role.session-name": "s",
            },
        ),
    ],
)
def test_what_java_gets(properties: dict[str, Any], expected: dict[str, str] | None) -> None:
    """Every property under its own name, where Java has no other for it."""
    same = {name: str(value).lower() if value is False else value for name, value in properties.items()}
    same.pop("io-impl", None)
    assert settings_of({**AWS, **properties}) == {**same, **(expected or {})}


def test_a_setting_of_javas_own_wins() -> None:
    settings = java_catalog_settings("prod", {**AWS, "io-impl": "ours.IO", "cache-enabled": "true"})
    assert settings["spark.sql.catalog.prod.io-impl"] == "ours.IO"
    assert settings["spark.sql.catalog.prod.cache-enabled"] == "true"


@pytest.mark.parametrize(
    ("name", "value", "more"),
    [
        ("encryption.required", "true", {}),
        ("encryption.required", True, {}),
        ("encryption.expected-key-id", "orders", {}),
        ("encryption.expected-key-id.shop.orders", "orders", {}),
        ("encryption.unverified-metadata", "refuse", {}),
        ("client.profile-name", "prod", {}),
        ("s3.profile-name", "prod", {}),
        ("s3.role-arn", "arn:r", {}),
        ("s3.server-side-encryption", "aws:kms", {}),
        ("s3.region", "eu-west-1", {"client.region": "us-east-1"}),
        ("kms.endpoint", "https://kms", {"encryption.kms-type": "gcp"}),
        ("kms.endpoint", "https://kms", {"client.role-arn": "arn:r", "client.region": "eu-west-1"}),
        ("client.role-arn", "arn:r", {}),
    ],
)
def test_what_java_would_not_heed(name: str, value: Any, more: dict[str, str]) -> None:
    properties = {**AWS, name: value, **more}
    with pytest.raises(ConfigurationError, match=rf"{name}: .*without=\['{name}'\]"):
        java_catalog_settings("prod", properties)
    assert name not in settings_of(properties, without=[name])


def test_all_that_java_would_not_heed_is_named_at_once() -> None:
    properties = {**AWS, "encryption.required": "true", "encryption.expected-key-id": "k", "s3.role-arn": "arn:r"}
    with pytest.raises(ConfigurationError) as caught:
        java_catalog_settings("prod", properties)
    wished = ["encryption.required", "encryption.expected-key-id", "s3.role-arn"]
    assert str(caught.value).endswith(f"without={wished}")
    assert settings_of(properties, without=wished) == {}


@pytest.mark.parametrize(
    ("name", "in_java"),
    [
        ("client.access-key-id", "s3.access-key-id"),
        ("client.secret-access-key", "s3.secret-access-key"),
        ("client.session-token", "s3.session-token"),
        ("s3.access-key-id", "s3.access-key-id"),
        ("s3.secret-access-key", "s3.secret-access-key"),
        ("s3.session-token", "s3.session-token"),
        ("s3.sse.key", "s3.sse.key"),
        ("s3.proxy-uri", "s3.proxy-uri"),
        ("gcs.oauth2.token", "gcs.oauth2.token"),
        ("adls.token", "adls.token"),
        ("adls.auth.shared-key.account.key", "adls.auth.shared-key.account.key"),
        ("adls.sas-token.account.dfs.core.windows.net", "adls.sas-token.account.dfs.core.windows.net"),
        ("kms.ours.pin", "kms.ours.pin"),
    ],
)
def test_credentials(name: str, in_java: str) -> None:
    """They are left out, unless they are asked for, and not printed even then."""
    properties = {**HIVE, "encryption.kms-type": "gcp", name: SECRET}
    assert settings_of(properties) == {}
    settings = java_catalog_settings("prod", properties, with_credentials=True)
    assert settings[f"spark.sql.catalog.prod.{in_java}"] == SECRET
    assert [setting for setting, value in settings.items() if value == SECRET] == [f"spark.sql.catalog.prod.{in_java}"]
    assert SECRET not in f"{settings} {settings!r}"
    assert "thrift://metastore:9083" in repr(settings)


def test_credentials_of_s3_beside_those_of_aws() -> None:
    of_s3 = {"s3.access-key-id": "A", "s3.secret-access-key": "S"}
    of_aws = {"client.access-key-id": "B", "client.secret-access-key": "T"}
    properties = {**HIVE, "encryption.kms-type": "gcp", **of_s3, **of_aws}
    assert settings_of(properties, with_credentials=True) == of_s3


@pytest.mark.parametrize(
    "name",
    [
        *("client.access-key-id", "adls.account-key", "adls.client-secret"),
        *("adls.connection-string", "adls.credential", "adls.sas-token"),
    ],
)
def test_credentials_that_java_cannot_be_given(name: str) -> None:
    properties = {**AWS, name: SECRET}
    assert settings_of(properties) == {}
    with pytest.raises(ConfigurationError, match=rf"{name}: Java.*without=\['{name}'\]") as caught:
        java_catalog_settings("prod", properties, with_credentials=True)
    assert SECRET not in str(caught.value)
    assert settings_of(properties, with_credentials=True, without=[name]) == {}


def test_a_class_of_javas_that_has_the_credentials_of_aws() -> None:
    provider = {"client.credentials-provider": "org.ours.Credentials"}
    properties = {**AWS, **provider, "client.access-key-id": "A"}
    assert settings_of(properties) == provider
    assert settings_of(properties, with_credentials=True) == {**provider, "s3.access-key-id": "A"}


class _Session:
    """As much of a Spark session as is needed."""

    def __init__(self) -> None:
        self.conf = self
        self.settings: dict[str, str] = {}

    def get(self, name: str, default: str | None) -> str | None:
        return self.settings.get(name, default)

    def set(self, name: str, value: str) -> None:
        self.settings[name] = value


def test_a_running_session() -> None:
    session = _Session()
    settings = java_catalog_settings("prod", AWS)
    for _ in range(2):
        add_java_catalog(session, settings)
        assert session.settings == {name: value for name, value in settings.items() if name != "spark.sql.extensions"}


def test_a_session_that_has_another_catalog_of_that_name() -> None:
    session = _Session()
    session.settings["spark.sql.catalog.prod"] = "org.apache.iceberg.spark.SparkCatalog"
    with pytest.raises(UsageError, match="a catalog of this name with other settings"):
        add_java_catalog(session, java_catalog_settings("prod", AWS))
    assert list(session.settings) == ["spark.sql.catalog.prod"]
