from __future__ import annotations

import base64
import json
import os
import pickle
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from filelock import FileLock
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pyiceberg_encryption import Secret, load_kms_client
from pyiceberg_encryption.errors import (
    ClosedError,
    ConfigurationError,
    EncryptionError,
    FormatError,
    IntegrityError,
    KmsKeyError,
    UsageError,
)
from pyiceberg_encryption.kms import keystore
from pyiceberg_encryption.kms.keystore import Keystore
from pyiceberg_encryption.kms.local import LocalKeyManagementClient

if TYPE_CHECKING:
    from pathlib import Path

PASSPHRASE = "correct horse battery staple"


@pytest.fixture(autouse=True)
def quick_argon2(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    if "real_argon2" not in request.fixturenames:
        monkeypatch.setattr(keystore, "MEMORY_KIB", 64)
        monkeypatch.setattr(keystore, "ITERATIONS", 1)


@pytest.fixture
def real_argon2() -> None: ...


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys" / "keystore.json"


def properties(path: Path, **more: str) -> dict[str, str]:
    return {"encryption.kms-type": "local", "kms.local.keystore": str(path), "kms.local.passphrase": PASSPHRASE, **more}


def test_keys_come_back(path: Path) -> None:
    made = Keystore.create(path, PASSPHRASE, ["orders", "людям"])
    assert Keystore.open(path, PASSPHRASE).keys == made.keys
    assert {len(key) for key in made.keys.values()} == {32}
    assert made.keys["orders"] != made.keys["людям"]
    added = Keystore.add_key(path, PASSPHRASE, "more")
    assert {**made.keys, "more": added.keys["more"]} == Keystore.open(path, PASSPHRASE).keys


def test_the_file_is_the_owners_alone_and_shows_no_key(path: Path) -> None:
    store = Keystore.create(path, PASSPHRASE, ["orders"])
    for another in ("people", "things"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        content = path.read_bytes()
        for key in Keystore.open(path, PASSPHRASE).keys.values():
            raw = bytes(key.expose())
            for form in (raw, raw.hex().encode(), base64.b64encode(raw)):
                assert form not in content
        Keystore.add_key(path, PASSPHRASE, another)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o640)  # its owner lets a team read it
    Keystore.add_key(path, PASSPHRASE, "last")
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert repr(store) == f"Keystore({str(path)!r}, key ids ['orders'])"


def test_the_passphrase_is_stretched_as_rfc_9106_recommends(path: Path, real_argon2: None) -> None:
    Keystore.create(path, PASSPHRASE, ["orders"])
    header = json.loads(path.read_text())
    assert (header["kdf"], header["iterations"], header["lanes"], header["memory-kib"]) == ("argon2id", 3, 4, 65536)
    assert Keystore.open(path, PASSPHRASE).keys.keys() == {"orders"}


def test_salt_and_nonce_are_new_with_each_write(path: Path) -> None:
    Keystore.create(path, PASSPHRASE, [])
    before = json.loads(path.read_text())
    Keystore.add_key(path, PASSPHRASE, "orders")
    after = json.loads(path.read_text())
    assert before["salt"] != after["salt"]
    assert before["keys"][:16] != after["keys"][:16]


def test_a_wrong_passphrase_opens_nothing(path: Path) -> None:
    Keystore.create(path, PASSPHRASE, ["orders"])
    before = path.read_bytes()
    for wrong in ("", "Correct horse battery staple"):
        with pytest.raises(IntegrityError, match="passphrase is wrong, or the file was changed"):
            Keystore.open(path, wrong)
        with pytest.raises(IntegrityError):
            Keystore.add_key(path, wrong, "more")
    assert path.read_bytes() == before


def test_nothing_is_replaced(path: Path) -> None:
    Keystore.create(path, PASSPHRASE, ["orders"])
    before = path.read_bytes()
    with pytest.raises(UsageError, match="exists already"):
        Keystore.create(path, PASSPHRASE, ["orders"])
    with pytest.raises(UsageError, match="would orphan data"):
        Keystore.add_key(path, PASSPHRASE, "orders")
    with pytest.raises(UsageError, match="larger than"):
        Keystore.add_key(path, PASSPHRASE, "x" * 800_000)
    with pytest.raises(UsageError, match="that is not empty"):
        Keystore.add_key(path, PASSPHRASE, "")
    assert path.read_bytes() == before


def test_an_empty_passphrase_protects_nothing(path: Path) -> None:
    with pytest.raises(ConfigurationError, match="passphrase"):
        Keystore.create(path, "", ["orders"])
    assert not path.exists()


def test_a_crash_in_mid_write_leaves_the_old_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Keystore.create(path, PASSPHRASE, ["orders"])
    before = path.read_bytes()

    def crash(*arguments: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", crash)
    with pytest.raises(OSError, match="disk full"):
        Keystore.add_key(path, PASSPHRASE, "more")
    assert path.read_bytes() == before
    assert {file.name for file in path.parent.iterdir()} <= {path.name, path.name + ".lock"}


def test_writers_at_once_lose_no_key(path: Path) -> None:
    Keystore.create(path, PASSPHRASE, [])
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: Keystore.add_key(path, PASSPHRASE, f"key{n}"), range(24)))
    assert Keystore.open(path, PASSPHRASE).keys.keys() == {f"key{n}" for n in range(24)}


