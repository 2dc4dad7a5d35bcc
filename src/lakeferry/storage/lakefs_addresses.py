"""Converts the physical addresses of lakeFS to absolute URIs."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from lakeferry.storage.uris import UriParts

_AZURE_HOST = re.compile(r"(?P<account>[a-z0-9]+)\.blob\.(?P<suffix>.+)")


def physical_uri(address: str) -> str:
    """Return the absolute URI for an address of lakeFS, which isn't percent-encoded.

    ``local://`` becomes ``file://``, and a blob of Azure ``abfss://``. Other addresses are returned
    unchanged.
    """
    scheme, _, rest = address.partition("://")
    authority, _, key = rest.partition("/")
    if scheme == "local" and not authority:
        return str(UriParts("file", "", key))
    if scheme in ("s3", "gs"):
        return str(UriParts(scheme, authority, key))
    if scheme in ("https", "http") and (azure := _AZURE_HOST.fullmatch(urlsplit(address).netloc)):
        container, _, key = key.partition("/")
        where = f"{container}@{azure['account']}.dfs.{azure['suffix']}"
        return str(UriParts("abfss", where, key))
    return address
