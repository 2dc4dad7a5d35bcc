"""What ``inspect`` says of redirects, and how little it asks for it."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from typing import Any

import pytest

from lakeferry.api import inspection
from lakeferry.api.inspection import Inspection
from lakeferry.api.redirects import Redirects
from lakeferry.catalogs import Catalog
from lakeferry.errors import CatalogUnavailable, RedirectTargetReplaced, StorageUnavailable
from lakeferry.log import actions
from lakeferry.log.commit import Transaction
from lakeferry.redirect import move_lookup, read_entry
from lakeferry.redirect.disable import bring_back
from lakeferry.redirect.disable.withdrawal import Withdrawal
from lakeferry.redirect.entry import Redirect
from lakeferry.redirect.resolve import Resolver
from lakeferry.redirect.states import RedirectState
from lakeferry.storage import Store, open_store
from lakeferry.table import DeltaLog
from tests.support.history import Append, History, SetProperties, Upgrade
from tests.support.lake import entry, redirected

RFC = "delta.redirectReaderWriter"


def unreachable(_: str) -> Store:
    raise StorageUnavailable("the line is dead")


def no_catalog(_: str) -> Catalog:
    raise CatalogUnavailable("nobody answers")


def codes(found: Inspection) -> list[str]:
    return [warning.code for warning in found.warnings]


@pytest.fixture
def root() -> str:
    return f"memory://{uuid.uuid4().hex}"


def make(uri: str, history: History) -> Store:
    return history.write(open_store(uri), with_data=True)


def moved(root: str, **options: Any) -> Store:
    source = make(f"{root}/old", History().then(Append(2)))
    with Redirects() as redirects:
        redirects.enable(source.uri, f"{root}/new", **options)
    return source


def test_a_table_without_a_redirect_has_none(root: str) -> None:
    found = inspection.inspect(make(f"{root}/t", History().then(Append(2))), open_store=unreachable)
    assert (found.redirect, found.warnings) == (None, ())


def test_an_entry_is_shown_as_it_is_and_as_it_is_understood(root: str) -> None:
    source = moved(root, rules=("nightly:OPTIMIZE",), mode="writer-only")
    found = inspection.inspect(source)
    document = found.as_document()["redirect"]
    value = document.pop("value")
    assert json.loads(value)["State"] == "READY"
    assert document == {
        "feature": "redirectWriterOnly",
        "property": "delta.redirectWriterOnly",
        "state": "READY",
        "mode": "writer-only",
        "dialects": ["rfc", "delta-spark"],
        "type": "Object Store",
        "target": f"{root}/new",
        "source": source.uri,
        "rules": [{"app_name": "nightly", "operations": ["OPTIMIZE"]}],
    }
    assert found.warnings == ()


def test_the_target_costs_a_few_requests_and_only_of_the_newest_version(root: str) -> None:
    source, asked = moved(root), list[Store]()

    def opened(uri: str) -> Store:
        asked.append(open_store(uri))
        return asked[-1]

    assert inspection.inspect(source, open_store=opened).warnings == ()
    (target,) = asked
    assert len(target.calls.log) <= 4
    older = inspection.inspect(source, 2, open_store=opened)
    assert older.redirect is not None
    assert older.redirect.state == "ENABLE-REDIRECT-IN-PROGRESS"
    assert len(asked) == 1


@pytest.mark.parametrize(
    "values",
    [
        {RFC: "nonsense"},
        {RFC: entry("s3://new/t"), "lakeferry.redirect": "nonsense"},
        {RFC: entry("s3://new/t", State="READY", Spec={})},
    ],
)
def test_an_entry_that_makes_no_sense_is_shown_with_a_warning(
    root: str, values: Mapping[str, str]
) -> None:
    history = redirected(*values.items(), features=("redirectReaderWriter",))
    found = inspection.inspect(make(f"{root}/t", history), open_store=unreachable)
    assert codes(found) == ["redirect_spec_invalid"]
    assert found.redirect is not None
    assert (found.redirect.property, found.redirect.value) == (RFC, values[RFC])
    assert (found.redirect.state, found.redirect.rules) == (None, None)


def test_a_feature_without_an_entry_and_an_entry_without_a_feature(root: str) -> None:
    alone = Upgrade(writer=("redirectWriterOnly",))
    found = inspection.inspect(make(f"{root}/a", History().then(alone)))
    assert codes(found) == ["redirect_without_entry"]
    assert found.redirect is not None
    assert (found.redirect.feature, found.redirect.property) == ("redirectWriterOnly", None)
    stray = SetProperties((("redirectReaderWriter", entry("s3://new/t")),))
    found = inspection.inspect(make(f"{root}/b", History().then(stray)), open_store=unreachable)
    assert codes(found) == ["property_without_feature"]
    # The one that keeps clients away is shown, if there is one.
    found = inspection.inspect(make(f"{root}/c", History().then(stray, alone)))
    assert set(codes(found)) == {"property_without_feature", "redirect_without_entry"}
    assert found.redirect is not None
    assert found.redirect.feature == "redirectWriterOnly"


def test_a_target_that_can_t_be_asked_is_a_warning(root: str) -> None:
    source = moved(root)
    assert codes(inspection.inspect(source, open_store=unreachable)) == [
        "redirect_target_unreachable"
    ]
    value = entry("", Type="SQL Catalog", Spec={"Table": "a.b.c"})
    named = make(f"{root}/named", redirected((RFC, value)))
    assert codes(inspection.inspect(named, catalog=no_catalog)) == ["redirect_target_unreachable"]


def test_a_target_that_is_another_table_by_now_leads_nowhere(root: str) -> None:
    source = moved(root)
    target = open_store(f"{root}/new")
    target.delete_many([each.path for each in target.list("")])
    assert codes(inspection.inspect(source)) == ["redirect_leads_nowhere"]
    History().then(Append(1)).write(target)
    name = f"_delta_log/{0:020d}.json"
    target.put(name, target.get(name).replace(b'"id":"', b'"id":"x'))
    assert codes(inspection.inspect(source)) == ["redirect_leads_nowhere"]


def test_a_withdrawal_that_was_broken_off_is_told(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = moved(root)

    def fail(_: Withdrawal) -> int:
        raise StorageUnavailable("the line is dead")

    with monkeypatch.context() as patch, Redirects() as redirects:
        patch.setattr(bring_back, "bring_changes", fail)
        with pytest.raises(StorageUnavailable):
            redirects.disable(source.uri)
    assert codes(inspection.inspect(source)) == ["redirect_withdrawal_unfinished"]
    # The target itself is locked, and leads nowhere else.
    locked = inspection.inspect(open_store(f"{root}/new"), open_store=unreachable)
    assert locked.warnings == ()
    assert locked.redirect is not None
    assert locked.redirect.state == "DROP-REDIRECT-IN-PROGRESS"
    with Redirects() as redirects:
        redirects.disable(source.uri)
    assert inspection.inspect(source).warnings == ()


def brought_back(source: Store, version: int, newest: int) -> None:
    """Put an old version's entry on top of a table, as a RESTORE does."""
    old = DeltaLog(source).state(version)
    lines = [actions.encode_line(part) for part in (old.protocol, old.metadata)]
    source.put(f"_delta_log/{newest + 1:020d}.json", b"\n".join(lines))


