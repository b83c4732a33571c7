"""24: a process forks. Each test forks in an interpreter of its own, with the threads that it needs and no others."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support import BLOCK

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows does not fork")

PRELUDE = """
import io, os, sys, threading, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # that a process with threads forks is the point
from pyiceberg_encryption import *
from tests.support import *

def in_child(work):
    "What `work` returns in a child, as text. A child that hangs is ended."
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        import signal
        signal.alarm(5)
        try:
            result = work()
        except Exception as error:
            result = type(error).__name__
        os.write(writing, str(result).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        text = answer.read()
    os.waitpid(child, 0)
    return text

def in_child_while_a_thread_calls_the_kms(table, call, in_the_child):
    go_on, calling = threading.Event(), threading.Event()
    def wait():
        calling.set()
        go_on.wait()
    table.client.fail = wait
    thread = threading.Thread(target=call)
    thread.start()
    calling.wait()
    def work():
        table.client.fail = lambda: None
        return in_the_child()
    text = in_child(work)
    go_on.set()
    thread.join()
    return text
"""


def run(program: str) -> str:
    command = [sys.executable, "-c", PRELUDE + program]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.strip()


def test_24_nonces_differ() -> None:
    output = run("""
from pyiceberg_encryption.ciphers import AesGcm
cipher = AesGcm(Secret(bytes(16)))
cipher.seal(b"")
children = [in_child(lambda: cipher.seal(b"")[:12].hex()) for _ in range(20)]
print(len({*children, cipher.seal(b"")[:12].hex()}))
""")
    assert output == "21"


def test_24_data_keys_differ() -> None:
    output = run("""
keyring = Table().keyring()
keyring.new_key_metadata()
make = lambda: keyring.new_key_metadata().encode().hex()
print(len({make(), *(in_child(make) for _ in range(20))}))
""")
    assert output == "21"


def test_24_a_writer_is_of_no_use_in_a_child() -> None:
    """Both processes would write to one file, and under one key."""
    output = run("""
sink = KeptBytesIO()
writer = AesGcmOutputStream(sink, key_metadata())
writer.write(b"before")
print(in_child(lambda: writer.write(b"in the child")), in_child(writer.close))
writer.close()
print(len(sink.written))
""")
    assert output.split() == ["UsageError", "UsageError", str(36 + len("before"))]


def test_24_a_child_that_drops_a_writer_leaves_the_file_to_its_parent() -> None:
    output = run("""
import tempfile
path = tempfile.mktemp()
sink = open(path, "wb", buffering=0)
writer = AesGcmOutputStream(sink, key_metadata())
writer.write(bytes(BLOCK))
def drop():
    global writer
    del writer
    return sink.closed
print(in_child(drop))
writer.write(b"more")
writer.close()
from pyiceberg_encryption.stream import decrypt
print(len(decrypt(open(path, "rb").read(), writer.key_metadata)))
os.unlink(path)
""")
    assert output.split() == ["False", str(BLOCK + 4)]


def test_24_threads_for_large_buffers_start_anew_in_a_child() -> None:
    output = run("""
from pyiceberg_encryption.stream import decrypt, encrypt
metadata, plain = key_metadata(), bytes(8 * BLOCK)
encrypt(plain, metadata)
def both():
    file = encrypt(plain, metadata)
    return decrypt(file, metadata.with_file_length(len(file))) == plain
print(in_child(both))
""")
    assert output == "True"


def test_24_a_call_of_the_kms_under_way_does_not_block_a_child() -> None:
    output = run("""
table = Table()
key_id, _ = table.commit()
keyring = table.keyring()
read = lambda: len(keyring.open_manifest_list_key(key_id).encryption_key)
print(in_child_while_a_thread_calls_the_kms(table, read, read))
""")
    assert output == "16"


def test_24_a_commit_under_way_does_not_block_a_child() -> None:
    output = run("""
table = Table()
keyring = table.keyring()
commit = lambda: keyring.seal_manifest_list_key(keyring.new_key_metadata().with_file_length(50))
print(in_child_while_a_thread_calls_the_kms(table, commit, lambda: commit() and len(keyring.added)))
""")
    assert output == "2"


def test_24_a_reader_of_a_file_is_of_no_use_in_a_child() -> None:
    """The position in the file would be shared, and one of them read what the other looked for."""
    output = run("""
import tempfile
plain = pattern(3 * BLOCK)
file, metadata = encrypted(plain, key_metadata())
path = tempfile.mktemp()
open(path, "wb").write(file)
from_file, from_memory = (AesGcmInputStream(source, metadata) for source in (open(path, "rb", buffering=0), file))
from_file.read(10), from_memory.read(10)
print(in_child(lambda: from_file.read(2 * BLOCK)), in_child(lambda: from_memory.read() == plain[10:]))
print(from_file.read() == plain[10:])
os.unlink(path)
""")
    assert output.split() == ["UsageError", "True", "True"]
