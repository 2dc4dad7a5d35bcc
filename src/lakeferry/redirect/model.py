"""What a redirect is, and how each dialect spells it: one model in memory.

Implements the entries of the redirect RFC (``rfc``), of the path-to-catalog RFC
(``catalog``) and of delta-spark (``delta-spark``). An entry is a table property
whose value is JSON, and a table feature that keeps those away who don't know it.

Reading is forgiving in spelling (letter case of keys and types, ``Spec`` as an
object or as JSON in a string) and strict in meaning: an unknown state, type or
shape is :class:`~lakeferry.errors.RedirectSpecInvalid`. A table may carry two
dialects at once; then both have to say the same. What a dialect has no place
for is in a property of ours, :data:`JOURNAL_PROPERTY`, together with all that
whoever resumes the move has to know.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import msgspec

from lakeferry.errors import InvalidInput, RedirectSpecInvalid
from lakeferry.log.actions import Metadata, Protocol
from lakeferry.redirect.states import State
from lakeferry.storage import normalise
from lakeferry.storage.uris import same_place, split

JOURNAL_PROPERTY = "lakeferry.redirect"


class Mode(Enum):
    """Whom a redirect keeps away from the source: everybody who doesn't know it, or writers."""

    READER_WRITER = "reader-writer"
    WRITER_ONLY = "writer-only"


class Dialect(Enum):
    """Whose spelling an entry has."""

    RFC = "rfc"
    CATALOG = "catalog"
    DELTA_SPARK = "delta-spark"


class Data(Enum):
    """Where the target's data files are."""

    COPY = "copy"
    REFERENCE = "reference"
    EXISTING = "existing"
    """The target was there before, made by other means."""


class Kind(Enum):
    """What a redirect leads to. The values are what entries call it."""

    OBJECT_STORE = "Object Store"
    UNITY = "Unity Catalog"
    SQL = "SQL Catalog"

    @property
    def catalog(self) -> str | None:
        """The kind of catalog to ask, if any."""
        return {Kind.UNITY: "unity", Kind.SQL: "sql"}.get(self)


_KINDS = {kind.value.lower(): kind for kind in Kind} | {"pathbasedredirect": Kind.OBJECT_STORE}
_FEATURES = {
    (Dialect.RFC, Mode.READER_WRITER): "redirectReaderWriter",
    (Dialect.RFC, Mode.WRITER_ONLY): "redirectWriterOnly",
    (Dialect.CATALOG, Mode.READER_WRITER): "redirectReaderWriter",
    (Dialect.CATALOG, Mode.WRITER_ONLY): "redirectWriterOnly",
    (Dialect.DELTA_SPARK, Mode.READER_WRITER): "redirectReaderWriter-preview",
    (Dialect.DELTA_SPARK, Mode.WRITER_ONLY): "redirectWriterOnly-preview",
}
_READY_OF_DELTA_SPARK = "REDIRECT-READY"
_IN_PROGRESS = "IN-PROGRESS"
_VACUUM = ("VACUUM START", "VACUUM END")


def feature_of(dialect: Dialect, mode: Mode) -> str:
    """Return the table feature that stands for a mode in a dialect."""
    return _FEATURES[dialect, mode]


def property_of(dialect: Dialect, mode: Mode) -> str:
    """Return the table property that holds the entry."""
    feature = _FEATURES[dialect, mode]
    return feature if dialect is Dialect.CATALOG else f"delta.{feature}"


PROPERTIES = {property_of(dialect, mode): (dialect, mode) for dialect in Dialect for mode in Mode}
"""Every property that may hold an entry, with whose it is."""


@dataclass(frozen=True, slots=True)
class Rule:
    """Who isn't redirected (everybody, where no app is named), and what they may commit here."""

    app_name: str | None
    operations: tuple[str, ...] = ()

    def matches(self, app_name: str | None) -> bool:
        """Tell whether the rule is about sessions of that name."""
        if self.app_name is None:
            return True
        return app_name is not None and app_name.lower() == self.app_name.lower()

    def allows(self, operation: str) -> bool:
        """Tell whether the rule lets an operation commit, by its name in ``commitInfo``."""
        return operation.upper() in {name.upper() for name in self.operations}

    def __str__(self) -> str:
        """Show it as the command line takes it."""
        return f"{self.app_name or ''}:{','.join(self.operations)}"

    def as_document(self) -> dict[str, Any]:
        """Return the rule as ``redirect status`` shows it."""
        return {"app_name": self.app_name, "operations": list(self.operations)}


