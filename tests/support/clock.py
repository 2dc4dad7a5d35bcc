"""A clock that stands still until a test moves it."""

from __future__ import annotations

DEFAULT_START_MS = 1_700_000_000_000


class ManualClock:
    """Milliseconds since the epoch, moved by hand.

    Call it to read it: ``clock()`` fits wherever a function that tells the time does.
    """

    def __init__(self, now_ms: int = DEFAULT_START_MS) -> None:
        """Begin at ``now_ms``."""
        self.now_ms = now_ms

    def __call__(self) -> int:
        """Tell the time."""
        return self.now_ms

    def advance(self, by_ms: int) -> int:
        """Let time pass and return the new time. Backwards works too, as it does on machines."""
        self.now_ms += by_ms
        return self.now_ms
