"""What a move to a managed table has to know of its target.

A catalog chooses the place of a managed table and says what the table must be like, once, when
it allocates the place (a staging table). The place can't be found afterwards: neither by listing
nor by the table's name. So :class:`ManagedTarget` is in the record of the move at the source
before anything is copied, and in the journal of the source's ENABLING commit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from lakeferry.catalogs.managed_tables import PRIVATE_LEAD


@dataclass(frozen=True, slots=True)
class ManagedTarget:
    """The staging table of one move, and what its catalog requires of the table.

    ``private_name`` is the table's whole name until the move is decided. ``principal`` is the
    user who allocated the place, to whom alone it belongs; ``None`` if the catalog has no users.
    """

    table_id: str
    private_name: str
    principal: str | None = None
    reader_features: tuple[str, ...] = ()
    writer_features: tuple[str, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)

    @property
    def features(self) -> tuple[str, ...]:
        """The features that the table must have."""
        return tuple(dict.fromkeys((*self.reader_features, *self.writer_features)))

    def as_document(self) -> dict[str, Any]:
        """Return the value as it is kept in a journal."""
        document: dict[str, Any] = msgspec.to_builtins(self)
        return document


# Converting needs no decoder, but what a decoder prepares: see tests/unit/test_decoders.py.
_PREPARED = msgspec.json.Decoder(ManagedTarget)


def managed_target_of(document: object) -> ManagedTarget | None:
    """Return the value that a journal keeps, or ``None`` for ``None``.

    Raises ``ValueError`` for anything else.
    """
    if document is None:
        return None
    try:
        return msgspec.convert(document, ManagedTarget)
    except msgspec.MsgspecError as bad:
        raise ValueError(str(bad)) from bad


def private_name(name: str, unique: str) -> str:
    """Return a name in the same schema as ``name`` that nobody else uses."""
    return f"{name.rpartition('.')[0]}.{PRIVATE_LEAD}{unique.replace('-', '')}"
