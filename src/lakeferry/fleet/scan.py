"""Finds tables below prefixes and in catalogs, and surveys those that have changed.

A table that is known and unchanged costs one listing of the end of its log. Work is done by a
bounded number of threads, and records are written in batches while the scan goes on.

What a scan didn't find is marked as gone only if its whole prefix could be listed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from lakeferry.catalogs import KINDS, EditableCatalog
from lakeferry.catalogs.catalog import CatalogTable
from lakeferry.catalogs.managed_tables import PRIVATE_LEAD
from lakeferry.catalogs.places import Places
from lakeferry.engine import Observer, unobserved
from lakeferry.errors import InvalidInput, LakeferryError, TableNotFound
from lakeferry.fleet.inventory import FleetProblem, FoundTable, TableMark, TableSurvey
from lakeferry.fleet.survey import newest_mark, survey_table
from lakeferry.storage import Store, normalise
from lakeferry.storage.folder import FolderStore
from lakeferry.storage.uris import join, relative_name
from lakeferry.table.table_search import find_and_read

SCANS_AT_ONCE = 8
_BATCH = 200


@dataclass(frozen=True, slots=True)
class KnownTable:
    """What the records say of a table: whether a scan has to read it again."""

    root: str
    mark: TableMark | None
    has_problems: bool


@dataclass(frozen=True, slots=True)
class FleetScan:
    """What a scan does with its findings; each is called by the thread that scans."""

    record: Callable[[Sequence[tuple[FoundTable, TableSurvey]]], None]
    confirm: Callable[[Sequence[str]], None]
    lose: Callable[[Sequence[str]], None]


@dataclass(frozen=True, slots=True)
class ScanTotals:
    """How much a scan found."""

    found: tuple[str, ...]
    surveyed: int
    gone: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Answer:
    """What looking at one folder or table brought; an unchanged table has no survey."""

    found: FoundTable | None = None
    survey: TableSurvey | None = None
    refused: LakeferryError | None = None


@dataclass(slots=True)
class _Findings:
    """What was found so far; batches are recorded as they fill."""

    to: FleetScan
    seen: dict[str, None] = field(default_factory=dict)
    surveyed: int = 0
    surveys: list[tuple[FoundTable, TableSurvey]] = field(default_factory=list)
    unchanged: list[str] = field(default_factory=list)

    def add(self, found: FoundTable, survey: TableSurvey | None) -> None:
        if found.uri in self.seen:
            return
        self.seen[found.uri] = None
        if survey is None:
            self.unchanged.append(found.uri)
        else:
            self.surveyed += 1
            self.surveys.append((found, survey))
        if len(self.surveys) >= _BATCH or len(self.unchanged) >= _BATCH:
            self.flush()

    def flush(self) -> None:
        surveys, self.surveys = self.surveys, []
        unchanged, self.unchanged = self.unchanged, []
        if surveys:
            self.to.record(surveys)
        if unchanged:
            self.to.confirm(unchanged)


class Scanner:
    """Scans prefixes and catalogs."""

    def __init__(
        self,
        places: Places,
        known: Mapping[str, KnownTable],
        *,
        at_once: int = SCANS_AT_ONCE,
        observer: Observer = unobserved,
        warn: Callable[[str], None] = lambda _: None,
        catalog: Callable[[str], EditableCatalog] | None = None,
    ) -> None:
        """Scan with the credentials of ``places``; ``known`` are the recorded tables by URI."""
        self._places = places
        self._known = known
        self._at_once = at_once
        self._observer = observer
        self._warn = warn
        self._catalog = catalog

    def scan(self, roots: Sequence[str], to: FleetScan) -> ScanTotals:
        """Scan all roots, and hand on what is found."""
        # Where prefixes overlap, a table belongs to the one that was given first.
        wanted = [spelled_root(root) for root in roots]
        findings = _Findings(to)
        incomplete: set[str] = set()
        for root in wanted:
            answers = self._in_catalog(root) if _is_catalog(root) else self._below(root)
            for place, answer in answers:
                if answer.refused is not None:
                    self._warn(f"{place} can't be searched for tables: {answer.refused}")
                    incomplete.add(root)
                elif answer.found is not None:
                    findings.add(answer.found, answer.survey)
                done = len(findings.seen)
                self._observer("scanning for tables", done, max(done, len(self._known)))
        findings.flush()
        whole = [root for root in wanted if root not in incomplete]
        gone = [
            uri
            for uri, table in self._known.items()
            if uri not in findings.seen
            and any(table.root == root or _covers(root, uri) for root in whole)
        ]
        if gone:
            to.lose(gone)
        return ScanTotals(tuple(findings.seen), findings.surveyed, tuple(gone))

    def _below(self, root: str) -> Iterator[tuple[str, _Answer]]:
        """Yield what is found below a prefix, each with its place."""
        whole = self._places.open(root)
        if not whole.is_occupied():
            raise TableNotFound(
                f"there is nothing at {root}",
                remedy="check the path, and give a folder or bucket with tables below it",
                location=root,
            )

        def place(folder: str) -> str:
            return join(root, folder) if folder else root

        def read(folder: str) -> _Answer | None:
            uri = place(folder)
            return self._table(FoundTable(uri, root), self._store(whole, folder, uri))

        def refused(error: LakeferryError) -> _Answer:
            return _Answer(refused=error)

        known = [uri for uri in self._known if _covers(root, uri)]
        is_known = set(known).__contains__
        for folder, answer in find_and_read(
            whole, read, refused, self._at_once, known=lambda folder: is_known(place(folder))
        ):
            yield place(folder), answer or _Answer()

    def _in_catalog(self, root: str) -> Iterator[tuple[str, _Answer]]:
        tables = self._tables_of(root)
        with ThreadPoolExecutor(self._at_once, thread_name_prefix="scan") as pool:
            answers = pool.map(lambda table: self._named(root, table), tables)
            for table, answer in zip(tables, answers, strict=True):
                yield table.location, answer

    def _tables_of(self, root: str) -> list[CatalogTable]:
        kind, _, prefix = root.partition(":")
        assert self._catalog is not None
        found = self._catalog(kind).tables(prefix)
        # A prefix ends where a part of a name ends: sql:sales doesn't mean sales_old.
        wanted = (one for one in found if not prefix or f"{one.name}.".startswith(f"{prefix}."))
        # The target of a move that isn't decided yet has a private name, as a throwaway table has.
        return [one for one in wanted if not _is_private(one.name) or one.name == prefix]

    def _named(self, root: str, table: CatalogTable) -> _Answer:
        kind = root.partition(":")[0]
        found = FoundTable(normalise(table.location), root, f"{kind}:{table.name}")
        try:
            assert self._catalog is not None
            place = self._places.of_entry(self._catalog(kind), table)
            store = self._places.open(place)
        except LakeferryError as failed:
            return _Answer(found, TableSurvey(problems=(FleetProblem.of(failed),)))
        return self._table(found, store) or _Answer()

    def _table(self, found: FoundTable, store: Store) -> _Answer | None:
        """Return a table, with its survey if it has changed; ``None`` if there is no table."""
        known = self._known.get(found.uri)
        mark = None if known is None or known.has_problems else known.mark
        if mark is not None and not store.asks_catalog:
            try:
                is_same = newest_mark(store, mark) == mark
            except LakeferryError:
                # The survey says what the matter is.
                is_same = False
            if is_same:
                return _Answer(found)
        survey = survey_table(store)
        if found.name is None and any(each.code in _NO_TABLE for each in survey.problems):
            return None
        return _Answer(found, survey)

    def _store(self, whole: Store, folder: str, uri: str) -> Store:
        """Return the store of a table; it shares the connections of its prefix if it may."""
        if not folder:
            return whole
        if dict(self._places.options(uri)) != dict(self._places.options(whole.uri)):
            return self._places.open(uri)
        store = FolderStore(whole, folder)
        store.config = replace(store.config, uri=uri)
        return store


_NO_TABLE = ("table_not_found", "not_a_table")


def spelled_root(root: str) -> str:
    """Return a prefix or a catalog as it is recorded: a URI, or ``sql:…`` and ``unity:…``."""
    return root.rstrip(".") if _is_catalog(root) else normalise(root)


def _is_catalog(root: str) -> bool:
    kind, colon, prefix = root.partition(":")
    if kind not in KINDS or not colon:
        return False
    if "/" in prefix:
        raise InvalidInput(
            f"{root!r} is neither a catalog nor the beginning of names in a catalog",
            remedy="write sql:, unity:catalog or unity:catalog.schema",
        )
    return True


def _is_private(name: str) -> bool:
    return name.rpartition(".")[2].startswith(PRIVATE_LEAD)


def _covers(root: str, uri: str) -> bool:
    """Return whether a prefix has a place in it."""
    return not _is_catalog(root) and (root == uri or relative_name(root, uri) is not None)
