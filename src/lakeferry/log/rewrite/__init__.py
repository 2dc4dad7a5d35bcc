r"""Rewrites the paths in every action from one place to another, and exactly back.

Rewrites ``path`` of ``add``, ``remove`` and ``cdc``, and their deletion vectors (storage type
``u``, relative, becomes ``p``, absolute), in commits, compacted logs, checkpoints and sidecars.
Only paths change: in newline-delimited JSON every other byte stays, in Parquet every other
value.

A rewrite is any function from an Arrow array of paths to an array of paths (:data:`Rewrite`). We
use :class:`Absolute`, :class:`Relative` and :class:`Listed`, and for tables that take other
tables' files along :class:`Adopted` and :class:`Returned`. The same function is applied to an
``add`` and the ``remove`` that cancels it, so both still mean the same logical file.

``Relative(root)`` undoes ``Absolute(root)`` byte for byte. Three cases need care:

* An absolute path below the root must not come back as a relative one: its ``remove`` would no
  longer cancel its ``add``. ``Absolute`` gives it another spelling of the same URI, with one
  letter of the root percent-encoded (``s3://b/%74/x`` for ``s3://b/t/x``), and ``Relative``
  reverses that. The mark is in the path itself, so other engines' checkpoints keep it.
* A vector's folder may need percent-encoding in an absolute path; the way back decodes it. A
  vector of type ``p`` that ``u`` can't express stays ``p``.
* A token with needless escapes (``\u0075`` for ``u``) can lose them if more than a prefix
  changes. Then its old text is kept beside it in a field that readers ignore (:data:`SPELLED`),
  and the way back restores it.
"""

from lakeferry.log.rewrite.adoption import Adopted, Returned
from lakeferry.log.rewrite.catalog_removal import remove_catalog, without_catalog
from lakeferry.log.rewrite.line_rewrite import SPELLED, rewrite_lines
from lakeferry.log.rewrite.listed_uris import (
    Listed,
    Relisted,
    relist_lines,
    relist_many,
    relist_parquet,
)
from lakeferry.log.rewrite.path_rewrite import (
    Absolute,
    Fetched,
    Homeward,
    PassObserver,
    PlacedPaths,
    Relative,
    Rewrite,
    Sidecars,
    Unchanged,
    rewrite_vectors,
    unreported,
)
from lakeferry.log.rewrite.row_rewrite import rewrite_batch, rewrite_parquet

__all__ = [
    "SPELLED",
    "Absolute",
    "Adopted",
    "Fetched",
    "Homeward",
    "Listed",
    "PassObserver",
    "PlacedPaths",
    "Relative",
    "Relisted",
    "Returned",
    "Rewrite",
    "Sidecars",
    "Unchanged",
    "relist_lines",
    "relist_many",
    "relist_parquet",
    "remove_catalog",
    "rewrite_batch",
    "rewrite_lines",
    "rewrite_parquet",
    "rewrite_vectors",
    "unreported",
    "without_catalog",
]
