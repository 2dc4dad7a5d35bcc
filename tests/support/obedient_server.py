"""An HTTP server that answers as a test tells it to, in a thread of its own.

What it answers is its subclass's; that it falls silent, goes down, says something else
once or hangs up without a word is what they have in common.
"""

from __future__ import annotations

import json
import threading
from abc import ABC, abstractmethod
from collections import deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

Reply = tuple[int, Any]
"""A status and a body, which may be bytes; else it is sent as JSON."""


class ObedientServer(ABC):
    """``next_replies`` are given instead of answers, one each; ``None`` closes the connection."""

    def __init__(self) -> None:
        self.next_replies: deque[Reply | None] = deque()
        self.asked: list[str] = []
        """Every request so far."""
        self._heard = threading.Event()
        self._heard.set()
        self._lock = threading.Lock()
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                """Say nothing."""

            def _serve(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                data = self.rfile.read(length)
                reply = server._reply(self.command, self.path, self.headers, data)
                server._heard.wait()
                if reply is None:
                    self.close_connection = True
                    return
                status, body = reply
                content = body if isinstance(body, bytes) else json.dumps(body).encode()
                try:
                    self.send_response(status)
                    if 300 <= status < 400:
                        self.send_header("Location", f"{server.url}/elsewhere")
                    self.send_header("Content-Length", str(len(content)))
                    self.end_headers()
                    self.wfile.write(content)
                except OSError:
                    # Whoever asked has gone.
                    self.close_connection = True

            do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = _serve

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"

    @abstractmethod
    def _reply(self, method: str, target: str, headers: Any, data: bytes) -> Reply | None:
        """Answer one request."""

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.go_down()
        self._heard.set()

    def go_down(self) -> None:
        """Listen no longer: whoever connects is refused."""
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def fall_silent(self) -> None:
        """Keep every answer back from now on."""
        self._heard.clear()
