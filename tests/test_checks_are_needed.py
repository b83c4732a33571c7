"""Every test of a threat fails once the check that it guards is taken out.

Each case makes a copy of the package with one defect, and runs one test of `tests/threats` on it, which must fail.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows does not fork")

ROOT = Path(__file__).parent.parent


class Defect(NamedTuple):
    """In `file`, the one place that reads `old` becomes `new`."""

    file: str
    old: str
    new: str


class Case(NamedTuple):
    what: str
    test: str
    defects: tuple[Defect, ...]


def case(what: str, test: str, file: str, *replacements: tuple[str, str]) -> Case:
    return Case(what, test, tuple(Defect(file, old, new) for old, new in replacements))


CIPHERS, SECRET, METADATA, KEYRING, CACHE = (
    f"{name}.py" for name in ("ciphers", "secret", "key_metadata", "keyring", "kek_cache")
)
LAYOUT, READER, WRITER, BLOCKS, PARALLEL = (
    f"stream/{name}.py" for name in ("layout", "reader", "writer", "blocks", "parallel")
)
GUARD, CLIENT = "kms/guard.py", "kms/client.py"
FILE_IO, KEYS, METADATA_FILES, MANIFESTS, SNAPSHOTS, POLICY, PARQUET, DELETES, TABLE, TRANSACTION = (
    f"table/{name}.py"
    for name in (
        *("file_io", "keys", "metadata_files", "manifests", "snapshots", "policy", "parquet_data", "deletes", "table"),
        "transaction",
    )
)
CATALOG, STATIC = "catalogs/base.py", "catalogs/static.py"
SEALED, REGISTRY = "pipeline/sealed.py", "kms/registry.py"

ONE_KEY_FOR_ALL_FILES = Defect(
    METADATA,
    "cls(Secret.random(key_length, entropy), entropy(AAD_PREFIX_LENGTH))",
    "cls(Secret(bytes(key_length)), bytes(AAD_PREFIX_LENGTH))",
)

CASES = [
    case(
        "files travel with their keys in the clear",
        "test_pipeline.py::test_26_what_travels_holds_no_key",
        SEALED,
        (
            'return self._cipher.seal(length + encoded + pickle.dumps(partitions), _PURPOSE + b".entries")',
            "return length + encoded + pickle.dumps(partitions)",
        ),
    ),
    case(
        "all settings of the KMS come along",
        "test_pipeline.py::test_26_nothing_that_is_secret_is_needed_to_come_along",
        REGISTRY,
        ("for name, value in properties.items() if name in _PUBLIC}", "for name, value in properties.items()}"),
    ),
    case(
        "what comes is opened for any purpose",
        "test_pipeline.py::test_26_what_was_changed_on_the_way_is_not_opened",
        SEALED,
        (
            'opened = memoryview(self._cipher.open(sealed, _PURPOSE + b".entries"))',
            "opened = memoryview(sealed[28:] if isinstance(sealed, bytes) else sealed)",
        ),
    ),
    case(
        "all jobs have the same key",
        "test_pipeline.py::test_26_one_jobs_key_opens_nothing_of_another",
        SEALED,
        ("derive = HKDF(SHA256(), DERIVED_KEY_LENGTH, salt, _PURPOSE)", "derive = HKDF(SHA256(), 32, None, _PURPOSE)"),
    ),
    case(
        "the header is not authenticated, and not looked at either",
        "test_streams.py::test_01_any_byte_of_the_file_flipped",
        READER,
        ("header != layout.HEADER", "False"),
    ),
    case(
        "tags are not verified when a block is opened in place",
        "test_streams.py::test_01_a_byte_of_one_block_flipped",
        CIPHERS,
        ("            out[:] = zeros\n", ""),
        ("            raise _integrity_error() from None\n\n\ndef _sealed", "            pass\n\n\ndef _sealed"),
    ),
    case(
        "unverified plaintext stays in the caller's buffer",
        "test_streams.py::test_01_no_plaintext_is_left_in_the_buffer_of_a_failed_read",
        CIPHERS,
        ("            out[:] = zeros\n", ""),
    ),
    case(
        "a block counts as cached before it was opened",
        "test_streams.py::test_01_a_failed_block_is_not_served_from_the_cache_afterwards",
        READER,
        (
            "        self._open_blocks(block, 1, self._cached)\n        self._cached_block = block",
            "        self._cached_block = block\n        self._open_blocks(block, 1, self._cached)",
        ),
    ),
    *(
        case(
            "the AAD does not say which block it is",
            f"test_streams.py::{test}",
            BLOCKS,
            ('self._aad_prefix + block.to_bytes(4, "little")', "self._aad_prefix"),
        )
        for test in ("test_02_blocks_swapped", "test_02_a_block_dropped", "test_02_a_block_repeated")
    ),
    case(
        "the AAD does not say which file it is",
        "test_streams.py::test_03_two_whole_files_of_one_key_swapped",
        BLOCKS,
        ('self._aad_prefix + block.to_bytes(4, "little")', 'block.to_bytes(4, "little")'),
    ),
    case(
        "every file has the same key and prefix",
        "test_streams.py::test_03_two_whole_files_swapped",
        METADATA,
        ("cls(Secret.random(key_length, entropy), entropy(AAD_PREFIX_LENGTH))", "cls(Secret(bytes(key_length)), b'')"),
    ),
    *(
        case(
            "the recorded length is not compared",
            f"test_streams.py::{test}",
            READER,
            ("recorded is not None and recorded != actual", "False"),
        )
        for test in ("test_04_truncated_at_a_block_boundary", "test_05_bytes_appended")
    ),
    case(
        "a recorded length is not required",
        "test_streams.py::test_04_key_metadata_without_a_length",
        READER,
        ("recorded is None and not allow_unrecorded", "False"),
    ),
    case(
        "the block length in the header is not looked at",
        "test_streams.py::test_06_a_block_length_other_than_1_mib",
        READER,
        ("header != layout.HEADER", "False"),
    ),
    case(
        "the magic is not looked at",
        "test_streams.py::test_06_another_magic",
        READER,
        ("header[: len(layout.MAGIC)] != layout.MAGIC", "False"),
        ("header != layout.HEADER", "header[4:] != layout.HEADER[4:]"),
    ),
    case(
        "a stream may have any length",
        "test_streams.py::test_07_a_stream_shorter_than_any",
        LAYOUT,
        ("encrypted_length < MIN_ENCRYPTED_LENGTH", "False"),
    ),
    case(
        "a last block may have any length",
        "test_streams.py::test_07_a_last_block_shorter_than_any",
        LAYOUT,
        ("rest < OVERHEAD or (rest == OVERHEAD and full_blocks > 0)", "False"),
    ),
    case(
        "an empty stream is not opened at all",
        "test_streams.py::test_07_an_empty_stream_is_authenticated_too",
        READER,
        ("self._length == 0 and self._cached_block != 0", "False"),
    ),
    case(
        "any version of key metadata will do",
        "test_key_metadata.py::test_08_wrong_version",
        METADATA,
        ("len(view) == 0 or view[0] != VERSION", "len(view) == 0"),
    ),
    case(
        "lengths in key metadata are believed",
        "test_key_metadata.py::test_08_huge_or_negative_length",
        METADATA,
        ("not 0 <= length <= at_most", "False"),
        ("length > len(self._view) - self._at", "False"),
        ("self._view[start : self._at]", "memoryview(bytes(16))"),
        ("self._at != len(self._view):\n            raise", "False:\n            raise"),
    ),
    case(
        "bytes after the end of key metadata are overlooked",
        "test_key_metadata.py::test_08_trailing_bytes",
        METADATA,
        ("self._at != len(self._view):\n            raise", "False:\n            raise"),
    ),
    case(
        "a key may have any length",
        "test_key_metadata.py::test_08_key_of_another_length",
        METADATA,
        ('check_key_length(len(self.encryption_key), "The encryption key in key metadata")', "pass"),
    ),
    case(
        "the end of key metadata is not looked for",
        "test_key_metadata.py::test_08_truncated_anywhere",
        METADATA,
        ("self._at == len(self._view):\n", "False:\n"),
        ("byte = self._view[self._at]", "byte = self._view[self._at] if self._at < len(self._view) else 0"),
        ("length > len(self._view) - self._at", "False"),
        ("self._at != len(self._view):\n            raise", "False:\n            raise"),
    ),
    case(
        "any union branch means that there is a value",
        "test_key_metadata.py::test_08_unknown_union_branch",
        METADATA,
        ("branch not in (0, 1)", "False"),
        ("return branch == 1", "return branch != 0"),
    ),
    case(
        "numbers may be padded",
        "test_key_metadata.py::test_08_number_that_is_not_in_its_shortest_form_or_of_more_than_64_bits",
        METADATA,
        ("(byte == 0 and shift > 0) or unsigned >= 1 << 64", "False"),
    ),
    case(
        "a file length may be negative",
        "test_key_metadata.py::test_08_negative_file_length",
        METADATA,
        ("self.file_length is not None and not 0 <= self.file_length <= MAX_FILE_LENGTH", "False"),
    ),
    case(
        "values in key metadata may have any length",
        "test_key_metadata.py::test_08_more_bytes_than_any_writer_makes",
        METADATA,
        ("not 0 <= length <= at_most", "False"),
    ),
    *(
        case(
            "missing keys are not missed before new ones are added",
            f"test_keyring.py::{test}",
            KEYRING,
            ("        self._check_complete()\n", ""),
        )
        for test in (
            "test_13_all_encryption_keys_stripped",
            "test_13_one_encryption_key_stripped",
            "test_13_manifest_list_keys_that_name_no_kek",
            "test_18_a_snapshot_sealed_by_a_planted_kek",
        )
    ),
    case(
        "where the KMS refuses the newest KEK, a new one is minted",
        "test_keyring.py::test_13_a_kek_altered",
        KEYRING,
        (
            "                kek = self._unwrap(kek_entry)\n",
            "                try:\n                    kek = self._unwrap(kek_entry)\n"
            "                except IntegrityError:\n                    continue\n",
        ),
    ),
    case(
        "a failure of authentication is passed over",
        "test_keyring.py::test_13_a_manifest_list_key_altered",
        CIPHERS,
        (
            "            raise _integrity_error() from None\n\n    def seal_into",
            "            return bytes.fromhex('0120' + '00' * 16 + '0000')\n\n    def seal_into",
        ),
    ),
    case(
        "a KEK is used again without proof of its time",
        "test_keyring.py::test_16_timestamp_edited_to_keep_an_old_kek_alive",
        KEYRING,
        ("                self._open(proof, kek_entry, kek)\n", ""),
    ),
    case(
        "a KEK that looks too old is passed over before it is proven",
        "test_keyring.py::test_16_timestamp_dated_back",
        KEYRING,
        (
            "            if proof is not None:\n",
            "            if proof is not None and now - made < self._kek_lifespan:\n",
        ),
    ),
    case(
        "a KEK that claims to be from the future is trusted",
        "test_keyring.py::test_16_timestamp_dated_into_the_future",
        KEYRING,
        ("                self._open(proof, kek_entry, kek)\n", ""),
        ("< made <= now + MAX_CLOCK_SKEW_MILLIS", "< made"),
    ),
    case(
        "a KEK from the future is used",
        "test_keyring.py::test_16_a_kek_whose_true_time_lies_in_the_future",
        KEYRING,
        ("< made <= now + MAX_CLOCK_SKEW_MILLIS", "< made"),
    ),
    case(
        "a time that is none raises an error of Python's own",
        "test_keyring.py::test_16_timestamp_that_is_none",
        KEYRING,
        ("not (text.isascii() and text.isdigit() and len(text) <= MAX_TIMESTAMP_DIGITS)", "False"),
    ),
    case(
        "the metadata says which master key unwraps a KEK",
        "test_keyring.py::test_18_a_kek_wrapped_by_the_attackers_own_key",
        KEYRING,
        ("entry.encrypted_by_id != self._master_key_id", "False"),
        (
            "self._kek_cache.unwrap(kek_entry.encrypted_key_metadata, self._master_key_id)",
            "self._kek_cache.unwrap(kek_entry.encrypted_key_metadata, kek_entry.encrypted_by_id)",
        ),
    ),
    *(
        case(
            "whatever master key opens a KEK is good enough",
            f"test_keyring.py::{test}",
            "kms/master_keys.py",
            (
                "            return AesGcm(master_key).open(wrapped_key)\n",
                "            for key in self._master_keys.values():\n"
                "                try:\n                    return AesGcm(key).open(wrapped_key)\n"
                "                except IntegrityError:\n                    pass\n"
                "            raise IntegrityError\n",
            ),
        )
        for test in (
            "test_18_a_kek_that_claims_to_be_wrapped_by_the_master_key",
            "test_18_a_kek_wrapped_by_another_master_key_of_the_same_kms",
        )
    ),
    case(
        "what does not unwrap is taken for a KEK in the clear",
        "test_keyring.py::test_18_a_kek_left_in_the_clear",
        "kms/master_keys.py",
        (
            "            return AesGcm(master_key).open(wrapped_key)\n",
            "            if len(wrapped_key) < 44:\n                return wrapped_key\n"
            "            return AesGcm(master_key).open(wrapped_key)\n",
        ),
    ),
    case(
        "an outage is not retried",
        "test_kms.py::test_19_kms_is_down_for_a_moment",
        GUARD,
        ("if attempt == self._policy.max_attempts:", "if True:"),
    ),
    case(
        "retries follow at once",
        "test_kms.py::test_19_kms_throttles_or_is_down",
        GUARD,
        ("                self._policy.pause(attempt)\n", ""),
    ),
    case(
        "pauses have no jitter",
        "test_kms.py::test_19_kms_throttles_or_is_down",
        GUARD,
        ("self.sleep(self.jitter(0, longest))", "self.sleep(1.0)"),
    ),
    case(
        "a call may take as long as it likes",
        "test_kms.py::test_19_kms_does_not_answer",
        GUARD,
        ("thread.join(self._policy.request_timeout)", "thread.join()"),
    ),
    case(
        "a denial is retried",
        "test_kms.py::test_20_kms_denies",
        GUARD,
        ("except KmsUnavailableError as error:", "except KmsError as error:"),
    ),
    case(
        "an unwrapped KEK is kept for ever",
        "test_kms.py::test_20_access_outlives_a_revocation_until_the_ttl_ends",
        CACHE,
        ("if entry.ends <= now", "if False"),
    ),
    case(
        "a use prolongs the life of an unwrapped KEK",
        "test_kms.py::test_20_a_use_does_not_prolong_the_ttl",
        CACHE,
        (
            "                return self._entries[name].kek\n",
            "                self._entries[name] = _Entry(self._entries[name].kek, self._clock() + self._ttl)\n"
            "                return self._entries[name].kek\n",
        ),
    ),
    case(
        "a secret shows its bytes",
        "test_secrets.py::test_22_reprs_and_logs",
        SECRET,
        ('f"Secret({len(self._data)} bytes, redacted)"', 'f"Secret({bytes(self._data)!r}, redacted)"'),
    ),
    case(
        "a secret can be pickled",
        "test_secrets.py::test_22_pickles_and_copies",
        SECRET,
        (
            "    def __reduce_ex__(self, protocol: object) -> NoReturn:\n        _refuse()",
            "    def __reduce_ex__(self, protocol):\n        return Secret, (bytes(self._data),)",
        ),
    ),
    case(
        "a generated key is kept as bytes",
        "test_secrets.py::test_22_pickles_and_copies",
        CLIENT,
        ("self.key = Secret(key)", "self.key = key"),
    ),
    case(
        "what a KMS library says is passed on",
        "test_secrets.py::test_22_tracebacks_of_a_kms_library_that_quotes_keys",
        GUARD,
        ('f"{type(error).__name__}{place} (its', 'f"{error!r}{place} (its'),
    ),
    case(
        "what is wrong with key metadata is shown by quoting it",
        "test_secrets.py::test_22_what_decoding_reports_of_damaged_key_metadata",
        METADATA,
        ('"Key metadata has bytes after its end"', 'f"Key metadata has bytes after its end: {bytes(self._view)!r}"'),
    ),
    case(
        "tracebacks reach a variable that holds a key",
        "test_secrets.py::test_22_tracebacks_with_the_values_of_variables",
        READER,
        (
            "        self._given_location = location\n",
            "        self._given_location = location\n        key = bytes(key_metadata.encryption_key.expose())\n",
        ),
    ),
    case(
        "nonces are drawn ahead",
        "test_forks.py::test_24_nonces_differ",
        CIPHERS,
        (
            "        self._entropy = entropy\n",
            "        drawn = [entropy(NONCE_LENGTH) for _ in range(9)]\n"
            "        self._entropy = lambda length: drawn.pop() if length == NONCE_LENGTH else entropy(length)\n",
        ),
    ),
    case(
        "data keys are drawn ahead",
        "test_forks.py::test_24_data_keys_differ",
        METADATA,
        (
            '        """A fresh key and AAD prefix for a file to be written."""\n',
            "        import random\n        global _drawn\n"
            "        _drawn = globals().get('_drawn') or random.Random(1)\n"
            "        entropy = _drawn.randbytes\n",
        ),
    ),
    case(
        "a child goes on with its parent's writer",
        "test_forks.py::test_24_a_writer_is_of_no_use_in_a_child",
        WRITER,
        (
            "        if self._process != process.generation():\n            raise",
            "        if False:\n            raise",
        ),
    ),
    case(
        "a child that drops a writer completes it",
        "test_forks.py::test_24_a_child_that_drops_a_writer_leaves_the_file_to_its_parent",
        WRITER,
        ("            self.discard()\n            if self", "            self.close()\n            if self"),
        (
            "        if self._process != process.generation():\n            raise",
            "        if False:\n            raise",
        ),
    ),
    case(
        "helpers that did not come along are waited for",
        "test_forks.py::test_24_threads_for_large_buffers_start_anew_in_a_child",
        PARALLEL,
        ("_helpers_generation != process.generation()", "_helpers_generation < 0"),
        (
            "        for index in indexes:\n            work(index)\n    finally:\n        _wait",
            "        while not ended:\n            pass\n    finally:\n        _wait",
        ),
    ),
    *(
        case(
            "a child waits for locks that its parent's threads hold",
            f"test_forks.py::{test}",
            "process.py",
            ("    for owner in _with_locks:\n        owner._lock = threading.Lock()\n", ""),
        )
        for test in (
            "test_24_a_call_of_the_kms_under_way_does_not_block_a_child",
            "test_24_a_commit_under_way_does_not_block_a_child",
        )
    ),
    case(
        "a child goes on with its parent's reader",
        "test_forks.py::test_24_a_reader_of_a_file_is_of_no_use_in_a_child",
        READER,
        (
            "        if self._process != process.generation():\n            raise",
            "        if False:\n            raise",
        ),
    ),
    case(
        "a variable holds all master keys while the file is written",
        "test_secrets.py::test_22_tracebacks_of_a_keystore",
        "kms/keystore.py",
        (
            "        _replace(self.path, data)\n",
            "        keys = bytes(self._encoded().expose())\n        _replace(self.path, data)\n",
        ),
    ),
    case(
        "a variable holds a KEK while it is used",
        "test_secrets.py::test_22_tracebacks_of_a_keyring_whose_metadata_was_changed",
        KEYRING,
        (
            '        """The encoded key metadata. That',
            '        key = bytes(kek.expose())\n        """The encoded key metadata. That',
        ),
    ),
    case(
        "a variable holds key metadata while it is decoded",
        "test_secrets.py::test_22_what_a_keyring_reports_of_key_metadata_of_a_later_version",
        METADATA,
        ("        del data  # so that no traceback shows it\n", "        data = bytes(data)\n"),
    ),
    case(
        "what begins like a plain Avro file is read as one",
        "test_table_files.py::test_09_plaintext_in_place_of_a_manifest_or_manifest_list",
        FILE_IO,
        (
            "        return io.input(location, key).read()\n",
            "        stored = io.plain.new_input(location).open().read()\n"
            "        return stored if stored[:3] == b'Obj' else io.input(location, key).read()\n",
        ),
    ),
    Case(
        "every manifest has the same key, and its length is not compared",
        "test_table_files.py::test_09_manifests_or_manifest_lists_swapped",
        (ONE_KEY_FOR_ALL_FILES, Defect(READER, "recorded is not None and recorded != actual", "False")),
    ),
    case(
        "manifests are in plaintext",
        "test_table_others.py::test_09_pyiceberg_itself_reads_nothing_of_an_encrypted_table",
        FILE_IO,
        (
            "        sink = self.plain.create(overwrite=overwrite)\n",
            "        return self.plain.create(overwrite=overwrite)\n        sink = None\n",
        ),
        (
            "return AesGcmInputStream(self._plain.open(seekable=True), self._key.open(), location=self.location)",
            "return self._plain.open(seekable=True)",
        ),
    ),
    *(
        case(
            "data files need no key",
            f"test_table_files.py::{test}",
            KEYS,
            ("if not self.admits_plaintext_data:", "if False:"),
        )
        for test in ("test_10_a_data_file_without_a_key", "test_10_plaintext_files_added")
    ),
    case(
        "delete files need no key either while data files are converted",
        "test_table_files.py::test_10_a_delete_file_without_a_key",
        DELETES,
        ("        check_has_key(io, file.file_path, file_key(file))\n", ""),
    ),
    *(
        case(
            "nor do manifests and manifest lists",
            f"test_table_files.py::{test}",
            FILE_IO,
            ("    check_has_key(io, location, key)\n", ""),
        )
        for test in ("test_10_a_manifest_without_a_key", "test_10_a_snapshot_without_a_key_id")
    ),
    case(
        "the metadata of a table says whether plaintext is admitted",
        "test_table_metadata.py::test_10_metadata_that_asks_for_leniency",
        CATALOG,
        (
            "admits_plaintext_data=self._policy.admits_plaintext_data",
            "admits_plaintext_data=metadata.properties.get(policy.PLAINTEXT_DATA_FILES) == 'admit'",
        ),
    ),
    *(
        case(
            "a plaintext file is read in place of an encrypted one",
            f"test_table_files.py::{test}",
            PARQUET,
            (
                "aad_prefix=key_metadata.aad_prefix\n    )\n",
                "aad_prefix=key_metadata.aad_prefix,\n        allow_plaintext_files=True)\n",
            ),
        )
        for test in (
            "test_11_another_file_in_place_of_a_data_file",
            "test_11_a_plaintext_data_file_however_it_is_read",
        )
    ),
    Case(
        "every data file has the same key", "test_table_files.py::test_11_data_files_swapped", (ONE_KEY_FOR_ALL_FILES,)
    ),
    *(
        case(
            "the name of a metadata file is not compared with its content",
            f"test_table_metadata.py::{test}",
            METADATA_FILES,
            ("claimed != _content_uuid(stored)", "False"),
        )
        for test in (
            "test_12_to_18_metadata_changed_in_place",
            "test_17_metadata_rolled_back",
            "test_17_metadata_of_another_table",
        )
    ),
    case(
        "a table without a key id is a plain one",
        "test_table_metadata.py::test_12_key_id_stripped",
        POLICY,
        ("if encryption_keys(metadata) or any(", "if False and any("),
    ),
    case(
        "a table without a key id is a plain one, whatever is asked for",
        "test_table_metadata.py::test_12_all_of_the_encryption_stripped",
        POLICY,
        ("if self.required or expected:", "if False:"),
    ),
    case(
        "a table becomes a plain one while it is in use",
        "test_table_metadata.py::test_12_a_table_stripped_while_it_is_in_use",
        TABLE,
        (
            "        if isinstance(before, EncryptedFileIO):\n",
            "        if isinstance(before, EncryptedFileIO) and isinstance(self.io, EncryptedFileIO):\n",
        ),
    ),
    case(
        "whoever has a table's metadata need not know its key",
        "test_table_others.py::test_12_a_static_table_without_a_key_id",
        STATIC,
        ("if table.is_encrypted and not key_id:", "if False:"),
    ),
    case(
        "missing keys are not missed before new ones are added",
        "test_table_metadata.py::test_13_and_18_keys_stripped_altered_or_planted",
        KEYRING,
        ("        self._check_complete()\n", ""),
    ),
    case(
        "snapshots without a key id are not minded",
        "test_table_others.py::test_13_software_that_does_not_know_encryption_commits",
        KEYS,
        ("            if name is None:\n", "            if name is None:\n                continue\n"),
    ),
    case(
        "a table of format version 2 is a plain one",
        "test_table_metadata.py::test_14_format_version_2",
        POLICY,
        ("if metadata.format_version < VERSION:", "if False:"),
    ),
    case(
        "a new table of format version 2 is a plain one",
        "test_table_metadata.py::test_14_a_new_table_of_a_version_that_knows_no_encryption",
        POLICY,
        ("if not (version.isascii() and version.isdigit()) or int(version) < VERSION:", "if False:"),
    ),
    case(
        "the metadata says which master key unwraps a KEK",
        "test_table_metadata.py::test_15_key_id_changed",
        KEYRING,
        ("entry.encrypted_by_id != self._master_key_id", "False"),
        (
            "self._kek_cache.unwrap(kek_entry.encrypted_key_metadata, self._master_key_id)",
            "self._kek_cache.unwrap(kek_entry.encrypted_key_metadata, kek_entry.encrypted_by_id)",
        ),
    ),
    *(
        case(
            "any key id is as good as the expected one",
            f"test_table_metadata.py::{test}",
            POLICY,
            ("if expected and key != expected:", "if False:"),
        )
        for test in (
            "test_15_key_id_changed_before_the_first_key_was_made",
            "test_15_a_new_table_of_another_key",
        )
    ),
    case(
        "a commit may change the key",
        "test_table_metadata.py::test_15_key_id_or_key_length_changed_by_a_commit",
        POLICY,
        ("if old != new:", "if False:"),
    ),
    case(
        "keys may have any length",
        "test_table_metadata.py::test_15_keys_of_no_valid_length",
        POLICY,
        ("if not (text.isascii() and text.isdigit()) or int(text) not in KEY_LENGTHS:", "if False:"),
    ),
    case(
        "unverified metadata names code, and nobody minds",
        "test_table_metadata.py::test_17_unverified_metadata_that_names_code_to_run",
        POLICY,
        ("        if label in properties:\n", "        if False:\n"),
    ),
    case(
        "unverified metadata says how to reach the storage",
        "test_table_metadata.py::test_17_unverified_metadata_that_names_another_place",
        CATALOG,
        (
            "            policy.check_names_no_code(name_of(identifier), metadata.properties)\n        else:\n",
            "        if True:\n",
        ),
    ),
    case(
        "unverified metadata is never refused",
        "test_table_metadata.py::test_17_unverified_metadata_is_refused_where_that_is_asked_for",
        POLICY,
        ("if self.refuses_unverified_metadata:", "if False:"),
    ),
    case(
        "what a failed commit wrote is left",
        "test_table_kms.py::test_19_and_20_kms_fails_while_a_table_is_written",
        SNAPSHOTS,
        ("            self._clean_all_uncommitted()\n", ""),
    ),
    case(
        "without a KMS, tables are plain ones",
        "test_table_kms.py::test_20_no_kms_configured",
        CATALOG,
        (
            "        length = policy.data_key_length(metadata.properties)\n",
            "        try:\n            self._keks.cache()\n        except ValueError:\n            return plain\n"
            "        length = policy.data_key_length(metadata.properties)\n",
        ),
    ),
    case(
        "a catalog keeps KEKs for as long as it likes",
        "test_table_kms.py::test_20_a_tables_rows_outlive_a_revocation_until_the_ttl_ends",
        CATALOG,
        (
            "KekCache.from_properties(load_kms_client(self.properties), self.properties)",
            "KekCache(load_kms_client(self.properties))",
        ),
    ),
    case(
        "a TTL below 0 or without end is taken",
        "test_table_kms.py::test_20_a_ttl_that_cannot_be_meant",
        GUARD,
        ("if not 0 <= value <= highest or (value == 0 and not may_be_zero):", "if False:"),
    ),
    case(
        "where the master key is unknown, another is taken",
        "test_table_kms.py::test_20_the_master_key_is_not_in_the_kms",
        "kms/master_keys.py",
        (
            "        if key_id not in self._master_keys:\n",
            "        key_id = next(iter(self._master_keys))\n        if False:\n",
        ),
    ),
    case(
        "keys of an attempt that failed are committed with the next",
        "test_table_writers.py::test_21_many_writers_at_once",
        TRANSACTION,
        ("if not isinstance(update, AddEncryptionKeyUpdate)", "if True"),
    ),
    *(
        case(
            "the key of a file is bytes like any",
            f"test_table_secrets.py::{test}",
            FILE_IO,
            ("super().__new__(cls, REDACTED)", "super().__new__(cls, bytes(encoded))"),
        )
        for test in ("test_22_reprs_and_logs_of_tables", "test_22_inspections_of_tables")
    ),
    case(
        "the key of a file can be pickled",
        "test_table_secrets.py::test_22_pickles_and_copies_of_tables",
        FILE_IO,
        (
            '        raise SecretExposureError("The key of a file cannot be pickled")',
            "        return bytes, (self.encode(),)",
        ),
    ),
    case(
        "a variable holds a key while a data file is opened",
        "test_table_secrets.py::test_22_tracebacks_of_reading_what_was_changed",
        PARQUET,
        (
            "        self._is_encrypted = key is not None\n",
            "        self._is_encrypted = key is not None\n"
            "        footer_key = bytes(key.open().encryption_key.expose()) if key else None\n",
        ),
    ),
    case(
        "a variable holds a key while a manifest is created",
        "test_table_secrets.py::test_22_tracebacks_of_writing_to_a_broken_storage",
        FILE_IO,
        (
            "        sink = self.plain.create(overwrite=overwrite)\n",
            "        key = bytes(self.key_metadata.encryption_key.expose())\n"
            "        sink = self.plain.create(overwrite=overwrite)\n",
        ),
    ),
    case(
        "a variable holds all keys of a manifest while it is written",
        "test_table_secrets.py::test_22_tracebacks_of_a_storage_that_breaks_in_the_middle_of_a_manifest",
        MANIFESTS,
        (
            "        self.encoder.write(content)",
            "        content = bytes(content)\n        self.encoder.write(content)",
        ),
    ),
    case(
        "the footers of data files are in plaintext",
        "test_table_secrets.py::test_23_what_the_storage_shows",
        PARQUET,
        ("store_aad_prefix=False,", "store_aad_prefix=False, plaintext_footer=True,"),
    ),
    *(
        case(
            "whatever a decoder raises is passed on",
            f"test_table_hostile_content.py::{test}",
            MANIFESTS,
            ('raise FormatError(f"{location} is not a manifest or manifest list: {error}") from None', "raise"),
        )
        for test in (
            "test_25_manifests_and_manifest_lists_changed_or_cut_anywhere",
            "test_25_lengths_that_nothing_follows",
        )
    ),
    case(
        "what is not authentic is decoded without looking where it ends",
        "test_table_hostile_content.py::test_25_a_number_that_goes_on_behind_the_end",
        MANIFESTS,
        ("new_decoder if is_authentic else _CarefulDecoder", "new_decoder"),
    ),
    *(
        case(
            f"{what} of a deletion vector is believed",
            "test_table_hostile_content.py::test_25_a_hostile_deletion_vector",
            DELETES,
            (check, "False"),
        )
        for what, check in (
            ("the place", "offset + size > stream.seek(0, os.SEEK_END)"),
            ("the content", 'zlib.crc32(payload) != int.from_bytes(blob[-CRC_BYTES:], "big")'),
            ("the number of rows", "len(vector) != file.record_count"),
        )
    ),
    case(
        "the last of several deletion vectors wins",
        "test_table_hostile_content.py::test_25_two_deletion_vectors_for_one_file",
        DELETES,
        ("self._vectors.setdefault(referenced, entry) is not entry", "self._vectors.update({referenced: entry})"),
    ),
    case(
        "manifests with their keys are kept in the cache of the process",
        "test_table_others.py::test_03_the_manifest_cache_of_pyiceberg",
        MANIFESTS,
        (
            "            manifests.append(manifest)\n        return manifests",
            "            from pyiceberg.manifest import _manifest_cache\n"
            "            manifests.append(_manifest_cache.get_or_cache(manifest))\n        return manifests",
        ),
    ),
]


