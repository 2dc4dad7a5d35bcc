from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import lakeferry
from lakeferry.log import arrow_versions
from lakeferry.log.arrow_versions import first_not_below, numbers, to_rows

SOURCE = Path(lakeferry.__file__).parent
ONLY_HERE = "log/arrow_versions.py"


@pytest.fixture(params=["newest", "lowest"])
def version(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What this pyarrow has is used, or nothing of it."""
    if request.param == "lowest":
        for name in ("_HAS_MAPS_AS_DICTS", "_HAS_ARANGE", "_HAS_SEARCH_SORTED"):
            monkeypatch.setattr(arrow_versions, name, False)


TEXTS = pa.map_(pa.string(), pa.string())
NESTED = pa.struct([("tags", TEXTS), ("parts", pa.list_(pa.struct([("of", TEXTS)])))])


# Of two equal keys pyarrow warns.
@pytest.mark.filterwarnings("ignore:Encountered key")
@pytest.mark.usefixtures("version")
@pytest.mark.parametrize(
    ("values", "rows"),
    [
        (pa.array([[("a", "1"), ("b", None)], None, []], TEXTS), [{"a": "1", "b": None}, None, {}]),
        (pa.array([[("a", "1"), ("a", "2")]], TEXTS), [{"a": "2"}]),
        (pa.chunked_array([pa.array([[("a", "1")]], TEXTS)]), [{"a": "1"}]),
        (
            pa.array([{"tags": [("a", "1")], "parts": [{"of": [("b", "2")]}, None]}, None], NESTED),
            [{"tags": {"a": "1"}, "parts": [{"of": {"b": "2"}}, None]}, None],
        ),
        (
            pa.array([[("k", [("a", "1")])]], pa.map_(pa.string(), TEXTS)),
            [{"k": {"a": "1"}}],
        ),
        (pa.array([[[("a", "1")]]], pa.list_(TEXTS, 1)), [[{"a": "1"}]]),
        (pa.array([[1, 2]], pa.list_(pa.int64())), [[1, 2]]),
        (pa.table({"n": [1], "t": pa.array([[("a", "1")]], TEXTS)}), [{"n": 1, "t": {"a": "1"}}]),
        (pa.RecordBatch.from_pydict({"n": [1, 2]}), [{"n": 1}, {"n": 2}]),
    ],
)
def test_maps_are_dictionaries(values: pa.Array, rows: list[object]) -> None:
    assert to_rows(values) == rows


@pytest.mark.usefixtures("version")
@pytest.mark.parametrize("bounds", [(0, 0), (0, 3), (1 << 40, (1 << 40) + 2)])
def test_numbers_are_those_of_a_range(bounds: tuple[int, int]) -> None:
    assert numbers(*bounds).equals(pa.array(range(*bounds), pa.int64()))


@pytest.mark.usefixtures("version")
def test_text_is_found_where_its_bytes_would_be() -> None:
    # In UTF-16 the last two would be the other way round.
    names = pa.array(["", "a", "b", "b", "é", "\uffff", "\U0001f600"], pa.large_string())
    wanted = pa.array(["b", "aa", None, "\U0001f600", "\U0001f601", ""], pa.large_string())
    assert first_not_below(names, wanted).to_pylist() == [2, 2, None, 6, 7, 0]


@pytest.mark.usefixtures("version")
def test_what_is_found_has_an_explicit_type() -> None:
    nothing = pa.array([], pa.large_string())
    assert first_not_below(pa.array(["a"], pa.large_string()), nothing).type == pa.int64()


def newer_names(module: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield where a module uses something that only newer versions of pyarrow have.

    ``to_pandas`` has had its argument ``maps_as_pydicts`` for longer.
    """
    for node in ast.walk(module):
        if isinstance(node, ast.Attribute) and node.attr in arrow_versions.NEWER:
            yield node.lineno, node.attr
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") != "to_pandas":
            for keyword in node.keywords:
                if keyword.arg in arrow_versions.NEWER:
                    yield keyword.lineno, keyword.arg


def test_no_other_module_uses_what_only_newer_versions_have() -> None:
    paths = [*SOURCE.rglob("*.py")]
    found = {
        str(path.relative_to(SOURCE)): names
        for path in paths
        if (names := sorted(newer_names(ast.parse(path.read_text()))))
    }
    assert set(found) == {ONLY_HERE}
    assert {name for _, name in found[ONLY_HERE]} == set(arrow_versions.NEWER)


def test_newer_names_are_found_as_attributes_and_as_arguments() -> None:
    text = (
        "pa.arange(1)\ncolumn.to_pylist(maps_as_pydicts='lossy')\narange = 1\n"
        "table.to_pandas(maps_as_pydicts='strict')\n"
    )
    assert sorted(newer_names(ast.parse(text))) == [(1, "arange"), (2, "maps_as_pydicts")]
