"""Finds the address by which a client reached the server, for the URLs that it is given.

A server that listens on every address of its machine has none of its own, and one that
listens on 127.0.0.1 is called ``localhost`` by some. So a client is sent to where it came
from, as its ``Host`` says. That is the client's own word: it is believed where it looks like
a host and a port, and what it leads to is told to this client and to nobody else. A signature
is for a method and a key, whatever the host, so that a wrong word makes a URL that is of no
use to whoever said it, and of no more use to anybody else.
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
    """Return the address by which a client came; ``None`` if nobody can tell.

    Without a ``Host`` that makes sense it is the one that the connection has at this end.
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