def test_every_part_of_the_file_is_authenticated(path: Path) -> None:
    Keystore.create(path, PASSPHRASE, ["orders"])
    whole = json.loads(path.read_text())
    changes = [
        {"iterations": whole["iterations"] + 1},
        {"lanes": whole["lanes"] + 1},
        {"memory-kib": whole["memory-kib"] + 1},
        {"salt": base64.b64encode(bytes(16)).decode()},
        {"keys": whole["keys"][:-8] + "AAAAAAA="},
        {"note": "added"},
    ]
    for change in changes:
        path.write_text(json.dumps({**whole, **change}))
        with pytest.raises(IntegrityError):
            Keystore.open(path, PASSPHRASE)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "zip"}, "format"),
        ({"version": 2}, "newer version"),
        ({"kdf": "md5"}, "newer version"),
        ({"memory-kib": 1 << 30}, "memory-kib"),
        ({"memory-kib": 1}, "below 8"),
        ({"iterations": 0}, "iterations"),
        ({"iterations": True}, "iterations"),
        ({"lanes": "4"}, "lanes"),
        ({"salt": "AAAA"}, "salt"),
        ({"salt": None}, "base64"),
        ({"keys": None}, "base64"),
        ({"keys": "AAAA"}, "too few"),
    ],
)
def test_a_file_that_is_none_is_refused(path: Path, change: dict[str, Any], message: str) -> None:
    Keystore.create(path, PASSPHRASE, ["orders"])
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(FormatError, match=message):
        Keystore.open(path, PASSPHRASE)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=50)
@given(st.binary(max_size=200) | st.sampled_from([b"[" * 100_000, b"[]", b"null", b'{"format":', b"x" * (2 << 20)]))
def test_any_file_raises_nothing_but_this_packages_errors(tmp_path: Path, data: bytes) -> None:
    file = tmp_path / "any"
    file.write_bytes(data)
    with pytest.raises(EncryptionError):
        Keystore.open(file, PASSPHRASE)


def test_the_client_wraps_and_unwraps(path: Path) -> None:
    Keystore.create(path, PASSPHRASE, ["orders", "people"])
    client = load_kms_client(properties(path))
    wrapped = client.wrap_key(Secret(b"k" * 32), "orders")
    assert load_kms_client(properties(path)).unwrap_key(wrapped, "orders") == Secret(b"k" * 32)
    with pytest.raises(IntegrityError, match="'people'"):
        client.unwrap_key(wrapped, "people")
    with pytest.raises(KmsKeyError, match="no master key 'nobody' in keystore"):
        client.unwrap_key(wrapped, "nobody")


def test_the_client_finds_a_key_that_was_added_since(path: Path) -> None:
    Keystore.create(path, PASSPHRASE, ["orders"])
    client = load_kms_client(properties(path))
    Keystore.add_key(path, PASSPHRASE, "later")
    client.wrap_key(Secret(b"k" * 16), "later")


def test_a_closed_client_holds_no_keys_and_refuses_use(path: Path) -> None:
    Keystore.create(path, PASSPHRASE, ["orders"])
    client = LocalKeyManagementClient(properties(path))
    client.close()
    assert client._master_keys == {}
    Keystore.add_key(path, PASSPHRASE, "later")
    for key_id in ("orders", "later"):
        with pytest.raises(ClosedError):
            client.wrap_key(b"k" * 16, key_id)


def test_a_client_is_not_pickled(path: Path) -> None:
    Keystore.create(path, PASSPHRASE, ["orders"])
    client = LocalKeyManagementClient(properties(path))
    client.properties = {}
    client.close()
    with pytest.raises((EncryptionError, TypeError)):
        pickle.dumps(client)


def test_threads_that_want_a_new_key_at_once_all_find_it(path: Path) -> None:
    Keystore.create(path, PASSPHRASE, ["orders"])
    for number in range(10):
        client = load_kms_client(properties(path))
        Keystore.add_key(path, PASSPHRASE, f"new{number}")
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda _: client.wrap_key(Secret(b"k" * 16), f"new{number}"), range(8)))  # noqa: B023


