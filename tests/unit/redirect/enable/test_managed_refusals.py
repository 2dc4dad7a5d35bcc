"""Which tables can't become managed ones."""

from __future__ import annotations

import pytest

from lakeferry.errors import UnsupportedFeature
from lakeferry.log.actions import Metadata, Protocol
from lakeferry.log.replay import TableState
from lakeferry.redirect.enable import managed_refusals

PLAIN = Protocol(1, 2)


def state(properties: dict[str, str], protocol: Protocol = PLAIN) -> TableState:
    metadata = Metadata("id", '{"type":"struct","fields":[]}', configuration=properties)
    return TableState(3, protocol, metadata)


def test_a_table_in_two_formats_is_refused() -> None:
    formats = {"delta.universalFormat.enabledFormats": "iceberg"}
    with pytest.raises(UnsupportedFeature, match="managed"):
        managed_refusals.check_one_format(state(formats), "file:///old")
    compat = Protocol(1, 7, None, ("icebergCompatV2",))
    with pytest.raises(UnsupportedFeature, match="managed"):
        managed_refusals.check_one_format(state({}, compat), "file:///old")
