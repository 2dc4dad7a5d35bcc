"""What the stub of a Spark Connect session remembers; plans themselves are tested in compat."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.redirected_tables import create

connect_session = pytest.importorskip("lakeferry.spark.connect_session", exc_type=ImportError)


class Statement:
    """A request that is a statement, as PySpark's messages are."""

    DESCRIPTOR = SimpleNamespace(full_name="spark.connect.SQL", fields_by_name={"query": None})

    def __init__(self, query: str = "") -> None:
        self.query = query

    def CopyFrom(self, other: Statement) -> None:  # noqa: N802 - protobuf's name
        """Become equal to another one."""
        self.query = other.query

    def ListFields(self) -> list[Any]:  # noqa: N802 - protobuf's name
        """Return no message inside."""
        return []


class Session:
    """A session whose server has no tables in its catalog."""

    def __init__(self) -> None:
        self.conf: dict[str, str] = {}

    def sql(self, text: str, _: Any = None) -> Any:
        """Return the rows of a statement."""
        here = {"catalog": "spark_catalog", "namespace": "default"}
        rows = [here] if "current_catalog()" in text else []
        return SimpleNamespace(collect=lambda: rows)


def test_the_places_of_views_without_a_text_are_remembered(tmp_path: Path) -> None:
    first, second = (create(tmp_path, name).source for name in ("first", "second"))
    sent: list[str] = []
    server = SimpleNamespace(ExecutePlan=lambda request: sent.append(request.query))
    stub = connect_session.FollowingStub(Session(), server, {})
    text = f"CREATE TEMP VIEW V USING delta OPTIONS (path '{first.as_uri()}')"
    stub.ExecutePlan(Statement(text))
    assert sent == [text]
    assert stub.client().views == {"v": {first.as_uri()}}
    stub.ExecutePlan(Statement(text.replace(first.as_uri(), second.as_uri())))
    assert stub.client().views == {"v": {second.as_uri()}}


def test_variables_in_the_values_of_variables_are_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session()
    session.conf |= {"place": "${spark:schema}.old", "schema": "s", "circle": "${circle}"}
    client = connect_session.ConnectClient(session, {})
    monkeypatch.setattr(client.server, "look_up", lambda _: None)
    parsed = client._parsed("SELECT '${circle}', '${unknown}' FROM ${place}")
    assert parsed.text == "SELECT '${circle}', '${unknown}' FROM s.old"
