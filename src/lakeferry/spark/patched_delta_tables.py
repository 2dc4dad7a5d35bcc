"""Patches for delta-spark's own tables: ``DeltaTable`` and its builder.

A ``DeltaTable`` stays where the table was when it was opened. So an operation of an opened table
first checks that the table is still there.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from lakeferry.errors import RedirectNotFollowed
from lakeferry.spark.client import Client
from lakeferry.spark.named_table_access import named_delta_table
from lakeferry.spark.patched_readers_writers import patch_writing
from lakeferry.spark.redirected_path import only_path
from lakeferry.spark.session_clients import Method, Patch, client_of, session_of
from lakeferry.spark.sql_tokens import path_of

_SOURCE = "_lakeferry_source"
"""How a table was opened: the client's method, the path or name, and the place it returned."""


def delta_patches() -> list[Patch]:
    """Return the patches of delta-spark's classes."""
    from delta.tables import DeltaTable, DeltaTableBuilder

    found: list[Patch] = [
        (DeltaTable, "forPath", _for_path),
        (DeltaTable, "forName", _for_name),
        (DeltaTable, "isDeltaTable", _is_delta_table),
        (DeltaTable, "convertToDelta", _convert),
        (DeltaTable, "alias", _alias),
        (DeltaTableBuilder, "location", _location),
        (DeltaTableBuilder, "property", _property),
        (DeltaTableBuilder, "tableName", patch_writing("CREATE TABLE")),
    ]
    for name, operations in {
        "toDF": (),
        "history": (),
        "detail": (),
        "generate": (),
        "delete": ("DELETE",),
        "update": ("UPDATE",),
        "merge": ("MERGE",),
        "optimize": ("OPTIMIZE",),
        "vacuum": ("VACUUM START", "VACUUM END"),
        "restoreToVersion": ("RESTORE",),
        "restoreToTimestamp": ("RESTORE",),
        "upgradeTableProtocol": ("UPGRADE PROTOCOL",),
        "dropFeatureSupport": ("DROP FEATURE",),
        "addFeatureSupport": ("SET TBLPROPERTIES",),
    }.items():
        found.append((DeltaTable, name, _committing(*operations)))
    clones = ("clone", "cloneAtVersion", "cloneAtTimestamp")
    return [*found, *((DeltaTable, name, _cloning) for name in clones)]


def _for_path(original: Method) -> Method:
    @functools.wraps(original)
    def for_path(cls: Any, sparkSession: Any, path: str, *more: Any, **named: Any) -> Any:  # noqa: N803
        client = client_of(sparkSession)
        if client is None or not isinstance(path, str):
            return original(cls, sparkSession, path, *more, **named)
        place = client.moved_path(path)
        if place is not None and place.name:
            # The catalog issues the credentials, so a Hadoop configuration isn't needed.
            table = named_delta_table(cls, sparkSession, place.newest(path))
        else:
            now = path if place is None else place.path
            table = original(cls, sparkSession, now, *more, **named)
        setattr(table, _SOURCE, (Client.moved_path, path, place))
        return table

    return for_path


def _for_name(original: Method) -> Method:
    @functools.wraps(original)
    def for_name(cls: Any, sparkSession: Any, tableOrViewName: str) -> Any:  # noqa: N803
        client = client_of(sparkSession)
        if client is None or not isinstance(tableOrViewName, str):
            return original(cls, sparkSession, tableOrViewName)
        found = client.moved_table(tableOrViewName)
        name = tableOrViewName if found is None else found.newest(tableOrViewName)
        table = named_delta_table(cls, sparkSession, name)
        setattr(table, _SOURCE, (Client.moved_table, tableOrViewName, found))
        return table

    return for_name


def _is_delta_table(original: Method) -> Method:
    @functools.wraps(original)
    def is_delta_table(cls: Any, sparkSession: Any, identifier: str) -> bool:  # noqa: N803
        client = client_of(sparkSession)
        if client is not None and isinstance(identifier, str):
            place = client.moved_path(identifier)
            if place is not None and place.name:
                return True
            identifier = identifier if place is None else place.path
        return bool(original(cls, sparkSession, identifier))

    return is_delta_table


def _convert(original: Method) -> Method:
    @functools.wraps(original)
    def convert(cls: Any, sparkSession: Any, identifier: str, *more: Any, **named: Any) -> Any:  # noqa: N803
        client = client_of(sparkSession)
        parts = client.parts_of(identifier) if client and isinstance(identifier, str) else None
        if client is not None and parts is not None and len(parts) == 2:
            path = path_of(("delta", parts[1]))
            if path is not None and client.moved_path(path) is not None:
                # It is a Delta table already; Delta would return the one at the old place.
                return cls.forPath(sparkSession, path)
        return original(cls, sparkSession, identifier, *more, **named)

    return convert


def _cloning(original: Method) -> Method:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def clone(self: Any, *given: Any, **named: Any) -> Any:
        client = client_of(session_of(self))
        bound = signature.bind(self, *given, **named)
        target = bound.arguments["target"]
        if client is not None and isinstance(target, str):
            is_path = path_of(("delta", target)) is not None
            find = client.moved_path if is_path else client.moved_table
            place = find(target, "CLONE")
            if place is not None:
                bound.arguments["target"] = place.identifier if place.name else place.path
        return original(*bound.args, **bound.kwargs)

    return _committing()(clone)


def _alias(original: Method) -> Method:
    @functools.wraps(original)
    def alias(self: Any, *given: Any, **named: Any) -> Any:
        other = original(self, *given, **named)
        if _SOURCE in vars(self):
            setattr(other, _SOURCE, vars(self)[_SOURCE])
        return other

    return alias


def _location(original: Method) -> Method:
    @functools.wraps(original)
    def location(self: Any, location: str) -> Any:
        return original(self, _location_now(self, location))

    return location


def _property(original: Method) -> Method:
    @functools.wraps(original)
    def property(self: Any, key: Any, value: Any) -> Any:
        is_place = isinstance(key, str) and key.lower() == "location"
        return original(self, key, _location_now(self, value) if is_place else value)

    return property


def _location_now(of: Any, location: str) -> str:
    """Return where the table is now that was at a location given to a builder."""
    client = client_of(session_of(of))
    if client is None or not isinstance(location, str):
        return location
    moved = client.moved_path(location, "CREATE TABLE")
    place = only_path(moved, location, "the builder's location")
    if place == location:
        return location
    # Delta compares it with its own spelling: a URI in Java has one slash there.
    session: Any = session_of(of)
    return str(session._jvm.org.apache.hadoop.fs.Path(place).toString())


def _committing(*operations: str) -> Callable[[Method], Method]:
    """Patch an operation of an opened table: the table must still be where it was opened."""

    def patch(original: Method) -> Method:
        @functools.wraps(original)
        def commit(self: Any, *more: Any, **named: Any) -> Any:
            client = client_of(session_of(self))
            if client is not None and _SOURCE in vars(self):
                check, source, place = vars(self)[_SOURCE]
                if check(client, source, *operations) != place:
                    raise RedirectNotFollowed(
                        f"the table opened by {source} has moved since then",
                        cause="a DeltaTable keeps the path that the table had when it was opened",
                        remedy="open it again, with DeltaTable.forPath or forName",
                        table=source,
                    )
            return original(self, *more, **named)

        return commit

    return patch
