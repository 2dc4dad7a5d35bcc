"""Our client of a Unity Catalog server, for tests."""

from __future__ import annotations

from typing import Any

from lakeferry.catalogs import CatalogTable
from lakeferry.catalogs.unity import UnityCatalog
from lakeferry.log.actions import Metadata
from tests.support.unity_server import UnityServer

ONE_COLUMN = Metadata(
    "1", '{"type":"struct","fields":[{"name":"id","type":"long","nullable":true,"metadata":{}}]}'
)


def connect(server: UnityServer, **options: Any) -> UnityCatalog:
    """Return a client that doesn't wait before it asks again."""
    return UnityCatalog(server.url, server.token, **{"pause": lambda _: None, **options})


def registered(
    server: UnityServer, location: str = "s3://bucket/t", name: str = "t"
) -> CatalogTable:
    """Register an external table in the server's schema."""
    return connect(server).register(f"{server.schema}.{name}", location, ONE_COLUMN)
