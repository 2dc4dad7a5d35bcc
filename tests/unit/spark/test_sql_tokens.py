"""Words, names and literals of Spark's SQL, and how places are spelled in it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakeferry.spark.sql_tokens import (
    TokenKind,
    parse_name,
    path_of,
    spell_string,
    spell_table,
    tokens,
)


def test_quotes_in_places_are_spelled_so_that_they_stay() -> None:
    place = "/it's `so`\\"
    table = spell_table(place)
    assert path_of(parse_name(table) or ()) == place
    (token,) = tokens(spell_string(place))
    assert (token.kind, token.value) == (TokenKind.STRING, place)


@given(st.text(st.characters(codec="utf-8", exclude_characters="\0")))
def test_any_place_survives_being_spelled(place: str) -> None:
    assert path_of(parse_name(spell_table(f"/{place}")) or ()) == f"/{place}"
    (token,) = tokens(spell_string(place))
    assert token.value == place


@given(st.text(st.sampled_from("ab '\"`\\-/*.,();\n$rR1delta"), max_size=40))
def test_any_text_is_taken_apart_without_loss(text: str) -> None:
    found = tokens(text)
    ends = [0, *(token.end for token in found)]
    starts = [*(token.start for token in found), len(text)]
    assert all(end <= start for end, start in zip(ends, starts, strict=True))
    assert all(token.start < token.end for token in found)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("t", ("t",)),
        ("db.`a.b`", ("db", "a.b")),
        ("delta.`/x``y`", ("delta", "/x`y")),
        ("a b", None),
        ("a.", None),
        (".a", None),
        ("f(x)", None),
        ("", None),
    ],
)
def test_names_are_parsed(text: str, parts: tuple[str, ...] | None) -> None:
    assert parse_name(text) == parts
