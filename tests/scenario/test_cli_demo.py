"""The demo, with the real Spark and the real delta-rs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import components
from tests.unit.cli.program import run

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]


def test_the_demo_shows_a_table_that_two_engines_wrote(tmp_path: Path) -> None:
    components.require("spark-jars")
    cache = {"LAKEFERRY_CACHE": str(components.cache_folder())}
    shown = run("demo", "--folder", "demo", home=tmp_path, variables=cache, timeout=400)
    assert (shown.code, shown.err) == (0, "")
    for words in ("$ lakeferry inspect", "wrote the classic checkpoint", "DELETE", "delta-rs"):
        assert words in shown.out
    again = run("verify", "demo/orders", "demo/orders", "--rows", "--json", home=tmp_path)
    assert again.document["rows"] == {"a": 960, "b": 960}


def test_the_demo_without_spark_says_what_is_missing(tmp_path: Path) -> None:
    nothing = {"LAKEFERRY_CACHE": str(tmp_path / "empty")}
    refused = run("demo", "--json", home=tmp_path, variables=nothing)
    assert (refused.code, refused.error["code"]) == (1, "feature_required")
