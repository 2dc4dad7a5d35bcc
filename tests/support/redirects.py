"""What tests of redirects share: a world of places, and what a table holds wherever it is.

A world is one store with places in it; the table that moves is at :data:`OLD`, and
:data:`NEW` is where it goes. :func:`content` reads a version at either place with
:mod:`tests.support.naive` and names files as they were called before anything
moved, so that the same version at two places compares equal, bytes included.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import unquote

import pyarrow as pa

from lakeferry.engine import Engine
from lakeferry.engines.local_engine import LocalEngine
from lakeferry.log import deletion_vectors, file_actions
from lakeferry.log.commit import Transaction
from lakeferry.log.conflicts import Conflict
from lakeferry.redirect import read_entry
from lakeferry.redirect.enable.preflight import Request
from lakeferry.redirect.entry import Data, Mode, Redirect, RedirectTarget, TargetKind
from lakeferry.redirect.no_redirect_rules import Rule
from lakeferry.redirect.redirect_context import Setting
from lakeferry.storage import Store
from lakeferry.table import DeltaLog
from tests.support import naive
from tests.support.history import History
from tests.support.naive import Row
from tests.support.places import below, inside, opener
from tests.support.stores import DictStore

WORLD = "memory://world"
OLD = f"{WORLD}/old"
NEW = f"{WORLD}/new"
OTHER = f"{WORLD}/other"

REDIRECT_FEATURES = frozenset(
    f"redirect{mode}{suffix}"
    for mode in ("ReaderWriter", "WriterOnly")
    for suffix in ("", "-preview")
)
_Value = TypeVar("_Value")
_ENTRIES = frozenset(
    {f"{lead}{name}" for lead in ("", "delta.") for name in REDIRECT_FEATURES}
    | {"lakeferry.redirect"}
)


def unsettled(objects: Mapping[str, bytes]) -> list[str]:
    """Return the names of what moves that haven't ended keep beside logs."""
    own = (name for name in objects if "/_lakeferry/" in name)
    # That a redirect was begun at a table is noted for good.
    return [name for name in own if "/_lakeferry/moves/" not in name]


def folder_of(uri: str) -> str:
    """Return the folder of the world that a place is."""
    return uri.removeprefix(f"{WORLD}/")


def world_with(past: History, at: str = OLD, *, with_data: bool = False) -> dict[str, bytes]:
    """Return the objects of a world with one table in it."""
    return inside(folder_of(at), past.objects(at, with_data=with_data))


def numbered(lead: str) -> Callable[[], str]:
    """Return a maker of ids, the same ones in each run."""
    numbers = itertools.count(1)
    return lambda: f"{lead}-{next(numbers)}"


def setting_of(
    whole: Store,
    *,
    clock: Callable[[], int] | None = None,
    new_id: Callable[[], str] | None = None,
    warn: Callable[[str], None] = lambda _: None,
) -> Setting:
    """Return the setting of procedures in a world: every place is in ``whole``, no catalog."""
    opened = opener(whole)
    engine = LocalEngine(open_store=opened, parallel=1)

    def choose(objects: int, size_bytes: int, urgent: bool = False) -> Engine:
        return engine

    def no_catalog(kind: str) -> Any:
        raise AssertionError(f"no catalog of the kind {kind} is there")

    if clock is None:
        assert isinstance(whole, DictStore)
        clock = whole.clock
    return Setting(
        engine=choose,
        open_store=opened,
        catalog=no_catalog,
        clock=clock,
        new_id=new_id or numbered("id"),
        warn=warn,
    )


def request_for(
    target: str = NEW,
    *,
    source: str = OLD,
    mode: Mode = Mode.READER_WRITER,
    data: Data = Data.COPY,
    rules: tuple[Rule, ...] = (),
) -> Request:
    """Return the request to move a table to another place."""
    return Request(
        source, RedirectTarget(TargetKind.OBJECT_STORE, target), target, mode, data, rules=rules
    )


# ---------------------------------------------------------------------- content


@dataclass(frozen=True)
class Content:
    """What a version of a table says, apart from where it is and from its redirect."""

    metadata: Row
    features: frozenset[str]
    txns: dict[str, tuple[int, int | None]]
    domains: dict[str, str]
    files: dict[tuple[str, str], Row] = field(repr=False)

    @property
    def names(self) -> list[str]:
        """The names of its live files, each as it was called before anything moved."""
        return sorted(name for name, _ in self.files)


def without_moves(txns: Mapping[str, _Value]) -> dict[str, _Value]:
    """Return a version's transactions without those that name a move."""
    return {app: txn for app, txn in txns.items() if not app.startswith("lakeferry.redirect:")}


_KEPT = (
    *("partitionValues", "size", "modificationTime", "tags", "baseRowId"),
    "defaultRowCommitVersion",
)


