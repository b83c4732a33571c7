"""The core at work, without a server: a keystore, a table's keys, an encrypted file, and an attack. `make demo`."""

from __future__ import annotations

import sys
import tempfile
from datetime import datetime, timezone
from pathlib import Path

from pyiceberg_encryption import (
    AesGcmInputStream,
    AesGcmOutputStream,
    EncryptedKey,
    IntegrityError,
    KekCache,
    Keyring,
    load_kms_client,
)
from pyiceberg_encryption.kms.keystore import Keystore


def main(folder: Path) -> None:
    step("1. A keystore file with a master key, opened by a passphrase")
    Keystore.create(folder / "keystore.json", "a passphrase", ["orders"])
    properties = {  # in a catalog's configuration later
        "encryption.kms-type": "local",
        "kms.local.keystore": str(folder / "keystore.json"),
        "kms.local.passphrase": "a passphrase",
    }
    show("keystore.json", "master key 'orders', sealed under the passphrase")

    step("2. A manifest list is encrypted, and its key sealed into the table's keys")
    kms = load_kms_client(properties)
    keyring = Keyring([], master_key_id="orders", kek_cache=KekCache(kms))
    path = folder / "snap-1.avro"
    with AesGcmOutputStream(path.open("wb"), keyring.new_key_metadata()) as stream:
        stream.write(b"customer: Ada Lovelace\n" * 100_000)
    key_id = keyring.seal_manifest_list_key(stream.key_metadata)
    table_metadata = [entry.to_json() for entry in keyring.added]
    show("plaintext", f"{stream.tell():,} bytes of 'customer: Ada Lovelace'")
    show(path.name, f"{path.stat().st_size:,} bytes, beginning {path.read_bytes()[:24]!r}")
    show("", f"contains 'Lovelace': {b'Lovelace' in path.read_bytes()}")

    step("3. The chain, as it lies in the table's metadata under encryption-keys")
    show("master key 'orders'", "in the keystore; with AWS KMS and its like, it never leaves the service")
    kek, manifest_list = table_metadata
    show("  wraps the KEK", f"(key encryption key) {kek['key-id']}")
    made = datetime.fromtimestamp(int(kek["properties"]["KEY_TIMESTAMP"]) / 1000, timezone.utc)
    show("", f"made {made:%Y-%m-%d %H:%M} UTC, wrapped: {kek['encrypted-key-metadata'][:32]}…")
    show("    seals the file's key", manifest_list["key-id"])
    show("", f"sealed: {manifest_list['encrypted-key-metadata'][:32]}…")
    show("      encrypts the file", path.name)

    step("4. A reader that has nothing but the metadata and the KMS")
    kms = load_kms_client(properties)
    reopened = Keyring(
        [EncryptedKey.from_json(entry) for entry in table_metadata],
        master_key_id="orders",
        kek_cache=KekCache(kms),
        snapshot_key_ids=[key_id],
    )
    key_metadata = reopened.open_manifest_list_key(key_id)
    show("the key, printed", repr(key_metadata.encryption_key))
    with AesGcmInputStream(path.open("rb"), key_metadata, location=path.name) as stream_in:
        stream_in.seek(-23, 2)
        show("the last line", repr(stream_in.read()))

    step("5. Somebody changes one bit of the file, or cuts it off between two blocks")
    content = bytearray(path.read_bytes())
    content[1_500_000] ^= 1
    for attack, forged in [("one bit", bytes(content)), ("cut off", path.read_bytes()[: 8 + 1_048_604])]:
        try:
            AesGcmInputStream(forged, key_metadata, location=path.name).read()
        except IntegrityError as error:
            show(attack, f"refused: {error}")
        else:
            sys.exit("The attack was not noticed")

    print("\nNext: 'A first file' in README.md")


def step(title: str) -> None:
    print(f"\n{title}")


def show(name: str, what: str) -> None:
    print(f"   {name:<24} {what}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(Path(temporary))
