"""Refuses tables that can't become managed ones, before anything is allocated for them."""

from __future__ import annotations

from lakeferry.errors import InvalidInput, UnsupportedFeature
from lakeferry.log import features
from lakeferry.log.catalog_changes import written_properties
from lakeferry.log.replay import TableState

LONGEST_PROPERTY = 255
"""How many characters the open Unity Catalog takes of a property's name, and of its value."""
_UNIFORM = "delta.universalFormat.enabledFormats"
_ICEBERG = ("icebergCompatV1", "icebergCompatV2", "icebergCompatV3")


def check_fits(state: TableState, source: str) -> None:
    """Refuse a table that can't become a managed one, by its properties and features."""
    formats = state.metadata.configuration.get(_UNIFORM, "")
    iceberg = [name for name in _ICEBERG if name in features.implied_features(state.protocol)]
    if formats.strip() or iceberg:
        raise UnsupportedFeature(
            f"{source} can't become a managed table",
            cause=f"it is also kept in another format ({formats or ', '.join(iceberg)}), which a "
            "catalog takes only of tables that it has created",
            remedy="switch that off first: ALTER TABLE ... UNSET TBLPROPERTIES "
            f"('{_UNIFORM}'), and drop the feature; or leave out --managed",
            features=iceberg or [formats],
        )
    for name, value in written_properties(state.metadata.configuration).items():
        if len(name) > LONGEST_PROPERTY or len(value) > LONGEST_PROPERTY:
            raise InvalidInput(
                f"{source} can't become a managed table",
                cause=f"its property {name[:80]} has {max(len(name), len(value))} characters, and "
                f"Unity Catalog keeps {LONGEST_PROPERTY}",
                remedy="remove the property, or make it shorter; or leave out --managed",
                location=source,
                value=name,
            )
