"""A process that moves a table and is killed at a call that it is told: a program of its own.

::

    python -m tests.support.killed_move enable SOURCE TARGET --at tail/source/PUT_IF_ABSENT/before

Without ``--at`` it runs to its end and prints every distinct moment as
``phase/place/verb``. A phase is what both logs show at that time, so a moment
means the same in every run.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lakeferry.api.redirects import Redirects
from lakeferry.engine import Engine
from lakeferry.engines import open_engine
from lakeferry.engines.local_engine import LocalEngine
from lakeferry.redirect import cancel, resuming
from lakeferry.redirect.disable import disabling
from lakeferry.redirect.enable import enabling
from lakeferry.redirect.redirect_context import Setting
from lakeferry.storage import Store, StoreConfig, normalise, open_store
from lakeferry.storage.uris import local_path
from tests.support.stores import FaultyStore, StoreCall

_COMMIT = re.compile(r"[0-9]{20}\.json")


class Moments:
    """Watches the calls of one process, and ends it at the one that was asked for."""

    def __init__(self, source: Path, target: Path, at: str | None) -> None:
        """Watch both places; ``at`` is ``phase/place/verb/before`` or ``.../after``."""
        self._source = source
        self._target = target
        self._at = at.split("/") if at else None
        self._lock = threading.Lock()
        self._own = threading.local()
        self.seen: list[str] = []

    def phase(self) -> str:
        """Return how far the move is, as the two logs show it."""
        begun = self._version_with('"lakeferryRedirect"', self._source)
        if begun is None:
            return "precopy"
        if "DROP-REDIRECT" in self._text(self._target, self._newest(self._target)):
            newest = self._text(self._source, self._newest(self._source))
            return "dropping" if "DROP-REDIRECT" in newest else "returning"
        if not (self._target / "_delta_log" / f"{begun:020d}.json").exists():
            return "tail"
        if not (self._target / "_delta_log" / f"{begun + 1:020d}.json").exists():
            return "locked"
        if not (self._source / "_delta_log" / f"{begun + 1:020d}.json").exists():
            return "decided"
        return "after"

    def _versions(self, place: Path) -> list[int]:
        folder = place / "_delta_log"
        if not folder.exists():
            return []
        return sorted(int(p.name[:20]) for p in folder.iterdir() if _COMMIT.fullmatch(p.name))

    def _newest(self, place: Path) -> int:
        return max(self._versions(place), default=-1)

    def _text(self, place: Path, version: int) -> str:
        path = place / "_delta_log" / f"{version:020d}.json"
        return path.read_text() if path.exists() else ""

    def _version_with(self, text: str, place: Path) -> int | None:
        return next((v for v in self._versions(place) if text in self._text(place, v)), None)

    def open(self, uri: str) -> Store:
        """Return the store of a place, watched."""
        place = "target" if local_path(uri) == str(self._target) else "source"
        return Watched(open_store(uri), self, place)

    def before(self, place: str, verb: str) -> None:
        """Note a call that begins, and end the process if it is the one."""
        with self._lock:
            moment = f"{self.phase()}/{place}/{verb}"
            if moment not in self.seen:
                self.seen.append(moment)
            if self._at == [*moment.split("/"), "before"]:
                os.kill(os.getpid(), signal.SIGKILL)
            self._own.moment = moment

    def after(self) -> None:
        """End the process if the call that this thread just made is the one."""
        if self._at == [*self._own.moment.split("/"), "after"]:
            os.kill(os.getpid(), signal.SIGKILL)


class Watched(FaultyStore):
    """A store that tells of each call before and after it is made."""

    def __init__(self, inner: Store, moments: Moments, place: str) -> None:
        """Watch ``inner``."""
        super().__init__(inner)
        self._moments = moments
        self._place = place

    def _begin(self, verb: str, *paths: str) -> tuple[StoreCall, Any]:
        self._moments.before(self._place, verb)
        return super()._begin(verb, *paths)

    def _call(self, verb: str, paths: tuple[str, ...], act: Any) -> Any:
        def watched() -> Any:
            result = act()
            self._moments.after()
            return result

        return super()._call(verb, paths, watched)

    def delete_many(self, paths: Sequence[str]) -> None:
        """Delete, and be killed afterwards if that is the moment."""
        super().delete_many(paths)
        self._moments.after()


def main() -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser()
    parser.add_argument("verb", choices=("enable", "cancel", "disable", "resume"))
    parser.add_argument("source")
    parser.add_argument("target")
    parser.add_argument("--mode", default="reader-writer")
    parser.add_argument("--data", default="copy")
    parser.add_argument("--engine", choices=("local", "spark"), default="local")
    parser.add_argument("--at")
    given = parser.parse_args()
    moments = Moments(Path(given.source), Path(given.target), given.at)

    def opened(config: StoreConfig) -> Store:
        return moments.open(config.uri)

    local = LocalEngine(open_store=opened)
    # Executors open their own stores: only what the driver does is watched then.
    engine = local if given.engine == "local" else open_engine("spark")

    def choose(objects: int, size_bytes: int, urgent: bool = False) -> Engine:
        return local if urgent else engine

    setting = Setting(engine=choose, open_store=moments.open)
    source = normalise(given.source)
    match given.verb:
        case "enable":
            request = Redirects().request(
                given.source, given.target, mode=given.mode, data=given.data
            )
            enabling.enable(setting, request)
        case "cancel":
            cancel.cancel(setting, source)
        case "disable":
            disabling.disable(setting, source)
        case "resume":
            resuming.resume(setting, source)
    engine.close()
    sys.stdout.write("\n".join(moments.seen) + "\n")


if __name__ == "__main__":
    main()
