"""One history, two places: every version says the same wherever it is, and after it came back."""

from __future__ import annotations

import itertools
import json
import re
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

import lakeferry
from lakeferry.api.redirects import Redirects
from lakeferry.errors import Diverged
from lakeferry.log.commit import Transaction
from lakeferry.redirect.states import RedirectState
from lakeferry.storage import Store, open_store
from lakeferry.table import DeltaLog
from lakeferry.table.put_commit import Committed
from tests.support import engines, naive, opinions
from tests.support.clock import DEFAULT_START_MS
from tests.support.history import (
    DOS,
    FUTURE,
    MINUTE_MS,
    RUST,
    SPACED,
    Append,
    Change,
    Checkpoint,
    Checksum,
    Clean,
    Clutter,
    Compact,
    Delete,
    DeleteRows,
    Domain,
    History,
    KeepTime,
    Kind,
    Layout,
    Optimize,
    Restore,
    SetProperties,
    Speak,
    Stream,
)
from tests.support.invariants import reading_of
from tests.support.lake import Lake, on_disk, on_s3
from tests.support.redirects import append
from tests.support.servers import S3Bucket
from tests.support.whole_story import Guest, Told, commits_at, objects_at, told

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STEPS = (Append(4), Delete(1), Append(2))
CASES = {
    "plain": History().then(*STEPS, Checkpoint(), Append(1), Checksum(), Append(1)),
    "percent-encoded folders": History(Layout(partitioned=True)).then(
        Append(5), Delete(1, respell=True), Checkpoint(stats="both"), Append(5), Optimize()
    ),
    "vectors": History(Layout(deletion_vectors="u", partitioned=True)).then(
        Append(3), DeleteRows(2), Checkpoint(), DeleteRows(1), Checksum(full=True), Append(2)
    ),
    "vectors by absolute paths": History(Layout(deletion_vectors="p")).then(
        Append(3), DeleteRows(2), Checkpoint(), DeleteRows(1), Append(2)
    ),
    "inline vectors": History(Layout(deletion_vectors="i")).then(
        Append(3), DeleteRows(2), Checkpoint(), DeleteRows(1), Append(2)
    ),
    "columns mapped by name": History(Layout(column_mapping="name", partitioned=True)).then(
        *STEPS, Checkpoint(stats="parsed"), Append(1)
    ),
    "columns mapped by id": History(Layout(column_mapping="id")).then(*STEPS, Append(1)),
    "row tracking, timestamps, streams and domains": History(
        Layout(row_tracking=True, in_commit_timestamps=True, domains=True)
    ).then(
        *(Append(3), Stream("app", 1), Domain("a.b", '{"x":1}'), Delete(1), Checksum(full=True)),
        *(Stream("app", 2, 17), Domain("a.b", None), Checkpoint(), Stream("other", 5), Append(1)),
    ),
    "timestamps since a version": History().then(*STEPS, KeepTime(), Append(1), Append(1)),
    "change files": History(Layout(change_data=True)).then(
        Append(3), Change(), Checkpoint(), Change(), Append(1)
    ),
    "sidecars": History(Layout(v2_checkpoints=True, deletion_vectors="u")).then(
        *(Append(4), Checkpoint(Kind.V2_JSON), DeleteRows(1), Checkpoint(Kind.V2_PARQUET)),
        *(Append(2), Checkpoint(Kind.V2_CLASSIC, sidecars=0), Delete(1), Append(1)),
    ),
    "multi-part checkpoints": History().then(
        *STEPS, Checkpoint(Kind.MULTI_PART, parts=3), Delete(1), Append(2)
    ),
    "compacted logs": History().then(
        *STEPS, Compact(3), Append(1), Delete(1), Compact(2), Append(1), Compact(7)
    ),
    "a log that begins at a checkpoint": History(Layout(domains=True)).then(
        *STEPS, Stream("app", 1), Checkpoint(), Append(1), Domain(), Clean(), Append(2)
    ),
    "a log that begins at sidecars": History(Layout(v2_checkpoints=True)).then(
        *STEPS, Checkpoint(Kind.V2_PARQUET), Append(1), Clean(), Append(2)
    ),
    "files that came back": History().then(*STEPS, Delete(2), Restore(2), Append(1)),
    "its own files by absolute paths": History(Layout(absolute_paths=True)).then(
        *STEPS, Checkpoint(), Delete(1), Append(2)
    ),
    "every dialect": History(dialect=RUST).then(
        *(Append(3), Speak(SPACED), Append(1), Delete(1), Speak(DOS), Append(1)),
        *(Speak(FUTURE), Append(1), SetProperties((("a", "b"),)), Clutter(), Append(1)),
    ),
}
LOG_FILE = re.compile(
    r"_delta_log/(\d{20}\.(json|crc|checkpoint[0-9a-f.-]*\.(json|parquet))"
    r"|\d{20}\.\d{20}\.compacted\.json|_sidecars/[0-9a-f-]+\.parquet)"
)
CLUTTER = b"\x00crc"
MODES = ("reader-writer", "writer-only")


