"""Single HTTP requests over kept connections."""

from __future__ import annotations

import threading
from base64 import b64encode
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from lakeferry.errors import StorageUnavailable
from lakeferry.storage.http_pool import http_answer

SIGNED = "http://127.0.0.1:9/x?X-Amz-Signature=secret"


class _Busy(BaseHTTPRequestHandler):
    seen: list[tuple[str, str | None]]

    def do_GET(self) -> None:
        self.seen.append((self.path, self.headers["Proxy-Authorization"]))
        self.send_response(503)
        self.send_header("Retry-After", "60")
        self.send_header("Content-Length", "4")
        self.end_headers()
        self.wfile.write(b"busy")

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[ThreadingHTTPServer]:
    _Busy.seen = []
    with ThreadingHTTPServer(("127.0.0.1", 0), _Busy) as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.02,))
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def test_a_busy_server_that_says_when_to_try_again_has_answered(
    server: ThreadingHTTPServer,
) -> None:
    url = f"http://127.0.0.1:{server.server_port}/x"
    answer = http_answer("GET", url, {}, None, wait_s=5)
    assert (answer.status, answer.content) == (503, b"busy")
    assert len(_Busy.seen) == 1


@pytest.mark.parametrize("scheme", ["", "http://"])
def test_a_proxy_gets_the_name_and_the_password_of_its_url(
    server: ThreadingHTTPServer, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.setenv("http_proxy", f"{scheme}me:p%40ss@127.0.0.1:{server.server_port}")
    assert http_answer("GET", "http://store.invalid/x", {}, None, wait_s=5).status == 503
    said = "Basic " + b64encode(b"me:p@ss").decode()
    assert _Busy.seen == [("http://store.invalid/x", said)]


def test_errors_do_not_show_a_signature(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")
    with pytest.raises(StorageUnavailable, match="refused") as failed:
        http_answer("GET", SIGNED, {}, None, wait_s=5)
    assert "secret" not in str(failed.value)