def test_a_reload_that_fails_is_not_taken_for_tampering_with_a_table(path: Path) -> None:
    Keystore.create(path, PASSPHRASE, ["orders"])
    client = load_kms_client(properties(path))
    Keystore.add_key(path, PASSPHRASE, "new")
    path.write_bytes(b"something else")
    with pytest.raises(FormatError, match="not a usable keystore"):
        client.unwrap_key(b"w" * 60, "new")


def test_a_path_that_leads_nowhere_is_named(tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    for wrong in (loop, "\0", "~nobody-of-this-name/keystore"):
        with pytest.raises(ConfigurationError):
            Keystore.open(wrong, PASSPHRASE)


def test_a_reload_that_fails_is_made_up_for(path: Path) -> None:
    Keystore.create(path, PASSPHRASE, ["orders"])
    client = load_kms_client(properties(path))
    Keystore.add_key(path, PASSPHRASE, "new")
    content = path.read_bytes()
    path.write_bytes(b"something else for a moment")
    with pytest.raises(FormatError):
        client.wrap_key(Secret(b"k" * 16), "new")
    path.write_bytes(content)
    client.wrap_key(Secret(b"k" * 16), "new")


def test_a_file_that_is_reached_by_a_link_is_replaced_where_it_lies(path: Path, tmp_path: Path) -> None:
    Keystore.create(path, PASSPHRASE, ["orders"])
    link = tmp_path / "link"
    link.symlink_to(path)
    Keystore.add_key(link, PASSPHRASE, "more")
    assert link.is_symlink()
    assert Keystore.open(path, PASSPHRASE).keys.keys() == {"orders", "more"}


def test_a_file_that_another_process_writes_to_for_long_is_not_waited_for_for_ever(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Keystore.create(path, PASSPHRASE, ["orders"])
    monkeypatch.setattr(keystore, "LOCK_TIMEOUT_SECONDS", 0.1)
    with FileLock(f"{path}.lock"), pytest.raises(UsageError, match="Another process"):
        Keystore.add_key(path, PASSPHRASE, "more")


def test_a_path_that_is_no_file_is_named(path: Path) -> None:
    path.mkdir(parents=True)
    with pytest.raises(ConfigurationError, match=r"cannot be read: .*directory"):
        Keystore.open(path, PASSPHRASE)


def test_the_passphrase_can_come_from_a_file(path: Path, tmp_path: Path) -> None:
    Keystore.create(path, PASSPHRASE, ["orders"])
    file = tmp_path / "passphrase"
    file.write_text(PASSPHRASE + "\n")
    given = {"encryption.kms-type": "local", "kms.local.keystore": str(path), "kms.local.passphrase-file": str(file)}
    load_kms_client(given).wrap_key(Secret(b"k" * 16), "orders")
    file.write_text("\n")
    with pytest.raises(ConfigurationError, match="is empty"):
        load_kms_client(given)
    file.unlink()
    with pytest.raises(ConfigurationError, match=r"cannot be read: .*No such file"):
        load_kms_client(given)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kms.local.keystore": ""}, r"Set kms\.local\.keystore"),
        ({"kms.local.passphrase": ""}, r"Set kms\.local\.passphrase, or"),
        ({"kms.local.passphrase-file": "/somewhere"}, "Both"),
    ],
)
def test_a_client_says_what_to_set(path: Path, change: dict[str, str], message: str) -> None:
    Keystore.create(path, PASSPHRASE, ["orders"])
    with pytest.raises(ConfigurationError, match=message):
        load_kms_client(properties(path, **change))


def test_a_missing_keystore_is_named_and_nothing_made_in_its_place(path: Path) -> None:
    with pytest.raises(ConfigurationError, match="Create it first"):
        load_kms_client(properties(path))
    with pytest.raises(ConfigurationError, match="Create it first"):
        Keystore.add_key(path, PASSPHRASE, "orders")
    assert not path.parent.exists()


def test_arguments_of_the_wrong_kind_are_named(path: Path) -> None:
    with pytest.raises(UsageError, match="must be a list"):
        Keystore.create(path, PASSPHRASE, "orders")  # type: ignore[arg-type]
    Keystore.create(path, PASSPHRASE, ["5"])
    with pytest.raises(UsageError, match="must be a string that is not empty, and is 5"):
        Keystore.add_key(path, PASSPHRASE, 5)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="must be a string, and is bytes"):
        Keystore.create(path, b"passphrase", ["orders"])  # type: ignore[arg-type]


PROGRAM = """
import sys, threading
from pyiceberg_encryption.kms.keystore import Keystore
threads = [threading.Thread(target=Keystore.open, args=sys.argv[1:3]) for _ in range(5)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""


def test_threads_open_it_at_once(tmp_path: Path) -> None:
    """Which used to hang, so it is done in a process of its own."""
    path = tmp_path / "keystore.json"
    Keystore.create(path, "passphrase", ["orders"])
    subprocess.run([sys.executable, "-c", PROGRAM, str(path), "passphrase"], check=True, timeout=60)
