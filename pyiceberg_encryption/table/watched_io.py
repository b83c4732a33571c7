"""Tells a storage that fails from a file that is damaged: libraries that read files report both alike."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from pyiceberg.io import FileIO, InputFile

from pyiceberg_encryption.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyiceberg.io import InputStream, OutputFile

T = TypeVar("T")


class WatchedFileIO(FileIO):
    """Reads by another FileIO. `failure` is the first error that came from the storage itself."""

    def __init__(self, plain: FileIO) -> None:
        super().__init__(plain.properties)
        self._plain = plain
        self.failure: Exception | None = None

    def watch(self, call: Callable[..., T], *arguments: Any, **named: Any) -> T:
        try:
            return call(*arguments, **named)
        except Exception as error:
            self.failure = self.failure or error
            raise

    def new_input(self, location: str) -> InputFile:
        return _WatchedInput(self, self.watch(self._plain.new_input, location))

    def new_output(self, location: str) -> OutputFile:
        self._refuse()

    def delete(self, location: str | InputFile | OutputFile) -> None:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise UsageError("Nothing is changed while files are verified")


class _WatchedInput(InputFile):
    def __init__(self, watcher: WatchedFileIO, file: InputFile) -> None:
        super().__init__(file.location)
        self._watcher = watcher
        self._file = file

    def __len__(self) -> int:
        return self._watcher.watch(len, self._file)

    def exists(self) -> bool:
        return self._watcher.watch(self._file.exists)

    def open(self, seekable: bool = True) -> InputStream:
        return _WatchedStream(self._watcher, self._watcher.watch(self._file.open, seekable=seekable))


class _WatchedStream:
    """Whatever the stream beneath can do, `readinto` or not."""

    def __init__(self, watcher: WatchedFileIO, stream: Any) -> None:
        self._watcher = watcher
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._stream, name)
        if not callable(value):
            return value
        return lambda *arguments, **named: self._watcher.watch(value, *arguments, **named)

    def __enter__(self) -> _WatchedStream:
        return self

    def __exit__(self, *error: object) -> None:
        self._stream.close()