@dataclass(frozen=True, slots=True)
class Target:
    """What a redirect leads to: a place, or a table in a catalog by its name or by its id."""

    kind: Kind
    location: str | None = None
    name: str | None = None
    metastore_id: str | None = None
    table_id: str | None = None

    def spec(self) -> dict[str, Any]:
        """Return it as the RFC's ``Spec``."""
        if self.kind is Kind.OBJECT_STORE:
            return {"Location": self.location}
        if self.table_id is not None:
            return {"Table": {"MetastoreId": self.metastore_id, "TableId": self.table_id}}
        return {"Table": self.name}

    def __str__(self) -> str:
        """Show it as the command line takes it."""
        if self.location is not None:
            return self.location
        return f"{self.kind.catalog}:{self.name or self.table_id}"


@dataclass(frozen=True, slots=True)
class Journal:
    """What whoever goes on with a move has to know, beside the entry itself.

    ``protocol`` are the version numbers that the table had before the redirect,
    ``location`` is where a catalog's table is made, ``catalog_name`` its name there,
    ``ready_version`` the version at which both places opened.
    """

    data: Data = Data.COPY
    protocol: tuple[int, int] | None = None
    location: str | None = None
    catalog_name: str | None = None
    ready_version: int | None = None
    dropping: bool = False
    move_id: str | None = None
    """What tells this move from another one of the same table to the same place."""
    rules: tuple[Rule, ...] = ()
    """Those for which the entry's dialect has no place."""
    verified: bool = True
    """Whether an existing target has to hold what the source holds."""

    def encode(self) -> str:
        """Return the value of our property."""
        value = {
            "data": self.data.value,
            "protocol": None if self.protocol is None else list(self.protocol),
            "location": self.location,
            "catalogName": self.catalog_name,
            "readyVersion": self.ready_version,
            "dropping": self.dropping or None,
            "moveId": self.move_id,
            "rules": [rule.as_document() for rule in self.rules] or None,
            "verified": None if self.verified else False,
        }
        return _json({key: item for key, item in value.items() if item is not None})


@dataclass(frozen=True, slots=True)
class Redirect:
    """The redirect that a table carries. Without a target the table is frozen.

    ``source`` is where the entry says that it was put. ``journal`` is ``None``
    where another program made the redirect. ``doubled`` tells that the table has
    entries for both modes: the reader-writer one is this, and nothing may change.
    """

    mode: Mode
    state: State
    kind: Kind = Kind.OBJECT_STORE
    target: Target | None = None
    dialects: tuple[Dialect, ...] = (Dialect.RFC,)
    source: str | None = None
    rules: tuple[Rule, ...] = ()
    journal: Journal | None = None
    doubled: bool = False
    unknown: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_frozen(self) -> bool:
        """Whether the table is read-only without a target."""
        return self.state is State.ENABLING and self.target is None

    @property
    def features(self) -> tuple[str, ...]:
        """The features that stand for it, in the protocol."""
        return tuple(dict.fromkeys(feature_of(dialect, self.mode) for dialect in self.dialects))

    def rule_for(self, app_name: str | None) -> Rule | None:
        """Return the rule that keeps a session at the source; one for its app comes first."""
        if self.state is not State.READY:
            return None
        matching = [rule for rule in self.rules if rule.matches(app_name)]
        return min(matching, key=lambda rule: rule.app_name is None, default=None)

    def properties(self) -> dict[str, str]:
        """Return the table properties that say all this."""
        found = {
            property_of(dialect, self.mode): _encode(self, dialect) for dialect in self.dialects
        }
        if self.journal is not None:
            # One dialect has no place for rules.
            rules = () if any(each is not Dialect.CATALOG for each in self.dialects) else self.rules
            found[JOURNAL_PROPERTY] = replace(self.journal, rules=rules).encode()
        return found

    def in_state(self, state: State, **changes: Any) -> Redirect:
        """Return the redirect in another state, with what else changes."""
        moved = replace(self, state=state, **changes)
        if moved.journal is None:
            return moved
        return replace(moved, journal=replace(moved.journal, dropping=state is State.DROPPING))

    def is_target(self, location: str) -> bool:
        """Tell whether the entry is that of the target itself, which leads nowhere else."""
        place = self.target.location if self.target else None
        place = place or (self.journal.location if self.journal else None)
        return place is not None and same_place(place, location)


