"""A managed table over Unity Catalog's API: ours, and the real server at ``LAKEFERRY_UC_URL``."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from itertools import cycle
from typing import Any

import pytest

from lakeferry.catalogs import unity_limits
from lakeferry.catalogs.unity_delta_messages import (
    AddCommit,
    LoadedTable,
    NewTable,
    SentCommit,
    SentProtocol,
    SetProperties,
    SetTableComment,
    Update,
)
from lakeferry.errors import CatalogUnavailable, InvalidInput, StorageUnavailable, TableNotFound
from lakeferry.log import paths
from lakeferry.log.catalog_changes import CatalogChanges, written_properties
from lakeferry.storage import open_config
from lakeferry.table import DeltaLog, load
from lakeferry.table.managed import ManagedStore, Proposal, RatifiedCommit, Verdict, publish
from tests.support.http_proxy import CountingProxy, Spoil, first
from tests.support.managed_tables import (
    FIELDS,
    FIRST_MS,
    ManagedTable,
    allocated,
    body,
    created,
    delta,
    managed_table,
    put,
)
from tests.support.stores import FaultyStore, StoreCall
from tests.support.unity_server import UnityServer

NESTED = [
    *FIELDS,
    {"name": "Price", "type": "decimal(10,2)", "nullable": False, "metadata": {"comment": "€"}},
    {
        "name": "tags",
        "type": {"type": "array", "elementType": "string", "containsNull": True},
        "nullable": True,
        "metadata": {},
    },
    {
        "name": "m",
        "type": {
            "type": "map",
            "keyType": "string",
            "valueType": {
                "type": "struct",
                "fields": [
                    {"name": "a b", "type": "timestamp_ntz", "nullable": True, "metadata": {}}
                ],
            },
            "valueContainsNull": False,
        },
        "nullable": True,
        "metadata": {"delta.columnMapping.id": 4},
    },
]


def column(name: str, comment: str = "") -> list[dict[str, Any]]:
    """Return the fields of a table with one column."""
    return [{"name": name, "type": "long", "nullable": True, "metadata": {"comment": comment}}]


def proposal(table: ManagedTable, version: int, who: str = "b") -> Proposal:
    """Stage a commit, as another client does; return what that client proposes."""
    content = body(version, who=who)
    name = f"{version:020d}.{ord(who[0]):08x}-0000-0000-0000-{version:012d}.json"
    commit = RatifiedCommit(version, name, len(content), FIRST_MS, FIRST_MS + version)
    table.below.put_if_absent(commit.staged_path, content)
    return Proposal(commit, CatalogChanges())


def described(table: ManagedTable) -> LoadedTable:
    return table.catalog().load()


def comment(server: UnityServer, table: ManagedTable) -> Any:
    status, reply = server.call("GET", f"/tables/{table.name}")
    assert status == 200
    return reply["comment"]


def test_a_table_gets_its_history_from_the_start(unity: UnityServer) -> None:
    table = created(allocated(unity))
    before = described(table)
    assert (before.latest_table_version, before.commits) == (0, ())
    store = table.store()
    assert DeltaLog(store).state().version == 3
    assert store.put_if_absent(paths.commit(4), body(4))
    assert table.below.get(paths.commit(4)) == body(4)
    after = described(table)
    assert (after.latest_table_version, after.commits) == (4, ())
    for version in range(5, 8):
        assert table.commit(version)
    assert DeltaLog(table.store()).state().version == 7
    assert [one.version for one in DeltaLog(table.store()).history()] == [*range(7, -1, -1)]


def test_a_log_that_does_not_begin_at_zero(unity: UnityServer) -> None:
    table = managed_table(unity, history=5, cut_at=3)
    assert described(table).latest_table_version == 6
    log = DeltaLog(table.store())
    assert log.state().version == 6
    assert log.state(4).version == 4
    assert table.commit(7)


def test_executors_read_what_is_ratified_without_asking(unity: UnityServer) -> None:
    table = managed_table(unity)
    assert table.catalog().propose(proposal(table, 5)) is Verdict.RATIFIED
    store = table.store()
    assert DeltaLog(store).state().version == 5
    frozen = open_config(store.config)
    assert frozen.get(paths.commit(5)) == body(5, who="b")


def test_the_first_commit_may_be_replaced_by_nobody(unity: UnityServer) -> None:
    table = created(allocated(unity))
    first, second = proposal(table, 4, "x"), proposal(table, 4, "y")
    assert table.catalog().propose(first) is Verdict.RATIFIED
    assert table.catalog().propose(second) is Verdict.CONFLICT
    assert table.catalog().propose(first) is Verdict.RATIFIED
    assert table.store().put_if_absent(paths.commit(4), body(4)) is False
    assert table.store().get(paths.commit(4)) == body(4, who="x")


def test_a_version_has_one_winner(unity: UnityServer) -> None:
    table = managed_table(unity)
    ours, late = table.store(), table.store()
    assert late.refresh().latest_version == 4
    assert ours.put_if_absent(paths.commit(5), body(5))
    assert late.put_if_absent(paths.commit(5), body(5, who="late")) is False
    assert table.catalog().propose(proposal(table, 5)) is Verdict.CONFLICT
    assert table.store().get(paths.commit(5)) == body(5)


def test_a_repeated_proposal_changes_nothing(unity: UnityServer) -> None:
    table = managed_table(unity)
    catalog, mine = table.catalog(), proposal(table, 5)
    assert catalog.propose(mine) is Verdict.RATIFIED
    assert catalog.propose(mine) is Verdict.RATIFIED
    publish(table.below, catalog)
    assert catalog.propose(mine) is Verdict.RATIFIED
    for version in (6, 7):
        assert table.commit(version)
    if table.below.uri.startswith("s3:") and os.environ.get("AWS_ENDPOINT_URL"):
        pytest.skip("the real server can't read a bucket at another endpoint than Amazon's")
    # By now the server has forgotten its name, and compares the files.
    assert catalog.propose(mine) is Verdict.RATIFIED
    assert catalog.propose(proposal(table, 5, "z")) is Verdict.CONFLICT
    assert described(table).latest_table_version == 7


def test_after_ten_unpublished_commits_one_has_to_publish(unity: UnityServer) -> None:
    table = managed_table(unity)
    catalog = table.catalog()
    for version in range(5, 15):
        assert catalog.propose(proposal(table, version)) is Verdict.RATIFIED
    assert catalog.propose(proposal(table, 15)) is Verdict.FULL
    assert len(catalog.head().unpublished) == 10
    assert [one.version for one in catalog.head().unpublished] == [*range(5, 15)]
    assert table.store().put_if_absent(paths.commit(15), body(15))
    assert catalog.head().unpublished == ()
    assert table.below.get(paths.commit(14)) == body(14, who="b")
    assert DeltaLog(table.store()).state().version == 15


def test_the_catalog_knows_each_change_of_the_metadata(unity: UnityServer) -> None:
    table = managed_table(unity)
    assert table.commit(5, table.protocol("appendOnly"), table.metadata({"a": "1", "b": "2"}))
    found = described(table).metadata
    assert found.properties is not None
    assert found.properties["delta.feature.appendOnly"] == "supported"
    assert found.last_commit_version == 5

    nested = table.metadata({"b": "3"}, fields=NESTED, partitions=["Price"], comment="all orders")
    assert table.commit(6, nested)
    found = described(table).metadata
    assert written_properties(found.properties or {}) == nested["metaData"]["configuration"]
    assert found.columns == {"type": "struct", "fields": kebab(NESTED)}
    assert found.partition_columns == ("Price",)
    assert comment(unity, table) == "all orders"

    assert table.commit(7, table.metadata())
    found = described(table).metadata
    assert written_properties(found.properties or {}) == table.required
    assert found.columns == {"type": "struct", "fields": FIELDS}
    assert found.partition_columns == ()
    assert comment(unity, table) == ""
    assert DeltaLog(table.store()).state().metadata.configuration == table.required


def kebab(fields: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the columns as the server spells them."""
    text = json.dumps(fields)
    for camel, dashed in (
        ("elementType", "element-type"),
        ("containsNull", "contains-null"),
        ("keyType", "key-type"),
        ("valueType", "value-type"),
        ("valueContainsNull", "value-contains-null"),
    ):
        text = text.replace(f'"{camel}"', f'"{dashed}"')
    found: list[dict[str, Any]] = json.loads(text)
    return found


