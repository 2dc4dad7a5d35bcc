"""What newer versions of pyarrow can do, for all supported versions.

A cluster brings a pyarrow of its own. The functions here are pyarrow's where it has them, and do
the same in Python where it doesn't, more slowly. No other module uses these functions of pyarrow
(``tests/unit/log/test_arrow_versions.py``). Which versions are supported:
docs/decisions/0033-ranges-of-versions.md.
"""

from __future__ import annotations

import bisect
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakeferry.errors import PackageMissing

_WRONG_ORDER = "struct fields don't match or are in the wrong order"
NEWER = {"maps_as_pydicts": "22", "arange": "21", "search_sorted": "26"}
"""Names that pyarrow has since this version, and that only this module uses."""


def to_rows(values: pa.Array | pa.ChunkedArray | pa.RecordBatch | pa.Table) -> list[Any]:
    """Return values as Python objects, and maps as dictionaries; a map's last duplicate counts."""
    if _HAS_MAPS_AS_DICTS:
        return list(values.to_pylist(maps_as_pydicts="lossy"))
    return _rows_with_dicts(values)


def numbers(start: int, stop: int) -> pa.Array:
    """Return the integers from ``start`` to below ``stop``."""
    if _HAS_ARANGE:
        return pa.arange(start, stop)
    return pa.array(range(start, stop), pa.int64())


def first_not_below(ordered: pa.Array, wanted: pa.Array) -> pa.Array:
    """Return the index of the first string that isn't below each wanted one, null for null."""
    if _HAS_SEARCH_SORTED:
        return pc.search_sorted(ordered, wanted).cast(pa.int64())
    return _found_by_bisection(ordered, wanted)


def too_old_error(failed: pa.ArrowException) -> PackageMissing | None:
    """Return the error to report if Arrow failed at something that newer versions can do.

    Before version 21 Arrow doesn't cast structs whose fields are in another order. Spark writes
    the two parts of a variant in another order than the protocol has them.
    """
    if _WRONG_ORDER not in str(failed):
        return None
    return PackageMissing(
        f"pyarrow {pa.__version__} can't read a struct with its fields in another order",
        cause=" ".join(str(failed).split()),
        remedy="pip install 'pyarrow>=21'",
        package="pyarrow",
    )


# --- The same in Python -------------------------------------------------------


def _rows_with_dicts(values: pa.Array | pa.ChunkedArray | pa.RecordBatch | pa.Table) -> list[Any]:
    if isinstance(values, pa.RecordBatch | pa.Table):
        kind = pa.struct(list(values.schema))
    else:
        kind = values.type
    rows = values.to_pylist()
    return [_with_dicts(row, kind) for row in rows] if _has_map(kind) else rows


def _has_map(kind: pa.DataType) -> bool:
    return pa.types.is_map(kind) or any(
        _has_map(kind.field(index).type) for index in range(kind.num_fields)
    )


def _with_dicts(value: Any, kind: pa.DataType) -> Any:
    """Return a value of this type with its maps, which are lists of pairs, as dictionaries."""
    if value is None:
        return None
    if pa.types.is_map(kind):
        return {
            _with_dicts(key, kind.key_type): _with_dicts(item, kind.item_type)
            for key, item in value
        }
    if pa.types.is_struct(kind):
        fields = (kind.field(index) for index in range(kind.num_fields))
        return {field.name: _with_dicts(value[field.name], field.type) for field in fields}
    if kind.num_fields:
        return [_with_dicts(each, kind.field(0).type) for each in value]
    return value


def _found_by_bisection(ordered: pa.Array, wanted: pa.Array) -> pa.Array:
    """Search each one: Python orders text as Arrow orders its UTF-8."""
    found = [
        None if each is None else bisect.bisect_left(ordered, each, key=_text)
        for each in wanted.to_pylist()
    ]
    return pa.array(found, pa.int64())


def _text(value: pa.Scalar) -> str:
    return str(value.as_py())


# --- What this version has ----------------------------------------------------


def _has_maps_as_dicts() -> bool:
    """Return True if maps inside maps become dictionaries, too; before version 22 they don't."""
    texts = pa.map_(pa.string(), pa.string())
    value = pa.scalar({"a": {"b": "c"}}, pa.map_(pa.string(), texts))
    try:
        return bool(value.as_py(maps_as_pydicts="lossy") == {"a": {"b": "c"}})
    except TypeError:
        return False


def _casts_structs_of_any_order() -> bool:
    first, second = pa.field("a", pa.int8()), pa.field("b", pa.int8())
    try:
        pa.array([{"a": 1, "b": 2}], pa.struct([first, second])).cast(pa.struct([second, first]))
    except pa.ArrowException:
        return False
    return True


CASTS_STRUCTS_OF_ANY_ORDER = _casts_structs_of_any_order()
"""Whether a scan reads a struct whose fields have another order in a file; since version 21."""
_HAS_MAPS_AS_DICTS = _has_maps_as_dicts()
_HAS_ARANGE = hasattr(pa, "arange")
_HAS_SEARCH_SORTED = hasattr(pc, "search_sorted")
