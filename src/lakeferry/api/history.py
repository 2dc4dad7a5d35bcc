"""A table's history: its commits, newest first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import msgspec

from lakeferry.table.delta_log import Revision


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
