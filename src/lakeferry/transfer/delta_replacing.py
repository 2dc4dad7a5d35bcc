"""One commit that makes a table what another one is: what force does to a Delta table.

Live files that the other doesn't have are removed, those that are lacking are added;
metadata, protocol, transactions and metadata domains become the other's. Features that the
table has stay: versions that need them stay readable. Rows get new ids, above all that either
side has given out.

Pure: what is to be committed, not the committing.
"""

from __future__ import annotations

import pyarrow.compute as pc

from lakeferry.log import features, files, protocols, row_ids
from lakeferry.log.actions import DomainMetadata
from lakeferry.log.commit import Reads, Transaction
from lakeferry.log.replay import Snapshot
from lakeferry.transfer.delta_blocks import ORIGIN

OPERATION = "REPLACE CONTENT"


def transaction(
    mine: Snapshot, theirs: Snapshot, root: str, origin: str, txn_id: str, now_ms: int
) -> Transaction:
    """Return what makes ``mine``, at ``root``, the same as ``theirs``, whose head is ``origin``."""
    my_keys = files.table_keys(mine.files, root)
    their_keys = files.table_keys(theirs.files, root)
    adds = theirs.files.filter(pc.invert(pc.is_in(their_keys, value_set=my_keys)))
    gone = mine.files.filter(pc.invert(pc.is_in(my_keys, value_set=their_keys)))
    protocol = protocols.adding(mine.protocol, sorted(features.implied_features(theirs.protocol)))
    marks = (row_ids.high_water_mark(each.domains) for each in (mine, theirs))
    return Transaction(
        OPERATION,
        txn_id,
        {"origin": origin},
        protocol=protocol if protocol.unordered != mine.protocol.unordered else None,
        metadata=theirs.metadata if theirs.metadata != mine.metadata else None,
        domains=_domains(mine, theirs),
        txns=tuple(txn for app, txn in theirs.txns.items() if mine.txns.get(app) != txn),
        adds=row_ids.without(adds, data_change=True) if adds.num_rows else None,
        removes=files.as_removes(gone, now_ms, data_change=True) if gone.num_rows else None,
        reads=Reads.FILES,
        row_ids_above=max(marks),
        info={ORIGIN: origin},
    )


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
