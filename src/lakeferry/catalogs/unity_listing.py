"""Lists Unity Catalog's tables page by page, for example to find a table by its id."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from typing import Any

from lakeferry.catalogs.catalog_rest import CatalogRest
from lakeferry.errors import Forbidden


def find_listed(
    rest: CatalogRest, table_id: str, requests: int, former: str | None = None
) -> Mapping[str, Any] | None:
    """Return the listed table with that id, found within ``requests`` requests.

    ``former`` is a name that it had: a renamed table stays in its schema, so that is listed first.
    """
    return _search(_Pages(rest, requests), table_id, former)


def _search(pages: _Pages, table_id: str, former: str | None) -> Mapping[str, Any] | None:
    for catalog, schema in _schemas(pages, former):
        for info in _tables(pages, catalog, schema):
            if canonical(info.get("table_id")) == table_id:
                return info
    return None


def _schemas(pages: _Pages, former: str | None) -> Iterator[tuple[Any, Any]]:
    """Yield all schemas with their catalogs, first the one of a name that a table had."""
    if former is not None:
        # The table's owner may list the schema's tables, but the schema itself is only listed for
        # users with USE SCHEMA.
        catalog, schema, _ = former.split(".")
        yield catalog, schema
    for each in pages.of("catalogs"):
        for found in pages.of("schemas", catalog_name=each.get("name")):
            yield each.get("name"), found.get("name")


def find_name(rest: CatalogRest, table_id: str, former: str, requests: int) -> str | None:
    """Return the full name of the listed table with that id, ``None`` if there is none.

    ``former`` is a name that it had. Raises :class:`~lakeferry.errors.CatalogUnavailable` if there
    are more tables than ``requests`` requests return.
    """
    pages = _Pages(rest, requests)
    found = _search(pages, table_id, former)
    if found is not None:
        return ".".join(str(found.get(part)) for part in ("catalog_name", "schema_name", "name"))
    if not pages.left:
        raise rest.unavailable(
            f"the table {table_id} isn't among the first tables that it lists",
            "look for the table with that id in Unity Catalog, and use its name",
        )
    return None


def list_tables(
    rest: CatalogRest, catalog: str, schema: str, requests: int
) -> list[Mapping[str, Any]]:
    """Return the listed tables of a schema, as many as ``requests`` requests return."""
    return list(_tables(_Pages(rest, requests), catalog, schema))


def list_below(rest: CatalogRest, prefix: str, requests: int) -> list[Mapping[str, Any]]:
    """Return the listed tables whose full name begins with a text.

    A catalog or schema that is named in full isn't looked for in a listing, where users see only
    what they may use. Raises :class:`~lakeferry.errors.CatalogUnavailable` if there are more
    tables than ``requests`` requests return.
    """
    catalog, dot, rest_of_name = prefix.partition(".")
    schema, second_dot, table = rest_of_name.partition(".")
    pages = _Pages(rest, requests)
    found = [
        info
        for parent in (_listed_names(pages, "catalogs", catalog) if not dot else [catalog])
        for child in (
            _listed_names(pages, "schemas", schema, catalog_name=parent)
            if not second_dot
            else [schema]
        )
        for info in _tables(pages, parent, child)
        if str(info.get("name")).startswith(table)
    ]
    if not pages.left:
        raise rest.unavailable(
            "it has more tables than are listed at once", "list one catalog or one schema of it"
        )
    return found


def _listed_names(pages: _Pages, what: str, prefix: str, **query: Any) -> list[str]:
    names = [str(each.get("name")) for each in pages.of(what, **query)]
    return [name for name in names if name.startswith(prefix)]


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
        self.left = left

    def of(self, what: str, **query: Any) -> Iterator[Mapping[str, Any]]:
        """Yield the items of a listing; one that is missing or forbidden by now is empty."""
        token = ""
        while self.left > 0:
            self.left -= 1
            # Zero lets the server choose the page size.
            more = {"max_results": "0", **query, **({"page_token": token} if token else {})}
            try:
                answer = self._rest.ask("GET", f"/{what}", query=more)
            except Forbidden:
                return
            if answer.status == 404:
                return
            body = self._rest.body_of(answer)
            yield from (each for each in body.get(what) or () if isinstance(each, dict))
            token = body.get("next_page_token") or ""
            if not token:
                return
