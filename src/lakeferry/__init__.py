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
    from lakeferry.api.datasets import (
        delete_dataset,
        ls,
        rename_dataset,
        set_dataset_visibility,
    )
    from lakeferry.api.history import Commit
    from lakeferry.api.inspection import Inspection
    from lakeferry.api.redirect_search import list_redirects
    from lakeferry.api.remotes import add_remote, list_remotes, remove_remote
    from lakeferry.api.server_root import async_gc, create_token, gc, list_tokens, revoke_token
    from lakeferry.api.serving import Server, serve
    from lakeferry.api.table import Table, resolve
    from lakeferry.api.verify import Difference, Verification
    from lakeferry.dataset import open
    from lakeferry.errors import LakeferryError
    from lakeferry.fleet.fleet import Fleet

__version__ = LAKEFERRY_VERSION

__all__ = [
    "Commit",
    "Difference",
    "Fleet",
    "Inspection",
    "LakeferryError",
    "Server",
    "Table",
    "Verification",
    "__version__",
    "add_remote",
    "async_gc",
    "create_token",
    "delete_dataset",
    "gc",
    "list_redirects",
    "list_remotes",
    "list_tokens",
    "ls",
    "open",
    "remove_remote",
    "rename_dataset",
    "resolve",
    "revoke_token",
    "serve",
    "set_dataset_visibility",
    "spark",
]

_HOMES = {
    "Commit": "lakeferry.api.history",
    "Difference": "lakeferry.api.verify",
    "Fleet": "lakeferry.fleet.fleet",
    "Inspection": "lakeferry.api.inspection",
    "LakeferryError": "lakeferry.errors",
    "Server": "lakeferry.api.serving",
    "Table": "lakeferry.api.table",
    "Verification": "lakeferry.api.verify",
    "add_remote": "lakeferry.api.remotes",
    "async_gc": "lakeferry.api.server_root",
    "create_token": "lakeferry.api.server_root",
    "delete_dataset": "lakeferry.api.datasets",
    "gc": "lakeferry.api.server_root",
    "list_redirects": "lakeferry.api.redirect_search",
    "list_remotes": "lakeferry.api.remotes",
    "list_tokens": "lakeferry.api.server_root",
    "ls": "lakeferry.api.datasets",
    "open": "lakeferry.dataset",
    "remove_remote": "lakeferry.api.remotes",
    "rename_dataset": "lakeferry.api.datasets",
    "resolve": "lakeferry.api.table",
    "revoke_token": "lakeferry.api.server_root",
    "serve": "lakeferry.api.serving",
    "set_dataset_visibility": "lakeferry.api.datasets",
}


def __getattr__(name: str) -> object:
    """Load a public name when it is first asked for."""
    import importlib

    if name == "spark":
        # A module: it imports pyspark when one of its functions is called.
        return importlib.import_module("lakeferry.spark")
    if name not in _HOMES:
        raise AttributeError(f"module 'lakeferry' has no attribute {name!r}")
    from lakeferry.packages import naming_missing_packages

    with naming_missing_packages():
        value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
