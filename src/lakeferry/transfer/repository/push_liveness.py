"""Decides when a push counts as dead, so that garbage collection may delete what it left.

The server that receives a push renews its record. After too long a silence the push counts as
dead: sooner if the server's process has certainly ended, and much later if the push has begun to
commit.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import msgspec

from lakeferry.storage import process_identity

SILENT_FOR_MS = 120_000
"""How long a silent push counts as alive."""
COMMIT_LASTS_MS = 7 * 24 * 3600 * 1000
"""The same, once it has begun to commit: its head may still be set."""


class PushState(Enum):
    """What a push is doing, according to its note."""

    OPEN = "open"
    COMMITTING = "committing"
    LEFT = "left"
    """It ended without a commit, and its client may resume it."""
    TAKEN = "taken"
    """Garbage collection is deleting its files; it must not commit any more."""


class Note(msgspec.Struct, frozen=True):
    """What a push writes about itself. ``beat`` makes each renewal differ from the one before."""

    dataset: str
    head: str | None
    force: bool
    begun_ms: int
    state: PushState = PushState.OPEN
    beat: int = 0
    server: str = ""
    """The process that receives the push."""
    holder: str = ""
    """The client, as the server tells clients apart."""


@dataclass(frozen=True, slots=True)
class FoundRecord:
    """A push's record as garbage collection reads it; ``note`` is ``None`` if only pages exist."""

    id: str
    note: Note | None
    text: bytes
    seen_ms: int
    """Time of the last renewal, by the store's clock."""
    pages: tuple[str, ...]

    def is_of(self, dataset: str) -> bool:
        """Return True if the record belongs to a push of that dataset."""
        return self.note is not None and self.note.dataset == dataset

    def is_alive(self, now_ms: int) -> bool:
        """Return True if, according to the record, the push still runs."""
        state = None if self.note is None else self.note.state
        return state in (PushState.OPEN, PushState.COMMITTING) and not self.is_dead(now_ms, 0)

    def left_ms(self, now_ms: int) -> int:
        """Return how long the push counts as alive if it gives no other sign of life."""
        return self.seen_ms + self.counts_for_ms - now_ms

    def is_dead(self, now_ms: int, grace_ms: int) -> bool:
        """Return True if the files that it left may be cleaned up."""
        if self.note is not None and self.note.state is PushState.TAKEN:
            return True
        return now_ms - self.seen_ms >= max(grace_ms, self.counts_for_ms)

    @property
    def counts_for_ms(self) -> int:
        """How long after its last sign of life the push counts as alive."""
        if self.note is None:
            return SILENT_FOR_MS
        has_ended = process_identity.has_ended(self.note.server) is True
        match self.note.state:
            case PushState.COMMITTING:
                # A request that the process has sent may still be on its way to the store.
                return SILENT_FOR_MS if has_ended else COMMIT_LASTS_MS
            case PushState.OPEN:
                return 0 if has_ended else SILENT_FOR_MS
        return 0
