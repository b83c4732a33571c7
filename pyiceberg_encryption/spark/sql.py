"""A catalog's configuration as Spark SQL wants it, where Iceberg Java reads and writes the tables.

What is said of Iceberg Java here is so in 1.12.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from pyiceberg import io
from pyiceberg.catalog import PY_CATALOG_IMPL, TYPE, CatalogType
from pyiceberg.table import TableProperties
from pyiceberg.typedef import EMPTY_DICT

from pyiceberg_encryption.catalogs import CATALOG_CLASSES, catalog_type, configuration
from pyiceberg_encryption.errors import ConfigurationError, UsageError
from pyiceberg_encryption.kms.registry import JAVA_KMS_IMPL, KMS_TYPE, PY_KMS_IMPL
from pyiceberg_encryption.table import policy
from pyiceberg_encryption.table.models import VERSION
from pyiceberg_encryption.table.policy import Policy

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

EXTENSIONS = "spark.sql.extensions"
ICEBERG_EXTENSIONS = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
CATALOG = "spark.sql.catalog"
ICEBERG_CATALOG = "org.apache.iceberg.spark.SparkCatalog"

# Iceberg Java: CatalogProperties
IO_IMPL = "io-impl"
RESOLVING_FILE_IO = "org.apache.iceberg.io.ResolvingFileIO"  # like PyIceberg, it goes by the scheme of each location
CACHE_ENABLED = "cache-enabled"
JAVA_KMS_TYPES = ("aws", "azure", "gcp")
KMS_ENDPOINT = "kms.endpoint"

# Iceberg Java: AwsClientProperties, AwsProperties, S3FileIOProperties, AzureProperties
CREDENTIALS_PROVIDER = "client.credentials-provider"
PATH_STYLE_ACCESS = "s3.path-style-access"
SHARED_KEY = "adls.auth.shared-key"
ASSUME_ROLE = "client.assume-role"
ASSUME_ROLE_FACTORY = "org.apache.iceberg.aws.AssumeRoleAwsClientFactory"
JAVA_NAMES_OF_CREDENTIALS = {
    io.AWS_ACCESS_KEY_ID: io.S3_ACCESS_KEY_ID,
    io.AWS_SECRET_ACCESS_KEY: io.S3_SECRET_ACCESS_KEY,
    io.AWS_SESSION_TOKEN: io.S3_SESSION_TOKEN,
}

NOT_IN_JAVA = {
    io.AWS_PROFILE_NAME: "Java looks for a profile's name in the variable AWS_PROFILE, as boto3 does too",
    io.S3_PROFILE_NAME: "Java looks for a profile's name in the variable AWS_PROFILE",
    io.S3_ROLE_ARN: f"Java has one role for all of AWS: {io.AWS_ROLE_ARN}",
    io.S3_SERVER_SIDE_ENCRYPTION: "Java's names for it are s3.sse.type and s3.sse.key: add these to the settings",
}
CREDENTIALS_NOT_IN_JAVA = {
    io.ADLS_ACCOUNT_KEY: f"Java's names are {SHARED_KEY}.account.name and {SHARED_KEY}.account.key",
    io.ADLS_CLIENT_SECRET: "Java looks in AZURE_TENANT_ID, AZURE_CLIENT_ID and AZURE_CLIENT_SECRET, as Python does",
    io.ADLS_CONNECTION_STRING: f"Java's names are {SHARED_KEY}.account.name and {SHARED_KEY}.account.key",
    io.ADLS_CREDENTIAL: f"Java's names are {SHARED_KEY}.account.name and {SHARED_KEY}.account.key",
    io.ADLS_SAS_TOKEN: f"Java's name is {io.ADLS_SAS_TOKEN}.<account>.dfs.core.windows.net, which Python takes too",
}

# Rather too much than too little: what is left out for no reason can be added.
LIKE_A_CREDENTIAL = re.compile(
    r"^kms\.|connection-string|credential|key|pass|proxy|secret|token|authorization", re.IGNORECASE
)
NO_CREDENTIALS = {
    *(KMS_ENDPOINT, "kms.data-key-spec", "kms.encryption-algorithm-spec"),
    *("azure.keyvault.url", "azure.keyvault.key-wrap-algorithm"),
    *(CREDENTIALS_PROVIDER, "adls.token-credential-provider"),
}
TABLE_PREFIXES = (policy.TABLE_DEFAULT_PREFIX, policy.TABLE_OVERRIDE_PREFIX)


class _Settings(dict[str, str]):
    """Does not show credentials where it is printed."""

    def __repr__(self) -> str:
        shown = {name: "…" if is_credential(name.split(".", 4)[-1]) else value for name, value in self.items()}
        return repr(shown)


def java_catalog_settings(
    name: str | None = None,
    properties: Mapping[str, str | None] = EMPTY_DICT,
    *,
    spark_name: str | None = None,
    without: Collection[str] = (),
    with_credentials: bool = False,
) -> dict[str, str]:
    """Spark's settings for the catalog that `load_catalog(name, **properties)` loads: the same tables in Spark SQL.

    In Spark the catalog is called `spark_name`, or as it is here. What is asked for in the configuration, and what Java
    would not do, is refused; `without` names properties that Spark may do without. Credentials are left out, for
    everybody sees Spark's settings, unless they are asked for.
    """
    name, configured = configuration(name, properties)
    wanted = {
        label: _text(label, value)
        for label, value in configured.items()
        if value not in (None, "") and label not in without
    }
    wishes = Policy.of(wanted)
    _check_is_hive(name, wanted)
    spark_name = spark_name or name
    if "." in spark_name:
        raise ConfigurationError(f"Spark has no catalogs with a dot in their name: give {spark_name!r} a spark_name")
    kms = _kms(name, wanted)
    unheeded = [*_unheeded(wishes, kms, wanted), *(_unheeded_credentials(kms, wanted) if with_credentials else ())]
    if unheeded:
        reasons = "; ".join(f"{label}: {reason}" for label, reason in unheeded)
        labels = [label for label, _ in unheeded]
        raise ConfigurationError(
            f"Iceberg Java does not heed what catalog {name!r} asks for. {reasons}. If Spark may do without, say so: "
            f"without={labels}"
        )
    settings = {
        TYPE: CatalogType.HIVE.value,
        IO_IMPL: RESOLVING_FILE_IO,
        CACHE_ENABLED: "false",  # or Spark would not see at once what PyIceberg commits
        **_for_storage(wanted, with_credentials),
        **{label: value for label, value in wanted.items() if _is_for_java(label, with_credentials)},
        **kms,
    }
    catalog = f"{CATALOG}.{spark_name}"
    return _Settings(
        {EXTENSIONS: ICEBERG_EXTENSIONS, catalog: ICEBERG_CATALOG}
        | {f"{catalog}.{label}": value for label, value in settings.items()}
    )


def add_java_catalog(spark: Any, settings: Mapping[str, str]) -> None:
    """Adds the catalog to a running Spark session. Spark reads the settings when the catalog is first used."""
    of_catalog = {name: value for name, value in settings.items() if name != EXTENSIONS}  # which is fixed at the start
    present = {name: spark.conf.get(name, None) for name in of_catalog}
    if present == of_catalog:
        return
    if any(value is not None for value in present.values()):
        raise UsageError(
            "The session has a catalog of this name with other settings, and may keep to them. Take another "
            "spark_name, or start a new session"
        )
    for name, value in of_catalog.items():
        spark.conf.set(name, value)


def _text(label: str, value: Any) -> str:
    if isinstance(value, dict):
        raise ConfigurationError(f"{label} is a nested table: names of properties are written in full, with dots")
    return str(value).lower() if isinstance(value, bool) else str(value)


def _check_is_hive(name: str, properties: Mapping[str, str]) -> None:
    implementation = properties.get(PY_CATALOG_IMPL)
    kind = None if implementation else catalog_type(name, dict(properties))
    if kind is CatalogType.HIVE or implementation == CATALOG_CLASSES[CatalogType.HIVE]:
        return
    described = f"type {kind.value}" if kind else f"class {implementation}"
    raise ConfigurationError(
        f"Catalog {name!r} is of {described}, and Iceberg Java encrypts in catalogs of type hive only. In others it "
        f"says nothing and writes PLAINTEXT, even where a table has an {policy.KEY_ID}. Keep tables that Spark SQL is "
        "to write in a Hive metastore"
    )


def _kms(name: str, properties: Mapping[str, str]) -> dict[str, str]:
    if JAVA_KMS_IMPL in properties:
        return {JAVA_KMS_IMPL: properties[JAVA_KMS_IMPL]}
    kms_type = properties.get(KMS_TYPE, "").lower()
    if kms_type in JAVA_KMS_TYPES:
        return {KMS_TYPE: kms_type}
    if not kms_type and PY_KMS_IMPL not in properties:
        raise ConfigurationError(
            f"No KMS is configured for catalog {name!r}: set {KMS_TYPE} to one of {', '.join(JAVA_KMS_TYPES)}"
        )
    used = f"{KMS_TYPE} {kms_type}" if kms_type else PY_KMS_IMPL
    raise ConfigurationError(
        f"Catalog {name!r} has {used}, for which Iceberg Java has no client. It has {', '.join(JAVA_KMS_TYPES)}; or "
        f"set {JAVA_KMS_IMPL} beside it to a Java class that opens what this one wraps"
    )


def _unheeded(wishes: Policy, kms: Mapping[str, str], properties: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Properties whose wish Java would not fulfil, and would not say so."""
    if wishes.required:
        yield policy.REQUIRED, "Java creates, reads and writes tables that are not encrypted as well"
    for label in properties:
        if label.startswith(policy.EXPECTED_KEY_ID):
            yield label, "Java takes any key id that the metastore has"
    if wishes.refuses_unverified_metadata:
        yield policy.UNVERIFIED_METADATA, "where the metastore has no hash of the metadata, Java logs that and reads on"
    for label, reason in NOT_IN_JAVA.items():
        if label in properties:
            yield label, reason
    region, region_of_s3 = properties.get(io.AWS_REGION), properties.get(io.S3_REGION)
    if region and region_of_s3 and region != region_of_s3:
        yield io.S3_REGION, f"Java has one region for all of AWS: {io.AWS_REGION}"
    if kms.get(KMS_TYPE) == "gcp" and KMS_ENDPOINT in properties:
        yield KMS_ENDPOINT, "Java always calls the global endpoint of Google Cloud KMS"
    if io.AWS_ROLE_ARN in properties:
        if not (region or region_of_s3):
            yield io.AWS_ROLE_ARN, f"Java needs {io.AWS_REGION} beside it"
        if kms.get(KMS_TYPE) == "aws" and KMS_ENDPOINT in properties:
            yield KMS_ENDPOINT, f"with {io.AWS_ROLE_ARN}, Java always calls the endpoint of the region"


