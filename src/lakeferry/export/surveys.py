"""Lists a source: every object by name, its address, and the log.

Objects are listed page by page and kept in Arrow: names and addresses for a table in lakeFS,
only names for any other.

lakeFS also lists objects whose bytes its garbage collection has deleted, or that others have
deleted. So the blockstore's folders with a table's bytes are listed, too, and an object whose
bytes are missing counts as not listed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from operator import itemgetter
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc

from lakeferry.errors import ObjectNotFound, StorageUnavailable
from lakeferry.export.manifest import MOST_ABSENT
from lakeferry.log import paths
from lakeferry.log.paths import LogFile
from lakeferry.log.rewrite.listed_uris import LISTED_NAMES
from lakeferry.log.segment import Listing, arrange
from lakeferry.storage import Store
from lakeferry.storage.lakefs import LakeFSStore
from lakeferry.storage.parallel_listing import list_all, list_stretches
from lakeferry.storage.uris import join
from lakeferry.table.log_source import LogSource

_CHUNK = 65_536
_LOOKS_AT_ONCE = 16
_FEW = 32
_FOLDER = r"/[^/]*$"
_PLAIN = re.compile(r"[A-Za-z0-9._\-]*")


@dataclass(frozen=True, slots=True)
class Survey:
    """A table's objects. ``log`` has the log's files and sidecars by name."""

    names: pa.Array
    addresses: pa.Array | None
    log: Mapping[str, LogFile]
    log_addresses: Mapping[str, str]
    sidecars: Mapping[str, int] = field(default_factory=dict)
    objects: int = 0
    whole: bool = True
    """Whether all objects are in it; ``objects`` always counts all of them."""
    lost: tuple[str, ...] = ()
    """Some of the listed objects whose bytes are gone; at least one if there are any."""

    @property
    def listing(self) -> Listing:
        """The log's files by kind."""
        return arrange(self.log.values())


class _Gathered:
    """Collects names in order, in Arrow."""

    def __init__(self) -> None:
        self.log: dict[str, LogFile] = {}
        self.log_addresses: dict[str, str] = {}
        self.sidecars: dict[str, int] = {}
        self.objects = 0
        self._names: list[str] = []
        self._addresses: list[str] = []
        self._chunks: list[tuple[pa.Array, pa.Array]] = []

    def take(self, name: str, size_bytes: int, modified_ms: int, address: str | None) -> None:
        self.objects += 1
        if name.startswith(f"{paths.LOG_DIR}/"):
            self._take_log(name, size_bytes, modified_ms)
            if address is not None and (name in self.log or name in self.sidecars):
                self.log_addresses[name] = address
            return
        self._names.append(name)
        if address is not None:
            self._addresses.append(as_spark_spells(address))
        if len(self._names) >= _CHUNK:
            self._cut()

    def _take_log(self, name: str, size_bytes: int, modified_ms: int) -> None:
        file = paths.parse(name, size_bytes, modified_ms)
        if file is not None:
            self.log[name] = file
        elif name.startswith(f"{paths.SIDECAR_DIR}/") and name.endswith(".parquet"):
            self.sidecars[name] = size_bytes

    def _cut(self) -> None:
        self._chunks.append(
            (pa.array(self._names, LISTED_NAMES), pa.array(self._addresses, LISTED_NAMES))
        )
        self._names, self._addresses = [], []

    def chunks(self) -> list[tuple[pa.Array, pa.Array]]:
        self._cut()
        return self._chunks


def _survey(*gathered: _Gathered, addressed: bool) -> Survey:
    """Return the collected objects, in order."""
    chunks = [chunk for each in gathered for chunk in each.chunks()]
    names = pa.chunked_array([name for name, _ in chunks], LISTED_NAMES).combine_chunks()
    addresses = pa.chunked_array([address for _, address in chunks], LISTED_NAMES).combine_chunks()
    log: dict[str, LogFile] = {}
    where: dict[str, str] = {}
    sidecars: dict[str, int] = {}
    for each in gathered:
        log |= each.log
        where |= each.log_addresses
        sidecars |= each.sidecars
    objects = sum(each.objects for each in gathered)
    return Survey(names, addresses if addressed else None, log, where, sidecars, objects)


