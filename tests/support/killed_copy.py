"""A process that moves a table while its data is copied by the store: a program of its own.

::

    python -m tests.support.killed_copy SOURCE TARGET --at copy_from/fsync/before

It copies objects of more than 5 MiB in parts. On local disk it can be killed at a call of the
system inside a copy; without ``--at`` it prints every distinct call. On S3 a proxy sees the
requests, and the test kills it. ``LAKEFERRY_TEST_OPTIONS`` has the storage options, as JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

from lakeferry.api.redirects import Redirects
from lakeferry.storage import cloud_copy, local_durability, multipart, s3_copy
from lakeferry.storage.local_store import LocalStore

PART_BYTES = 5 << 20
_CALLS = ("copy_file_range", "fsync", "rename", "unlink")


class Moments:
    """Watches the system's calls inside copies, and ends the process at one of them."""

    def __init__(self, at: str | None) -> None:
        """``at`` is ``copy_from/fsync/before`` or ``.../after``."""
        self._at = at
        self._own = threading.local()
        self._lock = threading.Lock()
        self.seen: list[str] = []

    def watch(self) -> None:
        """Watch from now on."""
        for verb in ("copy_from", "copy_many_from"):
            setattr(LocalStore, verb, self._inside(verb, getattr(LocalStore, verb)))
        for call in _CALLS:
            setattr(os, call, self._noted(call, getattr(os, call)))
        if local_durability._SYNC is not None:
            local_durability._SYNC = self._noted("syncfs", local_durability._SYNC)

    def _inside(self, verb: str, act: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*given: Any) -> Any:
            self._own.verb = verb
            try:
                return act(*given)
            finally:
                self._own.verb = None

        return watched

    def _noted(self, call: str, act: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*given: Any, **named: Any) -> Any:
            verb = getattr(self._own, "verb", None)
            if verb is None:
                return act(*given, **named)
            self._at_moment(f"{verb}/{call}/before")
            try:
                return act(*given, **named)
            finally:
                self._at_moment(f"{verb}/{call}/after")

        return watched

    def _at_moment(self, moment: str) -> None:
        with self._lock:
            if moment not in self.seen:
                self.seen.append(moment)
            if moment == self._at:
                os.kill(os.getpid(), signal.SIGKILL)


def copy_in_small_parts() -> None:
    """Copy objects of more than 5 MiB in parts of that size, and give up quickly."""
    for module in (s3_copy, cloud_copy):
        vars(module)["LARGE_BYTES"] = PART_BYTES
    s3_copy._PART_BYTES = PART_BYTES
    multipart._PAUSES_S = (0.01,)  # type: ignore[assignment]


def main() -> None:
    """Move a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("source")
    parser.add_argument("target")
    parser.add_argument("--at")
    given = parser.parse_args()
    copy_in_small_parts()
    moments = Moments(given.at)
    moments.watch()
    options = json.loads(os.environ.get("LAKEFERRY_TEST_OPTIONS", "{}"))
    with Redirects(storage_options=options, engine="local") as redirects:
        redirects.enable(given.source, given.target)
    sys.stdout.write("\n".join(moments.seen) + "\n")


if __name__ == "__main__":
    main()