def content(
    objects: Mapping[str, bytes],
    place: str,
    version: int | None = None,
    *,
    with_bytes: bool = True,
) -> Content:
    """Return what a version at a place holds; raise ``naive.Unreadable`` where that can't be."""
    found = naive.replay(below(objects, folder_of(place)), version, root=place)
    live = {}
    for row in found.files:
        kept = {key: row.get(key) for key in _KEPT}
        if with_bytes:
            kept["bytes"] = bytes_at(objects, row["path"], place)
        vector, where = row.get("deletionVector"), ""
        if vector is not None:
            where = vector_path(vector)
            kept["cardinality"] = vector["cardinality"]
            if with_bytes and vector["storageType"] != "i":
                kept["vector"] = bytes_at(objects, _vector_file(vector), place)
        live[home_name(row["path"]), where] = kept
    configuration = {
        key: value for key, value in found.metadata["configuration"].items() if key not in _ENTRIES
    }
    return Content(
        found.metadata | {"configuration": configuration},
        _features(found.protocol) - REDIRECT_FEATURES,
        without_moves(found.txns),
        found.domains,
        live,
    )


def _features(protocol: Row) -> frozenset[str]:
    """Return the features of a protocol, with what its version numbers stand for."""
    implied = {
        2: ("appendOnly", "invariants"),
        3: ("checkConstraints",),
        4: ("changeDataFeed", "generatedColumns"),
        5: ("columnMapping",),
        6: ("identityColumns",),
    }
    named = {*protocol.get("readerFeatures", ()), *protocol.get("writerFeatures", ())}
    writer = protocol["minWriterVersion"]
    if writer < 7:
        named |= {name for version in implied if version <= writer for name in implied[version]}
    return frozenset(named)


def home_name(path: str) -> str:
    """Return what a file was called before anything moved, whichever place it is at now."""
    text = unquote(path)
    if text.startswith("_adopted/"):
        scheme, authority, rest = text.removeprefix("_adopted/").split("/", 2)
        text = f"{scheme}://{authority}/{rest}"
    return text.removeprefix(f"{WORLD}/").partition("/")[2] if text.startswith(WORLD) else text


def vector_path(vector: Row) -> str:
    """Return what tells a deletion vector from others, likewise."""
    path = _vector_file(vector)
    if vector["storageType"] != "i":
        path = home_name(path)
    return f"{path}@{vector.get('offset')}"


def _vector_file(vector: Row) -> str:
    path: str = vector["pathOrInlineDv"]
    return deletion_vectors.relative_path(path) if vector["storageType"] == "u" else path


def bytes_at(objects: Mapping[str, bytes], path: str, place: str) -> bytes | None:
    """Return the bytes of the object at a path of a place's log, wherever it is."""
    text = unquote(path)
    if "://" not in text:
        text = f"{place}/{text}"
    return objects.get(folder_of(text))


def is_openable(objects: Mapping[str, bytes], place: str) -> bool:
    """Tell whether somebody who opens a place finds a table there."""
    try:
        naive.replay(below(objects, folder_of(place)), root=place)
    except naive.Unreadable:
        return False
    return True


def versions(objects: Mapping[str, bytes], place: str) -> range:
    """Return the versions of a table that begins with version 0."""
    return range(naive.newest_version(below(objects, folder_of(place))) + 1)


def protocol_features(objects: Mapping[str, bytes], place: str) -> frozenset[str]:
    """Return the features that the newest version's protocol names."""
    return _features(naive.replay(below(objects, folder_of(place)), root=place).protocol)


def redirect_at(setting: Setting, uri: str = OLD) -> Redirect | None:
    """Return the redirect that a table carries now."""
    state = setting.log(uri).state()
    return read_entry.read(state.protocol, state.metadata, uri)


# ---------------------------------------------------------------------- writing


def added(names: Iterator[str] | list[str], objects: Mapping[str, bytes], now_ms: int) -> pa.Table:
    """Return the actions that add files of those names and bytes."""
    rows = [
        {
            "path": name,
            "partitionValues": {},
            "size": len(objects[name]),
            "modificationTime": now_ms,
            "dataChange": True,
            "stats": '{"numRecords":1}',
        }
        for name in names
    ]
    return pa.Table.from_pylist(rows, schema=file_actions.ADD)


def append(log: DeltaLog, name: str, **more: Any) -> int:
    """Append one file to a table as a modern writer does, and return the version."""
    data = {name: f"the rows of {name}".encode()}
    log.store.put(name, data[name])
    transaction = Transaction(
        "WRITE", f"txn-{name}", adds=added([name], data, log.clock()), new_names=True, **more
    )
    result = log.commit(transaction, log.state())
    if isinstance(result, Conflict):
        raise result.error()
    return result.version
