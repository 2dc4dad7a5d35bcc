"""The URL of an object, and whether it has expired."""

from __future__ import annotations

import time
from dataclasses import dataclass

from lakeferry.transfer.wire.messages import TransferUrl

_LONGEST_MARGIN_MS = 10_000


class UrlExpired(Exception):
    """A URL has expired, or was refused as if it had: another one is needed."""


@dataclass(frozen=True, slots=True)
class Source:
    """A URL, and when it was received."""

    url: TransferUrl
    received_ms: int

    @classmethod
    def now(cls, url: TransferUrl) -> Source:
        """Return a URL that was received just now."""
        return cls(url, _now_ms())

    @property
    def is_stale(self) -> bool:
        """Return True if a new URL should be requested first: it has expired, or is about to."""
        left_ms = (self.url.expires_at_ms or self.received_ms) - self.received_ms
        margin_ms = min(_LONGEST_MARGIN_MS, left_ms // 10)
        return self.url.is_stale(self.received_ms, _now_ms(), margin_ms)


def _now_ms() -> int:
    """Return the time by this machine's clock, with which a URL's expiry is compared."""
    return time.time_ns() // 1_000_000
