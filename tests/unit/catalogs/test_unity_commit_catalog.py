"""The port to Unity Catalog: how often it asks, and what it makes of refusals."""

from __future__ import annotations

from typing import Any

import pytest

from lakeferry.catalogs.unity_managed_tables import UnityManagedTables
from lakeferry.errors import (
    CatalogUnavailable,
    Forbidden,
    InvalidInput,
    TableNotFound,
    Unauthorized,
)
from lakeferry.log.catalog_changes import CatalogChanges
from lakeferry.table.managed import Proposal, RatifiedCommit, Verdict
from tests.support.managed_tables import ManagedTable, managed_table
from tests.support.unity_server import OurServer, UnityServer

COMMIT = RatifiedCommit(3, "00000000000000000003.a.json", 10, 5, 5)
DENIED = (403, {"error": {"type": "PermissionDeniedException", "message": "Access denied."}})
NOT_DELTA = (400, {"error": {"type": "UnsupportedTableFormatException", "message": "PARQUET"}})
LOCKED = (409, {"error": {"type": "UpdateRequirementConflictException", "message": "locked"}})


@pytest.fixture
def server(unity: UnityServer) -> OurServer:
    return unity.ours


@pytest.fixture
def table(unity: UnityServer) -> ManagedTable:
    """A table with versions 0 to 2."""
    return managed_table(unity, history=1)


def test_one_request_is_one_proposal(table: ManagedTable, server: OurServer) -> None:
    asked = len(server.asked)
    proposal = Proposal(COMMIT, CatalogChanges(properties={"a": "1"}))
    assert table.catalog().propose(proposal) is Verdict.RATIFIED
    assert len(server.asked) == asked + 1
    head = table.catalog().head()
    assert (head.unpublished, head.latest_version, head.properties["a"]) == ((COMMIT,), 3, "1")
    assert len(server.asked) == asked + 2


def test_a_table_that_somebody_has_locked_is_asked_again(
    table: ManagedTable, server: OurServer
) -> None:
    server.next_replies.append(LOCKED)
    assert table.catalog().propose(Proposal(COMMIT, CatalogChanges())) is Verdict.RATIFIED


def test_what_is_locked_for_ever_is_given_up(table: ManagedTable, server: OurServer) -> None:
    for found in _answers(server, table):
        server.next_replies.extend([LOCKED, found])
    with pytest.raises(CatalogUnavailable, match="refuses to change"):
        table.catalog().report_published(2)


def test_a_version_that_was_never_committed_is_not_reported(table: ManagedTable) -> None:
    with pytest.raises(InvalidInput, match="Should not backfill"):
        table.catalog().report_published(9)
    assert table.catalog().head().latest_version == 2


@pytest.mark.parametrize("answer", [DENIED, NOT_DELTA], ids=["hidden", "of another format"])
def test_a_renamed_table_is_found_though_a_strange_one_has_its_name(
    unity: UnityServer, table: ManagedTable, server: OurServer, answer: tuple[int, Any]
) -> None:
    catalog, former = table.catalog(), table.name
    tables = UnityManagedTables(unity.url, unity.token, metastore_id=None)
    table.api.rename(former, f"{unity.schema}.renamed", table.staging.table_id)
    server.next_replies.append(answer)
    assert catalog.load().metadata.table_uuid == table.staging.table_id
    assert catalog.table_name == f"{unity.schema}.renamed"
    late = table.catalog()
    server.next_replies.extend([answer, answer])
    assert late.propose(Proposal(COMMIT, CatalogChanges())) is Verdict.RATIFIED
    server.next_replies.append(answer)
    assert tables.drop(table.staging.table_id, former)
    server.next_replies.append(answer)
    with pytest.raises(Forbidden if answer is DENIED else TableNotFound):
        table.catalog().load()


def test_a_table_that_is_hidden_is_not_taken_for_a_renamed_one(
    table: ManagedTable, server: OurServer
) -> None:
    server.next_replies.append(DENIED)
    with pytest.raises(Forbidden) as refused:
        table.catalog().load()
    assert "SELECT" in (refused.value.remedy or "")
    server.next_replies.append(DENIED)
    with pytest.raises(Forbidden) as refused:
        table.catalog().report_published(2)
    assert "MODIFY" in (refused.value.remedy or "")


def test_a_token_that_expires_is_no_conflict(table: ManagedTable, server: OurServer) -> None:
    server.token = "renewed"
    with pytest.raises(Unauthorized):
        table.catalog().propose(Proposal(COMMIT, CatalogChanges()))


def test_an_answer_without_the_latest_version_is_not_taken_for_version_0(
    table: ManagedTable, server: OurServer
) -> None:
    ((status, answer), *_) = _answers(server, table)
    decides = {"properties": {"delta.feature.catalogManaged": "supported"}}
    lacking = {"metadata": answer["metadata"] | decides}
    catalog = table.catalog()
    catalog.load()
    server.next_replies.append((status, lacking))
    with pytest.raises(CatalogUnavailable, match="latest"):
        catalog.head()
    # A table whose commits the catalog leaves to the log needs no number.
    server.next_replies.append((status, {"metadata": answer["metadata"]}))
    assert not catalog.head().decides


def _answers(server: OurServer, table: ManagedTable) -> list[tuple[int, Any]]:
    """Return what the server says of the table, as often as it is asked."""
    (described,) = server.tables_named(table.name)
    metadata = {
        "table-uuid": described["table_id"],
        "table-type": "MANAGED",
        "location": described["storage_location"],
    }
    return [(200, {"metadata": metadata, "latest-table-version": 2})] * 4
