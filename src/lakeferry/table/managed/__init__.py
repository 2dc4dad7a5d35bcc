"""Tables whose catalog decides about their commits (feature ``catalogManaged``).

:class:`ManagedStore` shows the log of such a table as an ordinary one, and turns put-if-absent of
a commit into a proposal to the catalog. :class:`CommitCatalog` is the port to that catalog, and
:func:`publish` copies accepted commits to where readers of the folder find them.

Implements the protocol's "Catalog-managed tables". It knows no catalog:
:mod:`lakeferry.catalogs` implements the port.
"""

from lakeferry.table.managed.commit_catalog import (
    CatalogHead,
    CommitCatalog,
    Proposal,
    RatifiedCommit,
    Verdict,
)
from lakeferry.table.managed.managed_store import ManagedStore
from lakeferry.table.managed.publish_commits import PublishedCommits, publish

__all__ = [
    "CatalogHead",
    "CommitCatalog",
    "ManagedStore",
    "Proposal",
    "PublishedCommits",
    "RatifiedCommit",
    "Verdict",
    "publish",
]
