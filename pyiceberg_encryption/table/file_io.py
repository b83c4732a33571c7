"""The files of one encrypted table: nothing is read without its key, and nothing is written in plaintext."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from pyiceberg.io import FileIO, InputFile, InputStream, OutputFile, OutputStream

from pyiceberg_encryption.errors import FormatError, IntegrityError, SecretExposureError, UsageError
from pyiceberg_encryption.key_metadata import StandardKeyMetadata
from pyiceberg_encryption.secret import Secret
from pyiceberg_encryption.stream import AesGcmInputStream, AesGcmOutputStream

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from pyiceberg_encryption.table.keys import TableKeys

REDACTED = b"(encrypted)"


class FileKey(bytes):
    """The key metadata of a file, in the place where PyIceberg's records have its bytes.

    To all who do not know it, PyIceberg's inspection and `repr` among them, it is a few bytes that say no more than
    that the file is encrypted.
    """

    _encoded: Secret

    def __new__(cls, encoded: Buffer) -> FileKey:
        key = super().__new__(cls, REDACTED)
        key._encoded = Secret(encoded)
        return key

    def open(self) -> StandardKeyMetadata:
        return StandardKeyMetadata.decode(self._encoded.expose())

    def encode(self) -> bytes:
        """For the encrypted file that lists the one which this key opens."""
        return bytes(self._encoded.expose())

    def is_same_as(self, other: FileKey) -> bool:
        """All look alike, and so are equal to `==`."""
        return self._encoded == other._encoded

    def __copy__(self) -> FileKey:
        return self

    def __deepcopy__(self, memo: Any) -> FileKey:
        return self

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise SecretExposureError("The key of a file cannot be pickled")


class EncryptedFileIO(FileIO):
    """Wraps the FileIO that reaches the storage, which is `plain`."""

    def __init__(self, plain: FileIO, keys: TableKeys) -> None:
        super().__init__(plain.properties)
        self.plain = plain
        self.keys = keys
        self._unlisted: dict[str, EncryptedOutputFile] = {}

    def new_input(self, location: str) -> InputFile:
        """For what has no key, which is refused unless the table is being converted."""
        self.keys.check_may_be_plaintext(location)
        return self.plain.new_input(location)

    def input(self, location: str, key: FileKey) -> EncryptedInputFile:
        return EncryptedInputFile(self.plain.new_input(location), key)

    def new_output(self, location: str) -> EncryptedOutputFile:
        """PyIceberg asks for a data file here, and later lists it by its location alone."""
        output = EncryptedOutputFile(self.plain.new_output(location), self.keys.new_key_metadata())
        self._unlisted[location] = output
        return output

    def take_key(self, location: str) -> FileKey | None:
        """The key of a file that was written here, and is now listed elsewhere. None if it was not written here."""
        output = self._unlisted.pop(location, None)
        return None if output is None else output.key()

    def delete(self, location: str | InputFile | OutputFile) -> None:
        name = location if isinstance(location, str) else location.location
        self._unlisted.pop(name, None)
        self.plain.delete(name)

    def __reduce__(self) -> NoReturn:
        raise SecretExposureError(
            "The files of an encrypted table cannot be pickled; load the table where it is needed"
        )


class EncryptedInputFile(InputFile):
    def __init__(self, plain: InputFile, key: FileKey) -> None:
        super().__init__(plain.location)
        self._plain = plain
        self._key = key

    def __len__(self) -> int:
        with self.open() as stream:
            return stream.length

    def exists(self) -> bool:
        return self._plain.exists()

    def open(self, seekable: bool = True) -> AesGcmInputStream:
        return AesGcmInputStream(self._plain.open(seekable=True), self._key.open(), location=self.location)

    def read(self) -> bytes:
        with self.open() as stream:
            return stream.read()


class EncryptedOutputFile(OutputFile):
    """A file with a fresh key. What writes Parquet takes the key for itself; all else becomes an AGS1 stream."""

    def __init__(self, plain: OutputFile, key_metadata: StandardKeyMetadata) -> None:
        super().__init__(plain.location)
        self.plain = plain
        self.key_metadata = key_metadata
        self._stream: AesGcmOutputStream | None = None

    def create(self, overwrite: bool = False) -> OutputStream:
        if self._stream is not None:
            raise UsageError(f"{self.location} was written already, and a key is used for one file only")
        sink = self.plain.create(overwrite=overwrite)
        self._stream = AesGcmOutputStream(sink, self.key_metadata, location=self.location)
        return self._stream

    def __len__(self) -> int:
        """The encrypted length, which is what manifests and manifest lists record."""
        return self._finished().file_length or 0

    def key(self) -> FileKey:
        return FileKey(self._finished().encode())

    def _finished(self) -> StandardKeyMetadata:
        if self._stream is not None:
            return self._stream.key_metadata
        if self.key_metadata.file_length is None:
            self.key_metadata = self.key_metadata.with_file_length(len(self.plain))
        return self.key_metadata

    def exists(self) -> bool:
        return self.plain.exists()

    def to_input_file(self) -> EncryptedInputFile:
        return EncryptedInputFile(self.plain.to_input_file(), self.key())


def plain_io(io: FileIO) -> FileIO:
    """What reaches the storage."""
    return io.plain if isinstance(io, EncryptedFileIO) else io


def manifest_list_key(io: FileIO, location: str, key_id: str | None) -> FileKey | None:
    """The key of a snapshot's manifest list."""
    if key_id is None:
        return None
    if not isinstance(io, EncryptedFileIO):
        raise _no_keys(location)
    return FileKey(io.keys.open_manifest_list_key(key_id).encode())


def read_whole(io: FileIO, location: str, key: FileKey | None) -> bytes:
    """A manifest or manifest list. Whether it must be encrypted depends on the table, which is to say on its FileIO."""
    check_has_key(io, location, key)
    if isinstance(io, EncryptedFileIO) and key is not None:
        return io.input(location, key).read()
    with _open_plain(io, location, key) as stream:
        return bytes(stream.read())


def check_has_key(io: FileIO, location: str, key: FileKey | None) -> None:
    """For all but data files, which alone may be in plaintext while a table is being converted."""
    if isinstance(io, EncryptedFileIO) and key is None:
        raise IntegrityError(
            f"{location} belongs to an encrypted table and has no key: the table's metadata was changed, or written by "
            "software that does not encrypt"
        )


def open_data(io: FileIO, location: str, key: FileKey | None) -> InputStream:
    """A data or delete file other than Parquet."""
    if isinstance(io, EncryptedFileIO) and key is not None:
        return io.input(location, key).open()
    return _open_plain(io, location, key)


def stored_file(io: FileIO, location: str, key: FileKey | None) -> InputFile:
    """A Parquet file as it lies in storage, since Parquet decrypts for itself."""
    if key is None:
        return io.new_input(location)
    if not isinstance(io, EncryptedFileIO):
        raise _no_keys(location)
    return io.plain.new_input(location)


def _open_plain(io: FileIO, location: str, key: FileKey | None) -> InputStream:
    if key is not None:
        raise _no_keys(location)
    return io.new_input(location).open()


def _no_keys(location: str) -> UsageError:
    return UsageError(f"{location} is encrypted. Load its table through a catalog of pyiceberg_encryption")


def checked_key(location: str, key_metadata: bytes | None) -> FileKey | None:
    """The key metadata that a manifest or manifest list has for a file."""
    if key_metadata is None or isinstance(key_metadata, FileKey):
        return key_metadata
    if not key_metadata:
        raise FormatError(f"{location} has key metadata without content")
    return FileKey(key_metadata)
