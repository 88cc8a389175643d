"""Parts of an open file, read from front to back."""

import io
from typing import BinaryIO

MAX_LINE = 2**16


class BadFile(Exception):
    """A file that is damaged, or not what it should be: "got ..., expected ..."."""


class Span:
    """Bytes of the file, which stay there."""

    __slots__ = ("size", "start")

    def __init__(self, start: int, size: int) -> None:
        self.start = start
        self.size = size


class Region:
    """A part of an open file, read from front to back through a buffer of its own."""

    def __init__(self, file: BinaryIO, span: Span | None = None) -> None:
        size = file.seek(0, io.SEEK_END)
        self.file = file
        self.start, self.end = (0, size) if span is None else (span.start, span.start + span.size)
        if not 0 <= self.start <= self.end <= size:
            raise BadFile(
                f"got {size} bytes, expected at least {self.end}; the file is truncated: "
                "download it again"
            )
        self.position = self.start
        self._chunk, self._chunk_start = b"", self.start

    def take(self, size: int) -> Span:
        """The next bytes, left where they are."""
        start = self.position
        if size > self.end - start:
            raise BadFile(
                f"got {self.end - start} bytes where {size} are announced, expected all; the file "
                "is truncated or damaged: download it again"
            )
        self.position = start + size
        return Span(start, size)

    def read(self, size: int) -> bytes:
        at = self.position - self._chunk_start
        if at >= 0 and at + size <= len(self._chunk):
            self.position += size
            return self._chunk[at : at + size]
        if size > self.end - self.position:
            raise BadFile(
                f"got {self.end - self.start} bytes of data, expected more; the file is truncated "
                "or damaged: download it again"
            )
        self._fill(size)
        self.position += size
        return self._chunk[:size]

    def line(self) -> str:
        at = self.position - self._chunk_start
        stop = self._chunk.find(b"\n", at) if 0 <= at < len(self._chunk) else -1
        if stop < 0:
            self._fill(0)
            at, stop = 0, self._chunk.find(b"\n")
        if stop < 0:
            raise BadFile("got a line without an end, expected a pickle; the file is damaged")
        self.position += stop + 1 - at
        return self._chunk[at:stop].decode()

    def _fill(self, size: int) -> None:
        self.file.seek(self.position)
        wanted = min(max(size, MAX_LINE), self.end - self.position)
        self._chunk, self._chunk_start = self.file.read(wanted), self.position
        if len(self._chunk) < wanted:
            raise BadFile("got fewer bytes than a moment ago, expected a file that does not change")

    def integer(self, size: int) -> int:
        return int.from_bytes(self.read(size), "little")

    def signed(self, size: int) -> int:
        return int.from_bytes(self.read(size), "little", signed=True)
