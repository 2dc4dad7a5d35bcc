"""Parses table descriptors, ``_lakefs_tables/*.yaml``.

A descriptor is a file ``_lakefs_tables/NAME.yaml``, the same that lakeFS's own
exporters read::

    name: orders                        # the name of the export
    type: delta
    path: tables/orders                 # where the table is, below the ref
    register: sql:sales.eu.orders       # optional: the name that leads to the export
    keep: 5                             # optional: how many exports of a ref stay

Descriptors of other types belong to other exporters and are skipped; unknown keys are ignored.
All values are read as text, so ``no`` and ``007`` are valid table names. Anybody who can commit
to the repository can write descriptors, so sizes are bounded, and a name or path can't lead out
of its place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import yaml

from lakeferry.catalogs import split_name
from lakeferry.errors import InvalidInput, LakeferryError
from lakeferry.storage.uris import check_object_name

DESCRIPTORS_FOLDER = "_lakefs_tables/"
"""The folder of descriptors, below a ref."""
LARGEST_DESCRIPTOR_BYTES = 64 << 10
MOST_DESCRIPTORS = 1000
LONGEST_NAME = 255
MOST_KEPT = 1_000_000

MOST_NESTED = 32
"""The deepest nesting of a descriptor's lists and mappings; we read only the top level."""
MOST_TOKENS = 10_000

_KEYS = ("name", "type", "path", "register", "keep")
_DELTA = "delta"


@dataclass(frozen=True, slots=True)
class Descriptor:
    """A Delta table to export: the descriptor's file and contents."""

    file: str
    name: str
    path: str
    register: str | None = None
    keep: int | None = None


@dataclass(frozen=True, slots=True)
class Skipped:
    """A descriptor of another type."""

    file: str
    type: str


