"""Writes a redirect entry in each dialect, and names the table property that holds it.

Implements the entries of the redirect RFC (``rfc``), of the path-to-catalog RFC
(``catalog``) and of delta-spark (``delta-spark``). An entry is a table property
whose value is JSON, and a table feature that keeps those away who don't know it.

A table may have entries in two dialects at once. What a dialect can't express is in
our own property, :data:`JOURNAL_PROPERTY`, together with all that ``resume`` has to
know. :mod:`~lakeferry.redirect.read_entry` reads what is written here, and what other
programs write.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from urllib.parse import unquote

import msgspec

from lakeferry.log.actions import Metadata
from lakeferry.redirect.entry import (
    Dialect,
    Journal,
    Mode,
    Redirect,
    RedirectTarget,
    feature_of,
    plain_path,
)
from lakeferry.redirect.states import RedirectState

JOURNAL_PROPERTY = "lakeferry.redirect"
READY_OF_DELTA_SPARK = "REDIRECT-READY"
IN_PROGRESS = "IN-PROGRESS"


def property_of(dialect: Dialect, mode: Mode) -> str:
    """Return the table property that holds the entry."""
    feature = feature_of(dialect, mode)
    return feature if dialect is Dialect.CATALOG else f"delta.{feature}"


PROPERTIES = {property_of(dialect, mode): (dialect, mode) for dialect in Dialect for mode in Mode}
"""All properties that may hold an entry, with their dialect and mode."""


def without_redirect(metadata: Metadata) -> dict[str, str]:
    """Return a table's properties without redirect entries."""
    return {
        name: value
        for name, value in metadata.configuration.items()
        if name not in PROPERTIES and name != JOURNAL_PROPERTY
    }


def properties(redirect: Redirect) -> dict[str, str]:
    """Return the table properties that describe a redirect."""
    found = {
        property_of(dialect, redirect.mode): _encode(redirect, dialect)
        for dialect in redirect.dialects
    }
    if redirect.journal is not None:
        # One dialect can't express rules.
        rules = (
            () if any(each is not Dialect.CATALOG for each in redirect.dialects) else redirect.rules
        )
        # Another can't express the scheme and the bucket of the source.
        alone = all(each is Dialect.DELTA_SPARK for each in redirect.dialects)
        source = redirect.source if alone else None
        journal = replace(redirect.journal, rules=rules, source=source)
        found[JOURNAL_PROPERTY] = encode_journal(journal)
    return found


def encode_journal(journal: Journal) -> str:
    """Return the value of our own property."""
    commit = journal.target_commit
    value = {
        "data": journal.data.value,
        "protocol": None if journal.protocol is None else list(journal.protocol),
        "location": journal.location,
        "catalogName": journal.catalog_name,
        "readyVersion": journal.ready_version,
        "dropping": journal.dropping or None,
        "moveId": journal.move_id,
        "rules": [rule.as_document() for rule in journal.rules] or None,
        "verified": None if journal.verified else False,
        "returns": None if journal.returns is None else journal.returns.value,
        "removesTarget": journal.removes_target or None,
        "source": journal.source,
        "traced": journal.traced or None,
        "targetCommit": None
        if commit is None
        else [commit.version, commit.table_id, commit.sha256],
        "abandoned": journal.abandoned or None,
        "managed": None if journal.managed is None else journal.managed.as_document(),
        "compares": journal.compares or None,
    }
    return _json({key: item for key, item in value.items() if item is not None})


def _encode(redirect: Redirect, dialect: Dialect) -> str:
    state, rules = redirect.state, redirect.rules
    if dialect is Dialect.DELTA_SPARK:
        return _json(
            {
                "type": "PathBasedRedirect",
                "state": READY_OF_DELTA_SPARK if state is RedirectState.READY else state.value,
                "spec": _json(
                    {
                        "sourcePath": plain_path(redirect.source or ""),
                        "destPath": _hadoop_path(redirect.target),
                    }
                ),
                # Its parser needs the app's name even where there is none.
                "noRedirectRules": [
                    {"appName": rule.app_name, "allowedOperations": list(rule.operations)}
                    for rule in rules
                ],
            }
        )
    spec = {} if redirect.target is None else redirect.target.spec()
    if redirect.source is not None and redirect.target is not None:
        spec["Source"] = redirect.source
    value: dict[str, Any] = {"Type": redirect.kind.value, "State": state.value, "Spec": spec}
    if dialect is Dialect.CATALOG:
        value["State"] = RedirectState.READY.value if state is RedirectState.READY else IN_PROGRESS
    elif rules:
        value["NoRedirectRules"] = [
            ({} if rule.app_name is None else {"AppName": rule.app_name})
            | {"AllowWrite": list(rule.operations)}
            for rule in rules
        ]
    return _json(value)


def _hadoop_path(target: RedirectTarget | None) -> str:
    """Return a place in the form of Hadoop's ``Path``: with Hadoop's scheme, not encoded."""
    location = (target.location if target else None) or ""
    if location.startswith("s3://"):
        location = f"s3a{location.removeprefix('s3')}"
    return unquote(location)


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
