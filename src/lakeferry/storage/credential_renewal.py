"""Renews the credentials that a catalog hands out for a while, before they expire.

A :class:`CredentialSource` asks for new ones, wherever it runs: it is a value that travels to
executors inside a :class:`~lakeferry.storage.StoreConfig`. All stores of a process with the same
source share one :class:`RenewedCredentials`.
"""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Protocol

from lakeferry.errors import LakeferryError

_MARGIN_MS = 5 * 60_000
"""How long before their end credentials are renewed at the latest, or a tenth of their life."""
_PAUSE_MS = 1_000
"""How long nobody is asked again after an answer that doesn't help."""
_MOST_SOURCES = 256


@dataclass(frozen=True, slots=True)
class VendedCredentials:
    """Storage options with credentials, and when they expire; ``None`` for permanent ones."""

    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    expires_ms: int | None = None


class CredentialSource(Protocol):
    """Asks for credentials; frozen, hashable and picklable, without secrets in its ``repr``."""

    def __call__(self) -> VendedCredentials:
        """Return new credentials; raise ``LakeferryError`` if there are none."""

    def __hash__(self) -> int:
        """Be equal for equal questions."""


class RenewedCredentials:
    """Credentials that are valid now. One request is sent at a time."""

    def __init__(self, source: CredentialSource, now_ms: Callable[[], int] | None = None) -> None:
        """Ask nothing yet."""
        self._source = source
        self._now_ms = now_ms or _now_ms
        self._lock = threading.Lock()
        self._known: VendedCredentials | None = None
        self._renew_ms: int | None = None
        self._failure: LakeferryError | None = None
        self._failed_ms = 0

    @property
    def failure(self) -> LakeferryError | None:
        """Why there are no valid credentials; a new error each time, to be raised."""
        return copy.copy(self._failure)

    def current(self) -> VendedCredentials:
        """Return credentials that are valid; ask for new ones if it is time."""
        with self._lock:
            now_ms = self._now_ms()
            if self._known is not None and (self._renew_ms is None or now_ms < self._renew_ms):
                return self._known
            if self._failure is not None and now_ms < self._failed_ms + _PAUSE_MS:
                raise copy.copy(self._failure)
            return self._renew(now_ms)

    def _renew(self, now_ms: int) -> VendedCredentials:
        try:
            found = self._source()
        except LakeferryError as failed:
            old = self._known
            if old is not None and old.expires_ms is not None and now_ms < old.expires_ms:
                self._renew_ms = now_ms + _PAUSE_MS
                return old
            self._failure, self._failed_ms = failed, self._now_ms()
            raise
        self._known, self._failure = found, None
        self._renew_ms = None
        if found.expires_ms is not None:
            life_ms = max(0, found.expires_ms - now_ms)
            margin_ms = min(_MARGIN_MS, life_ms // 10)
            self._renew_ms = max(found.expires_ms - margin_ms, now_ms + _PAUSE_MS)
        return found


@lru_cache(maxsize=_MOST_SOURCES)
def renewed(source: CredentialSource) -> RenewedCredentials:
    """Return what all stores of this process with that source share."""
    return RenewedCredentials(source)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