@dataclass(frozen=True, slots=True)
class Described:
    """All descriptors of a commit; an invalid one doesn't affect the others."""

    tables: tuple[Descriptor, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    wrong: tuple[tuple[str, LakeferryError], ...] = ()
    """Invalid files, each with its error."""


class _BoundedLoader(yaml.BaseLoader):
    """Reads YAML, and stops early at documents that would take long.

    PyYAML's time grows with the square of the nesting, even for documents that it rejects.
    """

    _tokens = 0

    def fetch_more_tokens(self) -> None:
        self._tokens += 1
        if self._tokens > MOST_TOKENS:
            raise yaml.YAMLError(f"it has more than {MOST_TOKENS:,} words and signs")
        if self.flow_level + len(self.indents) > MOST_NESTED:
            raise yaml.YAMLError(f"it is nested more than {MOST_NESTED} deep")
        super().fetch_more_tokens()


def is_descriptor(path: str) -> bool:
    """Return True if a path below a ref is a descriptor; hidden files aren't."""
    name = path.removeprefix(DESCRIPTORS_FOLDER)
    return (
        path.startswith(DESCRIPTORS_FOLDER)
        and name.endswith(".yaml")
        and not any(part.startswith((".", "_")) for part in name.split("/"))
    )


def check_number(descriptors: int) -> None:
    """Raise an error if there are too many descriptors; called before any is fetched."""
    if descriptors > MOST_DESCRIPTORS:
        raise InvalidInput(
            f"{DESCRIPTORS_FOLDER} has more than {MOST_DESCRIPTORS:,} table descriptors",
            remedy="describe fewer tables in one repository",
        )


def gather(files: Mapping[str, bytes]) -> Described:
    """Return all descriptors in the order of their names.

    Two tables of one name would be exported to one place, so both are rejected.
    """
    check_number(len(files))
    read: list[Descriptor] = []
    skipped: list[Skipped] = []
    wrong: list[tuple[str, LakeferryError]] = []
    for file in sorted(files):
        try:
            found = parse_descriptor(file, files[file])
        except InvalidInput as bad:
            wrong.append((file, bad))
            continue
        if isinstance(found, Skipped):
            skipped.append(found)
        else:
            read.append(found)
    by_name: dict[str, list[Descriptor]] = {}
    for each in read:
        by_name.setdefault(each.name, []).append(each)
    for name, same in by_name.items():
        if len(same) > 1:
            cause = f"{' and '.join(each.file for each in same)} all have the name {name!r}"
            wrong += [(each.file, _wrong(each.file, cause)) for each in same]
    tables = tuple(each for each in read if len(by_name[each.name]) == 1)
    return Described(tables, tuple(skipped), tuple(sorted(wrong, key=lambda pair: pair[0])))


def parse_descriptor(file: str, content: bytes) -> Descriptor | Skipped:
    """Parse one file; raise ``InvalidInput`` with the file's name if it is invalid."""
    values = _values(file, content)
    kind = values.get("type", "")
    if not kind:
        raise _wrong(file, "it lacks 'type'")
    if kind != _DELTA:
        return Skipped(file, kind)
    return Descriptor(
        file,
        _name(file, values.get("name", "")),
        _path(file, values.get("path", "")),
        _register(file, values.get("register", "")),
        _keep(file, values.get("keep", "")),
    )


def _values(file: str, content: bytes) -> dict[str, str]:
    """Return the text of each known key, without building objects for the rest of the file."""
    if len(content) > LARGEST_DESCRIPTOR_BYTES:
        raise _wrong(file, f"it has more than {LARGEST_DESCRIPTOR_BYTES:,} bytes")
    try:
        top = yaml.compose(content.decode(), Loader=_BoundedLoader)
    except UnicodeDecodeError as error:
        raise _wrong(file, "it isn't UTF-8") from error
    except (yaml.YAMLError, RecursionError) as error:
        said = " ".join(str(error).split())[:500] or "it is nested too deeply"
        raise _wrong(file, f"it can't be read as YAML: {said}") from error
    if not isinstance(top, yaml.MappingNode):
        raise _wrong(file, "it must say name, type and path")
    values: dict[str, str] = {}
    for key, value in top.value:
        if not isinstance(key, yaml.ScalarNode) or key.value not in _KEYS:
            continue
        if key.value in values:
            raise _wrong(file, f"it says {key.value!r} twice")
        if not isinstance(value, yaml.ScalarNode):
            raise _wrong(file, f"{key.value!r} must be a single value")
        values[key.value] = "" if _is_null(value) else value.value
    return values


def _is_null(value: yaml.ScalarNode) -> bool:
    # Only a plain scalar can be null: in quotes it is ordinary text.
    return value.style is None and value.value in ("~", "null", "Null", "NULL")


def _name(file: str, name: str) -> str:
    if not name:
        raise _wrong(file, "it lacks 'name'")
    if "/" in name or name.startswith(".") or not name.isprintable() or len(name) > LONGEST_NAME:
        raise _wrong(file, f"{name[:LONGEST_NAME]!r} can't be the name of a folder")
    return name


def _path(file: str, path: str) -> str:
    found = path.rstrip("/")
    if not found:
        raise _wrong(file, "it lacks 'path'")
    if "://" in found:
        raise _wrong(file, f"the path {path!r} isn't one below the ref")
    try:
        return check_object_name(found)
    except InvalidInput as bad:
        raise _wrong(file, f"the path {path!r} isn't one below the ref") from bad


def _register(file: str, name: str) -> str | None:
    if not name:
        return None
    try:
        named = split_name(name)
    except InvalidInput as bad:
        raise _wrong(file, f"'register': {bad}") from bad
    if named is None:
        raise _wrong(file, f"'register' is {name!r}, and no name such as sql:cat.schema.t")
    return name


def _keep(file: str, number: str) -> int | None:
    if not number:
        return None
    digits = number.isascii() and number.isdecimal() and len(number) <= len(str(MOST_KEPT))
    if not digits or not 1 <= int(number) <= MOST_KEPT:
        raise _wrong(file, f"'keep' is {number[:50]!r}, and no whole number from 1 on")
    return int(number)


def _wrong(file: str, cause: str) -> InvalidInput:
    return InvalidInput(
        f"the table descriptor {file} is invalid",
        cause=cause,
        remedy="correct the file and commit it: name, type: delta and path are needed",
        file=file,
    )
