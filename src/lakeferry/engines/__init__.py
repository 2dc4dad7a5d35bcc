"""The engines behind the port :mod:`lakeferry.engine`: in this process, and on Spark."""

from __future__ import annotations

from lakeferry.engine import Engine, Name

__all__ = ["open_engine"]


def open_engine(name: Name) -> Engine:
    """Return the engine of that name; nothing is started before its first plan."""
    if name == "local":
        from lakeferry.engines.local import LocalEngine

        return LocalEngine()
    # Imported late: only a job that wants Spark pays for it, or needs it installed.
    from lakeferry.engines.spark import SparkEngine

    return SparkEngine()
