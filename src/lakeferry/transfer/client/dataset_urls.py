"""Parses the URLs of datasets and servers as users write them."""

from __future__ import annotations

from yarl import URL

from lakeferry.errors import InvalidInput
from lakeferry.transfer.client.trusted_hosts import shown_url

_SCHEMES = {"http": "http", "https": "https", "odf+http": "http", "odf+https": "https"}


def parse_url(text: str) -> URL:
    """Return the HTTP URL of a dataset that a user named, or raise ``InvalidInput``."""
    scheme, separator, rest = text.partition("://")
    plain = _SCHEMES.get(scheme.lower())
    try:
        url = URL(f"{plain}://{rest.rstrip('/')}")
        fits = bool(plain and separator and url.host and url.port)
    except ValueError:
        fits = False
    if not fits or url.user or url.password or url.query_string or url.fragment:
        raise InvalidInput(
            f"{shown_url(text)} isn't the URL of a dataset",
            remedy="write http://host/name, https://host/account/name, or the same with odf+",
        )
    return url
