"""Has Iceberg Java write tests/vectors/iceberg-java/streams.json: small files and keys that are tested without Java.

python -m integration.java_vectors
"""

from __future__ import annotations

import json
import random
import tempfile
from pathlib import Path
from typing import Any

from integration.java import Peer
from tests.support import JAVA_MASTER_KEYS

VECTORS = Path(__file__).parent.parent / "tests" / "vectors" / "iceberg-java" / "streams.json"
PLAIN_LENGTHS = [0, 1, 28, 1000]
KEY_LENGTHS = [16, 24, 32]


def main() -> None:
    rng = random.Random(1)
    with Peer() as java:
        vectors = {
            "streams": [_stream(java, rng, plain, key) for plain in PLAIN_LENGTHS for key in KEY_LENGTHS],
            "keyrings": [_keyring(java, rng, master, key) for master in JAVA_MASTER_KEYS for key in KEY_LENGTHS],
        }
    VECTORS.write_text(json.dumps(vectors, indent=1) + "\n")


def _stream(java: Peer, rng: random.Random, plain_length: int, key_length: int) -> dict[str, str]:
    plain, key, aad_prefix = rng.randbytes(plain_length), rng.randbytes(key_length), rng.randbytes(16)
    with tempfile.TemporaryDirectory() as folder:
        plain_path, encrypted_path = Path(folder) / "plain", Path(folder) / "encrypted"
        plain_path.write_bytes(plain)
        answer = java.ask(
            "write-stream",
            plain=str(plain_path),
            encrypted=str(encrypted_path),
            key=key.hex(),
            aadPrefix=aad_prefix.hex(),
        )
        return {"plain": plain.hex(), "encrypted": encrypted_path.read_bytes().hex(), "metadata": answer["metadata"]}


def _keyring(java: Peer, rng: random.Random, master_key_id: str, key_length: int) -> dict[str, Any]:
    metadata = java.ask(
        "encode-metadata", key=rng.randbytes(key_length).hex(), aadPrefix=rng.randbytes(16).hex(), fileLength=4321
    )["metadata"]
    answer = java.ask("seal-key", keys=[], masterKeyId=master_key_id, dataKeyLength=key_length, metadata=metadata)
    return {"master-key-id": master_key_id, "key-id": answer["id"], "keys": answer["keys"], "metadata": metadata}


if __name__ == "__main__":
    main()
