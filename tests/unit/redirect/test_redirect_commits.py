"""The commits of a redirect: what can't be committed, or taken back, is refused at once."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lakeferry.errors import CorruptLog, FeatureRequired, LakeferryError
from lakeferry.redirect import freeze
from lakeferry.redirect.disable import disabling
from lakeferry.redirect.enable import enabling
from lakeferry.redirect.entry import Mode
from lakeferry.redirect.states import RedirectState
from tests.support import plans
from tests.support.history import Append, History
from tests.support.redirects import (
    NEW,
    OLD,
    WORLD,
    append,
    redirect_at,
    request_for,
    setting_of,
    world_with,
)
from tests.support.stores import DictStore

ODD_PROTOCOLS: list[dict[str, Any]] = [
    {"minReaderVersion": 0, "minWriterVersion": 0},
    {"minReaderVersion": 0, "minWriterVersion": 2},
    {"minReaderVersion": -1, "minWriterVersion": 7, "writerFeatures": []},
    {"minReaderVersion": 1, "minWriterVersion": 2, "readerFeatures": [], "writerFeatures": []},
    {"minReaderVersion": 1, "minWriterVersion": 4, "writerFeatures": ["appendOnly"]},
    {"minReaderVersion": 3, "minWriterVersion": 2, "readerFeatures": []},
    {"minReaderVersion": 3, "minWriterVersion": 7},
    {"minReaderVersion": 1, "minWriterVersion": 7},
]
PROPERTIES = [{}, {"delta.enableChangeDataFeed": "true"}, {"delta.columnMapping.mode": "name"}]


def odd_world(protocol: dict[str, Any], properties: dict[str, str]) -> DictStore:
    """Return a world whose table has that protocol, and those properties."""
    objects = world_with(History().then(Append(1)))
    first = f"old/_delta_log/{0:020d}.json"
    lines = [json.loads(line) for line in objects[first].splitlines()]
    for line in lines:
        if "protocol" in line:
            line["protocol"] = protocol
        if "metaData" in line:
            line["metaData"]["configuration"].update(properties)
    objects[first] = b"\n".join(json.dumps(line).encode() for line in lines)
    return DictStore(objects, uri=WORLD)


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("properties", PROPERTIES)
@pytest.mark.parametrize("protocol", ODD_PROTOCOLS)
def test_a_table_that_moves_comes_home_and_any_other_is_refused_at_once(
    protocol: dict[str, Any], properties: dict[str, str], mode: Mode
) -> None:
    store = odd_world(protocol, properties)
    before = store.objects
    refused: LakeferryError | None = None
    try:
        enabling.enable(setting_of(store), request_for(mode=mode))
    except LakeferryError as error:
        refused = error
    if refused is not None:
        assert refused.remedy
        assert store.objects == before
        with pytest.raises(type(refused)):
            plans.enable(setting_of(store), request_for(mode=mode))
        return
    append(setting_of(store).log(NEW), "x.parquet")
    assert disabling.disable(setting_of(store), OLD).state is RedirectState.NORMAL
    assert redirect_at(setting_of(store)) is None


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("protocol", ODD_PROTOCOLS)
def test_a_table_that_is_frozen_can_be_thawed(protocol: dict[str, Any], mode: Mode) -> None:
    store = odd_world(protocol, {})
    before = store.objects
    try:
        freeze.freeze(setting_of(store), OLD, mode)
    except LakeferryError:
        assert store.objects == before
        return
    assert freeze.thaw(setting_of(store), OLD).state is RedirectState.NORMAL


def test_a_version_number_below_one_keeps_no_table_from_moving() -> None:
    store = odd_world({"minReaderVersion": 0, "minWriterVersion": 0}, {})
    assert enabling.enable(setting_of(store), request_for()).state is RedirectState.READY
    disabling.disable(setting_of(store), OLD)
    protocol = setting_of(store).log(OLD).state().protocol
    assert (protocol.min_reader_version, protocol.min_writer_version) == (1, 1)


def test_a_feature_that_properties_put_to_use_is_named_before_anything_is_copied() -> None:
    store = odd_world(ODD_PROTOCOLS[3], {"delta.enableChangeDataFeed": "true"})
    before = store.objects
    with pytest.raises(FeatureRequired) as refused:
        enabling.enable(setting_of(store), request_for())
    assert "'delta.feature.changeDataFeed' = 'supported'" in (refused.value.remedy or "")
    assert store.objects == before


def test_a_commit_without_the_time_that_it_should_have_is_found_before_anything_is_copied() -> None:
    store = odd_world(ODD_PROTOCOLS[3], {"delta.enableInCommitTimestamps": "true"})
    before = store.objects
    with pytest.raises(CorruptLog, match="inCommitTimestamp"):
        enabling.enable(setting_of(store), request_for())
    assert store.objects == before
