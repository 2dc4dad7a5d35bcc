"""Converts errors of local disk to Lakeferry's errors."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from lakeferry.errors import Forbidden, InvalidInput, ObjectNotFound, StorageUnavailable
from lakeferry.storage import rights

ABSENT_ERRORS = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG})
"""What the system says of a name that no file has, or that none can have."""
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_IN_THE_WAY = frozenset({errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.EEXIST})


@dataclass(frozen=True, slots=True)
class LocalErrors:
    """The errors of one folder; ``uri`` is its name in messages."""

    root: str
    uri: str

    def refuse(self, error: OSError, path: str, *, writing: bool = False) -> NoReturn:
        """Raise our error for the system's, which came of using the object at ``path``."""
        cause, fields = os.strerror(error.errno or errno.EIO), {"path": path, "uri": self.uri}
        where = f"{path!r} in {self.uri}" if path else self.uri
        if error.errno in ABSENT_ERRORS:
            raise ObjectNotFound(f"no object at {where}", **fields) from error
        if error.errno in rights.DENIED:
            file = f"{self.root}/{path}"
            lacking = rights.lacking_right(file, error.errno or 0, writing=writing)
            raise Forbidden(
                f"access to {where} is denied",
                cause=f"{cause}: {lacking.cause}",
                remedy=lacking.remedy,
                **fields,
            ) from error
        if error.errno in _FULL:
            raise StorageUnavailable(
                f"can't write {where}",
                cause=cause,
                remedy="free some space there, or choose another place, and run the same command "
                "again",
                **fields,
            ) from error
        raise StorageUnavailable(f"can't use {where}", cause=cause, **fields) from error

    @contextlib.contextmanager
    def writing(self, path: str) -> Iterator[None]:
        """Convert the errors of writing the object at ``path``."""
        try:
            yield
        except OSError as error:
            if error.errno == errno.ENOTDIR and (file := self._file_on_the_way()) is not None:
                raise InvalidInput(
                    f"{file} is a file, but a folder is needed",
                    remedy="give a folder, or a path where nothing exists yet",
                    location=self.uri,
                ) from error
            if error.errno in _IN_THE_WAY:
                raise InvalidInput(
                    f"local disk can't hold an object named {path!r} in {self.uri}",
                    cause=os.strerror(error.errno or 0),
                    remedy="a file and a folder can't have the same name there, "
                    "and no part of a name may have more than 255 bytes",
                    path=path,
                ) from error
            if error.errno == errno.ENOENT:
                raise StorageUnavailable(
                    f"can't write {path!r} in {self.uri}",
                    cause="its folder was removed meanwhile",
                    path=path,
                ) from error
            self.refuse(error, path, writing=True)

    def no_file(self, path: str) -> ObjectNotFound:
        """Return the error for what is there and isn't a regular file."""
        return ObjectNotFound(f"no object at {path!r} in {self.uri}", path=path, uri=self.uri)

    def _file_on_the_way(self) -> str | None:
        """Return the URI of a file with the name of the root or of a folder above it."""
        root = Path(self.root)
        for place in (root, *root.parents):
            if place.is_file():
                return self.uri if place == root else place.as_uri()
        return None
