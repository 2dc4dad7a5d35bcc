"""Makes the one commit that replaces a table's content, for ``--force``.

Live files that the other table doesn't have are removed, and missing ones are added. Metadata,
protocol, transactions and metadata domains become the other's, except a redirect, which belongs
to a place. Features that the table has stay, so that versions that need them stay readable. Rows
get new ids, above all that either side has assigned.

Pure: this module makes the commit's content, and doesn't commit it.
"""

from __future__ import annotations

import pyarrow.compute as pc

from lakeferry.log import actions, features, file_actions, file_identity, protocols, row_ids
from lakeferry.log.actions import DomainMetadata, Metadata
from lakeferry.log.commit import Reads, Transaction
from lakeferry.log.replay import Snapshot
from lakeferry.redirect import dialects
from lakeferry.transfer.datasets.delta.named_files import ORIGIN

_OPERATION = "REPLACE CONTENT"


def transaction(
    mine: Snapshot, theirs: Snapshot, root: str, origin: str, txn_id: str, now_ms: int
) -> Transaction:
    """Return what makes ``mine``, at ``root``, equal to ``theirs``, whose head is ``origin``."""
    my_keys = file_identity.table_keys(mine.files, root)
    their_keys = file_identity.table_keys(theirs.files, root)
    adds = theirs.files.filter(pc.invert(pc.is_in(their_keys, value_set=my_keys)))
    gone = mine.files.filter(pc.invert(pc.is_in(my_keys, value_set=their_keys)))
    needed = features.implied_features(theirs.protocol) - features.REDIRECT_FEATURES
    protocol = protocols.adding(mine.protocol, sorted(needed))
    metadata = _without_their_redirect(mine.metadata, theirs.metadata)
    marks = (row_ids.high_water_mark(each.domains) for each in (mine, theirs))
    return Transaction(
        _OPERATION,
        txn_id,
        {"origin": origin},
        protocol=protocol if protocol.unordered != mine.protocol.unordered else None,
        metadata=metadata if metadata != mine.metadata else None,
        domains=_domains(mine, theirs),
        txns=tuple(txn for app, txn in theirs.txns.items() if mine.txns.get(app) != txn),
        adds=row_ids.without_row_ids(adds, data_change=True) if adds.num_rows else None,
        removes=file_actions.as_removes(gone, now_ms, data_change=True) if gone.num_rows else None,
        reads=Reads.FILES,
        row_ids_above=max(marks),
        info={ORIGIN: origin},
    )


def _without_their_redirect(mine: Metadata, theirs: Metadata) -> Metadata:
    """Return their metadata with our redirect entries: theirs lead elsewhere."""
    bare = dialects.without_redirect(mine)
    own = {name: value for name, value in mine.configuration.items() if name not in bare}
    configuration = dialects.without_redirect(theirs) | own
    if configuration == theirs.configuration:
        return theirs
    return actions.changed(theirs, configuration=configuration)


def _domains(mine: Snapshot, theirs: Snapshot) -> tuple[DomainMetadata, ...]:
    changed = [
        domain
        for name, domain in theirs.domains.items()
        if name != row_ids.DOMAIN and mine.domains.get(name) != domain
    ]
    removed = [
        DomainMetadata(name, domain.configuration, removed=True)
        for name, domain in mine.domains.items()
        if name != row_ids.DOMAIN and name not in theirs.domains
    ]
    return (*changed, *removed)
