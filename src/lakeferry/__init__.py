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

if TYPE_CHECKING:
    from lakeferry.api import Commit, Table, gc, resolve
    from lakeferry.dataset import open
    from lakeferry.errors import LakeferryError
    from lakeferry.inspection import Inspection
    from lakeferry.verify import Difference, Verification

__version__ = "0.1.0"

__all__ = [
    "Commit",
    "Difference",
    "Inspection",
    "LakeferryError",
    "Table",
    "Verification",
    "__version__",
    "gc",
    "open",
    "resolve",
]

_HOMES = {
    "Commit": "lakeferry.api",
    "Difference": "lakeferry.verify",
    "Inspection": "lakeferry.inspection",
    "LakeferryError": "lakeferry.errors",
    "Table": "lakeferry.api",
    "Verification": "lakeferry.verify",
    "gc": "lakeferry.api",
    "open": "lakeferry.dataset",
    "resolve": "lakeferry.api",
}


def __getattr__(name: str) -> object:
    """Load a public name when it is first asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module 'lakeferry' has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