def test_what_only_the_catalog_has_stays(unity: UnityServer) -> None:
    table = managed_table(unity)
    noted: list[Update] = [
        SetProperties(updates={"owner": "ann", "a": "of the catalog"}),
        SetTableComment(comment="noted in the catalog"),
    ]
    table.api.update(table.name, table.staging.table_id, noted)
    assert table.commit(5, table.metadata({"a": "1", "b": "2"}))
    assert table.commit(6, table.metadata({"a": "1"}))
    properties = described(table).metadata.properties or {}
    assert (properties["owner"], properties["a"]) == ("ann", "1")
    assert "b" not in properties
    assert comment(unity, table) == "noted in the catalog"


CLUSTERING = ("domainMetadata", "clustering")


def domain(*, removed: bool = False) -> dict[str, Any]:
    content = {"clusteringColumns": [["id"]], "domainName": "delta.clustering"}
    return {
        "domainMetadata": {
            "domain": "delta.clustering",
            "configuration": json.dumps(content),
            "removed": removed,
        }
    }


def test_what_changes_before_the_first_commit_is_told_with_it(unity: UnityServer) -> None:
    table = replace(created(allocated(unity)), history=4)
    changed = table.metadata({"a": "1"}, comment="all orders")
    put(table.below, 4, table.protocol(*CLUSTERING), changed, domain())
    assert table.commit(5)
    found = described(table)
    properties = found.metadata.properties or {}
    assert (properties["a"], properties["clusteringColumns"]) == ("1", '[["id"]]')
    assert comment(unity, table) == "all orders"
    assert found.latest_table_version == 5

    # A domain that the catalog was told of at the creation, and that is gone by then.
    other = created(allocated(unity), domain(), features=CLUSTERING)
    assert "clusteringColumns" in (described(other).metadata.properties or {})
    assert other.commit(4)
    assert "clusteringColumns" not in (described(other).metadata.properties or {})