def _unheeded_credentials(kms: Mapping[str, str], properties: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for label, reason in CREDENTIALS_NOT_IN_JAVA.items():
        if label in properties:
            yield label, reason
    if kms.get(KMS_TYPE) == "aws" and io.AWS_ACCESS_KEY_ID in properties and CREDENTIALS_PROVIDER not in properties:
        yield (
            io.AWS_ACCESS_KEY_ID,
            f"Java's client of AWS KMS looks in the environment, or asks a {CREDENTIALS_PROVIDER}",
        )


def _for_storage(properties: Mapping[str, str], with_credentials: bool) -> dict[str, str]:
    """What has another name in Java, or another default."""
    settings = {}
    region = properties.get(io.S3_REGION) or properties.get(io.AWS_REGION)
    if region:
        settings[io.AWS_REGION] = region
    if io.S3_ENDPOINT in properties and properties.get(io.S3_FORCE_VIRTUAL_ADDRESSING, "").lower() != "true":
        settings[PATH_STYLE_ACCESS] = "true"
    if io.AWS_ROLE_ARN in properties and region:
        settings |= {
            "client.factory": ASSUME_ROLE_FACTORY,
            f"{ASSUME_ROLE}.arn": properties[io.AWS_ROLE_ARN],
            f"{ASSUME_ROLE}.region": region,
        }
        if io.AWS_ROLE_SESSION_NAME in properties:
            settings[f"{ASSUME_ROLE}.session-name"] = properties[io.AWS_ROLE_SESSION_NAME]
    if any(f"{prefix}{policy.KEY_ID}" in properties for prefix in TABLE_PREFIXES):
        settings[f"{policy.TABLE_DEFAULT_PREFIX}{TableProperties.FORMAT_VERSION}"] = str(VERSION)
    if with_credentials:
        settings |= {
            theirs: properties[ours] for ours, theirs in JAVA_NAMES_OF_CREDENTIALS.items() if ours in properties
        }
    return settings


def _is_for_java(label: str, with_credentials: bool) -> bool:
    """What Java does not know does no harm there."""
    if label in (TYPE, "ugi", *JAVA_NAMES_OF_CREDENTIALS) or label.startswith(("encryption.", "py-")):
        return False
    return with_credentials or not is_credential(label)


def is_credential(label: str) -> bool:
    if label in NO_CREDENTIALS or label.startswith(TABLE_PREFIXES):
        return False
    return LIKE_A_CREDENTIAL.search(label) is not None
