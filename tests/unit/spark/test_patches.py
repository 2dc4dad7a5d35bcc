"""PySpark's methods are patched all together, or none of them is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest

from lakeferry.spark import patches, session_clients


class Settings(dict[str, str]):
    """The settings of a session, in Python's way and in the JVM's."""

    def set(self, key: str, value: str) -> None:
        self[key] = value

    def unset(self, key: str) -> None:
        self.pop(key, None)

    def contains(self, key: str) -> bool:
        return key in self


class InJvm:
    """The JVM's side of a session."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def conf(self) -> Settings:
        return self._settings


class Session:
    """As much of a session as an installation needs."""

    def __init__(self) -> None:
        self.conf = Settings()
        self._jsparkSession = InJvm(self.conf)


class Keeping(type):
    """Classes that refuse to get a method back, until ``refuses`` is empty."""

    refuses: ClassVar[set[str]] = set()

    def __setattr__(cls, name: str, value: Any) -> None:
        if name in Keeping.refuses and not hasattr(value, "patched"):
            raise RuntimeError(f"{name} stays")
        super().__setattr__(name, value)


class Reader:
    def load(self) -> str:
        return "stock"


class Table(metaclass=Keeping):
    def detail(self) -> str:
        return "stock"


class Writer:
    def save(self) -> str:
        return "stock"


def patched(original: Callable[..., str]) -> Callable[..., str]:
    def method(self: Any) -> str:
        return f"patched {original(self)}"

    method.patched = True  # type: ignore[attr-defined]
    return method


def fails(original: Callable[..., str]) -> Callable[..., str]:
    raise ValueError("this version has another method")


def found() -> list[str]:
    return [Reader().load(), Table().detail(), Writer().save()]


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No other test's sessions, and classes of ours instead of PySpark's."""
    session_clients.client_options.clear()
    patches._withdraw()
    monkeypatch.setattr(
        patches,
        "_patches",
        lambda: [(Reader, "load", patched), (Table, "detail", patched), (Writer, "save", patched)],
    )
    yield
    Keeping.refuses.clear()
    session_clients.client_options.clear()
    patches._withdraw()


def broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        patches,
        "_patches",
        lambda: [(Reader, "load", patched), (Table, "detail", patched), (Writer, "save", fails)],
    )


def test_an_installation_that_fails_midway_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    session: Any = Session()
    with monkeypatch.context() as context:
        broken(context)
        with pytest.raises(ValueError, match="another method"):
            patches.add_client(session, {})
    assert found() == ["stock"] * 3
    assert not session_clients.client_options
    patches.add_client(session, {})
    assert found() == ["patched stock"] * 3


def test_what_could_not_be_restored_is_not_taken_for_an_installation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session: Any = Session()
    Keeping.refuses.add("detail")
    with monkeypatch.context() as context:
        broken(context)
        with pytest.raises(ValueError, match="another method") as failed:
            patches.add_client(session, {})
    assert "Table.detail" in "".join(failed.value.__notes__)
    assert found() == ["stock", "patched stock", "stock"]
    with pytest.raises(RuntimeError, match="detail stays"):
        patches.add_client(session, {})
    assert not session_clients.client_options
    Keeping.refuses.clear()
    patches.add_client(session, {})
    assert found() == ["patched stock"] * 3
    patches.remove_client(session)
    assert found() == ["stock"] * 3


def test_a_removal_that_fails_midway_is_completed_by_the_next_installation() -> None:
    first: Any = Session()
    patches.add_client(first, {})
    Keeping.refuses.add("detail")
    with pytest.raises(RuntimeError, match="detail stays"):
        patches.remove_client(first)
    assert found() == ["stock", "patched stock", "stock"]
    Keeping.refuses.clear()
    patches.add_client(first, {})
    assert found() == ["patched stock"] * 3


def test_a_session_that_takes_no_setting_has_no_client(monkeypatch: pytest.MonkeyPatch) -> None:
    session: Any = Session()

    def stopped(key: str, value: str) -> None:
        raise RuntimeError("the session was stopped")

    monkeypatch.setattr(session.conf, "set", stopped)
    with pytest.raises(RuntimeError, match="was stopped"):
        patches.add_client(session, {})
    assert found() == ["stock"] * 3
    assert not session_clients.client_options
