"""Which address a client is sent back to: its own word, if it is one, or where it is connected."""

from __future__ import annotations

import pytest
from starlette.requests import HTTPConnection

from lakeferry.server.http.public_url import reached_at


def at(
    *hosts: str, own: tuple[str, int | None] | None = ("192.0.2.7", 8470), scheme: str = "ws"
) -> str | None:
    headers = [(b"host", host.encode("latin-1")) for host in hosts]
    return reached_at(
        HTTPConnection({"type": "websocket", "scheme": scheme, "headers": headers, "server": own})
    )


@pytest.mark.parametrize(
    "host",
    [
        "localhost:8470",
        "127.0.0.1:1",
        "ferry.example.com",
        "ferry.example.com.:65535",
        "a_service:80",
        "x",
        "[::1]:8470",
        "[2001:db8::7]",
        "a" * 253,
    ],
)
def test_a_client_is_sent_to_where_it_came(host: str) -> None:
    assert at(host) == at(host, scheme="http") == f"http://{host}"
    assert at(host, scheme="wss") == at(host, scheme="https") == f"https://{host}"


@pytest.mark.parametrize(
    "host",
    [
        "",
        " ",
        "a b",
        "user@host",
        "host/path",
        "host?x",
        "host#x",
        "host\\x",
        "host%2fx",
        "host:0",
        "host:65536",
        "host:",
        "host:8470:1",
        "host:x",
        "-host",
        "höst",
        "host\n",
        "::1",
        "[::1",
        "[1.2.3.4]",
        "[::1%lo]",
        "[:::]",
        "a" * 254,
    ],
)
def test_what_is_no_host_is_not_repeated(host: str) -> None:
    assert at(host) == "http://192.0.2.7:8470"
    assert at(host, own=("2001:db8::7", 1)) == "http://[2001:db8::7]:1"
    for nowhere in (None, ("/run/socket", None)):
        assert at(host, own=nowhere) is None


def test_neither_is_none_or_more_than_one() -> None:
    assert at() == at("one", "two") == at("one", "one") == "http://192.0.2.7:8470"