def test_the_catalog_knows_the_clustering(unity: UnityServer) -> None:
    table = managed_table(unity)
    assert table.commit(5, table.protocol(*CLUSTERING), table.metadata(), domain())
    properties = described(table).metadata.properties or {}
    assert properties["clusteringColumns"] == '[["id"]]'
    # A derived property is nobody's to remove.
    assert table.commit(6, table.metadata({"a": "1"}))
    properties = described(table).metadata.properties or {}
    assert properties["clusteringColumns"] == '[["id"]]'
    assert table.commit(7, domain(removed=True))
    assert "clusteringColumns" not in (described(table).metadata.properties or {})


def test_what_the_contract_forbids_is_refused_with_the_cause(unity: UnityServer) -> None:
    table = managed_table(unity)
    protocol = table.protocol()
    protocol["protocol"]["writerFeatures"].remove("inCommitTimestamp")
    with pytest.raises(InvalidInput, match="inCommitTimestamp"):
        table.commit(5, protocol)
    assert described(table).latest_table_version == 4
    assert table.commit(5)


def test_a_renamed_table_is_followed(unity: UnityServer) -> None:
    table = managed_table(unity)
    heard: list[str] = []
    catalog = table.catalog(renamed=heard.append)
    assert catalog.head().latest_version == 4
    new = f"{unity.schema}.orders"
    assert table.api.rename(table.name, new, table.staging.table_id).latest_table_version == 4
    assert catalog.propose(proposal(table, 5)) is Verdict.RATIFIED
    assert (heard, catalog.name) == ([new], f"unity:{new}")
    catalog.report_published(4)

    # Another table has the former name now, and isn't taken for ours.
    stranger = managed_table(unity)
    stranger.api.rename(stranger.name, table.name, stranger.staging.table_id)
    late = table.catalog()
    assert late.propose(proposal(table, 6)) is Verdict.RATIFIED
    assert late.name == f"unity:{new}"
    assert table.catalog().head().latest_version == 6
    assert stranger.catalog().head().latest_version == 4


def test_a_taken_name_is_given_to_nobody(unity: UnityServer) -> None:
    one, other = managed_table(unity), managed_table(unity)
    new = f"{unity.schema}.orders"
    one.api.rename(one.name, new, one.staging.table_id)
    one.api.rename(one.name, new, one.staging.table_id)
    with pytest.raises(InvalidInput, match="taken"):
        other.api.rename(other.name, new, other.staging.table_id)
    assert other.catalog().head().latest_version == 4
    with pytest.raises(InvalidInput, match="taken"):
        one.api.create_staging_table(new)


def test_a_dropped_table_is_gone(unity: UnityServer) -> None:
    table = managed_table(unity)
    catalog, mine = table.catalog(), proposal(table, 5)
    assert table.api.delete(table.name, "00000000-0000-4000-8000-000000000000") is False
    assert table.api.delete(table.name, table.staging.table_id) is True
    assert table.api.delete(table.name, table.staging.table_id) is False
    with pytest.raises(TableNotFound, match=table.staging.table_id):
        catalog.head()
    with pytest.raises(TableNotFound):
        catalog.propose(mine)