def check_single(redirect: Redirect, table: str) -> None:
    """Refuse to change a table that has redirects of both modes."""
    if redirect.doubled:
        raise RedirectSpecInvalid(
            f"{table} has redirects of both modes",
            remedy="remove one of the two table properties and its feature",
            location=table,
            value="redirectReaderWriter, redirectWriterOnly",
        )


def check_own(redirect: Redirect, table: str) -> None:
    """Refuse to change a redirect whose entry is about another table than the one it is found in.

    A copy of a redirected table has the entry too; what is done to it there
    would be done to the target of the original. Two redirects are refused as well.
    """
    check_single(redirect, table)
    source = redirect.source
    if source is None:
        return
    own = same_place(source, table) if ":" in source else source == _plain_path(table)
    if not own:
        raise RedirectSpecInvalid(
            f"the redirect of {table} belongs to another table",
            cause=f"its entry was put at {source}: this is a copy of that table, its target, or "
            "another way to write its address",
            remedy=f"use {source}",
            location=table,
            value=source,
        )


def without_redirect(metadata: Metadata) -> dict[str, str]:
    """Return a table's properties without any entry."""
    return {
        name: value
        for name, value in metadata.configuration.items()
        if name not in PROPERTIES and name != JOURNAL_PROPERTY
    }


# --- Writing ------------------------------------------------------------------


