"""What statuses and error types mean in Unity Catalog's API for Delta tables (``/delta/v1``).

An error of this API has a type; one of the older API has an ``error_code``, and an unknown path
is answered in plain text. So a refusal without a type means that the server doesn't have the
call. No decision depends on an error's text.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec

from lakeferry.catalogs.catalog import check_table_name
from lakeferry.catalogs.catalog_rest import Answer, CatalogRest
from lakeferry.catalogs.unity_listing import list_tables
from lakeferry.errors import (
    CatalogManaged,
    CatalogUnavailable,
    Forbidden,
    InvalidInput,
    LakeferryError,
    NotATable,
    TableNotFound,
)

LEAD = "/delta/v1"

CONFLICT = "CommitVersionConflictException"
EXHAUSTED = "ResourceExhaustedException"
EXISTS = "AlreadyExistsException"
MISSING = frozenset({"NoSuchCatalogException", "NoSuchSchemaException", "NoSuchTableException"})
MISSING_PARENT = MISSING - {"NoSuchTableException"}
OTHER_TABLE = "UpdateRequirementConflictException"
_NOT_DELTA = "UnsupportedTableFormatException"

_PAGES_OF_ONE_NAME = 20
"""How many pages of a schema are searched for several tables of one name."""

_T = TypeVar("_T")


class DeltaRest(CatalogRest):
    """The REST service of a Unity Catalog server, whose errors have types."""

    meaningful = CatalogRest.meaningful | {405, 429, 500, 501}

    def is_final(self, status: int, content: bytes) -> bool:
        """Return whether the server has too many commits, and isn't just busy."""
        return status == 429 and _type_in(content) == EXHAUSTED

    def _understood(self, status: int, content: bytes) -> Answer:
        if _decoded(content) is None:
            if status in (404, 405, 501):
                return Answer(status, {})
            if status >= 500:
                raise self._failed(Answer(status, {}))
        return super()._understood(status, content)

    def read(self, answer: Answer, form: type[_T]) -> _T:
        """Return the content of an answer that isn't a refusal."""
        try:
            return msgspec.convert(answer.body, form)
        except msgspec.ValidationError as broken:
            raise self.unavailable(f"its answer isn't what was asked for: {broken}") from broken

    def refused(self, answer: Answer, name: str) -> LakeferryError:
        """Return the error for a refusal of a call about ``name``."""
        kind = error_type(answer)
        if kind is None:
            return self.without_delta() if _is_unknown_call(answer) else self._failed(answer)
        fields = {"name": name, "catalog": self.root}
        if kind in MISSING:
            return self.missing(name)
        if kind == EXISTS:
            return InvalidInput(
                f"the name unity:{name} is taken",
                cause=answer.problem,
                remedy="choose another name",
                **fields,
            )
        if kind == _NOT_DELTA:
            return NotATable(f"unity:{name} isn't a Delta table", cause=answer.problem, **fields)
        if answer.status == 400:
            return InvalidInput(
                f"Unity Catalog doesn't accept the request for {name}",
                cause=answer.problem,
                remedy="change what the cause names, or ask the administrator of the server "
                "to change its rules",
                **fields,
            )
        return self._failed(answer)

    def _failed(self, answer: Answer) -> LakeferryError:
        return self.unavailable(answer.problem, "try again, and see the server's own log")

    def missing(self, name: str) -> TableNotFound:
        """Return the error for a name that doesn't exist."""
        return TableNotFound(
            f"Unity Catalog at {self.root} has no {name}",
            remedy="check the name, and whether it was dropped",
            name=name,
            catalog=self.root,
        )

    def without_delta(self) -> CatalogManaged:
        """Return the error for a server without this API."""
        return CatalogManaged(
            f"Unity Catalog at {self.root} has no API for managed tables",
            cause="it doesn't answer /delta/v1",
            remedy="use a server of version 0.7 or newer, or an external table",
            name=None,
            catalog=self.root,
        )

    def without_place(self, name: str, cause: str | None) -> CatalogManaged:
        """Return the error for a server that allocates no place for a managed table."""
        return CatalogManaged(
            f"Unity Catalog at {self.root} has no place for managed tables in "
            f"{name.rpartition('.')[0]}",
            cause=cause,
            remedy="ask its administrator to set up what the cause names; or leave out --managed: "
            "the table is registered as an external one then",
            name=None,
            catalog=self.root,
        )

    def several(self, name: str, found: int) -> CatalogUnavailable:
        """Return the error for a name that several tables have."""
        return CatalogUnavailable(
            f"Unity Catalog at {self.root} has {found} tables called {name}",
            cause="two clients created or renamed a table at the same time, and the server "
            "answers no request for that name any more",
            remedy="ask its administrator to rename all but one of them in its database",
            catalog=self.root,
            name=name,
        )

    def forbidden(self, why: Forbidden, what: str, needed: str, name: str) -> Forbidden:
        """Return the error for a call that needs other privileges."""
        return Forbidden(
            f"Unity Catalog doesn't allow you to {what}",
            cause=why.cause,
            remedy=f"ask the catalog's administrator to grant you {needed}",
            name=name,
            catalog=self.root,
        )

    def content_of(self, answer: Answer, form: type[_T], name: str) -> _T:
        """Return the content of an answer about ``name``; raise for a refusal."""
        if not answer.ok:
            raise self.refused_call(answer, name)
        return self.read(answer, form)

    def refused_call(self, answer: Answer, name: str) -> LakeferryError:
        """Return the error for a refusal, which may be that several tables have the name."""
        if answer.status == 500 and error_type(answer) and name.count(".") == 2:
            catalog, schema, table = name.split(".")
            with suppress(LakeferryError):
                listed = list_tables(self, catalog, schema, _PAGES_OF_ONE_NAME)
                same = sum(info.get("name") == table for info in listed)
                if same > 1:
                    return self.several(name, same)
        return self.refused(answer, name)

    @contextmanager
    def privileges(self, what: str, needed: str, name: str) -> Iterator[None]:
        """Say in a refusal which privileges a call needs."""
        try:
            yield
        except Forbidden as why:
            raise self.forbidden(why, what, needed, name) from why

    @contextmanager
    def as_allocator(self, table_id: str, needed: str = "") -> Iterator[None]:
        """Say in a refusal that only one user may use a staging table, and what that one needs."""
        try:
            yield
        except Forbidden as why:
            raise Forbidden(
                f"Unity Catalog denies access to the place that it allocated for {table_id}",
                cause=why.cause,
                remedy="only the user who started the move may use that place: run the same "
                f"command with that user's token (UC_TOKEN).{needed}",
                catalog=self.root,
            ) from why


