"""Reserves each object's name for one session that uploads it.

A store that never replaces an object refuses the second PUT of the same one. Our clients
understand that as "it exists"; other clients take it for a failure. So those are told to skip an
object that another session is about to send; whether it arrived is checked when they commit.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable


class Promises:
    """The names for which sessions got URLs. Safe to use from several threads."""

    def __init__(self) -> None:
        """Start without reservations."""
        self._holders: dict[Hashable, object] = {}
        self._held: dict[int, list[Hashable]] = {}
        self._lock = threading.Lock()

    def claim(self, holder: object, name: Hashable) -> bool:
        """Reserve a name for a session; return False if another session has it."""
        with self._lock:
            if name not in self._holders:
                self._held.setdefault(id(holder), []).append(name)
            return self._holders.setdefault(name, holder) is holder

    def release(self, holder: object) -> None:
        """Release the names of a session that has ended."""
        with self._lock:
            for name in self._held.pop(id(holder), ()):
                del self._holders[name]
