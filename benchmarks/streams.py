"""AGS1 in this package, in Iceberg Java, and at the speed of bare AES-GCM, side by side: `make bench`.

Everything runs in memory that was allocated before. In each round all contestants run once, in an order drawn anew. Two
figures are shown for each ratio: that of the best times, which is least disturbed by whatever else the machine does,
and the median over the rounds of the ratios within one round. The bare AES-GCM runs twice in each round: how far these
two are apart is what a figure is good for.
"""

from __future__ import annotations

import argparse
import io
import os
import random
import statistics
import time
from typing import TYPE_CHECKING

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from integration.java import JavaUnavailableError, Peer
from pyiceberg_encryption import AesGcmInputStream, AesGcmOutputStream, Secret, StandardKeyMetadata
from pyiceberg_encryption.ciphers import NONCE_LENGTH
from pyiceberg_encryption.stream import decrypt_into, encrypt, encrypt_into, parallel
from pyiceberg_encryption.stream.layout import CIPHER_BLOCK_LENGTH, HEADER_LENGTH
from pyiceberg_encryption.stream.layout import PLAIN_BLOCK_LENGTH as BLOCK

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Buffer

BLOCKS = 64
LENGTH = BLOCKS * BLOCK
RANDOM_READS = 200
RANDOM_SIZE = 64 * 1024
MANIFEST_LENGTH = 4 * 1024
MANIFESTS = 250


class Nowhere:
    """A sink that costs nothing."""

    def write(self, data: Buffer) -> int:
        return len(memoryview(data))

    def close(self) -> None: ...


class Contest:
    """The contestants, each of them a function that does the whole work once."""

    def __init__(self) -> None:
        key = Secret(bytes(16))
        self.metadata = StandardKeyMetadata(key, bytes(16))
        self.plain = os.urandom(LENGTH)
        self.encrypted = bytearray(encrypt(self.plain, self.metadata))
        self.encrypted_bytes = bytes(self.encrypted)  # BytesIO copies anything else
        self.read_metadata = self.metadata.with_file_length(len(self.encrypted))
        self.out = bytearray(LENGTH)
        self.aead = AESGCM(key.expose())
        self.java: Peer | None = None
        rng = random.Random(2)
        self.offsets = [rng.randrange(LENGTH - RANDOM_SIZE) for _ in range(RANDOM_READS)]
        self.manifest = os.urandom(MANIFEST_LENGTH)
        self.encrypted_manifest = encrypt(self.manifest, self.metadata)
        self.manifest_metadata = self.metadata.with_file_length(len(self.encrypted_manifest))

    def bare_encryption(self) -> None:
        plain, block = memoryview(self.plain), memoryview(bytearray(CIPHER_BLOCK_LENGTH))[NONCE_LENGTH:]
        for index in range(BLOCKS):
            nonce = os.urandom(NONCE_LENGTH)
            self.aead.encrypt_into(nonce, plain[index * BLOCK : (index + 1) * BLOCK], b"", block)

    def bare_decryption(self) -> None:
        """Of the file as it is, with the AADs that are right."""
        sealed, out = memoryview(self.encrypted), memoryview(self.out)
        for index in range(BLOCKS):
            start = HEADER_LENGTH + index * CIPHER_BLOCK_LENGTH
            self.aead.decrypt_into(
                sealed[start : start + NONCE_LENGTH],
                sealed[start + NONCE_LENGTH : start + CIPHER_BLOCK_LENGTH],
                bytes(16) + index.to_bytes(4, "little"),
                out[index * BLOCK : (index + 1) * BLOCK],
            )

    def write(self, chunk: int) -> None:
        plain = memoryview(self.plain)
        with AesGcmOutputStream(Nowhere(), self.metadata) as stream:
            for at in range(0, LENGTH, chunk):
                stream.write(plain[at : at + chunk])

    def write_to_memory(self) -> None:
        encrypt_into(self.plain, self.metadata, self.encrypted)

    def read_into(self, chunk: int) -> None:
        out = memoryview(self.out)
        with AesGcmInputStream(self.encrypted, self.read_metadata) as stream:
            for at in range(0, LENGTH, chunk):
                stream.readinto(out[at : at + chunk])

    def read_from_file(self, chunk: int) -> None:
        out = memoryview(self.out)
        with AesGcmInputStream(io.BytesIO(self.encrypted_bytes), self.read_metadata) as stream:
            for at in range(0, LENGTH, chunk):
                stream.readinto(out[at : at + chunk])

    def read_bytes(self, chunk: int) -> None:
        with AesGcmInputStream(self.encrypted, self.read_metadata) as stream:
            while stream.read(chunk):
                pass

    def read_whole_buffer(self) -> None:
        decrypt_into(self.encrypted, self.read_metadata, self.out)

    def read_at_random(self) -> None:
        with AesGcmInputStream(self.encrypted, self.read_metadata) as stream:
            for offset in self.offsets:
                stream.seek(offset)
                stream.read(RANDOM_SIZE)

    def write_manifests(self) -> None:
        for _ in range(MANIFESTS):
            with AesGcmOutputStream(io.BytesIO(), self.metadata) as stream:
                stream.write(self.manifest)

    def write_plain_manifests(self) -> None:
        for _ in range(MANIFESTS):
            with io.BytesIO() as stream:
                stream.write(self.manifest)

    def read_manifests(self) -> None:
        for _ in range(MANIFESTS):
            with AesGcmInputStream(io.BytesIO(self.encrypted_manifest), self.manifest_metadata) as stream:
                stream.read()

    def read_plain_manifests(self) -> None:
        for _ in range(MANIFESTS):
            with io.BytesIO(self.manifest) as stream:
                stream.read()

    def java_seconds(self, what: str) -> float:
        assert self.java is not None
        arguments = {"what": what, "length": LENGTH, "reads": RANDOM_READS, "size": RANDOM_SIZE}
        return float(self.java.ask("bench", **arguments)["seconds"])


def timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def measure(contest: Contest, rounds: int) -> dict[str, list[float]]:
    """Seconds of each contestant in each round."""
    contestants: dict[str, Callable[[], float]] = {
        "bare encryption": lambda: timed(contest.bare_encryption),
        "write, 1 MiB at a time": lambda: timed(lambda: contest.write(BLOCK)),
        "write, 100 KB at a time": lambda: timed(lambda: contest.write(100_000)),
        "write, 16 MiB at a time": lambda: timed(lambda: contest.write(16 * BLOCK)),
        "encrypt a whole buffer": lambda: timed(contest.write_to_memory),
        "bare encryption again": lambda: timed(contest.bare_encryption),
        "bare decryption": lambda: timed(contest.bare_decryption),
        "readinto, 1 MiB at a time": lambda: timed(lambda: contest.read_into(BLOCK)),
        "readinto, 16 MiB at a time": lambda: timed(lambda: contest.read_into(16 * BLOCK)),
        "readinto from a file object, 1 MiB at a time": lambda: timed(lambda: contest.read_from_file(BLOCK)),
        "read, 1 MiB at a time": lambda: timed(lambda: contest.read_bytes(BLOCK)),
        "read, 100 KB at a time": lambda: timed(lambda: contest.read_bytes(100_000)),
        "decrypt a whole buffer": lambda: timed(contest.read_whole_buffer),
        "bare decryption again": lambda: timed(contest.bare_decryption),
        "random reads": lambda: timed(contest.read_at_random),
        "write manifests": lambda: timed(contest.write_manifests),
        "write plain manifests": lambda: timed(contest.write_plain_manifests),
        "read manifests": lambda: timed(contest.read_manifests),
        "read plain manifests": lambda: timed(contest.read_plain_manifests),
    }
    if contest.java is not None:
        contestants |= {
            "Java write": lambda: contest.java_seconds("write"),
            "Java read": lambda: contest.java_seconds("read"),
            "Java random reads": lambda: contest.java_seconds("random"),
        }
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    rng = random.Random(3)
    for round_ in range(-3, rounds):  # the first ones warm up, Java's compiler above all
        for name, contestant in rng.sample(list(contestants.items()), len(contestants)):
            if round_ < 0 and name.startswith("Java"):
                for _ in range(5):
                    contestant()
            took = contestant()
            if round_ >= 0:
                seconds[name].append(took)
    return seconds


def report(seconds: dict[str, list[float]]) -> None:
    def ratio(faster: str, slower: str) -> str:
        ratios = [b / a for a, b in zip(seconds[faster], seconds[slower], strict=True)]
        best = min(seconds[slower]) / min(seconds[faster])
        return f"{best:5.2f}   {statistics.median(ratios):5.2f}  ({min(ratios):.2f} to {max(ratios):.2f})"

    def row(name: str, value: str) -> None:
        print(f"  {name:<50}{value}")

    java = "Java write" in seconds
    for direction, bare, names in [
        ("Writing", "bare encryption", [name for name in seconds if name.startswith(("write,", "encrypt"))]),
        ("Reading", "bare decryption", [name for name in seconds if name.startswith(("read,", "readinto", "decrypt"))]),
    ]:
        print(f"\n{direction} {LENGTH // BLOCK} MiB, speed as a share of bare AES-GCM: best, median (range)")
        row("control: bare AES-GCM again", ratio(f"{bare} again", bare))
        for name in names:
            row(name, ratio(name, bare))
        if java:
            javas = "Java write" if direction == "Writing" else "Java read"
            row("Iceberg Java", ratio(javas, bare))
            print(f"{direction}, speed as a multiple of Iceberg Java's")
            for name in names:
                row(name, ratio(name, javas))

    print(f"\nRandom reads of {RANDOM_SIZE // 1024} KiB")
    row("reads a second, best", f"{RANDOM_READS / min(seconds['random reads']):,.0f}")
    if java:
        row("Iceberg Java's reads a second, best", f"{RANDOM_READS / min(seconds['Java random reads']):,.0f}")
        row("speed as a multiple of Iceberg Java's", ratio("random reads", "Java random reads"))

    print(f"\nA manifest of {MANIFEST_LENGTH // 1024} KiB, microseconds above plaintext: best, median (range)")
    for action in ("write", "read"):
        pairs = zip(seconds[f"{action} manifests"], seconds[f"{action} plain manifests"], strict=True)
        extra = [(encrypted - plain) / MANIFESTS * 1e6 for encrypted, plain in pairs]
        best = (min(seconds[f"{action} manifests"]) - min(seconds[f"{action} plain manifests"])) / MANIFESTS * 1e6
        row(action, f"{best:5.2f}   {statistics.median(extra):5.2f}  ({min(extra):.2f} to {max(extra):.2f})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=51)
    arguments = parser.parse_args()
    print(f"{os.cpu_count()} cores, of which at most {parallel.MAX_THREADS} are used; {arguments.rounds} rounds")
    contest = Contest()
    try:
        with Peer() as contest.java:
            report(measure(contest, arguments.rounds))
    except JavaUnavailableError as error:
        print(f"Without Iceberg Java: {error}")
        report(measure(contest, arguments.rounds))


if __name__ == "__main__":
    main()
