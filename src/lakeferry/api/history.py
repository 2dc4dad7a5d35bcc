"""A table's history: its commits, newest first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, SupportsIndex, cast, overload

import msgspec
import pyarrow as pa

from lakeferry.api.arrow_conversions import pandas_frame, polars_frame
from lakeferry.readable import counted, moment
from lakeferry.table.delta_log import Revision

if TYPE_CHECKING:
    import polars

_SHOWN_COMMITS = 20
_COLUMNS = ("version", "time", "operation", "user", "engine")
_TEXTS = pa.map_(pa.string(), pa.string())
HISTORY = pa.schema(
    [
        pa.field("version", pa.int64()),
        pa.field("timestamp", pa.timestamp("ms", "UTC")),
        pa.field("operation", pa.string()),
        pa.field("operation_parameters", _TEXTS),
        pa.field("operation_metrics", _TEXTS),
        pa.field("user_id", pa.string()),
        pa.field("user_name", pa.string()),
        pa.field("user_metadata", pa.string()),
        pa.field("engine_info", pa.string()),
        pa.field("is_blind_append", pa.bool_()),
        pa.field("isolation_level", pa.string()),
        pa.field("read_version", pa.int64()),
        pa.field("txn_id", pa.string()),
    ]
)
"""The columns of :meth:`History.to_arrow`; what isn't text in a commit is JSON there."""


@dataclass(frozen=True, slots=True)
class Commit:
    """One commit of a table's history; what its writer didn't state is ``None``."""

    version: int
    timestamp: int
    operation: str | None
    operation_parameters: Any
    operation_metrics: Any
    user_id: str | None
    user_name: str | None
    user_metadata: Any
    engine_info: str | None
    is_blind_append: bool | None
    isolation_level: str | None
    read_version: int | None
    txn_id: str | None

    def as_document(self) -> dict[str, Any]:
        """Return one element of ``commits`` of the command ``history``."""
        return cast(dict[str, Any], msgspec.to_builtins(self))


def commit_of(revision: Revision) -> Commit:
    """Return a commit as :meth:`lakeferry.Table.history` gives it."""
    values = revision.commit_info.values if revision.commit_info else {}

    def get(name: str, kind: type) -> Any:
        value = values.get(name)
        return value if type(value) is kind else None

    return Commit(
        version=revision.version,
        timestamp=revision.timestamp,
        operation=get("operation", str),
        operation_parameters=values.get("operationParameters"),
        operation_metrics=values.get("operationMetrics"),
        user_id=get("userId", str),
        user_name=get("userName", str),
        user_metadata=values.get("userMetadata"),
        engine_info=get("engineInfo", str),
        is_blind_append=get("isBlindAppend", bool),
        isolation_level=get("isolationLevel", str),
        read_version=get("readVersion", int),
        txn_id=get("txnId", str),
    )


class History(list[Commit]):
    """The commits of a table, newest first: a list that can be looked at and converted."""

    @overload
    def __getitem__(self, index: SupportsIndex) -> Commit: ...

    @overload
    def __getitem__(self, index: slice) -> History: ...

    def __getitem__(self, index: SupportsIndex | slice) -> Commit | History:
        """Return a commit, or a part of the history."""
        found = super().__getitem__(index)
        return History(found) if isinstance(found, list) else found

    def __repr__(self) -> str:
        """Return how many commits there are, and the newest of them."""
        rows = list(self._rows())
        lines = [
            f"History of {counted(len(self), 'commit')}",
            *("  ".join(str(cell) for cell in row if cell is not None) for row in rows),
        ]
        if len(self) > len(rows):
            lines.append(f"the newest {len(rows)} of {counted(len(self), 'commit')}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the newest commits, and how many there are."""
        from lakeferry.html_tables import first_rows, notebook_view

        title = f"History of {counted(len(self), 'commit')}"
        table = first_rows(_COLUMNS, self._rows(), len(self), "commit", shown=_SHOWN_COMMITS)
        return notebook_view(title, table)

    def _rows(self) -> Iterator[tuple[int | str | None, ...]]:
        for commit in list.__getitem__(self, slice(_SHOWN_COMMITS)):
            yield (
                commit.version,
                moment(commit.timestamp),
                commit.operation,
                commit.user_name or commit.user_id,
                commit.engine_info,
            )

    def to_arrow(self) -> pa.Table:
        """Return the commits as an Arrow table with the columns of :data:`HISTORY`."""
        return pa.Table.from_batches(
            [pa.RecordBatch.from_pylist([_row(commit) for commit in self], HISTORY)]
        )

    def to_pandas(self) -> Any:
        """Return the commits as a ``pandas.DataFrame``; needs pandas."""
        return pandas_frame(self.to_arrow())

    def to_polars(self) -> polars.DataFrame:
        """Return the commits as a ``polars.DataFrame``; needs Polars."""
        return polars_frame(self.to_arrow())


def _row(commit: Commit) -> dict[str, Any]:
    row = {name: getattr(commit, name) for name in HISTORY.names}
    row["user_metadata"] = _as_text(row["user_metadata"])
    for name in ("operation_parameters", "operation_metrics"):
        values = row[name]
        if isinstance(values, Mapping):
            row[name] = [(str(key), _as_text(value)) for key, value in values.items()]
        else:
            # Some writers state a text, or a list.
            row[name] = None if values is None else [("", _as_text(values))]
    return row


def _as_text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return msgspec.json.encode(value).decode()
