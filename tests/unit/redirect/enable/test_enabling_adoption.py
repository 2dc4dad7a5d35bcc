"""Tables that name other tables' files: what is live there is live here, whichever way it moves."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pytest

from lakeferry.api.redirects import Redirects
from lakeferry.errors import NotEqual
from lakeferry.log.rewrite import Unchanged
from lakeferry.redirect import owned_file_removal
from lakeferry.redirect.enable import precopy
from lakeferry.storage import open_store
from lakeferry.table import DeltaLog
from tests.support.history import Append, History

PROTOCOL = '{"protocol":{"minReaderVersion":1,"minWriterVersion":2}}'
METADATA = (
    '{"metaData":{"id":"0d9a","format":{"provider":"parquet","options":{}},"schemaString":'
    '"{\\"type\\":\\"struct\\",\\"fields\\":[]}","partitionColumns":[],"configuration":{}}}'
)


def add(path: str) -> str:
    file = {"path": path, "partitionValues": {}, "size": 3, "modificationTime": 1}
    return json.dumps({"add": {**file, "dataChange": True}})


def remove(path: str) -> str:
    return json.dumps({"remove": {"path": path, "deletionTimestamp": 2, "dataChange": True}})


def commit(table: Path, *lines: str) -> None:
    """Commit as an engine does that asks nobody."""
    log = table / "_delta_log"
    log.mkdir(parents=True, exist_ok=True)
    (log / f"{len(list(log.glob('*.json'))):020d}.json").write_text("\n".join(lines) + "\n")


def live(table: Path) -> list[str]:
    """Return the names of the live files, without their folders."""
    paths = DeltaLog(open_store(str(table))).snapshot().files["path"].to_pylist()
    return sorted(path.rpartition("/")[2] for path in paths)


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """Return the folder of the table whose files others name."""
    folder = tmp_path / "base"
    folder.mkdir()
    for name in "abcd":
        (folder / name).write_bytes(b"abc")
    return folder


@pytest.fixture
def clone(base: Path, tmp_path: Path) -> Path:
    """Return a table that names four files there, each of which was removed but the last."""
    table = tmp_path / "clone"
    spelled = [f"file://{base}/a", f"{base}/b", f"file:{base}/c", f"file:{base}/d"]
    commit(table, PROTOCOL, METADATA, *map(add, spelled))
    commit(table, remove(f"file:{base}/a"), remove(f"file:{base}/b"), remove(f"{base}//c"))
    return table


@pytest.mark.parametrize("data", ["copy", "reference"])
def test_what_was_removed_under_another_spelling_stays_removed(
    clone: Path, tmp_path: Path, data: str
) -> None:
    target = tmp_path / "new"
    assert live(clone) == ["d"]
    with Redirects(engine="local") as moves:
        moves.enable(str(clone), str(target), data=data, mode="writer-only")
        assert live(target) == ["d"]
        moves.disable(str(clone), remove_target=True)
    assert live(clone) == ["d"]


def test_what_is_removed_there_is_removed_at_home_however_home_spells_it(
    base: Path, clone: Path, tmp_path: Path
) -> None:
    commit(clone, add(f"file://{base}/a"), add(f"{base}/b"))
    target = tmp_path / "new"
    with Redirects(engine="local") as moves:
        moves.enable(str(clone), str(target), mode="writer-only")
        paths = DeltaLog(open_store(str(target))).snapshot().files["path"].to_pylist()
        commit(target, *(remove(path) for path in paths if not path.endswith("/d")))
        moves.disable(str(clone))
    assert live(clone) == ["d"]


def test_a_table_that_moved_with_its_adopted_files_may_move_again(
    clone: Path, tmp_path: Path
) -> None:
    second, third = tmp_path / "second", tmp_path / "third"
    with Redirects(engine="local") as moves:
        moves.enable(str(clone), str(second), mode="writer-only")
        moves.enable(str(second), str(third), mode="writer-only")
        (adopted,) = DeltaLog(open_store(str(third))).snapshot().files["path"].to_pylist()
        assert (third / adopted).read_bytes() == b"abc"
        commit(third, remove(adopted))
        moves.disable(str(second), remove_target=True)
    assert live(second) == []


class Spelled(Unchanged):
    """Gives each spelling a name of its own, so that two of one path become two."""

    def __init__(self, root: str) -> None:
        """Take what the right one takes."""

    def __call__(self, paths: pa.Array) -> pa.Array:
        names: Iterable[str] = (path.encode().hex() for path in paths.to_pylist())
        return pa.array(list(names), pa.string())


def test_names_under_which_something_else_is_cancelled_never_pass(
    clone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {path: path.read_bytes() for path in clone.rglob("*.json")}
    monkeypatch.setattr(precopy, "Adopted", Spelled)
    with Redirects(engine="local") as moves:
        with pytest.raises(NotEqual, match="differs from the log"):
            moves.enable(str(clone), str(tmp_path / "new"))
        moves.cancel(str(clone))
    assert {path: path.read_bytes() for path in clone.rglob("*.json")} == before


def test_a_move_is_taken_back_without_following_links(tmp_path: Path) -> None:
    stores = old, new = tuple(open_store(str(tmp_path / name)) for name in ("old", "new"))
    for name, content in History().then(Append(1)).objects(old.uri).items():
        for store in stores:
            store.put(name, content)
    (file,) = [entry.path for entry in old.list("") if not entry.path.startswith("_delta_log/")]
    new.delete_many([file])
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / f"{1:020d}.json").write_text("of somebody")
    commit(tmp_path / "old", add(f"p=1/{file}"))
    old.put(f"p=1/{file}", b"abc")
    (tmp_path / "new" / "p=1").symlink_to(tmp_path / "old" / "p=1")
    (tmp_path / "new" / file).symlink_to(tmp_path / "old" / file)
    (tmp_path / "new/_delta_log/link").symlink_to(precious)
    (tmp_path / "new/_delta_log/_lakeferry").mkdir()
    (tmp_path / "new/_delta_log/_lakeferry/link").symlink_to(precious)
    before = {entry.path for entry in old.list("")}
    links = ["_delta_log/link", "p=1"]
    old_log, new_log = DeltaLog(old), DeltaLog(new)
    kept = owned_file_removal.FileRemoval().remove_copies(
        old_log, new_log, lambda: True, lambda: True
    )
    assert list(kept) == links
    assert {entry.path for entry in old.list("")} == before
    assert [path.name for path in precious.iterdir()] == [f"{1:020d}.json"]
    # What isn't ours stays: nobody has brought a link there.
    assert list(new.entries("")) == ["_delta_log/_lakeferry/link", *links]
