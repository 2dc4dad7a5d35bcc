from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from lakeferry.api.notebook_progress import NotebookProgress, progress_in_notebook
from lakeferry.engine import Volume, unobserved


class Shown:
    """A display that keeps what it was given, and a clock."""

    def __init__(self) -> None:
        self.states: list[dict[str, str]] = []
        self.displays = 0
        self.now = 0.0

    def __call__(self, data: dict[str, str]) -> Shown:
        self.displays += 1
        self.states.append(data)
        return self

    def update(self, data: dict[str, str], *, raw: bool) -> None:
        assert raw
        self.states.append(data)

    def display(self, data: dict[str, str], *, raw: bool, display_id: bool) -> Shown:
        assert raw
        assert display_id
        return self(data)


def as_kernel(monkeypatch: pytest.MonkeyPatch, shown: Shown, kernel: object) -> None:
    ipython = SimpleNamespace(
        get_ipython=lambda: SimpleNamespace(kernel=kernel),
        display=SimpleNamespace(display=shown.display),
    )
    monkeypatch.setitem(sys.modules, "IPython", ipython)


def test_one_display_is_updated_and_keeps_what_was_observed_last() -> None:
    shown = Shown()
    progress = NotebookProgress(shown, lambda: shown.now)
    for copied in range(101):
        shown.now = copied / 100
        progress.observe("copying <data>", Volume(copied, copied), Volume(100, 100))
    progress.end()
    assert shown.displays == 1
    assert 5 <= len(shown.states) <= 7
    last = shown.states[-1]
    assert 'value="1.0000"' in last["text/html"]
    assert "copying &lt;data&gt;" in last["text/html"]
    assert last["text/plain"] == (
        "copying <data>: 100 bytes of 100 bytes, 100 of 100 files, 100 bytes/s (0:00:01)"
    )
    progress.end()
    assert shown.states[-1] is last


def test_work_without_parts_to_count_is_done() -> None:
    shown = Shown()
    NotebookProgress(shown, lambda: shown.now).observe("listing", 0, 0)
    assert shown.states[0]["text/plain"] == "listing: 0 of 0 (0:00:00)"


def test_of_very_many_parts_some_are_shown() -> None:
    shown = Shown()
    progress = NotebookProgress(shown, lambda: shown.now)
    for number in range(10_000):
        shown.now += 1
        progress.observe(f"table {number}", 1, 1)
    progress.observe("last", 1, 2)
    progress.end()
    text = shown.states[-1]["text/plain"]
    assert "last: 1 of 2" in text
    assert "and 9,989 more parts" in text
    assert len(shown.states[-1]["text/html"]) < 6_000


def test_only_a_kernel_shows_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = Shown()
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    with progress_in_notebook(unobserved) as observer:
        assert observer is unobserved
    as_kernel(monkeypatch, shown, None)
    with progress_in_notebook(unobserved) as observer:
        assert observer is unobserved
    as_kernel(monkeypatch, shown, object())
    with progress_in_notebook(unobserved) as observer:
        observer("working", 1, 3)
        observer("working", 2, 3)
    assert [state["text/plain"] for state in shown.states] == [
        "working: 1 of 3 (0:00:00)",
        "working: 2 of 3 (0:00:00)",
    ]


def test_a_caller_with_an_observer_gets_the_progress_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = Shown()
    as_kernel(monkeypatch, shown, object())
    seen: list[tuple[str, int, int]] = []

    def own(what: str, done: int, total: int) -> None:
        seen.append((what, done, total))

    with progress_in_notebook(own) as observer:
        observer("working", 1, 3)
    assert seen == [("working", 1, 3)]
    assert shown.states == []


def test_an_error_leaves_how_far_it_came(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = Shown()
    as_kernel(monkeypatch, shown, object())

    def fail() -> None:
        with progress_in_notebook(unobserved) as observer:
            observer("working", 1, 3)
            observer("working", 2, 3)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert shown.states[-1]["text/plain"].startswith("working: 2 of 3")
