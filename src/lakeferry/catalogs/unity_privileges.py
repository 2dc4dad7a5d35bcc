"""Finds out which privileges a user lacks to create a table in Unity Catalog.

A refusal of the server doesn't say which. Groups and rules of other servers may grant what isn't
listed here, so a refusal comes first, and this only explains it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lakeferry.catalogs import unity_users
from lakeferry.catalogs.unity_delta_rest import DeltaRest
from lakeferry.errors import LakeferryError


def lacking(rest: DeltaRest, server: str, token: str | None, name: str) -> tuple[str, ...]:
    """Return what a user lacks to create a table ``name``; nothing if that can't be known."""
    catalog, schema, _ = name.split(".")
    try:
        user = unity_users.principal(server, token)
        if user is None:
            return ()
        above = _granted(rest, user, "catalog", catalog)
        there = above | _granted(rest, user, "schema", f"{catalog}.{schema}")
        owns_catalog = _owns(rest, user, "catalogs", catalog)
        owns_schema = _owns(rest, user, "schemas", f"{catalog}.{schema}")
    except LakeferryError:
        return ()
    found = [] if owns_catalog or "USE CATALOG" in above else [f"USE CATALOG on {catalog}"]
    if not owns_schema:
        wanted = ("USE SCHEMA", "CREATE TABLE")
        found += [f"{each} on {catalog}.{schema}" for each in wanted if each not in there]
    return tuple(found)


def _granted(rest: DeltaRest, user: str, kind: str, name: str) -> set[str]:
    """Return the privileges that are granted to a user on one thing."""
    body = rest.ask("GET", f"/permissions/{kind}/{name}").body
    found: list[Mapping[str, Any]] = body.get("privilege_assignments") or []
    mine = (each.get("privileges") or () for each in found if each.get("principal") == user)
    return {str(privilege).replace("_", " ") for some in mine for privilege in some}


def _owns(rest: DeltaRest, user: str, kind: str, name: str) -> bool:
    """Return whether a user owns something; who may not look at it doesn't own it."""
    try:
        return rest.ask("GET", f"/{kind}/{name}").body.get("owner") == user
    except LakeferryError:
        return False
