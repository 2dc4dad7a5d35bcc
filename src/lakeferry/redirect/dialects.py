"""Reads and writes a redirect entry in each dialect.

Implements the entries of the redirect RFC (``rfc``), of the path-to-catalog RFC
(``catalog``) and of delta-spark (``delta-spark``). An entry is a table property
whose value is JSON, and a table feature that keeps those away who don't know it.

Reading accepts spelling variants (letter case of keys and types, ``Spec`` as an
object or as JSON in a string) but no unknown state, type or shape: those raise
:class:`~lakeferry.errors.RedirectSpecInvalid`. A table may have entries in two
dialects at once, which must be equal in meaning. What a dialect can't express is
in our own property, :data:`JOURNAL_PROPERTY`, together with all that ``resume``
has to know.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import quote, unquote

import msgspec

from lakeferry.errors import InvalidInput, RedirectSpecInvalid
from lakeferry.log.actions import Metadata, Protocol
from lakeferry.redirect.entry import (
    Data,
    Dialect,
    Journal,
    Mode,
    Redirect,
    RedirectTarget,
    Rule,
    TargetCommit,
    TargetKind,
    feature_of,
    plain_path,
)
from lakeferry.redirect.managed_target import managed_target_of
from lakeferry.redirect.states import RedirectState
from lakeferry.storage import normalise
from lakeferry.storage.uris import same_place, split

JOURNAL_PROPERTY = "lakeferry.redirect"
_KINDS = {kind.value.lower(): kind for kind in TargetKind} | {
    "pathbasedredirect": TargetKind.OBJECT_STORE
}
_READY_OF_DELTA_SPARK = "REDIRECT-READY"
_IN_PROGRESS = "IN-PROGRESS"


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


# --- Writing ------------------------------------------------------------------


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
    }
    return _json({key: item for key, item in value.items() if item is not None})


def _encode(redirect: Redirect, dialect: Dialect) -> str:
    state, rules = redirect.state, redirect.rules
    if dialect is Dialect.DELTA_SPARK:
        return _json(
            {
                "type": "PathBasedRedirect",
                "state": _READY_OF_DELTA_SPARK if state is RedirectState.READY else state.value,
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
        value["State"] = RedirectState.READY.value if state is RedirectState.READY else _IN_PROGRESS
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


def _from_hadoop_path(text: object) -> object:
    """Return the URI of a Hadoop ``Path``; return other types unchanged, to be refused later."""
    if not isinstance(text, str):
        return text
    scheme, colon, rest = text.rpartition("://")
    authority, slash, path = rest.partition("/") if colon else ("", "", rest)
    return f"{scheme}{colon}{authority}{slash}{quote(path)}" if colon else text


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


# --- Reading ------------------------------------------------------------------


def read(protocol: Protocol, metadata: Metadata, table: str) -> Redirect | None:
    """Return the redirect of the table at ``table``, or ``None`` where it has none in force.

    An entry whose feature isn't in the protocol blocks no client and is ignored;
    :func:`stray` finds it.
    """
    journal = _journal(metadata.configuration, table)
    entries = [
        _decode(dialect, mode, metadata.configuration[name], journal, table)
        for name, (dialect, mode) in PROPERTIES.items()
        if name in metadata.configuration and feature_of(dialect, mode) in protocol.features
    ]
    if not entries:
        return None
    chosen = [entry for entry in entries if entry.mode is Mode.READER_WRITER] or entries
    first = chosen[0]
    for other in chosen[1:]:
        if (other.state, bool(other.target)) != (first.state, bool(first.target)) or not _agree(
            first.target, other.target
        ):
            raise _invalid(
                table,
                "its entries contradict each other",
                {"first": properties(first), "second": properties(other)},
            )
    return replace(
        first,
        dialects=tuple(dialect for entry in chosen for dialect in entry.dialects),
        source=_source(chosen, journal),
        doubled=len(chosen) < len(entries),
    )


def _source(entries: Sequence[Redirect], journal: Journal | None) -> str | None:
    """Return the source that the entries name, as complete as entries and journal tell it."""
    first = entries[0].source
    full = next((e.source for e in entries if e.source and ":" in e.source), None)
    if full is not None or first is None:
        return full
    # delta-spark stores only the path. A journal that an earlier entry left behind has another
    # path, or none.
    kept = journal.source if journal is not None else None
    return kept if kept is not None and plain_path(kept) == first else first


def stray(protocol: Protocol, metadata: Metadata) -> tuple[str, ...]:
    """Return the properties that hold an entry, but whose feature isn't in the protocol."""
    return tuple(
        name
        for name, (dialect, mode) in PROPERTIES.items()
        if name in metadata.configuration and feature_of(dialect, mode) not in protocol.features
    )


