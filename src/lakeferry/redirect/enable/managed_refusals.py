"""Refuses tables that can't become managed ones, before anything is allocated for them."""

from __future__ import annotations

from lakeferry.errors import UnsupportedFeature
from lakeferry.log import features
from lakeferry.log.replay import TableState

_UNIFORM = "delta.universalFormat.enabledFormats"
_ICEBERG = ("icebergCompatV1", "icebergCompatV2", "icebergCompatV3")


def check_one_format(state: TableState, source: str) -> None:
    """Refuse a table that is also kept in another format: it can't become a managed one."""
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