@dataclass
class Story:
    """A table that moves, and what each of its versions has been said to be."""

    lake: Lake
    homes: tuple[str, ...]
    past: dict[int, Told] = field(default_factory=dict)
    rows: dict[int, engines.Rows] = field(default_factory=dict)
    by_delta_rs: dict[int, engines.Rows] = field(default_factory=dict)

    @property
    def source(self) -> str:
        return self.homes[0]

    @property
    def target(self) -> str:
        return self.homes[1]

    @property
    def moves(self) -> Redirects:
        return Redirects(dict(self.lake.variables), engine="local")

    def view(self, place: str) -> View:
        """Return a place as it is now."""
        store = open_store(place, self.lake.variables)
        return View(self, store, objects_at(store))

    def remember(self, place: str, versions: range) -> None:
        """Note what each version is."""
        view = self.view(place)
        for version in versions:
            self.past[version] = view.told(version)
            # Of a version whose files are gone nobody reads the rows.
            with suppress(FileNotFoundError, lakeferry.LakeferryError):
                self.rows[version] = view.rows(version)
            # What delta-rs can't read here it needn't read elsewhere.
            with suppress(Exception):
                self.by_delta_rs[version] = view.rows_by_delta_rs(version)


@dataclass(frozen=True)
class View:
    """A place at a moment."""

    story: Story
    store: Store
    objects: Mapping[str, bytes]

    @property
    def newest(self) -> int:
        return naive.newest_version(self.objects)

    def told(self, version: int) -> Told:
        """Return what a version says, if our reading of the log is the naive one."""
        read = naive.replay(self.objects, version, root=self.store.uri)
        assert reading_of(DeltaLog(self.store).snapshot(version)) == read
        return told(self.objects, self.store.uri, self.story.homes, version)

    def rows(self, version: int) -> engines.Rows:
        options = dict(self.story.lake.variables)
        found = lakeferry.open(
            self.store.uri, version=version, storage_options=options, follow=False
        ).to_table()
        columns = [column.to_pylist() for column in found.columns]
        return sorted(zip(*columns, strict=True), key=repr)

    def rows_by_delta_rs(self, version: int) -> engines.Rows:
        return engines.by_delta_rs(self.store.uri, version, self.story.lake.variables)

    def check(self, version: int, like: int, *, stock: bool) -> None:
        """See that a version says what another one was remembered to say."""
        story = self.story
        assert self.told(version) == story.past[like], version
        if like in story.rows:
            assert self.rows(version) == story.rows[like], version
        if stock and like in story.by_delta_rs:
            assert self.rows_by_delta_rs(version) == story.by_delta_rs[like], version


def begin(lake: Lake, history: History) -> Story:
    """Make a table at the first of two places; nothing is at the second."""
    story = Story(lake, (lake.uri("old"), lake.uri("new")))
    store = open_store(story.source, lake.variables)
    history.write(store, with_data=True)
    date(store)
    story.remember(story.source, available(story.source, lake))
    return story


def date(store: Store) -> None:
    """Make commits a minute apart, where the store can be told."""
    for version in commits_at(entry.path for entry in store.list("_delta_log/")):
        store.restore_time(f"_delta_log/{version:020d}.json", time_of(version))


