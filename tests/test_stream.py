from __future__ import annotations

import array
import io
import random
import subprocess
import sys
import threading
import time
import tracemalloc
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

import fastavro
import pyarrow as pa
import pyiceberg.io
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyiceberg_encryption.ciphers import OVERHEAD
from pyiceberg_encryption.errors import ClosedError, FormatError, IntegrityError, UsageError
from pyiceberg_encryption.stream import (
    AesGcmInputStream,
    AesGcmOutputStream,
    decrypt,
    decrypt_into,
    encrypt,
    encrypt_into,
    encrypted_length,
    layout,
    parallel,
)
from pyiceberg_encryption.stream.reader import FETCH_BLOCKS
from pyiceberg_encryption.stream.writer import BATCH_BLOCKS
from tests.support import BLOCK, KeptBytesIO, encrypted, key_metadata, pattern

if TYPE_CHECKING:
    from collections.abc import Callable

LENGTHS = [0, 1, 1000, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + BLOCK // 2, 9 * BLOCK]


def reader(file: bytes, metadata: Any, **options: Any) -> AesGcmInputStream:
    return AesGcmInputStream(io.BytesIO(file), metadata, **options)


@pytest.mark.parametrize("key_length", [16, 24, 32])
@pytest.mark.parametrize("length", LENGTHS)
def test_what_is_written_is_read(length: int, key_length: int) -> None:
    plain = pattern(length)
    file, metadata = encrypted(plain, key_metadata(key_length))
    assert metadata.file_length == len(file) == encrypted_length(length)
    assert file.startswith(b"AGS1\x00\x00\x10\x00")
    assert decrypt(file, metadata) == plain
    with reader(file, metadata) as stream:
        assert stream.length == length
        assert stream.read() == plain


@pytest.mark.parametrize("length", LENGTHS)
def test_whole_buffers(length: int) -> None:
    plain = pattern(length)
    metadata = key_metadata()
    file = encrypt(plain, metadata)
    metadata = metadata.with_file_length(len(file))
    out = bytearray(length)
    decrypt_into(file, metadata, out)
    assert out == plain == decrypt(file, metadata)
    sealed = bytearray(len(file))
    encrypt_into(plain, metadata, sealed)
    assert decrypt(sealed, metadata) == plain
    assert sealed[:8] == file[:8] and sealed[8:20] != file[8:20]  # another nonce


def test_a_buffer_that_does_not_fit_is_refused() -> None:
    metadata = key_metadata()
    file = encrypt(b"12345", metadata)
    for wrong in (len(file) - 1, len(file) + 1):
        with pytest.raises(UsageError, match="must have"):
            encrypt_into(b"12345", metadata, bytearray(wrong))
    with pytest.raises(UsageError, match="must have"):
        decrypt_into(file, metadata.with_file_length(len(file)), bytearray(4))


operations = st.lists(
    st.tuples(
        st.sampled_from(["read", "readinto", "seek", "seek-end", "seek-back", "read1"]),
        st.integers(0, 4 * BLOCK) | st.integers(0, 100) | st.sampled_from([BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK]),
    ),
    max_size=20,
)
MODEL_PLAIN = pattern(3 * BLOCK + 12345)
MODEL_FILE, MODEL_METADATA = encrypted(MODEL_PLAIN, key_metadata())


@settings(max_examples=60, deadline=None)
@given(operations, st.booleans())
def test_behaves_like_a_plain_file(steps: list[tuple[str, int]], in_memory: bool) -> None:
    model = io.BytesIO(MODEL_PLAIN)
    stream = AesGcmInputStream(MODEL_FILE if in_memory else io.BytesIO(MODEL_FILE), MODEL_METADATA)
    for step, number in steps:
        if step == "read":
            assert stream.read(number) == model.read(number)
        elif step == "read1":
            assert stream.read1(number) == model.read1(number)
        elif step == "readinto":
            expected, got = bytearray(number), bytearray(number)
            assert stream.readinto(got) == model.readinto(expected)
            assert got == expected
        elif step == "seek":
            assert stream.seek(number) == model.seek(number)
        elif step == "seek-end":
            assert stream.seek(-min(number, len(MODEL_PLAIN)), 2) == model.seek(-min(number, len(MODEL_PLAIN)), 2)
        else:
            back = -min(number, model.tell())
            assert stream.seek(back, 1) == model.seek(back, 1)
        assert stream.tell() == model.tell()


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.integers(0, 100) | st.integers(0, 6 * BLOCK) | st.sampled_from([BLOCK - 1, BLOCK, 4 * BLOCK]), max_size=6
    )
)
def test_chunks_of_any_size_make_the_same_stream(sizes: list[int]) -> None:
    plain = pattern(sum(sizes))
    sink = KeptBytesIO()
    written = 0
    with AesGcmOutputStream(sink, key_metadata()) as stream:
        for size in sizes:
            assert stream.write(memoryview(plain)[written : written + size]) == size
            written += size
            assert stream.tell() == written
    assert decrypt(sink.written, stream.key_metadata) == plain


