"""A proxy between a client and a server of ours that cuts connections where it is told.

It hands bytes through as they are, and knows so much of WebSocket that it can count messages,
those of both ends in one row: with ``cut_at`` the message of that number is delivered by half,
and the connection is gone. Of plain connections ``drop`` says by their number which are closed
when the first bytes have come. ::

    with WireProxy() as proxy, hosted(place, before=proxy.stand_before) as server:
        proxy.cut_at = 3
"""

from __future__ import annotations

import re
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Self
from urllib.parse import urlsplit

_CHUNK_BYTES = 1 << 16
_ASKS = re.compile(rb"\r\nsec-websocket-key:", re.IGNORECASE)
_AGREES = b"HTTP/1.1 101"
_CLOSE, _PING = 8, 9


class WireProxy:
    """A proxy on a free port of loopback, running while the context is open."""

    def __init__(self) -> None:
        self.cut_at: int | None = None
        """The number of the message that is cut, counted from 1 over all connections."""
        self.drop: Callable[[int], bool] = lambda _: False
        """Whether the connection of that number, counted from 1, is dropped."""
        self.messages: list[str] = []
        """Who sent each message: ``client`` or ``server``, or ``client closes``."""
        self.connections = 0
        self.dropped = 0
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self._upstream = ("", 0)
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._thread = threading.Thread(target=self._accept, daemon=True)

    def stand_before(self, url: str) -> str:
        """Lead to the server at a URL from now on, and return the URL that stands for it."""
        parts = urlsplit(url)
        assert parts.hostname is not None
        assert parts.port is not None
        self._upstream = (parts.hostname, parts.port)
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    @property
    def was_cut(self) -> bool:
        """Whether there were as many messages as it took."""
        return self.cut_at is not None and len(self.messages) >= self.cut_at

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        # A listener that is closed while somebody waits at it would leave them there.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join(10)
        self._listener.close()
        with self._lock:
            left = list(self._open)
        for one in left:
            _hang_up(one)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                self.connections += 1
                is_dropped = self.drop(self.connections)
                self.dropped += is_dropped
            if is_dropped:
                # Once it has said something, so that it can't know what was heard.
                threading.Thread(target=self._drop, args=(client,), daemon=True).start()
                continue
            try:
                server = socket.create_connection(self._upstream, timeout=20)
            except OSError:
                client.close()
                continue
            _Connection(self, client, server).start()

    def _drop(self, client: socket.socket) -> None:
        with suppress(OSError):
            client.recv(_CHUNK_BYTES)
        _hang_up(client)
        client.close()

    def count(self, who: str) -> bool:
        """Note a message, and tell whether it is the one to be cut."""
        with self._lock:
            self.messages.append(who)
            return len(self.messages) == self.cut_at

    def opened(self, *both: socket.socket) -> None:
        with self._lock:
            self._open.update(both)

    def closed(self, *both: socket.socket) -> None:
        with self._lock:
            self._open.difference_update(both)


class _Connection:
    """A client's connection and the one to the server that belongs to it."""

    def __init__(self, proxy: WireProxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy = proxy
        self._sockets = {"client": client, "server": server}
        self._asked = self._upgraded = False
        self._left = 2
        self._lock = threading.Lock()
        for each in self._sockets.values():
            each.settimeout(None)
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def start(self) -> None:
        self._proxy.opened(*self._sockets.values())
        for who, whom in (("client", "server"), ("server", "client")):
            threading.Thread(target=self._pump, args=(who, whom), daemon=True).start()

    def _pump(self, who: str, whom: str) -> None:
        frames = _Frames()
        source, target = self._sockets[who], self._sockets[whom]
        try:
            while data := source.recv(_CHUNK_BYTES):
                if not self._upgraded:
                    data = self._before(who, data, target)
                for frame, kind in frames.cut(data):
                    if kind is not None and self._proxy.count(f"{who}{kind}"):
                        target.sendall(frame[: len(frame) // 2])
                        return
                    target.sendall(frame)
        except OSError:
            pass
        finally:
            for each in self._sockets.values():
                _hang_up(each)
            self._end()

    def _before(self, who: str, data: bytes, target: socket.socket) -> bytes:
        """Hand on what belongs to HTTP, and return the rest."""
        if who == "client":
            self._asked = self._asked or _ASKS.search(data) is not None
        elif self._asked and data.startswith(_AGREES):
            self._upgraded = True
            head, end, rest = data.partition(b"\r\n\r\n")
            target.sendall(head + end)
            return rest
        target.sendall(data)
        return b""

    def _end(self) -> None:
        with self._lock:
            self._left -= 1
            if self._left:
                return
        self._proxy.closed(*self._sockets.values())
        for each in self._sockets.values():
            each.close()


class _Frames:
    """Bytes cut into WebSocket's frames."""

    def __init__(self) -> None:
        self._held = bytearray()

    def cut(self, data: bytes) -> Iterator[tuple[bytes, str | None]]:
        """Yield each whole frame, and what it is the end of: a message, a Close, or nothing."""
        self._held += data
        while (size := self._size()) is not None and len(self._held) >= size:
            frame = bytes(self._held[:size])
            del self._held[:size]
            opcode, is_last = frame[0] & 15, frame[0] & 128
            kind = None
            if opcode == _CLOSE:
                kind = " closes"
            elif is_last and opcode < _PING:
                kind = ""
            yield frame, kind

    def _size(self) -> int | None:
        held = self._held
        if len(held) < 2:
            return None
        length, at = held[1] & 127, 2
        for mark, form in ((126, ">H"), (127, ">Q")):
            if length == mark:
                at = 2 + struct.calcsize(form)
                if len(held) < at:
                    return None
                (length,) = struct.unpack(form, held[2:at])
                break
        return at + (4 if held[1] & 128 else 0) + length


def _hang_up(one: socket.socket) -> None:
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