def of_store(store: Store, log_source: LogSource | None = None) -> Survey:
    """List a table whose files are where its log says; ``log_source`` lists its log."""
    log, data = _Gathered(), _Gathered()
    # The log first: a writer writes a commit's files before the commit.
    for entry in (log_source or store).list(f"{paths.LOG_DIR}/"):
        log.take(entry.path, entry.size_bytes, entry.modified_ms, None)
    for entry in list_all(store):
        if not entry.path.startswith(f"{paths.LOG_DIR}/"):
            data.take(entry.path, entry.size_bytes, entry.modified_ms, None)
    return _survey(log, data, addressed=False)


def survey_lakefs(store: LakeFSStore) -> Survey:
    """List a table in lakeFS."""
    gathered = _Gathered()
    for name, entry in list_stretches(store.objects, itemgetter(0), store.folders):
        gathered.take(name, entry.size_bytes, entry.modified_ms, entry.address)
    return _survey(gathered, addressed=True)


# --- Are the bytes there? ---------------------------------------------------------


def without_lost(survey: Survey, open_store: Callable[[str], Store]) -> Survey:
    """Return a survey without the objects whose bytes are missing in the blockstore."""
    if survey.addresses is None or not len(survey.addresses):
        return survey
    present = _present(survey.addresses, open_store)
    if pc.all(present).as_py():
        return survey
    lost = survey.names.filter(pc.invert(present))
    return replace(
        survey,
        names=survey.names.filter(present),
        addresses=survey.addresses.filter(present),
        lost=tuple(lost.slice(0, MOST_ABSENT + 1).to_pylist()),
    )


def _present(addresses: pa.Array, open_store: Callable[[str], Store]) -> pa.Array:
    folders = pc.replace_substring_regex(addresses, _FOLDER, "")
    distinct = pc.unique(folders).to_pylist()
    with ThreadPoolExecutor(_LOOKS_AT_ONCE) as pool:
        few = len(addresses) <= _FEW
        if few or (len(distinct) > _LOOKS_AT_ONCE and len(distinct) * 4 > len(addresses)):
            # With few files per folder, such as imported objects, single requests cost less.
            found = pool.map(lambda uri: _is_there(uri, open_store), addresses.to_pylist())
            return pa.array(list(found), pa.bool_())
        listed = list(pool.map(lambda folder: _inside(folder, open_store), distinct))
    there = pa.chunked_array(
        [each for each in listed if len(each)] or [pa.array([], LISTED_NAMES)], LISTED_NAMES
    )
    return pc.is_in(addresses, value_set=there.combine_chunks())


def _is_there(uri: str, open_store: Callable[[str], Store]) -> bool:
    folder, _, name = uri.rpartition("/")
    try:
        open_store(folder).head(unquote(name))
    except ObjectNotFound as missing:
        if missing.fields.get("bucket_missing"):
            raise unreachable(folder, missing) from missing
        return False
    return True


def _inside(folder: str, open_store: Callable[[str], Store]) -> pa.Array:
    """Return the addresses of all objects directly in a folder, spelled as in lakeFS."""
    try:
        names = [entry.path for entry in open_store(folder).list("") if "/" not in entry.path]
    except ObjectNotFound as missing:
        raise unreachable(folder, missing) from missing
    return pa.array([_address(folder, name) for name in names], LISTED_NAMES)


def unreachable(place: str, missing: ObjectNotFound) -> StorageUnavailable:
    """Return the error for a place where nothing can be read or written."""
    return StorageUnavailable(
        f"nothing can be read or written at {place}",
        cause=str(missing),
        remedy="check the bucket's name and the storage options (AWS_ENDPOINT_URL). For a table "
        "in lakeFS, these are the options of the store in which lakeFS keeps its objects, not "
        "of lakeFS itself",
        uri=place,
    )


def _address(folder: str, name: str) -> str:
    plain = _PLAIN.fullmatch(name) is not None
    return f"{folder}/{name}" if plain else as_spark_spells(join(folder, name))


def as_spark_spells(uri: str) -> str:
    """Return a URI as a log has it: a local one as Hadoop normalises it."""
    return f"file:{uri.removeprefix('file://')}" if uri.startswith("file:///") else uri
