"""Decides which hosts a server may send us to.

The user names a server; an answer of the server never makes another host
trusted. The URLs that it returns for objects, and redirects, are followed

- to the server's own host, at any port, and not from ``https`` down to ``http``;
- to hosts that the user allowed (``--allow-host``): ``store.example.com``, which is any
  port of it, ``store.example.com:9000``, or ``*.example.com``, all below a domain.

All other hosts are refused before a connection is made. That includes a separate object store of
the server: the user has to allow it. The user's token is sent to the server's own origin only.
URLs with a user name are refused, because they are made to be misread.
"""

from __future__ import annotations

import re

from yarl import URL

from lakeferry.errors import Forbidden, InvalidInput

HOST_RULE = re.compile(r"(\*\.)?([a-z0-9_.-]+|\[[0-9a-f:.]+\])(?::([0-9]{1,5}))?")
_WRITTEN = re.compile(r"[!-\[\]-~]{1,8000}")
"""A valid URL: ASCII without spaces. A backslash is refused: programs read it differently."""
_LONGEST_LABEL = 63
"""Maximum length of a host name's part between two dots; a longer one can't be looked up."""


def admitted_url(text: str, server: URL, allowed_hosts: tuple[str, ...]) -> URL:
    """Return a URL from a server's answer that may be requested, or refuse it."""
    if not _WRITTEN.fullmatch(text):
        raise InvalidInput("the server sent text that isn't a URL", cause=repr(text[:80]))
    try:
        # Request exactly the value that was checked; the text isn't parsed again.
        url = URL(text, encoded=True)
        host, port = url.host, url.port
    except ValueError as error:
        raise InvalidInput(
            "the server sent text that isn't a URL", cause=repr(text[:80])
        ) from error
    if url.scheme not in ("http", "https") or not host or url.user or url.password:
        raise Forbidden(
            "the server sent a URL that is refused",
            cause=f"only plain http and https are used, and not {shown_url(text)}",
        )
    labels = host.rstrip(".").split(".")
    if not all(0 < len(label) <= _LONGEST_LABEL for label in labels):
        raise InvalidInput("the server sent a URL without a real host", cause=shown_url(text))
    if host == server.host and (url.scheme == "https" or server.scheme == "http"):
        return url
    if any(_matches(rule.lower(), host.lower(), port) for rule in allowed_hosts):
        return url
    raise Forbidden(
        f"the server gives URLs of another host, {host}",
        cause=f"{shown_url(text)}, and the server is {server.host}",
        remedy=f"if the server stores its objects there, allow that host: --allow-host {host}",
        host=host,
    )


def _matches(rule: str, host: str, port: int | None) -> bool:
    found = HOST_RULE.fullmatch(rule)
    if found is None or (found[3] and int(found[3]) != port):
        return False
    name = found[2].strip("[]")
    return host.endswith(f".{name}") if found[1] else host == name


def shown_url(text: str) -> str:
    """Return a URL without parts that may be secret: a signature, a password."""
    plain = text.partition("?")[0].partition("#")[0]
    scheme, separator, rest = plain.partition("://")
    return repr(f"{scheme}{separator}{rest.rpartition('@')[2]}"[:200])
