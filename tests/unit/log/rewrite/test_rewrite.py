"""Rewriting paths in lines, in batches and in files."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakeferry.errors import CorruptLog, InvalidInput
from lakeferry.log import file_identity
from lakeferry.log.parquet import schema_of
from lakeferry.log.rewrite import (
    Absolute,
    Listed,
    Relative,
    Relisted,
    relist_lines,
    rewrite_batch,
    rewrite_lines,
    rewrite_parquet,
    rewrite_vectors,
)

ROOT = "s3://bucket/some/table"
ENCODED = "^-aqEH.-t@S}K{vb[*k^"
VECTOR_FILE = "deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin"


def _there(line: str, root: str = ROOT) -> str:
    """Rewrite a line to absolute paths, and make sure that it comes back."""
    rewritten = rewrite_lines(line.encode(), Absolute(root))
    assert rewrite_lines(rewritten, Relative(root)) == line.encode()
    return rewritten.decode()


def _one(path: str, rewrite: Absolute | Relative | Listed) -> str:
    return str(rewrite(pa.array([path])).to_pylist()[0])


@pytest.mark.parametrize("name", ["add", "remove", "cdc"])
def test_a_prefix_is_all_that_a_relative_path_needs(name: str) -> None:
    line = f'{{"{name}":{{"path":"p=a%20b/x.parquet","tags":{{"path":"y"}}}}}}'
    assert _there(line) == line.replace('"p=a', f'"{ROOT}/p=a')


def test_escapes_white_space_and_order_stay() -> None:
    line = ' { "add" : {"size":1 , "\\u0070ath"\t: "a\\/b\\u003dc" } } \r'
    assert _there(line) == line.replace('"a\\/b', f'"{ROOT}/a\\/b')


def test_what_holds_no_path_of_a_file_stays() -> None:
    lines = (
        '{"commitInfo":{"path":"x","add":{"path":"y"}}}\n\n{"future":{"path":"x"}}\n'
        '{"metaData":{"add":{"path":"x"}}}\n[1]\n'
    )
    # The last line is no action at all, and nothing in it looks like one.
    assert rewrite_lines(lines.encode(), Absolute(ROOT)) == lines.encode()


@pytest.mark.parametrize("path", ["s3://other/x", "/x", "file:/x", f"{ROOT}2/x"])
def test_absolute_paths_elsewhere_stay(path: str) -> None:
    assert _there(f'{{"add":{{"path":"{path}"}}}}') == f'{{"add":{{"path":"{path}"}}}}'


@pytest.mark.parametrize("scheme", ["s3", "s3a"])
def test_an_absolute_path_below_the_root_is_marked_and_comes_back_absolute(scheme: str) -> None:
    line = f'{{"add":{{"path":"{scheme}://bucket/some/table/x"}}}}'
    marked = _there(line)
    assert marked == line.replace("table", "tabl%65")
    path = json.loads(marked)["add"]["path"]
    assert file_identity.canonical_path(path, ROOT) == f"{ROOT}/x"


@pytest.mark.parametrize(
    ("root", "path", "relative"),
    [
        (ROOT, "s3a://bucket/some/table/x", "x"),
        (f"{ROOT}/", f"{ROOT}/a/x", "a/x"),
        ("s3://bucket", "s3n://bucket/x", "x"),
        ("file:///data/t", "file:/data/t/x", "x"),
        ("file:/data/t", "file:///data/t/x", "x"),
        ("dbfs:/data/t", "dbfs:/data/t/x", "x"),
        ("abfss://c@a.example/t", "abfs://c@a.example/t/x", "x"),
        ("s3://b/with%20space%21", "s3://b/with%20space%21/x", "x"),
        (ROOT, "s3://bucket/some/tablet/x", "s3://bucket/some/tablet/x"),
        (ROOT, "gs://bucket/some/table/x", "gs://bucket/some/table/x"),
    ],
)
def test_paths_below_the_root_become_relative(root: str, path: str, relative: str) -> None:
    assert _one(path, Relative(root)) == relative


def test_in_a_local_table_a_path_without_a_scheme_is_marked_too() -> None:
    root = "file:///data/t"
    paths = ["x", "/data/t/x", "file:/data/t/x", "file:///data/t/x", "/data/u/x"]
    there = Absolute(root)(pa.array(paths))
    assert there.to_pylist() == [
        "file:/data/t/x",
        "/data/%74/x",
        "file:/data/%74/x",
        "file:///data/%74/x",
        "/data/u/x",
    ]
    identities = file_identity.identities(there, "file:///other/place").to_pylist()
    assert len(set(identities[1:4])) == 1
    assert identities[0] not in identities[1:]
    assert Relative(root)(there).to_pylist() == paths


def test_a_mark_is_never_put_into_an_escape() -> None:
    root = "s3://b/with%20space%21"
    assert _one(f"{root}/x", Absolute(root)) == "s3://b/with%20spac%65%21/x"


def test_what_could_not_come_back_is_refused() -> None:
    with pytest.raises(InvalidInput, match="reversed"):
        Absolute("s3://bucket")(pa.array(["s3://bucket/x"]))
    with pytest.raises(InvalidInput, match="reversed"):
        Absolute(ROOT)(pa.array(["s3://bucket/some/tabl%65/x"]))
    with pytest.raises(InvalidInput, match="isn't an absolute URI"):
        Absolute("some/table")(pa.array(["x"]))


def test_vectors_become_absolute_in_adds_and_removes_alike() -> None:
    for name in ("add", "remove"):
        line = (
            f'{{"{name}":{{"path":"x","deletionVector":{{"storageType":"u","pathOrInlineDv":'
            f'"ab{ENCODED}","offset":4,"sizeInBytes":40,"cardinality":6}},"baseRowId":1}}}}'
        )
        vector = json.loads(_there(line))[name]["deletionVector"]
        assert vector == {
            "storageType": "p",
            "pathOrInlineDv": f"{ROOT}/ab/{VECTOR_FILE}",
            "offset": 4,
            "sizeInBytes": 40,
            "cardinality": 6,
        }


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (("u", ENCODED), ("p", f"{ROOT}/{VECTOR_FILE}")),
        (("u", f"a b{ENCODED}"), ("p", f"{ROOT}/a%20b/{VECTOR_FILE}")),
        (("u", f"v=1/a@b,c+d{ENCODED}"), ("p", f"{ROOT}/v=1/a@b,c+d/{VECTOR_FILE}")),
        (("i", ENCODED), ("i", ENCODED)),
        (("p", "s3://other/x.bin"), ("p", "s3://other/x.bin")),
        (("p", f"{ROOT}/{VECTOR_FILE}"), ("p", f"s3://bucket/some/tabl%65/{VECTOR_FILE}")),
    ],
)
def test_vectors_of_every_kind(before: tuple[str, str], after: tuple[str, str]) -> None:
    assert rewrite_vectors([before], Absolute(ROOT)) == [after]
    assert rewrite_vectors([after], Relative(ROOT)) == [before]


def test_a_vector_that_only_p_can_name_stays_p() -> None:
    for name in ("other.bin", f"a%41/{VECTOR_FILE}"):
        vector = ("p", f"{ROOT}/{name}")
        assert rewrite_vectors([vector], Relative(ROOT)) == [vector]


def test_a_broken_vector_is_a_corrupt_log() -> None:
    with pytest.raises(CorruptLog):
        rewrite_vectors([("u", "short")], Absolute(ROOT))


def test_needless_escapes_are_kept_beside_the_token() -> None:
    line = (
        '{"add":{"path":"s3:\\/\\/bucket\\/some\\/table\\/x","deletionVector":'
        f'{{"storageType":"\\u0075","pathOrInlineDv":"\\u0061b{ENCODED}"}}}}}}'
    )
    rewritten = json.loads(_there(line))["add"]
    assert rewritten["lakeferry.spelled"] == f"{ROOT}/x"
    assert rewritten["deletionVector"]["lakeferry.spelled"] == ["u", f"ab{ENCODED}"]


@pytest.mark.parametrize(
    "line", ['{"add":{"path":"x"', '{"add" "x"}', '{"add":{"path":"\\ud800"}}']
)
def test_a_line_that_is_no_json_is_a_corrupt_log(line: str) -> None:
    with pytest.raises(CorruptLog):
        rewrite_lines(line.encode(), Absolute(ROOT))


def _listed(**changes: Any) -> Listed:
    pairs = sorted([("a b/x", "gs://physical/1"), (VECTOR_FILE, "gs://physical/2")])
    return replace(
        Listed.below(ROOT, pa.array([name for name, _ in pairs], pa.large_string())),
        addresses=pa.array([address for _, address in pairs]),
        fallback="s3://old/place",
        **changes,
    )


def test_each_file_gets_the_address_that_was_listed_for_it() -> None:
    line = (
        f'{{"add":{{"path":"a%20b/x","deletionVector":{{"storageType":"u",'
        f'"pathOrInlineDv":"{ENCODED}"}}}}}}'
    )
    relisted = relist_lines(line.encode(), _listed())
    assert json.loads(relisted.data)["add"] == {
        "path": "gs://physical/1",
        "deletionVector": {"storageType": "p", "pathOrInlineDv": "gs://physical/2"},
    }
    assert (relisted.actions, relisted.unlisted, relisted.elsewhere) == (1, 0, 0)


def test_what_is_not_listed_has_one_uri_however_it_is_spelled() -> None:
    assert _one("gone", _listed()) == "s3://old/place/gone"
    assert _one(f"{ROOT}/gone", _listed()) == "s3://old/place/gone"
    assert _one("s3://other/x", _listed()) == "s3://other/x"
    asked = _listed().resolve(pa.array(["gone", "a%20b/x", "s3://other/x", f"{ROOT}/too"]))
    assert asked.unlisted.to_pylist() == [True, False, False, True]
    assert asked.elsewhere.to_pylist() == [False, False, True, False]
    nothing = Listed.below(ROOT, pa.array([], pa.large_string()))
    assert nothing.resolve(pa.array(["gone"])).unlisted.to_pylist() == [True]


def test_where_files_are_below_the_table_only_relative_paths_change() -> None:
    listed = Listed.below(ROOT, pa.array(["x"], pa.large_string()))
    assert _one("x", listed) == f"{ROOT}/x"
    assert _one("gone", listed) == f"{ROOT}/gone"
    assert _one(f"{ROOT}/x", listed) == f"{ROOT}/x"
    # A path without a scheme belongs to the table's own store, and not to its readers'.
    assert _one("/k/x", Listed.below("s3://b/t", listed.names)) == "s3://b/k/x"
    assert _one("/k/x", Listed.below("file:///t", listed.names)) == "file:/k/x"
    assert _one("x", Listed.below("file:///t", listed.names)) == "file:/t/x"


@pytest.mark.parametrize("root", ["s3://b/lake/t", "file:///lake/t"])
@pytest.mark.parametrize("path", ["../other/x", "./../other/x", "a/../../other/x"])
def test_a_path_that_leads_out_of_the_table_is_elsewhere(root: str, path: str) -> None:
    nothing = Listed.below(root, pa.array([], pa.large_string()))
    found = nothing.resolve(pa.array([path]))
    lead = "file:/lake" if root.startswith("file:") else "s3://b/lake"
    assert found.uris.to_pylist() == [f"{lead}/other/x"]
    assert (found.unlisted.to_pylist(), found.elsewhere.to_pylist()) == ([False], [True])


def test_a_path_that_leads_out_of_the_table_and_back_is_the_table_s_own() -> None:
    listed = Listed.below(ROOT, pa.array(["x"], pa.large_string()))
    again = f"../{ROOT.rpartition('/')[2]}/x"
    found = listed.resolve(pa.array([again, "../x"]))
    assert found.unlisted.to_pylist() == [False, False]
    assert found.elsewhere.to_pylist() == [False, True]
    assert found.names.to_pylist()[0] == "x"


def test_files_of_kin_are_asked_for() -> None:
    told: list[Sequence[str]] = []

    def ask(paths: Sequence[str]) -> list[str | None]:
        told.append(paths)
        return ["gs://physical/9" if path.endswith("y") else None for path in paths]

    listed = _listed(kin="^s3://kin/", ask=ask)
    found = listed.resolve(pa.array(["s3://kin/y", "a%20b/x", "s3://other/y", "s3://kin/z"]))
    assert found.uris.to_pylist() == [
        *("gs://physical/9", "gs://physical/1", "s3://other/y", "s3://kin/z")
    ]
    assert found.unlisted.to_pylist() == [False, False, False, True]
    assert found.elsewhere.to_pylist() == [False, False, True, False]
    assert told == [["s3://kin/y", "s3://kin/z"]]


def test_a_file_beside_the_table_may_be_kin() -> None:
    told: list[str] = []

    def ask(paths: Sequence[str]) -> list[str | None]:
        told.extend(paths)
        return ["gs://physical/9"]

    lead = ROOT.rpartition("/")[0]
    found = _listed(kin=f"^{lead}/", ask=ask).resolve(pa.array(["../beside/x"]))
    assert found.uris.to_pylist() == ["gs://physical/9"]
    assert told == [f"{lead}/beside/x"]


def test_what_adds_name_is_counted_and_changes_that_are_gone_are_left_out() -> None:
    lines = [
        b'{"metaData":{"id":"1"}}',
        b'{"protocol":{"minReaderVersion":1}}',
        b'{"add":{"path":"gone"}}',
        b'{"add":{"path":"s3://other/x"}}',
        b'{"remove":{"path":"gone"}}',
        b'{"cdc":{"path":"gone"}}',
        b'{"cdc":{"path":"a%20b/x"}}',
        b"",
    ]
    relisted = relist_lines(b"\n".join(lines), _listed())
    assert relisted.data.split(b"\n") == [
        *lines[:2],
        b'{"add":{"path":"s3://old/place/gone"}}',
        lines[3],
        b'{"remove":{"path":"s3://old/place/gone"}}',
        b'{"cdc":{"path":"gs://physical/1"}}',
        b"",
    ]
    assert replace(relisted, data=b"") == Relisted(
        *(b"", 6, 1, 1, 1, ("gone",), 3, 0, lines[1], lines[0])
    )


def test_sidecars_of_a_json_checkpoint_get_new_names_and_sizes() -> None:
    data = (
        b'{"checkpointMetadata":{"version":2}}\n'
        b'{"sidecar":{"path":"a.parquet", "sizeInBytes": 10,"modificationTime":1}}\n'
        b'{"sidecar":{"sizeInBytes":11,"path":"b.parquet"}}\n'
    )
    sidecars = {"a.parquet": ("c.parquet", 99)}
    assert rewrite_lines(data, Absolute(ROOT), sidecars) == data.replace(
        b'"a.parquet", "sizeInBytes": 10', b'"c.parquet", "sizeInBytes": 99'
    )
    assert rewrite_lines(data, Absolute(ROOT)) == data


VECTOR = pa.struct(
    [("storageType", pa.string()), ("pathOrInlineDv", pa.string()), ("cardinality", pa.int64())]
)
ADD = pa.struct(
    [
        pa.field("path", pa.string()),
        pa.field("size", pa.int64(), nullable=False),
        pa.field("deletionVector", VECTOR),
        pa.field("future", pa.list_(pa.string())),
        pa.field("when", pa.timestamp("us")),
    ]
)
SIDECAR = pa.struct([("path", pa.string()), ("sizeInBytes", pa.int64())])
SCHEMA = pa.schema(
    [
        pa.field("add", ADD),
        pa.field("sidecar", SIDECAR),
        pa.field("txn", pa.struct([("a", "int8")])),
    ],
    {"engine": "of the test"},
)


def _rows() -> pa.Table:
    vector = {"storageType": "u", "pathOrInlineDv": ENCODED, "cardinality": 3}
    first = {"path": "x", "size": 1, "deletionVector": vector, "future": ["a"], "when": None}
    other = {"path": "s3://o/y", "size": 2, "deletionVector": None, "future": None, "when": None}
    return pa.Table.from_pydict(
        {
            "add": [None, first, other, None],
            "sidecar": [{"path": "s", "sizeInBytes": 1}, None, None, None],
            "txn": [None, None, None, {"a": 1}],
        },
        schema=SCHEMA,
    )


def test_batches_keep_their_schema_their_nulls_and_what_we_do_not_know() -> None:
    (batch,) = _rows().to_batches()
    for part in (batch, batch.slice(1, 2)):
        rewritten = rewrite_batch(part, Absolute(ROOT), {"s": ("t", 7)})
        rewritten.validate(full=True)
        assert rewritten.schema.equals(part.schema, check_metadata=True)
        assert rewritten["txn"].equals(part["txn"])
        back = rewrite_batch(rewritten, Relative(ROOT), {"t": ("s", 1)})
        assert back.equals(part)
    rewritten = rewrite_batch(batch, Absolute(ROOT), {"s": ("t", 7)})
    assert rewritten["sidecar"][0].as_py() == {"path": "t", "sizeInBytes": 7}
    assert rewritten["add"][0].as_py() is None
    assert rewritten["add"][1].as_py() == {
        "path": f"{ROOT}/x",
        "size": 1,
        "deletionVector": {
            "storageType": "p",
            "pathOrInlineDv": f"{ROOT}/{VECTOR_FILE}",
            "cardinality": 3,
        },
        "future": ["a"],
        "when": None,
    }
    assert rewritten["add"][2].as_py()["path"] == "s3://o/y"


def _required(kind: pa.StructType) -> pa.StructType:
    """The type with every field of its own declared required, as delta-rs declares some."""
    return pa.struct([field.with_nullable(False) for field in kind])


def test_fields_that_are_required_keep_a_value_in_rows_that_are_null() -> None:
    vector = _required(VECTOR)
    add = pa.struct([pa.field("path", pa.string(), nullable=False), ("deletionVector", vector)])
    schema = pa.schema([("add", add), ("remove", add), ("sidecar", _required(SIDECAR))])
    deleted = {"storageType": "u", "pathOrInlineDv": ENCODED, "cardinality": 3}
    rows = {
        "add": [None, {"path": "x", "deletionVector": deleted}, None, None],
        "remove": [None, None, {"path": "y", "deletionVector": None}, None],
        "sidecar": [{"path": "s", "sizeInBytes": 1}, None, None, {"path": "", "sizeInBytes": 0}],
    }
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pydict(rows, schema=schema), sink)
    sidecars = {"s": ("t", 7)}
    rewritten = rewrite_parquet(sink.getvalue(), Absolute(ROOT), sidecars)
    before, after = pq.ParquetFile(sink), pq.ParquetFile(io.BytesIO(rewritten))
    assert after.schema.equals(before.schema)
    found = after.read().to_pydict()
    assert [row and row["path"] for row in found["add"]] == [None, f"{ROOT}/x", None, None]
    assert found["add"][1]["deletionVector"] == {
        "storageType": "p",
        "pathOrInlineDv": f"{ROOT}/{VECTOR_FILE}",
        "cardinality": 3,
    }
    assert found["remove"][2] == {"path": f"{ROOT}/y", "deletionVector": None}
    assert found["sidecar"][0] == {"path": "t", "sizeInBytes": 7}
    assert found["sidecar"][1] is None
    back = rewrite_parquet(rewritten, Relative(ROOT), {"t": ("s", 1)})
    assert pq.read_table(io.BytesIO(back)).equals(before.read())


def _metadata(file: pq.ParquetFile) -> dict[bytes, bytes]:
    """The file's key-value metadata, but for Arrow's own, of which there are many encodings."""
    return {key: value for key, value in file.metadata.metadata.items() if b"ARROW" not in key}


@pytest.mark.parametrize("store_schema", [True, False])
@pytest.mark.parametrize("compression", ["snappy", "zstd", "none"])
def test_files_keep_schema_metadata_and_compression(store_schema: bool, compression: str) -> None:
    sink = io.BytesIO()
    with pq.ParquetWriter(
        sink, SCHEMA, compression=compression, store_schema=store_schema
    ) as writer:
        writer.write_table(_rows(), row_group_size=3)
        writer.add_key_value_metadata({"org.apache.spark.version": "4.2.0"})
    rewritten = rewrite_parquet(sink.getvalue(), Absolute(ROOT))
    before, after = pq.ParquetFile(sink), pq.ParquetFile(io.BytesIO(rewritten))
    assert after.schema.equals(before.schema)
    assert _metadata(after) == _metadata(before)
    assert (b"ARROW:schema" in after.metadata.metadata) == store_schema
    assert after.num_row_groups == before.num_row_groups == 2
    assert (
        after.metadata.row_group(0).column(0).compression
        == before.metadata.row_group(0).column(0).compression
    )
    assert after.read()["add"][1]["path"].as_py() == f"{ROOT}/x"
    back = pq.ParquetFile(io.BytesIO(rewrite_parquet(io.BytesIO(rewritten), Relative(ROOT))))
    assert back.read().equals(before.read())


def test_int96_comes_out_as_the_instant_that_it_is() -> None:
    ages = [datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999999, UTC)]
    # Arrow writes INT96 for all timestamps or for none; the years are beyond nanoseconds.
    table = pa.table({"add": pa.array([{"path": "x", "t": age} for age in ages])})
    kind = pa.struct([("path", pa.string()), ("t", pa.timestamp("us"))])
    sink = io.BytesIO()
    pq.write_table(
        pa.table({"add": table["add"].cast(kind)}),
        sink,
        use_deprecated_int96_timestamps=True,
        store_schema=False,
    )
    assert pq.ParquetFile(sink).schema.column(1).physical_type == "INT96"
    after = pq.ParquetFile(io.BytesIO(rewrite_parquet(sink.getvalue(), Absolute(ROOT))))
    assert after.schema.column(1).physical_type == "INT64"
    assert [row["t"] for row in after.read()["add"].to_pylist()] == ages
    assert schema_of(after) == after.schema_arrow


def test_a_file_that_is_no_parquet_is_a_corrupt_log() -> None:
    with pytest.raises(CorruptLog):
        rewrite_parquet(b"PAR1 and nothing more", Absolute(ROOT))
