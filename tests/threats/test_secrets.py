"""22: key bytes in a log, a repr, a pickle or a traceback."""

from __future__ import annotations

import base64
import copy
import functools
import io
import logging
import os
import pickle
import tempfile
import traceback
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import pyiceberg_encryption
from pyiceberg_encryption import EncryptedKey, KekCache, Keyring, Secret, StandardKeyMetadata
from pyiceberg_encryption.ciphers import AesGcm
from pyiceberg_encryption.errors import EncryptionError, SecretExposureError
from pyiceberg_encryption.keyring import KEY_TIMESTAMP
from pyiceberg_encryption.kms import GuardedClient, KeyGenerationResult, KeyManagementClient
from pyiceberg_encryption.kms.keystore import Keystore
from pyiceberg_encryption.kms.memory import MemoryKeyManagementClient
from pyiceberg_encryption.stream import AesGcmInputStream, AesGcmOutputStream
from tests.support import MEMORY_PROPERTIES, NO_PAUSE, RecordingClient, Table, encrypted

if TYPE_CHECKING:
    from collections.abc import Callable

KEY = b"\x01SECRET-KEY-BYT\x02"
PACKAGE = Path(pyiceberg_encryption.__file__).parent
METADATA = StandardKeyMetadata(Secret(KEY), b"aad prefix, open", 100)


def assert_no_key_in(text: str) -> None:
    forms = [
        b"SECRET-KEY".decode(),
        KEY.hex(),
        base64.b64encode(KEY[:15]).decode(),
        repr(KEY),
        str(list(KEY)),
        "\\x01SECRET",
    ]
    for form in forms:
        assert form.lower() not in text.lower()


def holders() -> list[Any]:
    kms = GuardedClient(MemoryKeyManagementClient({"kms.memory.key.m": base64.b64encode(KEY).decode()}))
    cache = KekCache(kms)
    cache.make("m", len(KEY), lambda length: KEY[:length])
    keyring = Keyring([], master_key_id="m", kek_cache=cache)
    keyring.seal_manifest_list_key(METADATA)
    return [
        Secret(KEY),
        METADATA,
        KeyGenerationResult(KEY, b"wrapped"),
        kms,
        cache,
        keyring,
        keyring.added,
        a_writer(),
        AesGcmInputStream(bytes(100), METADATA),
    ]


def a_writer() -> AesGcmOutputStream:
    writer = AesGcmOutputStream(io.BytesIO(), METADATA)
    writer.discard()
    return writer


def test_22_reprs_and_logs(caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("threat")
    for holder in holders():
        for text in (repr(holder), str(holder), f"{holder}", f"{holder!r:>200}", f"{[holder]}", str({"k": holder})):
            assert_no_key_in(text)
        log.error("Look: %s %r", holder, holder)
    assert_no_key_in(caplog.text)
    assert "redacted" in caplog.text


def test_22_pickles_and_copies() -> None:
    for holder in (Secret(KEY), METADATA, [METADATA], {"k": Secret(KEY)}):
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
            with pytest.raises(SecretExposureError):
                pickle.dumps(holder, protocol)
        with pytest.raises(SecretExposureError):
            copy.deepcopy(holder)
    for holder in holders():
        try:
            pickled = pickle.dumps(holder)
        except (EncryptionError, TypeError):
            continue
        assert b"SECRET-KEY" not in pickled


class Quoting(KeyManagementClient):
    """A library that quotes the arguments of a call in its errors, as some do."""

    def wrap_key(self, key: bytes, wrapping_key_id: str) -> bytes:
        raise ValueError(f"Parameter validation failed: Plaintext={key!r}")

    def unwrap_key(self, wrapped_key: bytes, wrapping_key_id: str) -> bytes:
        raise RuntimeError(f"Unexpected answer: {KEY!r}")


def test_22_tracebacks_of_a_kms_library_that_quotes_keys() -> None:
    client = GuardedClient(Quoting({}), NO_PAUSE)
    for call in (lambda: client.wrap_key(Secret(KEY), "m"), lambda: client.unwrap_key(b"wrapped", "m")):
        text = traceback_of(call)
        assert_no_key_in(text)
        assert "Quoting raised" in text


def traceback_of(call: Callable[[], Any]) -> str:
    """What an error tracker could send: all that is chained to the error, even if that is suppressed, with the values
    of all variables in this package's functions."""
    try:
        call()
    except (EncryptionError, OSError) as error:
        chain: list[BaseException] = [error]
        while following := chain[-1].__cause__ or chain[-1].__context__:
            chain.append(following)
    else:
        pytest.fail("no error")
    text = ""
    for link in chain:
        report = traceback.TracebackException.from_exception(link, capture_locals=True)
        frames = [frame for frame in report.stack if Path(frame.filename).is_relative_to(PACKAGE)]
        text += "".join([*traceback.StackSummary.from_list(frames).format(), *report.format_exception_only()])
    return text


def test_22_tracebacks_of_a_keystore() -> None:
    """Whose passphrase is wrong, whose disk is full, whose file is missing."""
    passphrase = KEY.decode("latin-1")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "keystore.json"
        Keystore.create(path, passphrase, ["m"], entropy=master_key_or_random)
        calls: list[Callable[[], Any]] = [
            lambda: Keystore.open(path, passphrase + "x"),
            lambda: Keystore.open(path / "missing", passphrase),
            lambda: Keystore.create(path, passphrase, ["m"]),
            lambda: Keystore.add_key(path, passphrase, "m"),
        ]
        for call in calls:
            assert_no_key_in(traceback_of(call))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "fsync", full_disk)
            assert_no_key_in(traceback_of(lambda: Keystore.add_key(path, passphrase, "more")))


