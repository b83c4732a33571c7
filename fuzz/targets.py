"""What the fuzzer feeds. Each target takes hostile bytes, and may raise nothing but this package's errors.

Where a target returns normally it has also checked that the result is right, so that the fuzzer finds wrong answers
and not only crashes.
"""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from pyiceberg_encryption import AesGcmInputStream, EncryptedKey, KekCache, Keyring, Secret, StandardKeyMetadata
from pyiceberg_encryption.errors import EncryptionError
from pyiceberg_encryption.keyring import KEY_TIMESTAMP
from pyiceberg_encryption.kms import GuardedClient
from pyiceberg_encryption.kms.keystore import Keystore
from pyiceberg_encryption.kms.memory import MemoryKeyManagementClient
from pyiceberg_encryption.stream import encrypt, layout

if TYPE_CHECKING:
    from collections.abc import Callable

METADATA = StandardKeyMetadata(Secret(b"k" * 16), b"p" * 16)
PLAIN = bytes(range(256)) * (layout.PLAIN_BLOCK_LENGTH // 256) * 2 + b"the end"
FILE = encrypt(PLAIN, METADATA, entropy=lambda length: bytes(length))
CLOCK_SECONDS = 1_800_000_000.0


def key_metadata(data: bytes) -> None:
    """Bytes that are accepted are the one encoding of what they were decoded to."""
    assert StandardKeyMetadata.decode(data).encode() == data


def stream(data: bytes) -> None:
    """The bytes as a file: without the key nobody can make one that reads, but for the seeds."""
    plain = AesGcmInputStream(io.BytesIO(data), METADATA, allow_unrecorded_length=True).read()
    assert plain in (b"", b"short")


def damaged_stream(data: bytes) -> None:
    """The bytes as instructions: cut, patch and read a real file. What is read is what was written."""
    file, steps = bytearray(FILE), io.BytesIO(data)
    while instruction := steps.read(6):
        where = int.from_bytes(instruction[1:4], "little") % (len(file) + 1)
        match instruction[0] % 4:
            case 0:
                del file[where : where + int.from_bytes(instruction[4:], "little")]
            case 1:
                file[where : where + 2] = instruction[4:]
            case 2:
                file[where:where] = instruction[4:]
            case _:
                opened = AesGcmInputStream(io.BytesIO(file), METADATA, allow_unrecorded_length=True)
                opened.seek(where)
                got = opened.read(int.from_bytes(instruction[4:], "little"))
                assert got == PLAIN[where : where + len(got)]


def encryption_keys(data: bytes) -> None:
    """The bytes as the JSON of a table's keys: nobody but the KMS can make a manifest-list key that opens."""
    try:
        entries = json.loads(data)
    except (ValueError, RecursionError):
        return
    kms = GuardedClient(MemoryKeyManagementClient({"kms.memory.key.m": "AAECAwQFBgcICQoLDA0ODw=="}))
    keyring = Keyring(
        [EncryptedKey.from_json(entry) for entry in (entries if isinstance(entries, list) else [entries])],
        master_key_id="m",
        kek_cache=KekCache(kms),
        clock=lambda: CLOCK_SECONDS,
    )
    keyring.seal_manifest_list_key(METADATA.with_file_length(36))
    assert len(keyring.added) == 2  # a KEK of its own: none of the given ones can be proven
    keyring.open_manifest_list_key("a")
    raise AssertionError("a key opened that nobody sealed")


def keystore(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "keystore.json"
        path.write_bytes(data)
        Keystore.open(path, "passphrase")
        raise AssertionError("a keystore opened that nobody made")


TARGETS: dict[str, Callable[[bytes], None]] = {
    target.__name__: target for target in (key_metadata, stream, damaged_stream, encryption_keys, keystore)
}

SEEDS: dict[str, list[bytes]] = {
    "key_metadata": [METADATA.encode(), METADATA.with_file_length(10**6).encode()],
    "stream": [encrypt(b"", METADATA), encrypt(b"short", METADATA)],
    "damaged_stream": [
        bytes.fromhex("0110000061620300000000ff"),
        bytes.fromhex("00000010ffff030000001000"),
    ],
    "encryption_keys": [
        json.dumps(
            [
                {
                    "key-id": "k",
                    "encrypted-key-metadata": "A" * 60,
                    "encrypted-by-id": "m",
                    "properties": {KEY_TIMESTAMP: "1799999999999"},
                },
                {"key-id": "a", "encrypted-key-metadata": "A" * 80, "encrypted-by-id": "k"},
            ]
        ).encode()
    ],
    "keystore": [
        json.dumps(
            {
                "format": "pyiceberg-encryption-keystore",
                "version": 1,
                "kdf": "argon2id",
                "salt": "AAAAAAAAAAAAAAAAAAAAAA==",
                "iterations": 1,
                "lanes": 1,
                "memory-kib": 8,
                "keys": "A" * 80,
            }
        ).encode()
    ],
}


def run(target: Callable[[bytes], None], data: bytes) -> None:
    with contextlib.suppress(EncryptionError):
        target(data)
