"""Writes large files directly to disk, past the system's page cache.

A file that is copied must be on disk before it counts, so the cache gains nothing: it would take
one more copy of all bytes and many new pages, and displace what others read again and again. Direct
writes (``O_DIRECT``) need whole pages, in the file and in memory. So bytes go through a few buffers
that this process keeps, and the last bytes of a file are written as usual. Where a file system
refuses direct writes, all bytes are.

Small files are written faster through the cache. Nothing here syncs: a disk may still hold what it
has received in its own cache, and the system a file's size in memory.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
from collections import deque
from collections.abc import Iterable, Iterator

from lakeferry.storage.store import StreamChunk

DIRECT_BYTES = 512 << 10
"""Size from which a file is written directly."""
_ALIGNED_BYTES = 4096
_PAGES_BYTES = 1 << 20
_KEPT_BUFFERS = 16
_REFUSED = frozenset({errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS, errno.EPERM})
_DIRECT: int | None = getattr(os, "O_DIRECT", None)

_kept: deque[memoryview] = deque()


def write_directly(fd: int, chunks: Iterable[StreamChunk], at: int = 0) -> None:
    """Write chunks one after the other to a file, from an offset on."""
    writing = _DirectWrites(fd, at)
    with _buffer() as pages:
        filled = 0
        for chunk in chunks:
            rest = memoryview(chunk)
            while rest:
                count = min(len(rest), len(pages) - filled)
                pages[filled : filled + count] = rest[:count]
                rest = rest[count:]
                filled += count
                if filled == len(pages):
                    writing.add(pages)
                    filled = 0
        writing.add(pages[:filled])


def write_bytes(fd: int, data: bytes | memoryview) -> None:
    """Write all of ``data`` where the file stands."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]


class _DirectWrites:
    """Where the writes to a file stand, and whether they can be direct."""

    def __init__(self, fd: int, at: int) -> None:
        self._fd = fd
        self._at = at
        self._can = _DIRECT is not None

    def add(self, data: memoryview) -> None:
        """Write aligned memory at the end of what was written."""
        done = 0
        if self._can and self._at % _ALIGNED_BYTES == 0:
            done = self._past_cache(data[: len(data) // _ALIGNED_BYTES * _ALIGNED_BYTES])
        if done < len(data):
            os.lseek(self._fd, self._at + done, os.SEEK_SET)
            write_bytes(self._fd, data[done:])
        self._at += len(data)

    def _past_cache(self, data: memoryview) -> int:
        """Write whole pages as far as that works, and return the number of bytes."""
        if not data:
            return 0
        flags = fcntl.fcntl(self._fd, fcntl.F_GETFL)
        done = 0
        try:
            assert _DIRECT is not None
            fcntl.fcntl(self._fd, fcntl.F_SETFL, flags | _DIRECT)
            try:
                while done < len(data) and done % _ALIGNED_BYTES == 0:
                    done += os.pwrite(self._fd, data[done:], self._at + done)
            finally:
                fcntl.fcntl(self._fd, fcntl.F_SETFL, flags)
        except OSError as error:
            # Some file systems refuse the flag, others the first write.
            if error.errno not in _REFUSED:
                raise
            self._can = False
        return done


@contextlib.contextmanager
def _buffer() -> Iterator[memoryview]:
    """Lend memory that begins with a page."""
    try:
        pages = _kept.pop()
    except IndexError:
        # Private: a forked process must not write to its parent's buffers.
        private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        pages = memoryview(mmap.mmap(-1, _PAGES_BYTES, flags=private))
    try:
        yield pages
    finally:
        if len(_kept) < _KEPT_BUFFERS:
            _kept.append(pages)