def check_no_stray(protocol: Protocol, metadata: Metadata, table: str) -> None:
    """Refuse a table with a stray entry, which a new entry's feature would activate."""
    for name in stray(protocol, metadata):
        raise RedirectSpecInvalid(
            f"{table} has a redirect's property without its table feature",
            cause=f"{name} is set, but without the table feature it doesn't stop any writer",
            remedy=f"remove the property: ALTER TABLE ... UNSET TBLPROPERTIES ('{name}')",
            location=table,
            value=metadata.configuration[name],
        )


def _agree(a: RedirectTarget | None, b: RedirectTarget | None) -> bool:
    if a is None or b is None:
        return a is b
    if a.location is None or b.location is None:
        return a == b
    return same_place(a.location, b.location)


def _decode(
    dialect: Dialect, mode: Mode, text: str, journal: Journal | None, table: str
) -> Redirect:
    value = _lowered(_object(text, table, "the entry"))
    kind = _KINDS.get(str(value.get("type", "")).lower())
    if kind is None:
        raise _invalid(table, "its type is unknown", value.get("type"))
    state = _state(dialect, value.get("state"), journal, table)
    spec = _lowered(_object(value.get("spec") or "{}", table, "its spec"))
    if dialect is Dialect.DELTA_SPARK:
        source = _text(spec.get("sourcepath"))
        target = _place(_from_hadoop_path(spec.get("destpath")), table)
    else:
        source, target = _text(spec.get("source")), _target(kind, spec, table)
        if target is not None and target.table_id is not None and journal is not None:
            target = replace(target, name=journal.catalog_name)
    if target is None and state is not RedirectState.ENABLING:
        raise _invalid(table, f"it is {state.value} and says not where to", text)
    rules = _rules(value.get("noredirectrules"), table) or (journal.rules if journal else ())
    return Redirect(mode, state, kind, target, (dialect,), source, rules, journal)


def _state(dialect: Dialect, value: object, journal: Journal | None, table: str) -> RedirectState:
    text = str(value).upper()
    if text == _READY_OF_DELTA_SPARK:
        text = RedirectState.READY.value
    if dialect is Dialect.CATALOG and text == _IN_PROGRESS:
        return (
            RedirectState.DROPPING
            if journal is not None and journal.dropping
            else RedirectState.ENABLING
        )
    for state in (RedirectState.ENABLING, RedirectState.READY, RedirectState.DROPPING):
        if text == state.value:
            return state
    raise _invalid(table, "its state is unknown", value)


def _target(kind: TargetKind, spec: Mapping[str, Any], table: str) -> RedirectTarget | None:
    if kind is TargetKind.OBJECT_STORE:
        return _place(spec.get("location"), table)
    found = spec.get("table")
    if found in (None, "", {}):
        return None
    if isinstance(found, str) and found.lstrip().startswith("{"):
        found = _object(found, table, "its table")
    if isinstance(found, str):
        if len(found.split(".")) != 3 or not all(found.split(".")):
            raise _invalid(table, "its table has no three-part name", found)
        return RedirectTarget(kind, name=found)
    if isinstance(found, dict):
        ids = _lowered(found)
        table_id, metastore_id = _text(ids.get("tableid")), _text(ids.get("metastoreid"))
        if table_id is not None:
            return RedirectTarget(kind, table_id=table_id, metastore_id=metastore_id)
    raise _invalid(table, "its table is neither a name nor an id", found)


