"""What is asked of the tables of a catalog, and what a table may become: the rules that a storage cannot change."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pyiceberg.io import PY_IO_IMPL
from pyiceberg.table import TableProperties

from pyiceberg_encryption.ciphers import KEY_LENGTHS
from pyiceberg_encryption.errors import ConfigurationError, IntegrityError
from pyiceberg_encryption.keyring import DATA_KEY_LENGTH_DEFAULT
from pyiceberg_encryption.kms.registry import JAVA_KMS_IMPL, KMS_TYPE, PY_KMS_IMPL
from pyiceberg_encryption.table.models import VERSION, StartEncryptionUpdate, encryption_keys, key_id

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.update import TableUpdate
    from pyiceberg.typedef import Identifier

# Table properties. Iceberg Java: TableProperties
KEY_ID = "encryption.key-id"
DATA_KEY_LENGTH = "encryption.data-key-length"

# Catalog properties
REQUIRED = "encryption.required"
EXPECTED_KEY_ID = "encryption.expected-key-id"
UNVERIFIED_METADATA = "encryption.unverified-metadata"
PLAINTEXT_DATA_FILES = "encryption.plaintext-data-files"
TABLE_DEFAULT_PREFIX = "table-default."  # Iceberg Java: CatalogProperties
TABLE_OVERRIDE_PREFIX = "table-override."

_TABLE_PROPERTIES = (KEY_ID, DATA_KEY_LENGTH)
_CATALOG_PROPERTIES = (
    *(KMS_TYPE, JAVA_KMS_IMPL, REQUIRED, EXPECTED_KEY_ID, UNVERIFIED_METADATA, PLAINTEXT_DATA_FILES),
    *(f"{prefix}{name}" for prefix in (TABLE_DEFAULT_PREFIX, TABLE_OVERRIDE_PREFIX) for name in _TABLE_PROPERTIES),
)
_TRUE = {"true": True, "false": False}
_UNVERIFIED = {"warn": False, "refuse": True}
_PLAINTEXT = {"refuse": False, "admit": True}


class UnverifiedMetadataWarning(UserWarning):
    """The metadata of an encrypted table was not proven to be what was committed."""


@dataclass(frozen=True)
class Policy:
    required: bool = False
    expected_key_ids: Mapping[str, str] = field(default_factory=dict)
    refuses_unverified_metadata: bool = False
    admits_plaintext_data: bool = False
    table_defaults: Mapping[str, str] = field(default_factory=dict)
    table_overrides: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, properties: Mapping[str, str]) -> Policy:
        _check_names(properties, _CATALOG_PROPERTIES, "a catalog")
        return cls(
            required=_choice(properties, REQUIRED, "false", _TRUE),
            expected_key_ids=_after(properties, EXPECTED_KEY_ID),
            refuses_unverified_metadata=_choice(properties, UNVERIFIED_METADATA, "warn", _UNVERIFIED),
            admits_plaintext_data=_choice(properties, PLAINTEXT_DATA_FILES, "refuse", _PLAINTEXT),
            table_defaults=_after(properties, TABLE_DEFAULT_PREFIX),
            table_overrides=_after(properties, TABLE_OVERRIDE_PREFIX),
        )

    def with_settings_of_server(self, properties: Mapping[str, str]) -> Policy:
        """What a server may add to a client's configuration: it can ask for more encryption, never for less."""
        return replace(
            self,
            required=self.required or _choice(properties, REQUIRED, "false", _TRUE),
            table_defaults=_after(properties, TABLE_DEFAULT_PREFIX),
            table_overrides=_after(properties, TABLE_OVERRIDE_PREFIX),
        )

    def properties_of_new_table(self, identifier: Identifier, given: Mapping[str, str]) -> dict[str, str]:
        """With the catalog's defaults, and the format version that encryption needs."""
        properties = {**self.table_defaults, **given, **self.table_overrides}
        name = ".".join(identifier)
        _check_names(properties, _TABLE_PROPERTIES, "a table")
        key = properties.get(KEY_ID)
        if not key:
            if KEY_ID in properties or DATA_KEY_LENGTH in properties:
                raise ConfigurationError(f"{name} has encryption properties, but no {KEY_ID}")
            self._check_may_be_plain(name, "can be created")
            return properties
        version = str(properties.setdefault(TableProperties.FORMAT_VERSION, str(VERSION)))
        if not (version.isascii() and version.isdigit()) or int(version) < VERSION:
            raise ConfigurationError(
                f"{name} cannot be encrypted with format version {version}: set {TableProperties.FORMAT_VERSION} to "
                f"{VERSION}, or leave it out"
            )
        data_key_length(properties)
        self._check_expected(name, key)
        return properties

    def check_loaded(self, identifier: Identifier, metadata: TableMetadata) -> str | None:
        """The id of the master key, or None where the table is not encrypted and need not be."""
        name = ".".join(identifier)
        key = metadata.properties.get(KEY_ID)
        if key:
            if metadata.format_version < VERSION:
                raise IntegrityError(
                    f"{name} has an {KEY_ID}, but format version {metadata.format_version}, which knows no encryption: "
                    "its metadata was changed, or it was made by software that only kept the property. What it "
                    "holds is plaintext"
                )
            self._check_expected(name, key)
            return key
        if encryption_keys(metadata) or any(key_id(snapshot) for snapshot in metadata.snapshots):
            raise IntegrityError(f"{name} has encryption keys, but its {KEY_ID} is gone: its metadata was changed")
        self._check_may_be_plain(name, "can be used")
        return None

    def warning_of_unverified(self, identifier: Identifier, location: str) -> str:
        """For metadata that nothing proves to be what was committed."""
        reason = (
            f"The metadata of {'.'.join(identifier)} was committed by software that leaves no proof of its content: "
            f"who can write to the storage could have changed {location}. Any commit from here mends that"
        )
        if self.refuses_unverified_metadata:
            raise IntegrityError(f"{reason}. ({UNVERIFIED_METADATA} is set to refuse)")
        return reason

    def _check_may_be_plain(self, name: str, allowed: str) -> None:
        expected = self.expected_key_id(name)
        if self.required or expected:
            wish = f"{EXPECTED_KEY_ID} is {expected!r}" if expected else f"{REQUIRED} is set"
            raise IntegrityError(f"{name} has no {KEY_ID}, and no table without one {allowed} in this catalog: {wish}")

    def _check_expected(self, name: str, key: str) -> None:
        expected = self.expected_key_id(name)
        if expected and key != expected:
            raise IntegrityError(f"{name} has the {KEY_ID} {key!r}, but {EXPECTED_KEY_ID} is {expected!r}")

    def expected_key_id(self, name: str) -> str | None:
        return self.expected_key_ids.get(f".{name}", self.expected_key_ids.get(""))


