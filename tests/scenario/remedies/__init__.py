"""Cases for remedies: one module for each part of the source, loaded by :func:`load`."""

from __future__ import annotations

import importlib
import pkgutil


def load() -> None:
    """Import every module here, so that its cases are registered."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
