"""Lakeferry moves Delta Lake tables without breaking anyone who uses them.

::

    import lakeferry

    table = lakeferry.Table("s3://warehouse/orders")
    print(table.inspect().num_files)

The names here are the public ones. They are loaded when they are first used, so
that importing the package costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakeferry.version import LAKEFERRY_VERSION

if TYPE_CHECKING:
    from lakeferry import spark
    from lakeferry.api.history import Commit
    from lakeferry.api.inspection import Inspection
    from lakeferry.api.server_root import async_gc, create_token, gc, list_tokens, revoke_token
    from lakeferry.api.serving import Server, serve
    from lakeferry.api.table import Table, resolve
    from lakeferry.api.verify import Difference, Verification
    from lakeferry.dataset import open
    from lakeferry.errors import LakeferryError

__version__ = LAKEFERRY_VERSION

__all__ = [
    "Commit",
    "Difference",
    "Inspection",
    "LakeferryError",
    "Server",
    "Table",
    "Verification",
    "__version__",
    "async_gc",
    "create_token",
    "gc",
    "list_tokens",
    "open",
    "resolve",
    "revoke_token",
    "serve",
    "spark",
]

_HOMES = {
    "Commit": "lakeferry.api.history",
    "Difference": "lakeferry.api.verify",
    "Inspection": "lakeferry.api.inspection",
    "LakeferryError": "lakeferry.errors",
    "Server": "lakeferry.api.serving",
    "Table": "lakeferry.api.table",
    "Verification": "lakeferry.api.verify",
    "async_gc": "lakeferry.api.server_root",
    "create_token": "lakeferry.api.server_root",
    "gc": "lakeferry.api.server_root",
    "list_tokens": "lakeferry.api.server_root",
    "open": "lakeferry.dataset",
    "resolve": "lakeferry.api.table",
    "revoke_token": "lakeferry.api.server_root",
    "serve": "lakeferry.api.serving",
}


def __getattr__(name: str) -> object:
    """Load a public name when it is first asked for."""
    import importlib

    if name == "spark":
        # A module: it imports pyspark when one of its functions is called.
        return importlib.import_module("lakeferry.spark")
    if name not in _HOMES:
        raise AttributeError(f"module 'lakeferry' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