def time_of(version: int) -> int:
    return DEFAULT_START_MS + version * MINUTE_MS


def available(place: str, lake: Lake) -> range:
    """Return the versions that can be rebuilt."""
    listing = DeltaLog(open_store(place, lake.variables)).listing()
    earliest = listing.earliest_version()
    assert earliest is not None
    return range(earliest, listing.newest_version + 1)


def tell(story: Story, mode: str, data: str, back: str = "copy") -> None:
    """Move a table there and back with a guest at the target, and look at every version.

    ``data`` is how it goes, ``back`` how it comes back.
    """
    source, target, moves = story.source, story.target, story.moves
    before = available(source, story.lake)
    begun = before.stop
    original = story.view(source)
    moved = moves.enable(source, target, mode=mode, data=data)
    assert (moved.state, moved.version) == (RedirectState.READY, begun + 1)
    there, here = story.view(target), story.view(source)
    check_carried(original.objects, there.objects, data)
    for version in range(before.start, begun + 2):
        like = min(version, begun - 1)
        there.check(version, like, stock=data == "copy")
    for version in (begun, begun + 1):
        here.check(version, begun - 1, stock=mode == "writer-only")

    last = begun + 1 + Guest(there.store).stay()
    story.remember(target, range(begun + 2, last + 1))
    moves.disable(source, data=back)
    assert available(source, story.lake) == range(before.start, last + 3)
    here = story.view(source)
    if back == "copy":
        missing = data_files(story.view(target).objects).keys() - here.objects.keys()
        assert [name for name in missing if not name.startswith("_adopted/")] == []
    for version in range(before.start, last + 3):
        like = begun - 1 if version in (begun, begun + 1) else min(version, last)
        blocked = mode == "reader-writer" and begun <= version <= last + 1
        here.check(version, like, stock=not blocked and (back == "copy" or version < begun))
        if blocked and before.start in story.by_delta_rs:
            with pytest.raises(Exception, match="redirectReaderWriter"):
                here.rows_by_delta_rs(version)
    check_times(story, before, range(begun + 2, last + 1))


