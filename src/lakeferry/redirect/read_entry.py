"""Reads a table's redirect entries in each dialect, and decides which one counts.

Accepts spelling variants (letter case of keys and types, ``Spec`` as an object or as
JSON in a string) but no unknown state, type or shape: those raise
:class:`~lakeferry.errors.RedirectSpecInvalid`. So do two entries that aren't equal in
meaning.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import quote

import msgspec

from lakeferry.errors import InvalidInput, RedirectSpecInvalid
from lakeferry.log.actions import Metadata, Protocol
from lakeferry.redirect.dialects import (
    IN_PROGRESS,
    JOURNAL_PROPERTY,
    PROPERTIES,
    READY_OF_DELTA_SPARK,
    properties,
)
from lakeferry.redirect.entry import (
    Data,
    Dialect,
    Journal,
    Mode,
    Redirect,
    RedirectTarget,
    TargetCommit,
    TargetKind,
    feature_of,
    plain_path,
)
from lakeferry.redirect.managed_target import managed_target_of
from lakeferry.redirect.no_redirect_rules import Rule
from lakeferry.redirect.states import RedirectState
from lakeferry.storage import normalise
from lakeferry.storage.uris import same_place, split

_KINDS = {kind.value.lower(): kind for kind in TargetKind} | {
    "pathbasedredirect": TargetKind.OBJECT_STORE
}


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
        raise _invalid(table, f"its state is {state.value}, but it has no target", text)
    rules = _rules(value.get("noredirectrules"), table) or (journal.rules if journal else ())
    return Redirect(mode, state, kind, target, (dialect,), source, rules, journal)


def _state(dialect: Dialect, value: object, journal: Journal | None, table: str) -> RedirectState:
    text = str(value).upper()
    if text == READY_OF_DELTA_SPARK:
        text = RedirectState.READY.value
    if dialect is Dialect.CATALOG and text == IN_PROGRESS:
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


def _from_hadoop_path(text: object) -> object:
    """Return the URI of a Hadoop ``Path``; return other types unchanged, to be refused later."""
    if not isinstance(text, str):
        return text
    scheme, colon, rest = text.rpartition("://")
    authority, slash, path = rest.partition("/") if colon else ("", "", rest)
    return f"{scheme}{colon}{authority}{slash}{quote(path)}" if colon else text


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
        raise _invalid(table, "its location isn't a valid path or URI", value) from bad


def _rules(value: object, table: str) -> tuple[Rule, ...]:
    if value in (None, ""):
        return ()
    if isinstance(value, str):
        try:
            value = msgspec.json.decode(value)
        except (msgspec.MsgspecError, RecursionError) as broken:
            raise _invalid(table, "its rules aren't valid JSON", value) from broken
    if not isinstance(value, list):
        raise _invalid(table, "its rules aren't a list", value)
    rules = []
    for each in value:
        if not isinstance(each, dict):
            raise _invalid(table, "a rule isn't a JSON object", each)
        rule = _lowered(each)
        named, allowed = rule.get("appname"), rule.get("allowwrite", rule.get("allowedoperations"))
        if not isinstance(named, str | None) or not isinstance(allowed or [], list):
            raise _invalid(table, "a rule has the wrong shape", each)
        if not all(isinstance(operation, str) for operation in allowed or []):
            raise _invalid(table, "an operation in a rule isn't a string", each)
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
            bool(value.get("compares")),
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
            raise _invalid(table, f"{what} isn't valid JSON", value) from broken
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
