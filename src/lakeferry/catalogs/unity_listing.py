"""Lists what Unity Catalog has, page by page: among others to find a table by its id."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from typing import Any

from lakeferry.catalogs.catalog_rest import CatalogRest
from lakeferry.errors import Forbidden


def find_listed(rest: CatalogRest, table_id: str, requests: int) -> Mapping[str, Any] | None:
    """Return the table with that id among those that the server shows, within so many requests."""
    pages = _Pages(rest, requests)
    for catalog in pages.of("catalogs"):
        for schema in pages.of("schemas", catalog_name=catalog.get("name")):
            for info in _tables(pages, catalog.get("name"), schema.get("name")):
                if canonical(info.get("table_id")) == table_id:
                    return info
    return None


def list_tables(
    rest: CatalogRest, catalog: str, schema: str, requests: int
) -> list[Mapping[str, Any]]:
    """Return the tables of a schema that the server shows within so many requests."""
    return list(_tables(_Pages(rest, requests), catalog, schema))


def canonical(table_id: object) -> str | None:
    """Return an id as the server writes it, or ``None`` for what is no id."""
    try:
        return str(uuid.UUID(str(table_id)))
    except ValueError:
        return None


def _tables(pages: _Pages, catalog: Any, schema: Any) -> Iterator[Mapping[str, Any]]:
    return pages.of(
        "tables",
        catalog_name=catalog,
        schema_name=schema,
        omit_columns="true",
        omit_properties="true",
    )


class _Pages:
    """Listings, page by page, as long as there are requests left."""

    def __init__(self, rest: CatalogRest, left: int) -> None:
        self._rest = rest
        self._left = left

    def of(self, what: str, **query: Any) -> Iterator[Mapping[str, Any]]:
        """Yield what a listing holds; one that is gone or forbidden by now holds nothing."""
        token = ""
        while self._left > 0:
            self._left -= 1
            # Zero asks for as many as the server likes to give at once.
            more = {"max_results": "0", **query, **({"page_token": token} if token else {})}
            try:
                answer = self._rest.ask("GET", f"/{what}", query=more)
            except Forbidden:
                return
            if answer.status == 404:
                return
            if not answer.ok:
                raise self._rest.unavailable(answer.problem)
            yield from (each for each in answer.body.get(what) or () if isinstance(each, dict))
            token = answer.body.get("next_page_token") or ""
            if not token:
                return
