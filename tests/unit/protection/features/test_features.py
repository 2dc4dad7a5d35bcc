"""Every feature that can be dropped has a module; what goes with it goes with it."""

from __future__ import annotations

import pytest

from lakeferry.log import actions
from lakeferry.log.actions import DomainMetadata, Metadata
from lakeferry.log.features import FEATURES
from lakeferry.log.lines import Lines
from lakeferry.protection.features import DROPPABLE

EMPTY = Metadata("id", '{"type":"struct","fields":[]}')


def test_what_the_registry_calls_droppable_can_be_dropped_and_nothing_else() -> None:
    assert set(DROPPABLE) == {row.name for row in FEATURES.values() if row.droppable}
    assert all(name == each.name for name, each in DROPPABLE.items())


def test_each_kind_of_drop_has_a_module_of_its_own() -> None:
    kinds = {type(each) for each in DROPPABLE.values()}
    assert len({kind.__module__ for kind in kinds}) == len(kinds)


@pytest.mark.parametrize("name", sorted(DROPPABLE))
def test_the_property_that_puts_a_feature_to_use_goes_with_it_or_has_to_go_before(
    name: str,
) -> None:
    row, dropped = FEATURES[name], DROPPABLE[name]
    if row.active_by is None or row.active_by.endswith("."):
        return
    value = next(iter(row.active_values), "7")
    table = actions.changed(EMPTY, configuration={row.active_by: value, "other": "1"})
    after = dropped.without_properties(table)
    assert after.configuration["other"] == "1"
    left = row.is_active(after.configuration)
    # What is still in use then is found, so that nothing is dropped under it.
    assert not left or dropped.shows_traces(after, Lines())


@pytest.mark.parametrize(
    ("name", "domain"), [("rowTracking", "delta.rowTracking"), ("clustering", "delta.clustering")]
)
def test_a_feature_s_domain_goes_with_it_and_no_other(name: str, domain: str) -> None:
    domains = {each: DomainMetadata(each, "{}") for each in (domain, "mine")}
    [gone] = DROPPABLE[name].removed_domains(domains)
    assert (gone.domain, gone.removed) == (domain, True)
    assert DROPPABLE[name].removed_domains({}) == ()