@pytest.mark.parametrize("remove_target", [False, True])
@pytest.mark.parametrize("version", [3, 4])
def test_an_old_entry_that_is_back_leads_nowhere(
    root: str, version: int, remove_target: bool
) -> None:
    source = moved(root)
    with Redirects() as redirects:
        redirects.disable(source.uri, remove_target=remove_target)
        newest = redirects.status(source.uri).source_version
        brought_back(source, version, newest)
        status = redirects.status(source.uri)
    assert status.state is (RedirectState.READY if version == 3 else RedirectState.DROPPING)
    assert codes(inspection.inspect(source)) == ["redirect_leads_nowhere"]
    found = redirect_of(source)
    assert move_lookup.leads_nowhere(DeltaLog(source), found, newest + 1)
    if version == 3:
        (warning,) = status.warnings
        assert remove_target or "the old redirect came back" in warning
    with pytest.raises(RedirectTargetReplaced, match="has ended"):
        Resolver().resolve(source.uri)
    with Redirects() as redirects:
        redirects.disable(source.uri)
    assert Resolver().resolve(source.uri).location == source.uri


def redirect_of(source: Store) -> Redirect:
    state = DeltaLog(source).state()
    found = read_entry.read(state.protocol, state.metadata, source.uri)
    assert found is not None
    return found


def test_a_redirect_in_force_and_one_that_is_being_withdrawn_lead_somewhere(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Commits that rules let in may take the source past its target: what is there has to
    # come home all the same.
    source = moved(root, rules=("housekeeping:VACUUM START",))
    log = DeltaLog(source)
    for number in range(5):
        log.commit(Transaction("VACUUM START", f"vacuum-{number}"), log.state())
    assert not move_lookup.leads_nowhere(log, redirect_of(source), log.state().version)

    def fail(_: Withdrawal) -> int:
        raise StorageUnavailable("the line is dead")

    with monkeypatch.context() as patch, Redirects() as redirects:
        patch.setattr(bring_back, "bring_changes", fail)
        with pytest.raises(StorageUnavailable):
            redirects.disable(source.uri)
    assert DeltaLog(open_store(f"{root}/new")).state().version < log.state().version
    assert not move_lookup.leads_nowhere(log, redirect_of(source), log.state().version)
    assert codes(inspection.inspect(source)) == ["redirect_withdrawal_unfinished"]


def test_a_redirect_to_a_table_of_its_own_leads_there_whenever_it_is_back(root: str) -> None:
    source = make(f"{root}/old", History().then(Append(2)))
    make(f"{root}/new", History().then(Append(2)))
    with Redirects() as redirects:
        redirects.enable(source.uri, f"{root}/new", to_existing=True)
        redirects.disable(source.uri)
        brought_back(source, 3, redirects.status(source.uri).source_version)
    log = DeltaLog(source)
    assert not move_lookup.leads_nowhere(log, redirect_of(source), log.state().version)
    assert codes(inspection.inspect(source)) == []


def test_an_old_beginning_that_is_back_leads_nowhere(root: str) -> None:
    source = moved(root)
    begun = source.get(f"_delta_log/{2:020d}.json")
    with Redirects() as redirects:
        redirects.disable(source.uri)
        newest = redirects.status(source.uri).source_version
    lines = [line for line in begun.splitlines() if b'"commitInfo"' not in line]
    source.put(f"_delta_log/{newest + 1:020d}.json", b"\n".join(lines))
    found = inspection.inspect(source)
    assert found.redirect is not None
    assert found.redirect.state == "ENABLE-REDIRECT-IN-PROGRESS"
    assert codes(found) == ["redirect_leads_nowhere"]
