"""Finds the target of a redirect in its catalog."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

from lakeferry.catalogs import Catalog, CatalogTable, GrantAccess, ungranted
from lakeferry.errors import (
    CatalogUnavailable,
    Forbidden,
    LakeferryError,
    NotATable,
    RedirectTargetMissing,
)
from lakeferry.redirect import lineage
from lakeferry.redirect.entry import Data, Redirect, RedirectTarget
from lakeferry.storage import normalise


def find_in_catalog(
    catalog: Callable[[str], Catalog],
    redirect: Redirect,
    source: str,
    grant: GrantAccess = ungranted,
    *,
    finds_name: bool = False,
) -> CatalogTable:
    """Return the target's table in the catalog; pass the catalog's access to ``grant``.

    A renamed table is returned with its id as its name: finding the new name may take hundreds
    of requests, and is only done if ``finds_name``. The result may be a table with another id
    that has the name now: the caller has to check its history.
    """
    target = redirect.target
    assert target is not None
    kind = target.kind.catalog
    assert kind is not None
    with _way_out_in_errors(source):
        asked = catalog(kind)
        found = _find(asked, target, anew=lineage.is_recorded(redirect))
    if found is None:
        remedy = lineage.way_out(source)
        managed = redirect.journal is not None and redirect.journal.managed is not None
        # The files of a managed table are gone, and no other one can be registered at its place.
        if not managed and (target.table_id is None or lineage.is_recorded(redirect)):
            remedy = (
                f"register the table's location again: lakeferry catalog register {target} "
                f"LOCATION; {remedy}"
            )
        raise RedirectTargetMissing(
            f"the redirect of {source} leads to {target}, which the catalog doesn't have",
            remedy=remedy,
            location=source,
            target=str(target),
        )
    found = replace(found, location=normalise(found.location))
    if found.name == target.table_id:
        found = _with_name(asked, redirect, found, source, finds_name=finds_name)
    grant(found.location, asked.access(found))
    return found


@contextmanager
def _way_out_in_errors(source: str) -> Iterator[None]:
    """Say in an error of the catalog what helps if the target is lost.

    Some catalogs say of a table that was dropped what they say of one that we may not see.
    """
    try:
        yield
    except (CatalogUnavailable, Forbidden) as silent:
        raise type(silent)(
            silent.message,
            cause=silent.cause,
            remedy=f"{silent.remedy or 'try again later'}; {lineage.way_out(source)}",
            **silent.fields,
        ) from silent


def _with_name(
    asked: Catalog, redirect: Redirect, found: CatalogTable, source: str, *, finds_name: bool
) -> CatalogTable:
    """Return a target that was found by its id with its current name, if that is needed.

    If the name isn't found, the id is shown. A managed table is opened by its name, so that one
    without a name is refused.
    """
    target = redirect.target
    assert target is not None
    if _is_managed(redirect, found):
        with _way_out_in_errors(source):
            named = asked.find_id(found.table_id, target.metastore_id, target.name)
        if named is None or named.name == found.table_id:
            raise _unlisted(redirect, source)
        return replace(named, location=found.location)
    if finds_name or _may_be_managed(redirect):
        with suppress(LakeferryError):
            named = asked.find_id(found.table_id, target.metastore_id, target.name)
            return found if named is None else replace(named, location=found.location)
    return found


def _unlisted(redirect: Redirect, source: str) -> RedirectTargetMissing:
    """Return the error for a managed table that has a place and no name.

    A server without authorization still says where a table was that was dropped, and in an
    object store its files stay.
    """
    return RedirectTargetMissing(
        f"the redirect of {source} leads to {redirect.target}, which the catalog doesn't list",
        cause="the table was dropped, or it was renamed and you may not list its schema",
        remedy="if it was renamed, ask for USE SCHEMA on its schema, and run the command "
        f"again; {lineage.way_out(source)}",
        location=source,
        target=str(redirect.target),
    )


def _is_managed(redirect: Redirect, found: CatalogTable) -> bool:
    """Return whether a target that was found by its id is a managed table.

    An entry that another program wrote doesn't tell. Unity Catalog names the folder of a managed
    table after its id.
    """
    journal = redirect.journal
    if journal is not None and journal.managed is not None:
        return True
    return found.location.rpartition("/")[2].lower() == found.table_id.lower()


def _may_be_managed(redirect: Redirect) -> bool:
    """Return whether a target may be a managed table that was there before the redirect."""
    return redirect.journal is not None and redirect.journal.data is Data.EXISTING


def _find(asked: Catalog, target: RedirectTarget, *, anew: bool) -> CatalogTable | None:
    """Return the table with a target's id or, if ``anew`` and the id is gone, its last name.

    ``anew`` allows a table that was dropped and registered again, which has another id.
    """
    if target.table_id is None:
        assert target.name is not None
        return asked.find_to_open(target.name)
    named, failed = None, None
    if target.name is not None:
        # A lookup by name also costs one request, and shows whether the name is still right.
        try:
            named = asked.find_to_open(target.name)
        except NotATable:
            pass
        except LakeferryError as error:
            failed = error
        if named is not None and named.is_same(target.table_id, target.metastore_id):
            return named
    place = asked.locate_id(target.table_id, target.metastore_id)
    if place is None and anew and failed is not None:
        # The lookup by name failed, so the table may still exist: don't report it as gone.
        raise failed
    if place is None:
        return named if anew else None
    return CatalogTable(target.table_id, normalise(place), target.table_id, target.metastore_id)
