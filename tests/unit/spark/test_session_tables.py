"""Names between double quotes, in sessions that have the settings for them."""

from __future__ import annotations

from typing import Any

import pytest

from lakeferry.spark.session_tables import QUOTED_NAMES, SessionTables
from lakeferry.spark.sql_tokens import with_backquotes

connect_client = pytest.importorskip("lakeferry.spark.connect_client", exc_type=ImportError)


class Session:
    """A session with some settings; no other is asked for, and no statement."""

    def __init__(self, *values: str) -> None:
        self.conf = dict(zip(QUOTED_NAMES, values, strict=True))


KINDS = [SessionTables, lambda session: connect_client.ConnectClient(session, {})]


@pytest.mark.parametrize("kind", KINDS, ids=["classic", "connect"])
@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (("true", "true"), ("default", 'a "b"')),
        (("false", "true"), None),
        (("true", "false"), None),
    ],
)
def test_double_quotes_are_around_names_if_the_session_says_so(
    kind: Any, values: tuple[str, str], expected: tuple[str, ...] | None
) -> None:
    assert kind(Session(*values)).parts_of('"default"."a ""b"""') == expected


@pytest.mark.parametrize(("value", "expected"), [("true", ["s.old"]), ("false", [])])
def test_a_statement_through_connect_names_tables_between_double_quotes(
    monkeypatch: pytest.MonkeyPatch, value: str, expected: list[str]
) -> None:
    client = connect_client.ConnectClient(Session("true", value), {})
    monkeypatch.setattr(client.server, "look_up", lambda _: None)
    parsed = client._parsed('SELECT \'"\', "x" FROM "s"."old"')
    found = [".".join(name) for each in parsed.statement.relations for name in each.names]
    assert found == expected


def test_only_names_get_backquotes() -> None:
    text = 'SELECT \'"a"\', "b`c" -- "d"\nFROM "e".`"f"`'
    assert with_backquotes(text) == 'SELECT \'"a"\', `b``c` -- "d"\nFROM `e`.`"f"`'