def error_type(answer: Answer) -> str | None:
    """Return the type of a refusal; ``None`` for an error of another API."""
    return _type_of(answer.body)


def _is_unknown_call(answer: Answer) -> bool:
    # With authorization an older server answers 500 and a code for a path that it doesn't have.
    return answer.status in (404, 405, 501) or (
        answer.status == 500 and isinstance(answer.body.get("error_code"), str)
    )


def _type_in(content: bytes) -> str | None:
    body = _decoded(content)
    return None if body is None else _type_of(body)


def _type_of(body: Any) -> str | None:
    error = body.get("error")
    kind = error.get("type") if isinstance(error, dict) else None
    return kind if isinstance(kind, str) else None


def _decoded(content: bytes) -> dict[str, Any] | None:
    try:
        return msgspec.json.decode(content, type=dict[str, Any])
    except msgspec.MsgspecError:
        return None


def name_parts_of(name: str) -> tuple[str, str, str]:
    """Return the catalog, the schema and the table of a name; refuse one of another form."""
    check_table_name(name)
    catalog, schema, table = name.split(".")
    return catalog, schema, table


def schema_path(name: str) -> str:
    """Return the path of the calls about the schema of a table."""
    catalog, schema, _ = (quote(part, safe="") for part in name_parts_of(name))
    return f"{LEAD}/catalogs/{catalog}/schemas/{schema}"


def table_path(name: str) -> str:
    """Return the path of the calls about a table."""
    return f"{schema_path(name)}/tables/{quote(name_parts_of(name)[2], safe='')}"


def privileges_to_use(name: str) -> str:
    """Return the privileges that every call about a table needs."""
    catalog, schema, _ = name_parts_of(name)
    return f"USE CATALOG on {catalog}, USE SCHEMA on {catalog}.{schema}"
