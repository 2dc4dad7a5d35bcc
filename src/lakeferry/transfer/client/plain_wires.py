"""Connections for plain HTTP answers.

Part of the cheapest GET (``plain_get.py``), and without a task or a future for each request:
at a thousand small objects a second these are what costs most. A :class:`SocketWire` is a bare
socket on the event loop, to an address that is known; a :class:`StreamWire` is whatever the
event loop can connect to by name, with TLS or without.
"""

from __future__ import annotations

import asyncio
import errno
import re
import select
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, TypeAlias, cast

LARGEST_HEAD_BYTES = 32 << 10
_MOST_AT_ONCE_BYTES = 96 << 10
"""Of one read: more than this Python gets from the system anew, and gives back, each time."""

_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,19})[ \t]*(?=\r\n)", re.IGNORECASE)
_CLOSES = re.compile(rb"\r\nconnection:[ \t]*close", re.IGNORECASE)
_CODED = re.compile(rb"\r\n(?:transfer-encoding|content-encoding):", re.IGNORECASE)
_OK = (b"HTTP/1.1 200 ", b"HTTP/1.1 200\r")
_NOT_YET = {errno.EAGAIN, errno.EWOULDBLOCK, errno.EINTR}
_NOT_CONNECTED_YET = _NOT_YET | {errno.ENOTCONN, errno.EINPROGRESS}
_WITHOUT_BLOCKING: int = getattr(socket, "SOCK_NONBLOCK", 0)
_ONCE: int = getattr(select, "EPOLLIN", 0) | getattr(select, "EPOLLONESHOT", 0)
"""Watched for one event, and then anew: what is closed can't be told of for ever."""

WhenReceived: TypeAlias = Callable[[bytes | None], None]
"""Hears what an answer's body is; ``None`` where it wasn't plain, or none came."""


def is_plain(head: bytes, size_bytes: int) -> bool:
    """Tell whether a head announces so many bytes, as they are."""
    lengths = _LENGTH.findall(head)
    if not head.startswith(_OK) or _CODED.search(head) is not None or len(lengths) != 1:
        return False
    return int(lengths[0]) == size_bytes


class PlainConnection(ABC):
    """One connection, and the one answer that it waits for."""

    def __init__(self) -> None:
        self._then: WhenReceived | None = None
        self._size = 0
        self._buffer = bytearray()
        self._begins: int | None = None
        self._keeps = True
        self.is_closed = False

    @property
    def is_idle(self) -> bool:
        """Whether it can be asked something."""
        return self._then is None and self._keeps and not self.is_closed

    def ask(self, request: bytes, size_bytes: int, then: WhenReceived) -> None:
        """Send a request; ``then`` hears the body of a plain answer of that size, not at once."""
        self._then, self._size, self._begins = then, size_bytes, None
        self._send(request)

    def close(self) -> None:
        """Let go; nobody hears of it."""
        if not self.is_closed:
            self.is_closed = True
            self._then = None
            self._let_go()

    @abstractmethod
    def _send(self, request: bytes) -> None:
        """Send bytes, now or as soon as they can be."""

    @abstractmethod
    def _let_go(self) -> None:
        """Close the connection without waiting for anything."""

    def _came(self, data: bytes) -> None:
        """Take what comes; what nobody asked for ends the connection."""
        whole: bytes | bytearray = data
        if self._buffer:
            self._buffer += data
            whole = self._buffer
        if self._then is None:
            self.close()
            return
        if self._begins is None:
            end = whole.find(b"\r\n\r\n")
            if end >= 0:
                head = bytes(whole[: end + 2])
                if not is_plain(head, self._size):
                    self._over(None)
                    return
                self._keeps = _CLOSES.search(head) is None
                self._begins = end + 4
            elif len(whole) > LARGEST_HEAD_BYTES:
                self._over(None)
                return
        come = -1 if self._begins is None else len(whole) - self._begins
        if come == self._size:
            self._over(bytes(memoryview(whole)[self._begins :]))
        elif come > self._size:
            self._over(None)
        elif whole is data:
            self._buffer += data

    @property
    def _missing_bytes(self) -> int:
        """How much more may come of the answer; of a head that isn't there, the most."""
        if self._begins is None:
            return LARGEST_HEAD_BYTES + self._size - len(self._buffer)
        return self._begins + self._size - len(self._buffer)

    def _over(self, data: bytes | None) -> None:
        """Hand on what came, and let go of a connection that is of no more use."""
        then, self._then = self._then, None
        self._buffer = bytearray()
        if data is None or not self._keeps:
            self.close()
        if then is not None:
            then(data)