def master_key_or_random(length: int) -> bytes:
    return KEY * 2 if length == 2 * len(KEY) else os.urandom(length)


def full_disk(descriptor: int) -> None:
    raise OSError("No space left on device")


def test_22_tracebacks_with_the_values_of_variables() -> None:
    """As error trackers send them."""
    file, metadata = encrypted(b"plaintext", StandardKeyMetadata(Secret(KEY), b"prefix"))
    damaged = file[:-1] + bytes([file[-1] ^ 1])
    table = Table(RecordingClient({**MEMORY_PROPERTIES, "kms.memory.key.m": base64.b64encode(KEY).decode()}))
    calls: list[Callable[[], Any]] = [
        lambda: AesGcmInputStream(damaged, metadata).read(),
        lambda: AesGcmInputStream(file[:-1], metadata),
        lambda: a_writer().key_metadata,
        lambda: table.keyring().open_manifest_list_key("nothing"),
        lambda: table.keyring().seal_manifest_list_key(StandardKeyMetadata(Secret(KEY))),
    ]
    for call in calls:
        assert_no_key_in(traceback_of(call))


def test_22_tracebacks_of_a_keyring_whose_metadata_was_changed() -> None:
    kms = GuardedClient(RecordingClient(), NO_PAUSE)
    drawn = iter([KEY])  # the KEK; all else is random
    keyring = Keyring(
        [], master_key_id="keyA", kek_cache=KekCache(kms), entropy=lambda length: next(drawn, os.urandom(length))
    )
    key_id = keyring.seal_manifest_list_key(METADATA)
    kek_entry, entry = keyring.added
    value = entry.encrypted_key_metadata
    changed = replace(entry, encrypted_key_metadata=value[:-1] + bytes([value[-1] ^ 1]))
    reader = Keyring([kek_entry, changed], master_key_id="keyA", kek_cache=KekCache(kms))
    for call in (
        lambda: reader.open_manifest_list_key(key_id),
        lambda: reader.seal_manifest_list_key(METADATA),
        lambda: reader.open_manifest_list_key(kek_entry.key_id),
    ):
        assert_no_key_in(traceback_of(call))


def test_22_what_decoding_reports_of_damaged_key_metadata() -> None:
    whole = METADATA.encode()
    for damaged in (whole + b"x", whole[:-1], b"\x02" + whole[1:], whole[:18] + b"\x09" + whole[19:]):
        assert_no_key_in(traceback_of(functools.partial(StandardKeyMetadata.decode, damaged)))


def test_22_what_a_keyring_reports_of_key_metadata_of_a_later_version() -> None:
    table = Table()
    table.commit()
    kek_entry = table.keks[0]
    kek = Secret(table.client.unwrap_key(kek_entry.encrypted_key_metadata, "keyA"))
    later = AesGcm(kek).seal(b"\x02" + METADATA.encode(), kek_entry.properties[KEY_TIMESTAMP].encode())
    keyring = table.keyring([kek_entry, EncryptedKey("later", later, kek_entry.key_id)])
    text = traceback_of(lambda: keyring.open_manifest_list_key("later"))
    assert "version" in text
    assert_no_key_in(text)
