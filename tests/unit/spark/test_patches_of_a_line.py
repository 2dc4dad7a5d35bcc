"""Which methods are patched: all that this Spark has, and none may be missing by accident."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lakeferry.engines.spark.spark_versions import SPARK_LINES

patches = pytest.importorskip("lakeferry.spark.patches", exc_type=ImportError)


class DataFrame:
    def there(self) -> None: ...


def some(*names: str) -> list[object]:
    return [(DataFrame, name, lambda original: original) for name in names]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Patches of a class that lacks one method, in a line of Spark that may lack it."""
    line = replace(SPARK_LINES[-1], lacks=frozenset({"DataFrame.came_later"}))
    monkeypatch.setattr(patches, "spark_line", lambda: line)
    monkeypatch.setattr(patches, "delta_patches", list)
    return monkeypatch


def test_a_method_that_the_line_lacks_is_left_out(asked: pytest.MonkeyPatch) -> None:
    asked.setattr(patches, "reader_writer_patches", lambda: some("there", "came_later"))
    assert [name for _, name, _ in patches._patches()] == ["there"]


def test_a_method_that_a_release_has_earlier_is_patched(asked: pytest.MonkeyPatch) -> None:
    asked.setattr(patches, "reader_writer_patches", lambda: some("came_later"))
    asked.setattr(DataFrame, "came_later", DataFrame.there, raising=False)
    assert [name for _, name, _ in patches._patches()] == ["came_later"]


def test_any_other_method_must_be_there(asked: pytest.MonkeyPatch) -> None:
    asked.setattr(patches, "reader_writer_patches", lambda: some("renamed"))
    assert [name for _, name, _ in patches._patches()] == ["renamed"]


def test_what_a_line_may_lack_is_something_that_is_patched() -> None:
    """A name that is spelled wrongly would let a method go unpatched, or nothing at all."""
    known = {
        f"{owner.__name__}.{name}"
        for owner, name, _ in [*patches.reader_writer_patches(), *patches.delta_patches()]
    }
    assert frozenset().union(*(line.lacks for line in SPARK_LINES)) <= known
