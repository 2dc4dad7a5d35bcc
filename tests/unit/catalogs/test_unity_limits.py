"""What the open Unity Catalog has no room for is refused with its name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lakeferry.catalogs import unity_limits
from lakeferry.errors import InvalidInput
from lakeferry.log.actions import Metadata
from lakeferry.log.catalog_changes import CatalogChanges, changes_of
from lakeferry.log.latest_actions import LatestActions


def described(*, name: str = "id", comment: str = "", **more: Any) -> CatalogChanges:
    """Return the description of a table with one column."""
    column = {"name": name, "type": "long", "nullable": True, "metadata": {"comment": comment}}
    schema = json.dumps({"type": "struct", "fields": [column]})
    return changes_of(LatestActions(metadata=Metadata("1", schema, **more)), None)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        (described(configuration={"note": "x" * 256}), "note"),
        (described(configuration={"note": "\N{PILE OF POO}" * 128}), "note"),
        (described(configuration={"k" * 256: "x"}), "k" * 256),
        (described(name="c" * 256), "c" * 256),
        (described(comment="x" * 65_536), "id"),
        (described(description="x" * 65_536), "cat.s.t"),
    ],
)
def test_what_is_too_long_is_named(changes: CatalogChanges, named: str) -> None:
    with pytest.raises(InvalidInput, match="can't keep") as refused:
        unity_limits.check("cat.s.t", changes)
    assert refused.value.fields["value"] == named
    assert "shorter" in (refused.value.remedy or "")


def test_what_fits_is_taken() -> None:
    longest = described(
        name="c" * 255,
        comment="x" * 65_535,
        description="x" * 65_535,
        configuration={"k" * 255: "\N{PILE OF POO}" * 127, "delta.feature.invented": "x" * 300},
    )
    unity_limits.check("cat.s.t", longest)
    unity_limits.check("cat.s.t", CatalogChanges())
