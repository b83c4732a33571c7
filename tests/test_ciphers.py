from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cryptography_vectors
import pytest

from pyiceberg_encryption.ciphers import NONCE_LENGTH, OVERHEAD, TAG_LENGTH, AesGcm
from pyiceberg_encryption.errors import FormatError, IntegrityError, UsageError
from pyiceberg_encryption.secret import Secret

if TYPE_CHECKING:
    from collections.abc import Iterator

WYCHEPROOF = json.loads((Path(__file__).parent / "vectors" / "wycheproof" / "aes_gcm_test.json").read_text())
NIST = Path(cryptography_vectors.__file__).parent / "ciphers" / "AES" / "GCM"


def check_vector(key: bytes, nonce: bytes, aad: bytes, plain: bytes, cipher_and_tag: bytes, valid: bool) -> None:
    """Both ways, one-shot and in place."""
    cipher = AesGcm(Secret(key), entropy=lambda length: nonce)
    sealed = nonce + cipher_and_tag
    opened = bytearray(b"\xaa" * len(plain))
    if not valid:
        with pytest.raises(IntegrityError):
            cipher.open(sealed, aad)
        with pytest.raises(IntegrityError):
            cipher.open_into(sealed, aad, memoryview(opened))
        assert opened == bytes(len(plain))
        return
    assert cipher.seal(plain, aad) == sealed
    out = bytearray(len(sealed))
    cipher.seal_into(memoryview(plain), aad, memoryview(out))
    assert out == sealed
    assert cipher.open(sealed, aad) == plain
    cipher.open_into(sealed, aad, memoryview(opened))
    assert opened == plain


@pytest.mark.parametrize(
    "group", WYCHEPROOF["testGroups"], ids=lambda group: f"key{group['keySize']}-iv{group['ivSize']}"
)
def test_wycheproof(group: dict[str, Any]) -> None:
    if group["ivSize"] != NONCE_LENGTH * 8:
        assert_other_nonce_lengths_cannot_be_made(group)
        return
    for test in group["tests"]:
        key, nonce, aad, plain = (bytes.fromhex(test[name]) for name in ("key", "iv", "aad", "msg"))
        check_vector(key, nonce, aad, plain, bytes.fromhex(test["ct"] + test["tag"]), test["result"] == "valid")


def assert_other_nonce_lengths_cannot_be_made(group: dict[str, Any]) -> None:
    """The layout has 12 bytes of nonce: a vector with another nonce length must not open."""
    for test in group["tests"]:
        cipher = AesGcm(Secret(bytes.fromhex(test["key"])))
        with pytest.raises((IntegrityError, FormatError)):
            cipher.open(bytes.fromhex(test["iv"] + test["ct"] + test["tag"]), bytes.fromhex(test["aad"]))


def test_wycheproof_is_all_there() -> None:
    assert sum(len(group["tests"]) for group in WYCHEPROOF["testGroups"]) == WYCHEPROOF["numberOfTests"] == 316


def nist_vectors(file: Path) -> Iterator[dict[str, bytes | None]]:
    """The vectors of a CAVP response file. FAIL stands for a plaintext of None."""
    vector: dict[str, bytes | None] = {}
    for line in [*file.read_text().splitlines(), "Count = end"]:
        name, _, value = (part.strip() for part in line.partition("="))
        if name == "Count":
            if vector:
                yield vector
            vector = {}
        elif name == "FAIL":
            vector["PT"] = None
        elif name in ("Key", "IV", "PT", "AAD", "CT", "Tag"):
            vector[name] = bytes.fromhex(value)


@pytest.mark.parametrize("file", sorted(NIST.glob("gcm*.rsp")), ids=lambda file: file.stem)
def test_nist(file: Path) -> None:
    """Those vectors that have the nonce and the tag length of Iceberg."""
    checked = 0
    for vector in nist_vectors(file):
        key, nonce, aad, cipher, tag = (vector[name] for name in ("Key", "IV", "AAD", "CT", "Tag"))
        plain = vector["PT"]
        assert key is not None and nonce is not None and aad is not None and cipher is not None and tag is not None
        if len(nonce) == NONCE_LENGTH and len(tag) == TAG_LENGTH:
            check_vector(
                key, nonce, aad, bytes(len(cipher)) if plain is None else plain, cipher + tag, plain is not None
            )
            checked += 1
    assert checked == 375  # 25 lengths of AAD and text, 15 vectors each


def test_nist_is_all_there() -> None:
    assert len(list(NIST.glob("gcm*.rsp"))) == 6


@pytest.mark.parametrize("length", [0, 1, 15, 17, 31, 33, 64])
def test_a_key_of_another_length_is_refused(length: int) -> None:
    with pytest.raises(FormatError, match="16, 24 or 32"):
        AesGcm(Secret(bytes(length)))


@pytest.mark.parametrize("length", [0, 1, OVERHEAD - 1])
def test_too_few_bytes_are_no_ciphertext(length: int) -> None:
    cipher = AesGcm(Secret(bytes(16)))
    with pytest.raises(FormatError):
        cipher.open(bytes(length))
    with pytest.raises(FormatError):
        cipher.open_into(bytes(length), None, memoryview(bytearray(0)))


def test_an_output_that_does_not_fit_is_refused() -> None:
    cipher = AesGcm(Secret(bytes(16)))
    for wrong in (4, 6):
        with pytest.raises(UsageError):
            cipher.open_into(cipher.seal(b"12345"), None, memoryview(bytearray(wrong)))


def test_no_nonce_is_used_twice() -> None:
    cipher = AesGcm(Secret(bytes(16)))
    assert len({cipher.seal(b"")[:NONCE_LENGTH] for _ in range(10_000)}) == 10_000