def _encode(redirect: Redirect, dialect: Dialect) -> str:
    state, rules = redirect.state, redirect.rules
    if dialect is Dialect.DELTA_SPARK:
        return _json(
            {
                "type": "PathBasedRedirect",
                "state": _READY_OF_DELTA_SPARK if state is State.READY else state.value,
                "spec": _json(
                    {
                        "sourcePath": _plain_path(redirect.source or ""),
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
        value["State"] = State.READY.value if state is State.READY else _IN_PROGRESS
    elif rules:
        value["NoRedirectRules"] = [
            ({} if rule.app_name is None else {"AppName": rule.app_name})
            | {"AllowWrite": list(rule.operations)}
            for rule in rules
        ]
    return _json(value)


def _plain_path(uri: str) -> str:
    """Return a place as delta-spark compares it: the path of its URI, decoded."""
    return unquote(urlsplit(uri).path) if uri else ""


def _hadoop_path(target: Target | None) -> str:
    """Return a place as Hadoop's ``Path`` takes it: with a scheme of its own, and not encoded."""
    location = (target.location if target else None) or ""
    if location.startswith("s3://"):
        location = f"s3a{location.removeprefix('s3')}"
    return unquote(location)


def _from_hadoop_path(text: object) -> object:
    """Return the URI of what Hadoop's ``Path`` takes; what isn't text is left to be refused."""
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

    An entry whose feature isn't in the protocol blocks nobody and is none:
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
                {"first": first.properties(), "second": other.properties()},
            )
    return replace(
        first,
        dialects=tuple(dialect for entry in chosen for dialect in entry.dialects),
        # delta-spark has no place for the full URI of the source.
        source=next((e.source for e in chosen if e.source and ":" in e.source), first.source),
        doubled=len(chosen) < len(entries),
    )


def stray(protocol: Protocol, metadata: Metadata) -> tuple[str, ...]:
    """Return the properties that hold an entry and whose feature the protocol lacks."""
    return tuple(
        name
        for name, (dialect, mode) in PROPERTIES.items()
        if name in metadata.configuration and feature_of(dialect, mode) not in protocol.features
    )


def _agree(a: Target | None, b: Target | None) -> bool:
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
        raise _invalid(table, "its type isn't known", value.get("type"))
    state = _state(dialect, value.get("state"), journal, table)
    spec = _lowered(_object(value.get("spec") or "{}", table, "its spec"))
    if dialect is Dialect.DELTA_SPARK:
        source = _text(spec.get("sourcepath"))
        target = _place(_from_hadoop_path(spec.get("destpath")), table)
    else:
        source, target = _text(spec.get("source")), _target(kind, spec, table)
    if target is None and state is not State.ENABLING:
        raise _invalid(table, f"it is {state.value} and says not where to", text)
    rules = _rules(value.get("noredirectrules"), table) or (journal.rules if journal else ())
    return Redirect(mode, state, kind, target, (dialect,), source, rules, journal)


def _state(dialect: Dialect, value: object, journal: Journal | None, table: str) -> State:
    text = str(value).upper()
    if text == _READY_OF_DELTA_SPARK:
        text = State.READY.value
    if dialect is Dialect.CATALOG and text == _IN_PROGRESS:
        return State.DROPPING if journal is not None and journal.dropping else State.ENABLING
    for state in (State.ENABLING, State.READY, State.DROPPING):
        if text == state.value:
            return state
    raise _invalid(table, "its state isn't known", value)


def _target(kind: Kind, spec: Mapping[str, Any], table: str) -> Target | None:
    if kind is Kind.OBJECT_STORE:
        return _place(spec.get("location"), table)
    found = spec.get("table")
    if found in (None, "", {}):
        return None
    if isinstance(found, str) and found.lstrip().startswith("{"):
        found = _object(found, table, "its table")
    if isinstance(found, str):
        if len(found.split(".")) != 3 or not all(found.split(".")):
            raise _invalid(table, "its table has no three-part name", found)
        return Target(kind, name=found)
    if isinstance(found, dict):
        ids = _lowered(found)
        table_id, metastore_id = _text(ids.get("tableid")), _text(ids.get("metastoreid"))
        if table_id is not None:
            return Target(kind, table_id=table_id, metastore_id=metastore_id)
    raise _invalid(table, "its table is neither a name nor an id", found)


def _place(value: object, table: str) -> Target | None:
    if value in (None, ""):
        return None
    if not isinstance(value, str):
        raise _invalid(table, "its location isn't a text", value)
    try:
        if not value.startswith("/"):
            split(value)
        return Target(Kind.OBJECT_STORE, normalise(value))
    except InvalidInput as bad:
        raise _invalid(table, "its location is no place", value) from bad


def _rules(value: object, table: str) -> tuple[Rule, ...]:
    if value in (None, ""):
        return ()
    if isinstance(value, str):
        try:
            value = msgspec.json.decode(value)
        except msgspec.MsgspecError as broken:
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
        )
    except (ValueError, TypeError, IndexError, KeyError) as bad:
        raise _invalid(table, f"the property {JOURNAL_PROPERTY} has the wrong shape", text) from bad


def _object(value: object, table: str, what: str) -> dict[str, Any]:
    if isinstance(value, str):
        try:
            value = msgspec.json.decode(value)
        except (msgspec.MsgspecError, RecursionError) as broken:
            raise _invalid(table, f"{what} is no JSON", value) from broken
    if not isinstance(value, dict):
        raise _invalid(table, f"{what} is no object", value)
    return value


def _lowered(value: Mapping[str, Any]) -> dict[str, Any]:
    return {key.lower(): item for key, item in value.items()}


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _invalid(table: str, why: str, value: object) -> RedirectSpecInvalid:
    return RedirectSpecInvalid(
        f"the redirect of {table} makes no sense",
        cause=f"{why}: {value!r}",
        remedy="correct the table property with the program that set it, or remove it",
        location=table,
        value=value if isinstance(value, str | int | None) else repr(value),
    )


def parse_rules(texts: Iterable[str]) -> tuple[Rule, ...]:
    """Return rules that are written as ``APP:OP,OP``; without an app they are for everybody."""
    rules = []
    for text in texts:
        app, colon, operations = text.rpartition(":")
        if not colon:
            raise InvalidInput(
                f"{text!r} is no rule", remedy="write APP:OPERATION,OPERATION or :OPERATION"
            )
        names = [name.strip() for name in operations.split(",") if name.strip()]
        # VACUUM makes two commits, each with a name of its own.
        spread = [
            each for name in names for each in (_VACUUM if name.upper() == "VACUUM" else (name,))
        ]
        rules.append(Rule(app.strip() or None, tuple(spread)))
    return tuple(rules)
