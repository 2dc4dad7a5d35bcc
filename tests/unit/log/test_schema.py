from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from lakeferry.errors import CorruptLog, UnsupportedFeature
from lakeferry.log import schema
from lakeferry.log.actions import Metadata


def field(name: str, kind: Any, **metadata: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, "nullable": False, "metadata": metadata}


def metadata(*fields: dict[str, Any], mode: str | None = None) -> Metadata:
    configuration = {} if mode is None else {"delta.columnMapping.mode": mode}
    text = json.dumps({"type": "struct", "fields": fields})
    return Metadata("id", text, configuration=configuration)


def test_every_type_has_one_in_arrow() -> None:
    primitives = {
        "string": pa.string(),
        "long": pa.int64(),
        "integer": pa.int32(),
        "short": pa.int16(),
        "byte": pa.int8(),
        "float": pa.float32(),
        "double": pa.float64(),
        "decimal(12,3)": pa.decimal128(12, 3),
        "boolean": pa.bool_(),
        "binary": pa.binary(),
        "date": pa.date32(),
        "timestamp": pa.timestamp("us", "UTC"),
        "timestamp_ntz": pa.timestamp("us"),
        "void": pa.null(),
    }
    found = schema.schema_columns(metadata(*(field(kind, kind) for kind in primitives)))
    assert schema.arrow_schema(found) == pa.schema(list(primitives.items()))


def test_types_are_nested_and_fields_are_nullable() -> None:
    inner = {"type": "struct", "fields": [field("a", "integer"), field("b", "date")]}
    pairs = {"type": "map", "keyType": "string", "valueType": inner, "valueContainsNull": False}
    items = {"type": "array", "elementType": pairs, "containsNull": False}
    found = schema.arrow_schema(schema.schema_columns(metadata(field("x", items))))
    struct = pa.struct([("a", pa.int32()), ("b", pa.date32())])
    assert found == pa.schema([("x", pa.list_(pa.map_(pa.string(), struct)))])


@pytest.mark.parametrize(
    ("kind", "feature"),
    [
        ("variant", "variantType"),
        ("geometry(OGC:CRS84)", "geospatial"),
        ("geography(srid:4326)", "geospatial"),
        ("timestamp_nanos", "timestamp_nanos"),
        ({"type": "array", "elementType": "variant", "containsNull": True}, "variantType"),
        ({"type": "udt", "class": "x"}, "udt"),
    ],
)
def test_types_that_arrow_lacks_are_refused_by_name(kind: Any, feature: str) -> None:
    with pytest.raises(UnsupportedFeature) as refused:
        schema.schema_columns(metadata(field("x", kind)))
    assert refused.value.fields["features"] == [feature]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"type":"struct"}',
        '{"type":"array","elementType":"long"}',
        '{"type":"struct","fields":[{"type":"long"}]}',
        '{"type":"struct","fields":[{"name":1,"type":"long"}]}',
        '{"type":"struct","fields":[{"name":"a","type":null}]}',
        '{"type":"struct","fields":[{"name":"a","type":"decimal(99,1)"}]}',
    ],
)
def test_a_schema_that_is_none_is_corrupt(text: str) -> None:
    with pytest.raises(CorruptLog) as refused:
        schema.schema_columns(Metadata("id", text))
    assert refused.value.remedy
    assert ("schemaString" in str(refused.value)) == (text == "")


def test_physical_names_count_only_while_columns_are_mapped() -> None:
    names = {"delta.columnMapping.physicalName": "col-1", "delta.columnMapping.id": 7}
    for mode, physical, number in ((None, "a", None), ("none", "a", None), ("id", "col-1", 7)):
        described = metadata(field("a", "long", **names), mode=mode)
        (column,) = schema.schema_columns(described).columns
        assert (column.physical_name, column.field_id) == (physical, number)
    assert schema.mapping_mode(metadata(mode="name")) == "name"
    with pytest.raises(UnsupportedFeature):
        schema.mapping_mode(metadata(mode="telepathy"))
