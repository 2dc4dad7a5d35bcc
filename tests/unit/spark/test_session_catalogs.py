"""Where a managed table is opened by its name; what needs a real catalog is in tests/compat."""

from __future__ import annotations

from typing import Any

import pytest

from lakeferry.engines.spark.spark_versions import SPARK_LINES
from lakeferry.errors import CatalogManaged
from lakeferry.spark.redirected_path import NewPlace

session_catalogs = pytest.importorskip("lakeferry.spark.session_catalogs", exc_type=ImportError)


def test_a_delta_lake_without_managed_tables_is_refused_before_it_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session_catalogs, "spark_line", lambda: SPARK_LINES[0])
    session: Any = object()
    place = NewPlace("s3://b/t", ("unity", "s", "t"))
    with pytest.raises(CatalogManaged, match=r"Spark 3\.5 can't open") as refused:
        session_catalogs.check_session_catalog(session, place, "s3://b/t")
    assert "Delta Lake 3.3.3" in str(refused.value)
