r"""Rewrites the paths in every action from one place to another, and exactly back.

Rewrites ``path`` of ``add``, ``remove`` and ``cdc``, and their deletion vectors
(storage type ``u``, relative, becomes ``p``, absolute), in commits, compacted
logs, checkpoints and sidecars. Paths and nothing else: in newline-delimited
JSON every other byte stays, in Parquet every other value.

A rewrite is any function from an Arrow array of paths to an array of paths
(:data:`Rewrite`); :class:`Absolute`, :class:`Relative` and :class:`Listed` are
the ones we need, with :class:`Adopted` and :class:`Returned` for tables that
take other tables' files along. The same function serves an ``add`` and the ``remove`` that
cancels it, so two actions on one logical file stay actions on one logical file.

``Relative(root)`` undoes ``Absolute(root)`` byte for byte. Three cases need care:

* A path that was absolute and below the root must not come back relative: its
  ``remove`` would no longer cancel its ``add``. ``Absolute`` gives it another
  spelling of the same URI, with one letter of the root percent-encoded
  (``s3://b/%74/x`` for ``s3://b/t/x``), which ``Relative`` turns back. The mark
  is in the path itself, so it survives other engines' checkpoints.
* A vector's folder may need percent-encoding in an absolute path; the way back
  decodes it. A vector of type ``p`` that no ``u`` can name stays ``p``.
* A token with needless escapes (``\u0075`` for ``u``) can lose them where more
  than a prefix changes. Then its old text is kept beside it in a field that
  readers ignore (:data:`SPELLED`), and the way back restores it.
"""

from lakeferry.log.rewrite.adoption import Adopted, Returned
from lakeferry.log.rewrite.line_rewrite import SPELLED, rewrite_lines
from lakeferry.log.rewrite.listed import (
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
    PlacedPaths,
    Relative,
    Rewrite,
    Sidecars,
    Unchanged,
    rewrite_vectors,
)
from lakeferry.log.rewrite.rows import rewrite_batch, rewrite_parquet

__all__ = [
    "SPELLED",
    "Absolute",
    "Adopted",
    "Fetched",
    "Homeward",
    "Listed",
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
    "rewrite_batch",
    "rewrite_lines",
    "rewrite_parquet",
    "rewrite_vectors",
]
