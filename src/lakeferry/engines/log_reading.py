"""Reports how far the reading of a log is in this process, also inside a large checkpoint."""

from __future__ import annotations

import builtins
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from lakeferry.engine import Observer, Volume
from lakeferry.engines import object_copy
from lakeferry.engines.copy_progress import CopyProgress
from lakeferry.engines.file_passes import FilePasses
from lakeferry.engines.object_copy import Gone, Hands
from lakeferry.log.segment import Segment
from lakeferry.storage import Store
from lakeferry.storage.overlay import Overlay

_PASSES = 2
"""A file is fetched, and then its rows are decoded."""


class LogReading(Overlay):
    """A store whose large files are fetched in pieces, and what reports them.

    The total grows by the sidecars, whose sizes the segment doesn't have.
    """

    def __init__(self, below: Store, segment: Segment, parallel: int, observer: Observer) -> None:
        """Report the reading of the segment's files and of what they name."""
        super().__init__(below)
        self._sizes = {file.path: file.size_bytes for file in segment.files}
        self._total = Volume(segment.size_bytes, len(segment.files))
        self._observer = observer
        self._progress = CopyProgress(self._tell)
        self._hands = Hands(parallel, self._progress.moved)
        self._passes: FilePasses | None = None
        self._decoded = 0.0

    def _tell(self, size_bytes: int, objects: int) -> None:
        done = Volume(min(size_bytes, self._total), objects)
        self._observer("reading the log", done, self._total)

    def get(self, path: str) -> bytes:
        """Return a file, a large one fetched in pieces; the file before it has been decoded."""
        self._end_file()
        size = self._sizes.get(path)

        def began(size_bytes: int) -> None:
            if size is None:
                self._total = Volume(self._total + size_bytes, self._total.objects + 1)

        try:
            with self._hands.held(self._below, path, size, _PASSES, began) as (data, passes):
                self._passes = passes
        except Gone as gone:
            raise gone.__cause__ or gone from None
        self._progress.ended(len(data), len(data))
        return data

    def get_many(self, paths: Sequence[str]) -> builtins.list[bytes]:
        """Return small files, fetched together, or a large one."""
        if len(paths) == 1 and self._sizes.get(paths[0], 0) > object_copy.SMALL_COPY_BYTES:
            return [self.get(paths[0])]
        found = super().get_many(paths)
        for data in found:
            self._progress.ended(len(data), None)
        return found

    def decoded(self, share: float) -> None:
        """Report that a share of the last file's rows was decoded."""
        self._decoded += share
        if self._passes is not None:
            self._passes.at(1, min(1.0, self._decoded))

    def _end_file(self) -> None:
        if self._passes is not None:
            self._passes.ended()
        self._passes, self._decoded = None, 0.0

    @contextmanager
    def running(self) -> Iterator[LogReading]:
        """Yield this store; when the context ends without an error, all is read."""
        with self._hands:
            yield self
        self._end_file()
        self._observer("reading the log", self._total, self._total)