class ShortReads(io.BytesIO):
    """A file that delivers less than it is asked for, as sockets do."""

    def readinto(self, buffer: Any) -> int:
        return super().readinto(memoryview(buffer)[: max(1, len(buffer) // 3)])


class OnlyRead:
    """The least that PyIceberg's InputStream promises: no readinto."""

    def __init__(self, data: bytes) -> None:
        self._file = ShortReads(data)

    def read(self, size: int = 0) -> bytes:
        return self._file.read(max(1, size // 2))

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def close(self) -> None:
        self._file.close()


class ShortWrites(io.RawIOBase):
    """A file that takes less than it is given."""

    def __init__(self) -> None:
        self.data = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        take = max(1, len(data) // 2)
        self.data += data[:take]
        return take


@pytest.mark.parametrize("source", [ShortReads, OnlyRead, pa.BufferReader, pa.py_buffer, memoryview])
def test_sources_of_many_kinds(source: Any) -> None:
    stream = AesGcmInputStream(source(MODEL_FILE), MODEL_METADATA)
    assert stream.read(5) == MODEL_PLAIN[:5]
    assert stream.read() == MODEL_PLAIN[5:]
    stream.close()


def test_a_sink_that_takes_little_at_a_time() -> None:
    sink = ShortWrites()
    plain = pattern(2 * BLOCK + 7)
    with AesGcmOutputStream(sink, key_metadata()) as stream:
        stream.write(plain)
    assert decrypt(sink.data, stream.key_metadata) == plain


def test_a_sink_that_takes_nothing_is_an_error() -> None:
    class Full(io.RawIOBase):
        def write(self, data: Any) -> None:
            return None

    with pytest.raises(OSError, match="takes no more"), AesGcmOutputStream(Full(), key_metadata()) as stream:
        stream.write(bytes(2 * BLOCK))


def test_serves_pyiceberg() -> None:
    sink = KeptBytesIO()
    writer = AesGcmOutputStream(sink, key_metadata())
    assert isinstance(writer, pyiceberg.io.OutputStream)
    writer.write(b"abc")
    writer.close()
    assert isinstance(reader(sink.written, writer.key_metadata), pyiceberg.io.InputStream)


def test_serves_pyiceberg_file_io(tmp_path: Path) -> None:
    from pyiceberg.io.pyarrow import PyArrowFileIO

    file_io = PyArrowFileIO()
    location = f"file://{tmp_path}/data.ags1"
    plain = pattern(2 * BLOCK + 9)
    with AesGcmOutputStream(file_io.new_output(location).create(), key_metadata()) as writer:
        writer.write(plain)
    with AesGcmInputStream(file_io.new_input(location).open(), writer.key_metadata, location=location) as stream:
        assert stream.read() == plain


def test_serves_fastavro() -> None:
    schema = {"type": "record", "name": "r", "fields": [{"name": "n", "type": "long"}, {"name": "s", "type": "string"}]}
    records = [{"n": n, "s": "x" * (n % 50)} for n in range(100_000)]
    sink = KeptBytesIO()
    with AesGcmOutputStream(sink, key_metadata()) as writer:
        fastavro.writer(cast("IO[Any]", writer), schema, records)
    assert len(sink.written) > 2 * BLOCK
    with reader(sink.written, writer.key_metadata) as stream:
        assert list(fastavro.reader(cast("IO[Any]", stream))) == records


def test_serves_pyarrow() -> None:
    table = pa.table({"n": list(range(300_000)), "s": [str(n) for n in range(300_000)]})
    sink = KeptBytesIO()
    writer = AesGcmOutputStream(sink, key_metadata())
    with pa.PythonFile(writer, mode="w") as file, pa.ipc.new_file(file, table.schema) as ipc:
        ipc.write_table(table)
    assert len(sink.written) > 2 * BLOCK
    with pa.PythonFile(reader(sink.written, writer.key_metadata), mode="r") as file:
        assert pa.ipc.open_file(file).read_all() == table


class CountingSource(io.BytesIO):
    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.fetched: list[int] = []

    def readinto(self, buffer: Any) -> int:
        self.fetched.append(len(buffer))
        return super().readinto(buffer)


def test_a_small_read_of_a_large_file_fetches_only_the_blocks_that_it_touches() -> None:
    plain = pattern(20 * BLOCK)
    file, metadata = encrypted(plain, key_metadata())
    source = CountingSource(file)
    stream = AesGcmInputStream(source, metadata)
    assert source.fetched == []
    stream.seek(7 * BLOCK + 100)
    assert stream.read(1000) == plain[7 * BLOCK + 100 : 7 * BLOCK + 1100]
    assert sum(source.fetched) == layout.HEADER_LENGTH + layout.CIPHER_BLOCK_LENGTH
    assert stream.read(1000) == plain[7 * BLOCK + 1100 : 7 * BLOCK + 2100]
    assert len(source.fetched) == 2  # the block is still at hand
    source.fetched.clear()
    stream.seek(9 * BLOCK - 1)
    assert stream.read(2) == plain[9 * BLOCK - 1 : 9 * BLOCK + 1]
    assert source.fetched == [layout.CIPHER_BLOCK_LENGTH] * 2


def test_the_first_block_is_fetched_together_with_the_header() -> None:
    file, metadata = encrypted(b"a small manifest", key_metadata())
    source = CountingSource(file)
    assert AesGcmInputStream(source, metadata).read() == b"a small manifest"
    assert source.fetched == [len(file)]


def test_memory_stays_constant_however_long_the_stream() -> None:
    class Nowhere:
        length = 0

        def write(self, data: Any) -> int:
            self.length += len(data)
            return len(data)

        def close(self) -> None: ...

    chunk = pattern(9 * BLOCK)
    tracemalloc.start()
    try:
        sink = Nowhere()
        with AesGcmOutputStream(sink, key_metadata()) as writer:
            for _ in range(60):
                writer.write(chunk)
                writer.write(b"uneven")
        assert sink.length == writer.key_metadata.file_length
        assert tracemalloc.get_traced_memory()[1] < (BATCH_BLOCKS + 3) * BLOCK
    finally:
        tracemalloc.stop()


def test_reading_a_long_file_needs_as_much_memory_as_a_short_one(tmp_path: Path) -> None:
    path = tmp_path / "long.ags1"
    chunk = pattern(BLOCK)
    with AesGcmOutputStream(path.open("wb"), key_metadata()) as writer:
        for _ in range(100):
            writer.write(chunk)
    out = bytearray(20 * BLOCK + 17)
    tracemalloc.start()
    try:
        with AesGcmInputStream(path.open("rb"), writer.key_metadata) as stream:
            total = 0
            while count := stream.readinto(out):
                total += count
        assert total == 100 * BLOCK
        assert tracemalloc.get_traced_memory()[1] < (FETCH_BLOCKS + 2) * BLOCK
    finally:
        tracemalloc.stop()


def test_a_closed_reader_refuses_use() -> None:
    source = io.BytesIO(MODEL_FILE)
    stream = AesGcmInputStream(source, MODEL_METADATA)
    stream.read(10)
    stream.close()
    stream.close()
    assert stream.closed and source.closed
    uses: list[Callable[[], Any]] = [
        stream.read,
        stream.tell,
        lambda: stream.seek(0),
        lambda: stream.readinto(bytearray(1)),
        stream.__enter__,
    ]
    for use in uses:
        with pytest.raises(ClosedError):
            use()
        with pytest.raises(ValueError, match="closed"):  # what code for ordinary files expects
            use()


def test_a_closed_writer_refuses_use() -> None:
    sink = KeptBytesIO()
    writer = AesGcmOutputStream(sink, key_metadata())
    writer.close()
    writer.close()
    assert writer.closed and sink.closed
    for use in (lambda: writer.write(b"x"), writer.flush, writer.__enter__):
        with pytest.raises(ClosedError):
            use()


def test_an_open_writer_has_no_key_metadata_to_store() -> None:
    writer = AesGcmOutputStream(io.BytesIO(), key_metadata())
    with pytest.raises(UsageError, match="close it first"):
        _ = writer.key_metadata
    writer.discard()
    with pytest.raises(UsageError, match="write the file anew"):
        _ = writer.key_metadata


def test_seeking_to_nowhere_is_refused() -> None:
    stream = AesGcmInputStream(MODEL_FILE, MODEL_METADATA)
    for offset, whence in [(-1, 0), (-1, 1), (-len(MODEL_PLAIN) - 1, 2), (0, 3)]:
        with pytest.raises(UsageError):
            stream.seek(offset, whence)


def test_data_that_is_no_bytes_leaves_the_writer_usable() -> None:
    sink = KeptBytesIO()
    with AesGcmOutputStream(sink, key_metadata()) as writer:
        with pytest.raises(TypeError):
            writer.write("text")  # type: ignore[arg-type]
        writer.write(b"bytes")
    assert decrypt(sink.written, writer.key_metadata) == b"bytes"


class FailingSink(KeptBytesIO):
    def __init__(self, fail_after: int) -> None:
        super().__init__()
        self.left = fail_after

    def write(self, data: Any) -> int:
        if len(data) > self.left:
            raise OSError("disk full")
        self.left -= len(data)
        return super().write(data)


def assert_reads_as_incomplete(file: bytes, metadata: Any) -> None:
    """Even a reader that admits unrecorded lengths notices."""
    with pytest.raises((FormatError, IntegrityError)):
        decrypt(file, metadata, allow_unrecorded_length=True)


@pytest.mark.parametrize("blocks", [0, 1, 2, 5])
@pytest.mark.parametrize("rest", [0, 100])
def test_an_abandoned_writer_leaves_nothing_that_reads_as_complete(blocks: int, rest: int) -> None:
    metadata = key_metadata()
    sink = KeptBytesIO()
    writer = AesGcmOutputStream(sink, metadata)
    for _ in range(blocks):
        writer.write(pattern(BLOCK))
    writer.write(pattern(rest))
    writer.flush()
    with pytest.warns(ResourceWarning, match="never closed"):
        del writer
    assert sink.closed
    assert len(sink.written) >= blocks * BLOCK
    assert_reads_as_incomplete(sink.written, metadata)


def test_a_block_left_by_an_exception_leaves_nothing_that_reads_as_complete() -> None:
    metadata = key_metadata()
    sink = KeptBytesIO()
    with pytest.raises(RuntimeError), AesGcmOutputStream(sink, metadata) as writer:
        writer.write(pattern(2 * BLOCK))
        raise RuntimeError
    assert writer.closed
    assert_reads_as_incomplete(sink.written, metadata)


@pytest.mark.parametrize("fail_after", [0, 100, BLOCK, 3 * BLOCK + 3 * OVERHEAD + 7])
def test_a_writer_whose_sink_failed_cannot_be_completed(fail_after: int) -> None:
    metadata = key_metadata()
    sink = FailingSink(fail_after)
    writer = AesGcmOutputStream(sink, metadata)

    def write_all() -> None:
        for _ in range(4):
            writer.write(pattern(BLOCK))
        writer.close()

    with pytest.raises(OSError, match="disk full"):
        write_all()
    sink.left = 10 * BLOCK  # there is room again, but the writer cannot know what arrived
    for use in (lambda: writer.write(b"x"), writer.close, writer.flush):
        with pytest.raises(ClosedError, match="failed"):
            use()
    with pytest.raises(UsageError):
        _ = writer.key_metadata
    writer.discard()
    assert_reads_as_incomplete(sink.written, metadata)


def test_a_sink_that_fails_to_close_leaves_the_stream_incomplete() -> None:
    class Upload(io.BytesIO):
        def close(self) -> None:
            if not self.closed:
                super().close()
                raise OSError("upload failed")

    writer = AesGcmOutputStream(Upload(), key_metadata())
    with pytest.raises(OSError, match="upload failed"):
        writer.close()
    with pytest.raises(UsageError):
        _ = writer.key_metadata
    writer.discard()


def test_a_file_that_shrinks_while_it_is_read_is_noticed() -> None:
    source = io.BytesIO(MODEL_FILE)
    stream = AesGcmInputStream(source, MODEL_METADATA)
    stream.read(10)
    source.truncate(2 * BLOCK)
    with pytest.raises(IntegrityError, match="shorter"):
        stream.read()


def test_threads_may_share_a_key() -> None:
    """Large buffers are sealed and opened on several threads: the same as on one."""
    rng = random.Random(5)
    plain = rng.randbytes(16 * BLOCK + 3)
    metadata = key_metadata(32)
    for _ in range(5):
        file = encrypt(plain, metadata)
        assert decrypt(file, metadata.with_file_length(len(file))) == plain


def test_a_stream_without_a_recorded_length_needs_the_one_setting_that_admits_it() -> None:
    metadata = key_metadata()
    file = encrypt(b"written elsewhere", metadata)
    with pytest.raises(FormatError, match="does not record a file length"):
        decrypt(file, metadata)
    assert decrypt(file, metadata, allow_unrecorded_length=True) == b"written elsewhere"


def test_an_interrupted_read_ends_after_its_threads_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or they would write to the caller's buffer later, when it holds something else."""
    monkeypatch.setattr(parallel, "_available_cores", lambda: 4)
    working: set[int] = set()
    helping = threading.Event()

    def work(index: int) -> None:
        if threading.current_thread() is threading.main_thread():
            helping.wait(5)
            raise KeyboardInterrupt
        working.add(index)
        helping.set()
        time.sleep(0.1)
        working.remove(index)

    with pytest.raises(KeyboardInterrupt):
        parallel.for_each(100, work)
    assert helping.is_set()
    assert working == set()


def test_ctrl_c_at_any_time_leaves_a_process_that_works() -> None:
    """Real signals, at random moments of reads and writes on several threads, in a process of its own."""
    program = """
import random, signal, threading, time
from pyiceberg_encryption.stream import decrypt_into, encrypt, parallel
from tests.support import *
parallel._available_cores = lambda: 4
plain = pattern(8 * BLOCK)
metadata = key_metadata()
file = encrypt(plain, metadata)
metadata = metadata.with_file_length(len(file))
table = Table()
key_id, _ = table.commit()
keyring = table.keyring()
interrupts = tries = 0
signal.signal(signal.SIGALRM, signal.default_int_handler)
while tries < 200:
    tries += 1
    out = bytearray(len(plain))
    try:
        signal.setitimer(signal.ITIMER_REAL, random.uniform(0.0001, 0.003))
        end = time.monotonic() + 0.05  # Python drops an interrupt that strikes in a __del__
        while time.monotonic() < end:
            decrypt_into(file, metadata, out)
            keyring.open_manifest_list_key(key_id)
    except KeyboardInterrupt:
        interrupts += 1
    decrypt_into(file, metadata, out)
    assert out == plain
    keyring.open_manifest_list_key(key_id)
print("works" if interrupts > 100 else interrupts)
"""
    command = [sys.executable, "-W", "ignore", "-c", program]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert result.stdout.strip() == "works", result.stderr


def test_large_buffers_when_the_interpreter_is_about_to_end() -> None:
    program = """
import atexit
from pyiceberg_encryption.stream import decrypt, encrypt
from tests.support import *
def at_the_end():
    metadata, plain = key_metadata(), bytes(8 * BLOCK)
    file = encrypt(plain, metadata)
    print(decrypt(file, metadata.with_file_length(len(file))) == plain)
atexit.register(at_the_end)
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout.strip() == "True"


def test_an_error_in_any_thread_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "_available_cores", lambda: 4)

    def work(index: int) -> None:
        if index == failing:
            raise IntegrityError(f"block {index}")

    for failing in range(8):
        with pytest.raises(IntegrityError, match=f"block {failing}"):
            parallel.for_each(8, work)


def test_a_reader_that_cannot_be_made_closes_its_source() -> None:
    source = io.BytesIO(MODEL_FILE[:-1])
    with pytest.raises(IntegrityError):
        AesGcmInputStream(source, MODEL_METADATA)
    assert source.closed
    source = io.BytesIO(MODEL_FILE)
    with pytest.raises(AttributeError):
        AesGcmInputStream(source, b"key metadata that was not decoded")  # type: ignore[arg-type]
    assert source.closed


def test_odd_buffers() -> None:
    out = array.array("q", bytes(8 * 1000))
    AesGcmInputStream(MODEL_FILE, MODEL_METADATA).readinto(out)
    assert out.tobytes() == MODEL_PLAIN[:8000]
    sink = KeptBytesIO()
    with AesGcmOutputStream(sink, key_metadata()) as writer:
        assert writer.write(out) == 8000
    assert decrypt(sink.written, writer.key_metadata) == MODEL_PLAIN[:8000]
    with pytest.raises(TypeError):
        AesGcmInputStream(MODEL_FILE, MODEL_METADATA).readinto(b"read-only")
    with pytest.raises(TypeError):
        AesGcmInputStream(MODEL_FILE, MODEL_METADATA).seek(1.5)  # type: ignore[arg-type]


def test_a_file_that_does_not_block_is_refused() -> None:
    class NotYet(io.BytesIO):
        def readinto(self, buffer: Any) -> int:
            return None  # type: ignore[return-value]

    with pytest.raises(BlockingIOError):
        AesGcmInputStream(NotYet(MODEL_FILE), MODEL_METADATA).read(1)


@pytest.mark.parametrize("wrong", ["data.avro", Path("data.avro"), io.StringIO()], ids=["str", "Path", "text file"])
def test_a_path_or_a_text_file_is_refused_at_once(wrong: Any) -> None:
    with pytest.raises(UsageError, match="binary mode"):
        AesGcmOutputStream(wrong, key_metadata())
    with pytest.raises(UsageError, match="binary mode"):
        AesGcmInputStream(wrong, MODEL_METADATA)


def test_errors_name_the_file(tmp_path: Path) -> None:
    path = tmp_path / "manifest.avro"
    path.write_bytes(MODEL_FILE[:-1])
    with pytest.raises(IntegrityError, match=str(path)):
        AesGcmInputStream(path.open("rb"), MODEL_METADATA)
    with pytest.raises(IntegrityError, match="s3://bucket/manifest"):
        AesGcmInputStream(path.open("rb"), MODEL_METADATA, location="s3://bucket/manifest")
    with AesGcmOutputStream(path.open("wb"), key_metadata()) as writer:
        pass
    with pytest.raises(ClosedError, match=str(path)):
        writer.write(b"x")
