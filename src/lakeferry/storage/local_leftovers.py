"""Removes the temporary files of writers on local disk that have ended.

Three kinds of hidden files can stay when a process is killed:

* ``.lakeferry-PROCESS-UNIQUE.tmp``, a file that was to be renamed. Its name tells who wrote it; it
  goes when that process has ended. If nobody can tell, because it ran on another machine or in
  another container, the file goes when nothing was written to it for an hour.
* ``.lakeferry-DIGEST.tmp``, a partly received object. Its writer locks it, and the next download
  of the object resumes from it. So it is only removed when nobody has it locked, and only
  by a caller who knows that no download is to be resumed.
* parts of an upload to a server, which are left to ``gc``.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import time
from contextlib import suppress

from lakeferry.storage.local_durability import PARTS_PREFIX, is_temporary
from lakeferry.storage.process_identity import has_ended

UNTOUCHED_FOR_S = 3600.0
"""How long a file is kept if nobody can tell whether its writer runs."""

_KEPT = re.compile(r"\.lakeferry-[0-9a-f]{32}\.tmp")
_WRITER = re.compile(r"\.lakeferry-([0-9a-f]{8}-[0-9]+-[0-9]+)-[0-9a-f-]+\.tmp")
_FLAGS = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW


def drop_leftovers(root: str) -> int:
    """Remove what ended writers have left below a folder; return the number of files."""
    dropped = 0
    for folder, _, names in os.walk(root):
        for name in names:
            if not is_temporary(name) or name.startswith(PARTS_PREFIX):
                continue
            # Others may remove it, too, and what we may not touch stays.
            with suppress(OSError):
                dropped += _drop(f"{folder}/{name}", name)
    return dropped


def _drop(path: str, name: str) -> bool:
    if _KEPT.fullmatch(name):
        return _drop_unlocked(path)
    match = _WRITER.fullmatch(name)
    ended = has_ended(match[1]) if match is not None else None
    if ended is None:
        found = os.stat(path, follow_symlinks=False)
        # A further name of an older file has that file's time of writing, but a change just now.
        ended = time.time() - max(found.st_mtime, found.st_ctime) > UNTOUCHED_FOR_S
    if ended:
        os.unlink(path)
    return ended


def _drop_unlocked(path: str) -> bool:
    """Remove a partly received object, unless somebody is receiving it."""
    fd = os.open(path, _FLAGS)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # With the lock held, nobody renames it: it is the file that has the name.
        if not os.path.samestat(os.stat(path), os.fstat(fd)):
            return False
        os.unlink(path)
        return True
    except OSError as error:
        if error.errno == errno.EWOULDBLOCK:
            return False
        raise
    finally:
        os.close(fd)
