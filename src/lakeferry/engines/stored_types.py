"""Says which Parquet types a table's column may have in its data files.

Implements the protocol's "Type Widening" for readers. Types are Arrow's, from a file's footer.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa


def plain_type(found: pa.DataType) -> pa.DataType:
    """Return a type without information that Arrow adds beside the data."""
    if isinstance(found, pa.BaseExtensionType):
        return plain_type(found.storage_type)
    if pa.types.is_dictionary(found):
        return plain_type(found.value_type)
    if pa.types.is_decimal(found):
        return pa.decimal128(found.precision, found.scale)
    if pa.types.is_timestamp(found):
        return pa.timestamp("us", "UTC" if found.tz else None)
    return _PLAIN.get(found.id, found)


_PLAIN: Mapping[int, pa.DataType] = {
    pa.large_string().id: pa.string(),
    pa.string_view().id: pa.string(),
    pa.large_binary().id: pa.binary(),
    pa.binary_view().id: pa.binary(),
    pa.binary(1).id: pa.binary(),
    pa.date64().id: pa.date32(),
}
_TEXTS = (pa.string(), pa.binary())


def is_odd_list(found: pa.DataType) -> bool:
    """Return True if it is a list that Arrow stores in another way than Parquet."""
    return bool(pa.types.is_large_list(found) or pa.types.is_fixed_size_list(found))


def is_as(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Return True if readers without type widening read one type as the other."""
    if found == wanted or (found in _TEXTS and wanted in _TEXTS):
        return True
    if pa.types.is_timestamp(found) and pa.types.is_timestamp(wanted):
        return True
    # Some writers don't state the width of small integers.
    return bool(found == pa.int32() and wanted in (pa.int8(), pa.int16()))


def may_become(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Return True if a table's column of one type may have files with the other."""
    if is_as(found, wanted):
        # A local time is read as UTC if an instant is wanted; never the reverse.
        return not (pa.types.is_timestamp(found) and found.tz and not wanted.tz)
    if pa.types.is_integer(found):
        if pa.types.is_integer(wanted):
            return bool(wanted.bit_width > found.bit_width)
        return bool(
            pa.types.is_decimal(wanted) or (wanted == pa.float64() and found.bit_width <= 32)
        )
    if pa.types.is_decimal(found) and pa.types.is_decimal(wanted):
        more = wanted.scale - found.scale
        return bool(more >= 0 and wanted.precision - found.precision >= more)
    pair = (found, wanted)
    return pair in ((pa.float32(), pa.float64()), (pa.date32(), pa.timestamp("us")))
