"""Reserves each object's name for one session that uploads it.

A store that never replaces an object refuses the second of two who put the same one. Clients
of ours take that for what it is, "it is there"; others take it for a failure. So those are
told to skip what another session is about to send, and what comes of it is looked at when
they commit.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable


class Promises:
    """The names that sessions were given URLs for. Safe to use from several threads."""

    def __init__(self) -> None:
        """Begin with nothing promised."""
        self._holders: dict[Hashable, object] = {}
        self._held: dict[int, list[Hashable]] = {}
        self._lock = threading.Lock()

    def claim(self, holder: object, name: Hashable) -> bool:
        """Promise a name to a session, again if need be; not while another one has it."""
        with self._lock:
            if name not in self._holders:
                self._held.setdefault(id(holder), []).append(name)
            return self._holders.setdefault(name, holder) is holder

    def release(self, holder: object) -> None:
        """Take back what a session was promised, once it is over."""
        with self._lock:
            for name in self._held.pop(id(holder), ()):
                del self._holders[name]