class Readiness:
    """Tells bare sockets when they can be read.

    On Linux they have one descriptor on the event loop together, which costs one call of the
    system for each, where a loop takes up to five.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._told: dict[int, Callable[[], None]] = {}
        self._all: select.epoll | None = None
        if hasattr(select, "epoll"):
            self._all = select.epoll()
            self._loop.add_reader(self._all.fileno(), self._ready)

    def add(self, number: int, then: Callable[[], None]) -> None:
        """Have ``then`` called whenever there is something to read from a descriptor."""
        if self._all is None:
            self._loop.add_reader(number, then)
            return
        self._all.register(number, _ONCE)
        self._told[number] = then

    def remove(self, number: int) -> None:
        """Call nobody any more for a descriptor that is about to be closed.

        Closing it is what ends its being watched; only where a process that was forked has it,
        too, there may be one more event, and nobody hears of it.
        """
        if self._all is None:
            self._loop.remove_reader(number)
        else:
            self._told.pop(number, None)

    def close(self) -> None:
        """Let go of the event loop."""
        if self._all is not None and not self._all.closed:
            self._loop.remove_reader(self._all.fileno())
            self._all.close()

    def _ready(self) -> None:
        assert self._all is not None
        for number, _ in self._all.poll(0):
            # Whoever was told before it may have closed it, or opened another by its number,
            # which finds nothing to read.
            then = self._told.get(number)
            if then is None:
                continue
            try:
                then()
            except Exception as error:  # noqa: BLE001 - the others are to be told all the same
                told = {"message": "an answer couldn't be handed on", "exception": error}
                self._loop.call_exception_handler(told)
            if self._told.get(number) is then:
                self._all.modify(number, _ONCE)


class SocketWire(PlainConnection):
    """A bare socket, to an address that is known to be right."""

    def __init__(self, readiness: Readiness, family: int, address: Any) -> None:
        """Begin to connect; ``OSError`` where that fails at once."""
        super().__init__()
        self._loop = asyncio.get_running_loop()
        self._readiness = readiness
        self._socket = socket.socket(family, socket.SOCK_STREAM | _WITHOUT_BLOCKING)
        self._unsent = b""
        self._is_sending = False
        """Whether the event loop tells when more can be sent."""
        try:
            if not _WITHOUT_BLOCKING:
                self._socket.setblocking(False)
            code = self._socket.connect_ex(address)
            if code and code not in _NOT_CONNECTED_YET:
                raise OSError(code, "can't connect")
            readiness.add(self._socket.fileno(), self._readable)
        except BaseException:
            self._socket.close()
            raise

    @property
    def has_sent(self) -> bool:
        """Whether all of the request is on its way: then there is somebody at the other end."""
        return not self._unsent

    @property
    def is_idle(self) -> bool:
        """Whether it can be asked something; not where an answer came before its request went."""
        return super().is_idle and self.has_sent

    def _send(self, request: bytes) -> None:
        # To an address of this machine one is connected by now, mostly; to others it is tried
        # in vain, and once.
        self._unsent = request
        if self._try():
            self._is_sending = True
            self._loop.add_writer(self._socket.fileno(), self._writable)

    def _try(self) -> bool:
        """Send what can be sent; tell whether some of it is left."""
        try:
            sent = self._socket.send(self._unsent)
        except OSError as error:
            if error.errno in _NOT_CONNECTED_YET:
                return True
            # Not within the call that asks.
            self._loop.call_soon(self._lost)
            return False
        self._unsent = self._unsent[sent:]
        return bool(self._unsent)

    def _writable(self) -> None:
        if not self.is_closed and not self._try():
            self._is_sending = False
            self._loop.remove_writer(self._socket.fileno())

    def _readable(self) -> None:
        if self.is_closed:
            return
        try:
            # One more than is missing: what comes behind an answer is nobody's.
            data = self._socket.recv(min(self._missing_bytes + 1, _MOST_AT_ONCE_BYTES))
        except OSError as error:
            if error.errno not in _NOT_YET:
                self._lost()
            return
        if data:
            self._came(data)
        else:
            self._lost()

    def _lost(self) -> None:
        if not self.is_closed:
            self._over(None)

    def _let_go(self) -> None:
        number = self._socket.fileno()
        self._readiness.remove(number)
        if self._is_sending:
            self._loop.remove_writer(number)
        self._socket.close()


class StreamWire(PlainConnection, asyncio.Protocol):
    """A connection that the event loop has made."""

    def __init__(self) -> None:
        super().__init__()
        self._transport: asyncio.Transport | None = None

    @property
    def peer(self) -> tuple[int, Any] | None:
        """The family and the address of the other end, for more connections to it."""
        assert self._transport is not None
        made: socket.socket | None = self._transport.get_extra_info("socket")
        address = self._transport.get_extra_info("peername")
        return None if made is None or address is None else (made.family, address)

    def _send(self, request: bytes) -> None:
        assert self._transport is not None
        self._transport.write(request)

    def _let_go(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Be connected."""
        # Not every event loop's transports are of the class that they behave like.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Take what comes."""
        if not self.is_closed:
            self._came(data)

    def eof_received(self) -> bool:
        """Be told that no more comes."""
        self._keeps = False
        return False

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002
        """Be cut off."""
        if not self.is_closed:
            self._over(None)
