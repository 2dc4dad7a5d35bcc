"""Errors that say why a redirect can't be followed."""

from __future__ import annotations

from lakeferry.errors import (
    CatalogManaged,
    CorruptLog,
    LakeferryError,
    RedirectCycle,
    RedirectInProgress,
    RedirectTargetMissing,
    RedirectTargetReplaced,
)
from lakeferry.redirect import lineage
from lakeferry.redirect.entry import Redirect
from lakeferry.redirect.states import RedirectState
from lakeferry.storage.uris import shell_safe


def target_missing(source: str, target: str, missing: LakeferryError) -> RedirectTargetMissing:
    """Return the error for a redirect to a place without a table."""
    return RedirectTargetMissing(
        f"the redirect of {source} leads to {target}, where there is no table",
        cause=str(missing),
        remedy=f"restore the target from a copy; {lineage.way_out(source)}",
        location=source,
        target=target,
    )


def managed_by_catalog(place: str, managed: tuple[str, ...], name: str | None) -> CatalogManaged:
    """Return the error for a catalog-managed table."""
    return CatalogManaged(
        f"{name or place} is managed by its catalog",
        cause=f"its protocol has {', '.join(managed)}: commits that the catalog has accepted may "
        "not be in the log yet, so a reader of the path may get wrong data",
        remedy=f"open it by its name{f', {name},' if name else ''} with a client that asks the "
        f"catalog: lakeferry.open('unity:{name or 'CATALOG.SCHEMA.TABLE'}'), or Spark with Unity "
        "Catalog's connector",
        name=name,
        location=place,
        features=list(managed),
    )


def unreadable(broken: CorruptLog, place: str) -> CorruptLog:
    """Return the error for a table whose newest version can't be read.

    It is unknown then whether it is redirected. Its older versions may be readable.
    """
    first = f"{broken.remedy}; " if broken.remedy else ""
    return type(broken)(
        broken.message,
        cause=broken.cause,
        remedy=f"{first}an older version can be read without following redirects: give "
        "--version N and --no-follow (version=N, follow=False in Python)",
        **{"location": place, **broken.fields},
    )


def withdrawn(source: str, redirect: Redirect) -> RedirectTargetReplaced:
    """Return the error for a redirect that was withdrawn and came back with a RESTORE."""
    return RedirectTargetReplaced(
        f"the redirect of {source} to {redirect.target} has ended",
        cause="'redirect disable' ended it, and a later RESTORE brought its table property back",
        remedy=f"'lakeferry redirect disable {shell_safe(source)}' makes {source} an "
        "ordinary table again, with all its rows",
        location=source,
        target=str(redirect.target),
    )


def writes_blocked(place: str, state: RedirectState) -> RedirectInProgress:
    """Return the error for a write to a table whose redirect is being set up or removed."""
    what = "set up" if state is RedirectState.ENABLING else "removed"
    return RedirectInProgress(
        f"{place} can't be written to now",
        cause=f"its redirect is being {what} ({state.value})",
        remedy=f"try again in a moment; 'lakeferry redirect status {shell_safe(place)}' shows "
        "its progress",
        location=place,
        state=state.value,
    )


def endless(chain: list[str], why: str) -> RedirectCycle:
    """Return the error for redirects that lead from place to place without end."""
    return RedirectCycle(
        f"the redirects from {chain[0]} never end at a table",
        cause=f"{why}: {' -> '.join(chain)}",
        remedy=f"end one of these redirects: lakeferry redirect disable {shell_safe(chain[-2])}",
        chain=chain,
    )
