"""What the tests of KMS clients share."""

from __future__ import annotations

import base64
import contextlib
import json
import socket
import subprocess
import sys
import traceback
from typing import TYPE_CHECKING, Any

import boto3

from integration.internet import LOOPBACK
from pyiceberg_encryption import KekCache, Keyring

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyiceberg_encryption import GuardedClient

KEY = bytes(range(100, 116))
AWS_REGION = "eu-west-1"
AWS_CREDENTIALS = {"client.access-key-id": "testing", "client.secret-access-key": "testing"}

FORKING = """
import json, os, sys, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # that a process with threads forks is the point
from pyiceberg_encryption import Secret, load_kms_client

properties, key_id, key = json.loads(sys.argv[1]), sys.argv[2], Secret(bytes.fromhex(sys.argv[3]))
kms = load_kms_client(properties)
wrapped = kms.wrap_key(key, key_id)
for _ in range(3):
    child = os.fork()
    if child == 0:
        import signal
        signal.alarm(20)
        opened = kms.unwrap_key(wrapped, key_id) == key and kms.unwrap_key(kms.wrap_key(key, key_id), key_id) == key
        os._exit(0 if opened else 1)
    print(kms.unwrap_key(wrapped, key_id) == key, os.waitpid(child, 0)[1])
"""


def aws_admin(endpoint: str, region: str = AWS_REGION) -> Any:
    """What makes, disables and deletes master keys."""
    return boto3.client(
        "kms",
        endpoint_url=endpoint,
        region_name=region,
        aws_access_key_id="testing",
        aws_secret_access_key="testing",
    )


def assert_opens_a_tables_keys(writer: GuardedClient, reader: GuardedClient, key_id: str) -> None:
    first = Keyring([], master_key_id=key_id, kek_cache=KekCache(writer))
    metadata = first.new_key_metadata().with_file_length(100)
    list_key_id = first.seal_manifest_list_key(metadata)
    second = Keyring(first.added, master_key_id=key_id, kek_cache=KekCache(reader))
    assert second.open_manifest_list_key(list_key_id) == metadata


def assert_shows_no_key(error: BaseException, key: bytes = KEY) -> None:
    """Nor anything that is chained to it, nor the variables of the functions that it went through."""
    text = ""
    link: BaseException | None = error
    while link is not None:
        text += "".join(traceback.TracebackException.from_exception(link, capture_locals=True).format(chain=False))
        link = link.__cause__ or link.__context__
    for form in (repr(key)[2:-1], key.hex(), *_base64(key), *_base64(key[1:]), *_base64(key[2:])):
        assert form not in text


def _base64(key: bytes) -> list[str]:
    """Without the ends, which depend on what is around the key."""
    return [encode(key).decode()[:-4] for encode in (base64.b64encode, base64.urlsafe_b64encode)]


@contextlib.contextmanager
def silent_server() -> Iterator[int]:
    """The port of a server that accepts connections and never answers."""
    with socket.create_server((LOOPBACK, 0)) as server:
        yield server.getsockname()[1]


def what_forked_children_do(properties: Mapping[str, str], key_id: str) -> list[str]:
    """In an interpreter of their own, which has no other threads."""
    command = [sys.executable, "-c", FORKING, json.dumps(dict(properties)), key_id, KEY.hex()]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.splitlines()


def last_line_without(module: str, kms_type: str) -> str:
    """What is said to someone who has not installed it."""
    program = (
        f"import sys; sys.modules[{module!r}] = None\n"
        "from pyiceberg_encryption import load_kms_client\n"
        f"load_kms_client({{'encryption.kms-type': {kms_type!r}}})"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    return result.stderr.splitlines()[-1]
