"""A job's work: the tables that changed, each on its own, and what may move a name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote

import pytest

from lakeferry.errors import (
    InvalidInput,
    LakeferryError,
    MissingFile,
    ObjectNotFound,
    StorageUnavailable,
)
from lakeferry.export.job_queue import Job, JobTable
from lakeferry.server.lakefs.export_jobs import Exporting, JobFailure
from lakeferry.storage.lakefs import ObjectChange
from tests.support.stores import DictStore

FILES = {
    "_lakefs_tables/a.yaml": b"name: a\ntype: delta\npath: t/a\n",
    "_lakefs_tables/b.yaml": b"name: b b\ntype: delta\npath: t/b b\n",
    "t/a/1": b"1",
    "t/b b/1": b"1",
    # Not below t/a, though it begins like it.
    "t/ab/1": b"1",
}
Objects = Mapping[str, bytes]


@dataclass
class Repository:
    """The commits of one branch, ``main``, the oldest first; and everything that was exported."""

    commits: list[dict[str, bytes]] = field(default_factory=list)
    exported: list[dict[str, object]] = field(default_factory=list)
    broken: dict[str, Exception] = field(default_factory=dict)
    default: str = "main"

    def commit(self, changes: Mapping[str, bytes | None]) -> str:
        """Add a commit; ``None`` takes an object away."""
        now = {**(self.commits[-1] if self.commits else {}), **changes}
        self.commits.append({path: data for path, data in now.items() if data is not None})
        return f"c{len(self.commits) - 1}"

    def find(self, ref: str) -> Objects:
        name, _, back = ref.partition("~")
        last = len(self.commits) - 1
        number = last if name == "main@" else int(name.removeprefix("c"))
        number -= int(back or 0)
        if not 0 <= number <= last:
            raise ObjectNotFound(f"no ref {ref}")
        return self.commits[number]

    def open_ref(self, uri: str) -> Ref:
        repository, _, ref = unquote(uri.removeprefix("lakefs://")).partition("/")
        assert repository == "sales"
        return Ref(self, ref)

    def export(
        self, uri: str, *, table: str, ref: str, keep: int | None, register: str | None
    ) -> Done:
        self.exported.append(
            {"uri": uri, "table": table, "ref": ref, "keep": keep, "register": register}
        )
        if table in self.broken:
            raise self.broken[table]
        return Done(f"s3://blocks/_lakefs/exported/{ref}/{table}", True)

    def run(self, commit: str, kind: str = "post-commit", ref: str = "main") -> list[JobFailure]:
        self.exported.clear()
        exporting = Exporting(self.open_ref, lambda _: self.default, self.export)
        self.result = exporting.run(Job("id", kind, "sales", ref, commit, 0, ""))
        return list(self.result.failures)

    @property
    def tables(self) -> list[object]:
        return [each["table"] for each in self.exported]


class Ref(DictStore):
    """One commit as a store that knows what is different from another."""

    def __init__(self, repository: Repository, ref: str) -> None:
        super().__init__(repository.find(ref))
        self._repository = repository

    def changes(self, since: str, prefix: str = "", *, limit: int) -> list[ObjectChange]:
        before, now = self._repository.find(since), self.objects
        found = [
            ObjectChange(
                "added" if path not in before else "removed" if path not in now else "changed", path
            )
            for path in sorted({*before, *now})
            if path.startswith(prefix) and before.get(path) != now.get(path)
        ]
        return found[:limit]


@dataclass(frozen=True)
class Done:
    location: str
    changed: bool


@pytest.fixture
def repository() -> Repository:
    found = Repository()
    found.commit({})
    found.commit(FILES)
    return found


def test_only_what_the_commit_changed_is_exported(repository: Repository) -> None:
    assert repository.run(repository.commit({"t/b b/2": b"2"})) == []
    (exported,) = repository.result.tables
    assert exported == JobTable("b b", "s3://blocks/_lakefs/exported/main/b b", changed=True)
    assert repository.exported == [
        {
            "uri": "lakefs://sales/c2/t/b%20b",
            "table": "b b",
            "ref": "main",
            "keep": None,
            "register": None,
        }
    ]
    assert repository.run(repository.commit({"t/ab/1": b"2", "readme": b""})) == []
    assert repository.exported == []
    assert repository.run(repository.commit({"t/a/1": None, "t/a/2": b""})) == []
    assert repository.tables == ["a"]


def test_a_table_whose_descriptor_changed_counts_as_changed(repository: Repository) -> None:
    renamed = FILES["_lakefs_tables/a.yaml"].replace(b"name: a", b"name: c")
    repository.run(repository.commit({"_lakefs_tables/a.yaml": renamed}))
    assert repository.tables == ["c"]
    repository.run(repository.commit({"_lakefs_tables/c.yaml": FILES["_lakefs_tables/a.yaml"]}))
    assert repository.tables == ["a"]
    repository.run(repository.commit({"_lakefs_tables/c.yaml": None}))
    assert repository.tables == []


def test_a_job_is_about_its_own_commit_and_not_about_what_came_after(
    repository: Repository,
) -> None:
    job = repository.commit({"t/a/2": b"2"})
    repository.commit({"t/b b/2": b"2", "_lakefs_tables/a.yaml": None})
    repository.run(job)
    assert [each["uri"] for each in repository.exported] == ["lakefs://sales/c2/t/a"]


def test_of_a_tag_all_tables_are_exported(repository: Repository) -> None:
    commit = repository.commit({"readme": b""})
    repository.run(commit, "post-create-tag", "v1.0")
    assert repository.tables == ["a", "b b"]
    assert {each["ref"] for each in repository.exported} == {"v1.0"}


def test_a_commit_without_a_parent_has_all_of_its_tables_exported() -> None:
    repository = Repository()
    repository.run(repository.commit(FILES))
    assert repository.tables == ["a", "b b"]


def test_a_merge_is_compared_with_the_branch_that_it_went_into(repository: Repository) -> None:
    repository.run(repository.commit({"t/a/9": b""}), "post-merge")
    assert repository.tables == ["a"]


@pytest.mark.parametrize(
    ("error", "is_final"),
    [
        (StorageUnavailable("no answer"), False),
        (MissingFile("gone"), True),
        (InvalidInput("no"), True),
        (ZeroDivisionError("oh"), False),
    ],
)
def test_one_table_that_fails_does_not_stop_the_others(
    repository: Repository, error: Exception, is_final: bool
) -> None:
    repository.broken["a"] = error
    (failure,) = repository.run(repository.commit({"t/a/2": b"", "t/b b/2": b""}))
    assert repository.tables == ["a", "b b"]
    assert (failure.what, failure.is_final) == ("a", is_final)
    assert str(error) in str(failure.as_document()["message"])


def test_a_bad_descriptor_is_told_by_the_commit_that_brought_it_and_stops_nothing(
    repository: Repository,
) -> None:
    bad = repository.commit(
        {
            "_lakefs_tables/bad.yaml": b"name: [",
            "_lakefs_tables/large.yaml": b"#" * 100_000,
            "_lakefs_tables/ice.yaml": b"type: iceberg",
            "t/a/2": b"",
        }
    )
    failures = repository.run(bad)
    assert [failure.what for failure in failures] == [
        "_lakefs_tables/bad.yaml",
        "_lakefs_tables/large.yaml",
    ]
    assert all(failure.is_final for failure in failures)
    assert repository.tables == ["a"]
    assert repository.run(repository.commit({"t/a/3": b""})) == []
    assert repository.tables == ["a"]


def test_a_repository_that_is_gone_is_the_failure_of_the_whole_job(repository: Repository) -> None:
    with pytest.raises(LakeferryError):
        repository.run("c9")


# --- Names and older exports --------------------------------------------------------


def with_name(repository: Repository) -> None:
    described = FILES["_lakefs_tables/a.yaml"] + b"register: sql:x.y.a\nkeep: 3\n"
    repository.commit({"_lakefs_tables/a.yaml": described})


def kept_and_named(repository: Repository) -> list[tuple[object, object]]:
    return [(each["keep"], each["register"]) for each in repository.exported]


def test_a_name_follows_the_default_branch_and_no_other_ref(repository: Repository) -> None:
    with_name(repository)
    commit = repository.commit({"t/a/2": b""})
    repository.run(commit)
    assert kept_and_named(repository) == [(3, "sql:x.y.a")]
    repository.run(commit, "post-create-tag", "v1")
    assert (3, None) in kept_and_named(repository)
    repository.default = "trunk"
    repository.run(commit)
    assert kept_and_named(repository) == [(3, None)]


def test_a_commit_that_comes_late_moves_no_name_and_prunes_nothing(repository: Repository) -> None:
    with_name(repository)
    late = repository.commit({"t/a/2": b"2"})
    newer = repository.commit({"t/a/3": b"3"})
    for commit, wanted in ((newer, (3, "sql:x.y.a")), (late, (None, None))):
        repository.run(commit)
        assert kept_and_named(repository) == [wanted]
    # What came after it and is about other tables doesn't count.
    repository.commit({"t/b b/9": b""})
    repository.run(newer)
    assert kept_and_named(repository) == [(3, "sql:x.y.a")]
