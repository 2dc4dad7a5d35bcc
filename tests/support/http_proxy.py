"""A proxy between a client and a real server that counts requests and can spoil them.

It stands in front of one server on loopback and hands requests through as they
are, the ``Host`` header included, so that signatures still hold. Before each
request a *rule* may choose a :class:`Spoil`::

    with CountingProxy("127.0.0.1:7070") as proxy:
        proxy.rule = first(2, "PUT", Spoil.LOSE_ANSWER)
        ...
        assert proxy.count("GET") == 3
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self


class Spoil(Enum):
    """What happens to a request instead of being answered."""

    DROP = "the connection closes before the server hears of it"
    LOSE_ANSWER = "the server does it, and the connection closes without an answer"
    CHANGE_BYTES = "the first byte of what it carries is another one when the server gets it"
    DELAY = "it is done after a while"
    HANG = "nothing happens until the proxy closes"
    HANG_AFTER = "the server does it, and nothing more happens until the proxy closes"
    STATUS_200 = "200 without content, and the server doesn't hear of it"
    STATUS_400 = "400, and the server doesn't hear of it"
    STATUS_403 = "403, and the server doesn't hear of it"
    STATUS_500 = "500, and the server doesn't hear of it"
    STATUS_501 = "501, and the server doesn't hear of it"
    STATUS_503 = "503, and the server doesn't hear of it"


@dataclass(frozen=True, slots=True)
class SeenRequest:
    """One request that reached the proxy; ``target`` is path and query as sent."""

    index: int
    method: str
    target: str


Rule = Callable[[SeenRequest], Spoil | None]


def first(times: int, method: str, spoil: Spoil) -> Rule:
    """Return the rule that spoils the first requests with a method (``times=-1``: all)."""
    left = times

    def rule(request: SeenRequest) -> Spoil | None:
        nonlocal left
        if left == 0 or request.method != method:
            return None
        left -= 1
        return spoil

    return rule


class CountingProxy:
    """A proxy on a free port of loopback, running while the context is open."""

    def __init__(self, upstream: str, *, delay_s: float = 0.2) -> None:
        """Stand in front of ``upstream``, given as ``host:port``."""
        self.upstream = upstream
        self.delay_s = delay_s
        self.rule: Rule = lambda _: None
        self.closing = threading.Event()
        self.hanging = threading.Event()
        """Whether a request hangs."""
        self._lock = threading.Lock()
        self._requests: list[SeenRequest] = []
        handler = type("Handler", (_Handler,), {"proxy": self})
        self._server = _Server(("127.0.0.1", 0), handler)
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        )

    @property
    def url(self) -> str:
        """Where clients find it."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def requests(self) -> list[SeenRequest]:
        """What has come so far."""
        with self._lock:
            return list(self._requests)

    def count(self, method: str | None = None) -> int:
        """How many requests have come, or how many with that method."""
        return sum(method in (None, request.method) for request in self.requests)

    def reset(self) -> None:
        """Forget what has come, and spoil nothing."""
        with self._lock:
            self._requests.clear()
            self.rule = lambda _: None
            self.hanging.clear()

    def see(self, method: str, target: str) -> Spoil | None:
        """Note a request and say what is to become of it."""
        with self._lock:
            request = SeenRequest(len(self._requests), method, target)
            self._requests.append(request)
            return self.rule(request)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 256

    def handle_error(self, request: object, client_address: object) -> None:
        """Stay silent: clients that hang up are this proxy's daily bread."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Answers go out in two writes; without this the second waits for the first's
    # acknowledgement, 40 ms each time.
    disable_nagle_algorithm = True
    proxy: CountingProxy

    def setup(self) -> None:
        super().setup()
        self._upstream = HTTPConnection(self.proxy.upstream, timeout=60)

    def finish(self) -> None:
        self._upstream.close()
        super().finish()

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _handle(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        spoil = self.proxy.see(self.command, self.path)
        if spoil is Spoil.HANG:
            self._hang()
        if spoil in (Spoil.DROP, Spoil.HANG):
            self._hang_up()
            return
        if spoil is not None and spoil.name.startswith("STATUS_"):
            self.send_response(int(spoil.value[:3]))
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        if spoil is Spoil.DELAY:
            time.sleep(self.proxy.delay_s)
        if spoil is Spoil.CHANGE_BYTES and body:
            body = bytes([body[0] ^ 1]) + body[1:]
        self._forward(body, spoil)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _handle

    def _forward(self, body: bytes, spoil: Spoil | None) -> None:
        try:
            self._upstream.putrequest(
                self.command, self.path, skip_host=True, skip_accept_encoding=True
            )
            for name, value in self.headers.items():
                self._upstream.putheader(name, value)
            self._upstream.endheaders(body)
            response = self._upstream.getresponse()
            data = response.read()
        except (OSError, HTTPException):
            self._hang_up()
            return
        if spoil is Spoil.HANG_AFTER:
            self._hang()
        if spoil in (Spoil.LOSE_ANSWER, Spoil.HANG_AFTER):
            self._hang_up()
            return
        self.send_response_only(response.status, response.reason)
        for name, value in response.getheaders():
            if name.lower() not in ("transfer-encoding", "content-length", "connection"):
                self.send_header(name, value)
        length = response.getheader("Content-Length") if self.command == "HEAD" else len(data)
        self.send_header("Content-Length", str(length or 0))
        self.end_headers()
        self.wfile.write(data)

    def _hang(self) -> None:
        self.proxy.hanging.set()
        self.proxy.closing.wait()

    def _hang_up(self) -> None:
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)