def check_change(
    name: str, before: TableMetadata | None, after: TableMetadata, updates: Iterable[TableUpdate] = ()
) -> None:
    """Encryption is decided when a table is made, as in Iceberg Java, or when all of its data is encrypted."""
    if before is None:
        return
    is_plain = KEY_ID not in before.properties
    if is_plain and any(isinstance(update, StartEncryptionUpdate) for update in updates):
        return
    for label in (KEY_ID, DATA_KEY_LENGTH):
        old, new = before.properties.get(label), after.properties.get(label)
        if old != new:
            raise ConfigurationError(
                f"The {label} of {name} cannot be changed, added or removed (from {old!r} to {new!r}): it is decided "
                "when a table is created"
            )
    if after.format_version < before.format_version:
        raise ConfigurationError(f"{name} cannot go back to format version {after.format_version}")


def check_names_no_code(name: str, properties: Mapping[str, str]) -> None:
    """PyIceberg imports what these name. Where nothing proves the metadata, that would be for the storage to choose."""
    for label in (PY_IO_IMPL, TableProperties.WRITE_PY_LOCATION_PROVIDER_IMPL):
        if label in properties:
            raise IntegrityError(f"The metadata of {name} is not proven, and names code to be run, in {label}: refused")


def data_key_length(properties: Mapping[str, str]) -> int:
    text = str(properties.get(DATA_KEY_LENGTH, DATA_KEY_LENGTH_DEFAULT))
    if not (text.isascii() and text.isdigit()) or int(text) not in KEY_LENGTHS:
        raise ConfigurationError(f"{DATA_KEY_LENGTH} is {text}; it must be 16, 24 or 32")
    return int(text)


def _check_names(names: Iterable[str], known: tuple[str, ...], owner: str) -> None:
    """A misspelt name would switch off what its value asks for, and nobody would notice."""
    for name in names:
        is_ours = name.lower().startswith("encryption") or name in ("kms", PY_KMS_IMPL.replace("-", "_"))
        if is_ours and name not in known and not name.startswith(f"{EXPECTED_KEY_ID}."):
            default = f"{TABLE_DEFAULT_PREFIX}{name}"
            meant = default if default in known else next(iter(difflib.get_close_matches(name, known, 1, 0)), known[0])
            raise ConfigurationError(
                f"{name} is no property of {owner}. Did you mean {meant}? Names are written "
                "in full, with dots, and not as nested tables"
            )


def _choice(properties: Mapping[str, str], name: str, default: str, choices: Mapping[str, bool]) -> bool:
    text = str(properties.get(name, default)).lower()
    if text not in choices:
        raise ConfigurationError(f"{name} is {text!r}; it must be one of {', '.join(choices)}")
    return choices[text]


def _after(properties: Mapping[str, str], prefix: str) -> dict[str, str]:
    return {name[len(prefix) :]: value for name, value in properties.items() if name.startswith(prefix)}
