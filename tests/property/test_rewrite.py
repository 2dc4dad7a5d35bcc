"""Rewriting paths touches paths alone, and the way back restores every byte."""

from __future__ import annotations

import json
import string
import uuid
from dataclasses import replace
from random import Random
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from lakeferry.log import file_actions, file_identity
from lakeferry.log.deletion_vectors import z85_encode
from lakeferry.log.rewrite import (
    SPELLED,
    Absolute,
    Listed,
    Relative,
    rewrite_batch,
    rewrite_lines,
    rewrite_vectors,
)

ROOTS = st.sampled_from(
    [
        "s3://bucket/some/table",
        "file:///data/ta%20ble",
        "abfss://c@a.dfs.example/x.y+z/",
        "gs://b/1",
    ]
)
NAMES = st.text(string.ascii_letters + '%-_=./ äß日\U0001f600"\\\t', min_size=1, max_size=20)
FOLDERS = st.sampled_from(["", "ab", "a/b", "with space", "p%q", "ü"])


@st.composite
def paths(draw: st.DrawFn, root: str) -> str:
    """A path as a log may have it: relative, elsewhere, or absolute and below the root."""
    name = draw(NAMES).lstrip("/") or "x"
    below = root.rstrip("/")
    if below.startswith("s3://") and draw(st.booleans()):
        below = "s3a" + below[2:]
    start = draw(st.sampled_from(["", "", "", "s3://other/t/", "/abs/", f"{below}/", f"{below}x/"]))
    return start + name


def spelled(text: str, random: Random) -> str:
    """The text as a JSON string, some of its characters escaped in one of the possible ways."""
    parts = []
    for character in text:
        plain = json.dumps(character, ensure_ascii=False)[1:-1]
        units = character.encode("utf-16-be")
        code = "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))
        forms = [plain, plain, plain, code, code.upper().replace("U", "u")]
        if character == "/":
            forms.append("\\/")
        parts.append(random.choice(forms))
    return f'"{"".join(parts)}"'


def written(value: Any, random: Random) -> str:
    """The value as JSON, with free white space, order and escapes."""
    if isinstance(value, dict):
        items = list(value.items())
        random.shuffle(items)
        members = []
        for key, item in items:
            spaces = [random.choice(["", " ", "\t"]) for _ in range(3)]
            name, text = spelled(key, random), written(item, random)
            members.append(f"{spaces[0]}{name}{spaces[1]}:{spaces[2]}{text}")
        return "{" + ",".join(members) + random.choice(["", " "]) + "}"
    if isinstance(value, str):
        return spelled(value, random)
    return json.dumps(value)


@st.composite
def vectors(draw: st.DrawFn, root: str) -> dict[str, Any]:
    encoded = z85_encode(draw(st.binary(min_size=16, max_size=16)))
    name = f"deletion_vector_{uuid.UUID(bytes=draw(st.binary(min_size=16, max_size=16)))}.bin"
    kind, where = draw(
        st.sampled_from(
            [
                ("u", draw(FOLDERS) + encoded),
                ("i", encoded),
                ("p", f"{root.rstrip('/')}/{name}"),
                ("p", f"{root.rstrip('/')}/other.bin"),
                ("p", f"s3://elsewhere/{name}"),
            ]
        )
    )
    return {"storageType": kind, "pathOrInlineDv": where, "offset": 1, "sizeInBytes": 40}


@st.composite
def actions(draw: st.DrawFn, root: str) -> dict[str, Any]:
    name = draw(st.sampled_from(["add", "add", "remove", "cdc", "commitInfo", "future"]))
    value: dict[str, Any] = {"path": draw(paths(root)), "size": draw(st.integers(0, 2**53))}
    if draw(st.booleans()):
        value["deletionVector"] = draw(st.one_of(st.none(), vectors(root)))
    if draw(st.booleans()):
        value["tags"] = {"path": draw(NAMES), "deletionVector": "x"}
    if draw(st.booleans()):
        value["stats"] = json.dumps({"path": draw(NAMES)})
    if draw(st.booleans()):
        value[SPELLED] = draw(st.sampled_from(["x", value["path"]]))
    return {name: value}


@st.composite
def logs(draw: st.DrawFn) -> tuple[str, bytes]:
    root = draw(ROOTS)
    random = draw(st.randoms(use_true_random=False))
    lines = []
    for action in draw(st.lists(actions(root), max_size=4)):
        usual = json.dumps(action, separators=(",", ":"), ensure_ascii=False)
        lines.append(written(action, random) if draw(st.booleans()) else usual)
    ends = draw(st.sampled_from(["\n", "\r\n", "\n\n"]))
    return root, (ends.join(lines) + draw(st.sampled_from(["", "\n", "\n \n"]))).encode()


@given(logs())
def test_the_way_back_restores_every_byte(log: tuple[str, bytes]) -> None:
    root, data = log
    assert rewrite_lines(rewrite_lines(data, Absolute(root)), Relative(root)) == data