def _place(value: object, table: str) -> RedirectTarget | None:
    if value in (None, ""):
        return None
    if not isinstance(value, str):
        raise _invalid(table, "its location isn't a text", value)
    try:
        if not value.startswith("/"):
            split(value)
        return RedirectTarget(TargetKind.OBJECT_STORE, normalise(value))
    except InvalidInput as bad:
        raise _invalid(table, "its location is no place", value) from bad


def _rules(value: object, table: str) -> tuple[Rule, ...]:
    if value in (None, ""):
        return ()
    if isinstance(value, str):
        try:
            value = msgspec.json.decode(value)
        except (msgspec.MsgspecError, RecursionError) as broken:
            raise _invalid(table, "its rules are no JSON", value) from broken
    if not isinstance(value, list):
        raise _invalid(table, "its rules are no list", value)
    rules = []
    for each in value:
        if not isinstance(each, dict):
            raise _invalid(table, "a rule is no object", each)
        rule = _lowered(each)
        named, allowed = rule.get("appname"), rule.get("allowwrite", rule.get("allowedoperations"))
        if not isinstance(named, str | None) or not isinstance(allowed or [], list):
            raise _invalid(table, "a rule has the wrong shape", each)
        if not all(isinstance(operation, str) for operation in allowed or []):
            raise _invalid(table, "a rule names an operation that is no text", each)
        rules.append(Rule(named or None, tuple(allowed or ())))
    return tuple(rules)


def _journal(configuration: Mapping[str, str], table: str) -> Journal | None:
    text = configuration.get(JOURNAL_PROPERTY)
    if text is None:
        return None
    value = _object(text, table, f"the property {JOURNAL_PROPERTY}")
    try:
        versions = value.get("protocol")
        return Journal(
            Data(value.get("data", Data.COPY.value)),
            None if versions is None else (int(versions[0]), int(versions[1])),
            _text(value.get("location")),
            _text(value.get("catalogName")),
            None if value.get("readyVersion") is None else int(value["readyVersion"]),
            bool(value.get("dropping")),
            _text(value.get("moveId")),
            tuple(
                Rule(each["app_name"], tuple(each["operations"])) for each in value.get("rules", ())
            ),
            value.get("verified", True) is not False,
            None if value.get("returns") is None else Data(value["returns"]),
            bool(value.get("removesTarget")),
            _text(value.get("source")),
            bool(value.get("traced")),
            _target_commit(value.get("targetCommit")),
            bool(value.get("abandoned")),
            managed_target_of(value.get("managed")),
        )
    except (ValueError, TypeError, IndexError, KeyError) as bad:
        raise _invalid(table, f"the property {JOURNAL_PROPERTY} has the wrong shape", text) from bad


def _target_commit(value: Any) -> TargetCommit | None:
    if value is None:
        return None
    version, table_id, sha256 = value
    return TargetCommit(int(version), str(table_id), _text(sha256))


def _object(value: object, table: str, what: str) -> dict[str, Any]:
    if isinstance(value, str):
        try:
            value = msgspec.json.decode(value)
        except (msgspec.MsgspecError, RecursionError) as broken:
            raise _invalid(table, f"{what} is no JSON", value) from broken
    if not isinstance(value, dict):
        raise _invalid(table, f"{what} isn't an object", value)
    return value


def _lowered(value: Mapping[str, Any]) -> dict[str, Any]:
    return {key.lower(): item for key, item in value.items()}


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _invalid(table: str, why: str, value: object) -> RedirectSpecInvalid:
    return RedirectSpecInvalid(
        f"the redirect of {table} is invalid",
        cause=f"{why}: {value!r}",
        remedy="correct the redirect's table property with the program that set it, or remove the "
        "property",
        location=table,
        value=value if isinstance(value, str | int | None) else repr(value),
    )
