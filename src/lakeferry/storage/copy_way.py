"""How objects get from one store to another: decided from their configurations, without a request.

:meth:`~lakeferry.storage.store.Store.copy_route` returns the route between two stores. A copy
follows it, and a dry run shows it. A store may refuse to copy even if the route says that it can;
then the object is streamed.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class CopyWay(Enum):
    """Who moves the bytes of an object."""

    STREAM = "stream"
    """This process reads and writes them."""
    SYSTEM = "system"
    """The operating system copies a file on local disk."""
    ASKED = "asked"
    """The store, asked by obstore in one request."""
    SIGNED = "signed"
    """S3, asked by requests that are signed here; large objects are copied in parts."""


@dataclass(frozen=True, slots=True)
class CopyRoute:
    """The way of objects up to ``large_bytes``, and the way of larger ones."""

    small: CopyWay
    large: CopyWay
    large_bytes: int = 0
    is_certain: bool = True
    """False if only the first copy shows whether the store copies at all."""


STREAMED = CopyRoute(CopyWay.STREAM, CopyWay.STREAM)
ON_DISK = CopyRoute(CopyWay.SYSTEM, CopyWay.SYSTEM)

COPIED_PART_BYTES = 64 << 20
"""Size of the parts in which S3 copies a large object."""
UPLOADED_PART_BYTES = 16 << 20
WHOLE_UPLOAD_BYTES = 32 << 20
"""Streams up to this size are uploaded in one request, larger ones in parts."""