# Has all that takes long to import but the package itself, and runs each test in a fork of its own.
RUNNER = """
import os, sys
import cryptography.hazmat.primitives.ciphers.aead, pyarrow.dataset, pyarrow.parquet.encryption, pyroaring
import pyiceberg.catalog.sql, pyiceberg.io.pyarrow, pyiceberg.table.inspect, pytest, sqlalchemy.dialects.sqlite
for line in sys.stdin:
    *options, output = line.rstrip().split("|")
    child = os.fork()
    if child == 0:
        log = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        result = pytest.main(options)
        sys.stdout.flush()
        os._exit(result)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class Runner:
    def __init__(self, project: Path) -> None:
        self.project = project
        self._process = subprocess.Popen(
            [sys.executable, "-B", "-c", RUNNER], cwd=project, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(self, test: str, *options: str) -> tuple[int, str]:
        """The exit code and the output of pytest."""
        # pytest would take minutes to explain how one MiB differs from another
        options = ("-x", "-q", "-pno:cacheprovider", "--assert=plain", *options, f"tests/threats/{test}")
        output = self.project / "output"
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(*options, output, sep="|", file=self._process.stdin, flush=True)
        return int(self._process.stdout.readline()), output.read_text()

    def close(self) -> None:
        self._process.communicate()


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    folder = tmp_path_factory.mktemp("defective")
    shutil.copy(ROOT / "pyproject.toml", folder)
    for part in ("pyiceberg_encryption", "tests"):
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    runner = Runner(folder)
    yield runner
    runner.close()


def test_all_threats_are_met_without_a_defect(runner: Runner) -> None:
    result, output = runner.run("", "--deselect=tests/threats/test_table_writers.py")  # which takes long
    assert result == 0, output


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.test.split('::')[1]}-{case.what}")
def test_fails_once_the_check_is_taken_out(case: Case, runner: Runner) -> None:
    originals: dict[Path, str] = {}
    try:
        for defect in case.defects:
            path = runner.project / "pyiceberg_encryption" / defect.file
            text = path.read_text()
            originals.setdefault(path, text)
            assert text.count(defect.old) == 1, f"not in one place: {defect.old}"
            path.write_text(text.replace(defect.old, defect.new))
        result, output = runner.run(case.test)
    finally:
        for path, text in originals.items():
            path.write_text(text)
    assert result == 1, output  # tests ran, and failed
    assert " failed" in output, output
    assert not re.search(r"^E +(NameError|AttributeError)", output, re.MULTILINE), output


def test_every_threat_test_is_shown_to_be_needed() -> None:
    """But for those that say what is not an attack."""
    tests = {
        f"{path.name}::{line.removeprefix('def ').partition('(')[0]}"
        for path in (ROOT / "tests" / "threats").glob("test_*.py")
        for line in path.read_text().splitlines()
        if line.startswith("def test_")
    }
    no_attacks = {
        "test_keyring.py::test_16_a_writer_whose_clock_is_a_little_ahead_is_not_an_attack",
        "test_table_hostile_content.py::test_25_a_deletion_vector_that_is_as_it_should_be_deletes",
    }
    assert tests - no_attacks == {case.test for case in CASES}
