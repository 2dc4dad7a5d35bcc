"""Converts Arrow tables for pandas and Polars, where these are installed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lakeferry.packages import package_at_fault

if TYPE_CHECKING:
    import polars


def pandas_frame(table: pa.Table) -> Any:
    """Return a table as a ``pandas.DataFrame``; maps become dictionaries."""
    with _naming_what_is_missing():
        import pandas  # type: ignore[import-not-found, import-untyped, unused-ignore]  # noqa: F401

    return table.to_pandas(maps_as_pydicts="strict")


def polars_frame(table: pa.Table) -> polars.DataFrame:
    """Return a table as a ``polars.DataFrame``; maps become lists of key and value."""
    with _naming_what_is_missing():
        import polars

    frame = polars.from_arrow(table)
    assert isinstance(frame, polars.DataFrame)
    return frame


@contextmanager
def _naming_what_is_missing() -> Iterator[None]:
    try:
        yield
    except ImportError as missing:
        raise package_at_fault(missing) or missing from missing
