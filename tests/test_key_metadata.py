from __future__ import annotations

import io

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyiceberg_encryption import Secret, StandardKeyMetadata
from pyiceberg_encryption.errors import EncryptionError, FormatError
from pyiceberg_encryption.key_metadata import MAX_AAD_PREFIX_LENGTH

# What Iceberg Java's StandardKeyMetadata has for an Avro schema
AVRO_SCHEMA = fastavro.parse_schema(
    {
        "type": "record",
        "name": "StandardKeyMetadata",
        "fields": [
            {"name": "encryption_key", "type": "bytes"},
            {"name": "aad_prefix", "type": ["null", "bytes"]},
            {"name": "file_length", "type": ["null", "long"]},
        ],
    }
)

metadata_strategy = st.builds(
    StandardKeyMetadata,
    st.sampled_from([16, 24, 32]).flatmap(lambda length: st.binary(min_size=length, max_size=length)).map(Secret),
    st.none() | st.binary(max_size=200),
    st.none() | st.integers(0, 2**63 - 1),
)


@given(metadata_strategy)
def test_is_the_avro_datum_after_a_version_byte(metadata: StandardKeyMetadata) -> None:
    datum = io.BytesIO()
    record = {
        "encryption_key": bytes(metadata.encryption_key.expose()),
        "aad_prefix": metadata.aad_prefix,
        "file_length": metadata.file_length,
    }
    fastavro.schemaless_writer(datum, AVRO_SCHEMA, record)
    assert metadata.encode() == b"\x01" + datum.getvalue()


@given(metadata_strategy)
def test_decode_is_the_inverse_of_encode(metadata: StandardKeyMetadata) -> None:
    assert StandardKeyMetadata.decode(metadata.encode()) == metadata


@given(st.binary(max_size=100) | st.binary(max_size=100).map(lambda data: b"\x01\x20" + data))
def test_any_bytes_are_either_the_one_encoding_of_something_or_refused(data: bytes) -> None:
    try:
        metadata = StandardKeyMetadata.decode(data)
    except EncryptionError:
        return
    assert metadata.encode() == data


def test_generated_keys_differ() -> None:
    made = [StandardKeyMetadata.generate(32) for _ in range(1000)]
    assert len({bytes(metadata.encryption_key.expose()) for metadata in made}) == 1000
    assert len({metadata.aad_prefix for metadata in made}) == 1000
    assert {len(metadata.aad_prefix or b"") for metadata in made} == {16}


def test_the_length_is_added_without_a_change_of_the_rest() -> None:
    metadata = StandardKeyMetadata.generate(16)
    assert metadata.file_length is None
    assert metadata.with_file_length(36) == StandardKeyMetadata(metadata.encryption_key, metadata.aad_prefix, 36)


@pytest.mark.parametrize("length", [0, 15, 33])
def test_a_key_of_another_length_is_not_made(length: int) -> None:
    with pytest.raises(FormatError):
        StandardKeyMetadata.generate(length)
    with pytest.raises(FormatError):
        StandardKeyMetadata(Secret(bytes(length)))


@pytest.mark.parametrize("length", [-1, 2**63])
def test_a_file_length_that_no_file_has_is_refused(length: int) -> None:
    with pytest.raises(FormatError):
        StandardKeyMetadata(Secret(bytes(16)), b"", length)


def test_the_longest_prefix() -> None:
    longest = StandardKeyMetadata(Secret(bytes(32)), bytes(MAX_AAD_PREFIX_LENGTH), 2**63 - 1)
    assert StandardKeyMetadata.decode(longest.encode()) == longest
    with pytest.raises(FormatError, match="AAD prefix"):
        StandardKeyMetadata(Secret(bytes(32)), bytes(MAX_AAD_PREFIX_LENGTH + 1))
