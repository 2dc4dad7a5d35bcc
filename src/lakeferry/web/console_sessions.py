"""The sessions of the console's visitors: what a cookie's random id stands for. Bounded, in memory.

The id is kept as its hash. A session ends after :data:`IDLE_S` without a request and
:data:`LONGEST_S` after its beginning. If there are too many, the one that was used longest ago
ends.
"""

from __future__ import annotations

import hashlib
import secrets
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field

IDLE_S = 12 * 3600.0
LONGEST_S = 7 * 24 * 3600.0
MOST_CONSOLE_SESSIONS = 1_000
LONGEST_SESSION_ID = 100
_NOTES = 5


@dataclass(slots=True)
class ConsoleSession:
    """One visitor who has signed in. ``token`` is the access token that was given, if any."""

    token: str | None = field(default=None, repr=False)
    csrf: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    notes: deque[str] = field(default_factory=lambda: deque(maxlen=_NOTES))
    """What the next page tells."""
    began_s: float = 0.0
    used_s: float = 0.0

    def take_notes(self) -> list[str]:
        """Return the notes, which are shown once."""
        taken = []
        while self.notes:
            taken.append(self.notes.popleft())
        return taken


class ConsoleSessions:
    """All sessions of one process. Safe to use from several threads."""

    def __init__(
        self, *, most: int = MOST_CONSOLE_SESSIONS, ticks: Callable[[], float] = time.monotonic
    ) -> None:
        """Begin without sessions; ``ticks`` measures their age."""
        self._most = most
        self._ticks = ticks
        self._lock = threading.Lock()
        self._by_hash: OrderedDict[str, ConsoleSession] = OrderedDict()

    def begin(self, token: str | None = None) -> tuple[str, ConsoleSession]:
        """Begin a session; return its id for the cookie, and the session."""
        session_id = secrets.token_urlsafe(32)
        now = self._ticks()
        session = ConsoleSession(token, began_s=now, used_s=now)
        with self._lock:
            self._by_hash[_hashed(session_id)] = session
            while len(self._by_hash) > self._most:
                self._by_hash.popitem(last=False)
        return session_id, session

    def find(self, session_id: str | None) -> ConsoleSession | None:
        """Return the session of an id, and count this as its use."""
        if session_id is None or len(session_id) > LONGEST_SESSION_ID:
            return None
        key, now = _hashed(session_id), self._ticks()
        with self._lock:
            session = self._by_hash.get(key)
            if session is None:
                return None
            if now - session.used_s > IDLE_S or now - session.began_s > LONGEST_S:
                del self._by_hash[key]
                return None
            session.used_s = now
            self._by_hash.move_to_end(key)
            return session

    def end(self, session_id: str | None) -> None:
        """End a session, if there is one."""
        if session_id is not None:
            with self._lock:
                self._by_hash.pop(_hashed(session_id), None)

    def __len__(self) -> int:
        return len(self._by_hash)


def _hashed(session_id: str) -> str:
    return hashlib.sha256(session_id.encode("utf-8", "replace")).hexdigest()