@given(logs())
def test_the_usual_layout_is_only_a_shorter_way(log: tuple[str, bytes]) -> None:
    root, data = log
    # White space in front is enough to leave the usual layout.
    spaced = b"\n".join(b" " + line for line in data.split(b"\n"))
    expected = b"\n".join(b" " + line for line in rewrite_lines(data, Absolute(root)).split(b"\n"))
    assert rewrite_lines(spaced, Absolute(root)) == expected


@given(logs())
def test_every_path_is_absolute_and_nothing_else_changes(log: tuple[str, bytes]) -> None:
    root, data = log
    before = [json.loads(line) for line in data.split(b"\n") if line.strip()]
    rewritten = rewrite_lines(data, Absolute(root))
    after = [json.loads(line) for line in rewritten.split(b"\n") if line.strip()]
    assert rewritten.count(b"\n") == data.count(b"\n")
    assert len(before) == len(after)
    for old, new in zip(before, after, strict=True):
        assert list(old) == list(new)
        (name,) = old
        if name not in ("add", "remove", "cdc"):
            assert old == new
            continue
        assert file_identity.is_absolute_path(new[name]["path"])
        _same_place(old[name]["path"], new[name]["path"], root)
        if not file_identity.is_absolute_path(old[name]["path"]) and SPELLED not in old[name]:
            # A prefix is put in front and the token's own text stays: nothing needs keeping.
            assert SPELLED not in new[name]
        vector, changed = old[name].get("deletionVector"), new[name].get("deletionVector")
        if vector:
            assert changed["storageType"] == {"u": "p"}.get(
                vector["storageType"], vector["storageType"]
            )
            assert changed["storageType"] == "i" or file_identity.is_absolute_path(
                changed["pathOrInlineDv"]
            )
        assert _without_paths(old[name]) == _without_paths(new[name])


def _same_place(old: str, new: str, root: str) -> None:
    """The two spellings name one file."""
    absolute = old if file_identity.is_absolute_path(old) else f"{root.rstrip('/')}/{old}"
    assert file_identity.canonical_path(absolute, root) == file_identity.canonical_path(new, root)


def _without_paths(value: dict[str, Any]) -> dict[str, Any]:
    rest = {key: item for key, item in value.items() if key not in ("path", SPELLED)}
    if rest.get("deletionVector"):
        rest["deletionVector"] = {
            key: item
            for key, item in rest["deletionVector"].items()
            if key not in ("storageType", "pathOrInlineDv", SPELLED)
        }
    return rest


@given(st.data(), ROOTS)
def test_batches_and_lines_agree(data: st.DataObject, root: str) -> None:
    values = [data.draw(actions(root)) for _ in range(data.draw(st.integers(0, 5)))]
    adds = [value.get("add") for value in values]
    for add in adds:
        if add is not None:
            add.setdefault("deletionVector", None)
    kind = pa.struct([file_actions.ADD.field(name) for name in ("path", "size", "deletionVector")])
    batch = pa.RecordBatch.from_arrays([pa.array(adds, kind)], ["add"])
    rewritten = rewrite_batch(batch, Absolute(root))
    assert rewritten.schema == batch.schema
    lines = rewrite_lines("\n".join(map(json.dumps, values)).encode(), Absolute(root))
    for line, row in zip(lines.split(b"\n"), rewritten.column(0).to_pylist(), strict=False):
        if row is not None:
            expected = json.loads(line)["add"]
            assert row["path"] == expected["path"]
            vector = expected["deletionVector"]
            assert (row["deletionVector"] is None) == (vector is None)
            if vector is not None:
                assert row["deletionVector"]["pathOrInlineDv"] == vector["pathOrInlineDv"]
                assert row["deletionVector"]["storageType"] == vector["storageType"]
    assert rewrite_batch(rewritten, Relative(root)).equals(batch)


@given(st.data(), ROOTS)
def test_vectors_come_back(data: st.DataObject, root: str) -> None:
    drawn = data.draw(st.lists(vectors(root), max_size=4))
    originals = [(vector["storageType"], vector["pathOrInlineDv"]) for vector in drawn]
    there = rewrite_vectors(originals, Absolute(root))
    assert rewrite_vectors(there, Relative(root)) == originals


@given(st.data(), ROOTS)
def test_a_listed_file_is_known_by_any_of_its_spellings(data: st.DataObject, root: str) -> None:
    # No engine can write an object whose name has an empty segment, or one of dots.
    parts = NAMES.map(lambda name: [s for s in name.split("/") if s.strip(".")] or ["x"])
    names = sorted(data.draw(st.lists(parts.map("/".join), unique=True)))
    addresses = [f"s3://physical/{number}" for number in range(len(names))]
    below = Listed.below(root, pa.array(names, pa.large_string()))
    listed = replace(below, addresses=pa.array(addresses, pa.string()))
    logged = [name.replace("%", "%25") for name in names]
    logged += [f"{root.rstrip('/')}/{path}" for path in logged]
    found = listed.resolve(pa.array(logged, pa.string()))
    assert found.uris.to_pylist() == addresses * 2
    assert not any(found.unlisted.to_pylist())
    assert not any(found.elsewhere.to_pylist())
