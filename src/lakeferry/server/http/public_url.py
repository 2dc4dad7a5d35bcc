"""Finds the address by which a client reached the server, for the URLs that it is given.

A server that listens on every address of its machine has no single one, and one that listens on
127.0.0.1 is called ``localhost`` by some clients. So a client gets URLs with the address that it
used, from its ``Host`` header. The client may send anything there: it is used if it looks like a
host and a port, and only in this client's own answers. A signature covers method and key, not the
host. So a wrong ``Host`` gives its sender a URL that doesn't work, and helps nobody else.
"""

from __future__ import annotations

import re
from ipaddress import AddressValueError, IPv6Address

from starlette.requests import HTTPConnection

_HOST = re.compile(
    r"(?:[A-Za-z0-9](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9.])?|\[([0-9A-Fa-f:.]{2,45})\])"
    r"(?::([0-9]{1,5}))?"
)
_SECURE = ("https", "wss")


def reached_at(asked: HTTPConnection) -> str | None:
    """Return the address by which a client reached the server; ``None`` if it is unknown.

    Without a valid ``Host``, it is the local address of the connection.
    """
    named = asked.headers.getlist("host")
    own = asked.scope.get("server")
    if len(named) == 1 and _is_host(named[0]):
        host = named[0]
    elif own is not None and own[1] is not None:
        host = f"[{own[0]}]:{own[1]}" if ":" in own[0] else f"{own[0]}:{own[1]}"
    else:
        return None
    return f"{'https' if asked.scope['scheme'] in _SECURE else 'http'}://{host}"


def _is_host(text: str) -> bool:
    found = _HOST.fullmatch(text)
    if found is None or not 0 < int(found[2] or 1) < 1 << 16:
        return False
    try:
        return found[1] is None or bool(IPv6Address(found[1]))
    except AddressValueError:
        return False