def test_to_create_a_table_twice_is_to_create_it_once(unity: UnityServer) -> None:
    table = created(allocated(unity))
    assert created(table).catalog().head().latest_version == 0


def test_a_refused_table_does_not_exist(unity: UnityServer) -> None:
    table = allocated(unity)
    request = NewTable(
        name=table.name.rpartition(".")[2],
        location=table.staging.location,
        table_type="MANAGED",
        columns={"type": "struct", "fields": FIELDS},
        protocol=SentProtocol(min_reader_version=1, min_writer_version=2),
        properties={},
        last_commit_timestamp_ms=FIRST_MS,
    )
    with pytest.raises(InvalidInput):
        table.api.create_table(table.name, table.staging.table_id, request)
    assert table.api.find(table.name) is None
    assert created(table).catalog().head().latest_version == 0


def test_there_are_credentials_for_the_place(unity: UnityServer) -> None:
    table = managed_table(unity)
    api, place = table.api, table.staging.location
    for found in (
        table.staging.storage_credentials,
        api.issued.for_staging_table(table.staging.table_id),
        api.issued.for_table(table.name),
        api.issued.for_table(table.name, write=False),
    ):
        (one,) = found or ()
        # There are none for local disk.
        assert (one.prefix, bool(one.config)) == (place, place.startswith("s3:"))
        assert (one.expiration_time_ms is None) is place.startswith("file:")
    assert [one.operation for one in api.issued.for_table(table.name)] == ["READ_WRITE"]
    (one,) = api.issued.for_path(f"{place}/_delta_log")
    assert bool(one.config) is place.startswith("s3:")


def test_a_missing_schema_is_named(unity: UnityServer) -> None:
    catalog = unity.schema.partition(".")[0]
    with pytest.raises(InvalidInput, match=rf"{catalog}\.nope"):
        delta(unity).create_staging_table(f"{catalog}.nope.t")
    assert delta(unity).find(f"{catalog}.nope.t") is None
    with pytest.raises(TableNotFound):
        delta(unity).load("no_such_catalog.s.t")


PILE = "\N{PILE OF POO}"


@pytest.mark.parametrize(
    ("fits", "too_long"),
    [
        ({"properties": {"a": PILE * 127 + "x"}}, {"properties": {"a": PILE * 128}}),
        ({"properties": {"k" * 255: "x"}}, {"properties": {"k" * 256: "x"}}),
        ({"fields": column("c" * 255)}, {"fields": column("c" * 256)}),
        ({"fields": column("c", "x" * 65_535)}, {"fields": column("c", "x" * 65_536)}),
        ({"comment": "x" * 65_535}, {"comment": "x" * 65_536}),
    ],
    ids=["value", "name of a property", "name of a column", "comment of a column", "comment"],
)
def test_the_lengths_are_those_of_the_server(
    unity: UnityServer,
    monkeypatch: pytest.MonkeyPatch,
    fits: dict[str, Any],
    too_long: dict[str, Any],
) -> None:
    table = managed_table(unity)
    assert table.commit(5, table.metadata(**fits))
    with pytest.raises(InvalidInput, match="can't keep"):
        table.commit(6, table.metadata(**too_long))
    # The server itself gives an answer that says nothing of the commit.
    monkeypatch.setattr(unity_limits, "check", lambda *_: None)
    with pytest.raises(StorageUnavailable, match="can't find out if"):
        table.commit(6, table.metadata(**too_long))
    assert described(table).latest_table_version == 5


def test_a_value_that_is_too_long_is_refused_by_its_name(unity: UnityServer) -> None:
    table = managed_table(unity)
    with pytest.raises(InvalidInput, match="property a"):
        table.commit(5, table.metadata({"a": "x" * 256}))
    assert not [each for each in table.below.list(f"{paths.STAGED_DIR}/") if "005." in each.path]
    long = {"name": "c" * 256, "type": "long", "nullable": True, "metadata": {}}
    with pytest.raises(InvalidInput, match="column ccc"):
        table.commit(5, table.metadata(fields=[*FIELDS, long]))
    with pytest.raises(CatalogUnavailable):
        table.catalog().propose(
            Proposal(proposal(table, 5).commit, CatalogChanges(properties={"a": "x" * 256}))
        )
    assert described(table).latest_table_version == 4
    assert table.commit(5, table.metadata({"a": "x" * 255}))


