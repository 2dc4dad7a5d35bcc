"""Lists Unity Catalog's tables page by page, for example to find a table by its id."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from typing import Any

from lakeferry.catalogs.catalog_rest import CatalogRest
from lakeferry.errors import Forbidden


def find_listed(rest: CatalogRest, table_id: str, requests: int) -> Mapping[str, Any] | None:
    """Return the listed table with that id, found within ``requests`` requests."""
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
    """Return the listed tables of a schema, as many as ``requests`` requests return."""
    return list(_tables(_Pages(rest, requests), catalog, schema))


def canonical(table_id: object) -> str | None:
    """Return an id as the server writes it, or ``None`` if it isn't a valid id."""
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
        """Yield the items of a listing; one that is missing or forbidden by now is empty."""
        token = ""
        while self._left > 0:
            self._left -= 1
            # Zero lets the server choose the page size.
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