def data_files(objects: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return data files, vectors and change files."""
    return {name: data for name, data in objects.items() if not name.startswith("_delta_log/")}


def check_carried(before: Mapping[str, bytes], there: Mapping[str, bytes], data: str) -> None:
    """See that a target has what the source had: byte for byte, where no path had to change."""
    brought = data_files(there)
    as_it_was = data == "copy" and not any(name.startswith("_adopted/") for name in brought)
    if data == "reference":
        assert brought == {}
    elif as_it_was:
        wanted = data_files(before)
        # Where the log's beginning is gone, so are the versions that had what is left out.
        assert brought.items() <= wanted.items()
        assert brought == wanted or f"_delta_log/{0:020d}.json" not in before
    log = {
        name: content
        for name, content in before.items()
        if LOG_FILE.fullmatch(name) and not content.startswith(CLUTTER)
    }
    if as_it_was:
        assert {name: there.get(name) for name in log} == log
    else:
        # A checksum file may name files too.
        assert {name for name in log if not name.endswith(".crc")} <= there.keys()


def check_times(story: Story, before: range, since: range) -> None:
    """See that time travel by timestamp leads to the same versions at both ends."""
    there, here = story.view(story.target), story.view(story.source)
    on_disk = story.source.startswith("file:")
    timed = story.past[before.stop - 1].metadata["configuration"]
    if on_disk or timed.get("delta.enableInCommitTimestamps"):
        dated = [version for version in before if version in commits_at(here.objects)]
        for view, version in itertools.product((there, here), dated):
            assert DeltaLog(view.store).version_at(time_of(version)) == version
            assert DeltaLog(view.store).version_at(time_of(version) + 1) == version
    for version in since if on_disk else ():
        name = f"_delta_log/{version:020d}.json"
        assert here.store.head(name).modified_ms == there.store.head(name).modified_ms


WAYS = [
    pytest.param(name, mode, data, id=f"{name}-{data}")
    for (name, mode), data in itertools.product(
        zip(CASES, itertools.cycle(MODES), strict=False), ("copy", "reference")
    )
]


@pytest.mark.parametrize(("case", "mode", "data"), WAYS)
def test_every_version_is_the_same_there_and_after_it_came_back(
    tmp_path: Path, case: str, mode: str, data: str
) -> None:
    story = begin(on_disk(tmp_path), CASES[case])
    assert story.rows.keys() == story.past.keys()
    tell(story, mode, data)


@pytest.mark.parametrize("case", ["percent-encoded folders", "vectors", "sidecars"])
def test_what_came_since_can_stay_where_it_is(tmp_path: Path, case: str) -> None:
    story = begin(on_disk(tmp_path), CASES[case])
    before = contents(tmp_path / "lake" / "old")
    tell(story, "writer-only", "reference", "reference")
    after = contents(tmp_path / "lake" / "old")
    assert [name for name in after.keys() - before.keys() if "_delta_log" not in name] == []


@pytest.mark.parametrize(
    ("case", "mode", "data"),
    [
        ("percent-encoded folders", "writer-only", "reference"),
        ("vectors", "reader-writer", "copy"),
        ("vectors", "writer-only", "reference"),
        ("sidecars", "reader-writer", "reference"),
        ("a log that begins at a checkpoint", "writer-only", "copy"),
    ],
)
def test_every_version_is_the_same_on_s3(
    tmp_path: Path, s3_bucket: S3Bucket, case: str, mode: str, data: str
) -> None:
    tell(begin(on_s3(tmp_path, s3_bucket), CASES[case]), mode, data)


@pytest.fixture(params=["disk", pytest.param("s3", marks=pytest.mark.versitygw)])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    if request.param == "disk":
        return on_disk(tmp_path)
    return on_s3(tmp_path, request.getfixturevalue("s3_bucket"))


@pytest.fixture
def disk(tmp_path: Path) -> Lake:
    return on_disk(tmp_path)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("mode", "data"), [("reader-writer", "copy"), ("writer-only", "reference")]
)
def test_a_shallow_clone_takes_its_files_along_and_comes_back_to_them(
    lake: Lake, mode: str, data: str
) -> None:
    """At home a file is removed by the path that it was added by."""
    history = History(Layout(absolute_paths=True, deletion_vectors="p", partitioned=True)).then(
        Append(3), DeleteRows(1), Checkpoint(), Append(2), DeleteRows(2), Append(1)
    )
    story = Story(lake, (lake.uri("old"), lake.uri("new")))
    store, canon = (open_store(lake.uri(name), lake.variables) for name in ("old", "canon"))
    for name, content in history.objects(canon.uri, with_data=True).items():
        (store if name.startswith("_delta_log/") else canon).put(name, content)
    date(store)
    story.remember(story.source, available(story.source, lake))
    assert all(path.startswith(("file:/", "s3:")) for path, _ in story.past[2].files)
    before = contents(lake.folder / "canon")
    tell(story, mode, data)
    assert contents(lake.folder / "canon") == before
    there = open_store(story.target, lake.variables).list("_adopted/")
    assert bool(list(there)) is (data == "copy")


@pytest.mark.parametrize("data", ["copy", "reference"])
def test_files_of_old_versions_that_were_vacuumed_stop_no_move(lake: Lake, data: str) -> None:
    layout = Layout(deletion_vectors="u", change_data=True)
    history = History(layout).then(
        Append(2), DeleteRows(1), Delete(2), Append(2), Change(), Checkpoint(), Append(2)
    )
    objects = history.objects(with_data=True)
    newest = naive.replay(objects)
    named = {unquote(row["path"]) for row in newest.files}
    store = open_store(lake.uri("old"), lake.variables)
    kept = {n: d for n, d in objects.items() if n.startswith("_delta_log/") or n in named}
    for name, content in kept.items():
        store.put(name, content)
    date(store)
    story = Story(lake, (lake.uri("old"), lake.uri("new")))
    story.remember(story.source, available(story.source, lake))
    assert 1 not in story.rows
    assert newest.version in story.rows
    tell(story, "writer-only", data)


def test_a_table_moves_again_and_again_and_keeps_its_history(lake: Lake) -> None:
    story = begin(lake, CASES["row tracking, timestamps, streams and domains"])
    for turn, (mode, data) in enumerate(
        (("writer-only", "copy"), ("reader-writer", "reference"), ("reader-writer", "copy"))
    ):
        target = lake.uri(f"new-{turn}")
        before = available(story.source, lake)
        story.homes = (*story.homes, target)
        story.moves.enable(story.source, target, mode=mode, data=data)
        Guest(open_store(target, lake.variables)).stay()
        newest = story.view(target).told(before.stop + 6)
        story.moves.disable(story.source)
        here = story.view(story.source)
        assert here.told(before.stop + 6) == newest
        for version in story.past:
            here.check(version, version, stock=False)
        story.remember(story.source, range(before.stop, before.stop + 9))
    assert available(story.source, lake) == range(9 + 3 * 9)


@pytest.mark.parametrize("data", ["copy", "reference"])
def test_where_the_source_has_commits_of_its_own_the_net_change_comes_back(
    lake: Lake, data: str
) -> None:
    history = CASES["row tracking, timestamps, streams and domains"]
    story = begin(lake, history)
    moves, begun = story.moves, history.newest_version + 1
    rule = ["cleaner:VACUUM"]
    moves.enable(story.source, story.target, mode="writer-only", data=data, rules=rule)
    Guest(open_store(story.target, lake.variables)).stay()
    story.remember(story.target, range(begun + 6, begun + 7))
    at_home = moves.resolve(story.source, app_name="cleaner", write=True)
    at_home.check_operation("VACUUM START")
    assert at_home.location == story.source
    log = DeltaLog(open_store(story.source, lake.variables))
    assert isinstance(log.commit(Transaction("VACUUM START", "own"), log.state()), Committed)

    moves.disable(story.source)
    # READY, the own commit, the net change, DROPPING, NORMAL.
    newest = begun + 5
    assert available(story.source, lake) == range(newest + 1)
    here, past = story.view(story.source).told(newest), story.past[begun + 6]
    assert (here.metadata, here.features, here.txns) == (past.metadata, past.features, past.txns)
    assert here.files.keys() == past.files.keys()
    assert story.view(story.source).rows(newest) == story.rows[begun + 6]
    mark = {row["baseRowId"]: row for row in here.files.values()}
    assert len(mark) == len(here.files)
    assert here.domains.keys() == past.domains.keys()
    highest = json.loads(here.domains["delta.rowTracking"])["rowIdHighWaterMark"]
    assert all(first + 3 <= highest + 1 for first in mark)


def test_where_the_source_s_own_commits_changed_data_nothing_is_done(disk: Lake) -> None:
    story = begin(disk, CASES["plain"])
    story.moves.enable(story.source, story.target, rules=["rogue:WRITE"])
    Guest(open_store(story.target)).stay()
    log = DeltaLog(open_store(story.source))
    assert append(log, "part-rogue") == 8
    before = contents(disk.folder)
    with pytest.raises(Diverged):
        story.moves.disable(story.source)
    assert contents(disk.folder) == before


# --- Tables that others wrote, with what they wrote there -----------------------------


def changes_by_delta_rs(lake: Lake, place: str, first: int, last: int) -> engines.Rows:
    """Read the change data feed with delta-rs; times of commits are left aside."""
    table = DeltaTable(place, storage_options=dict(lake.variables) or None)
    found = pa.table(table.load_cdf(starting_version=first, ending_version=last).read_all())
    columns = found.drop_columns("_commit_timestamp").to_pydict().values()
    return sorted(zip(*columns, strict=True), key=repr)


@pytest.mark.parametrize("mode", MODES)
def test_delta_rs_reads_changes_and_travels_in_time_at_both_ends(lake: Lake, mode: str) -> None:
    source, target = lake.uri("old"), lake.uri("new")
    options = dict(lake.variables) or None

    def opened(place: str) -> DeltaTable:
        return DeltaTable(place, storage_options=options)

    def load(place: str, *ids: int) -> None:
        rows = pa.table({"id": ids, "day": [f"2024-01-0{row % 3 + 1}" for row in ids]})
        feed = {"delta.enableChangeDataFeed": "true"}
        write_deltalake(
            place,
            rows,
            mode="append",
            partition_by=["day"],
            configuration=feed,
            storage_options=options,
        )

    load(source, 1, 2, 3)
    load(source, 4, 5, 6)
    opened(source).update({"id": "id + 100"}, predicate="id = 2")
    opened(source).delete("id = 5")
    opened(source).create_checkpoint()
    opened(source).optimize.compact()
    date(open_store(source, lake.variables))
    story = Story(lake, (source, target))
    before = available(source, lake)
    story.remember(source, before)
    assert story.by_delta_rs.keys() == story.past.keys()
    changes = changes_by_delta_rs(lake, source, 0, before.stop - 1)
    assert [row for row in changes if "delete" in row]

    story.moves.enable(source, target, mode=mode)
    there = story.view(target)
    for version in before:
        there.check(version, version, stock=True)
        if lake.root.startswith("file:"):
            travelled = opened(target)
            travelled.load_as_version(datetime.fromtimestamp(time_of(version) / 1000, tz=UTC))
            assert travelled.version() == version
    assert changes_by_delta_rs(lake, target, 0, before.stop - 1) == changes

    load(target, 7, 8)
    opened(target).update({"id": "id + 200"}, predicate="id = 3")
    opened(target).delete("id = 1")
    last = opened(target).version()
    story.remember(target, range(before.stop + 2, last + 1))
    since = changes_by_delta_rs(lake, target, before.stop + 2, last)
    story.moves.disable(source)
    here = story.view(source)
    for version in story.past:
        readable = mode == "writer-only" or version not in range(before.stop, last + 2)
        here.check(version, version, stock=readable)
    assert story.by_delta_rs[last] == here.rows_by_delta_rs(last + 2)
    assert changes_by_delta_rs(lake, source, 0, before.stop - 1) == changes
    assert changes_by_delta_rs(lake, source, before.stop + 2, last) == since
    load(source, 9)
    now = engines.by_delta_rs(source, options=lake.variables)
    assert len(now) == len(story.by_delta_rs[last]) + 1


RICH = {
    "delta.enableRowTracking": "true",
    "delta.enableInCommitTimestamps": "true",
    "delta.enableChangeDataFeed": "true",
    "delta.enableDeletionVectors": "true",
    "delta.columnMapping.mode": "name",
    "delta.checkpointPolicy": "v2",
    "delta.checkpointInterval": "3",
}


@dataclass(frozen=True)
class BySpark:
    """A table as delta-spark reads and writes it."""

    spark: SparkSession
    place: str

    def sql(self, text: str) -> None:
        self.spark.sql(text.format(t=f"delta.`{self.place}`"))

    def append(self, first: int, batch: int) -> None:
        """Append five rows, as the next batch of an application."""
        frame = self.spark.range(first, first + 5, 1, 1)
        (
            frame.selectExpr("id", "concat('n', id) AS name")
            .write.format("delta")
            .mode("append")
            .option("txnAppId", "loader")
            .option("txnVersion", batch)
            .save(self.place)
        )

    def rows(self, version: int) -> engines.Rows:
        """Read a version's rows, with the ids that they keep wherever they go."""
        opinions.forget(self.spark)
        frame = self.spark.read.format("delta").option("versionAsOf", version).load(self.place)
        found = frame.selectExpr("*", "_metadata.row_id", "_metadata.row_commit_version")
        return sorted((tuple(row) for row in found.collect()), key=repr)

    def changes(self, first: int, last: int) -> engines.Rows:
        opinions.forget(self.spark)
        reader = self.spark.read.format("delta").option("readChangeFeed", "true")
        found = reader.option("startingVersion", first).option("endingVersion", last)
        return sorted((tuple(row) for row in found.load(self.place).collect()), key=repr)


@pytest.fixture(scope="module")
def rich(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table that delta-spark wrote with nearly every feature that it has."""
    place = tmp_path_factory.mktemp("rich") / "table"
    table = BySpark(spark, str(place))
    properties = ", ".join(f"'{name}' = '{value}'" for name, value in RICH.items())
    table.sql(
        f"CREATE TABLE {{t}} (id BIGINT, name STRING) USING delta CLUSTER BY (id) "
        f"TBLPROPERTIES ({properties})"
    )
    table.append(0, 1)
    table.append(5, 2)
    table.sql("DELETE FROM {t} WHERE id = 3")
    table.sql("UPDATE {t} SET name = 'x' WHERE id = 7")
    table.append(10, 3)
    table.sql("DELETE FROM {t} WHERE id = 11")
    return place


@pytest.mark.parametrize(
    ("mode", "data"), [("writer-only", "copy"), ("reader-writer", "reference")]
)
def test_delta_spark_finds_every_version_row_and_change_of_a_rich_table(
    spark: SparkSession, rich: Path, disk: Lake, mode: str, data: str
) -> None:
    shutil.copytree(rich, disk.folder / "old")
    story = Story(disk, (disk.uri("old"), disk.uri("new")))
    here, there = BySpark(spark, story.source), BySpark(spark, story.target)
    before = available(story.source, disk)
    story.remember(story.source, before)
    # A JVM takes its time, so it is shown a version with vectors and the newest.
    shown = (4, before.stop - 1)
    rows = {version: here.rows(version) for version in shown}
    changes = here.changes(0, before.stop - 1)
    assert {row[-3] for row in changes} > {"delete", "update_preimage"}
    assert "delta.clustering" in story.past[before.stop - 1].domains

    story.moves.enable(story.source, story.target, mode=mode, data=data)
    view = story.view(story.target)
    for version in before:
        view.check(version, version, stock=data == "copy")
    assert {version: there.rows(version) for version in shown} == rows
    assert there.changes(0, before.stop - 1) == changes

    there.sql("UPDATE {t} SET name = 'y' WHERE id = 8")
    there.append(15, 4)
    there.sql("DELETE FROM {t} WHERE id IN (0, 16)")
    there.sql("OPTIMIZE {t} FULL")
    since = range(before.stop + 2, story.view(story.target).newest + 1)
    last = since.stop - 1
    story.remember(story.target, since)
    rows[last] = there.rows(last)
    later = there.changes(since.start, last)

    story.moves.disable(story.source)
    view = story.view(story.source)
    for version in story.past:
        view.check(version, version, stock=mode == "writer-only" or version < before.stop)
    assert {version: here.rows(version) for version in shown} == {v: rows[v] for v in shown}
    assert here.rows(last + 2) == rows[last]
    if mode == "writer-only":
        assert here.rows(last) == rows[last]
        assert here.changes(since.start, last) == later
    else:
        with pytest.raises(Exception, match="redirectReaderWriter"):
            here.rows(last)
    # Ids of rows go on where they were.
    here.append(20, 5)
    ids = [row[-2] for row in here.rows(last + 3)]
    assert len(set(ids)) == len(ids) == len(rows[last]) + 5


@pytest.mark.spark
def test_spark_changes_rows_in_files_that_stayed_at_the_source(
    request: pytest.FixtureRequest, lake: Lake
) -> None:
    """To set a deletion vector, Spark looks for the file by the very path in the log."""
    on_s3 = lake.root.startswith("s3:")
    spark: SparkSession = request.getfixturevalue("spark_s3" if on_s3 else "spark")
    story = Story(lake, (lake.uri("old"), lake.uri("new")))
    here, there = BySpark(spark, story.source), BySpark(spark, story.target)
    here.sql(
        "CREATE TABLE {t} (id BIGINT, name STRING) USING delta "
        "TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
    )
    here.append(0, 1)
    here.sql("DELETE FROM {t} WHERE id = 3")
    story.moves.enable(story.source, story.target, data="reference")
    there.sql("DELETE FROM {t} WHERE id = 1")
    there.sql("UPDATE {t} SET name = 'x' WHERE id = 2")
    wanted = [(0, "n0"), (2, "x"), (4, "n4")]
    assert engines.by_spark(spark, story.target) == wanted
    story.moves.disable(story.source)
    assert engines.by_spark(spark, story.source) == wanted
    assert engines.by_delta_rs(story.source, options=lake.variables) == wanted