@pytest.fixture
def proxy(unity: UnityServer) -> Iterator[CountingProxy]:
    """What stands before the server and can lose its answers."""
    with CountingProxy(unity.url.removeprefix("http://")) as found:
        yield found


def test_a_lost_answer_is_settled(unity: UnityServer, proxy: CountingProxy) -> None:
    table = managed_table(unity)
    far = replace(table, api=delta(replace(unity, url=proxy.url)))
    proxy.rule = first(1, "POST", Spoil.LOSE_ANSWER)
    assert far.commit(5)
    # As often as the request is repeated.
    proxy.reset()
    proxy.rule = first(4, "POST", Spoil.LOSE_ANSWER)
    assert far.commit(6)
    assert described(table).latest_table_version == 6
    assert DeltaLog(table.store()).state().version == 6


def test_a_lost_answer_to_a_report_loses_no_commit(
    unity: UnityServer, proxy: CountingProxy
) -> None:
    table = managed_table(unity)
    far = replace(table, api=delta(replace(unity, url=proxy.url)))
    for version, lost, spoil in (
        (5, 1, Spoil.LOSE_ANSWER),
        (6, 4, Spoil.LOSE_ANSWER),
        (7, 4, Spoil.DROP),
    ):
        assert table.catalog().propose(proposal(table, version)) is Verdict.RATIFIED
        proxy.reset()
        proxy.rule = first(lost, "POST", spoil)
        # As often as the request is repeated.
        with pytest.raises(CatalogUnavailable) if lost == 4 else nullcontext():
            publish(table.below, far.catalog())
        # It was published first, and is reported later at the latest.
        assert table.below.get(paths.commit(version)) == body(version, who="b")
        publish(table.below, table.catalog())
        head = table.catalog().head()
        assert (head.latest_version, head.unpublished) == (version, ())
    assert [each.version for each in DeltaLog(table.store()).history()] == [*range(7, -1, -1)]


def test_a_follower_reads_each_version_once_while_publishing_lags(unity: UnityServer) -> None:
    """Before each call to the store others commit, publish or clean up."""
    table = managed_table(unity)
    newest, last = 4, 16

    def commit() -> None:
        nonlocal newest
        if newest < last:
            assert table.catalog().propose(proposal(table, newest + 1)) is Verdict.RATIFIED
            newest += 1

    def publish_next() -> None:
        for one in table.catalog().head().unpublished[:1]:
            staged = table.below.get(one.staged_path)
            table.below.put_if_absent(paths.commit(one.version), staged)

    def publish_and_clean() -> None:
        gone = [one.staged_path for one in table.catalog().head().unpublished]
        publish(table.below, table.catalog())
        table.below.delete_many(gone)

    others = cycle((commit, commit, publish_next, commit, publish_and_clean, commit))

    def rule(_: StoreCall) -> None:
        next(others)()

    seen = ManagedStore(FaultyStore(table.below, rule), table.catalog(), onboarding=table.history)
    found: list[int] = []
    while newest < last or not found or found[-1] < last:
        commits = load.list_log(seen, len(found)).commits
        files = [commits[version] for version in sorted(commits) if version >= len(found)]
        for file, data in load.contents(seen, files):
            if file.version > 4:
                assert data == body(file.version, who="b")
            found.append(file.version)
    assert found == list(range(last + 1))


def test_a_lost_answer_to_a_creation_or_a_renaming_is_settled(
    unity: UnityServer, proxy: CountingProxy
) -> None:
    table = allocated(unity)
    far = replace(table, api=delta(replace(unity, url=proxy.url)))
    proxy.rule = first(1, "POST", Spoil.LOSE_ANSWER)
    assert created(far).catalog().head().latest_version == 0
    new = f"{unity.schema}.orders"
    for times in (1, 4):
        proxy.reset()
        proxy.rule = first(times, "POST", Spoil.LOSE_ANSWER)
        far.api.rename(table.name, new, table.staging.table_id)
    assert table.catalog().head().table_id == table.staging.table_id


def test_two_tables_of_one_name_are_an_error_of_its_own(unity: UnityServer) -> None:
    server = unity.ours
    table = managed_table(unity)
    server.keep({**server.tables_named(table.name)[0], "table_id": "other"})
    with pytest.raises(CatalogUnavailable, match="2 tables called"):
        table.catalog().head()
    commit = AddCommit(commit=SentCommit.of(proposal(table, 5).commit))
    with pytest.raises(CatalogUnavailable, match="2 tables called"):
        table.api.update(table.name, table.staging.table_id, [commit])
