"""The one place where PyIceberg's models are extended, by the fields and updates that encryption needs.

Fields are added, and kinds of updates that a commit may have; nothing that PyIceberg has is changed, and catalogs of
PyIceberg itself behave as before. Where a
version of PyIceberg has a field of its own, that one is used.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from pydantic import BaseModel, Field
from pyiceberg.table import CommitTableRequest, CommitTableResponse
from pyiceberg.table.metadata import (
    INITIAL_SEQUENCE_NUMBER,
    TableMetadata,
    TableMetadataUtil,
    TableMetadataV1,
    TableMetadataV2,
    TableMetadataV3,
    TableMetadataWrapper,
)
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    SetPropertiesUpdate,
    TableUpdate,
    UpgradeFormatVersionUpdate,
    _apply_table_update,
    _TableMetadataUpdateContext,
)
from pyiceberg.typedef import IcebergBaseModel, TableVersion

from pyiceberg_encryption.errors import ConfigurationError, IntegrityError
from pyiceberg_encryption.keyring import EncryptedKey

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

TESTED_VERSIONS = "0.12."
VERSION: TableVersion = 3  # the format version that has encryption
FIRST_ROW_ID = 0  # Iceberg Java: TableMetadata.INITIAL_ROW_ID


class EncryptionKeyEntry(IcebergBaseModel):
    """An entry of the table metadata's `encryption-keys`, as JSON has it."""

    key_id: str = Field(alias="key-id")
    encrypted_key_metadata: str = Field(alias="encrypted-key-metadata", repr=False)
    encrypted_by_id: str | None = Field(alias="encrypted-by-id", default=None)
    properties: dict[str, str] | None = Field(default=None)

    @classmethod
    def of(cls, key: EncryptedKey) -> EncryptionKeyEntry:
        return cls.model_validate(key.to_json())

    def key(self) -> EncryptedKey:
        return EncryptedKey.from_json(self.model_dump())


class AddEncryptionKeyUpdate(IcebergBaseModel):
    action: Literal["add-encryption-key"] = Field(default="add-encryption-key")
    encryption_key: EncryptionKeyEntry = Field(alias="encryption-key")


class RemoveEncryptionKeyUpdate(IcebergBaseModel):
    action: Literal["remove-encryption-key"] = Field(default="remove-encryption-key")
    key_id: str = Field(alias="key-id")


class UpgradeToFormatV3Update(UpgradeFormatVersionUpdate):
    """PyIceberg's own update knows no format version above 2."""

    format_version: int = Field(alias="format-version", default=VERSION)


class StartEncryptionUpdate(SetPropertiesUpdate):
    """Gives a table in plaintext the properties of an encrypted one, which nothing else may do."""


def encryption_keys(metadata: TableMetadata) -> tuple[EncryptedKey, ...]:
    return tuple(entry.key() for entry in getattr(metadata, "encryption_keys", None) or ())


def key_id(snapshot: Snapshot) -> str | None:
    """The id of the entry in `encryption-keys` that holds the key of the snapshot's manifest list."""
    value: str | None = getattr(snapshot, "key_id", None)
    return value


def _extend_models() -> None:
    installed = version("pyiceberg")
    if not installed.startswith(TESTED_VERSIONS):
        raise ConfigurationError(
            f"PyIceberg {installed} is installed, but this version of pyiceberg-encryption was only tested with "
            f"{TESTED_VERSIONS}x. Install one of those, or a newer pyiceberg-encryption"
        )
    _add_field(Snapshot, "key_id", str | None, Field(alias="key-id", default=None))
    _add_field(
        TableMetadataV3,
        "encryption_keys",
        list[EncryptionKeyEntry] | None,
        Field(alias="encryption-keys", default=None),
    )
    known_updates, discriminator = get_args(TableUpdate)
    any_update: Any = known_updates | AddEncryptionKeyUpdate | RemoveEncryptionKeyUpdate
    CommitTableRequest.__pydantic_fields__["updates"].annotation = tuple[Annotated[any_update, discriminator], ...]
    for model in (
        TableMetadataV1,
        TableMetadataV2,
        TableMetadataV3,
        TableMetadataWrapper,
        AddSnapshotUpdate,
        CommitTableRequest,
        CommitTableResponse,
    ):
        model.model_rebuild(force=True)


def _add_field(model: type[BaseModel], name: str, annotation: Any, field: Any) -> None:
    if name not in model.model_fields:
        info: FieldInfo = field
        info.annotation = annotation
        model.__pydantic_fields__[name] = info
        model.__annotations__[name] = annotation
        model.model_rebuild(force=True)


@_apply_table_update.register(AddEncryptionKeyUpdate)
def _(  # type: ignore[misc]  # PyIceberg's union of updates is closed
    update: AddEncryptionKeyUpdate, base_metadata: TableMetadata, context: _TableMetadataUpdateContext
) -> TableMetadata:
    if base_metadata.format_version < VERSION:
        raise ValueError("A table below format version 3 can have no encryption keys")
    keys: list[EncryptionKeyEntry] = getattr(base_metadata, "encryption_keys", None) or []
    for key in keys:
        if key.key_id == update.encryption_key.key_id:
            if key != update.encryption_key:
                raise IntegrityError(f"The table has another encryption key with the id {key.key_id!r}")
            return base_metadata
    context.add_update(update)  # type: ignore[arg-type]
    return base_metadata.model_copy(update={"encryption_keys": [*keys, update.encryption_key]})


@_apply_table_update.register(UpgradeToFormatV3Update)
def _(
    update: UpgradeToFormatV3Update, base_metadata: TableMetadata, context: _TableMetadataUpdateContext
) -> TableMetadata:
    if base_metadata.format_version >= VERSION:
        return base_metadata
    context.add_update(update)
    fields = {
        "last_sequence_number": INITIAL_SEQUENCE_NUMBER,  # what V1 does not have
        **dict(base_metadata),
        "format_version": VERSION,
        "next_row_id": FIRST_ROW_ID,
    }
    known = TableMetadataV3.model_fields
    return TableMetadataUtil._construct_without_validation(
        TableMetadataV3.model_construct(**{name: value for name, value in fields.items() if name in known})
    )


_extend_models()
