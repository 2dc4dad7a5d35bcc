"""Which tables can't become managed ones."""

from __future__ import annotations

import pytest

from lakeferry.errors import InvalidInput, UnsupportedFeature
from lakeferry.log.actions import Metadata, Protocol
from lakeferry.log.replay import TableState
from lakeferry.redirect.enable import managed_refusals

PLAIN = Protocol(1, 2)


def state(properties: dict[str, str], protocol: Protocol = PLAIN) -> TableState:
    metadata = Metadata("id", '{"type":"struct","fields":[]}', configuration=properties)
    return TableState(3, protocol, metadata)


@pytest.mark.parametrize("key", ["long", "k" * 256])
def test_a_property_that_a_catalog_cannot_keep_is_named(key: str) -> None:
    value = "x" * (256 if key == "long" else 1)
    with pytest.raises(InvalidInput, match="256 characters") as refused:
        managed_refusals.check_fits(state({key: value}), "file:///old")
    assert refused.value.fields["value"] == key
    managed_refusals.check_fits(state({"long": "x" * 255}), "file:///old")


def test_properties_that_the_server_derives_have_any_length() -> None:
    derived = {"delta.feature.icebergWriterCompatV1": "x" * 300}
    managed_refusals.check_fits(state(derived), "file:///old")


def test_a_table_in_two_formats_is_refused() -> None:
    formats = {"delta.universalFormat.enabledFormats": "iceberg"}
    with pytest.raises(UnsupportedFeature, match="managed"):
        managed_refusals.check_fits(state(formats), "file:///old")
    compat = Protocol(1, 7, None, ("icebergCompatV2",))
    with pytest.raises(UnsupportedFeature, match="managed"):
        managed_refusals.check_fits(state({}, compat), "file:///old")
